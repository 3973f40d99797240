//! What a scan notes while it steps over dead versions, to skip them or to let later scans skip
//! them.

use std::sync::Arc;

use forerun_core::sync::SIMULATED;

use super::dead_ranges::{DeadRange, Span};
use crate::comparator::KeyOrder;
use crate::versions::{ReadPoint, SeekSide};

/// Steps between two checkpoints, at which a scan looks whether it can skip what follows: a search
/// takes about as long as so many steps. A simulation has few keys.
const STEPS_PER_CHECKPOINT: u32 = if SIMULATED { 1 } else { 8 };

/// Checkpoints of a range that is worth keeping, and of one that extends another.
const CHECKPOINTS_MIN: u32 = if SIMULATED { 3 } else { 16 };
const MORE_CHECKPOINTS_MIN: u32 = if SIMULATED { 1 } else { 4 };

/// The steps of a scan from one live entry to the next.
#[derive(Debug, Default)]
pub(super) struct DeadWalk {
    steps: u32,
    /// The keys of the first and the last checkpoint since the walk began or has skipped a range,
    /// and the number of checkpoints.
    first: Vec<u8>,
    last: Vec<u8>,
    checkpoints: u32,
    /// The range that was skipped, all of it.
    skipped: Option<DeadRange>,
    /// The range that the walk steps over again, and where it began to.
    confirming: Option<(DeadRange, Arc<[u8]>)>,
    /// Whether it has met an entry since then that is newer than the read point.
    has_met_newer: bool,
    /// Whether it has met a range that is of use for newer readers only.
    has_met_unusable: bool,
}

impl DeadWalk {
    /// Counts a step. Returns whether the scan is at a checkpoint.
    #[inline]
    pub(super) fn step(&mut self) -> bool {
        self.steps = self.steps.wrapping_add(1);
        self.steps.is_multiple_of(STEPS_PER_CHECKPOINT)
    }

    #[inline(always)]
    pub(super) fn has_begun(&self) -> bool {
        self.steps != 0
    }

    /// Whether to look whether older runs can be skipped. If not, ever more steps are as cheap.
    pub(super) fn looks_for_older(&self) -> bool {
        self.steps.is_power_of_two()
    }

    pub(super) fn note_newer(&mut self) {
        self.has_met_newer = true;
    }

    /// Whether the last checkpoint was at the same key.
    pub(super) fn repeats_key(&self, order: &KeyOrder, key: &[u8]) -> bool {
        self.checkpoints > 0 && order.compare(&self.last, key).is_eq()
    }

    /// Notes a range that is of use for newer readers only.
    pub(super) fn note_unusable(&mut self) {
        self.has_met_unusable = true;
    }

    /// Notes a checkpoint at which nothing could be skipped.
    pub(super) fn note_checkpoint(&mut self, key: &[u8]) {
        if self.checkpoints == 0 {
            self.first.clear();
            self.first.extend_from_slice(key);
        }
        self.last.clear();
        self.last.extend_from_slice(key);
        self.checkpoints += 1;
    }

    /// The range that the walk is confirming.
    pub(super) fn confirming(&self) -> Option<&DeadRange> {
        self.confirming.as_ref().map(|(range, _)| range)
    }

    /// The walk skips what it may of a range. It is to confirm the rest, if there is one.
    pub(super) fn skip(&mut self, range: DeadRange, span: &Span, side: SeekSide) {
        self.checkpoints = 0;
        if span.far(side) == range.found.far(side) {
            (self.skipped, self.confirming) = (Some(range), None);
        } else {
            self.confirm(range, Arc::clone(span.near(side)));
        }
    }

    /// The walk begins to step over a range again, from the key `near` on.
    pub(super) fn confirm(&mut self, range: DeadRange, near: Arc<[u8]>) {
        self.checkpoints = 0;
        self.skipped = None;
        self.confirming = Some((range, near));
        self.has_met_newer = false;
    }

    /// The walk has stepped over all of the range that it was to confirm. Returns the confirmed
    /// range, unless entries were met that are newer.
    pub(super) fn confirmed(&mut self, read_point: ReadPoint, side: SeekSide) -> Option<DeadRange> {
        let (range, near) = self.confirming.take()?;
        if self.has_met_newer {
            return None;
        }
        let span = Span::met(side, near, Arc::clone(range.found.far(side)));
        let range = range.confirmed(span, read_point);
        self.skipped = Some(range.clone());
        Some(range)
    }

    /// The range without live keys that the walk, which has ended, has found, if it is worth
    /// keeping.
    pub(super) fn found(&self, read_point: ReadPoint, side: SeekSide) -> Option<DeadRange> {
        let far = || Arc::from(&*self.last);
        match &self.skipped {
            // It would replace the other range.
            _ if self.confirming.is_some() || self.has_met_unusable => None,
            Some(skipped) if self.checkpoints >= MORE_CHECKPOINTS_MIN => {
                let near = Arc::clone(skipped.found.near(side));
                Some(DeadRange::found(
                    Span::met(side, near, far()),
                    read_point,
                    Some(skipped),
                ))
            }
            None if self.checkpoints >= CHECKPOINTS_MIN => {
                let span = Span::met(side, Arc::from(&*self.first), far());
                Some(DeadRange::found(span, read_point, None))
            }
            _ => None,
        }
    }

    /// Makes it ready for the next walk.
    pub(super) fn reset(&mut self) {
        (self.steps, self.checkpoints) = (0, 0);
        (self.skipped, self.confirming) = (None, None);
        self.has_met_unusable = false;
    }
}

/// Whether a scan that is at `key` has come to `bound`.
pub(super) fn has_reached(order: &KeyOrder, key: &[u8], bound: &[u8], side: SeekSide) -> bool {
    match side {
        SeekSide::AtOrAfter => order.compare(key, bound).is_ge(),
        SeekSide::Before => order.compare(key, bound).is_le(),
    }
}
