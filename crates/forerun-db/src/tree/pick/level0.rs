//! Picks from level 0.
//!
//! ```text
//!   newest │   ▒▒              2 KiB  ┐ small beside what they would be merged with below:
//!          │ ▒▒▒▒▒▒▒▒▒         6 KiB  ┘ merged within level 0
//!          │      ▒▒▒▒▒▒▒▒▒▒▒  9 MiB
//!   oldest │ ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒  40 MiB    depth 4: as many runs hold the same key
//!   level 5│ ▒▒▒▒ ▒▒▒▒ ▒▒▒▒ ▒▒▒▒ ▒▒▒▒
//! ```
//!
//! The depth, not the number of runs, is what reads pay for, so it decides when writes wait: runs
//! of an ingestion overlap each other nowhere. The number decides when a compaction is due, because
//! small runs that overlap nothing are to be merged too.
//!
//! The oldest run is merged into the level below, with every run that overlaps it, so that the
//! remaining runs are newer or have other keys. If that would rewrite much more than it moves,
//! small runs next to each other in age are merged into one run of level 0 instead. So a keyspace
//! with a few writes in each memtable set rewrites its last level only once in a long while.

use std::sync::Arc;

use super::{Compaction, Pick, Running, Targets, bytes, into_next, is_small, score};
use crate::TreeOptions;
use crate::run::Run;
use crate::tree::key_bounds::take_overlapping;
use crate::tree::levels::Levels;

/// A compaction rewrites at most this many bytes below for each that it takes from level 0, unless
/// level 0 has no small runs to merge.
const REWRITTEN_PER_BYTE_MAX: u64 = 4;

/// A run is merged with newer ones within level 0 if it has at most this many times their bytes.
/// Larger runs wait until the newer ones have grown, so that they are not rewritten each time.
const SIZE_RATIO: u64 = 4;

/// While level 0 is due, but waits for a compaction of the level below, nothing else takes runs of
/// that level. If all that it waits for began after it was due, it would wait for ever.
pub(super) fn keep_for_level0<'r>(
    levels: &Levels,
    options: &TreeOptions,
    targets: &Targets,
    running: &Running<'r>,
) -> Running<'r> {
    let is_due = score(levels, options, targets, 0, running) >= 1.0;
    let waits = is_due
        && matches!(
            pick_level0(levels, options, targets.base, running),
            Pick::Waits
        );
    running.kept_for_level0(waits.then_some(targets.base))
}

/// The next compaction of level 0, if it is not empty.
pub(super) fn pick_level0(
    levels: &Levels,
    options: &TreeOptions,
    base: usize,
    running: &Running<'_>,
) -> Pick {
    let Some(down) = level0_into(levels, options, base, running) else {
        return Pick::Nothing;
    };
    let most_bytes = bytes(&down.lower) / REWRITTEN_PER_BYTE_MAX;
    let is_costly = most_bytes > bytes(&down.upper);
    let within = is_costly.then(|| within_level0(levels, most_bytes, running));
    match within.flatten() {
        None if running.takes_unreadable(&down) => {
            running.first_allowed(beside_unreadable(levels, options, base, running))
        }
        within => running.first_allowed(within.or(Some(down)).into_iter()),
    }
}

/// Whether level 0 can be compacted without these runs, which could not be read. Their numbers
/// ascend.
///
/// # Errors
/// The first of them that its next compaction takes.
pub(crate) fn level0_begins_without(
    levels: &Levels,
    options: &TreeOptions,
    unreadable: Vec<u64>,
) -> Result<(), Option<u64>> {
    let base = Targets::new(levels, options).base;
    let running = Running::default().without(unreadable);
    if let Pick::Begins(_) = pick_level0(levels, options, base, &running) {
        return Ok(());
    }
    let down = level0_into(levels, options, base, &running);
    let mut runs = down.iter().flat_map(|of| of.upper.iter().chain(&of.lower));
    let blocking = runs.find(|run| running.is_unreadable(run));
    Err(blocking.map(|run| run.number()))
}

/// The next compaction into `base` that takes a wanted run of level 0.
pub(super) fn all_level0_into(
    levels: &Levels,
    options: &TreeOptions,
    base: usize,
    running: &Running<'_>,
    is_wanted: impl Fn(&Run) -> bool,
) -> Pick {
    if !levels.level(0).runs().iter().any(|run| is_wanted(run)) {
        return Pick::Nothing;
    }
    match level0_into(levels, options, base, running) {
        Some(down) if running.takes_unreadable(&down) => {
            let others = beside_unreadable(levels, options, base, running);
            running.first_allowed(others.filter(|of| of.upper.iter().any(|run| is_wanted(run))))
        }
        down => running.first_allowed(down.into_iter()),
    }
}

/// What can be merged into `base` although the oldest run of level 0 cannot, the oldest first: runs
/// that overlap neither that one nor any other run that could not be read.
fn beside_unreadable(
    levels: &Levels,
    options: &TreeOptions,
    base: usize,
    running: &Running<'_>,
) -> impl Iterator<Item = Compaction> {
    let runs = levels.level(0).runs().len();
    let mut seen = vec![false; runs];
    let compactions = (0..runs).rev().filter_map(move |index| {
        // From each of the runs that overlap, all of them are taken.
        if seen[index] {
            return None;
        }
        let mut taken = vec![false; runs];
        take(levels, &mut taken, index);
        for (seen, taken) in seen.iter_mut().zip(&taken) {
            *seen |= taken;
        }
        compaction_of(levels, options, base, &taken, running)
    });
    compactions.filter(|compaction| !running.takes_unreadable(compaction))
}

/// Merges these runs of level 0 into `base`.
fn compaction_of(
    levels: &Levels,
    options: &TreeOptions,
    base: usize,
    taken: &[bool],
    running: &Running<'_>,
) -> Option<Compaction> {
    let upper = levels.level(0).runs().iter().zip(taken);
    let upper = upper.filter(|(_, taken)| **taken);
    let upper = upper.map(|(run, _)| Arc::clone(run)).collect();
    into_next(levels, options, 0..base, upper, running)
}

/// Merges the oldest run of level 0 into `base`, with all runs that overlap it, and as many small
/// ones as cost little more. It may get in the way of a compaction that runs.
pub(super) fn level0_into(
    levels: &Levels,
    options: &TreeOptions,
    base: usize,
    running: &Running<'_>,
) -> Option<Compaction> {
    let runs = levels.level(0).runs();
    let compaction_of = |taken: &[bool]| compaction_of(levels, options, base, taken, running);
    let mut taken = vec![false; runs.len()];
    take(levels, &mut taken, runs.len().checked_sub(1)?);
    let mut compaction = compaction_of(&taken)?;
    for index in (0..runs.len()).rev() {
        if taken[index] || !is_small(&runs[index], options) {
            continue;
        }
        let upper_bytes = bytes(&compaction.upper);
        if upper_bytes >= options.run_bytes
            || !compaction.upper.iter().all(|of| is_small(of, options))
        {
            break;
        }
        take(levels, &mut taken, index);
        let more = compaction_of(&taken)?;
        let added_bytes = bytes(&more.upper) - upper_bytes;
        let most_bytes = bytes(&compaction.lower) + REWRITTEN_PER_BYTE_MAX * added_bytes;
        if bytes(&more.lower) > most_bytes || !running.allows(&more) {
            break;
        }
        compaction = more;
    }
    Some(compaction)
}

/// The compaction of one run of level 0 and every run that overlaps what it takes.
pub(super) fn one_of_level0_into(
    levels: &Levels,
    options: &TreeOptions,
    base: usize,
    run: &Arc<Run>,
    running: &Running<'_>,
) -> Option<Compaction> {
    let runs = levels.level(0).runs();
    let index = runs.iter().position(|other| Arc::ptr_eq(other, run))?;
    let mut taken = vec![false; runs.len()];
    take(levels, &mut taken, index);
    compaction_of(levels, options, base, &taken, running)
}

/// Takes a run of level 0 and every run that overlaps what is taken.
fn take(levels: &Levels, taken: &mut [bool], index: usize) {
    take_overlapping(levels.order(), levels.level(0).runs(), taken, index);
}

/// The newest small runs of level 0, next to each other in age, that together have at most
/// `most_bytes` and can be read; `None` if no two do.
fn within_level0(levels: &Levels, most_bytes: u64, running: &Running<'_>) -> Option<Compaction> {
    let runs = levels.level(0).runs();
    let bytes_of = |run: &Arc<Run>| run.meta().file_bytes;
    let cuts = cuts(runs);
    let upper = (0..runs.len())
        .filter(|first| cuts[*first] && !running.is_unreadable(&runs[*first]))
        .find_map(|first| {
            let mut bytes = bytes_of(&runs[first]);
            let mut end = first + 1;
            while let Some(more) = runs.get(end).map(bytes_of) {
                // Two at least, or nothing would get smaller.
                let is_large = more > SIZE_RATIO.saturating_mul(bytes) && end > first + 1;
                if is_large || bytes + more > most_bytes || running.is_unreadable(&runs[end]) {
                    break;
                }
                bytes += more;
                end += 1;
            }
            while !cuts[end] {
                end -= 1;
            }
            (end > first + 1).then(|| runs[first..end].to_vec())
        })?;
    Some(Compaction {
        from: 0,
        into: 0,
        upper,
        lower: Vec::new(),
    })
}

/// For each place between two runs of level 0, and both ends: whether everything before it, the
/// newer runs, is newer than everything behind it. The runs of one ingestion are equally old, and
/// each would have to go before or behind what is merged with one of them.
fn cuts(runs: &[Arc<Run>]) -> Vec<bool> {
    let mut oldest_before = u64::MAX;
    let mut cuts: Vec<bool> = runs
        .iter()
        .map(|run| {
            let is_cut = oldest_before > run.meta().largest_sequence;
            oldest_before = oldest_before.min(run.meta().smallest_sequence);
            is_cut
        })
        .collect();
    cuts.push(true);
    cuts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comparator::KeyOrder;
    use crate::io::fault::FaultIo;
    use crate::testing::runs::run_of;
    use crate::testing::version_list::held;

    #[test]
    fn runs_are_cut_only_where_all_newer_ones_are_newer() {
        let io = FaultIo::new();
        let run = |number: u64, sequences: &[u64]| {
            let keys = (b'a'..).map(|key| [key]).zip(sequences);
            let versions = keys.map(|(key, sequence)| held(&key, *sequence, Some(b"v")));
            run_of(&io, &KeyOrder::Bytewise, number, versions.collect())
        };
        let runs = [
            run(5, &[9]),
            run(4, &[7]),
            run(3, &[7]),
            run(2, &[5, 6]),
            run(1, &[2, 3]),
        ];
        assert_eq!(cuts(&runs), [true, true, false, true, true, true]);
    }
}
