//! All versions in a super version except those that a range deletion covers and those that have
//! expired.

use std::ops::Bound;

use super::snapshots::ReadPoint;
use super::source_cursor::SourceCursor;
use super::super_version::SuperVersion;
use crate::Result;
use crate::comparator::KeyOrder;
use crate::tree::merge::Merge;
use crate::tree::scan_limit::Direction;
use crate::versions::{Version, VersionCursor};

/// The versions that remain after range deletions and expiry, at one moment.
pub(super) struct LiveVersions<'a> {
    versions: Merge<SourceCursor<'a>>,
    version: &'a SuperVersion,
    read_point: ReadPoint,
    /// Whether there is any range deletion. If not, versions are not checked against ranges.
    has_ranges: bool,
    /// Whether anything may be deleted by a range or expired. If not, versions are not looked at.
    hides_any: bool,
}

impl<'a> LiveVersions<'a> {
    pub(super) fn new(
        version: &'a SuperVersion,
        order: &KeyOrder,
        read_point: ReadPoint,
    ) -> LiveVersions<'a> {
        LiveVersions::of(version.versions(order), version, read_point)
    }

    /// Those of some of the super version's memtables and runs.
    pub(super) fn of(
        versions: Merge<SourceCursor<'a>>,
        version: &'a SuperVersion,
        read_point: ReadPoint,
    ) -> LiveVersions<'a> {
        let mut live = LiveVersions {
            versions,
            version,
            read_point,
            has_ranges: false,
            hides_any: false,
        };
        live.reopen(read_point);
        live
    }

    /// Resets it, to read at another moment.
    pub(super) fn reopen(&mut self, read_point: ReadPoint) {
        self.read_point = read_point;
        self.has_ranges = self.version.has_ranges();
        self.hides_any = self.has_ranges || read_point.expired_sequence > 0;
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
    fn pass_forward(&mut self) -> Result<()> {
        while self.hides_any && self.is_expired_or_deleted() {
            if self.versions.is_limit_passed() {
                self.versions.leave();
                break;
            }
            self.versions.next()?;
        }
        Ok(())
    }

    #[inline]
    fn pass_backward(&mut self) -> Result<()> {
        while self.hides_any && self.is_expired_or_deleted() {
            if self.versions.is_limit_passed() {
                self.versions.leave();
                break;
            }
            self.versions.prev()?;
        }
        Ok(())
    }
}

impl VersionCursor for LiveVersions<'_> {
    fn seek_first(&mut self) -> Result<()> {
        self.versions.seek_first()?;
        self.pass_forward()
    }

    fn seek_last(&mut self) -> Result<()> {
        self.versions.seek_last()?;
        self.pass_backward()
    }

    fn seek(&mut self, key: &[u8], sequence: u64) -> Result<()> {
        self.versions.seek(key, sequence)?;
        self.pass_forward()
    }

    fn seek_before(&mut self, key: &[u8], sequence: u64) -> Result<()> {
        self.versions.seek_before(key, sequence)?;
        self.pass_backward()
    }

    #[inline]
    fn next(&mut self) -> Result<()> {
        self.versions.next()?;
        self.pass_forward()
    }

    #[inline]
    fn prev(&mut self) -> Result<()> {
        self.versions.prev()?;
        self.pass_backward()
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
    }
}
