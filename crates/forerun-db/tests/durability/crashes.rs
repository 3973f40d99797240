//! The power is lost, or the process dies, at every call to the file system while the store is
//! created, written, flushed, compacted, closed, opened and recovered. Everything that was
//! acknowledged as synced survives completely.

use crate::testing;

use std::sync::Arc;

use forerun_db::io::fault::{Fault, FaultIo};
use forerun_db::{Db, Durability, Options};
use testing::{
    Outcome, Script, all_cases, batch, is_there, open, seeds, small_options, tiny_options,
    with_and_without_index,
};

/// Runs the script until the power is lost at this call; `None` if the script has fewer calls.
fn run_until(call: u64, options: &Options) -> Option<(FaultIo, Script, String)> {
    let io = FaultIo::new();
    io.fail_call(call, Fault::PowerLoss);
    let mut script = Script::new();
    drop(script.run(&io, options));
    let hit = io.hit()?;
    Some((io, script, format!("power lost at call {call} ({hit})")))
}

/// A store that keeps everything in its log, with and without indexes of its memtables, and one
/// that flushes and compacts all the time, each with the least number of calls that the script
/// makes.
fn stores() -> [(Options, u64); 3] {
    let [with, without] = with_and_without_index(&small_options());
    [(with, 70), (without, 70), (tiny_options(), 150)]
}

#[test]
fn a_process_that_dies_at_any_call_loses_nothing_acknowledged() {
    for (options, least_calls) in stores() {
        let mut calls = 0;
        while let Some((io, script, case)) = run_until(calls, &options) {
            let db = open(&io.kill(), &options)
                .unwrap_or_else(|error| panic!("{case}, killed: {error}"));
            script.check(&db, Outcome::Buffered, &case);
            calls += 1;
        }
        assert!(calls > least_calls, "the sweep made {calls} calls");
    }
}

#[test]
fn a_power_loss_at_any_call_loses_nothing_synced() {
    for (options, _) in stores() {
        lose_power_at_every_call(&options);
    }
}

fn lose_power_at_every_call(options: &Options) {
    let (mut tails, mut losses, mut call) = (0, 0, 0);
    while let Some((io, script, case)) = run_until(call, options) {
        for seed in seeds(call, 12) {
            let case = format!("{case}, seed {seed}");
            let after = io.crash(seed);
            let db = open(&after, options).unwrap_or_else(|error| panic!("{case}: {error}"));
            script.check(&db, Outcome::Synced, &case);
            tails += usize::from(db.recovery().dropped_tail.is_some());
            losses += usize::from(
                (0..script.outcomes.len())
                    .any(|i| script.outcomes[i] == Outcome::Buffered && !is_there(&db, i, &case)),
            );

            // The store still works, and after a clean close it holds the same.
            let there: Vec<bool> = (0..script.outcomes.len())
                .map(|i| is_there(&db, i, &case))
                .collect();
            db.put_with(b"more", b"value", Durability::Synced).unwrap();
            db.close().unwrap();
            let db =
                open(&after, options).unwrap_or_else(|error| panic!("{case}, reopened: {error}"));
            assert!(
                db.recovery().clean_close && db.recovery().dropped_tail.is_none(),
                "{case}: {}",
                db.recovery()
            );
            assert!(
                there
                    .iter()
                    .enumerate()
                    .all(|(i, there)| is_there(&db, i, &case) == *there),
                "{case}"
            );
            assert_eq!(
                db.get(b"more").unwrap().as_deref(),
                Some(&b"value"[..]),
                "{case}"
            );
        }
        call += 1;
    }
    let least = if all_cases() { 20 } else { 6 };
    assert!(
        tails > least,
        "only {tails} crashes left a torn tail: the sweep reaches too few"
    );
    assert!(
        losses > least,
        "only {losses} crashes lost a buffered write: the model keeps too much"
    );
}

#[test]
fn a_power_loss_during_recovery_loses_nothing_either() {
    // The last store makes more calls, and so does each of its recoveries: every seventeenth
    // state is enough to reach all of them.
    let steps = if all_cases() {
        [3, 3, 17]
    } else {
        [10, 10, 53]
    };
    for ((options, _), step) in stores().iter().zip(steps) {
        lose_power_during_recovery(options, step);
    }
}

fn lose_power_during_recovery(options: &Options, step: u64) {
    let mut call = 0;
    let mut nested_crashes = 0;
    while let Some((io, script, case)) = run_until(call, options) {
        // A few of the first crash states, and every call of the recovery and of the write after
        // it.
        for seed in [1, 5 + call] {
            let crashed = io.crash(seed);
            // Batches that the first crash took may be missing in the middle, once more are
            // written.
            let mut script = script.clone();
            let db =
                open(&crashed.kill(), options).unwrap_or_else(|error| panic!("{case}: {error}"));
            for (i, outcome) in script.outcomes.iter_mut().enumerate() {
                if *outcome == Outcome::Buffered && !is_there(&db, i, &case) {
                    *outcome = Outcome::Failed;
                }
            }
            drop(db);
            for inner_call in 0.. {
                let again = crashed.kill();
                again.fail_call(inner_call, Fault::PowerLoss);
                let mut inner = script.clone();
                if let Ok(db) = open(&again, options) {
                    let i = inner.outcomes.len();
                    inner
                        .outcomes
                        .push(match db.write(&batch(i), Durability::Synced) {
                            Ok(_) => Outcome::Synced,
                            Err(_) => Outcome::Failed,
                        });
                }
                let Some(hit) = again.hit() else { break };
                let case = format!(
                    "{case}, seed {seed}, power lost at call {inner_call} of recovery ({hit})"
                );
                for inner_seed in [0, 1, 7 + inner_call] {
                    let case = format!("{case}, seed {inner_seed}");
                    let db = open(&again.crash(inner_seed), options)
                        .unwrap_or_else(|error| panic!("{case}: {error}"));
                    inner.check(&db, Outcome::Synced, &case);
                }
                let db = open(&again.kill(), options)
                    .unwrap_or_else(|error| panic!("{case}, killed: {error}"));
                inner.check(&db, Outcome::Synced, &case);
                nested_crashes += 1;
            }
        }
        call += step;
    }
    let least = if all_cases() { 500 } else { 150 };
    assert!(
        nested_crashes > least,
        "only {nested_crashes} crashes during recovery"
    );
}

#[test]
fn a_power_loss_soon_after_a_process_died_loses_nothing_synced() {
    // Bytes that the process left with the operating system are not on disk yet when the next
    // process writes after them.
    for (options, _) in stores() {
        lose_power_soon_after_a_kill(&options);
    }
}

fn lose_power_soon_after_a_kill(options: &Options) {
    let mut call = 0;
    while let Some((io, mut script, case)) = run_until(call, options) {
        let io = io.kill();
        let db = open(&io, options).unwrap_or_else(|error| panic!("{case}, killed: {error}"));
        script.check(&db, Outcome::Buffered, &case);
        let last_durability = if call % 2 == 0 {
            Durability::Synced
        } else {
            Durability::Buffered
        };
        script.append(&db, Durability::Buffered);
        script.append(&db, last_durability);
        for seed in seeds(call, 12) {
            let case = format!("{case}, killed, written, power lost with seed {seed}");
            let db =
                open(&io.crash(seed), options).unwrap_or_else(|error| panic!("{case}: {error}"));
            script.check(&db, Outcome::Synced, &case);
        }
        call += 1;
    }
}

#[test]
fn recovery_depends_on_no_unsynced_data_of_a_dead_process() {
    // Each entry begins a segment, and the recovery flushes them into runs because it has less
    // memory.
    let (before, after) = (small_options(), tiny_options());
    let value = |n: u32| vec![n as u8; 600];
    let put = |db: &Db, n: u32| db.put_with(&n.to_be_bytes(), &value(n), Durability::Synced);
    let mut power_losses = 0;
    for call in 0.. {
        let io = FaultIo::new();
        io.fail_call(call, Fault::PowerLoss);
        let mut synced = 0_u32;
        if let Ok(db) = open(&io, &before) {
            while synced < 6 && put(&db, synced).is_ok() {
                synced += 1;
            }
        }
        let Some(death) = io.hit() else { break };
        let killed = io.kill();
        for inner_call in 0.. {
            let again = killed.kill();
            again.fail_call(inner_call, Fault::PowerLoss);
            drop(open(&again, &after));
            let Some(loss) = again.hit() else { break };
            for seed in seeds(call + inner_call, 12) {
                let case = format!("died at {death}, power lost at {loss}, seed {seed}");
                let db = open(&again.crash(seed), &after)
                    .unwrap_or_else(|error| panic!("{case}: {error}"));
                for n in 0..synced {
                    let found = db.get(&n.to_be_bytes()).unwrap();
                    assert_eq!(found, Some(value(n)), "{case}: entry {n}");
                }
                power_losses += 1;
            }
        }
    }
    let least = if all_cases() { 2_000 } else { 600 };
    assert!(power_losses > least, "only {power_losses} power losses");
}

#[test]
fn a_store_in_new_directories_is_there_after_a_power_loss() {
    let io = FaultIo::new();
    let open = |io: &FaultIo| {
        Db::open_with_io(
            Arc::new(io.clone()),
            "/new/directories/store",
            small_options(),
        )
    };
    open(&io)
        .unwrap()
        .put_with(b"key", b"value", Durability::Synced)
        .unwrap();
    for seed in 0..8 {
        let db = open(&io.crash(seed)).unwrap();
        assert_eq!(
            db.get(b"key").unwrap().as_deref(),
            Some(&b"value"[..]),
            "seed {seed}"
        );
    }
}
