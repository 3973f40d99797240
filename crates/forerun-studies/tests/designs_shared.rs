//! Tables that are read while they are written: every answer was true at some moment of the lookup.

use forerun_core::arch;
use forerun_studies::designs::{Design, Lookup, SharedTable, build};
use std::sync::atomic::{AtomicBool, Ordering};

/// Half of the keys are always present; the other half is inserted and removed repeatedly.
const KEYS: u64 = 1500;
const SLOTS: usize = 4096;

/// A value contains its key and its round.
fn value(key: u64, round: u64) -> u64 {
    key << 32 | round
}

/// Updates the permanent keys, and inserts and removes the others.
fn write(table: &dyn SharedTable<u64, u64>, rounds: u64) {
    for round in 1..rounds {
        for key in 0..KEYS {
            assert!(
                table
                    .insert_shared(key, value(key, round))
                    .unwrap()
                    .is_some()
            );
            let other = key + KEYS;
            if round % 2 == 1 {
                assert_eq!(table.insert_shared(other, value(other, round)), Ok(None));
            } else {
                assert_eq!(table.remove_shared(other), Some(value(other, round - 1)));
            }
        }
    }
}

/// Reads batches until `stop` is set. The rounds of a key must never decrease. Returns the number
/// of batches.
fn read(table: &dyn SharedTable<u64, u64>, stop: &AtomicBool, lookups: &[Lookup]) -> usize {
    let keys: Vec<u64> = (0..2 * KEYS).map(|n| n * 7 % (2 * KEYS)).collect();
    let mut rounds_seen = vec![0; keys.len()];
    let (mut values, mut found) = (vec![0; keys.len()], vec![false; keys.len()]);
    let mut batches = 0;
    // Relaxed suffices: the flag publishes no data.
    while !stop.load(Ordering::Relaxed) || batches < lookups.len() {
        let lookup = lookups[batches % lookups.len()];
        table.find(&keys, &mut values, &mut found, lookup);
        for (i, &key) in keys.iter().enumerate() {
            assert!(
                found[i] || key >= KEYS,
                "{lookup}: key {key} was there all the time"
            );
            if found[i] {
                assert_eq!(values[i] >> 32, key, "{lookup}: another key's value");
                let round = values[i] & 0xffff_ffff;
                assert!(
                    round >= rounds_seen[i],
                    "{lookup}: key {key} went back in time"
                );
                rounds_seen[i] = round;
            }
        }
        batches += 1;
    }
    batches
}

#[test]
fn readers_beside_a_writer_see_every_key_that_stays_and_no_torn_value() {
    let mut tried = 0;
    for &design in Design::ALL {
        let mut table = build::<u64, u64>(design, SLOTS, arch::isa(), 3).unwrap();
        for key in 0..KEYS {
            if table.as_shared().is_some() {
                table.insert(key, value(key, 0)).unwrap();
            }
        }
        let Some(table) = table.as_shared() else {
            continue;
        };
        tried += 1;
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| read(table, &stop, design.lookups()));
            write(table, 21);
            stop.store(true, Ordering::Relaxed);
            assert!(reader.join().unwrap() >= design.lookups().len());
        });
        assert_eq!(table.len() as u64, KEYS);
    }
    assert!(tried > 0);
}
