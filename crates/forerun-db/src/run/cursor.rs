//! A cursor over all versions of a run.
//!
//! ```text
//!   root, row ─> internal page, row ─> … ─> leaf, row          each page in a buffer of the cursor's own
//!                                             │ end of the leaf
//!   next leaf: up to the first page that has another row, down its first children
//!
//!   cache     resident pages are copied; the first few leaves are read into it
//!   file      later leaves: several with one read, past the cache    │ leaf │ leaf │ leaf │ …
//! ```
//!
//! A cursor holds no pin between calls, so it may live long. A short scan leaves its pages in the
//! cache; a long scan does not.

use std::ops::Range;

use forerun_core::block_on_with;

use super::PageSearch;
use super::page::{Page, PageKind};
use super::page_search;
use super::reader::Run;
use super::stored::{PageLocation, unstore};
use crate::Result;
use crate::cache;
use crate::cache::driver::Reads;
use crate::comparator::KeyOrder;
use crate::io::ReadBackend;
use crate::io::reads::read_exact_at;
use crate::versions::{Version, VersionCursor};

/// Leaves that a cursor reads into the cache before it bypasses it.
const LEAVES_INTO_CACHE: u32 = 8;

/// Bytes of a page buffer that a reused cursor keeps.
const KEPT_PAGE_BYTES: usize = 64 << 10;

/// Sizes of the first and of the largest read-ahead.
const READ_AHEAD_MIN_BYTES: u64 = 32 << 10;
const READ_AHEAD_MAX_BYTES: u64 = 256 << 10;

/// A page in a cursor's buffer.
#[derive(Debug, Default)]
struct LoadedPage {
    bytes: Vec<u8>,
    /// `None` if the buffer holds no page.
    number: Option<u32>,
}

impl LoadedPage {
    fn page(&self) -> Page<'_> {
        Page::new(&self.bytes)
    }
}

/// An internal page, and the row at which the cursor descended.
#[derive(Debug, Default)]
struct Ancestor {
    /// Empty for the root.
    held: LoadedPage,
    row: usize,
}

/// Where to descend.
#[derive(Clone, Copy)]
enum Target<'k> {
    First,
    Last,
    Key(&'k [u8], u64),
}

impl Target<'_> {
    fn row(self, page: Page<'_>, order: &KeyOrder) -> usize {
        match self {
            Target::First => 0,
            Target::Last => page.rows().saturating_sub(1),
            Target::Key(key, sequence) => {
                page_search::child(page, order, key, sequence, PageSearch::KeyPrefixes)
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Forward,
    Backward,
}

/// A part of the file that holds the next leaves.
#[derive(Debug, Default)]
struct ReadAhead {
    bytes: Vec<u8>,
    offset: u64,
    /// Size of the next read.
    window: u64,
}

impl ReadAhead {
    fn find(&self, location: PageLocation) -> Option<&[u8]> {
        let start = usize::try_from(location.offset.checked_sub(self.offset)?).ok()?;
        self.bytes
            .get(start..start.checked_add(location.stored_len as usize)?)
    }
}

/// A cursor over a run.
#[derive(Debug)]
pub(crate) struct RunCursor<'r> {
    run: &'r Run,
    /// The path from the root to the leaf's parent; empty if the root is the leaf.
    path: Vec<Ancestor>,
    leaf: LoadedPage,
    /// The current row, if any.
    row: Option<usize>,
    /// The current key, and how many of its bytes are the leaf's prefix.
    key: Vec<u8>,
    prefix_len: Option<usize>,
    /// How many more leaves may be read into the cache, and the initial value of that.
    into_cache: u32,
    max_into_cache: u32,
    ahead: ReadAhead,
}

impl<'r> RunCursor<'r> {
    /// A cursor without a position.
    pub(crate) fn new(run: &'r Run) -> Self {
        RunCursor {
            run,
            path: Vec::new(),
            leaf: LoadedPage::default(),
            row: None,
            key: Vec::new(),
            prefix_len: None,
            into_cache: LEAVES_INTO_CACHE,
            max_into_cache: LEAVES_INTO_CACHE,
            ahead: ReadAhead::default(),
        }
    }

    /// A cursor that bypasses the cache, for reading the whole run once.
    pub(crate) fn past_cache(run: &'r Run) -> Self {
        RunCursor {
            into_cache: 0,
            max_into_cache: 0,
            ..RunCursor::new(run)
        }
    }

    /// The page at `level` of the path; level 0 is the root.
    fn above(&self, level: usize) -> Page<'_> {
        match level {
            0 => self.run.root(),
            _ => self.path[level].held.page(),
        }
    }

    /// Descends from the root to a leaf.
    fn descend(&mut self, to: Target<'_>) -> Result<()> {
        self.ahead.window = READ_AHEAD_MIN_BYTES;
        if self.run.root().kind() == PageKind::Leaf {
            if self.leaf.number.is_none() {
                self.leaf.bytes.extend_from_slice(self.run.root().bytes());
                self.leaf.number = Some(0);
                self.prefix_len = None;
            }
            return Ok(());
        }
        if self.path.is_empty() {
            self.path.push(Ancestor::default());
        }
        self.path[0].row = to.row(self.run.root(), self.run.order());
        self.descend_from(0, to, Direction::Forward)
    }

    /// Descends from the current row of the page at `level`.
    fn descend_from(
        &mut self,
        mut level: usize,
        to: Target<'_>,
        direction: Direction,
    ) -> Result<()> {
        loop {
            let page = self.above(level);
            let row = self.path[level].row;
            let (number, location) = page.child(row);
            // Leaves have the lowest numbers, and a child's number is smaller than its parent's.
            let above = self.path[level].held.number.unwrap_or(u32::MAX);
            if number >= above {
                let reason = "a page points to a page that is not below it";
                return Err(self.run.corrupt(location.offset, reason));
            }
            if number < self.run.meta().leaf_pages {
                return self.load_leaf(level, direction);
            }
            level += 1;
            if self.path.len() == level {
                self.path.push(Ancestor::default());
            }
            let mut held = std::mem::take(&mut self.path[level].held);
            let loaded = load(self.run, number, location, &mut held);
            self.path[level].held = held;
            loaded?;
            let page = self.path[level].held.page();
            if page.kind() != PageKind::Internal {
                let reason = "found a leaf instead of an internal page";
                return Err(self.run.corrupt(location.offset, reason));
            }
            let row = to.row(page, self.run.order());
            self.path[level].row = row;
        }
    }

    /// Loads the leaf below the current row of the page at `level`, which becomes the end of the
    /// path.
    fn load_leaf(&mut self, level: usize, direction: Direction) -> Result<()> {
        self.path.truncate(level + 1);
        let page = self.above(level);
        let row = self.path[level].row;
        let (number, location) = page.child(row);
        if self.leaf.number == Some(number) {
            return Ok(());
        }
        let siblings = (page.child(0).1, page.child(page.rows() - 1).1);
        self.prefix_len = None;
        let cached = copy_cached(self.run, number, location, &mut self.leaf);
        if !cached && self.into_cache > 0 {
            self.into_cache -= 1;
            load(self.run, number, location, &mut self.leaf)?;
        } else if !cached {
            self.load_ahead(number, location, siblings, direction)?;
        }
        if self.leaf.page().kind() != PageKind::Leaf {
            self.leaf.number = None;
            let reason = "found an internal page instead of a leaf";
            return Err(self.run.corrupt(location.offset, reason));
        }
        Ok(())
    }

    /// Loads a leaf without the cache: from the read-ahead buffer, or together with the leaves
    /// before or after it.
    fn load_ahead(
        &mut self,
        number: u32,
        location: PageLocation,
        (first, last): (PageLocation, PageLocation),
        direction: Direction,
    ) -> Result<()> {
        self.run.check_location(location)?;
        self.leaf.number = None;
        if self.ahead.find(location).is_none() {
            let window = self.ahead.window.max(u64::from(location.stored_len));
            self.ahead.window =
                (self.ahead.window * 2).clamp(READ_AHEAD_MIN_BYTES, READ_AHEAD_MAX_BYTES);
            let range = match direction {
                Direction::Forward => {
                    location.offset..last.end().clamp(location.end(), location.offset + window)
                }
                Direction::Backward => {
                    let from = location.end().saturating_sub(window);
                    first
                        .offset
                        .clamp(from.min(location.offset), location.offset)
                        ..location.end()
                }
            };
            self.read_ahead(range);
        }
        let run = self.run;
        match self.ahead.find(location) {
            Some(stored) => {
                self.leaf.bytes.resize(location.raw_len as usize, 0);
                unstore(run.salt(), location, stored, &mut self.leaf.bytes)
                    .map_err(|reason| run.corrupt(location.offset, reason))?;
            }
            // The large read failed, perhaps because of another leaf. Read this one alone.
            None => {
                let stored = &mut self.ahead.bytes;
                run.read_page(location, stored, &mut self.leaf.bytes)?;
                self.ahead.offset = location.offset;
            }
        }
        self.leaf.number = Some(number);
        Ok(())
    }

    /// Reads a part of the file ahead. On an error, the buffer is empty.
    fn read_ahead(&mut self, range: Range<u64>) {
        let ahead = &mut self.ahead;
        ahead.offset = range.start;
        ahead.bytes.clear();
        let len = (range.end - range.start) as usize;
        if ahead.bytes.try_reserve(len).is_err() {
            return;
        }
        ahead.bytes.resize(len, 0);
        if read_exact_at(self.run.file(), &mut ahead.bytes, range.start).is_err() {
            ahead.bytes.clear();
        }
    }

    /// Moves to the neighboring leaf, and returns whether there is one.
    fn turn_leaf(&mut self, direction: Direction) -> Result<bool> {
        let mut level = self.path.len();
        while level > 0 {
            level -= 1;
            let rows = self.above(level).rows();
            let row = &mut self.path[level].row;
            let next = match direction {
                Direction::Forward => Some(*row + 1).filter(|next| *next < rows),
                Direction::Backward => row.checked_sub(1),
            };
            if let Some(next) = next {
                *row = next;
                let to = match direction {
                    Direction::Forward => Target::First,
                    Direction::Backward => Target::Last,
                };
                self.descend_from(level, to, direction)?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Moves to a row of the leaf.
    fn set_row(&mut self, row: usize) {
        let page = Page::new(&self.leaf.bytes);
        match self.prefix_len {
            Some(len) => self.key.truncate(len),
            None => {
                self.key.clear();
                self.key.extend_from_slice(page.prefix());
                self.prefix_len = Some(self.key.len());
            }
        }
        self.key.extend_from_slice(page.suffix(row));
        self.row = Some(row);
    }

    fn first_behind(&mut self, row: usize) -> Result<()> {
        if row < self.leaf.page().rows() {
            self.set_row(row);
        } else if self.turn_leaf(Direction::Forward)? {
            self.set_row(0);
        }
        Ok(())
    }

    fn last_before(&mut self, row: usize) -> Result<()> {
        if let Some(row) = row.checked_sub(1) {
            self.set_row(row);
        } else if self.turn_leaf(Direction::Backward)? {
            self.set_row(self.leaf.page().rows().saturating_sub(1));
        }
        Ok(())
    }

    fn lower_bound(&self, key: &[u8], sequence: u64) -> usize {
        let order = self.run.order();
        page_search::lower_bound(
            self.leaf.page(),
            order,
            key,
            sequence,
            PageSearch::KeyPrefixes,
        )
    }
}

impl VersionCursor for RunCursor<'_> {
    fn seek_first(&mut self) -> Result<()> {
        self.row = None;
        self.descend(Target::First)?;
        self.set_row(0);
        Ok(())
    }

    fn seek_last(&mut self) -> Result<()> {
        self.row = None;
        self.descend(Target::Last)?;
        self.set_row(self.leaf.page().rows().saturating_sub(1));
        Ok(())
    }

    fn seek(&mut self, key: &[u8], sequence: u64) -> Result<()> {
        let sequence = self.run.lookup_sequence(sequence);
        self.row = None;
        self.descend(Target::Key(key, sequence))?;
        let row = self.lower_bound(key, sequence);
        self.first_behind(row)
    }

    fn seek_before(&mut self, key: &[u8], sequence: u64) -> Result<()> {
        let sequence = self.run.lookup_sequence(sequence);
        self.row = None;
        self.descend(Target::Key(key, sequence))?;
        let row = self.lower_bound(key, sequence);
        self.last_before(row)
    }

    fn next(&mut self) -> Result<()> {
        match self.row.take() {
            Some(row) => self.first_behind(row + 1),
            None => Ok(()),
        }
    }

    fn prev(&mut self) -> Result<()> {
        match self.row.take() {
            Some(row) => self.last_before(row),
            None => Ok(()),
        }
    }

    fn at(&self) -> Option<Version<'_>> {
        let row = self.row?;
        let page = self.leaf.page();
        Some(Version {
            key: &self.key,
            sequence: self.run.sequence(page.sequence(row)),
            kind: page.version_kind(row),
            value: page.value(row),
        })
    }
    fn reset(&mut self) {
        self.row = None;
        // A cursor that bypasses the cache always does.
        self.into_cache = self.max_into_cache;
        self.ahead = ReadAhead::default();
        if self.leaf.bytes.capacity() > KEPT_PAGE_BYTES {
            self.leaf = LoadedPage::default();
            self.prefix_len = None;
        }
        self.key.shrink_to(KEPT_PAGE_BYTES);
    }
}

/// Copies a page from the cache, if it is resident.
fn copy_cached(run: &Run, number: u32, location: PageLocation, held: &mut LoadedPage) -> bool {
    let pin = cache::pin();
    let Some(bytes) = run.slots().get(number, location.raw_len as usize, &pin) else {
        return false;
    };
    run.slots().cache().count(1, 0);
    held.bytes.clear();
    held.bytes.extend_from_slice(bytes);
    held.number = Some(number);
    true
}

/// Loads a page through the cache, unless the buffer already holds it.
fn load(run: &Run, number: u32, location: PageLocation, held: &mut LoadedPage) -> Result<()> {
    if held.number == Some(number) || copy_cached(run, number, location, held) {
        return Ok(());
    }
    held.number = None;
    let pin = cache::pin();
    let reads = Reads::new(run.slots().cache(), &pin, ReadBackend::Sync);
    let bytes = block_on_with(&reads, reads.page(run, number, location))?;
    held.bytes.clear();
    held.bytes.extend_from_slice(bytes);
    held.number = Some(number);
    Ok(())
}

#[cfg(test)]
#[path = "cursor_tests.rs"]
mod tests;
