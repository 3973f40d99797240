//! Batches of every kind go into memtables as into a map: scattered keys, rows of ascending keys
//! behind and between others, keys that repeat; alone and from several threads.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forerun_core::Pages;
use forerun_db::Op;
use forerun_db::memtable::{
    Bytewise, Comparator, Lookup, MemTable, MemTableConfig, MemoryChecks, ReverseBytewise, Strategy,
};
use proptest::prelude::*;
use proptest::strategy::Strategy as Generate;

/// A snapshot that sees everything.
const ALL: u64 = u64::MAX >> 8;

fn tables() -> [MemTable; 5] {
    let table = |hash_index, comparator: Arc<dyn Comparator>, checks| {
        let config = MemTableConfig::default()
            .limit_bytes(64 << 20)
            .comparator(comparator)
            .checks(checks)
            .hash_index(hash_index)
            .pages(Pages::Small);
        MemTable::new(config).unwrap()
    };
    [
        table(false, Arc::new(Bytewise), MemoryChecks::Off),
        table(true, Arc::new(Bytewise), MemoryChecks::Off),
        table(false, Arc::new(Bytewise), MemoryChecks::Paranoid),
        table(true, Arc::new(ReverseBytewise), MemoryChecks::Off),
        table(false, Arc::new(ReverseBytewise), MemoryChecks::Off),
    ]
}

/// Writes keys, each with its sequence number as its value.
fn publish(table: &MemTable, keys: &[u64], first_sequence: u64) {
    let entries: Vec<_> = (first_sequence..)
        .zip(keys)
        .map(|(sequence, key)| (key.to_be_bytes(), sequence.to_be_bytes()))
        .collect();
    let ops = entries.iter().map(|(key, value)| Op::Put { key, value });
    table.prepare(ops).unwrap().publish(first_sequence);
}

/// The sequence numbers of each key's versions, ascending.
type Versions = BTreeMap<u64, Vec<u64>>;

/// Checks what a snapshot sees: every key by each strategy, and the order of all.
fn check(table: &MemTable, written: &Versions, snapshot: u64) {
    let visible = |versions: &Vec<u64>| {
        let seen = versions
            .iter()
            .rev()
            .find(|sequence| **sequence <= snapshot);
        seen.copied()
    };
    let keys: Vec<_> = written.keys().map(|key| key.to_be_bytes()).collect();
    let expected: Vec<_> = written.values().map(visible).collect();
    for strategy in [Strategy::Single, Strategy::Interleaved, Strategy::Auto] {
        table.multi_get(&keys, snapshot, strategy, |position, lookup| {
            let value = expected[position].map(u64::to_be_bytes);
            let expected = value
                .as_ref()
                .map_or(Lookup::Missing, |value| Lookup::Value(value));
            assert_eq!(
                lookup.unwrap(),
                expected,
                "{strategy}, {:?}",
                keys[position]
            );
        });
    }
    let mut cursor = table.cursor(snapshot);
    let mut found = Vec::new();
    while let Some(entry) = cursor.next().unwrap() {
        found.push((entry.key.to_vec(), entry.value.to_vec()));
    }
    let pairs = keys.iter().zip(&expected);
    let mut sorted: Vec<_> = pairs
        .filter_map(|(key, sequence)| Some((key.to_vec(), (*sequence)?.to_be_bytes().to_vec())))
        .collect();
    if found.first() > found.last() {
        sorted.reverse();
    }
    assert_eq!(found, sorted);
}

/// A batch of keys: a row from some key on, or scattered ones. Small numbers meet earlier ones.
fn batch() -> impl Generate<Value = Vec<u64>> {
    prop_oneof![
        (0_u64..3000, 1_u64..5, 1_u64..200)
            .prop_map(|(from, step, len)| (0..len).map(|nth| from + nth * step).collect()),
        prop::collection::vec(0_u64..3000, 1..60),
        prop::collection::vec(any::<u64>(), 1..60),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn batches_of_every_kind_equal_those_of_a_map(
        batches in prop::collection::vec(batch(), 1..60),
        is_appended in any::<bool>(),
        share in 0.0..1.1_f64,
    ) {
        for table in tables() {
            let (mut written, mut sequence) = (Versions::new(), 1);
            for batch in &batches {
                let last = written.last_key_value().map_or(0, |(last, _)| *last);
                let behind = if is_appended { last } else { 0 };
                let keys: Vec<_> = batch.iter().map(|key| behind.saturating_add(*key)).collect();
                publish(&table, &keys, sequence);
                for key in keys {
                    written.entry(key).or_default().push(sequence);
                    sequence += 1;
                }
            }
            check(&table, &written, ALL);
            check(&table, &written, (sequence as f64 * share) as u64);
            prop_assert_eq!(table.stats().entries as u64, sequence - 1);
        }
    }
}

#[test]
fn threads_insert_rows_of_ascending_keys_into_one_gap() {
    const THREADS: u64 = 4;
    const BATCHES: u64 = 60;
    const LEN: u64 = 50;
    for table in tables() {
        // Before and behind all that follows.
        publish(&table, &[0, u64::MAX], 1);
        let next_sequence = AtomicU64::new(3);
        let insert = |thread: u64| {
            let mut written = Versions::new();
            for batch in 0..BATCHES {
                // Some batches lie between the keys of the batches that other threads insert now,
                // and some beside them.
                let place = |nth| match batch % 2 {
                    0 => nth * THREADS + thread,
                    _ => (nth / LEN * THREADS + thread) * LEN + nth % LEN,
                };
                let nth = batch * LEN..(batch + 1) * LEN;
                let keys: Vec<_> = nth.map(|nth| 1 + place(nth)).collect();
                let first = next_sequence.fetch_add(LEN, Ordering::Relaxed);
                publish(&table, &keys, first);
                for (key, sequence) in keys.into_iter().zip(first..) {
                    written.entry(key).or_default().push(sequence);
                    let found = table.get(&key.to_be_bytes(), ALL).unwrap();
                    assert!(matches!(found, Lookup::Value(_)), "its own write");
                }
            }
            written
        };
        let mut written = Versions::from([(0, vec![1]), (u64::MAX, vec![2])]);
        std::thread::scope(|scope| {
            let insert = &insert;
            let threads: Vec<_> = (0..THREADS)
                .map(|thread| scope.spawn(move || insert(thread)))
                .collect();
            for thread in threads {
                written.extend(thread.join().unwrap());
            }
        });
        assert_eq!(written.len() as u64, THREADS * BATCHES * LEN + 2);
        check(&table, &written, ALL);
    }
}

#[test]
fn versions_of_one_key_in_a_batch_are_distinguished_by_their_numbers() {
    for table in tables() {
        publish(&table, &[5, 5, 6, 7, 7, 7], 1);
        publish(&table, &[5, 6, 7, 8], 7);
        let written = Versions::from([
            (5, vec![1, 2, 7]),
            (6, vec![3, 8]),
            (7, vec![4, 5, 6, 9]),
            (8, vec![10]),
        ]);
        for snapshot in 1..=10 {
            check(&table, &written, snapshot);
        }
    }
}
