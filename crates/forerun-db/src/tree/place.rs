//! Chooses the levels of ingested runs: each goes as deep as its keys allow.
//!
//! ```text
//!   level 0   │ a───────────────────────────z │      encloses the new run, and has no key in it
//!   level 5   │ b────e │          │ p────s │         on both sides of it
//!   level 6   │ a───d │ f─────────────────t │        encloses it too
//!                        [ g … k ]                   goes to level 5: runs of a level are disjoint
//! ```
//!
//! A run of a few keys may enclose everything that is ingested, so its bounds are not enough: it is
//! asked whether it has a key between those of the new run.

use std::sync::Arc;

use crate::Result;
use crate::run::Run;
use crate::run::cursor::RunCursor;
use crate::tree::key_bounds::{KeyRange, largest, smallest};
use crate::tree::levels::{Ingested, Levels};
use crate::tree::pick::Running;
use crate::versions::{SEQUENCE_MAX, VersionCursor};

/// Looks for keys in the runs that enclose a new one. That is at most one seek for each run of
/// level 0 and one for each deeper level.
pub(crate) fn look_around(run: Arc<Run>, levels: &Levels) -> Ingested {
    let (from, to) = (smallest(&run), largest(&run));
    let overlapping = levels
        .all()
        .flat_map(|level| level.overlapping(levels.order(), from, to));
    // The first one with a key keeps it above. One that cannot be read is taken for such a run.
    let around = overlapping.take_while(|other| is_around(other, &run).unwrap_or(false));
    let around = around.map(|other| other.number()).collect();
    Ingested { run, around }
}

/// The deepest level for a new run: no level above has a key between its first and its last, and
/// the level itself is free there. Level 0 takes every run. The output of `running` is not in
/// `levels` yet.
pub(crate) fn place(ingested: &Ingested, levels: &Levels, running: &Running<'_>) -> usize {
    let (from, to) = (smallest(&ingested.run), largest(&ingested.run));
    let mut deepest = 0;
    for (number, level) in levels.all().enumerate() {
        let mut overlapping = level.overlapping(levels.order(), from, to).peekable();
        let is_free = overlapping.peek().is_none();
        if !overlapping.all(|other| ingested.around.contains(&other.number())) {
            break;
        }
        if is_free && !running.writes(levels.order(), number, KeyRange { from, to }) {
            deepest = number;
        }
    }
    deepest
}

/// Whether one run begins before another and ends behind it, without a key in between.
fn is_around(outer: &Run, inner: &Run) -> Result<bool> {
    let order = inner.order();
    let (from, to) = (smallest(inner), largest(inner));
    let encloses =
        order.compare(smallest(outer), from).is_lt() && order.compare(largest(outer), to).is_gt();
    if !encloses {
        return Ok(false);
    }
    let mut cursor = RunCursor::new(outer);
    cursor.seek(from, SEQUENCE_MAX)?;
    let next = cursor.at();
    Ok(next.is_some_and(|version| order.compare(version.key, to).is_gt()))
}

#[cfg(test)]
mod tests {
    use forerun_core::sync::time;

    use super::*;
    use crate::TreeOptions;
    use crate::comparator::KeyOrder;
    use crate::io::fault::FaultIo;
    use crate::testing::runs::run_of;
    use crate::testing::version_list::held;
    use crate::tree::pick::{RunningCompactions, pick};

    #[test]
    fn an_ingested_run_does_not_overlap_what_a_running_compaction_writes() {
        let (io, order) = (FaultIo::new(), KeyOrder::Bytewise);
        let run = |number: u64, keys: &[&str]| {
            let versions = keys
                .iter()
                .map(|key| held(key.as_bytes(), number, Some(b"v")));
            run_of(&io, &order, number, versions.collect())
        };
        let placed = [
            (0, run(4, &["d", "q"])),
            (5, run(3, &["a", "e"])),
            (5, run(2, &["p", "s"])),
            (6, run(1, &["y", "z"])),
        ];
        let levels = Arc::new(Levels::with_runs(order.clone(), placed));
        let ingested = look_around(run(5, &["g", "k"]), &levels);
        let none = Running::default();
        assert_eq!(place(&ingested, &levels, &none), 6);
        let due = TreeOptions::default().level0_runs(1);
        let compaction = pick(&levels, &due, 5, &none).unwrap();
        assert_eq!((compaction.from, compaction.into), (0, 5));
        let mut running = RunningCompactions::default();
        running.begin(0, &compaction, true, 1, time::now());
        let running = running.in_keyspace(0);
        assert_eq!(
            place(&ingested, &levels, &running),
            6,
            "below what it writes"
        );
        let with_level6 = levels.runs().map(|(level, run)| (level, Arc::clone(run)));
        let with_level6 = with_level6.chain([(6, run(1, &["h"]))]);
        let levels = Levels::with_runs(order.clone(), with_level6);
        let ingested = look_around(run(5, &["g", "k"]), &levels);
        assert_eq!(place(&ingested, &levels, &none), 5);
        assert_eq!(place(&ingested, &levels, &running), 4);
    }
}
