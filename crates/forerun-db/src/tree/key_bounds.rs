//! The first and the last key of a run, and where runs overlap.

use std::ops::Range;
use std::sync::Arc;

use crate::Result;
use crate::comparator::KeyOrder;
use crate::run::Run;
use crate::versions::{SEQUENCE_MAX, VersionCursor};

/// The smallest key of a run.
#[inline]
pub(crate) fn smallest(run: &Run) -> &[u8] {
    &run.meta().smallest
}

/// The largest key of a run.
#[inline]
pub(crate) fn largest(run: &Run) -> &[u8] {
    &run.meta().largest
}

/// The largest number of runs whose ranges include the same key.
pub(crate) fn depth(order: &KeyOrder, runs: &[Arc<Run>]) -> usize {
    let sorted = |of: fn(&Run) -> &[u8]| {
        let mut keys: Vec<&[u8]> = runs.iter().map(|run| of(run)).collect();
        keys.sort_by(|a, b| order.compare(a, b));
        keys
    };
    let (starts, ends) = (sorted(smallest), sorted(largest));
    let (mut deepest, mut ended) = (0, 0);
    for (before, start) in starts.iter().enumerate() {
        // In a consistent order, the run that begins here ends here or later.
        let has_ended = |end: &&[u8]| order.compare(end, start).is_lt();
        while ends.get(ended).is_some_and(has_ended) {
            ended += 1;
        }
        deepest = deepest.max((before + 1).saturating_sub(ended));
    }
    deepest
}

/// The keys from the smallest to the largest of these runs; `None` if there are none.
pub(crate) fn hull<'a>(
    order: &KeyOrder,
    runs: impl IntoIterator<Item = &'a Arc<Run>>,
) -> Option<KeyRange<'a>> {
    let ranges = runs.into_iter().map(|run| KeyRange::of(run));
    ranges.reduce(|range, other| range.with(order, other))
}

/// Takes a run of level 0 and every run there that overlaps what is taken.
pub(crate) fn take_overlapping(
    order: &KeyOrder,
    runs: &[Arc<Run>],
    taken: &mut [bool],
    index: usize,
) {
    taken[index] = true;
    // Each added run may widen the range, which may then overlap another run.
    let mut range = KeyRange::of(&runs[index]);
    loop {
        let before = range;
        for (run, taken) in runs.iter().zip(&mut *taken) {
            if !*taken && range.overlaps(order, KeyRange::of(run)) {
                *taken = true;
                range = range.with(order, KeyRange::of(run));
            }
        }
        if range == before {
            break;
        }
    }
}

/// The indexes of those runs of a deeper level, which ascend, that have keys in a range.
pub(crate) fn overlapping(
    order: &KeyOrder,
    runs: &[Arc<Run>],
    range: KeyRange<'_>,
) -> Range<usize> {
    let start = runs.partition_point(|run| order.compare(largest(run), range.from).is_lt());
    let end = runs.partition_point(|run| order.compare(smallest(run), range.to).is_le());
    // A comparator may contradict itself.
    start.min(end)..end
}

/// The keys from `from`, which is included, to `to`, which is not. Without one, all keys on that
/// side.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeySpan {
    pub(crate) from: Option<Box<[u8]>>,
    pub(crate) to: Option<Box<[u8]>>,
}

impl KeySpan {
    /// Moves a cursor to the first version of these keys.
    pub(crate) fn seek_first(&self, versions: &mut dyn VersionCursor) -> Result<()> {
        match &self.from {
            Some(from) => versions.seek(from, SEQUENCE_MAX),
            None => versions.seek_first(),
        }
    }

    /// Whether the keys end before this one.
    pub(crate) fn ends_before(&self, order: &KeyOrder, key: &[u8]) -> bool {
        let to = self.to.as_deref();
        to.is_some_and(|to| order.compare(to, key).is_le())
    }
}

/// A range of keys; both ends are included.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct KeyRange<'a> {
    pub(crate) from: &'a [u8],
    pub(crate) to: &'a [u8],
}

impl<'a> KeyRange<'a> {
    pub(crate) fn of(run: &'a Run) -> KeyRange<'a> {
        KeyRange {
            from: smallest(run),
            to: largest(run),
        }
    }

    pub(crate) fn overlaps(&self, order: &KeyOrder, other: KeyRange<'_>) -> bool {
        order.compare(other.from, self.to).is_le() && order.compare(other.to, self.from).is_ge()
    }

    pub(crate) fn with(self, order: &KeyOrder, other: KeyRange<'a>) -> KeyRange<'a> {
        KeyRange {
            from: if order.compare(other.from, self.from).is_lt() {
                other.from
            } else {
                self.from
            },
            to: if order.compare(other.to, self.to).is_gt() {
                other.to
            } else {
                self.to
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::io::fault::FaultIo;
    use crate::testing::runs::run_of;
    use crate::testing::version_list::held;

    proptest! {
        #[test]
        fn the_depth_is_the_largest_number_of_runs_over_a_key(
            ranges in prop::collection::vec((0_u8..30, 0_u8..12), 0..12),
        ) {
            let io = FaultIo::new();
            let runs: Vec<Arc<Run>> = (1_u64..)
                .zip(&ranges)
                .map(|(number, (from, more))| {
                    let keys = [vec![*from], vec![from + more]];
                    let versions = keys[..1 + usize::from(*more > 0)].iter();
                    let versions = versions.map(|key| held(key, number, Some(b"v")));
                    run_of(&io, &KeyOrder::Bytewise, number, versions.collect())
                })
                .collect();
            let over = |key: u8| {
                ranges.iter().filter(|(from, more)| *from <= key && key <= from + more).count()
            };
            let expected = (0..42).map(over).max().unwrap_or(0);
            prop_assert_eq!(depth(&KeyOrder::Bytewise, &runs), expected);
        }
    }
}
