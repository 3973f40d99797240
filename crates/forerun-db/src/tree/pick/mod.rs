//! Picks the next compaction.
//!
//! ```text
//!   level 0   │ ▒▒▒▒▒▒▒ ▒▒▒▒▒ ▒▒▒▒▒▒▒▒ ▒▒▒ │  4 runs of 4            score 1.0
//!   ...                                     (empty)
//!   level 5   │ ▒▒▒ ▒▒▒ ▒▒▒ ▒▒▒ │            240 MiB of 200 MiB     score 1.2  <─ this one
//!   level 6   │ ▒▒▒ ▒▒▒ ▒▒▒ ▒▒▒ ▒▒▒ … │      2000 MiB               the last: no limit
//! ```
//!
//! The last level has no limit, and each level above may hold a tenth of the next one, so the whole
//! tree is at most a ninth larger than its last level. Level 0 is merged into the topmost level
//! whose target is at most `level1_bytes`; the levels between the two are empty. A compaction takes
//! a run from the level that exceeds its target most. It picks the run that causes the least
//! rewriting below for each byte that it moves.
//!
//! From the level that it merges into, a compaction takes every overlapping run, and small runs
//! next to them: a run that overlaps nothing is moved as it is, and without that a store that is
//! flushed after each write would have a file for each. `level0.rs` picks from level 0,
//! `deletion_compaction.rs` what gets rid of deletions, and `range_compaction.rs` of range
//! deletions. Several compactions run at once; `running.rs` says which may.

mod deletion_compaction;
mod level0;
mod older_keys;
mod range_compaction;
mod running;

use std::ops::Range;
use std::sync::Arc;

pub(crate) use deletion_compaction::{DueAt, has_due_deletions, pick_for_deletions};
pub(crate) use level0::level0_begins_without;
use level0::{all_level0_into, keep_for_level0, pick_level0};
pub(crate) use older_keys::OlderKeys;
pub(crate) use range_compaction::{pick_for_ranges, ranges_score};
pub(crate) use running::{Pick, Running, RunningCompactions};

use crate::ranges::Ranges;
use crate::run::Run;
use crate::tree::key_bounds::{KeyRange, hull, largest, overlapping, smallest};
use crate::tree::levels::{Levels, obsolete_from};
use crate::tree::manifest::LEVELS;
use crate::{Error, TreeOptions};

const LAST: usize = LEVELS - 1;

/// A run is small if it has at most this part of the bytes at which a compaction begins a new run.
const SMALL_SHARE: u64 = 8;

/// A small run is merged with what comes next to it only if it has at most this many times the
/// bytes. Otherwise each run that is appended would rewrite it.
const NEIGHBOR_RATIO: u64 = 4;

/// Runs to merge, and the level they go to. It holds no other runs, whose files would stay.
#[derive(Clone, Debug)]
pub(crate) struct Compaction {
    pub(crate) from: usize,
    pub(crate) into: usize,
    /// Runs of `from`: newest first on level 0, otherwise ascending.
    pub(crate) upper: Vec<Arc<Run>>,
    /// The runs of `into` to merge with, ascending: those that overlap and small ones beside them.
    pub(crate) lower: Vec<Arc<Run>>,
}

impl Compaction {
    /// Numbers of the input runs.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u64> {
        self.upper.iter().chain(&self.lower).map(|run| run.number())
    }

    /// The number of the run that could not be read, if that is what an error is about.
    pub(crate) fn unreadable_run(&self, error: &Error) -> Option<u64> {
        let (Error::CorruptFile { path, .. } | Error::Io { path, .. }) = error else {
            return None;
        };
        let mut runs = self.upper.iter().chain(&self.lower);
        runs.find(|run| run.path() == path).map(|run| run.number())
    }

    /// Size of the input files.
    pub(crate) fn bytes(&self) -> u64 {
        bytes(&self.upper) + bytes(&self.lower)
    }

    /// Size at which a new run begins. What stays in level 0 is one run there: two would count as
    /// two.
    pub(crate) fn run_bytes(&self, options: &TreeOptions) -> u64 {
        if self.into == 0 {
            u64::MAX
        } else {
            options.run_bytes
        }
    }

    /// What it must know of the other runs of these levels, from which it was picked.
    pub(crate) fn older_keys(&self, levels: &Levels) -> OlderKeys {
        OlderKeys::new(self, levels)
    }

    /// The range of the keys that it may write.
    pub(super) fn keys(&self) -> Option<KeyRange<'_>> {
        let order = self.upper.first()?.order();
        hull(order, self.upper.iter().chain(&self.lower))
    }

    /// Whether the run can just change its level: there is nothing to merge it with, and rewriting
    /// it would drop no deletion.
    pub(crate) fn is_move(&self, older: &OlderKeys) -> bool {
        let [run] = &self.upper[..] else { return false };
        self.from != self.into
            && self.lower.is_empty()
            && (run.meta().deletions == 0 || !older.is_empty())
    }
}

/// Target size of each level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Targets {
    /// The level that level 0 is merged into. No level between the two has runs.
    pub(crate) base: usize,
    /// Bytes for each level; 0 for level 0 and for levels above `base`.
    pub(crate) bytes: [u64; LEVELS],
}

impl Targets {
    pub(crate) fn new(levels: &Levels, options: &TreeOptions) -> Targets {
        let factor = u64::from(options.level_factor.max(2));
        let base_limit = options.level1_bytes.max(1);
        let topmost = (1..LEVELS).find(|level| !levels.level(*level).runs().is_empty());
        let mut base = topmost.unwrap_or(LAST);
        let greatest = (1..LEVELS)
            .map(|level| levels.bytes(level))
            .max()
            .unwrap_or(0);
        // The share of `base` if the levels below it are full, up to the largest.
        let mut share = (base..LAST).fold(greatest, |bytes, _| bytes / factor);
        while base > 1 && share > base_limit {
            base -= 1;
            share /= factor;
        }
        // If the first level of a small store had a small target, each flush would rewrite the
        // whole level.
        let share = share.clamp((base_limit / factor).max(1), base_limit);
        let mut bytes = [0; LEVELS];
        for (i, target) in bytes[base..].iter_mut().enumerate() {
            *target = share.saturating_mul(factor.saturating_pow(i as u32));
        }
        Targets { base, bytes }
    }
}

/// The most urgent compaction that may begin beside those that run; `None` if none is due.
pub(crate) fn pick(
    levels: &Levels,
    options: &TreeOptions,
    oldest_reader: u64,
    running: &Running<'_>,
) -> Option<Compaction> {
    let targets = Targets::new(levels, options);
    let running = &keep_for_level0(levels, options, &targets, running);
    let score = |level| score(levels, options, &targets, level, running);
    let mut due: Vec<(f64, usize)> = scored_levels(running)
        .map(|level| (score(level), level))
        .filter(|(score, _)| *score >= 1.0)
        .collect();
    due.sort_by(|a, b| b.0.total_cmp(&a.0));
    let picked = due.into_iter().find_map(|(_, level)| match level {
        0 => pick_level0(levels, options, targets.base, running).begins(),
        level => pick_run(levels, options, level, running),
    });
    picked.or_else(|| pick_unseen(levels, oldest_reader, running))
}

/// How far the levels exceed their targets, as RocksDB's compaction score, not counting what
/// running compactions take care of. A compaction is due at 1 or more. The sequence number at which
/// the oldest reader reads decides whether the last level has something to drop.
pub(crate) fn compaction_score(
    levels: &Levels,
    options: &TreeOptions,
    running: &Running<'_>,
    oldest_reader: impl FnOnce() -> u64,
) -> f64 {
    let targets = Targets::new(levels, options);
    let scores = scored_levels(running);
    let scores = scores.map(|level| score(levels, options, &targets, level, running));
    let largest = scores.fold(0.0, f64::max);
    let holds_unseen = |from| largest < 1.0 && from <= oldest_reader();
    if !running.is_level0_only() && levels.obsolete_from().is_some_and(holds_unseen) {
        1.0
    } else {
        largest
    }
}

/// The levels that compactions may begin from because of their size.
fn scored_levels(running: &Running<'_>) -> Range<usize> {
    0..if running.is_level0_only() { 1 } else { LAST }
}

/// How far a level exceeds its target. From 1 on, it needs a compaction.
fn score(
    levels: &Levels,
    options: &TreeOptions,
    targets: &Targets,
    level: usize,
    running: &Running<'_>,
) -> f64 {
    if level > 0 {
        // A compaction that is installed has not ended yet.
        let bytes = levels
            .bytes(level)
            .saturating_sub(running.leaving_bytes(level));
        // A level exactly at its target needs no compaction.
        return bytes as f64 / (targets.bytes[level] as f64 + 1.0);
    }
    if running.takes_level0() {
        return 0.0;
    }
    let limit = options.level0_runs.max(1);
    // Many runs that overlap little are to be merged, but nothing waits for that.
    let is_due = levels.level(0).runs().len() >= limit;
    let depth = levels.level0_depth() as f64 / limit as f64;
    depth.max(f64::from(u8::from(is_due)))
}

/// A run of the last level with versions that no reader sees, because a snapshot is gone that did.
/// Readers of all versions in it see the newest of each key, so its rewrite leaves nothing to drop.
fn pick_unseen(levels: &Levels, oldest_reader: u64, running: &Running<'_>) -> Option<Compaction> {
    if running.is_level0_only() {
        return None;
    }
    let is_unseen = |run: &&Arc<Run>| obsolete_from(run).is_some_and(|from| from <= oldest_reader);
    let unseen = levels.level(LAST).runs().iter().filter(is_unseen);
    let mut compactions = unseen.map(|run| within_last(vec![Arc::clone(run)]));
    compactions.find(|compaction| running.allows(compaction))
}

/// The run of a level whose compaction rewrites the fewest bytes below for each of its own, of
/// those that may begin.
fn pick_run(
    levels: &Levels,
    options: &TreeOptions,
    from: usize,
    running: &Running<'_>,
) -> Option<Compaction> {
    let order = levels.order();
    let below = levels.level(from + 1).runs();
    let mut start = 0;
    let mut candidates: Vec<(f64, &Arc<Run>)> = Vec::new();
    for run in levels.level(from).runs() {
        // Both levels ascend, so runs before this one are also before the next one.
        while below
            .get(start)
            .is_some_and(|other| order.compare(largest(other), smallest(run)).is_lt())
        {
            start += 1;
        }
        let overlap = below[start..]
            .iter()
            .take_while(|other| order.compare(smallest(other), largest(run)).is_le());
        let rewritten: u64 = overlap.map(|other| other.meta().file_bytes).sum();
        let cost = rewritten as f64 / run.meta().file_bytes.max(1) as f64;
        candidates.push((cost, run));
    }
    candidates.sort_by(|a, b| a.0.total_cmp(&b.0));
    let idle = candidates.into_iter().map(|(_, run)| run);
    let mut compactions = idle
        .filter(|run| !running.takes(run))
        .map(|run| vec![Arc::clone(run)])
        .filter_map(|upper| into_next(levels, options, from..from + 1, upper, running));
    compactions.find(|compaction| running.allows(compaction))
}

/// A compaction of these runs into a deeper level, the end of `between`; `None` if there are none.
/// Small runs beside them join it if nothing keeps them from it.
fn into_next(
    levels: &Levels,
    options: &TreeOptions,
    between: Range<usize>,
    upper: Vec<Arc<Run>>,
    running: &Running<'_>,
) -> Option<Compaction> {
    let (from, into) = (between.start, between.end);
    let order = levels.order();
    let range = hull(order, &upper)?;
    let runs = levels.level(into).runs();
    let Range { mut start, mut end } = overlapping(order, runs, range);
    let mut taken_bytes = bytes(&upper) + bytes(&runs[start..end]);
    while taken_bytes <= options.run_bytes / SMALL_SHARE {
        let is_small_beside = |run: &&Arc<Run>| {
            is_small(run, options)
                && !running.is_unreadable(run)
                && !running.takes(run)
                && run.meta().file_bytes <= taken_bytes.saturating_mul(NEIGHBOR_RATIO)
        };
        if let Some(before) = runs[..start].last().filter(is_small_beside) {
            taken_bytes += before.meta().file_bytes;
            start -= 1;
        } else if let Some(behind) = runs[end..].first().filter(is_small_beside) {
            taken_bytes += behind.meta().file_bytes;
            end += 1;
        } else {
            break;
        }
    }
    Some(Compaction {
        from,
        into,
        upper,
        lower: runs[start..end].to_vec(),
    })
}

/// Whether a run is so small that it should not stay alone.
fn is_small(run: &Run, options: &TreeOptions) -> bool {
    run.meta().file_bytes <= options.run_bytes / SMALL_SHARE
}

/// What existed at one moment. A compaction of all of it must end although more keeps coming.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Existing {
    /// Everything up to this sequence number was in runs.
    pub(crate) flushed_sequence: u64,
    /// The numbers of the runs were below this one.
    pub(crate) next_run: u64,
}

impl Existing {
    /// Whether a run has anything that existed. Compactions give it to runs with new numbers.
    fn is_in(&self, run: &Run) -> bool {
        run.meta().smallest_sequence <= self.flushed_sequence
    }
}

/// What no reader sees.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Obsolete<'a> {
    /// The range deletions that all readers see.
    pub(crate) ranges: &'a Ranges,
    /// Everything up to this sequence number has expired for all readers.
    pub(crate) expired_sequence: u64,
}

/// The next step of moving everything that existed to the last level, without deletions,
/// overwritten versions and what else is obsolete, except where a snapshot needs it. What needs a
/// run that cannot be read stays.
pub(crate) fn pick_full(
    levels: &Levels,
    options: &TreeOptions,
    existing: Existing,
    obsolete: Obsolete<'_>,
    running: &Running<'_>,
) -> Pick {
    let targets = Targets::new(levels, options);
    let is_in = |run: &Run| existing.is_in(run);
    match all_level0_into(levels, options, targets.base, running, is_in) {
        Pick::Nothing => {}
        pick => return pick,
    }
    let is_level0_due = score(levels, options, &targets, 0, running) >= 1.0;
    if is_level0_due && let Pick::Waits = pick_level0(levels, options, targets.base, running) {
        return Pick::Waits;
    }
    let in_level = |level: usize| {
        let runs = levels.level(level).runs().iter();
        let existing = runs.filter(|run| existing.is_in(run));
        let upper = existing.map(|run| vec![Arc::clone(run)]);
        let next = |upper| into_next(levels, options, level..level + 1, upper, running);
        running.first_allowed(upper.filter_map(next))
    };
    let in_last = |upper: &mut dyn Iterator<Item = Vec<Arc<Run>>>| {
        running.first_allowed(upper.map(within_last))
    };
    let above_last = (1..LAST).fold(Pick::Nothing, |pick, level| pick.or(|| in_level(level)));
    above_last
        .or(|| in_last(&mut obsolete_in_last(levels, existing, obsolete)))
        .or(|| in_last(&mut small_in_last(levels, options, existing, running).into_iter()))
}

/// The runs of the last level with something obsolete.
fn obsolete_in_last<'a>(
    levels: &'a Levels,
    existing: Existing,
    obsolete: Obsolete<'a>,
) -> impl Iterator<Item = Vec<Arc<Run>>> {
    let holds_obsolete = move |run: &&Arc<Run>| {
        let drops = obsolete_from(run).is_some()
            || levels.run_needs_any(run, obsolete.ranges)
            || run.meta().smallest_sequence <= obsolete.expired_sequence;
        // Runs with newer numbers were written without what is obsolete.
        run.number() < existing.next_run && drops
    };
    let runs = levels.level(LAST).runs().iter().filter(holds_obsolete);
    runs.map(|run| vec![Arc::clone(run)])
}

/// The next small runs of the last level that are side by side, at most as many as make one run.
fn small_in_last(
    levels: &Levels,
    options: &TreeOptions,
    existing: Existing,
    running: &Running<'_>,
) -> Option<Vec<Arc<Run>>> {
    let runs = levels.level(LAST).runs();
    let is_small = |run: &Arc<Run>| {
        is_small(run, options) && run.number() < existing.next_run && !running.is_unreadable(run)
    };
    let is_first = |pair: &[Arc<Run>]| pair.iter().all(is_small);
    let first = runs.windows(2).position(is_first)?;
    let mut taken_bytes = 0;
    let taken = runs[first..].iter().take_while(|run| {
        let fits = is_small(run) && taken_bytes < options.run_bytes;
        taken_bytes += run.meta().file_bytes;
        fits
    });
    Some(taken.cloned().collect())
}

/// A compaction that rewrites runs of the last level.
fn within_last(upper: Vec<Arc<Run>>) -> Compaction {
    Compaction {
        from: LAST,
        into: LAST,
        upper,
        lower: Vec::new(),
    }
}

/// Size of the files of these runs.
fn bytes(runs: &[Arc<Run>]) -> u64 {
    runs.iter().map(|run| run.meta().file_bytes).sum()
}
