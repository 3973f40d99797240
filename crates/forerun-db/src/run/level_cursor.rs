//! A cursor over all versions in a level of disjoint runs. It visits one run after the other.

use std::sync::Arc;

use super::cursor::RunCursor;
use super::reader::Run;
use crate::Result;
use crate::versions::{Version, VersionCursor};

/// A cursor over the runs of a level, which are in ascending order and share no key.
#[derive(Debug)]
pub(crate) struct LevelCursor<'r> {
    runs: &'r [Arc<Run>],
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

impl<'r> LevelCursor<'r> {
    /// A cursor without a position.
    pub(crate) fn new(runs: &'r [Arc<Run>]) -> Self {
        LevelCursor {
            runs,
            cursor: None,
            cache_use: CacheUse::Some,
        }
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
        let ends_before = |run: &Arc<Run>| run.order().compare(&run.meta().largest, key).is_lt();
        self.runs.partition_point(ends_before)
    }

    #[inline]
    fn is_positioned(&self) -> bool {
        let cursor = self.cursor.as_ref();
        cursor.is_some_and(|(_, cursor)| cursor.is_positioned())
    }

    /// Moves to the first version of the next run if the current run is exhausted.
    fn enter_next_run(&mut self, at: usize) -> Result<()> {
        match self.is_positioned() {
            true => Ok(()),
            false => self
                .at_run(at + 1)
                .map_or(Ok(()), VersionCursor::seek_first),
        }
    }

    fn enter_prev_run(&mut self, at: usize) -> Result<()> {
        match (self.is_positioned(), at.checked_sub(1)) {
            (false, Some(before)) => self.at_run(before).map_or(Ok(()), VersionCursor::seek_last),
            _ => Ok(()),
        }
    }
}

impl VersionCursor for LevelCursor<'_> {
    fn seek_first(&mut self) -> Result<()> {
        self.at_run(0).map_or(Ok(()), VersionCursor::seek_first)
    }

    fn seek_last(&mut self) -> Result<()> {
        let last = self.runs.len().wrapping_sub(1);
        self.at_run(last).map_or(Ok(()), VersionCursor::seek_last)
    }

    fn seek(&mut self, key: &[u8], sequence: u64) -> Result<()> {
        let at = self.first_not_before(key);
        let Some(cursor) = self.at_run(at) else {
            self.cursor = None;
            return Ok(());
        };
        cursor.seek(key, sequence)?;
        self.enter_next_run(at)
    }

    fn seek_before(&mut self, key: &[u8], sequence: u64) -> Result<()> {
        let at = self.first_not_before(key);
        let Some(cursor) = self.at_run(at) else {
            return self.seek_last();
        };
        cursor.seek_before(key, sequence)?;
        self.enter_prev_run(at)
    }

    #[inline]
    fn next(&mut self) -> Result<()> {
        let Some((at, cursor)) = &mut self.cursor else {
            return Ok(());
        };
        if !cursor.is_positioned() {
            return Ok(());
        }
        let at = *at;
        cursor.next()?;
        match cursor.is_positioned() {
            true => Ok(()),
            false => self.enter_next_run(at),
        }
    }

    #[inline]
    fn prev(&mut self) -> Result<()> {
        let Some((at, cursor)) = &mut self.cursor else {
            return Ok(());
        };
        if !cursor.is_positioned() {
            return Ok(());
        }
        let at = *at;
        cursor.prev()?;
        match cursor.is_positioned() {
            true => Ok(()),
            false => self.enter_prev_run(at),
        }
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
