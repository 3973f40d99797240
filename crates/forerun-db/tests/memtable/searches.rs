//! The memtable against a plain map: every search, checks on and off, every order, any batch.

use crate::testing::search;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use forerun_core::Pages;
use forerun_db::memtable::{
    Bytewise, Comparator, Lookup, MemTable, MemTableConfig, MemoryChecks, ReverseBytewise,
};
use forerun_db::{Error, Op, Values};
use proptest::prelude::*;
use proptest::strategy::Strategy as Generate;
use search::Search;

/// A snapshot that sees everything.
const ALL: u64 = u64::MAX >> 8;

fn table(checks: MemoryChecks, comparator: Arc<dyn Comparator>) -> MemTable {
    limited(256 << 20, checks, comparator)
}

fn limited(limit_bytes: usize, checks: MemoryChecks, comparator: Arc<dyn Comparator>) -> MemTable {
    config(limit_bytes, checks, comparator, false)
}

/// A table with a hash index, where there can be one.
fn indexed(comparator: Arc<dyn Comparator>) -> MemTable {
    config(256 << 20, MemoryChecks::Off, comparator, true)
}

fn config(
    limit_bytes: usize,
    checks: MemoryChecks,
    comparator: Arc<dyn Comparator>,
    hash_index: bool,
) -> MemTable {
    let pages = Pages::Small;
    let config = MemTableConfig::default()
        .limit_bytes(limit_bytes)
        .comparator(comparator)
        .checks(checks)
        .hash_index(hash_index)
        .pages(pages);
    MemTable::new(config).unwrap()
}

fn put<'a>(key: &'a [u8], value: &'a [u8]) -> std::array::IntoIter<Op<'a>, 1> {
    [Op::Put { key, value }].into_iter()
}

fn found(lookup: Lookup<'_>) -> Option<&[u8]> {
    match lookup {
        Lookup::Value(value) => Some(value),
        Lookup::Missing | Lookup::Deleted => None,
    }
}

/// A sequence number and the value written then; `None` for a deletion.
type Version = (u64, Option<Vec<u8>>);

/// Every version of every key: what a memtable must answer from.
#[derive(Default)]
struct Model(BTreeMap<Vec<u8>, Vec<Version>>);

impl Model {
    fn get(&self, key: &[u8], snapshot: u64) -> Option<&[u8]> {
        let versions = self.0.get(key)?;
        let newest = versions
            .iter()
            .rev()
            .find(|(sequence, _)| *sequence <= snapshot)?;
        newest.1.as_deref()
    }

    fn visible(&self, snapshot: u64) -> Vec<(&[u8], &[u8])> {
        let mut visible = Vec::new();
        for key in self.0.keys() {
            visible.extend(self.get(key, snapshot).map(|value| (&key[..], value)));
        }
        visible
    }
}

type Write = (Vec<u8>, Option<Vec<u8>>);

/// Publishes writes in batches of `chunk`, numbered from 1.
fn fill(table: &MemTable, writes: &[Write], chunk: usize) -> Model {
    let mut model = Model::default();
    let mut sequence = 1;
    for batch in writes.chunks(chunk) {
        let ops = batch.iter().map(|(key, value)| match value {
            Some(value) => Op::Put { key, value },
            None => Op::Delete { key },
        });
        table.prepare(ops).unwrap().publish(sequence);
        for (key, value) in batch {
            model
                .0
                .entry(key.clone())
                .or_default()
                .push((sequence, value.clone()));
            sequence += 1;
        }
    }
    model
}

/// Checks one batch with every search, through the sink and through `Values`.
fn check_batch(table: &MemTable, model: &Model, keys: &[Vec<u8>], snapshot: u64) {
    let mut values = Values::new();
    for search in Search::all() {
        let mut answers = vec![0; keys.len()];
        search.multi_get(table, keys, snapshot, |position, lookup| {
            answers[position] += 1;
            let key = &keys[position];
            assert_eq!(
                found(lookup.unwrap()),
                model.get(key, snapshot),
                "{search}, {key:?}"
            );
        });
        assert!(
            answers.iter().all(|&n| n == 1),
            "{search} must answer each key once"
        );
        search.multi_get_values(table, keys, snapshot, &mut values);
        assert_eq!(values.len(), keys.len());
        for (key, value) in keys.iter().zip(values.iter()) {
            let expected = model.get(key, snapshot);
            assert_eq!(value.unwrap(), expected, "{search}, {key:?}");
        }
    }
    for key in keys {
        assert_eq!(
            found(table.get(key, snapshot).unwrap()),
            model.get(key, snapshot)
        );
    }
}

/// Walks the whole table in both directions, and seeks every given key.
fn check_cursor(
    table: &MemTable,
    model: &Model,
    keys: &[Vec<u8>],
    snapshot: u64,
    order: &dyn Comparator,
) {
    let mut expected = model.visible(snapshot);
    expected.sort_by(|a, b| order.compare(a.0, b.0));
    let mut cursor = table.cursor(snapshot);
    for &(key, value) in &expected {
        let entry = cursor.next().unwrap().expect("an entry is left");
        assert_eq!((entry.key, entry.value), (key, value));
    }
    assert_eq!(cursor.next().unwrap(), None);
    let mut cursor = table.cursor(snapshot);
    for &(key, value) in expected.iter().rev() {
        let entry = cursor.prev().unwrap().expect("an entry is left");
        assert_eq!((entry.key, entry.value), (key, value));
    }
    assert_eq!(cursor.prev().unwrap(), None);
    for key in keys {
        let mut cursor = table.cursor(snapshot);
        let at = expected.iter().find(|e| order.compare(e.0, key).is_ge());
        assert_eq!(cursor.seek(key).unwrap().map(|e| e.key), at.map(|e| e.0));
        let after = expected.iter().find(|e| order.compare(e.0, key).is_gt());
        assert_eq!(
            cursor.seek_after(key).unwrap().map(|e| e.key),
            after.map(|e| e.0)
        );
        let before = expected
            .iter()
            .rev()
            .find(|e| order.compare(e.0, key).is_lt());
        assert_eq!(
            cursor.seek_before(key).unwrap().map(|e| e.key),
            before.map(|e| e.0)
        );
    }
}

/// Orders by length first, and has no prefix.
struct ByLength;

impl Comparator for ByLength {
    fn name(&self) -> &str {
        "by-length"
    }

    fn compare(&self, a: &[u8], b: &[u8]) -> std::cmp::Ordering {
        a.len().cmp(&b.len()).then_with(|| a.cmp(b))
    }
}

fn orders() -> [Arc<dyn Comparator>; 3] {
    [
        Arc::new(Bytewise),
        Arc::new(ReverseBytewise),
        Arc::new(ByLength),
    ]
}

/// Short keys made of few different bytes, so that prefixes tie and keys repeat; some with a long
/// common prefix.
fn key() -> impl Generate<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(prop_oneof![Just(0_u8), Just(1), Just(255)], 0..5),
        prop::collection::vec(0_u8..3, 7..11),
        (0_u16..300).prop_map(|n| format!("user:profile:{n:05}").into_bytes()),
        any::<u64>().prop_map(|n| n.to_be_bytes().to_vec()),
    ]
}

fn writes(len: std::ops::Range<usize>) -> impl Generate<Value = Vec<Write>> {
    let value = prop::option::weighted(0.8, prop::collection::vec(any::<u8>(), 0..200));
    prop::collection::vec((key(), value), len)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn every_search_matches_a_map(
        writes in writes(0..400),
        chunk in 1_usize..40,
        absent in prop::collection::vec(key(), 0..40),
        picks in prop::collection::vec(any::<prop::sample::Index>(), 0..120),
        sorted in any::<bool>(),
        snapshot_share in 0.0..1.2_f64,
    ) {
        let snapshot = (writes.len() as f64 * snapshot_share) as u64;
        // Duplicates come from the picks.
        let mut keys = absent;
        if !writes.is_empty() {
            keys.extend(picks.iter().map(|pick| pick.get(&writes).0.clone()));
        }
        if sorted {
            keys.sort();
        }
        for order in orders() {
            let tables = [
                table(MemoryChecks::Off, order.clone()),
                table(MemoryChecks::Paranoid, order.clone()),
                indexed(order.clone()),
            ];
            for table in tables {
                let model = fill(&table, &writes, chunk);
                check_batch(&table, &model, &keys, snapshot);
                check_cursor(&table, &model, &keys, snapshot, &*order);
            }
        }
    }
}

/// A bijection on 64 bits, to scatter keys.
fn mix(i: u64) -> u64 {
    let z = (i ^ i >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

#[test]
fn large_memtables_use_their_index_for_every_kind_of_key() {
    let shapes: [fn(u64) -> Vec<u8>; 4] = [
        |n| mix(n).to_be_bytes().to_vec(),
        |n| format!("user:{:012}", mix(n) % 1_000_000).into_bytes(),
        // All keys tie on their first eight bytes, except for a few that begin differently.
        |n| match n % 512 {
            0 => mix(n).to_be_bytes().to_vec(),
            _ => format!("the same beginning {}", mix(n)).into_bytes(),
        },
        |n| n.to_be_bytes().to_vec(),
    ];
    for shape in shapes {
        let plain = |order| table(MemoryChecks::Off, order);
        let tables = orders().map(|order| [indexed(order.clone()), plain(order)]);
        for table in tables.into_iter().flatten() {
            let write = |n: u64| {
                (
                    shape(n),
                    (!n.is_multiple_of(7)).then(|| n.to_le_bytes().to_vec()),
                )
            };
            let writes: Vec<Write> = (0..20_000).map(write).collect();
            let model = fill(&table, &writes, 50);
            for batch in [1, 2, 7, 8, 9, 64, 1000, 5000_u64] {
                let keys: Vec<_> = (0..batch).map(|i| shape(mix(i + batch) % 25_000)).collect();
                check_batch(&table, &model, &keys, ALL);
            }
            let ends: [&[u8]; 5] = [b"", &[0], &[255; 20], b"the same beginning ", b"user:"];
            check_batch(&table, &model, &ends.map(<[u8]>::to_vec), ALL);
            let mut cursor = table.cursor(ALL);
            let mut seen = 0;
            while cursor.next().unwrap().is_some() {
                seen += 1;
            }
            assert_eq!(seen, model.visible(ALL).len());
        }
    }
}

/// Bytes of a table for each of its entries, with keys of 16 bytes and values of 100, at several
/// numbers of entries.
fn entry_bytes(table: &MemTable) -> Vec<usize> {
    let value = [b'v'; 100];
    let mut bytes = Vec::new();
    for step in 0..60 {
        let keys: Vec<_> = (step * 2000..(step + 1) * 2000)
            .map(|n: u64| (u128::from(mix(n)) << 64).to_be_bytes())
            .collect();
        for (batch, sequence) in keys.chunks(100).zip((step * 2000 + 1..).step_by(100)) {
            let ops = batch.iter().map(|key| Op::Put { key, value: &value });
            table.prepare(ops).unwrap().publish(sequence);
        }
        let stats = table.stats();
        bytes.push(stats.used_bytes / stats.entries);
    }
    // In a small table, the first chunks of the index count for more.
    bytes.split_off(10)
}

#[test]
fn an_entry_takes_at_most_172_bytes_with_a_hash_index_and_190_without() {
    let indexed = entry_bytes(&indexed(Arc::new(Bytewise)));
    assert!(indexed.iter().all(|&bytes| bytes <= 172), "{indexed:?}");
    let plain = entry_bytes(&table(MemoryChecks::Off, Arc::new(Bytewise)));
    assert!(plain.iter().all(|&bytes| bytes <= 190), "{plain:?}");
}

#[test]
fn chains_of_thousands_of_versions_answer_every_snapshot() {
    let bytewise = || Arc::new(Bytewise);
    let tables = [
        table(MemoryChecks::Off, bytewise()),
        table(MemoryChecks::Paranoid, bytewise()),
        indexed(bytewise()),
    ];
    for table in tables {
        let mut writes: Vec<Write> = vec![(b"a".to_vec(), Some(b"first".to_vec()))];
        for n in 0_u64..4000 {
            writes.push((
                b"chain".to_vec(),
                (n % 5 != 4).then(|| n.to_le_bytes().to_vec()),
            ));
        }
        writes.push((b"z".to_vec(), Some(b"last".to_vec())));
        let model = fill(&table, &writes, 100);
        let keys = [&b"chain"[..], b"a", b"chain", b"b", b"z", b"chain"].map(<[u8]>::to_vec);
        for snapshot in [0, 1, 2, 5, 6, 7, 2000, 3999, 4000, 4001, 4002, 10_000] {
            check_batch(&table, &model, &keys, snapshot);
            check_cursor(&table, &model, &keys, snapshot, &Bytewise);
        }
    }
}

#[test]
fn an_empty_table_and_an_empty_batch_answer_nothing() {
    let table = table(MemoryChecks::Off, Arc::new(Bytewise));
    let mut values = Values::new();
    for search in Search::all() {
        search.multi_get_values::<&[u8]>(&table, &[], 9, &mut values);
        assert!(values.is_empty());
        search.multi_get_values(&table, &[&b"a"[..], b"", b"a"], 9, &mut values);
        assert_eq!((values.len(), values.found()), (3, 0));
    }
    assert_eq!(table.cursor(9).seek_last().unwrap(), None);
    table.prepare(std::iter::empty()).unwrap().publish(1);
    assert_eq!(table.stats().entries, 0);
}

#[test]
fn memory_is_exact_and_bounded_and_refused_batches_leave_no_trace() {
    let limit_bytes = 1 << 16;
    let table = limited(limit_bytes, MemoryChecks::Off, Arc::new(Bytewise));
    let mut sequence = 1;
    let error = loop {
        let key = mix(sequence).to_be_bytes();
        let before = table.stats();
        match table.prepare(put(&key, &[1; 100])) {
            Ok(prepared) => prepared.publish(sequence),
            Err(error) => {
                assert_eq!(table.stats(), before);
                break error;
            }
        }
        let taken = table.stats().used_bytes - before.used_bytes;
        // Header, key, value, and a tower of at least one link.
        assert!(
            taken >= 12 + 8 + 100 + 16 && taken.is_multiple_of(8),
            "{taken}"
        );
        sequence += 1;
    };
    let Error::MemoryLimit {
        needed_bytes,
        used_bytes,
        limit_bytes: reported,
    } = error
    else {
        panic!("{error}")
    };
    assert_eq!(
        (used_bytes, reported),
        (table.stats().used_bytes, limit_bytes)
    );
    assert!(used_bytes <= limit_bytes && used_bytes + needed_bytes > limit_bytes);
    assert!(sequence > 300);
    for n in 1..sequence {
        assert!(matches!(
            table.get(&mix(n).to_be_bytes(), sequence),
            Ok(Lookup::Value(_))
        ));
    }
}

#[test]
fn an_unpublished_batch_returns_its_memory() {
    let table = limited(1 << 16, MemoryChecks::Off, Arc::new(Bytewise));
    let before = table.stats();
    drop(table.prepare(put(b"k", &[1; 50_000])).unwrap());
    assert_eq!(table.stats(), before);
    assert_eq!(table.get(b"k", ALL).unwrap(), Lookup::Missing);
}

#[test]
fn memory_returned_by_one_thread_serves_another() {
    const THREADS: u64 = 4;
    const WRITES: u64 = 400;
    let table = table(MemoryChecks::Paranoid, Arc::new(Bytewise));
    let write = &|n: u64| {
        let bytes = n.to_be_bytes();
        // Each kept batch follows two that are rejected, as by a failing log.
        for _ in 0..2 {
            drop(table.prepare(put(&bytes, b"refused")).unwrap());
        }
        table.prepare(put(&bytes, &bytes)).unwrap().publish(n + 1);
    };
    forerun_core::sync::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || (0..WRITES).for_each(|i| write(i * THREADS + thread)));
        }
    });
    assert_eq!(table.stats().entries as u64, THREADS * WRITES);
    for n in 0..THREADS * WRITES {
        let bytes = n.to_be_bytes();
        assert_eq!(table.get(&bytes, ALL).unwrap(), Lookup::Value(&bytes));
    }
}

/// An iterator that yields other operations from its `changes_at`th clone on.
struct Fickle<'a> {
    clones: &'a AtomicUsize,
    changes_at: usize,
    ops: std::slice::Iter<'a, Op<'a>>,
    others: &'a [Op<'a>],
}

impl Clone for Fickle<'_> {
    fn clone(&self) -> Self {
        let clone = self.clones.fetch_add(1, Ordering::Relaxed) + 1;
        let has_changed = clone >= self.changes_at;
        Fickle {
            ops: if has_changed {
                self.others.iter()
            } else {
                self.ops.clone()
            },
            ..*self
        }
    }
}

impl<'a> Iterator for Fickle<'a> {
    type Item = Op<'a>;

    fn next(&mut self) -> Option<Op<'a>> {
        self.ops.next().copied()
    }
}

#[test]
fn a_batch_that_changes_while_it_is_copied_is_refused_and_harms_nothing() {
    let table = limited(1 << 20, MemoryChecks::Paranoid, Arc::new(Bytewise));
    table.prepare(put(b"a", b"1")).unwrap().publish(1);
    let before = table.stats();
    let (big, huge, long_key) = (vec![7; 4096], vec![7; 8 << 20], vec![7; 80_000]);
    let key = b"key".as_slice();
    let one = [Op::Put { key, value: b"v" }];
    let with = |value| [Op::Put { key, value }];
    let other_batches: [&[Op<'_>]; 5] = [
        &[],
        &with(&big),
        &with(&huge),
        &[one[0], one[0]],
        &[Op::Delete { key: &long_key }],
    ];
    let mut refused = 0;
    for (ops, others) in other_batches
        .iter()
        .flat_map(|others| [(&one[..], *others), (*others, &one[..])])
    {
        for changes_at in 1..5 {
            let clones = AtomicUsize::new(0);
            let batch = Fickle {
                clones: &clones,
                changes_at,
                ops: ops.iter(),
                others,
            };
            match table.prepare(batch) {
                Err(Error::BatchChanged) => refused += 1,
                Err(Error::MemoryLimit { .. } | Error::KeyTooLong { .. }) => {}
                Err(error) => panic!("{error}"),
                Ok(prepared) => {
                    assert!(prepared.len() == ops.len() || prepared.len() == others.len());
                }
            }
            assert_eq!(table.stats(), before);
        }
    }
    assert!(refused > 5, "{refused} batches were noticed to change");
    table.prepare(put(b"b", b"2")).unwrap().publish(2);
    for (key, value) in [(b"a", b"1"), (b"b", b"2")] {
        assert_eq!(table.get(key, ALL).unwrap(), Lookup::Value(value));
    }
}

#[test]
fn keys_over_their_limit_are_refused() {
    let table = table(MemoryChecks::Off, Arc::new(Bytewise));
    let key = vec![0; 65_537];
    assert!(matches!(
        table.prepare(put(&key, b"")),
        Err(Error::KeyTooLong { .. })
    ));
    table.prepare(put(&key[1..], b"")).unwrap().publish(1);
    assert_eq!(table.get(&key[1..], 1).unwrap(), Lookup::Value(b""));
}
