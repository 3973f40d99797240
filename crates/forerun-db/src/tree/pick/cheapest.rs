//! Picks from a level below level 0: what costs least.
//!
//! ```text
//!   level 5   │ ▒▒▒ ▓▓▓ ▓▓▓ ▒▒▒ │    two runs move down together and share what they rewrite:
//!   level 6   │ ▒▒▒▒▓▓▓▓▓▓▓▓▒▒▒▒ │    2 for 2, where each alone would rewrite 2 for 1
//! ```
//!
//! The cost is how many bytes are rewritten below for each that moves there. At its ends, a
//! compaction rewrites runs that it needs only in part. So where levels are of similar size,
//! neighbors move together, as far as the level exceeds its target.

use std::ops::Range;
use std::sync::Arc;

use super::{Compaction, Running, into_next};
use crate::TreeOptions;
use crate::run::Run;
use crate::tree::key_bounds::{largest, smallest};
use crate::tree::levels::Levels;

/// Runs move together only if that takes at most the bytes of so many, or a compaction would take
/// long and need much space until its end.
const RUNS_MAX: u64 = 12;

/// The compaction of one level that rewrites the fewest bytes below for each of its own, of those
/// that may begin. The level exceeds its target by `excess_bytes`.
pub(super) fn pick_cheapest(
    levels: &Levels,
    options: &TreeOptions,
    from: usize,
    excess_bytes: u64,
    running: &Running<'_>,
) -> Option<Compaction> {
    let runs = levels.level(from).runs();
    let below = Below::new(levels, from);
    let most_bytes = RUNS_MAX.saturating_mul(options.run_bytes);
    let mut candidates: Vec<(f64, Range<usize>)> = Vec::new();
    for first in 0..runs.len() {
        let mut upper_bytes = 0;
        for (last, run) in runs.iter().enumerate().skip(first) {
            // Without this one, what is left already meets the target.
            let is_enough = last > first && upper_bytes >= excess_bytes;
            if is_enough || running.takes(run) {
                break;
            }
            upper_bytes += run.meta().file_bytes;
            let rewritten = below.overlapping_bytes(first, last);
            // What rewrites nothing is moved, one run at a time.
            if last > first && (rewritten == 0 || upper_bytes + rewritten > most_bytes) {
                break;
            }
            let cost = rewritten as f64 / upper_bytes.max(1) as f64;
            candidates.push((cost, first..last + 1));
        }
    }
    candidates.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut compactions = candidates.into_iter().filter_map(|(_, upper)| {
        let upper = runs[upper].to_vec();
        into_next(levels, options, from..from + 1, upper, running)
    });
    compactions.find(|compaction| running.allows(compaction))
}

/// Which runs of the next level overlap those of a level.
struct Below {
    /// For each run of the level.
    overlaps: Vec<Range<usize>>,
    /// The bytes of the next level's runs before each of them, and of all.
    bytes_before: Vec<u64>,
}

impl Below {
    fn new(levels: &Levels, level: usize) -> Below {
        let order = levels.order();
        let below = levels.level(level + 1).runs();
        let mut bytes_before = vec![0];
        for run in below {
            bytes_before.push(bytes_before[bytes_before.len() - 1] + run.meta().file_bytes);
        }
        let overlap = |start: &mut usize, run: &Arc<Run>| {
            // Both levels ascend, so runs before this one are also before the next one.
            let is_before = |other: &Arc<Run>| order.compare(largest(other), smallest(run)).is_lt();
            while below.get(*start).is_some_and(is_before) {
                *start += 1;
            }
            let is_within =
                |other: &&Arc<Run>| order.compare(smallest(other), largest(run)).is_le();
            let count = below[*start..].iter().take_while(is_within).count();
            *start..*start + count
        };
        let (mut start, runs) = (0, levels.level(level).runs());
        Below {
            overlaps: runs.iter().map(|run| overlap(&mut start, run)).collect(),
            bytes_before,
        }
    }

    /// The bytes that a compaction of these neighbors rewrites.
    fn overlapping_bytes(&self, first: usize, last: usize) -> u64 {
        let end = self.bytes_before[self.overlaps[last].end];
        end.saturating_sub(self.bytes_before[self.overlaps[first].start])
    }
}
