//! Compactions that get rid of deletions, and free the space of what they hide.
//!
//! A run above the last level is due if most of its entries are deletions and its compaction is
//! worth it (`tree/deletions.rs`), or if it has deletions and is old. It goes down level by level,
//! until nothing below has its keys. Each step takes it one level deeper, so they end. While one of
//! the old runs is compacted, the others wait.
//!
//! A run waits while a reader is older than anything in it: the compaction could drop nothing, and
//! what it writes would be due again. In the last level, where a run has deletions only because of
//! such a reader, it is due once that is gone (`pick_unseen`).

use std::sync::Arc;

use super::level0::{keep_for_level0, one_of_level0_into};
use super::{Compaction, LAST, Running, Targets, into_next};
use crate::TreeOptions;
use crate::run::Run;
use crate::tree::levels::Levels;

/// What decides which deletions are due.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DueAt {
    /// The sequence number at which the oldest reader reads.
    pub(crate) oldest_reader: u64,
    /// The time, in seconds since 1970.
    pub(crate) unix_s: u64,
}

/// Whether a run is due because of its deletions. `at` is asked only if there are any.
pub(crate) fn has_due_deletions(
    levels: &Levels,
    options: &TreeOptions,
    running: &Running<'_>,
    at: impl FnOnce() -> DueAt,
) -> bool {
    !running.is_level0_only()
        && !levels.deletions().is_empty()
        && due(levels, options, at()).next().is_some()
}

/// The next compaction of a run that is due because of its deletions.
pub(crate) fn pick_for_deletions(
    levels: &Levels,
    options: &TreeOptions,
    at: DueAt,
    running: &Running<'_>,
) -> Option<Compaction> {
    let mut due = due(levels, options, at).peekable();
    if running.is_level0_only() || due.peek().is_none() {
        return None;
    }
    // One old run at a time: with many, such as at a first opening with this limit, they would take
    // all threads.
    let waits = old(levels, options, at).any(|(_, run)| running.takes(run));
    let until = old_until(options, at).filter(|_| waits);
    let due = due.filter(|(_, run)| until.is_none_or(|until| run.meta().created_unix > until));
    let targets = Targets::new(levels, options);
    let running = &keep_for_level0(levels, options, &targets, running);
    let mut compactions = due.filter_map(|(level, run)| match level {
        0 => one_of_level0_into(levels, options, targets.base, run, running),
        _ => {
            let upper = vec![Arc::clone(run)];
            into_next(levels, options, level..level + 1, upper, running)
        }
    });
    compactions.find(|compaction| running.allows(compaction))
}

/// The runs that are due, with their levels.
fn due<'l>(
    levels: &'l Levels,
    options: &TreeOptions,
    at: DueAt,
) -> impl Iterator<Item = (usize, &'l Arc<Run>)> {
    let dense = levels.deletions().dense().iter();
    dense
        .map(|(level, run)| (*level, run))
        .chain(old(levels, options, at))
        .filter(move |(_, run)| run.meta().largest_sequence <= at.oldest_reader)
}

/// The runs whose deletions are old, with their levels.
fn old<'l>(
    levels: &'l Levels,
    options: &TreeOptions,
    at: DueAt,
) -> impl Iterator<Item = (usize, &'l Arc<Run>)> {
    let until = old_until(options, at);
    let is_old = move |created_unix: u64| until.is_some_and(|until| created_unix <= until);
    // All runs are looked at only if one of them is old.
    let has_old = levels.deletions().oldest_unix().is_some_and(is_old);
    let old = levels.runs().filter(move |(level, run)| {
        *level < LAST && run.meta().deletions > 0 && is_old(run.meta().created_unix)
    });
    has_old.then_some(old).into_iter().flatten()
}

/// What was created up to then is old.
fn old_until(options: &TreeOptions, at: DueAt) -> Option<u64> {
    at.unix_s.checked_sub(options.deletion_max_age?.as_secs())
}
