//! The deletions above the last level, and which of them are worth a compaction of their own.
//!
//! ```text
//!   level 0   │ ✕✕✕✕✕✕✕✕ │                    2,000 deletions, at least half of the entries
//!   level 5   │      ▒▒▒▒▒▒▒▒▒▒▒▒ │           6,000 entries, 8,000 in all at most: worth it
//!   level 6   │ ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒ … │   its turn comes once they are in level 5
//! ```
//!
//! What a deletion hides is dropped when both meet in a compaction. A level that does not grow is
//! never compacted for its size, so its deletions are. This is found out once for each change of
//! the runs, and not whenever someone asks whether a compaction is due.

use std::sync::Arc;

use forerun_core::sync::SIMULATED;

use crate::comparator::KeyOrder;
use crate::run::Run;
use crate::tree::key_bounds::{hull, overlapping, take_overlapping};
use crate::tree::manifest::LEVELS;

const LAST: usize = LEVELS - 1;

/// Fewer deletions are not worth a compaction: they wait until they are old.
const DELETIONS_MIN: u64 = if SIMULATED { 4 } else { 1 << 10 };

/// How many entries a compaction may read for each deletion: a level is about ten times as large as
/// the one above, so a compaction for size reads about as many.
const ENTRIES_PER_DELETION_MAX: u64 = 16;

/// The same for level 0. Its deletions gather there first: each flush may bring some, and would
/// have what is below rewritten again.
const LEVEL0_ENTRIES_PER_DELETION_MAX: u64 = 4;

/// What is known of the deletions above the last level.
#[derive(Clone, Debug, Default)]
pub(crate) struct Deletions {
    /// Runs of which at least half of the entries are deletions and whose compaction is worth it,
    /// with their levels.
    dense: Vec<(usize, Arc<Run>)>,
    /// When the oldest run with deletions was created, in seconds since 1970.
    oldest_unix: Option<u64>,
}

impl Deletions {
    /// Those in the runs of all levels.
    pub(super) fn in_runs(order: &KeyOrder, levels: [&[Arc<Run>]; LEVELS]) -> Deletions {
        let mut deletions = Deletions::default();
        let mut groups = Groups {
            worthwhile: vec![None; levels[0].len()],
        };
        for (level, runs) in levels[..LAST].iter().enumerate() {
            for (index, run) in runs.iter().enumerate() {
                let meta = run.meta();
                if meta.deletions == 0 {
                    continue;
                }
                let oldest = deletions.oldest_unix.unwrap_or(u64::MAX);
                deletions.oldest_unix = Some(oldest.min(meta.created_unix));
                if meta.deletions < meta.entries.saturating_sub(meta.deletions) {
                    continue;
                }
                let is_due = match level {
                    0 => groups.is_worthwhile(order, levels, index),
                    _ => is_worthwhile(order, levels, level, std::slice::from_ref(run)),
                };
                if is_due {
                    deletions.dense.push((level, Arc::clone(run)));
                }
            }
        }
        deletions
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.oldest_unix.is_none()
    }

    /// See the field.
    pub(crate) fn dense(&self) -> &[(usize, Arc<Run>)] {
        &self.dense
    }

    /// From this sequence number of the oldest reader on, one of the [`dense`](Self::dense) runs is
    /// due.
    pub(crate) fn dense_from(&self) -> Option<u64> {
        let largest = self
            .dense
            .iter()
            .map(|(_, run)| run.meta().largest_sequence);
        largest.min()
    }

    /// See the field.
    pub(crate) fn oldest_unix(&self) -> Option<u64> {
        self.oldest_unix
    }
}

/// Whether the compaction of these runs of a level, which it must take together, reads few enough
/// entries for the deletions that it takes: theirs, and those of what overlaps them in the next
/// level that has their keys.
fn is_worthwhile(
    order: &KeyOrder,
    levels: [&[Arc<Run>]; LEVELS],
    level: usize,
    upper: &[Arc<Run>],
) -> bool {
    let deletions = sum(upper.iter().map(|run| run.meta().deletions));
    if deletions < DELETIONS_MIN {
        return false;
    }
    let Some(keys) = hull(order, upper) else {
        return false;
    };
    let mut below = levels[level + 1..]
        .iter()
        .map(|runs| &runs[overlapping(order, runs, keys)]);
    let below = below.find(|runs| !runs.is_empty()).unwrap_or_default();
    let entries = sum(upper.iter().chain(below).map(|run| run.meta().entries));
    let per_deletion_max = match level {
        0 => LEVEL0_ENTRIES_PER_DELETION_MAX,
        _ => ENTRIES_PER_DELETION_MAX,
    };
    entries <= deletions.saturating_mul(per_deletion_max)
}

/// The sum of what files say, which may be anything.
fn sum(counts: impl Iterator<Item = u64>) -> u64 {
    counts.fold(0, u64::saturating_add)
}

/// The groups of level 0 whose runs a compaction takes together, because their keys overlap.
struct Groups {
    /// For each run whether the compaction of its group is worth it, if that is known.
    worthwhile: Vec<Option<bool>>,
}

impl Groups {
    fn is_worthwhile(
        &mut self,
        order: &KeyOrder,
        levels: [&[Arc<Run>]; LEVELS],
        index: usize,
    ) -> bool {
        if let Some(is_worthwhile) = self.worthwhile[index] {
            return is_worthwhile;
        }
        let mut taken = vec![false; levels[0].len()];
        take_overlapping(order, levels[0], &mut taken, index);
        let of_group = |at: &usize| taken[*at];
        let group = (0..taken.len()).filter(of_group);
        let group: Vec<Arc<Run>> = group.map(|at| Arc::clone(&levels[0][at])).collect();
        let is_worthwhile = is_worthwhile(order, levels, 0, &group);
        for at in (0..taken.len()).filter(of_group) {
            self.worthwhile[at] = Some(is_worthwhile);
        }
        is_worthwhile
    }
}
