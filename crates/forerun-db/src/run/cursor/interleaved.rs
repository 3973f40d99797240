//! A run's seek as a coroutine.
//!
//! ```text
//!   page's first lines ─> group's two lines ─> (record) ─> child's slot ─> child's first lines ─> …
//!                                                             └─ not resident: the driver reads it
//!   each arrow: prefetch, let the others run
//! ```

use std::cmp::Ordering;

use forerun_core::suspend;

use super::{
    Ancestor, Direction, LEAF_ABOVE, NOT_BELOW, READ_AHEAD_MIN_BYTES, RunCursor, RunEnd, prefix,
};
use crate::Result;
use crate::cache::driver::Reads;
use crate::comparator::KeyOrder;
use crate::run::interleaved_seek::InterleavedSeek;
use crate::run::page::{Page, PageKind};
use crate::run::page_search::{self, GroupSearch};
use crate::versions::{
    BEHIND_ALL, Kind, SEQUENCE_MAX, SeekSide, SeekTarget, Version, VersionCursor,
};

/// Lines of a page that are prefetched before its search begins. A leaf of long rows has a single
/// group, which follows the header; an internal page has many, and their fences take two lines.
const LEAF_LINES: usize = 3;
const INTERNAL_LINES: usize = 2;

impl InterleavedSeek for RunCursor<'_> {
    fn is_older(&self, _to: SeekTarget<'_>, sequence: u64) -> bool {
        self.run.meta().largest_sequence < sequence
    }

    fn seek_by_bounds(&mut self, to: SeekTarget<'_>) -> bool {
        self.leave();
        let (order, meta) = (self.run.order(), self.run.meta());
        let target = prefix(order, to.key);
        let compare =
            |bound: u128, key: &[u8]| bound.cmp(&target).then_with(|| order.compare(key, to.key));
        let starts_after = match compare(self.bounds.0, &meta.smallest) {
            Ordering::Greater => true,
            Ordering::Equal => to.sequence == SEQUENCE_MAX,
            Ordering::Less => false,
        };
        let ends_before = match compare(self.bounds.1, &meta.largest) {
            Ordering::Less => true,
            Ordering::Equal => to.sequence == BEHIND_ALL,
            Ordering::Greater => false,
        };
        match to.side {
            SeekSide::AtOrAfter if starts_after => self.unread = Some(RunEnd::First),
            SeekSide::Before if ends_before => self.unread = Some(RunEnd::Last),
            _ => {}
        }
        starts_after || ends_before
    }

    async fn search_interleaved<'s, 'g>(
        &'s mut self,
        reads: &'s Reads<'g>,
        to: SeekTarget<'s>,
    ) -> Result<()>
    where
        Self: 'g,
    {
        if self.run.root().kind() == PageKind::Leaf {
            return to.seek(self);
        }
        let sequence = self.run.lookup_sequence(to.sequence);
        self.descend_interleaved(reads, to.key, sequence).await?;
        let page = self.leaf.page();
        let row = rows_before(page, self.run.order(), to.key, sequence).await;
        let row = match to.side {
            SeekSide::AtOrAfter => Some(row).filter(|row| *row < self.leaf.page().rows()),
            SeekSide::Before => row.checked_sub(1),
        };
        let Some(row) = row else {
            return match to.side {
                SeekSide::AtOrAfter => self.first_behind(self.leaf.page().rows()),
                SeekSide::Before => self.last_before(0),
            };
        };
        let page = self.leaf.page();
        page.prefetch_key(&page.record(row));
        if to.side == SeekSide::Before && row > 0 {
            // `is_newest_of_key` reads it.
            page.prefetch_key(&page.record(row - 1));
        }
        suspend().await;
        self.set_row(row);
        Ok(())
    }

    fn seek_first_unread(&mut self) -> Result<()> {
        self.leave_unread(RunEnd::First);
        Ok(())
    }

    fn seek_last_unread(&mut self) -> Result<()> {
        self.leave_unread(RunEnd::Last);
        Ok(())
    }

    #[inline]
    fn is_unread(&self) -> bool {
        self.unread.is_some()
    }

    fn read(&mut self) -> Result<()> {
        match self.unread {
            Some(RunEnd::First) => self.seek_first(),
            Some(RunEnd::Last) => self.seek_last(),
            None => Ok(()),
        }
    }
}

impl<'r> RunCursor<'r> {
    /// Moves to an end of the run and leaves the version there unread.
    pub(in crate::run) fn leave_unread(&mut self, end: RunEnd) {
        self.leave();
        self.unread = Some(end);
    }

    /// What is known of the version that was left unread.
    #[cold]
    pub(super) fn unread_version(&self) -> Option<Version<'_>> {
        let meta = self.run.meta();
        let (key, sequence) = match self.unread? {
            RunEnd::First => (&meta.smallest, SEQUENCE_MAX),
            RunEnd::Last => (&meta.largest, BEHIND_ALL),
        };
        Some(Version {
            key,
            sequence,
            kind: Kind::Deletion,
            value: &[],
        })
    }

    /// Descends from the root, which is an internal page, to the leaf for a position.
    async fn descend_interleaved<'g>(
        &mut self,
        reads: &Reads<'g>,
        key: &[u8],
        sequence: u64,
    ) -> Result<()>
    where
        'r: 'g,
    {
        self.ahead.window = READ_AHEAD_MIN_BYTES;
        if self.path.is_empty() {
            self.path.push(Ancestor::default());
        }
        let mut level = 0;
        loop {
            let page = self.above(level);
            let rows = rows_before(page, self.run.order(), key, sequence).await;
            let row = rows.saturating_sub(1);
            let number = self.above(level).child_number(row);
            self.path[level].row = row;
            // As in `descend_from`.
            let above = self.path[level].loaded.number().unwrap_or(u32::MAX);
            if number >= above {
                return Err(self.corrupt_child(level, NOT_BELOW));
            }
            if number < self.run.meta().leaf_pages {
                return self.load_leaf_interleaved(reads, level, number).await;
            }
            level += 1;
            if self.path.len() == level {
                self.path.push(Ancestor::default());
            }
            self.load_internal_interleaved(reads, level, number).await?;
        }
    }

    /// Loads the internal page `number` as the page at `level`, from the current row of the one
    /// above.
    async fn load_internal_interleaved<'g>(
        &mut self,
        reads: &Reads<'g>,
        level: usize,
        number: u32,
    ) -> Result<()>
    where
        'r: 'g,
    {
        if self.path[level].loaded.number() != Some(number) {
            let run = self.run;
            run.slots().prefetch(number);
            suspend().await;
            run.slots().prefetch_page(number, INTERNAL_LINES);
            suspend().await;
            if self.path[level]
                .loaded
                .take_resident(run, number, usize::MAX)
            {
                reads.count_hit();
            } else {
                let (_, location) = self.above(level - 1).child(self.path[level - 1].row);
                let bytes = reads.page(run, number, location).await?;
                self.path[level].loaded.copy_from(number, bytes);
            }
        }
        match self.path[level].loaded.page().kind() {
            PageKind::Internal => Ok(()),
            PageKind::Leaf => Err(self.corrupt_child(level - 1, LEAF_ABOVE)),
        }
    }

    /// Loads the leaf `number`, which is below the current row of the page at `level`.
    async fn load_leaf_interleaved<'g>(
        &mut self,
        reads: &Reads<'g>,
        level: usize,
        number: u32,
    ) -> Result<()>
    where
        'r: 'g,
    {
        self.path.truncate(level + 1);
        if self.leaf.number() == Some(number) {
            return Ok(());
        }
        let run = self.run;
        run.slots().prefetch(number);
        suspend().await;
        run.slots().prefetch_page(number, LEAF_LINES);
        suspend().await;
        self.prefix_len = None;
        if self.leaf.take_resident(run, number, usize::MAX) {
            reads.count_hit();
        } else if self.into_cache > 0 {
            self.into_cache -= 1;
            let (_, location) = self.above(level).child(self.path[level].row);
            let bytes = reads.page(run, number, location).await?;
            self.leaf.copy_from(number, bytes);
        } else {
            return self.load_leaf(level, Direction::Forward);
        }
        self.check_leaf(level)
    }
}

/// How many rows of a page are before a position; in an internal page, rows at the position count
/// too. The first lines of the page have been prefetched.
async fn rows_before(page: Page<'_>, order: &KeyOrder, key: &[u8], sequence: u64) -> usize {
    let group = match page_search::find_group(page, order, key) {
        GroupSearch::Row(row) => return row,
        GroupSearch::Group(group) => group,
    };
    if group.index > 0 || page.kind() == PageKind::Internal {
        page.prefetch_group(group.index);
        suspend().await;
    }
    let matches = page_search::prefix_matches(page, key, group);
    if !matches.is_empty() {
        // A bisection begins in the middle.
        let middle = matches.start + matches.len() / 2;
        page.prefetch_key(&page.record(middle));
        suspend().await;
    }
    page_search::rows_before_in(page, order, key, sequence, matches)
}
