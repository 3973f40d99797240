//! The runs of a keyspace by level, at one point in time. Immutable: an edit makes a new value.
//!
//! ```text
//!   level 0   newest first, overlapping: each run whose range includes the key is a candidate
//!   level n   ascending, disjoint:       binary search, on the prefixes first
//!
//!   ends      [ prefix of the largest key, prefix …, prefix … ]    8 bytes per run, side by side
//!   runs      [ Arc<Run>,                  Arc<Run>, Arc<Run> ]
//! ```
//!
//! A reader holds the `Levels` it started with, and so all their runs.

use std::cmp::Ordering;
use std::sync::Arc;

use crate::comparator::KeyOrder;
use crate::ranges::{RangeRef, RangeTombstone, Ranges};
use crate::run::Run;
use crate::run::level_cursor::{LevelCursor, first_ending};
use crate::tree::deletions::Deletions;
use crate::tree::key_bounds::{depth, largest, smallest};
use crate::tree::manifest::{LEVELS, RunRecord};
use crate::tree::needed_ranges::{NeededRanges, needs_above};

/// The runs of all levels.
#[derive(Clone, Debug)]
pub(crate) struct Levels {
    order: KeyOrder,
    levels: [Level; LEVELS],
    /// One bit for each level that has runs.
    filled: u8,
    deletions: Deletions,
}

/// The runs of one level.
#[derive(Clone, Debug, Default)]
pub(crate) struct Level {
    runs: Vec<Arc<Run>>,
    /// [`KeyOrder::prefix`] of each run's smallest and largest key.
    starts: Vec<u64>,
    ends: Vec<u64>,
    bytes: u64,
    /// The largest number of runs whose ranges include the same key.
    depth: usize,
    /// From this sequence number of the oldest reader on, some run has versions that no one sees.
    obsolete_from: Option<u64>,
}

/// A change to the runs. Removals come first, so a run may move to another level.
#[derive(Clone, Debug, Default)]
pub(crate) struct Edit {
    /// Runs to add, with their levels.
    pub(crate) added: Vec<(usize, Arc<Run>)>,
    /// Runs to add that are newer than all others and share no key with each other.
    pub(crate) ingested: Vec<Ingested>,
    /// Numbers of the runs to remove.
    pub(crate) removed: Vec<u64>,
    /// Range deletions from memtables.
    pub(crate) ranges: Vec<RangeTombstone>,
    /// Whether `ranges` replaces the earlier ones, and is not added to them.
    pub(crate) replaces_ranges: bool,
    /// Runs to add that hold these range deletions. The runs they replace are in `removed`.
    pub(crate) range_runs: Vec<Arc<Run>>,
    /// Everything up to this sequence number has expired and was left out of the added runs.
    pub(crate) expired_sequence: u64,
}

/// A run that is newer than all others.
#[derive(Clone, Debug)]
pub(crate) struct Ingested {
    pub(crate) run: Arc<Run>,
    /// Numbers of runs that enclose it and have no key between its first and its last.
    pub(crate) around: Vec<u64>,
}

impl Edit {
    /// All added runs, whatever their level.
    pub(crate) fn all_added(&self) -> impl Iterator<Item = &Arc<Run>> {
        let added = self.added.iter().map(|(_, run)| run);
        let ingested = self.ingested.iter().map(|ingested| &ingested.run);
        added.chain(ingested).chain(&self.range_runs)
    }
}

impl Levels {
    /// Places these runs on their levels. Sorts level 0 by age, the others by key. It does not
    /// check that the others are disjoint; [`overlap`](Self::overlap) does.
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

    /// Levels with the same order and no runs.
    pub(crate) fn without_runs(&self) -> Levels {
        Levels::with_runs(self.order.clone(), [])
    }

    /// The levels after a change, in which ingested runs have their places.
    pub(crate) fn edit(&self, edit: &Edit) -> Levels {
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
        let filled: u8 = filled.sum();
        let runs = std::array::from_fn(|level| &*levels[level].runs);
        Levels {
            deletions: Deletions::in_runs(&order, runs),
            order,
            filled,
            levels,
        }
    }

    /// The runs whose key range includes `key`, newest first. Allocates nothing.
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

    /// Whether a run on level `first` or deeper has `key` in its range.
    pub(crate) fn may_hold_from(&self, first: usize, key: &[u8]) -> bool {
        let mut candidates = Candidates {
            left: self.filled & u8::MAX.checked_shl(first as u32).unwrap_or(0),
            ..self.candidates(key)
        };
        candidates.next().is_some()
    }

    /// Whether a run may hold a version that one of these range deletions covers.
    pub(crate) fn run_needs_any(&self, run: &Run, ranges: &Ranges) -> bool {
        ranges.any_newer_within(smallest(run), largest(run), needs_above(run))
    }

    /// Whether no run may hold a version that one of these range deletions covers.
    pub(crate) fn need_none(&self, ranges: &Ranges) -> bool {
        !self.runs().any(|(_, run)| self.run_needs_any(run, ranges))
    }

    /// Finds out which range deletions cover anything in these runs.
    pub(crate) fn needed_ranges(&self) -> NeededRanges<'_> {
        let runs = std::array::from_fn(|level| &*self.levels[level].runs);
        NeededRanges::new(&self.order, runs)
    }

    /// Those range deletions that cover anything in these runs.
    pub(crate) fn needed_of<'r>(&self, ranges: impl IntoIterator<Item = RangeRef<'r>>) -> Ranges {
        let needs = self.needed_ranges();
        let needed = ranges.into_iter().filter(|range| needs.holds(*range));
        Ranges::of(self.order.clone(), needed)
    }

    /// The runs whose content has entirely expired, or is covered by range deletions for every
    /// reader, including `snapshots`, which ascend.
    pub(crate) fn covered(
        &self,
        ranges: &Ranges,
        expired_sequence: u64,
        snapshots: &[u64],
    ) -> Vec<u64> {
        let is_covered = |run: &Arc<Run>| {
            let meta = run.meta();
            let has_expired = meta.largest_sequence <= expired_sequence;
            // The oldest snapshot that sees anything of the run must also see the deletions.
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

    /// All levels, from level 0 on.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Level> {
        self.levels.iter()
    }

    /// One level.
    pub(crate) fn level(&self, level: usize) -> &Level {
        &self.levels[level]
    }

    /// All runs with their levels: level 0 newest first, deeper levels by key.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (usize, &Arc<Run>)> {
        let levels = self.levels.iter().enumerate();
        levels.flat_map(|(number, level)| level.runs.iter().map(move |run| (number, run)))
    }

    /// The number of runs.
    pub(crate) fn run_count(&self) -> usize {
        self.levels.iter().map(|level| level.runs.len()).sum()
    }

    /// Size of the files on a level.
    pub(crate) fn bytes(&self, level: usize) -> u64 {
        self.levels[level].bytes
    }

    /// The largest number of runs of level 0 that a read of one key may have to search.
    pub(crate) fn level0_depth(&self) -> usize {
        self.levels[0].depth
    }

    /// From this sequence number of the oldest reader on, a run of the last level has deletions or
    /// overwritten versions that no one sees.
    pub(crate) fn obsolete_from(&self) -> Option<u64> {
        self.levels[LEVELS - 1].obsolete_from
    }

    /// What is known of the deletions above the last level.
    pub(crate) fn deletions(&self) -> &Deletions {
        &self.deletions
    }

    /// The order of keys.
    pub(crate) fn order(&self) -> &KeyOrder {
        &self.order
    }

    /// The manifest's records of these runs.
    pub(crate) fn records(&self) -> [Vec<RunRecord>; LEVELS] {
        let record = |run: &Arc<Run>| record(run);
        std::array::from_fn(|level| self.levels[level].runs.iter().map(record).collect())
    }

    /// Two overlapping runs on one level below level 0, if there are any.
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
        if is_first {
            // Numbers ascend with age, so they break ties.
            runs.sort_by_key(|run| (run.meta().largest_sequence, run.number()));
            runs.reverse();
        } else {
            runs.sort_by(|a, b| order.compare(smallest(a), smallest(b)));
        }
        Level {
            starts: runs.iter().map(|run| order.prefix(smallest(run))).collect(),
            ends: runs.iter().map(|run| order.prefix(largest(run))).collect(),
            bytes: runs.iter().map(|run| run.meta().file_bytes).sum(),
            depth: if is_first {
                depth(order, &runs)
            } else {
                usize::from(!runs.is_empty())
            },
            obsolete_from: runs.iter().filter_map(|run| obsolete_from(run)).min(),
            runs,
        }
    }

    /// A cursor over a disjoint level.
    pub(crate) fn cursor(&self) -> LevelCursor<'_> {
        LevelCursor::new(&self.runs).with_ends(&self.ends)
    }

    /// The runs, newest first on level 0, otherwise ascending.
    pub(crate) fn runs(&self) -> &[Arc<Run>] {
        &self.runs
    }

    /// The first run of a disjoint level that does not end before `key`; the number of runs if all
    /// do.
    #[inline]
    fn first_ending(&self, order: &KeyOrder, key: &[u8], prefix: u64) -> usize {
        first_ending(order, &self.runs, &self.ends, key, prefix)
    }

    /// The run of a disjoint level whose range includes `key`.
    #[inline]
    fn holder(&self, order: &KeyOrder, key: &[u8], prefix: u64) -> Option<&Run> {
        let at = self.first_ending(order, key, prefix);
        (at < self.runs.len() && self.starts_by(order, at, key, prefix)).then(|| &*self.runs[at])
    }

    /// Whether the run at an index starts at or before `key`.
    #[inline]
    fn starts_by(&self, order: &KeyOrder, at: usize, key: &[u8], prefix: u64) -> bool {
        match self.starts[at].cmp(&prefix) {
            Ordering::Less => true,
            Ordering::Greater => false,
            Ordering::Equal => order.compare(smallest(&self.runs[at]), key).is_le(),
        }
    }

    /// Whether the run at an index ends before `key`.
    #[inline]
    fn ends_before(&self, order: &KeyOrder, at: usize, key: &[u8], prefix: u64) -> bool {
        match self.ends[at].cmp(&prefix) {
            Ordering::Less => true,
            Ordering::Greater => false,
            Ordering::Equal => order.compare(largest(&self.runs[at]), key).is_lt(),
        }
    }

    /// The runs with a range that overlaps `from` to `to`, both included.
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
    /// One bit for each level still to visit.
    left: u8,
    /// The next run of level 0 to examine.
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

/// The sequence number from which on the oldest reader sees none of the overwritten versions in a
/// run of the last level, and none of what its deletions hide, if it has any.
pub(crate) fn obsolete_from(run: &Run) -> Option<u64> {
    let meta = run.meta();
    (meta.repeats_keys || meta.deletions > 0).then_some(meta.largest_sequence)
}

/// The manifest's record of a run.
pub(crate) fn record(run: &Run) -> RunRecord {
    RunRecord {
        number: run.number(),
        bytes: run.meta().file_bytes,
        checksum: run.meta().checksum,
    }
}

#[cfg(test)]
#[path = "levels_tests.rs"]
mod tests;
