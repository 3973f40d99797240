//! Which range deletions the runs of some levels still need: those that may cover a version in
//! them.

use std::sync::Arc;

use super::key_bounds::{largest, smallest};
use crate::comparator::KeyOrder;
use crate::ranges::RangeRef;
use crate::run::Run;
use crate::tree::manifest::LEVELS;

/// Range deletions up to this sequence number cover nothing in a run.
pub(super) fn needs_above(run: &Run) -> u64 {
    let meta = run.meta();
    meta.smallest_sequence.max(meta.ranges_applied)
}

/// Answers which range deletions cover anything in the runs of some levels.
pub(crate) struct NeededRanges<'a> {
    order: &'a KeyOrder,
    levels: [LevelNeeds<'a>; LEVELS],
}

/// The runs of a level, with a sparse table of minima of [`needs_above`].
struct LevelNeeds<'a> {
    runs: &'a [Arc<Run>],
    /// `least[n][i]` is the minimum over `1 << n` runs from index `i` on.
    least: Vec<Vec<u64>>,
}

impl<'a> NeededRanges<'a> {
    pub(super) fn new(order: &'a KeyOrder, levels: [&'a [Arc<Run>]; LEVELS]) -> NeededRanges<'a> {
        NeededRanges {
            order,
            levels: levels.map(LevelNeeds::new),
        }
    }

    /// Whether any run may hold a version that this range deletion covers.
    pub(crate) fn holds(&self, range: RangeRef<'_>) -> bool {
        let touches = |run: &Arc<Run>| {
            self.order.compare(range.start, largest(run)).is_le()
                && self.order.compare(smallest(run), range.end).is_lt()
        };
        let [first, deeper @ ..] = &self.levels;
        let mut overlapping = first.runs.iter();
        overlapping.any(|run| needs_above(run) < range.sequence && touches(run))
            || deeper.iter().any(|level| {
                let ends_before = |run: &Arc<Run>| self.order.compare(largest(run), range.start);
                let starts_by = |run: &Arc<Run>| self.order.compare(smallest(run), range.end);
                let from = level.runs.partition_point(|run| ends_before(run).is_lt());
                let to = level.runs.partition_point(|run| starts_by(run).is_lt());
                level.least(from, to) < range.sequence
            })
    }
}

impl<'a> LevelNeeds<'a> {
    fn new(runs: &'a [Arc<Run>]) -> LevelNeeds<'a> {
        let mut least: Vec<Vec<u64>> = vec![runs.iter().map(|run| needs_above(run)).collect()];
        while let Some(last) = least.last()
            && let width = 1 << (least.len() - 1)
            && last.len() > width
        {
            let pairs = last.iter().zip(&last[width..]);
            let next = pairs.map(|(a, b)| *a.min(b)).collect();
            least.push(next);
        }
        LevelNeeds { runs, least }
    }

    /// The minimum over a range of indexes; `u64::MAX` for an empty range.
    fn least(&self, from: usize, to: usize) -> u64 {
        if from >= to {
            return u64::MAX;
        }
        let power = (to - from).ilog2() as usize;
        let least = &self.least[power];
        least[from].min(least[to - (1 << power)])
    }
}
