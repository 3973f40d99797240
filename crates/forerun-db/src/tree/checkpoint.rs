//! Creates a store in a directory from existing files, at one point in time.
//!
//! ```text
//!   run-000007.run ──link or copy──> run-000007.run
//!   wal-000003.log ──copy──────────> wal-000003.log    the log, up to the checkpoint
//!                                    CLOSED            the log's end, so that a missing part is noticed
//!                                    MANIFEST
//!                      sync the directory
//!                                    FORMAT            from here on it is a store
//! ```
//!
//! Checkpoints copy the store's own files this way, and restoring a backup does the same. Opening
//! rejects a directory without `FORMAT` as not a store, so an interrupted copy is never opened.

use std::cell::RefCell;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use crate::io::replace::replace_file;
use crate::io::{Io, IoFile, Linked, OpenMode, link};
use crate::store_dir;
use crate::tree::file_copy::{CopyPages, Meter, copy};
use crate::tree::manifest::{Manifest, RunRecord};
use crate::wal::clean_shutdown::{self, CleanShutdown};
use crate::wal::log_file;
use crate::{Error, Result, run};

/// The log at one point in time, from the first segment that the manifest needs.
#[derive(Debug, Default)]
pub(crate) struct LogEnd {
    /// In their order.
    pub(crate) segments: Vec<LogPart>,
    /// The sequence number of the last operation in these bytes.
    pub(crate) last_sequence: u64,
}

impl LogEnd {
    /// Its size.
    pub(crate) fn bytes(&self) -> u64 {
        self.segments.iter().map(|part| part.len).sum()
    }
}

/// The part of a segment that belongs to a checkpoint. The segment may be removed meanwhile.
#[derive(Debug)]
pub(crate) struct LogPart {
    pub(crate) number: u64,
    pub(crate) file: Box<dyn IoFile>,
    /// How many bytes to copy: up to the end of a record.
    pub(crate) len: u64,
}

/// Copies a store to a directory that does not exist or is empty. Runs never change, so a hard link
/// is a copy. The runs must stay until this returns; the log may grow.
///
/// # Errors
/// As [`make_store`], and those of `meter`.
pub(crate) fn checkpoint(
    io: &Arc<dyn Io>,
    dir: &Path,
    into: &Path,
    manifest: &Manifest,
    log: &LogEnd,
    meter: &mut Meter<'_>,
) -> Result<()> {
    let meter = RefCell::new(meter);
    make_store(
        io,
        into,
        manifest,
        |io, run| {
            let (from, to) = (run::path(dir, run.number), run::path(into, run.number));
            let mut meter = meter.borrow_mut();
            meter.check()?;
            match link(io, &from, &to).map_err(|error| Error::io("link", &from, error))? {
                Linked::Yes => meter.skip(run.bytes),
                Linked::Unsupported => {
                    let source = io
                        .open(&from, OpenMode::Read)
                        .map_err(|error| Error::io("open", &from, error))?;
                    copy_to((&*source, &from), io, &to, run.bytes, &mut meter)
                }
            }
        },
        |io| {
            for LogPart { number, file, len } in &log.segments {
                let (from, to) = (log_file::path(dir, *number), log_file::path(into, *number));
                copy_to((&**file, &from), io, &to, *len, &mut meter.borrow_mut())?;
            }
            let Some(last) = log.segments.last() else {
                return Ok(());
            };
            let shutdown = CleanShutdown {
                segment: last.number,
                len_bytes: last.len,
                last_sequence: log.last_sequence,
            };
            Ok(replace_file(
                io,
                into,
                clean_shutdown::NAME,
                &shutdown.encode(),
            )?)
        },
    )
}

/// Creates the store of a manifest in a directory that does not exist or is empty, and holds its
/// lock until the store is complete. `put_run` creates a run's file there, durably, and `put_log`
/// the whole log, through the given file system. This function makes the names durable.
///
/// # Errors
/// [`Error::AlreadyExists`] if the directory is not empty; [`Error::Locked`] if another call or
/// process is creating a store there. [`Error::Io`], or the errors of `put_run` and `put_log`:
/// removes what was written, as far as possible; the rest is not a store.
pub(crate) fn make_store(
    io: &Arc<dyn Io>,
    into: &Path,
    manifest: &Manifest,
    mut put_run: impl FnMut(&dyn Io, &RunRecord) -> Result<()>,
    put_log: impl FnOnce(&dyn Io) -> Result<()>,
) -> Result<()> {
    let (io, _lock) = store_dir::take_empty(io, into)?;
    let io = &*io;
    let fill = || {
        manifest.runs().try_for_each(|run| put_run(io, run))?;
        put_log(io)?;
        manifest.write(io, into)?;
        // All names become durable before the one that makes the directory a store.
        io.sync_dir(into)
            .map_err(|error| Error::io("sync", into, error))?;
        let format = store_dir::encode_format(manifest.comparator());
        replace_file(io, into, store_dir::FORMAT, &format)?;
        let parent = store_dir::parent(into);
        io.sync_dir(parent)
            .map_err(|error| Error::io("sync", parent, error))
    };
    let made = fill();
    if made.is_err() {
        // Removes FORMAT first, and durably if it exists: without it, the rest is not a store.
        let is_no_store = match io.remove(&into.join(store_dir::FORMAT)) {
            Ok(()) => io.sync_dir(into).is_ok(),
            Err(error) => error.kind() == ErrorKind::NotFound,
        };
        if is_no_store {
            store_dir::empty(io, into);
        }
    }
    made
}

fn copy_to(
    from: (&dyn IoFile, &Path),
    io: &dyn Io,
    to: &Path,
    len: u64,
    meter: &mut Meter<'_>,
) -> Result<()> {
    copy(from, io, to, CopyPages::Drop, len, meter).map(drop)
}
