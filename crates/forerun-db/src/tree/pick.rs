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
//! From level 0, a compaction takes the oldest run and every run that overlaps it, so that the
//! remaining runs are newer or have other keys. From the level it merges into, it takes every
//! overlapping run. Two compactions may run at once if they share no run and only one of them takes
//! from level 0: runs of a level are disjoint, so the key ranges of two such compactions are too.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::TreeOptions;
use crate::comparator::KeyOrder;
use crate::ranges::Ranges;
use crate::run::Run;
use crate::tree::key_bounds::{largest, smallest};
use crate::tree::levels::Levels;
use crate::tree::manifest::LEVELS;

const LAST: usize = LEVELS - 1;

/// Runs to merge, and the level they go to.
#[derive(Clone, Debug)]
pub(crate) struct Compaction {
    /// The levels at the time of the pick.
    pub(crate) levels: Arc<Levels>,
    pub(crate) from: usize,
    pub(crate) into: usize,
    /// Runs of `from`: newest first on level 0, otherwise ascending.
    pub(crate) upper: Vec<Arc<Run>>,
    /// The overlapping runs of `into`, ascending.
    pub(crate) lower: Vec<Arc<Run>>,
}

impl Compaction {
    /// Numbers of the input runs.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u64> {
        self.upper.iter().chain(&self.lower).map(|run| run.number())
    }

    /// Size of the input files.
    pub(crate) fn bytes(&self) -> u64 {
        bytes(&self.upper) + bytes(&self.lower)
    }

    /// Whether the run can just change its level: there is nothing to merge it with, and rewriting
    /// it would drop no deletion.
    pub(crate) fn is_move(&self) -> bool {
        let [run] = &self.upper[..] else { return false };
        let hides_nothing = || {
            let order = self.levels.order();
            let (from, to) = (smallest(run), largest(run));
            let mut deeper = self.into + 1..LEVELS;
            deeper.all(|level| {
                self.levels
                    .level(level)
                    .overlapping(order, from, to)
                    .next()
                    .is_none()
            })
        };
        self.from != self.into
            && self.lower.is_empty()
            && (run.meta().deletions == 0 || !hides_nothing())
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

/// The most urgent compaction that takes no run in `busy`; `None` if none is due.
pub(crate) fn pick(
    levels: &Arc<Levels>,
    options: &TreeOptions,
    busy: &BTreeSet<u64>,
) -> Option<Compaction> {
    let targets = Targets::new(levels, options);
    let mut due: Vec<(f64, usize)> = (0..LAST)
        .map(|level| (score(levels, options, &targets, busy, level), level))
        .filter(|(score, _)| *score >= 1.0)
        .collect();
    due.sort_by(|a, b| b.0.total_cmp(&a.0));
    due.into_iter().find_map(|(_, level)| match level {
        0 => pick_level0(levels, targets.base, busy),
        level => pick_run(levels, level, busy),
    })
}

/// How far the levels exceed their targets, as RocksDB's compaction score. A compaction is due at
/// 1 or more.
pub(crate) fn compaction_score(levels: &Levels, options: &TreeOptions) -> f64 {
    let (targets, none) = (Targets::new(levels, options), BTreeSet::new());
    let scores = (0..LAST).map(|level| score(levels, options, &targets, &none, level));
    scores.fold(0.0, f64::max)
}

/// How far a level exceeds its target. From 1 on, it needs a compaction. Runs that a running
/// compaction takes away do not count.
fn score(
    levels: &Levels,
    options: &TreeOptions,
    targets: &Targets,
    busy: &BTreeSet<u64>,
    level: usize,
) -> f64 {
    let idle = levels
        .level(level)
        .runs()
        .iter()
        .filter(|run| !busy.contains(&run.number()));
    match level {
        0 => idle.count() as f64 / options.level0_runs.max(1) as f64,
        _ => {
            let bytes: u64 = idle.map(|run| run.meta().file_bytes).sum();
            // A level exactly at its target needs no compaction.
            bytes as f64 / (targets.bytes[level] as f64 + 1.0)
        }
    }
}

/// A step of merging all of level 0 into the levels below, due or not.
pub(super) fn pick_whole_level0(levels: &Arc<Levels>, options: &TreeOptions) -> Option<Compaction> {
    pick_level0(levels, Targets::new(levels, options).base, &BTreeSet::new())
}

/// The oldest run of level 0, with all runs that overlap it.
fn pick_level0(levels: &Arc<Levels>, into: usize, busy: &BTreeSet<u64>) -> Option<Compaction> {
    let runs = levels.level(0).runs();
    if runs.iter().any(|run| busy.contains(&run.number())) {
        return None;
    }
    let order = levels.order();
    let mut taken = vec![false; runs.len()];
    *taken.last_mut()? = true;
    // Each added run may widen the range, which may then overlap another run.
    let mut range = Range::of(runs.last()?);
    loop {
        let before = range;
        for (run, taken) in runs.iter().zip(&mut taken) {
            if !*taken && range.overlaps(order, run) {
                *taken = true;
                range = range.with(order, run);
            }
        }
        if range == before {
            break;
        }
    }
    let upper = runs.iter().zip(&taken).filter(|(_, taken)| **taken);
    let upper = upper.map(|(run, _)| Arc::clone(run)).collect();
    into_next(levels, 0, into, upper, busy)
}

/// The run of a level whose compaction rewrites the fewest bytes below for each of its own.
fn pick_run(levels: &Arc<Levels>, from: usize, busy: &BTreeSet<u64>) -> Option<Compaction> {
    let order = levels.order();
    let below = levels.level(from + 1).runs();
    let mut start = 0;
    let mut best: Option<(f64, &Arc<Run>)> = None;
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
        let mut rewritten = 0;
        let mut is_free = !busy.contains(&run.number());
        for other in overlap {
            rewritten += other.meta().file_bytes;
            is_free &= !busy.contains(&other.number());
        }
        let cost = rewritten as f64 / run.meta().file_bytes.max(1) as f64;
        if is_free && best.is_none_or(|(least, _)| cost < least) {
            best = Some((cost, run));
        }
    }
    let (_, run) = best?;
    into_next(levels, from, from + 1, vec![Arc::clone(run)], busy)
}

/// A compaction of these runs; `None` if one of the runs they are merged with is busy.
fn into_next(
    levels: &Arc<Levels>,
    from: usize,
    into: usize,
    upper: Vec<Arc<Run>>,
    busy: &BTreeSet<u64>,
) -> Option<Compaction> {
    let order = levels.order();
    let mut runs = upper.iter();
    let range = Range::of(runs.next()?);
    let range = runs.fold(range, |range, run| range.with(order, run));
    let lower: Vec<Arc<Run>> = if from == into {
        Vec::new()
    } else {
        levels
            .level(into)
            .overlapping(order, range.from, range.to)
            .cloned()
            .collect()
    };
    if lower.iter().any(|run| busy.contains(&run.number())) {
        return None;
    }
    Some(Compaction {
        levels: Arc::clone(levels),
        from,
        into,
        upper,
        lower,
    })
}

/// The next step of moving everything in runs with numbers below `limit` to the last level, without
/// deletions, without overwritten versions and without what `ranges` deletes, except where a
/// snapshot needs it; `None` once that is done. No other compaction may be running.
pub(crate) fn pick_full(levels: &Arc<Levels>, limit: u64, ranges: &Ranges) -> Option<Compaction> {
    let is_old = |run: &&Arc<Run>| run.number() < limit;
    let none = BTreeSet::new();
    if levels.level(0).runs().iter().any(|run| is_old(&run)) {
        let topmost = (1..LEVELS).find(|level| !levels.level(*level).runs().is_empty());
        return pick_level0(levels, topmost.unwrap_or(LAST), &none);
    }
    let upper = (1..LAST).find_map(|level| Some((level, levels.level(level).runs().first()?)));
    if let Some((level, run)) = upper {
        return into_next(levels, level, level + 1, vec![Arc::clone(run)], &none);
    }
    let holds_obsolete = |run: &&Arc<Run>| {
        let meta = run.meta();
        let drops = meta.deletions > 0 || meta.repeats_keys || levels.run_needs_any(run, ranges);
        is_old(run) && drops
    };
    let run = levels.level(LAST).runs().iter().find(holds_obsolete)?;
    into_next(levels, LAST, LAST, vec![Arc::clone(run)], &none)
}

/// A range of keys; both ends are included.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Range<'a> {
    from: &'a [u8],
    to: &'a [u8],
}

impl<'a> Range<'a> {
    fn of(run: &'a Run) -> Range<'a> {
        Range {
            from: smallest(run),
            to: largest(run),
        }
    }

    fn overlaps(&self, order: &KeyOrder, run: &Run) -> bool {
        order.compare(smallest(run), self.to).is_le()
            && order.compare(largest(run), self.from).is_ge()
    }

    fn with(self, order: &KeyOrder, run: &'a Run) -> Range<'a> {
        let other = Range::of(run);
        Range {
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

fn bytes(runs: &[Arc<Run>]) -> u64 {
    runs.iter().map(|run| run.meta().file_bytes).sum()
}
