//! Batches in tables without a hash index: the answers do not depend on the search that the sizes
//! of table and batch choose.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use forerun_core::sync::thread;

use super::*;

/// Treats upper and lower case as equal.
struct IgnoresCase;

impl Comparator for IgnoresCase {
    fn name(&self) -> &str {
        "ignores-case"
    }

    fn compare(&self, a: &[u8], b: &[u8]) -> std::cmp::Ordering {
        a.to_ascii_lowercase().cmp(&b.to_ascii_lowercase())
    }
}

/// Maps keys that are equal to the same bytes.
type Identity = fn(&[u8]) -> Vec<u8>;

fn tables() -> [(MemTable, Identity); 4] {
    let table = |comparator: Arc<dyn Comparator>, checks| {
        let config = MemTableConfig::default()
            .limit_bytes(64 << 20)
            .comparator(comparator)
            .checks(checks)
            .pages(Pages::Small);
        MemTable::new(config).unwrap()
    };
    [
        (table(Arc::new(Bytewise), MemoryChecks::Off), <[u8]>::to_vec),
        (
            table(Arc::new(Bytewise), MemoryChecks::Paranoid),
            <[u8]>::to_vec,
        ),
        (
            table(Arc::new(ReverseBytewise), MemoryChecks::Off),
            <[u8]>::to_vec,
        ),
        (
            table(Arc::new(IgnoresCase), MemoryChecks::Off),
            <[u8]>::to_ascii_lowercase,
        ),
    ]
}

/// A value that only this entry has, so long that a few thousand fill a core's own cache.
fn value(n: u64) -> [u8; 200] {
    let mut value = [n as u8; 200];
    value[..8].copy_from_slice(&n.to_le_bytes());
    value
}

fn put(table: &MemTable, key: &[u8], n: u64) {
    let value = value(n);
    let op = Op::Put { key, value: &value };
    table.prepare([op].into_iter()).unwrap().publish(1 + n);
}

fn check(table: &MemTable, keys: &[Vec<u8>], expected: impl Fn(&[u8]) -> Option<u64>) {
    let mut answers = vec![0; keys.len()];
    table.multi_get(keys, u64::MAX >> 8, |position, lookup| {
        answers[position] += 1;
        let found = match lookup.unwrap() {
            Lookup::Value(found) => Some(found),
            Lookup::Missing | Lookup::Deleted => None,
        };
        let expected = expected(&keys[position]).map(value);
        let expected = expected.as_ref().map(|value| &value[..]);
        assert_eq!(found, expected, "{:?}", keys[position]);
    });
    assert!(answers.iter().all(|&times| times == 1), "{answers:?}");
}

#[test]
fn answers_are_the_same_for_every_size_of_table_and_batch() {
    for (table, identity) in tables() {
        let mut model = BTreeMap::new();
        let key = |n: u64| format!("Key {}", n % 15_000).into_bytes();
        let mut next = 0_u64;
        // Below 1 MiB, between 1 and 2 MiB, and above.
        for entries in [0, 1, 1000, 6000, 12_000] {
            for n in next..entries {
                let key = key(n.wrapping_mul(0x9e37_79b9));
                put(&table, &key, n);
                model.insert(identity(&key), n);
            }
            next = entries;
            let mut n = entries;
            for size in [0, 1, 2, 7, 8, 127, 128, 300] {
                let mut keys = Vec::new();
                for _ in 0..size {
                    n = n
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    let mut key = key(n >> 33);
                    if n >> 63 == 1 {
                        key.make_ascii_uppercase();
                    }
                    keys.push(key);
                }
                check(&table, &keys, |key| model.get(&identity(key)).copied());
            }
        }
        assert!(table.stats().used_bytes > 2 << 20);
    }
}

#[test]
fn answers_are_the_same_while_a_table_grows_from_one_search_to_the_next() {
    let [(table, _), ..] = tables();
    let key = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes().to_vec();
    (0..1000).for_each(|n| put(&table, &key(n), n));
    let is_full = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for n in 1000..20_000 {
                put(&table, &key(n), n);
            }
            is_full.store(true, Ordering::Relaxed);
        });
        for reader in 0..2 {
            let (table, is_full) = (&table, &is_full);
            scope.spawn(move || {
                let mut batch = 0;
                let mut was_full = false;
                while !was_full {
                    was_full = is_full.load(Ordering::Relaxed);
                    for size in [2, 5, 9, 40, 150] {
                        let first = (batch * 37 + reader) % 800;
                        let keys: Vec<_> = (first..first + size).map(key).collect();
                        check(table, &keys, |key| {
                            let n = u64::from_be_bytes(key.try_into().unwrap());
                            Some(n.wrapping_mul(0xf1de_83e1_9937_733d)).filter(|&n| n < 1000)
                        });
                    }
                    batch += 1;
                }
            });
        }
    });
    assert!(table.stats().used_bytes > 2 << 20);
}
