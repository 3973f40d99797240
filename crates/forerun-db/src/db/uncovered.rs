//! All versions of a state but those in ranges that were deleted.

use super::state::State;
use crate::Result;
use crate::comparator::KeyOrder;
use crate::tree::merge::Merge;
use crate::versions::{Version, Versions};

/// The versions of a state that deletions of ranges, as of a snapshot, leave.
pub(super) struct Uncovered<'a> {
    versions: Merge<'a>,
    state: &'a State,
    snapshot: u64,
    /// Whether there is any such deletion: without one, nothing is asked.
    has_ranges: bool,
}

impl<'a> Uncovered<'a> {
    pub(super) fn new(state: &'a State, order: &KeyOrder, snapshot: u64) -> Uncovered<'a> {
        Uncovered {
            versions: state.versions(order),
            state,
            snapshot,
            has_ranges: state.has_ranges(),
        }
    }

    fn stands_on_covered(&self) -> bool {
        self.has_ranges
            && self
                .versions
                .at()
                .is_some_and(|at| self.state.cover(at.key, self.snapshot) > at.sequence)
    }

    fn pass_forward(&mut self) -> Result<()> {
        while self.stands_on_covered() {
            self.versions.next()?;
        }
        Ok(())
    }

    fn pass_backward(&mut self) -> Result<()> {
        while self.stands_on_covered() {
            self.versions.prev()?;
        }
        Ok(())
    }
}

impl Versions for Uncovered<'_> {
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

    fn next(&mut self) -> Result<()> {
        self.versions.next()?;
        self.pass_forward()
    }

    fn prev(&mut self) -> Result<()> {
        self.versions.prev()?;
        self.pass_backward()
    }

    fn at(&self) -> Option<Version<'_>> {
        self.versions.at()
    }
}
