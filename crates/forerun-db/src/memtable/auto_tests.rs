//! `Auto` in tables without a hash index: its answers do not depend on the search that it chooses.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use forerun_core::sync::{SIMULATED, thread};
use proptest::prelude::*;

use super::measured_choice::CLASSES;
use super::*;
// Explicit, because proptest has a trait of this name.
use super::Strategy;

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

/// How many classes of batches have been measured.
fn measured(table: &MemTable) -> usize {
    match &table.point_lookups {
        PointLookups::Index(_) => 0,
        PointLookups::Ordered(choice) => choice.measured(),
    }
}

fn check(table: &MemTable, keys: &[Vec<u8>], expected: impl Fn(&[u8]) -> Option<u64>) {
    let mut answers = vec![0; keys.len()];
    table.multi_get(keys, u64::MAX >> 8, Strategy::Auto, |position, lookup| {
        answers[position] += 1;
        let found = match lookup.unwrap() {
            Lookup::Value(value) => Some(u64::from_le_bytes(value.try_into().unwrap())),
            Lookup::Missing | Lookup::Deleted => None,
        };
        assert_eq!(found, expected(&keys[position]), "{:?}", keys[position]);
    });
    assert!(answers.iter().all(|&times| times == 1), "{answers:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]

    #[test]
    fn answers_are_the_same_before_during_and_after_trials(
        entries in 0_u64..3000,
        // Enough batches of a class for its first trial.
        (sizes, batches) in prop_oneof![
            Just((2_usize..4, 4720)),
            Just((4..8, 4720)),
            Just((8..16, 2410)),
            Just((16..40, 1260)),
            Just((128..150, 720)),
        ],
        seed in any::<u64>(),
    ) {
        for (table, identity) in tables() {
            let mut model = BTreeMap::new();
            let key = |n: u64| format!("Key {}", n % 4000).into_bytes();
            for n in 0..entries {
                let (key, value) = (key(n.wrapping_mul(seed | 1)), n.to_le_bytes());
                let op = Op::Put { key: &key, value: &value };
                table.prepare([op].into_iter()).unwrap().publish(1 + n);
                model.insert(identity(&key), n);
            }
            let mut n = seed;
            for batch in 0..batches {
                let mut keys = Vec::new();
                for _ in 0..sizes.start + batch % sizes.len() {
                    n = n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let mut key = key(n >> 33);
                    if n >> 63 == 1 {
                        key.make_ascii_uppercase();
                    }
                    keys.push(key);
                }
                check(&table, &keys, |key| model.get(&identity(key)).copied());
            }
            prop_assert_eq!(measured(&table), usize::from(!SIMULATED));
        }
    }
}

#[test]
fn every_class_of_batches_is_measured_while_others_write() {
    let [(table, _), ..] = tables();
    let key = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes().to_vec();
    let put = |n: u64| {
        let (key, value) = (key(n), n.to_le_bytes());
        let op = Op::Put {
            key: &key,
            value: &value,
        };
        table.prepare([op].into_iter()).unwrap().publish(1 + n);
    };
    (0..1000).for_each(put);
    let is_read = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut n = 1000;
            while !is_read.load(Ordering::Relaxed) && n < 200_000 {
                put(n);
                n += 1;
            }
        });
        let readers: Vec<_> = (0..2)
            .map(|reader| {
                let table = &table;
                scope.spawn(move || {
                    let mut batch = 0;
                    while batch < 300 || (measured(table) < CLASSES && !SIMULATED) {
                        for size in [2, 5, 9, 40, 150] {
                            let first = (batch * 37 + reader) % 800;
                            let keys: Vec<_> = (first..first + size).map(key).collect();
                            check(table, &keys, |key| {
                                let n = u64::from_be_bytes(key.try_into().unwrap());
                                Some(n.wrapping_mul(0xf1de_83e1_9937_733d)).filter(|&n| n < 1000)
                            });
                        }
                        batch += 1;
                        assert!(batch < 20_000, "{} classes measured", measured(table));
                    }
                })
            })
            .collect();
        for reader in readers {
            reader.join().unwrap();
        }
        is_read.store(true, Ordering::Relaxed);
    });
}
