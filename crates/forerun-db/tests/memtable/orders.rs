//! Batches in memtables whose order equates different keys, panics, or contradicts itself.

use crate::testing;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forerun_core::{Pages, split_mix64};
use forerun_db::Op;
use forerun_db::memtable::{Comparator, Lookup, MemTable, MemTableConfig, MemoryChecks};
use testing::random::Random;
use testing::search::Search;

/// A snapshot that sees everything.
const ALL: u64 = u64::MAX >> 8;

fn table(comparator: Arc<dyn Comparator>, hash_index: bool, checks: MemoryChecks) -> MemTable {
    let config = MemTableConfig::default()
        .limit_bytes(64 << 20)
        .comparator(comparator)
        .hash_index(hash_index)
        .checks(checks)
        .pages(Pages::Small);
    MemTable::new(config).unwrap()
}

fn publish(table: &MemTable, entries: &[(Vec<u8>, Vec<u8>)], first_sequence: u64) {
    let ops = entries.iter().map(|(key, value)| Op::Put { key, value });
    table.prepare(ops).unwrap().publish(first_sequence);
}

/// Keys in a row, or scattered, or one key several times; in upper and lower case.
fn batch(random: &mut Random) -> Vec<Vec<u8>> {
    let (first, kind, len) = (random.below(900), random.below(3), 1 + random.below(60));
    let keys = (0..len).map(|nth| {
        let number = match kind {
            0 => first + nth,
            1 => random.below(1000),
            _ => first + random.below(2),
        };
        let key = format!("key{number:04}");
        match random.below(2) {
            0 => key.to_uppercase().into_bytes(),
            _ => key.into_bytes(),
        }
    });
    keys.collect()
}

struct IgnoresCase;

impl Comparator for IgnoresCase {
    fn name(&self) -> &str {
        "test.ignores-case"
    }

    fn compare(&self, a: &[u8], b: &[u8]) -> std::cmp::Ordering {
        a.to_ascii_lowercase().cmp(&b.to_ascii_lowercase())
    }

    fn prefix(&self, key: &[u8]) -> u64 {
        let bytes = key.to_ascii_lowercase();
        u64::from_be_bytes(std::array::from_fn(|at| {
            bytes.get(at).copied().unwrap_or(0)
        }))
    }
}

#[test]
fn keys_that_an_order_equates_are_versions_of_one_key_however_threads_write_them() {
    const THREADS: u64 = 3;
    const BATCHES: u64 = 100;
    for checks in [MemoryChecks::Off, MemoryChecks::Paranoid] {
        let table = table(Arc::new(IgnoresCase), true, checks);
        let next = AtomicU64::new(1);
        let write = |mut random: Random| {
            let mut written = Vec::new();
            for _ in 0..BATCHES {
                let keys = batch(&mut random);
                let first = next.fetch_add(keys.len() as u64, Ordering::Relaxed);
                let entries: Vec<_> = keys
                    .into_iter()
                    .zip(first..)
                    .map(|(key, sequence)| (key, sequence.to_be_bytes().to_vec()))
                    .collect();
                publish(&table, &entries, first);
                written.extend(entries.into_iter().zip(first..));
            }
            written
        };
        let mut versions: BTreeMap<Vec<u8>, BTreeMap<u64, Vec<u8>>> = BTreeMap::new();
        std::thread::scope(|scope| {
            let write = &write;
            let threads: Vec<_> = (0..THREADS)
                .map(|thread| scope.spawn(move || write(Random(thread))))
                .collect();
            for ((key, value), sequence) in threads
                .into_iter()
                .flat_map(|thread| thread.join().unwrap())
            {
                let of_key = versions.entry(key.to_ascii_lowercase()).or_default();
                of_key.insert(sequence, value);
            }
        });
        let last = next.into_inner() - 1;
        assert_eq!(table.stats().entries as u64, last);
        for snapshot in [ALL, last / 2, last / 9, 5] {
            let visible = |of_key: &BTreeMap<u64, Vec<u8>>| {
                let newest = of_key.range(..=snapshot).next_back();
                newest.map(|(_, value)| value.clone())
            };
            let keys: Vec<_> = versions
                .keys()
                .map(|key| key.to_ascii_uppercase())
                .collect();
            let expected: Vec<_> = versions.values().map(visible).collect();
            for search in Search::all() {
                search.multi_get(&table, &keys, snapshot, |position, lookup| {
                    let value = match lookup.unwrap() {
                        Lookup::Value(value) => Some(value.to_vec()),
                        _ => None,
                    };
                    assert_eq!(value, expected[position], "{search}, {:?}", keys[position]);
                });
            }
            let mut cursor = table.cursor(snapshot);
            for value in expected.iter().flatten() {
                assert_eq!(cursor.next().unwrap().unwrap().value, value);
            }
            assert!(cursor.next().unwrap().is_none());
        }
    }
}

/// Orders by bytes, and panics at the call with a number.
#[derive(Default)]
struct PanicsAt {
    calls: AtomicU64,
    panics_at: AtomicU64,
    is_indexed: bool,
}

impl PanicsAt {
    fn arm(&self, panics_at: u64) {
        self.calls.store(0, Ordering::Relaxed);
        self.panics_at.store(panics_at, Ordering::Relaxed);
    }

    fn call(&self) {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        assert!(
            call != self.panics_at.load(Ordering::Relaxed),
            "call {call}"
        );
    }
}

impl Comparator for PanicsAt {
    fn name(&self) -> &str {
        "test.panics-at"
    }

    fn compare(&self, a: &[u8], b: &[u8]) -> std::cmp::Ordering {
        self.call();
        a.cmp(b)
    }

    fn prefix(&self, key: &[u8]) -> u64 {
        self.call();
        key.get(3..7).map_or(0, |bytes| {
            u64::from(u32::from_be_bytes(bytes.try_into().unwrap()))
        })
    }

    fn equal_means_identical(&self) -> bool {
        self.is_indexed
    }
}

#[test]
fn an_order_that_panics_anywhere_in_a_batch_harms_no_other_batch() {
    for is_indexed in [false, true] {
        let order = Arc::new(PanicsAt {
            is_indexed,
            ..PanicsAt::default()
        });
        order.arm(u64::MAX);
        let table = table(Arc::clone(&order) as _, is_indexed, MemoryChecks::Off);
        let mut random = Random(1);
        let mut kept: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        let mut sequence = 1;
        let mut insert = |len: u64, is_row: bool, is_kept: bool, panics_at: u64| {
            // A batch that panics has keys of its own.
            let end = if is_kept { "kept" } else { "lost" };
            let first = random.below(3000);
            let entries: Vec<_> = (0..len)
                .map(|nth| {
                    let number = if is_row {
                        first + nth
                    } else {
                        random.below(3000)
                    };
                    let key = format!("key{number:04}{end}").into_bytes();
                    (key, (sequence + nth).to_be_bytes().to_vec())
                })
                .collect();
            let ops = entries.iter().map(|(key, value)| Op::Put { key, value });
            let prepared = table.prepare(ops).unwrap();
            order.arm(panics_at);
            let published = catch_unwind(AssertUnwindSafe(|| prepared.publish(sequence)));
            order.arm(u64::MAX);
            sequence += len;
            if is_kept {
                published.unwrap();
                kept.extend(entries.iter().cloned());
                return (false, entries);
            }
            (published.is_err(), entries)
        };
        let mut panicked = 0;
        for round in 0..150 {
            insert(1 + round % 40, round % 2 == 0, true, u64::MAX);
            // Calls up to some that a batch does not make.
            let panics_at = round * (1 + round % 7) / 4;
            let (has_panicked, _) = insert(1 + round % 30, round % 3 == 0, false, panics_at);
            panicked += usize::from(has_panicked);
        }
        assert!(panicked > 60, "{panicked}");
        // And while an index is built.
        let (_, entries) = insert(3000, false, true, u64::MAX);
        assert_eq!(entries.len(), 3000);
        for back in 1..30 {
            insert(2000, false, false, 20_000 + back * 977);
        }
        let keys: Vec<_> = kept.keys().cloned().collect();
        for search in Search::all() {
            search.multi_get(&table, &keys, ALL, |position, lookup| {
                let value = &kept[&keys[position]];
                assert_eq!(lookup.unwrap(), Lookup::Value(value), "{search}");
            });
        }
        let mut cursor = table.cursor(ALL);
        let (mut last, mut found) = (Vec::new(), 0);
        while let Some(entry) = cursor.next().unwrap() {
            assert!(last.as_slice() < entry.key);
            last = entry.key.to_vec();
            if let Some(value) = kept.get(entry.key) {
                assert_eq!(entry.value, value);
                found += 1;
            }
        }
        assert_eq!(found, kept.len());
    }
}

/// Answers by chance.
struct Contradictory(AtomicU64);

impl Contradictory {
    fn chance(&self, end: u64) -> u64 {
        let mut state = self.0.fetch_add(1, Ordering::Relaxed);
        split_mix64(&mut state) % end
    }
}

impl Comparator for Contradictory {
    fn name(&self) -> &str {
        "test.contradictory"
    }

    fn compare(&self, a: &[u8], b: &[u8]) -> std::cmp::Ordering {
        match self.chance(9) {
            0 => std::cmp::Ordering::Equal,
            1 => b.cmp(a),
            _ => a.cmp(b),
        }
    }

    fn prefix(&self, key: &[u8]) -> u64 {
        match self.chance(5) {
            0 => self.chance(u64::MAX),
            _ => key.len() as u64,
        }
    }

    fn equal_means_identical(&self) -> bool {
        true
    }
}

/// Such an order may lead to any answers, but to no endless loop, and to nothing outside the table.
#[test]
fn an_order_that_contradicts_itself_keeps_every_entry_in_the_table() {
    for (hash_index, checks) in [
        (false, MemoryChecks::Off),
        (true, MemoryChecks::Off),
        (false, MemoryChecks::Paranoid),
    ] {
        let order = Arc::new(Contradictory(AtomicU64::new(1)));
        let table = table(order, hash_index, checks);
        let next = AtomicU64::new(1);
        let write = |mut random: Random| {
            for _ in 0..100 {
                let keys = batch(&mut random);
                let first = next.fetch_add(keys.len() as u64, Ordering::Relaxed);
                let entries: Vec<_> = keys
                    .into_iter()
                    .map(|key| (key, b"value".to_vec()))
                    .collect();
                publish(&table, &entries, first);
                let keys: Vec<_> = entries.into_iter().map(|(key, _)| key).collect();
                for search in Search::all() {
                    let look_up = || {
                        search.multi_get(&table, &keys, ALL, |_, lookup| {
                            if let Ok(Lookup::Value(value)) = lookup {
                                assert_eq!(value, b"value");
                            }
                        });
                    };
                    if search.sorts() {
                        // A sort may notice it, and panic.
                        let _ = catch_unwind(AssertUnwindSafe(look_up));
                    } else {
                        look_up();
                    }
                }
            }
        };
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let write = &write;
                scope.spawn(move || write(Random(thread)));
            }
        });
        let entries = next.into_inner() - 1;
        assert_eq!(table.stats().entries as u64, entries);
        for is_forward in [true, false] {
            let mut cursor = table.cursor(ALL);
            for _ in 0..=entries {
                let entry = if is_forward {
                    cursor.next()
                } else {
                    cursor.prev()
                };
                match entry {
                    Ok(Some(entry)) => assert_eq!(entry.value, b"value"),
                    _ => break,
                }
            }
        }
    }
}
