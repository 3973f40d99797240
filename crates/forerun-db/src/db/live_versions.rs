//! All versions in a super version except those that a range deletion covers and those that have
//! expired.
//!
//! A scan skips what it would have to step over: what earlier scans have found dead
//! (`dead_ranges.rs`), and in runs that are older than a range deletion, what that covers. At first
//! it steps, because a few steps take less time than a search.

use std::ops::Bound;
use std::sync::Arc;

use super::dead_ranges::{DeadRange, DeadRanges};
use super::dead_walk::{DeadWalk, has_reached};
use super::snapshots::ReadPoint;
use super::source_cursor::SourceCursor;
use super::super_version::SuperVersion;
use crate::Result;
use crate::comparator::KeyOrder;
use crate::ranges::RangeRef;
use crate::tree::merge::Merge;
use crate::tree::scan_limit::Direction;
use crate::versions::{
    BEHIND_ALL, SEQUENCE_MAX, SeekSide, SeekTarget, SkipDeleted, Version, VersionCursor,
};

/// The versions that remain after range deletions and expiry, at one moment.
pub(super) struct LiveVersions<'a> {
    versions: Merge<SourceCursor<'a>>,
    version: &'a SuperVersion,
    order: KeyOrder,
    read_point: ReadPoint,
    /// Whether there is any range deletion. If not, versions are not checked against ranges.
    has_ranges: bool,
    /// Whether anything may be deleted by a range or expired. If not, versions are not looked at.
    hides_any: bool,
    /// The dead ranges, if all versions are here.
    dead_ranges: Option<&'a DeadRanges>,
    walk: DeadWalk,
    /// Whether the walk may have passed a live key.
    is_undecided: bool,
    /// Buffer for a key.
    key: Vec<u8>,
}

impl<'a> LiveVersions<'a> {
    pub(super) fn new(
        version: &'a SuperVersion,
        order: &KeyOrder,
        read_point: ReadPoint,
    ) -> LiveVersions<'a> {
        LiveVersions {
            dead_ranges: Some(&version.dead_ranges),
            ..LiveVersions::of(version.versions(order), version, order, read_point)
        }
    }

    /// Those of some of the super version's memtables and runs.
    pub(super) fn of(
        versions: Merge<SourceCursor<'a>>,
        version: &'a SuperVersion,
        order: &KeyOrder,
        read_point: ReadPoint,
    ) -> LiveVersions<'a> {
        let mut live = LiveVersions {
            versions,
            version,
            order: order.clone(),
            read_point,
            has_ranges: false,
            hides_any: false,
            dead_ranges: None,
            walk: DeadWalk::default(),
            is_undecided: false,
            key: Vec::new(),
        };
        live.reopen(read_point);
        live
    }

    /// Resets it, to read at another moment.
    pub(super) fn reopen(&mut self, read_point: ReadPoint) {
        self.read_point = read_point;
        self.has_ranges = self.version.has_ranges();
        self.hides_any = self.has_ranges || read_point.expired_sequence > 0;
        self.walk.reset();
        self.is_undecided = false;
    }

    /// See [`Merge::set_limit`].
    pub(super) fn set_limit(&mut self, direction: Direction, bound: Bound<&[u8]>) {
        self.versions.set_limit(direction, bound);
    }

    /// How many memtables, runs and levels it merges.
    pub(super) fn sources(&self) -> usize {
        self.versions.sources()
    }

    fn is_expired_or_deleted(&self) -> bool {
        let is_deleted = |at: Version<'_>| {
            self.has_ranges && self.version.cover(at.key, self.read_point.sequence) > at.sequence
        };
        let at = self.versions.at();
        at.is_some_and(|at| at.sequence <= self.read_point.expired_sequence || is_deleted(at))
    }

    #[inline]
    fn pass(&mut self, side: SeekSide) -> Result<()> {
        while self.hides_any && self.is_expired_or_deleted() {
            if self.versions.is_limit_passed() {
                self.versions.leave();
                break;
            }
            if self.walk.step() && self.skip_from_here(side)? {
                continue;
            }
            match side {
                SeekSide::AtOrAfter => self.versions.next()?,
                SeekSide::Before => self.versions.prev()?,
            }
        }
        Ok(())
    }

    #[cold]
    fn skip_from_here(&mut self, side: SeekSide) -> Result<bool> {
        let mut key = std::mem::take(&mut self.key);
        key.clear();
        key.extend_from_slice(self.versions.at().map_or(&[], |at| at.key));
        let has_moved = self.skip(&key, side);
        self.key = key;
        has_moved
    }

    /// At a checkpoint of the walk: skips what is known to be dead, from a key on.
    fn skip(&mut self, key: &[u8], side: SeekSide) -> Result<bool> {
        if side == SeekSide::AtOrAfter && self.walk.repeats_key(&self.order, key) {
            // Whatever hides one version of a key hides the older ones too.
            self.versions.seek(key, BEHIND_ALL)?;
            return Ok(true);
        }
        let Some(dead_ranges) = self.dead_ranges else {
            return self.skip_covered(key, side);
        };
        if self.is_undecided {
            return self.skip_while_undecided(dead_ranges, key, side);
        }
        if let Some(range) = self.walk.confirming() {
            if !has_reached(&self.order, key, range.found.far(side), side) {
                return Ok(false);
            }
            self.confirm(dead_ranges, side);
        }
        match dead_ranges.find(&self.order, key) {
            Some(range) => self.skip_or_confirm(range, key, side),
            None => {
                self.walk.note_checkpoint(key);
                self.skip_covered(key, side)
            }
        }
    }

    /// [`skip`](Self::skip) without taking what the walk has passed for dead.
    fn skip_while_undecided(
        &mut self,
        dead_ranges: &DeadRanges,
        key: &[u8],
        side: SeekSide,
    ) -> Result<bool> {
        let range = dead_ranges.find(&self.order, key);
        let skippable = range
            .as_ref()
            .and_then(|range| Some((range, range.skippable_at(self.read_point)?)));
        match skippable.filter(|(_, span)| span.contains(&self.order, key)) {
            Some((range, span)) => {
                range.note_used();
                let far = Arc::clone(span.far(side));
                self.move_to(&far, side).map(|()| true)
            }
            None => self.skip_covered(key, side),
        }
    }

    fn move_to(&mut self, target: &[u8], side: SeekSide) -> Result<()> {
        match side {
            SeekSide::AtOrAfter => self.versions.seek(target, SEQUENCE_MAX),
            SeekSide::Before => self.versions.seek_before(target, BEHIND_ALL),
        }
    }

    fn skip_or_confirm(&mut self, range: DeadRange, key: &[u8], side: SeekSide) -> Result<bool> {
        let skippable = range.skippable_at(self.read_point).cloned();
        let target = match &skippable {
            Some(span) if span.contains(&self.order, key) => {
                let far = Arc::clone(span.far(side));
                range.note_used();
                self.walk.skip(range, span, side);
                far
            }
            None if range.skippable.is_none() && range.is_found_before(self.read_point) => {
                let near: Arc<[u8]> = key.into();
                self.walk.confirm(range, Arc::clone(&near));
                near
            }
            // The key is in a part that is not confirmed.
            Some(_) => return Ok(false),
            // A reader of an older snapshot steps.
            None => {
                self.walk.note_unusable();
                return Ok(false);
            }
        };
        if self.walk.confirming().is_some()
            && let Some(table) = self.version.tables.first()
        {
            // Before the seek, which therefore finds what was linked before.
            table.memtable.synchronize();
        }
        self.move_to(&target, side).map(|()| true)
    }

    /// The walk has stepped over all of the range that it was to confirm.
    fn confirm(&mut self, dead_ranges: &DeadRanges, side: SeekSide) {
        if let Some(range) = self.walk.confirmed(self.read_point, side) {
            dead_ranges.confirm(&range);
        }
    }

    /// Moves cursors of older runs to the end of the range deletion that covers a key.
    fn skip_covered(&mut self, key: &[u8], side: SeekSide) -> Result<bool> {
        if !self.has_ranges || !self.walk.looks_for_older() {
            return Ok(false);
        }
        let end = |range: RangeRef<'_>| {
            let end = match side {
                SeekSide::AtOrAfter => range.end,
                SeekSide::Before => range.start,
            };
            (end.to_vec(), range.sequence)
        };
        let newest = self
            .version
            .newest_range_over(key, self.read_point.sequence, end);
        let Some((end, deleted_sequence)) = newest else {
            return Ok(false);
        };
        let to = SeekTarget {
            key: &end,
            sequence: SEQUENCE_MAX,
            side,
        };
        self.versions.skip_older(to, deleted_sequence)
    }

    fn is_at_live_key(&self) -> bool {
        self.versions.at().is_some() && !self.versions.is_limit_passed()
    }

    /// The walk has ended at an entry, or behind the last one.
    #[cold]
    fn end_walk(&mut self, found: Option<&[u8]>, side: SeekSide) {
        if let (Some(dead_ranges), Some(range)) = (self.dead_ranges, self.walk.confirming()) {
            let far = range.found.far(side);
            let has_reached_far = match found.or(self.versions.at().map(|at| at.key)) {
                Some(key) => has_reached(&self.order, key, far, side),
                // Where the scan ends, or at the last of all versions.
                None => !self.versions.is_limited_before(far, side),
            };
            if has_reached_far {
                self.confirm(dead_ranges, side);
            } else if found.is_some() || self.is_at_live_key() {
                // There is a live key in it.
                dead_ranges.remove(range);
            }
        }
        let found = self.walk.found(self.read_point, side);
        if let (Some(dead_ranges), Some(range)) = (self.dead_ranges, found) {
            dead_ranges.add(&self.order, range);
        }
        self.walk.reset();
    }
}

impl VersionCursor for LiveVersions<'_> {
    fn seek_first(&mut self) -> Result<()> {
        self.versions.seek_first()?;
        self.pass(SeekSide::AtOrAfter)
    }

    fn seek_last(&mut self) -> Result<()> {
        self.versions.seek_last()?;
        self.pass(SeekSide::Before)
    }

    fn seek(&mut self, key: &[u8], sequence: u64) -> Result<()> {
        self.versions.seek(key, sequence)?;
        self.pass(SeekSide::AtOrAfter)
    }

    fn seek_before(&mut self, key: &[u8], sequence: u64) -> Result<()> {
        self.versions.seek_before(key, sequence)?;
        self.pass(SeekSide::Before)
    }

    #[inline]
    fn next(&mut self) -> Result<()> {
        self.versions.next()?;
        self.pass(SeekSide::AtOrAfter)
    }

    #[inline]
    fn prev(&mut self) -> Result<()> {
        self.versions.prev()?;
        self.pass(SeekSide::Before)
    }

    #[inline(always)]
    fn at(&self) -> Option<Version<'_>> {
        self.versions.at()
    }

    #[inline]
    fn is_newest_of_key(&self) -> bool {
        self.versions.is_newest_of_key()
    }

    fn is_limit_passed(&self) -> bool {
        self.versions.is_limit_passed()
    }

    fn reset(&mut self) {
        self.versions.reset();
        self.walk.reset();
        self.is_undecided = false;
    }
}

impl SkipDeleted for LiveVersions<'_> {
    #[inline(always)]
    fn note_deleted(&mut self) -> bool {
        self.walk.step()
    }

    fn skip_deleted(&mut self, key: &[u8], side: SeekSide) -> Result<bool> {
        let has_moved = self.skip(key, side)?;
        if has_moved {
            self.pass(side)?;
        }
        Ok(has_moved)
    }

    fn note_too_new(&mut self) {
        self.walk.note_newer();
    }

    #[inline(always)]
    fn set_undecided(&mut self, is_undecided: bool) {
        self.is_undecided = is_undecided;
    }

    #[inline(always)]
    fn end_search(&mut self, found: Option<&[u8]>, side: SeekSide) {
        if self.walk.has_begun() {
            self.end_walk(found, side);
        }
    }
}
