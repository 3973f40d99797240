//! A cursor over all versions in a level of disjoint runs. It visits one run after the other.

use std::sync::Arc;

use super::cursor::{RunCursor, RunEnd};
use super::interleaved_seek::InterleavedSeek;
use super::reader::Run;
use crate::Result;
use crate::cache::driver::Reads;
use crate::comparator::KeyOrder;
use crate::versions::{SeekSide, SeekTarget, Version, VersionCursor};

/// A cursor over the runs of a level, which are in ascending order and share no key.
#[derive(Debug)]
pub(crate) struct LevelCursor<'r> {
    runs: &'r [Arc<Run>],
    /// [`KeyOrder::prefix`] of each run's largest key, or nothing.
    ends: &'r [u64],
    /// The current run and the cursor over it.
    cursor: Option<(usize, RunCursor<'r>)>,
    cache_use: CacheUse,
}

/// Whether leaves that are read go into the cache.
#[derive(Clone, Copy, Debug)]
enum CacheUse {
    /// The first few of each run.
    Some,
    None,
}

/// The first of a level's runs that does not end before `key`; the number of runs if all do. `ends`
/// has [`KeyOrder::prefix`] of each run's largest key, and `prefix` is that of `key`.
#[inline]
pub(crate) fn first_ending(
    order: &KeyOrder,
    runs: &[Arc<Run>],
    ends: &[u64],
    key: &[u8],
    prefix: u64,
) -> usize {
    let from = ends.partition_point(|end| *end < prefix);
    let tied = ends[from..].partition_point(|end| *end == prefix);
    let ends_before = |run: &Arc<Run>| order.compare(&run.meta().largest, key).is_lt();
    from + runs[from..from + tied].partition_point(ends_before)
}

impl<'r> LevelCursor<'r> {
    /// A cursor without a position.
    pub(crate) fn new(runs: &'r [Arc<Run>]) -> Self {
        LevelCursor {
            runs,
            ends: &[],
            cursor: None,
            cache_use: CacheUse::Some,
        }
    }

    /// The same cursor, which finds a key's run with the help of the prefixes of the runs' largest
    /// keys.
    pub(crate) fn with_ends(self, ends: &'r [u64]) -> Self {
        LevelCursor { ends, ..self }
    }

    /// A cursor that bypasses the cache.
    pub(crate) fn past_cache(runs: &'r [Arc<Run>]) -> Self {
        LevelCursor {
            cache_use: CacheUse::None,
            ..LevelCursor::new(runs)
        }
    }

    /// The cursor over the run at an index, if there is one.
    fn at_run(&mut self, at: usize) -> Option<&mut RunCursor<'r>> {
        let runs = self.runs;
        let run = runs.get(at)?;
        let open = || match self.cache_use {
            CacheUse::Some => (at, RunCursor::new(run)),
            CacheUse::None => (at, RunCursor::past_cache(run)),
        };
        let (current, cursor) = self.cursor.get_or_insert_with(open);
        if *current != at {
            *current = at;
            cursor.reopen(run);
        }
        Some(cursor)
    }

    /// The first run that does not end before `key`; the number of runs if all do.
    fn first_not_before(&self, key: &[u8]) -> usize {
        match self.runs.first() {
            Some(first) if !self.ends.is_empty() => {
                let order = first.order();
                first_ending(order, self.runs, self.ends, key, order.prefix(key))
            }
            _ => {
                let ends_before =
                    |run: &Arc<Run>| run.order().compare(&run.meta().largest, key).is_lt();
                self.runs.partition_point(ends_before)
            }
        }
    }

    #[inline]
    fn is_positioned(&self) -> bool {
        let cursor = self.cursor.as_ref();
        cursor.is_some_and(|(_, cursor)| cursor.is_positioned())
    }

    /// Moves in the current run. If that has no further version, goes on to the next run.
    #[inline]
    fn step_unread(
        &mut self,
        side: SeekSide,
        step: impl FnOnce(&mut RunCursor<'r>) -> Result<()>,
    ) -> Result<()> {
        let Some((at, cursor)) = &mut self.cursor else {
            return Ok(());
        };
        if !cursor.is_positioned() {
            return Ok(());
        }
        let at = *at;
        step(cursor)?;
        self.go_on_unread(at, side);
        Ok(())
    }

    /// If the run at an index has nothing in a direction, goes on to the next one.
    #[inline]
    fn go_on_unread(&mut self, at: usize, side: SeekSide) {
        if !self.is_positioned() {
            self.enter_unread(at, side);
        }
    }

    /// Leaves the first version of the next run, or the last one of the run before, unread.
    fn enter_unread(&mut self, at: usize, side: SeekSide) {
        let (next, end) = match side {
            SeekSide::AtOrAfter => (at.checked_add(1), RunEnd::First),
            SeekSide::Before => (at.checked_sub(1), RunEnd::Last),
        };
        if let Some(cursor) = next.and_then(|next| self.at_run(next)) {
            cursor.leave_unread(end);
        }
    }
}

impl InterleavedSeek for LevelCursor<'_> {
    fn is_older(&self, to: SeekTarget<'_>, sequence: u64) -> bool {
        let Some((current, _)) = &self.cursor else {
            return false;
        };
        let last = self.runs.len() - 1;
        let target = self.first_not_before(to.key).min(last);
        let on_the_way = &self.runs[target.min(*current)..=target.max(*current)];
        let is_older = |run: &Arc<Run>| run.meta().largest_sequence < sequence;
        on_the_way.iter().all(is_older)
    }

    fn seek_by_bounds(&mut self, to: SeekTarget<'_>) -> bool {
        let at = self.first_not_before(to.key);
        let is_there = match self.at_run(at) {
            Some(cursor) => cursor.seek_by_bounds(to),
            // All runs end before the target.
            None => {
                if let Some((_, cursor)) = &mut self.cursor {
                    cursor.leave();
                }
                true
            }
        };
        if is_there {
            self.go_on_unread(at, to.side);
        }
        is_there
    }

    /// The current run is the one to search.
    fn search(&mut self, to: SeekTarget<'_>) -> Result<()> {
        let Some((at, cursor)) = &mut self.cursor else {
            return Ok(());
        };
        cursor.search(to)?;
        let at = *at;
        self.go_on_unread(at, to.side);
        Ok(())
    }

    async fn search_interleaved<'s, 'g>(
        &'s mut self,
        reads: &'s Reads<'g>,
        to: SeekTarget<'s>,
    ) -> Result<()>
    where
        Self: 'g,
    {
        let Some((at, cursor)) = &mut self.cursor else {
            return Ok(());
        };
        cursor.search_interleaved(reads, to).await?;
        let at = *at;
        self.go_on_unread(at, to.side);
        Ok(())
    }

    fn seek_first_unread(&mut self) -> Result<()> {
        if let Some(cursor) = self.at_run(0) {
            cursor.leave_unread(RunEnd::First);
        }
        Ok(())
    }

    fn seek_last_unread(&mut self) -> Result<()> {
        if let Some(cursor) = self.at_run(self.runs.len().wrapping_sub(1)) {
            cursor.leave_unread(RunEnd::Last);
        }
        Ok(())
    }

    #[inline]
    fn next_unread(&mut self) -> Result<()> {
        self.step_unread(SeekSide::AtOrAfter, VersionCursor::next)
    }

    #[inline]
    fn prev_unread(&mut self) -> Result<()> {
        self.step_unread(SeekSide::Before, VersionCursor::prev)
    }

    #[inline]
    fn is_unread(&self) -> bool {
        let cursor = self.cursor.as_ref();
        cursor.is_some_and(|(_, cursor)| cursor.is_unread())
    }

    fn read(&mut self) -> Result<()> {
        let cursor = self.cursor.as_mut();
        cursor.map_or(Ok(()), |(_, cursor)| cursor.read())
    }
}

impl VersionCursor for LevelCursor<'_> {
    fn seek_first(&mut self) -> Result<()> {
        self.seek_first_unread()?;
        self.read()
    }

    fn seek_last(&mut self) -> Result<()> {
        self.seek_last_unread()?;
        self.read()
    }

    fn seek(&mut self, key: &[u8], sequence: u64) -> Result<()> {
        let at = self.first_not_before(key);
        let Some(cursor) = self.at_run(at) else {
            self.cursor = None;
            return Ok(());
        };
        cursor.seek(key, sequence)?;
        self.go_on_unread(at, SeekSide::AtOrAfter);
        self.read()
    }

    fn seek_before(&mut self, key: &[u8], sequence: u64) -> Result<()> {
        let at = self.first_not_before(key);
        let Some(cursor) = self.at_run(at) else {
            return self.seek_last();
        };
        cursor.seek_before(key, sequence)?;
        self.go_on_unread(at, SeekSide::Before);
        self.read()
    }

    #[inline]
    fn next(&mut self) -> Result<()> {
        self.next_unread()?;
        self.read()
    }

    #[inline]
    fn prev(&mut self) -> Result<()> {
        self.prev_unread()?;
        self.read()
    }

    #[inline(always)]
    fn at(&self) -> Option<Version<'_>> {
        self.cursor.as_ref()?.1.at()
    }

    #[inline]
    fn is_newest_of_key(&self) -> bool {
        let cursor = self.cursor.as_ref();
        cursor.is_some_and(|(_, cursor)| cursor.is_newest_of_key())
    }

    fn reset(&mut self) {
        if let Some((_, cursor)) = &mut self.cursor {
            cursor.reset();
        }
    }
}
