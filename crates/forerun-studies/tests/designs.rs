//! Every design, of every width, with every instruction set and every batch strategy, does what a
//! `HashMap` does.

use forerun_core::arch::Isa;
use forerun_studies::designs::{Design, FixedTable, Full, Word, build};
use proptest::prelude::*;
use std::collections::HashMap;

/// The instruction sets of this machine.
fn sets() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|isa| isa.is_available())
}

/// A step of a random history.
#[derive(Clone, Copy, Debug)]
enum Act {
    Insert(u64, u64),
    Remove(u64),
}

/// Difficult keys: few of them, so that they collide; sentinels; equal low or high bits;
/// neighbours.
fn key() -> impl Strategy<Value = u64> {
    prop_oneof![
        2 => prop::sample::select(vec![0, 1, u64::MAX, u64::MAX - 1, u64::from(u32::MAX), 1 << 32]),
        4 => 0u64..60,
        2 => (0u64..40).prop_map(|n| n << 24),
        2 => (0u64..40).prop_map(|n| n << 58 | n << 20),
        1 => any::<u64>(),
    ]
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        3 => (key(), any::<u64>()).prop_map(|(key, value)| Act::Insert(key, value)),
        2 => key().prop_map(Act::Remove),
    ]
}

/// Looks `keys` up with every strategy. The answers must be the model's.
fn check_lookups<K: Word, V: Word>(
    design: Design,
    table: &dyn FixedTable<K, V>,
    model: &HashMap<K, V>,
    keys: &[K],
) {
    assert_eq!(table.len(), model.len(), "{design}");
    for &key in keys {
        assert_eq!(table.get(key), model.get(&key).copied(), "{design} {key:?}");
    }
    let expected = keys.iter().filter(|key| model.contains_key(key)).count();
    for &lookup in design.lookups() {
        // Earlier content of the arrays must not affect the answers.
        let mut values = vec![V::MAX; keys.len()];
        let mut found: Vec<bool> = (0..keys.len()).map(|i| i % 2 == 0).collect();
        let hits = table.find(keys, &mut values, &mut found, lookup);
        for (i, key) in keys.iter().enumerate() {
            let answer = found[i].then_some(values[i]);
            assert_eq!(answer, model.get(key).copied(), "{design} {lookup} {key:?}");
        }
        assert_eq!(hits, expected, "{design} {lookup}");
    }
}

/// Runs a history on a small table and on a `HashMap`.
fn check_history<K: Word, V: Word>(
    design: Design,
    isa: Isa,
    seed: u64,
    acts: &[Act],
    asked: &[u64],
) {
    let mut table = build::<K, V>(design, 96, isa, seed).unwrap();
    let mut model = HashMap::new();
    for &act in acts {
        match act {
            Act::Insert(key, value) => {
                let (key, value) = (K::from_u64(key), V::from_u64(value));
                match table.insert(key, value) {
                    Ok(old) => assert_eq!(old, model.insert(key, value), "{design}"),
                    Err(Full { entries, slots }) => {
                        assert!(
                            !model.contains_key(&key),
                            "{design}: an upsert needs no free slot"
                        );
                        assert_eq!((entries, slots), (model.len(), table.slots()), "{design}");
                    }
                }
            }
            Act::Remove(key) => {
                let key = K::from_u64(key);
                assert_eq!(table.remove(key), model.remove(&key), "{design} {key:?}");
            }
        }
    }
    let keys: Vec<K> = asked.iter().map(|&key| K::from_u64(key)).collect();
    check_lookups(design, &*table, &model, &keys);
}

/// A history with one design, in all widths.
fn check_widths(design: Design, isa: Isa, seed: u64, acts: &[Act], asked: &[u64]) {
    check_history::<u64, u64>(design, isa, seed, acts, asked);
    check_history::<u32, u32>(design, isa, seed, acts, asked);
    check_history::<u32, u64>(design, isa, seed, acts, asked);
    check_history::<u64, u32>(design, isa, seed, acts, asked);
    check_history::<u16, u32>(design, isa, seed, acts, asked);
    check_history::<u16, u16>(design, isa, seed, acts, asked);
    check_history::<u16, u64>(design, isa, seed, acts, asked);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn upserts_and_removals_match_a_hash_map(
        seed: u64,
        acts in prop::collection::vec(act(), 0..200),
        // Batches without keys, with one key, and longer than any group; with duplicates.
        asked in prop_oneof![
            prop::collection::vec(key(), 0..3),
            prop::collection::vec(key(), 0..150),
        ],
    ) {
        for isa in sets() {
            for &design in Design::ALL {
                check_widths(design, isa, seed, &acts, &asked);
            }
        }
    }
}

/// The load factor that a design must reach before it refuses a key, in a table of a few thousand
/// slots.
fn load_floor(design: Design) -> f64 {
    match design {
        Design::Cuckoo2 => 0.42,
        Design::Cuckoo3 => 0.87,
        Design::Cuckoo4 => 0.94,
        Design::Bucketized2x2 => 0.85,
        Design::Bucketized2x4 | Design::Interleaved2x4 => 0.95,
        Design::Bucketized2x8 | Design::Interleaved2x8 => 0.98,
        Design::Bucketized3x2 => 0.96,
        Design::Bucketized3x4 => 0.98,
        Design::Bucketized3x8 => 0.99,
        Design::Tagged8 | Design::Tagged16 => 0.93,
        Design::NeighborHash => 0.8,
        Design::Dlht => 0.69,
        Design::MemC3 => 0.92,
    }
}

/// Sequences that differ in low bits, in high bits, and in all bits.
const SEQUENCES: [fn(u64) -> u64; 4] = [
    |n| n,
    |n| n << 17,
    |n| n << 45 | n << 18,
    |n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15),
];

fn fill<K: Word, V: Word>(design: Design, isa: Isa, sequence: fn(u64) -> u64, seed: u64) -> f64 {
    const SLOTS: usize = 3000;
    let mut table = build::<K, V>(design, SLOTS, isa, seed).unwrap();
    let mut model = HashMap::new();
    let value = |n: u64| V::from_u64(n.wrapping_mul(0x1_0000_0001));
    let key = |n: u64| K::from_u64(sequence(n));
    let mut n = 0;
    while let Ok(old) = table.insert(key(n), value(n)) {
        assert_eq!(old, model.insert(key(n), value(n)));
        n += 1;
        assert!(
            model.len() <= table.slots() + 2,
            "{design}: more entries than slots"
        );
    }
    let load = model.len() as f64 / table.slots() as f64;

    // All keys except the refused one are present, and keys that were never inserted are absent.
    let keys: Vec<K> = (0..n + n / 4).map(key).collect();
    check_lookups(design, &*table, &model, &keys);
    // Removed entries free slots for other keys.
    for n in (0..n).filter(|n| n % 3 != 0) {
        assert_eq!(table.remove(key(n)), model.remove(&key(n)));
    }
    check_lookups(design, &*table, &model, &keys);
    for other in n..n + n / 3 {
        let (key, value) = (key(other), value(other));
        assert_eq!(
            table.insert(key, value),
            Ok(model.insert(key, value)),
            "{design}"
        );
    }
    check_lookups(design, &*table, &model, &keys);
    load
}

#[test]
fn tables_fill_to_their_designs_load_and_refuse_more() {
    let best = sets().last().unwrap();
    for &design in Design::ALL {
        for (seed, sequence) in SEQUENCES.into_iter().enumerate() {
            let load = fill::<u64, u64>(design, best, sequence, seed as u64);
            assert!(load >= load_floor(design), "{design}: refused at {load:.3}");
        }
        // The third and fourth sequences repeat themselves in 32 bits.
        for load in [
            fill::<u32, u32>(design, best, SEQUENCES[0], 5),
            fill::<u16, u32>(design, best, SEQUENCES[0], 5),
        ] {
            assert!(load >= load_floor(design), "{design}: refused at {load:.3}");
        }
    }
}

#[test]
fn the_shortest_slice_decides_how_many_keys_are_looked_up() {
    for &design in Design::ALL {
        let mut table = build::<u64, u64>(design, 100, Isa::Scalar, 1).unwrap();
        for key in 0..20 {
            table.insert(key, key + 100).unwrap();
        }
        let keys: Vec<u64> = (0..20).collect();
        for &lookup in design.lookups() {
            for (values_len, found_len) in [(5, 20), (20, 5), (5, 5), (0, 20)] {
                let (mut values, mut found) = (vec![0; values_len], vec![false; found_len]);
                let hits = table.find(&keys, &mut values, &mut found, lookup);
                assert_eq!(hits, values_len.min(found_len), "{design} {lookup}");
                assert!(
                    found.iter().skip(hits).all(|found| !found),
                    "{design} {lookup}"
                );
            }
        }
    }
}

#[test]
fn lines_are_counted_between_one_and_all() {
    for &design in Design::ALL {
        let mut table = build::<u64, u64>(design, 4000, Isa::Scalar, 1).unwrap();
        for key in 1..1500 {
            table.insert(key, key).unwrap();
        }
        for key in 1..3000 {
            let lines = table.lines_touched(key);
            assert!(
                (1..=6).contains(&lines),
                "{design}: {lines} lines for {key}"
            );
        }
    }
}

#[test]
fn batches_of_removals_match_a_hash_map() {
    for &design in Design::ALL {
        let mut table = build::<u64, u64>(design, 4000, Isa::Scalar, 1).unwrap();
        let keys: Vec<u64> = (1..1500).collect();
        table.insert_batch(&keys, &keys).unwrap();
        // Absent keys, and keys that the batch names twice.
        let removed: Vec<u64> = (1000..2000).chain([1200, 1]).collect();
        assert_eq!(table.remove_batch(&removed), 501, "{design}");
        let left = (2..1000).map(|key| (key, key)).collect();
        check_lookups(design, &*table, &left, &keys);
    }
}

#[test]
fn a_table_beyond_the_limit_is_refused_with_its_size() {
    let slots = forerun_studies::designs::SLOTS_MAX + 1;
    for &design in Design::ALL {
        let error = build::<u32, u32>(design, slots, Isa::Scalar, 1)
            .err()
            .unwrap();
        assert!(error.to_string().contains(&slots.to_string()), "{error}");
        let error = build::<u16, u32>(design, 65_536, Isa::Scalar, 1).err();
        let error = error.unwrap().to_string();
        assert!(
            error.contains("65536 slots is beyond the limit of 65535"),
            "{error}"
        );
        assert!(build::<u16, u32>(design, 65_535, Isa::Scalar, 1).is_ok());
    }
}
