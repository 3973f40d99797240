//! Scans of stores with more runs than are searched at once, some of them beside each other and
//! some on top of each other, against `BTreeMap`s. In several orders of keys.

use crate::testing;

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use forerun_db::io::fault::FaultIo;
use forerun_db::{
    Background, Bytewise, Comparator, Iter, Options, Readable, ReverseBytewise, RunOptions,
    TreeOptions,
};
use proptest::prelude::*;
use testing::{open, small_options};

/// Entries by the [rank](Order::rank) of their keys.
type Map = BTreeMap<Vec<u8>, (Vec<u8>, Vec<u8>)>;

#[derive(Clone, Copy, Debug)]
enum Order {
    Bytes,
    Reverse,
    /// Equal keys may have different bytes.
    IgnoringCase,
}

impl Order {
    fn comparator(self) -> Arc<dyn Comparator> {
        match self {
            Order::Bytes => Arc::new(Bytewise),
            Order::Reverse => Arc::new(ReverseBytewise),
            Order::IgnoringCase => Arc::new(IgnoringCase),
        }
    }

    /// Bytes that are ordered as the keys are. No key has a byte 0.
    fn rank(self, key: &[u8]) -> Vec<u8> {
        match self {
            Order::Bytes => key.to_vec(),
            Order::Reverse => key.iter().map(|byte| !byte).chain([0xff]).collect(),
            Order::IgnoringCase => key.to_ascii_lowercase(),
        }
    }
}

struct IgnoringCase;

impl Comparator for IgnoringCase {
    fn name(&self) -> &str {
        "test.ignoring-case"
    }

    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        a.to_ascii_lowercase().cmp(&b.to_ascii_lowercase())
    }

    fn prefix(&self, key: &[u8]) -> u64 {
        Bytewise.prefix(&key.to_ascii_lowercase())
    }
}

const KEYS: u16 = 600;

/// What the memtable of one run gets.
#[derive(Clone, Debug)]
enum Fill {
    /// Neighboring keys: most runs lie on one side of any other.
    Neighbors(u16, u16),
    /// Keys from everywhere.
    Spread(Vec<u16>),
    /// Deletes every third of some neighboring keys.
    Deletes(u16, u16),
    DeleteRange(u16, u16),
}

fn fill() -> impl Strategy<Value = Fill> {
    prop_oneof![
        4 => (0..KEYS, 1_u16..60).prop_map(|(from, count)| Fill::Neighbors(from, count)),
        2 => prop::collection::vec(0..KEYS, 1..60).prop_map(Fill::Spread),
        1 => (0..KEYS, 1_u16..60).prop_map(|(from, count)| Fill::Deletes(from, count)),
        1 => (0..KEYS, 1_u16..40).prop_map(|(from, count)| Fill::DeleteRange(from, count)),
    ]
}

/// Large level 0, small pages: up to thirty runs, of which some have internal pages. Below are
/// several runs on a level.
fn options(order: Order) -> Options {
    small_options()
        .comparator(order.comparator())
        .background(Background::Caller)
        .cache_bytes(1 << 20)
        .run(RunOptions::default().page_bytes(4 << 10))
        .tree(
            TreeOptions::default()
                .level0_runs(30)
                .level0_slow_runs(60)
                .level0_stop_runs(90)
                .run_bytes(6 << 10),
        )
}

/// A key of ordinary length that every eighth time is long.
fn key(number: u16) -> Vec<u8> {
    let mut key = format!("key-{number:05}").into_bytes();
    if number.is_multiple_of(8) {
        key.extend([b'x'; 90]);
    }
    key
}

/// A key as the write number `at` spells it.
fn spelled(order: Order, number: u16, at: usize) -> Vec<u8> {
    match order {
        Order::IgnoringCase if !(usize::from(number) + at).is_multiple_of(2) => {
            key(number).to_ascii_uppercase()
        }
        _ => key(number),
    }
}

/// Compares a scan in both directions at once with the same scan of a map.
fn check(
    order: Order,
    mut iter: Iter,
    map: &Map,
    range: (Bound<Vec<u8>>, Bound<Vec<u8>>),
    turns: &[bool],
) {
    let rank = |key: Vec<u8>| order.rank(&key);
    let range = (range.0.map(rank), range.1.map(rank));
    let is_empty = match (&range.0, &range.1) {
        (Bound::Included(start) | Bound::Excluded(start), Bound::Excluded(end)) => start >= end,
        (Bound::Included(start) | Bound::Excluded(start), Bound::Included(end)) => start > end,
        _ => false,
    };
    let nothing = Map::new();
    let mut expected = if is_empty {
        nothing.range::<Vec<u8>, _>(..)
    } else {
        map.range(range.clone())
    };
    for (at, is_forward) in turns.iter().enumerate() {
        let (found, expected) = if *is_forward {
            (iter.next_entry().unwrap(), expected.next())
        } else {
            (iter.next_entry_back().unwrap(), expected.next_back())
        };
        let found = found.map(|entry| (entry.key.to_vec(), entry.value.to_vec()));
        let expected = expected.map(|(_, entry)| entry.clone());
        assert_eq!(found, expected, "step {at} of {range:?}");
    }
}

/// Scans that begin everywhere, in both directions, and some that turn around.
fn check_all(order: Order, source: &impl Readable, map: &Map, seed: u16) {
    for i in 0..25_u16 {
        let (from, to) = (key((seed + i * 97) % KEYS), key((seed * 3 + i * 61) % KEYS));
        let range = match i % 5 {
            0 => (Bound::Included(from), Bound::Unbounded),
            1 => (Bound::Unbounded, Bound::Included(to)),
            2 => (Bound::Excluded(from), Bound::Excluded(to)),
            3 => (Bound::Unbounded, Bound::Excluded(to)),
            _ => (Bound::Included(from), Bound::Included(to)),
        };
        let turns: Vec<bool> = (0..30)
            .map(|at| match i % 3 {
                0 => true,
                1 => false,
                _ => (at + seed) % 7 < 4,
            })
            .collect();
        check(order, source.range(range.clone()), map, range, &turns);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn scans_of_many_runs_are_those_of_a_map(
        fills in prop::collection::vec(fill(), 1..24),
        snapshot_after in 0_usize..24,
        compact_after in 0_usize..40,
        seed in 0..KEYS,
        order in prop_oneof![
            Just(Order::Bytes),
            Just(Order::Reverse),
            Just(Order::IgnoringCase),
        ],
    ) {
        let db = open(&FaultIo::new(), &options(order)).unwrap();
        let mut map = Map::new();
        let mut snapshot = None;
        for (at, fill) in fills.iter().enumerate() {
            let value = |number: u16| format!("{at}-{number}").repeat(1 + at % 4).into_bytes();
            let mut put = |number: u16| {
                let key = spelled(order, number, at);
                db.put(&key, value(number)).unwrap();
                map.insert(order.rank(&key), (key, value(number)));
            };
            match fill {
                Fill::Neighbors(from, count) => (*from..from + count).for_each(put),
                Fill::Spread(numbers) => numbers.iter().copied().for_each(&mut put),
                Fill::Deletes(from, count) => {
                    for number in (*from..from + count).step_by(3) {
                        let key = spelled(order, number, at);
                        db.delete(&key).unwrap();
                        map.remove(&order.rank(&key));
                    }
                }
                Fill::DeleteRange(from, count) => {
                    let mut ends = [key(*from), key(from + count)];
                    ends.sort_by_key(|key| order.rank(key));
                    db.delete_range(&ends[0], &ends[1]).unwrap();
                    let [start, end] = ends.map(|key| order.rank(&key));
                    map.retain(|rank, _| !(start <= *rank && *rank < end));
                }
            }
            // The last one stays in the memtable.
            if at + 1 < fills.len() {
                db.flush().unwrap();
            }
            if at == snapshot_after {
                snapshot = Some((db.snapshot(), map.clone()));
            }
            if at == compact_after {
                db.compact().unwrap();
            }
        }
        // An iterator keeps what it began with, whatever happens to the runs.
        let living = db.range(key(seed)..);
        check_all(order, &db, &map, seed);
        let at_first = map.clone();
        if let Some((snapshot, map)) = &snapshot {
            check_all(order, snapshot, map, seed);
        }
        let late = key(KEYS / 2);
        db.put(&late, b"late").unwrap();
        map.insert(order.rank(&late), (late, b"late".to_vec()));
        db.compact().unwrap();
        check_all(order, &db, &map, seed + 1);
        if let Some((snapshot, map)) = &snapshot {
            check_all(order, snapshot, map, seed + 1);
        }
        let range = (Bound::Included(key(seed)), Bound::Unbounded);
        check(order, living, &at_first, range, &[true, true, false, true, false, false, true]);
    }
}
