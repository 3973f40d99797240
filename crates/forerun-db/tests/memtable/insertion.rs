//! Batches of every kind go into memtables as into a map: scattered keys, rows of ascending keys
//! behind and between others, keys that repeat; alone and from several threads.

use crate::testing;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forerun_core::Pages;
use forerun_db::Op;
use forerun_db::memtable::{
    Bytewise, Comparator, Lookup, MemTable, MemTableConfig, MemoryChecks, ReverseBytewise,
};
use proptest::prelude::*;
use proptest::strategy::Strategy as Generate;
use testing::random::Random;
use testing::search::Search;

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

/// Checks what a snapshot sees: every key by each search, and the order of all.
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
    for search in Search::all() {
        search.multi_get(table, &keys, snapshot, |position, lookup| {
            let value = expected[position].map(u64::to_be_bytes);
            let expected = value
                .as_ref()
                .map_or(Lookup::Missing, |value| Lookup::Value(value));
            assert_eq!(lookup.unwrap(), expected, "{search}, {:?}", keys[position]);
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
        // Each key once, or several in a row.
        (0_u64..3000, 1_u64..10, 1_u64..200)
            .prop_map(|(from, step, len)| (0..len).map(|nth| from + nth * step / 2).collect()),
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

#[test]
fn a_row_in_which_a_key_repeats_keeps_the_order_of_its_versions() {
    // The only repetition may be anywhere in the row.
    for repeated in 0..40 {
        for table in tables() {
            let keys: Vec<_> = (0..=repeated).chain(repeated..40).collect();
            publish(&table, &keys, 1);
            let numbered = keys.iter().zip(1..);
            let mut written = Versions::new();
            for (key, sequence) in numbered {
                written.entry(*key).or_default().push(sequence);
            }
            for snapshot in [repeated, repeated + 1, repeated + 2, ALL] {
                check(&table, &written, snapshot);
            }
        }
    }
}

#[test]
fn batches_of_any_length_with_keys_and_values_of_any_length() {
    let mut random = Random(1);
    let mut below = |end: usize| random.index(end);
    for table in tables() {
        let mut written: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        let mut sequence = 1;
        for len in [
            1, 2, 3, 4, 5, 7, 8, 9, 11, 12, 13, 15, 16, 17, 24, 25, 100, 10_000,
        ] {
            // A batch of long entries has few of them.
            let long = if len <= 25 { 5 } else { 3 };
            let is_row = below(2) == 0;
            let mut keys: Vec<_> = (0..len)
                .map(|_| {
                    let key_bytes = [0, 1, 8, 20, 65_536 - 4][below(long)];
                    let mut key = vec![0; key_bytes];
                    key.extend(&(below(1 << 20) as u32).to_be_bytes()[below(4)..]);
                    key
                })
                .chain((len == 5).then(Vec::new))
                .collect();
            if is_row {
                keys.sort();
            }
            let entries: Vec<_> = keys
                .into_iter()
                .map(|key| {
                    (
                        key,
                        vec![below(256) as u8; [0, 1, 9, 300, 100_000][below(long)]],
                    )
                })
                .collect();
            let ops = entries.iter().map(|(key, value)| Op::Put { key, value });
            table.prepare(ops).unwrap().publish(sequence);
            sequence += entries.len() as u64;
            written.extend(entries);
        }
        let keys: Vec<_> = written.keys().cloned().collect();
        for search in Search::all() {
            search.multi_get(&table, &keys, ALL, |position, lookup| {
                let value = &written[&keys[position]];
                assert_eq!(lookup.unwrap(), Lookup::Value(value), "{search}");
            });
        }
        let (mut cursor, mut entries) = (table.cursor(ALL), 0);
        while let Some(entry) = cursor.next().unwrap() {
            assert_eq!(written[entry.key], entry.value);
            entries += 1;
        }
        assert_eq!(entries, written.len());
    }
}

/// Each batch writes one value to all keys of a row, and rows of several threads lie between each
/// other. Whatever is being inserted, a snapshot sees a batch as a whole or not at all.
#[test]
fn snapshots_see_whole_batches_while_rows_and_groups_are_inserted() {
    const WRITERS: u64 = 2;
    const KEYS: u64 = 30;
    const BATCHES: u64 = 60;
    for table in tables() {
        let (next, published) = (AtomicU64::new(1), AtomicU64::new(0));
        let keys = |writer: u64, is_row: bool| -> Vec<_> {
            let nth = (0..KEYS).map(move |nth| if is_row { nth } else { nth * 7 % KEYS });
            nth.map(|nth| (nth * WRITERS + writer).to_be_bytes())
                .collect()
        };
        let write = |writer: u64| {
            for batch in 0..BATCHES {
                let first = next.fetch_add(KEYS, Ordering::Relaxed);
                let value = first.to_be_bytes();
                let keys = keys(writer, batch % 2 == 0);
                let ops = keys.iter().map(|key| Op::Put { key, value: &value });
                table.prepare(ops).unwrap().publish(first);
                while published.load(Ordering::Acquire) != first - 1 {
                    std::thread::yield_now();
                }
                published.store(first + KEYS - 1, Ordering::Release);
            }
        };
        let read = || {
            let searches = Search::all();
            let mut turn = 0;
            loop {
                let snapshot = published.load(Ordering::Acquire);
                for writer in 0..WRITERS {
                    let keys = keys(writer, true);
                    let mut found = Vec::new();
                    let search = searches[turn % searches.len()];
                    search.multi_get(&table, &keys, snapshot, |_, lookup| {
                        found.push(lookup.unwrap());
                    });
                    assert!(found.iter().all(|lookup| *lookup == found[0]), "{search}");
                    turn += 1;
                }
                let mut cursor = table.cursor(snapshot);
                let mut entries = Vec::new();
                while let Some(entry) = cursor.next().unwrap() {
                    entries.push((u64::from_be_bytes(entry.key.try_into().unwrap()), {
                        entry.value.to_vec()
                    }));
                }
                for writer in 0..WRITERS {
                    let of_writer = |of: &&(u64, Vec<u8>)| of.0 % WRITERS == writer;
                    let of_writer: Vec<_> = entries.iter().filter(of_writer).collect();
                    assert!([0, KEYS as usize].contains(&of_writer.len()));
                    assert!(of_writer.iter().all(|of| of.1 == of_writer[0].1));
                }
                if snapshot == WRITERS * BATCHES * KEYS {
                    return;
                }
            }
        };
        std::thread::scope(|scope| {
            for writer in 0..WRITERS {
                let write = &write;
                scope.spawn(move || write(writer));
            }
            scope.spawn(read);
        });
    }
}

/// An iterator from which other writes go into the table whenever it begins.
struct Contended<'a> {
    table: &'a MemTable,
    begun: &'a AtomicU64,
    keys: std::ops::Range<usize>,
    of: &'a [[u8; 8]],
}

impl Clone for Contended<'_> {
    fn clone(&self) -> Self {
        Contended {
            keys: self.keys.clone(),
            ..*self
        }
    }
}

impl<'a> Iterator for Contended<'a> {
    type Item = Op<'a>;

    fn next(&mut self) -> Option<Op<'a>> {
        let nth = self.keys.next()?;
        if nth == 0 {
            let sequence = self.begun.fetch_add(1, Ordering::Relaxed) + 1;
            publish(self.table, &[sequence], sequence);
        }
        Some(Op::Put {
            key: &self.of[nth],
            value: b"of a batch",
        })
    }
}

#[test]
fn writers_of_small_batches_do_not_keep_a_large_one_from_getting_its_memory() {
    for table in tables() {
        let keys: Vec<_> = (1 << 40..).take(100).map(u64::to_be_bytes).collect();
        let begun = AtomicU64::new(0);
        let batch = Contended {
            table: &table,
            begun: &begun,
            keys: 0..keys.len(),
            of: &keys,
        };
        let prepared = table.prepare(batch).unwrap();
        // Once to check the lengths, once for each place in a cache line, and once to copy.
        let begun = begun.load(Ordering::Relaxed);
        assert!((3..=10).contains(&begun), "{begun}");
        prepared.publish(1000);
        for key in &keys {
            let found = table.get(key, ALL).unwrap();
            assert_eq!(found, Lookup::Value(b"of a batch"));
        }
    }
}
