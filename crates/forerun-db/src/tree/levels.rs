//! The runs of a keyspace by level, as of one moment. Never changed: an edit makes another.
//!
//! ```text
//!   level 0   newest first, overlapping: each run whose range holds the key is a candidate
//!   level n   ascending, disjoint:       binary search, by the integers beside the runs first
//!
//!   ends      [ prefix of the largest key, prefix …, prefix … ]    8 bytes a run, side by side
//!   runs      [ Arc<Run>,                  Arc<Run>, Arc<Run> ]
//! ```
//!
//! A reader holds the `Levels` it began with, and so every run in them.

use std::cmp::Ordering;
use std::sync::Arc;

use crate::comparator::KeyOrder;
use crate::planted::{self, Defect};
use crate::ranges::{RangeRef, RangeTombstone, Ranges};
use crate::run::Run;
use crate::tree::manifest::{LEVELS, RunRecord};

/// The runs of all levels.
#[derive(Clone, Debug)]
pub(crate) struct Levels {
    order: KeyOrder,
    levels: [Level; LEVELS],
    /// A bit for each level that holds runs.
    filled: u8,
}

/// The runs of one level.
#[derive(Clone, Debug, Default)]
pub(crate) struct Level {
    runs: Vec<Arc<Run>>,
    /// [`KeyOrder::prefix`] of the smallest and of the largest key of each run.
    starts: Vec<u64>,
    ends: Vec<u64>,
    bytes: u64,
}

/// A change of the runs. Removing comes first, so a run may move to another level.
#[derive(Clone, Debug, Default)]
pub(crate) struct Edit {
    /// Runs to add, and to which level.
    pub(crate) added: Vec<(usize, Arc<Run>)>,
    /// Runs to add that are newer than all there are and have no key in common: each goes to the deepest level above
    /// which, and on which, nothing has keys in its range.
    pub(crate) ingested: Vec<Arc<Run>>,
    /// Numbers of the runs to remove.
    pub(crate) removed: Vec<u64>,
    /// Deletions of ranges that come from memtables.
    pub(crate) ranges: Vec<RangeTombstone>,
    /// Runs to add that hold these; those that hold others, which they take the place of, are among the `removed`.
    pub(crate) range_runs: Vec<Arc<Run>>,
    /// Everything up to this sequence number has expired, and was left out of the runs that are added.
    pub(crate) expired_sequence: u64,
}

impl Edit {
    /// The runs that are added, wherever.
    pub(crate) fn all_added(&self) -> impl Iterator<Item = &Arc<Run>> {
        let added = self.added.iter().map(|(_, run)| run);
        added.chain(&self.ingested).chain(&self.range_runs)
    }
}

impl Levels {
    /// These runs, each on its level. Level 0 is put in the order of age, the others in that of keys; whether they are
    /// disjoint, [`overlap`](Self::overlap) tells.
    pub(crate) fn with_runs(
        order: KeyOrder,
        runs: impl IntoIterator<Item = (usize, Arc<Run>)>,
    ) -> Levels {
        let mut by_level: [Vec<Arc<Run>>; LEVELS] = Default::default();
        for (level, run) in runs {
            debug_assert!(level < LEVELS);
            by_level[level.min(LEVELS - 1)].push(run);
        }
        let mut number = 0;
        let levels = by_level.map(|runs| {
            number += 1;
            Level::new(&order, number == 1, runs)
        });
        Levels::of(order, levels)
    }

    /// The deepest level on which a run that is newer than all there are can be: nothing there, nor above, has keys in
    /// its range. Level 0 takes all others.
    fn place_for(&self, run: &Run) -> usize {
        let is_free = |level: &Level| {
            let mut overlapping = level.overlapping(&self.order, smallest(run), largest(run));
            overlapping.next().is_none()
        };
        let free = self.levels.iter().take_while(|level| is_free(level));
        free.count().saturating_sub(1)
    }

    /// The same order, without a run.
    pub(crate) fn without_runs(&self) -> Levels {
        Levels::with_runs(self.order.clone(), [])
    }

    /// The levels after a change.
    pub(crate) fn edit(&self, edit: &Edit) -> Levels {
        if !edit.ingested.is_empty() {
            let mut edit = edit.clone();
            for run in std::mem::take(&mut edit.ingested) {
                edit.added.push((self.place_for(&run), run));
            }
            return self.edit(&edit);
        }
        let touched = |level: usize| {
            edit.added.iter().any(|(to, _)| *to == level)
                || self.levels[level]
                    .runs
                    .iter()
                    .any(|run| edit.removed.contains(&run.number()))
        };
        let levels = std::array::from_fn(|level| {
            if !touched(level) {
                return self.levels[level].clone();
            }
            let kept = self.levels[level].runs.iter();
            let kept = kept.filter(|run| !edit.removed.contains(&run.number()));
            let added = edit.added.iter().filter(|(to, _)| *to == level);
            let runs = kept.chain(added.map(|(_, run)| run)).cloned().collect();
            Level::new(&self.order, level == 0, runs)
        });
        Levels::of(self.order.clone(), levels)
    }

    fn of(order: KeyOrder, levels: [Level; LEVELS]) -> Levels {
        let filled = levels.iter().enumerate();
        let filled = filled.map(|(number, level)| u8::from(!level.runs.is_empty()) << number);
        Levels {
            order,
            filled: filled.sum(),
            levels,
        }
    }

    /// The runs that may hold `key`, by their range, newest first. Nothing is allocated.
    #[inline]
    pub(crate) fn candidates<'t, 'k>(&'t self, key: &'k [u8]) -> Candidates<'t, 'k> {
        Candidates {
            levels: self,
            key,
            prefix: self.order.prefix(key),
            left: self.filled,
            next: 0,
        }
    }

    /// Whether a run on a level from `first` on may hold `key`, by its range.
    pub(crate) fn may_hold_from(&self, first: usize, key: &[u8]) -> bool {
        let mut candidates = Candidates {
            left: self.filled & u8::MAX.checked_shl(first as u32).unwrap_or(0),
            ..self.candidates(key)
        };
        candidates.next().is_some()
    }

    /// Whether a run may hold a version that any of these deletions of ranges covers.
    pub(crate) fn run_needs_any(&self, run: &Run, ranges: &Ranges) -> bool {
        ranges.any_newer_within(smallest(run), largest(run), needs_above(run))
    }

    /// Whether it is plain that no run holds a version that any of these deletions of ranges covers: each run was written
    /// knowing all of them, or is newer.
    pub(crate) fn needs_none(&self, ranges: &Ranges) -> bool {
        let newest = ranges.largest_sequence();
        self.runs().all(|(_, run)| needs_above(run) >= newest)
    }

    /// For finding out which deletions of ranges cover anything in these runs.
    pub(crate) fn needs(&self) -> Needs<'_> {
        Needs {
            order: &self.order,
            levels: std::array::from_fn(|level| LevelNeeds::new(&self.levels[level].runs)),
        }
    }

    /// The runs that hold nothing but what has expired, or is covered by deletions of ranges for every reader: also as
    /// of `snapshots`, which ascend.
    pub(crate) fn covered(
        &self,
        ranges: &Ranges,
        expired_sequence: u64,
        snapshots: &[u64],
    ) -> Vec<u64> {
        let is_covered = |run: &Arc<Run>| {
            let meta = run.meta();
            let has_expired = meta.largest_sequence <= expired_sequence;
            // The oldest snapshot that sees anything of it has to see the deletions too.
            let sees_it = |snapshot: &&u64| **snapshot >= meta.smallest_sequence;
            let first_to_see = snapshots.iter().find(sees_it).copied();
            let is_deleted = || {
                let (from, to) = (smallest(run), largest(run));
                let as_of = first_to_see.unwrap_or(u64::MAX);
                ranges.covers_all(from, to, meta.largest_sequence, as_of)
            };
            has_expired || is_deleted()
        };
        let covered = self.runs().filter(|(_, run)| is_covered(run));
        covered.map(|(_, run)| run.number()).collect()
    }

    /// A level.
    pub(crate) fn level(&self, level: usize) -> &Level {
        &self.levels[level]
    }

    /// All runs with their levels: level 0 from the newest on, then the deeper levels by key.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (usize, &Arc<Run>)> {
        let levels = self.levels.iter().enumerate();
        levels.flat_map(|(number, level)| level.runs.iter().map(move |run| (number, run)))
    }

    /// How many runs there are.
    pub(crate) fn run_count(&self) -> usize {
        self.levels.iter().map(|level| level.runs.len()).sum()
    }

    /// Bytes of the files of a level's runs.
    pub(crate) fn bytes(&self, level: usize) -> u64 {
        self.levels[level].bytes
    }

    /// The order of keys.
    pub(crate) fn order(&self) -> &KeyOrder {
        &self.order
    }

    /// What the manifest says of these runs.
    pub(crate) fn records(&self) -> [Vec<RunRecord>; LEVELS] {
        let record = |run: &Arc<Run>| record(run);
        std::array::from_fn(|level| self.levels[level].runs.iter().map(record).collect())
    }

    /// Two runs of one level below the first whose ranges overlap, if there are any.
    pub(crate) fn overlap(&self) -> Option<(usize, &Arc<Run>, &Arc<Run>)> {
        self.levels
            .iter()
            .enumerate()
            .skip(1)
            .find_map(|(number, level)| {
                level.runs.windows(2).find_map(|pair| {
                    let overlaps = self
                        .order
                        .compare(largest(&pair[0]), smallest(&pair[1]))
                        .is_ge();
                    overlaps.then_some((number, &pair[0], &pair[1]))
                })
            })
    }
}

impl Level {
    fn new(order: &KeyOrder, is_first: bool, mut runs: Vec<Arc<Run>>) -> Level {
        match is_first {
            // Numbers are given in the order of age, and tell apart what ties.
            true => runs.sort_by_key(|run| (run.meta().largest_sequence, run.number())),
            false => runs.sort_by(|a, b| order.compare(smallest(a), smallest(b))),
        }
        if is_first {
            runs.reverse();
        }
        Level {
            starts: runs.iter().map(|run| order.prefix(smallest(run))).collect(),
            ends: runs.iter().map(|run| order.prefix(largest(run))).collect(),
            bytes: runs.iter().map(|run| run.meta().file_bytes).sum(),
            runs,
        }
    }

    /// The runs: of level 0 newest first, else ascending.
    pub(crate) fn runs(&self) -> &[Arc<Run>] {
        &self.runs
    }

    /// The first run of a disjoint level that does not end before `key`; their number if there is none.
    #[inline]
    fn first_ending(&self, order: &KeyOrder, key: &[u8], prefix: u64) -> usize {
        let from = self.ends.partition_point(|end| *end < prefix);
        let tied = self.ends[from..].partition_point(|end| *end == prefix);
        let ends_before = |run: &Arc<Run>| order.compare(largest(run), key) == Ordering::Less;
        from + self.runs[from..from + tied].partition_point(ends_before)
    }

    /// The run of a disjoint level whose range holds `key`.
    #[inline]
    fn holder(&self, order: &KeyOrder, key: &[u8], prefix: u64) -> Option<&Run> {
        let at = self.first_ending(order, key, prefix);
        (at < self.runs.len() && self.starts_by(order, at, key, prefix)).then(|| &*self.runs[at])
    }

    /// Whether the run at a place starts at or before `key`.
    #[inline]
    fn starts_by(&self, order: &KeyOrder, at: usize, key: &[u8], prefix: u64) -> bool {
        match self.starts[at].cmp(&prefix) {
            Ordering::Less => true,
            Ordering::Greater => false,
            Ordering::Equal => order.compare(smallest(&self.runs[at]), key).is_le(),
        }
    }

    /// Whether the run at a place ends before `key`.
    #[inline]
    fn ends_before(&self, order: &KeyOrder, at: usize, key: &[u8], prefix: u64) -> bool {
        match self.ends[at].cmp(&prefix) {
            Ordering::Less => true,
            Ordering::Greater => false,
            Ordering::Equal => match order.compare(largest(&self.runs[at]), key) {
                Ordering::Equal => planted::is(Defect::RunEndExcluded),
                order => order.is_lt(),
            },
        }
    }

    /// The runs with a key from `from` to `to`, both included.
    pub(crate) fn overlapping<'a>(
        &'a self,
        order: &'a KeyOrder,
        from: &'a [u8],
        to: &'a [u8],
    ) -> impl Iterator<Item = &'a Arc<Run>> {
        self.runs.iter().filter(move |run| {
            order.compare(smallest(run), to).is_le() && order.compare(largest(run), from).is_ge()
        })
    }
}

/// The runs that may hold a key, newest first.
#[derive(Clone, Debug)]
pub(crate) struct Candidates<'t, 'k> {
    levels: &'t Levels,
    key: &'k [u8],
    prefix: u64,
    /// A bit for each level that is not done.
    left: u8,
    /// The next run of level 0 to look at.
    next: usize,
}

impl<'t> Iterator for Candidates<'t, '_> {
    type Item = &'t Run;

    #[inline]
    fn next(&mut self) -> Option<&'t Run> {
        let order = &self.levels.order;
        if self.left & 1 != 0 {
            let level = &self.levels.levels[0];
            while self.next < level.runs.len() {
                let at = self.next;
                self.next += 1;
                if level.starts_by(order, at, self.key, self.prefix)
                    && !level.ends_before(order, at, self.key, self.prefix)
                {
                    return Some(&level.runs[at]);
                }
            }
            self.left &= !1;
        }
        while self.left != 0 {
            let level = &self.levels.levels[self.left.trailing_zeros() as usize];
            self.left &= self.left - 1;
            if let Some(run) = level.holder(order, self.key, self.prefix) {
                return Some(run);
            }
        }
        None
    }
}

/// Deletions of ranges up to this sequence number cover nothing in a run.
fn needs_above(run: &Run) -> u64 {
    let meta = run.meta();
    meta.smallest_sequence.max(meta.ranges_applied)
}

/// Which deletions of ranges cover anything in the runs of some levels.
pub(crate) struct Needs<'a> {
    order: &'a KeyOrder,
    levels: [LevelNeeds<'a>; LEVELS],
}

/// The runs of a level, and the least [`needs_above`] of those next to each other.
struct LevelNeeds<'a> {
    runs: &'a [Arc<Run>],
    /// `least[n][i]`: of `1 << n` runs from the `i`th on.
    least: Vec<Vec<u64>>,
}

impl Needs<'_> {
    /// Whether any run may hold a version that this deletion of a range covers.
    pub(crate) fn holds(&self, range: RangeRef<'_>) -> bool {
        let reaches = |run: &Arc<Run>| match self.order.compare(range.start, largest(run)) {
            Ordering::Equal => !planted::is(Defect::RangeForgottenEarly),
            order => order.is_lt(),
        };
        let touches =
            |run: &Arc<Run>| reaches(run) && self.order.compare(smallest(run), range.end).is_lt();
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

    /// The least of the runs in a range of places; `u64::MAX` if there is none.
    fn least(&self, from: usize, to: usize) -> u64 {
        if from >= to {
            return u64::MAX;
        }
        let power = (to - from).ilog2() as usize;
        let least = &self.least[power];
        least[from].min(least[to - (1 << power)])
    }
}

/// What the manifest says of a run.
pub(crate) fn record(run: &Run) -> RunRecord {
    RunRecord {
        number: run.number(),
        bytes: run.meta().file_bytes,
        checksum: run.meta().checksum,
    }
}

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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::ReverseBytewise;
    use crate::io::fault::FaultIo;
    use crate::tree::testing::run_of;
    use crate::versions::testing::held;

    /// Keys that share their first eight bytes, and keys that do not.
    fn key(number: u8) -> Vec<u8> {
        match number % 2 {
            0 => vec![b'k', b'e', b'y', number / 40],
            _ => [b"long prefix ".as_slice(), &[number]].concat(),
        }
    }

    fn sorted(order: &KeyOrder, numbers: impl IntoIterator<Item = u8>) -> Vec<Vec<u8>> {
        let mut keys: Vec<Vec<u8>> = numbers.into_iter().map(key).collect();
        keys.sort_by(|a, b| order.compare(a, b));
        keys.dedup();
        keys
    }

    proptest! {
        #[test]
        fn candidates_are_the_runs_whose_range_holds_the_key_newest_first(
            level0 in prop::collection::vec(prop::collection::btree_set(any::<u8>(), 1..4), 0..5),
            deep in prop::collection::vec(prop::collection::btree_set(any::<u8>(), 0..12), 2),
            cuts in 1_usize..4,
            is_reverse in any::<bool>(),
        ) {
            let order = if is_reverse { KeyOrder::new(Arc::new(ReverseBytewise)) } else { KeyOrder::Bytewise };
            let io = FaultIo::new();
            let mut placed = Vec::new();
            let mut number = 0;
            let mut add = |level: usize, keys: &[Vec<u8>]| {
                number += 1;
                let sequence = number + if level == 0 { 100 } else { 0 };
                let versions = keys.iter().map(|key| held(key, sequence, Some(b"v"))).collect();
                placed.push((level, run_of(&io, &order, number, versions)));
            };
            for (i, keys) in deep.iter().enumerate() {
                let keys = sorted(&order, keys.iter().copied());
                keys.chunks(cuts).for_each(|keys| add(6 - 3 * i, keys));
            }
            for keys in &level0 {
                add(0, &sorted(&order, keys.iter().copied()));
            }
            // However they come.
            placed.reverse();
            let levels = Levels::with_runs(order.clone(), placed.clone());
            prop_assert_eq!(levels.run_count(), placed.len());
            prop_assert!(levels.overlap().is_none());
            let all: Vec<u64> = levels.runs().map(|(_, run)| run.number()).collect();
            for number in 0..=u8::MAX {
                let key = key(number);
                let holds = |run: &Run| order.compare(smallest(run), &key).is_le() && order.compare(largest(run), &key).is_ge();
                let expected: Vec<u64> =
                    levels.runs().filter(|(_, run)| holds(run)).map(|(_, run)| run.number()).collect();
                let found: Vec<u64> = levels.candidates(&key).map(Run::number).collect();
                prop_assert_eq!(&found, &expected);
                for first in 0..=LEVELS {
                    let expected = levels.runs().any(|(level, run)| level >= first && holds(run));
                    prop_assert_eq!(levels.may_hold_from(first, &key), expected, "from level {}", first);
                }
            }

            // A deletion of a range is needed by the runs that it touches and that are older.
            let needs = levels.needs();
            let bounds = (0..=u8::MAX).step_by(23).map(key);
            for (start, end) in bounds.clone().flat_map(|start| bounds.clone().map(move |end| (start.clone(), end))) {
                if order.compare(&start, &end).is_ge() {
                    continue;
                }
                for sequence in [1, 2, 3, 6, 100, 103, 200] {
                    let range = RangeRef { start: &start, end: &end, sequence };
                    let is_needed = |run: &Run| {
                        run.meta().smallest_sequence < sequence
                            && order.compare(&start, largest(run)).is_le()
                            && order.compare(smallest(run), &end).is_lt()
                    };
                    let expected = levels.runs().any(|(_, run)| is_needed(run));
                    prop_assert_eq!(needs.holds(range), expected, "{:?}", range);
                    let alone = Ranges::of(order.clone(), [range]);
                    for (_, run) in levels.runs() {
                        prop_assert_eq!(levels.run_needs_any(run, &alone), is_needed(run));
                    }
                    prop_assert!(!levels.needs_none(&alone) || !expected);
                }
            }

            // Taking out half of them, one edit for all or one for each, comes to the same.
            let removed: Vec<u64> = all.iter().copied().step_by(2).collect();
            let once = levels.edit(&Edit { removed: removed.clone(), ..Edit::default() });
            let each = removed.iter().fold(levels.clone(), |levels, number| {
                levels.edit(&Edit { removed: vec![*number], ..Edit::default() })
            });
            prop_assert_eq!(once.records(), each.records());
            let left: BTreeSet<u64> = once.runs().map(|(_, run)| run.number()).collect();
            prop_assert_eq!(left, all.iter().copied().filter(|number| !removed.contains(number)).collect());
            let back = placed.iter().filter(|(_, run)| removed.contains(&run.number())).cloned().collect();
            let again = once.edit(&Edit { added: back, ..Edit::default() });
            prop_assert_eq!(again.records(), levels.records());
        }
    }
}
