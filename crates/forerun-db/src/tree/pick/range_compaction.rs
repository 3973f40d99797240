//! Compactions that get rid of range deletions.
//!
//! ```text
//!   ranges     ├──┤  ├──┤├─┤   ├───┤  …            in memory, and looked up at every read
//!   level 5    [ ▒▒▒▒ ][ ▒▒▒▒▒▒ ]                  rewritten without what they cover, where it is
//!   level 6    [ ▒▒▒ ][ ▒▒▒▒▒ ][ ▒▒▒▒▒ ][ ▒▒▒ ]    once no run needs them, they are gone
//! ```
//!
//! A range deletion stays until every run that it overlaps was rewritten. The runs of a level that
//! does not grow are never merged for their size, so here the range deletions themselves make it
//! due. What that rewrites is in proportion to them: for a thousandth of the data, all of it.

use std::sync::Arc;

use crate::TreeOptions;
use crate::ranges::Ranges;
use crate::run::Run;
use crate::tree::levels::Levels;
use crate::tree::manifest::LEVELS;
use crate::tree::pick::level0::{keep_for_level0, level0_into};
use crate::tree::pick::{Compaction, Running, Targets};

/// Range deletions in less memory than this stay: some hundreds of them.
const DUE_BYTES_MIN: u64 = 64 << 10;

/// The bytes of data for which a byte of range deletions may stay.
const DATA_BYTES_PER_BYTE: u64 = 1 << 10;

/// How far range deletions exceed the memory that they may take, in proportion to the data, or in
/// all keyspaces together, which `of_store` says. From 1 on, a compaction of theirs is due. Others
/// go first only if theirs is more urgent: in a keyspace that is overwritten without pause, one is
/// due at all times. A full level 0, for which writes wait, is always more urgent.
pub(crate) fn ranges_score(
    levels: &Levels,
    options: &TreeOptions,
    ranges: &Ranges,
    of_store: f64,
) -> f64 {
    let data_bytes: u64 = (0..LEVELS).map(|level| levels.bytes(level)).sum();
    let due_bytes = (data_bytes / DATA_BYTES_PER_BYTE).max(DUE_BYTES_MIN);
    let score = ranges.used_bytes() as f64 / due_bytes as f64;
    let below_full = options.level0_stop_runs.saturating_sub(1) as f64;
    let most = below_full / options.level0_runs.max(1) as f64;
    score.max(of_store).min(most.max(1.0))
}

/// The next compaction that drops what these range deletions cover. All readers must see all of
/// them.
pub(crate) fn pick_for_ranges(
    levels: &Levels,
    options: &TreeOptions,
    ranges: &Ranges,
    running: &Running<'_>,
) -> Option<Compaction> {
    let targets = Targets::new(levels, options);
    let running = &keep_for_level0(levels, options, &targets, running);
    let needs_any = |run: &&Arc<Run>| levels.run_needs_any(run, ranges);
    let is_allowed = |compaction: &Compaction| running.allows(compaction);
    let in_level = |level: usize| {
        let mut needing = levels.level(level).runs().iter().filter(needs_any);
        if level == 0 {
            needing.next()?;
            return level0_into(levels, options, targets.base, running).filter(is_allowed);
        }
        let mut compactions = needing.map(|run| Compaction {
            from: level,
            into: level,
            upper: vec![Arc::clone(run)],
            lower: Vec::new(),
        });
        compactions.find(is_allowed)
    };
    // From below, because runs of level 0 may not stay where they are.
    (0..LEVELS).rev().find_map(in_level)
}
