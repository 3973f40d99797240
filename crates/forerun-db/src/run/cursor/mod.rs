//! A cursor over all versions of a run.
//!
//! ```text
//!   root, row ─> internal page, row ─> … ─> leaf, row          each page held, or copied: loaded_page.rs
//!                                             │ end of the leaf
//!   next leaf: up to the first page that has another row, down its first children
//!
//!   cache     resident pages are used in place; the first few leaves are read into it
//!   file      later leaves: several with one read, past the cache    │ leaf │ leaf │ leaf │ …
//! ```
//!
//! A cursor holds no pin between calls, so it may live long. A short scan leaves its pages in the
//! cache; a long scan does not. `read_ahead.rs` reads several leaves at once; `interleaved.rs`
//! seeks while other cursors do.

mod interleaved;
mod read_ahead;

use std::ops::Range;

use read_ahead::{READ_AHEAD_MIN_BYTES, ReadAhead};

use super::loaded_page::LoadedPage;
use super::page::{Page, PageKind};
use super::page_search;
use super::reader::Run;
use crate::comparator::KeyOrder;
use crate::versions::{Kind, Version, VersionCursor};
use crate::{Error, Result};

/// What is wrong with a page that another one points to.
const NOT_BELOW: &str = "a page points to a page that is not below it";
const LEAF_ABOVE: &str = "found a leaf instead of an internal page";

/// Leaves that a cursor reads into the cache before it bypasses it.
const LEAVES_INTO_CACHE: u32 = 8;

/// Bytes of a key buffer that a reused cursor keeps.
const KEPT_KEY_BYTES: usize = 64 << 10;

/// A step to a row that is so many rows from its leaf's end prefetches the start of the next leaf:
/// this many lines, with the header, a group and the first rows of a leaf of long rows.
const ROWS_BEFORE_LEAF: usize = 4;
const LEAF_START_LINES: usize = 8;

/// The next row's value is prefetched if the current row's is at least this long, and so many bytes
/// of it. The CPU follows shorter and longer ones by itself.
const PREFETCHED_VALUE_MIN: usize = 256;
const PREFETCHED_VALUE_MAX: usize = 2 << 10;

/// An internal page, and the row at which the cursor descended.
#[derive(Debug, Default)]
struct Ancestor<'r> {
    /// No page for the root.
    loaded: LoadedPage<'r>,
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
            Target::Key(key, sequence) => page_search::child(page, order, key, sequence),
        }
    }
}

/// The first or the last version of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunEnd {
    First,
    Last,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Forward,
    Backward,
}

/// A cursor over a run.
#[derive(Debug)]
pub(crate) struct RunCursor<'r> {
    run: &'r Run,
    /// The path from the root to the leaf's parent; empty if the root is the leaf.
    path: Vec<Ancestor<'r>>,
    leaf: LoadedPage<'r>,
    /// The current row, if any.
    row: Option<usize>,
    /// The end of the run at which the cursor is, if it has not read the version there.
    unread: Option<RunEnd>,
    /// [`prefix`] of the run's smallest and of its largest key.
    bounds: (u128, u128),
    /// What it has besides its key.
    sequence: u64,
    kind: Kind,
    value: Range<usize>,
    /// The current key, and how many of its bytes are the leaf's prefix.
    key: Vec<u8>,
    prefix_len: Option<usize>,
    /// How many more leaves may be read into the cache, and the initial value of that.
    into_cache: u32,
    max_into_cache: u32,
    ahead: ReadAhead,
}

/// An integer that orders like the key as far as possible. It calls no user's code: cursors are
/// made and reopened where a panic of that is not expected.
fn prefix(order: &KeyOrder, key: &[u8]) -> u128 {
    match order {
        KeyOrder::Bytewise => order.long_prefix(key),
        KeyOrder::Custom(_) => 0,
    }
}

fn bounds(run: &Run) -> (u128, u128) {
    let (order, meta) = (run.order(), run.meta());
    (prefix(order, &meta.smallest), prefix(order, &meta.largest))
}

impl<'r> RunCursor<'r> {
    /// A cursor without a position.
    pub(crate) fn new(run: &'r Run) -> Self {
        RunCursor {
            run,
            path: Vec::new(),
            leaf: LoadedPage::default(),
            row: None,
            unread: None,
            bounds: bounds(run),
            sequence: 0,
            kind: Kind::Deletion,
            value: 0..0,
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

    /// Makes this a cursor over another run of the store, without a position. Keeps its buffers.
    pub(super) fn reopen(&mut self, run: &'r Run) {
        self.run = run;
        self.bounds = bounds(run);
        self.leave();
        self.prefix_len = None;
        self.leaf.clear();
        for ancestor in &mut self.path {
            ancestor.loaded.clear();
        }
        self.into_cache = self.max_into_cache;
        self.ahead.bytes.clear();
    }

    /// Gives up the position.
    pub(super) fn leave(&mut self) {
        self.row = None;
        self.unread = None;
    }

    /// The page at `level` of the path; level 0 is the root.
    fn above(&self, level: usize) -> Page<'_> {
        match level {
            0 => self.run.root(),
            _ => self.path[level].loaded.page(),
        }
    }

    /// Descends from the root to a leaf.
    fn descend(&mut self, to: Target<'_>) -> Result<()> {
        self.ahead.window = READ_AHEAD_MIN_BYTES;
        if self.run.root().kind() == PageKind::Leaf {
            self.path.clear();
            if self.leaf.number().is_none() {
                self.leaf.copy_from(0, self.run.root().bytes());
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
            let above = self.path[level].loaded.number().unwrap_or(u32::MAX);
            if number >= above {
                return Err(self.corrupt_child(level, NOT_BELOW));
            }
            if number < self.run.meta().leaf_pages {
                return self.load_leaf(level, direction);
            }
            level += 1;
            if self.path.len() == level {
                self.path.push(Ancestor::default());
            }
            self.path[level].loaded.load(self.run, number, location)?;
            let page = self.path[level].loaded.page();
            if page.kind() != PageKind::Internal {
                return Err(self.corrupt_child(level - 1, LEAF_ABOVE));
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
        if self.leaf.number() == Some(number) {
            return Ok(());
        }
        self.prefix_len = None;
        let len = location.raw_len as usize;
        if self.leaf.take_resident(self.run, number, len) {
            self.run.slots().cache().count(1, 0);
        } else if self.into_cache > 0 {
            self.into_cache -= 1;
            self.leaf.load(self.run, number, location)?;
        } else {
            let page = self.above(level);
            let siblings = (page.child(0).1, page.child(page.rows() - 1).1);
            self.load_ahead(number, location, siblings, direction)?;
        }
        self.check_leaf(level)
    }

    /// Checks that the page below the current row of the page at `level`, which has been loaded as
    /// a leaf, is one.
    fn check_leaf(&mut self, level: usize) -> Result<()> {
        if self.leaf.page().kind() == PageKind::Leaf {
            return Ok(());
        }
        self.leaf.clear();
        let reason = "found an internal page instead of a leaf";
        Err(self.corrupt_child(level, reason))
    }

    /// The error for the page below the current row of the page at `level`.
    #[cold]
    fn corrupt_child(&self, level: usize, reason: &'static str) -> Error {
        let (_, location) = self.above(level).child(self.path[level].row);
        self.run.corrupt(location.offset, reason)
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
    #[inline]
    fn set_row(&mut self, row: usize) {
        let page = self.leaf.page();
        match self.prefix_len {
            Some(len) => self.key.truncate(len),
            None => {
                self.key.clear();
                self.key.extend_from_slice(page.prefix());
                self.prefix_len = Some(self.key.len());
            }
        }
        let version = page.leaf_row(row);
        self.key.extend_from_slice(version.suffix);
        self.sequence = self.run.sequence(version.sequence);
        self.kind = version.kind;
        self.value = version.value;
        self.row = Some(row);
    }

    /// After a step: prefetches what the next steps in that direction read, the next row's value
    /// and the start of the next leaf.
    #[inline]
    fn prefetch(&self, direction: Direction) {
        let Some(row) = self.row else {
            return;
        };
        let page = self.leaf.page();
        let (next, left) = match direction {
            Direction::Forward => (row + 1, page.rows() - row - 1),
            Direction::Backward => (row.wrapping_sub(1), row),
        };
        if left == ROWS_BEFORE_LEAF
            && let Some(number) = self.leaf.number()
        {
            // Leaves are numbered in key order.
            let leaf = match direction {
                Direction::Forward => number.wrapping_add(1),
                Direction::Backward => number.wrapping_sub(1),
            };
            self.run.slots().prefetch_page(leaf, LEAF_START_LINES);
        }
        // The CPU itself follows short rows, and the start of the next leaf is prefetched.
        if left > 0 && self.value.len() >= PREFETCHED_VALUE_MIN {
            page.prefetch_value(next, PREFETCHED_VALUE_MAX);
        }
    }

    /// Whether the cursor has a position.
    #[inline]
    pub(super) fn is_positioned(&self) -> bool {
        self.row.is_some() || self.unread.is_some()
    }

    #[inline]
    fn first_behind(&mut self, row: usize) -> Result<()> {
        if row < self.leaf.page().rows() {
            self.set_row(row);
        } else if self.turn_leaf(Direction::Forward)? {
            self.set_row(0);
        }
        Ok(())
    }

    #[inline]
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
        page_search::lower_bound(self.leaf.page(), order, key, sequence)
    }
}

impl VersionCursor for RunCursor<'_> {
    fn seek_first(&mut self) -> Result<()> {
        self.leave();
        self.descend(Target::First)?;
        self.set_row(0);
        Ok(())
    }

    fn seek_last(&mut self) -> Result<()> {
        self.leave();
        self.descend(Target::Last)?;
        self.set_row(self.leaf.page().rows().saturating_sub(1));
        Ok(())
    }

    fn seek(&mut self, key: &[u8], sequence: u64) -> Result<()> {
        let sequence = self.run.lookup_sequence(sequence);
        self.leave();
        self.descend(Target::Key(key, sequence))?;
        let row = self.lower_bound(key, sequence);
        self.first_behind(row)
    }

    fn seek_before(&mut self, key: &[u8], sequence: u64) -> Result<()> {
        let sequence = self.run.lookup_sequence(sequence);
        self.leave();
        self.descend(Target::Key(key, sequence))?;
        let row = self.lower_bound(key, sequence);
        self.last_before(row)
    }

    #[inline]
    fn next(&mut self) -> Result<()> {
        match self.row.take() {
            Some(row) => {
                self.first_behind(row + 1)?;
                self.prefetch(Direction::Forward);
                Ok(())
            }
            None => Ok(()),
        }
    }

    #[inline]
    fn prev(&mut self) -> Result<()> {
        match self.row.take() {
            Some(row) => {
                self.last_before(row)?;
                self.prefetch(Direction::Backward);
                Ok(())
            }
            None => Ok(()),
        }
    }

    #[inline(always)]
    fn at(&self) -> Option<Version<'_>> {
        if self.row.is_none() {
            return self.unread_version();
        }
        Some(Version {
            key: &self.key,
            sequence: self.sequence,
            kind: self.kind,
            value: self.leaf.bytes().get(self.value.clone()).unwrap_or(&[]),
        })
    }

    #[inline]
    fn is_newest_of_key(&self) -> bool {
        let (Some(row), Some(prefix_len)) = (self.row, self.prefix_len) else {
            return false;
        };
        // The row before the leaf's first one is in another leaf.
        row > 0 && {
            let (before, suffix) = (self.leaf.page().suffix(row - 1), &self.key[prefix_len..]);
            self.run.order().compare(before, suffix).is_ne()
        }
    }

    fn reset(&mut self) {
        self.leave();
        // A cursor that bypasses the cache always does.
        self.into_cache = self.max_into_cache;
        self.ahead = ReadAhead::default();
        self.leaf.reset();
        if self.leaf.number().is_none() {
            self.prefix_len = None;
        }
        for ancestor in &mut self.path {
            ancestor.loaded.reset();
        }
        self.key.shrink_to(KEPT_KEY_BYTES);
    }
}

#[cfg(test)]
mod damage_tests;
#[cfg(test)]
#[path = "cursor_tests.rs"]
mod tests;
