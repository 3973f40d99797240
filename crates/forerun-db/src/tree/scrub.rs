//! Reads everything in a run's file, to find damage that no lookup has met.
//!
//! ```text
//!   file ── past the memory of the system ──> both ends ──> filter, index ──> pages, depth first
//!                                             all but the ends are paid for first
//! ```
//!
//! What is damaged does not stop the rest. The pages below a damaged internal page cannot be found,
//! and are part of that damage. `verify.rs` also checks that what is stored is right: a scrub,
//! whether it is what was written.

use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::cache::PageCache;
use crate::comparator::KeyOrder;
use crate::io::{Io, IoFile, OpenMode, direct};
use crate::run::{Page, PageKind, PageLocation, Run};
use crate::tree::manifest::RunRecord;
use crate::tree::open_runs::open_run;
use crate::{Error, Result};

/// What a scrub does beside reading.
pub(crate) trait Scrubber {
    /// Called before so many bytes are read: waits for the right to.
    ///
    /// # Errors
    /// Ends the scrub.
    fn pay(&mut self, bytes: u64) -> Result<()>;

    /// Called for what is damaged or cannot be read: a page below the root, if it has a number.
    fn note_damage(&mut self, page_no: Option<u32>, error: Error);
}

/// Reads all of the run that a record names.
///
/// # Errors
/// Those of [`Scrubber::pay`]; [`Error::Io`] if the file cannot be opened; [`Error::OutOfMemory`].
pub(crate) fn scrub_run(
    io: &dyn Io,
    dir: &Path,
    named: &RunRecord,
    order: &KeyOrder,
    cache: &Arc<PageCache>,
    scrubber: &mut dyn Scrubber,
) -> Result<()> {
    let run = match open_run(&PastMemory(io), dir, named, order, cache) {
        Ok(run) => run,
        Err(error @ (Error::Io { op: "open", .. } | Error::OutOfMemory { .. })) => {
            return Err(error);
        }
        // The store has it open, so it was not of another version or order.
        Err(error) => {
            scrubber.note_damage(None, error);
            return Ok(());
        }
    };
    let pages = run.pages_range();
    let around = named.bytes.saturating_sub(pages.end - pages.start);
    scrubber.pay(around + u64::from(run.root_location().stored_len))?;
    note(run.read_filter().map(drop), None, scrubber)?;
    note(run.read_index().map(drop), None, scrubber)?;
    scrub_pages(&run, named.bytes, scrubber)
}

/// Reads all pages below the root, which was read when the run was opened.
fn scrub_pages(run: &Run, named_bytes: u64, scrubber: &mut dyn Scrubber) -> Result<()> {
    let (pages, leaf_pages) = (run.meta().pages(), run.meta().leaf_pages);
    let mut seen = vec![false; pages as usize];
    let (mut stored, mut bytes) = (Vec::new(), Vec::new());
    // The next page is the last of these.
    let mut waiting = Vec::new();
    add_children(run.root(), &mut waiting);
    while let Some((number, location)) = waiting.pop() {
        let seen = seen.get_mut(number as usize);
        if seen.is_none_or(|seen| std::mem::replace(seen, true)) {
            let reason = "its number is out of range, or another page has it";
            scrubber.note_damage(None, run.corrupt(location.offset, reason));
            continue;
        }
        // A damaged length may be any number.
        scrubber.pay(u64::from(location.stored_len).min(named_bytes))?;
        let read = run.read_page(number, location, &mut stored, &mut bytes);
        if !note(read, Some(number), scrubber)? {
            continue;
        }
        let page = Page::new(&bytes);
        match (page.kind(), number < leaf_pages) {
            (PageKind::Leaf, true) => {}
            (PageKind::Internal, false) => add_children(page, &mut waiting),
            _ => {
                let reason = "the page's kind does not match its number";
                scrubber.note_damage(Some(number), run.corrupt(location.offset, reason));
            }
        }
    }
    Ok(())
}

/// Adds the children of an internal page, the first one last.
fn add_children(page: Page<'_>, waiting: &mut Vec<(u32, PageLocation)>) {
    if page.kind() == PageKind::Internal {
        waiting.extend((0..page.rows()).rev().map(|row| page.child(row)));
    }
}

/// Passes damage on. Returns whether there is none.
fn note(read: Result<()>, page_no: Option<u32>, scrubber: &mut dyn Scrubber) -> Result<bool> {
    match read {
        Ok(()) => Ok(true),
        Err(error @ (Error::CorruptFile { .. } | Error::Io { .. })) => {
            scrubber.note_damage(page_no, error);
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Opens files for reads from the device that leave nothing in the memory of the system.
#[derive(Debug)]
struct PastMemory<'a>(&'a dyn Io);

/// A file of a file system without direct reads.
#[derive(Debug)]
struct ReadOnce(Box<dyn IoFile>);

impl Io for PastMemory<'_> {
    crate::forward_io!(
        this => this.0;
        list, create_dir, rename, remove, sync_dir, boot_id
    );

    fn open(&self, path: &Path, _: OpenMode) -> io::Result<Box<dyn IoFile>> {
        let opened = self.0.open(path, OpenMode::ReadDirect);
        let is_refused = match &opened {
            // Any other failure of this read is met again by those that follow.
            Ok(file) => file
                .read_at(&mut [0], 0)
                .is_err_and(|error| direct::is_refusal(&error)),
            Err(error) => direct::is_refusal(error),
        };
        if !is_refused {
            return opened;
        }
        let file = self.0.open(path, OpenMode::Read)?;
        Ok(Box::new(ReadOnce(file)))
    }
}

impl IoFile for ReadOnce {
    crate::forward_io!(this => this.0; write_at, len, set_len, sync, try_lock);

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_once_at(buffer, offset)
    }
}

#[cfg(test)]
#[path = "scrub_tests.rs"]
mod tests;
