//! The store in a simulation: equal seeds give equal runs, in this process and in others.
#![cfg(feature = "sim")]

use std::sync::Arc;

use forerun_core::sync::sim::{self, Config, End, Event, Outcome};
use forerun_core::sync::thread;
use forerun_db::io::fault::FaultIo;
use forerun_db::{Db, Durability, Options};

/// Three threads write, read, iterate, flush and compact two keyspaces; the store is closed and opened again.
fn workload() {
    let io = FaultIo::new();
    io.set_unix_time_s(Some(1_700_000_000));
    for round in 0..2 {
        // Small, so that flushes and compactions are many.
        let options = Options {
            memtable_bytes: 64 << 10,
            ..Options::default()
        };
        let db = Db::open_with_io(Arc::new(io.clone()), "/db", options).unwrap();
        let other = db.keyspace("other").unwrap();
        thread::scope(|scope| {
            for user in 0..3_u8 {
                let (db, other) = (&db, &other);
                scope.spawn(move || {
                    for _ in 0..12 {
                        let key = [user, sim::random(16) as u8];
                        let durability = match sim::random(2) {
                            0 => Durability::Synced,
                            _ => Durability::Buffered,
                        };
                        match sim::random(8) {
                            0 => db.delete(&key).unwrap(),
                            1 => drop(db.get(&key).unwrap()),
                            2 => assert!(db.iter().count() <= 48),
                            3 => db.flush().unwrap(),
                            4 => db.compact().unwrap(),
                            5 => other.put(&key, &[round; 3000]).unwrap(),
                            _ => db.put_with(&key, &[round; 500], durability).unwrap(),
                        }
                    }
                });
            }
        });
        drop(other);
        db.close().unwrap();
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
    for seed in 0..20 {
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
