//! Compares the production table with the standard library's map.

use forerun_hash::{FrozenHashTable, HashTable, HashTableOptions};
use proptest::prelude::*;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// One operation on a table.
#[derive(Clone, Debug)]
enum Step {
    Insert(u64, u64),
    InsertBatch(Vec<(u64, u64)>),
    GetOrInsert(u64, u64),
    Add(u64, u64),
    Remove(u64),
    RemoveBatch(Vec<u64>),
    Shrink,
    Reserve(usize),
    Clear,
}

/// Keys that recur, and edge cases that a careless table would get wrong.
fn key() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0u64..200,
        2 => (0u64..200).prop_map(|n| n << 56),
        2 => (0u64..200).prop_map(|n| n << 32),
        1 => Just(u64::MAX),
        1 => Just(0),
        1 => any::<u64>(),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (key(), any::<u64>()).prop_map(|(key, value)| Step::Insert(key, value)),
        4 => prop::collection::vec((key(), any::<u64>()), 0..300).prop_map(Step::InsertBatch),
        2 => (key(), any::<u64>()).prop_map(|(key, value)| Step::GetOrInsert(key, value)),
        2 => (key(), any::<u64>()).prop_map(|(key, value)| Step::Add(key, value)),
        6 => key().prop_map(Step::Remove),
        2 => prop::collection::vec(key(), 0..100).prop_map(Step::RemoveBatch),
        1 => Just(Step::Shrink),
        1 => (0usize..5000).prop_map(Step::Reserve),
        1 => Just(Step::Clear),
    ]
}

fn apply(step: &Step, table: &HashTable, map: &mut HashMap<u64, u64>) {
    match *step {
        Step::Insert(key, value) => {
            assert_eq!(table.insert(key, value).unwrap(), map.insert(key, value));
        }
        Step::InsertBatch(ref entries) => {
            let (keys, values): (Vec<u64>, Vec<u64>) = entries.iter().copied().unzip();
            let before = map.len();
            map.extend(entries.iter().copied());
            assert_eq!(
                table.insert_batch(&keys, &values).unwrap(),
                map.len() - before
            );
        }
        Step::GetOrInsert(key, value) => {
            assert_eq!(
                table.get_or_insert(key, value).unwrap(),
                *map.entry(key).or_insert(value)
            );
        }
        Step::Add(key, value) => {
            let sum = table
                .upsert(key, |old| old.unwrap_or(0).wrapping_add(value))
                .unwrap();
            let entry = map.entry(key).or_insert(0);
            *entry = entry.wrapping_add(value);
            assert_eq!(sum, *entry);
        }
        Step::Remove(key) => assert_eq!(table.remove(key), map.remove(&key)),
        Step::RemoveBatch(ref keys) => {
            let removed = keys.iter().filter(|key| map.remove(key).is_some());
            assert_eq!(table.remove_batch(keys), removed.count());
        }
        Step::Shrink => table.shrink_to_fit().unwrap(),
        Step::Reserve(additional) => table.reserve(additional).unwrap(),
        Step::Clear => {
            table.clear();
            map.clear();
        }
    }
}

/// The reads of a table, frozen or not.
trait Reads {
    fn len(&self) -> usize;
    fn entries(&self) -> Vec<(u64, u64)>;
    fn get(&self, key: u64) -> Option<u64>;
    fn find(&self, keys: &[u64], values: &mut [u64], found: &mut [bool]) -> usize;
}

macro_rules! reads {
    ($table:ty) => {
        impl Reads for $table {
            fn len(&self) -> usize {
                <$table>::len(self)
            }

            fn entries(&self) -> Vec<(u64, u64)> {
                self.iter().collect()
            }

            fn get(&self, key: u64) -> Option<u64> {
                <$table>::get(self, key)
            }

            fn find(&self, keys: &[u64], values: &mut [u64], found: &mut [bool]) -> usize {
                <$table>::find(self, keys, values, found)
            }
        }
    };
}

reads!(HashTable);
reads!(FrozenHashTable);

/// Looks up present and absent keys, one by one and in batches of several lengths.
fn assert_same(table: &impl Reads, map: &HashMap<u64, u64>) {
    assert_eq!(table.len(), map.len());
    let mut entries: Vec<(u64, u64)> = table.entries();
    let mut expected: Vec<(u64, u64)> = map.iter().map(|(&key, &value)| (key, value)).collect();
    entries.sort_unstable();
    expected.sort_unstable();
    assert_eq!(entries, expected);

    let absent = (0..200u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let keys: Vec<u64> = map
        .keys()
        .copied()
        .chain(absent)
        .chain([0, u64::MAX])
        .collect();
    for &key in &keys {
        assert_eq!(table.get(key), map.get(&key).copied());
    }
    for batch in [1, 2, 31, 32, 33, 97, keys.len()] {
        for keys in keys.chunks(batch) {
            assert_batch(table, map, keys);
        }
    }
}

fn assert_batch(table: &impl Reads, map: &HashMap<u64, u64>, keys: &[u64]) {
    const UNTOUCHED: u64 = 0xdead;
    let mut values = vec![UNTOUCHED; keys.len()];
    let mut found = vec![true; keys.len()];
    let hits = table.find(keys, &mut values, &mut found);
    assert_eq!(
        hits,
        keys.iter().filter(|&key| map.contains_key(key)).count()
    );
    for ((key, value), found) in keys.iter().zip(values).zip(found) {
        assert_eq!(
            found.then_some(value),
            map.get(key).copied(),
            "key {key:#x}"
        );
        assert!(
            found || value == UNTOUCHED,
            "key {key:#x} is absent, its value was written"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn a_table_behaves_like_a_map(seed: u64, steps in prop::collection::vec(step(), 1..60)) {
        let table = HashTable::with_options(HashTableOptions::default().seed(seed)).unwrap();
        let mut map = HashMap::new();
        for step in &steps {
            apply(step, &table, &mut map);
        }
        assert_same(&table, &map);
        // The same frozen, and written again afterwards.
        let frozen = table.freeze();
        assert_same(&frozen, &map);
        let table = frozen.thaw();
        for step in steps.iter().take(5) {
            apply(step, &table, &mut map);
        }
        assert_same(&table.freeze(), &map);
    }
}

/// Sequences of keys, each of which defeats some weak hash function.
fn adversarial_keys(count: u64) -> Vec<(&'static str, Vec<u64>)> {
    vec![
        ("in a row", (0..count).collect()),
        (
            "from the top down",
            (0..count).map(|n| u64::MAX - n).collect(),
        ),
        (
            "equal in their low 40 bits",
            (0..count).map(|n| n << 40 | 7).collect(),
        ),
        (
            "equal in their low 32 bits",
            (0..count).map(|n| n << 32).collect(),
        ),
        (
            "pages",
            (0..count).map(|n| 0x7f00_0000_0000 + n * 4096).collect(),
        ),
        (
            "products of the golden ratio",
            (0..count)
                .map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15))
                .collect(),
        ),
    ]
}

#[test]
fn keys_of_any_pattern_fill_95_percent_of_a_table_before_it_grows() {
    for (pattern, keys) in adversarial_keys(60_000) {
        let table = HashTable::with_capacity(60_000).unwrap();
        let slots = table.slots();
        let count = keys.len().min(slots * 95 / 100);
        for &key in &keys[..count] {
            table.insert(key, !key).unwrap();
        }
        assert_eq!(
            table.slots(),
            slots,
            "{pattern}: grew at {}",
            table.load_factor()
        );
        let map: HashMap<u64, u64> = keys[..count].iter().map(|&key| (key, !key)).collect();
        assert_same(&table, &map);
    }
}

#[test]
fn a_table_of_several_segments_keeps_every_entry_while_it_grows_and_shrinks() {
    // A segment is split beyond 16 MiB, and a million entries fill that.
    let table = HashTable::new().unwrap();
    let count = 1_200_000u64;
    let keys: Vec<u64> = (0..count)
        .map(|n| n.wrapping_mul(0xd134_2543_de82_ef95))
        .collect();
    for chunk in keys.chunks(10_000) {
        assert_eq!(table.insert_batch(chunk, chunk).unwrap(), chunk.len());
    }
    assert_eq!(table.len(), keys.len());
    assert!(table.load_factor() > 0.6, "{}", table.load_factor());
    let (mut values, mut found) = (vec![0; keys.len()], vec![false; keys.len()]);
    assert_eq!(table.find(&keys, &mut values, &mut found), keys.len());
    assert_eq!(values, keys);

    let (kept, removed) = keys.split_at(1000);
    for &key in removed {
        assert_eq!(table.remove(key), Some(key));
    }
    table.shrink_to_fit().unwrap();
    assert!(table.memory_bytes() < 64 << 10, "{}", table.memory_bytes());
    assert_same(&table, &kept.iter().map(|&key| (key, key)).collect());
}

#[test]
fn a_frozen_table_of_several_segments_is_read_by_several_threads() {
    let table = HashTable::new().unwrap();
    let keys: Vec<u64> = (0..1_200_000u64)
        .map(|n| n.wrapping_mul(0xd134_2543_de82_ef95))
        .collect();
    table.insert_batch(&keys, &keys).unwrap();
    let slots = table.slots();
    let frozen = table.freeze();
    assert_eq!((frozen.slots(), frozen.len()), (slots, keys.len()));
    forerun_core::sync::thread::scope(|scope| {
        for chunk in keys.chunks(keys.len() / 2) {
            let frozen = &frozen;
            scope.spawn(move || {
                let (mut values, mut found) = (vec![0; chunk.len()], vec![false; chunk.len()]);
                assert_eq!(frozen.find(chunk, &mut values, &mut found), chunk.len());
                assert_eq!(values, chunk);
                assert!(chunk.iter().step_by(97).all(|&key| frozen.contains(key)));
            });
        }
    });
    assert!(frozen.memory_bytes() > slots * 16 && !frozen.is_empty());
}

#[test]
fn the_shortest_slice_decides_the_length_of_a_batch() {
    let table = HashTable::new().unwrap();
    table.insert_batch(&[1, 2, 3], &[10, 20, 30]).unwrap();
    let (mut values, mut found) = ([0; 2], [false; 3]);
    assert_eq!(table.find(&[1, 2, 3], &mut values, &mut found), 2);
    assert_eq!((values, found), ([10, 20], [true, true, false]));
    assert_eq!(table.find(&[], &mut values, &mut found), 0);
    assert_eq!(table.insert_batch(&[4, 5], &[40]).unwrap(), 1);
    assert_eq!(table.len(), 4);
}

/// A value that a reader may see: never 0, and its low half repeats the key.
fn value(key: u64, version: u64) -> u64 {
    key << 32 | version << 16 | (key & 0xffff)
}

fn assert_value(key: u64, value: u64) {
    assert_eq!(
        (value >> 32, value & 0xffff),
        (key, key & 0xffff),
        "key {key} has another's value"
    );
}

#[test]
fn readers_see_whole_entries_while_writers_and_resizes_change_the_table() {
    const STEADY: u64 = 2000;
    let churn_keys = if cfg!(debug_assertions) {
        6_000
    } else {
        40_000
    };
    let rounds = if cfg!(debug_assertions) { 3 } else { 10 };
    let table = HashTable::new().unwrap();
    for key in 0..STEADY {
        table.insert(key, value(key, 0)).unwrap();
    }
    let done = AtomicBool::new(false);
    let reads = AtomicU64::new(0);
    forerun_core::sync::thread::scope(|scope| {
        for reader in 0..2u64 {
            let (table, done, reads) = (&table, &done, &reads);
            scope.spawn(move || {
                let mut at = reader * 7;
                let (mut values, mut found) = ([0; 100], [false; 100]);
                // Relaxed: a stop flag and a count.
                while !done.load(Ordering::Relaxed) {
                    at += 1;
                    // Half of the keys stay; the other half come and go.
                    let keys: [u64; 100] = std::array::from_fn(|n| {
                        let key = at.wrapping_mul(31).wrapping_add(n as u64 * 17);
                        if n % 2 == 0 {
                            key % STEADY
                        } else {
                            STEADY + key % churn_keys
                        }
                    });
                    table.find(&keys, &mut values, &mut found);
                    for ((key, seen), found) in keys.into_iter().zip(values).zip(found) {
                        assert!(found || key >= STEADY, "steady key {key} was not found");
                        if found {
                            assert_value(key, seen);
                        }
                    }
                    if let Some(seen) = table.get(keys[1]) {
                        assert_value(keys[1], seen);
                    }
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let writers: Vec<_> = (0..2u64)
            .map(|writer| {
                let table = &table;
                scope.spawn(move || {
                    for round in 1..=rounds {
                        let mine =
                            || (STEADY..STEADY + churn_keys).filter(move |key| key % 2 == writer);
                        for key in mine() {
                            table.insert(key, value(key, round)).unwrap();
                            assert_eq!(
                                table.get(key),
                                Some(value(key, round)),
                                "own write of {key}"
                            );
                            table
                                .insert(key % STEADY, value(key % STEADY, round))
                                .unwrap();
                        }
                        if writer == 0 {
                            table.shrink_to_fit().unwrap();
                        }
                        for key in mine() {
                            assert_eq!(table.remove(key), Some(value(key, round)));
                        }
                        if writer == 1 {
                            let steady = table.iter().filter(|&(key, _)| key < STEADY).count();
                            assert_eq!(
                                steady as u64, STEADY,
                                "an iterator met each steady key once"
                            );
                        }
                    }
                })
            })
            .collect();
        for writer in writers {
            writer.join().unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(table.len() as u64, STEADY);
    assert!(reads.load(Ordering::Relaxed) > 0);
}

#[test]
fn concurrent_additions_lose_nothing() {
    let table = HashTable::new().unwrap();
    forerun_core::sync::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for n in 0..20_000u64 {
                    table
                        .upsert(n % 500, |count| count.unwrap_or(0) + 1)
                        .unwrap();
                }
            });
        }
    });
    assert_eq!(table.iter().map(|(_, count)| count).sum::<u64>(), 80_000);
    assert_eq!(table.len(), 500);
}
