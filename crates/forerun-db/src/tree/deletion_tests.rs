//! Compactions that deletions make due.

use std::sync::Arc;
use std::time::Duration;

use forerun_core::sync::time;

use crate::TreeOptions;
use crate::comparator::KeyOrder;
use crate::io::fault::FaultIo;
use crate::run::Run;
use crate::testing::runs::run_of;
use crate::testing::tree_fixture::{Fixture, KEYS, grown};
use crate::testing::version_list::held;
use crate::tree::levels::Levels;
use crate::tree::manifest::LEVELS;
use crate::tree::pick::{Compaction, DueAt, RunningCompactions, pick_for_deletions};

/// Compacts until nothing is due.
fn compact_all_due(fixture: &mut Fixture) {
    for _ in 0..100 {
        if !fixture.compact().unwrap() {
            return;
        }
        fixture.check();
    }
    panic!("something is due again and again");
}

#[test]
fn old_deletions_go_down_until_they_are_gone_and_wait_for_an_older_reader() {
    let mut fixture = grown(false);
    compact_all_due(&mut fixture);
    let snapshot = fixture.sequence;
    fixture.snapshots.push(snapshot);
    (0..KEYS).for_each(|key| fixture.write(key, (key % 3 > 0).then_some(200)));
    fixture.flush().unwrap();
    fixture.options.deletion_max_age = Some(Duration::ZERO);
    compact_all_due(&mut fixture);
    let with_deletions = |fixture: &Fixture| -> Vec<(usize, u64)> {
        let runs = fixture.levels().runs();
        let runs = runs.filter(|(_, run)| run.meta().deletions > 0);
        runs.map(|(level, run)| (level, run.meta().largest_sequence))
            .collect()
    };
    let left = with_deletions(&fixture);
    assert!(!left.is_empty());
    let may_wait = |(level, largest): &(usize, u64)| *level == LEVELS - 1 || *largest > snapshot;
    assert!(left.iter().all(may_wait), "{left:?}");
    fixture.snapshots.clear();
    compact_all_due(&mut fixture);
    assert_eq!(with_deletions(&fixture), []);
}

/// A run of every `step`th of the keys up to `keys`, all of them deletions or none.
fn run(io: &FaultIo, number: u64, keys: u32, step: usize, is_deleted: bool) -> Arc<Run> {
    let value = (!is_deleted).then_some(&b"value"[..]);
    let keys = (0..keys).step_by(step);
    let versions = keys.map(|key| held(&key.to_be_bytes(), number, value));
    run_of(io, &KeyOrder::Bytewise, number, versions.collect())
}

#[test]
fn deletions_are_due_if_their_compaction_reads_few_entries_for_each() {
    let io = FaultIo::new();
    let dense_from = |placed: Vec<(usize, Arc<Run>)>| {
        let levels = Levels::with_runs(KeyOrder::Bytewise, placed);
        levels.deletions().dense_from()
    };
    let below = run(&io, 1, 30_000, 1, false);
    let many = run(&io, 2, 30_000, 10, true);
    let few = run(&io, 3, 30_000, 20, true);
    let many_of_level0 = run(&io, 2, 30_000, 2, true);
    let few_of_level0 = run(&io, 3, 30_000, 4, true);
    let of_level = |level: usize, run: &Arc<Run>| (level, Arc::clone(run));
    // As many levels deeper as there are between them.
    for (level, deeper) in [(0, 6), (0, 5), (3, 4), (4, 6)] {
        // They gather in level 0 first.
        let (many, few) = match level {
            0 => (&many_of_level0, &few_of_level0),
            _ => (&many, &few),
        };
        let dense = vec![of_level(level, many), of_level(deeper, &below)];
        assert_eq!(dense_from(dense), Some(2), "level {level}");
        let sparse = vec![of_level(level, few), of_level(deeper, &below)];
        assert_eq!(dense_from(sparse), None, "level {level}");
    }
    // Two runs of level 0 are merged at once.
    let two = vec![
        of_level(0, &few_of_level0),
        of_level(0, &run(&io, 4, 30_000, 4, true)),
        of_level(6, &below),
    ];
    assert_eq!(dense_from(two), Some(3));
    let alone = vec![of_level(5, &many)];
    assert_eq!(dense_from(alone), Some(2), "it hides nothing");
    let in_last = vec![of_level(6, &many)];
    assert_eq!(dense_from(in_last), None);
    let values = vec![
        of_level(0, &run(&io, 5, 3_000, 1, false)),
        of_level(6, &below),
    ];
    assert_eq!(dense_from(values), None);
}

#[test]
fn one_old_run_of_a_keyspace_is_compacted_at_a_time() {
    let io = FaultIo::new();
    let deletions = |number: u64| {
        let key = held(&number.to_be_bytes(), number, None);
        run_of(&io, &KeyOrder::Bytewise, number, vec![key])
    };
    let placed: Vec<_> = (1..4).map(|number| (3, deletions(number))).collect();
    let levels = Levels::with_runs(KeyOrder::Bytewise, placed);
    let options = TreeOptions::default().deletion_max_age(Duration::ZERO);
    let at = DueAt {
        oldest_reader: 10,
        unix_s: u64::MAX,
    };
    let mut running = RunningCompactions::default();
    let next = |running: &RunningCompactions| -> Option<Compaction> {
        pick_for_deletions(&levels, &options, at, &running.in_keyspace(0))
    };
    let first = next(&running).unwrap();
    let id = running.begin(0, &first, true, 1, time::now());
    assert!(next(&running).is_none());
    running.end(id);
    assert!(next(&running).is_some());
}
