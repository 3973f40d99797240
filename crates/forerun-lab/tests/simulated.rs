//! The store in a simulation: equal seeds give equal runs, in this process and in others.

use std::sync::Arc;
use std::time::Duration;

use forerun_core::sync::sim::{self, Config, End, Event, Outcome};
use forerun_core::sync::thread;
use forerun_db::io::fault::{EIO, Fault, FaultIo};
use forerun_db::{Db, Durability, KeyspaceOptions, Options, TreeOptions, WriteBatch};

/// Small sizes, so that there are many flushes and compactions.
fn options() -> Options {
    let tree = TreeOptions::default()
        .level0_runs(2)
        .level1_bytes(32 << 10)
        .run_bytes(16 << 10);
    let short = KeyspaceOptions::default()
        .ttl(Duration::from_secs(5))
        .tree(tree);
    Options::default()
        .memtable_bytes(64 << 10)
        .wal_segment_bytes(32 << 10)
        .cache_bytes(1 << 20)
        .tree(tree)
        .keyspaces(vec![("short".into(), short)])
}

/// One operation of a user. Calls may fail, because others drop keyspaces and disks fail.
fn act(db: &Db, io: &FaultIo, user: u8) -> forerun_db::Result<()> {
    let key = || [user, sim::random(16) as u8];
    let value = vec![user; 1 + sim::random(3000) as usize];
    match sim::random(18) {
        0 => db.delete(&key())?,
        1 => drop(db.get(&key())?),
        2 => {
            let mut entries = db.iter();
            while entries.next_entry()?.is_some() {}
        }
        3 => {
            let snapshot = db.snapshot();
            thread::yield_now();
            let mut entries = snapshot.range([user]..[user + 1]);
            while entries.next_entry_back()?.is_some() {}
        }
        4 => db.flush()?,
        5 => db.compact()?,
        6 => db.keyspace("other")?.put(&key(), &value)?,
        7 => db.keyspace("short")?.put(&key(), &value)?,
        8 => db.drop_keyspace("other")?,
        9 => db.delete_range(&[user, 3], &[user, 7])?,
        10 => {
            let other = db.keyspace("short")?;
            let mut batch = WriteBatch::new();
            batch.put(&key(), &value)?;
            batch.keyspace(&other).put(&key(), &value)?;
            db.write(&batch, Durability::Synced)?;
        }
        11 => {
            let mut ingestion = db.ingest();
            for place in 0..5 {
                ingestion.add(&[user, place], &value)?;
            }
            ingestion.commit()?;
        }
        12 => db.checkpoint(format!("/checkpoint-{}", sim::random(1 << 40)))?,
        13 => thread::sleep(Duration::from_secs(2)),
        14 => drop(db.verify()?),
        15 => io.fail_call(io.calls() + sim::random(50), Fault::Fail(EIO)),
        _ => {
            let durability = [Durability::Synced, Durability::Buffered][sim::random(2) as usize];
            db.put_with(&key(), &value, durability)?;
        }
    }
    Ok(())
}

/// Three threads use a store. It is closed, or its process dies or loses power, and it is reopened.
fn workload() {
    let mut io = FaultIo::new();
    for round in 0..3 {
        let Ok(db) = Db::open_with_io(Arc::new(io.clone()), "/db", options()) else {
            // The opening met a planned fault.
            continue;
        };
        thread::scope(|scope| {
            for user in 0..3 {
                let (db, io) = (&db, &io);
                scope.spawn(move || (0..15).for_each(|_| drop(act(db, io, user))));
            }
        });
        match round {
            0 => io = io.crash(sim::random(1000)),
            1 => io = io.kill(),
            _ => {}
        }
        drop(db.close());
    }
}

fn outcome(seed: u64) -> Outcome {
    let mut config = Config::new(seed);
    config.events_max = 1 << 20;
    let outcome = sim::run(config, workload);
    assert_eq!(outcome.end, End::Finished, "seed {seed}: {}", outcome.end);
    assert!(
        outcome.panics.is_empty(),
        "seed {seed}: {:?}",
        outcome.panics
    );
    outcome
}

#[test]
fn equal_seeds_give_equal_runs() {
    let seeds = std::env::var("FORERUN_SIMULATED_SEEDS").map_or(20, |seeds| seeds.parse().unwrap());
    for seed in 0..seeds {
        let (first, second) = (outcome(seed), outcome(seed));
        if first.trace != second.trace {
            let same = first.events.iter().zip(&second.events);
            let same = same.take_while(|(first, second)| first == second).count();
            let around = |events: &[Event]| {
                let shown = &events[same.saturating_sub(20)..events.len().min(same + 5)];
                shown
                    .iter()
                    .map(|event| format!("{event}\n"))
                    .collect::<String>()
            };
            panic!(
                "seed {seed} differs\n{}\n{}",
                around(&first.events),
                around(&second.events)
            );
        }
        assert_eq!(first.elapsed, second.elapsed);
    }
}

#[test]
fn other_processes_do_the_same() {
    let trace = || {
        let test = std::env::current_exe().unwrap();
        let mut command = std::process::Command::new(test);
        command.args(["--ignored", "--exact", "prints_a_trace", "--nocapture"]);
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = text.lines().find(|line| line.contains("trace of seed"));
        line.unwrap_or_else(|| panic!("{text}")).to_owned()
    };
    assert_eq!(trace(), trace());
    assert!(trace().contains(&format!("trace of seed 3: {}", outcome(3).trace)));
}

#[test]
#[ignore = "is run by another test in a process of its own"]
fn prints_a_trace() {
    println!("\ntrace of seed 3: {}", outcome(3).trace);
}
