//! Memtables with every limit up to a few KiB, and with limits at which a skip-list index is due:
//! whatever is the first request that does not fit, a table keeps what it took and not more.

use crate::testing::search;

use std::collections::BTreeMap;

use forerun_core::{Pages, split_mix64};
use forerun_db::memtable::{Lookup, MemTable, MemTableConfig, MemoryChecks};
use forerun_db::{Error, Op};
use search::Search;

/// A snapshot that sees everything.
const ALL: u64 = u64::MAX >> 8;

type Map = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// How a table is made: its checks, and whether it has a hash index.
const KINDS: [(MemoryChecks, bool); 3] = [
    (MemoryChecks::Off, false),
    (MemoryChecks::Off, true),
    (MemoryChecks::Paranoid, false),
];

/// Writes batches until none of them fits, then shorter ones. Returns the newest versions and the
/// number of all.
fn fill(table: &MemTable, bytes_max: u64, seed: u64) -> (Map, usize) {
    let mut random = seed;
    let mut below = |end: u64| split_mix64(&mut random) % end;
    let mut map = Map::new();
    let mut written = 0;
    for batch_len in [9, 4, 1] {
        loop {
            let batch: Vec<_> = (0..batch_len)
                .map(|_| {
                    // A few keys are written often.
                    let bits = 4 + 8 * below(3);
                    let number = below(1 << bits);
                    let mut key = number.to_be_bytes()[below(3) as usize..].to_vec();
                    key.resize(key.len() + below(bytes_max) as usize, b'k');
                    let value =
                        (below(5) > 0).then(|| vec![number as u8; below(bytes_max) as usize]);
                    (key, value)
                })
                .collect();
            let ops = batch.iter().map(|(key, value)| match value {
                Some(value) => Op::Put { key, value },
                None => Op::Delete { key },
            });
            let before = table.stats();
            match table.prepare(ops) {
                Ok(prepared) => prepared.publish(written as u64 + 1),
                Err(Error::MemoryLimit { .. }) => {
                    assert_eq!(table.stats(), before);
                    break;
                }
                Err(error) => panic!("{error}"),
            }
            map.extend(batch);
            written += batch_len;
        }
    }
    (map, written)
}

fn check(table: &MemTable, map: &Map, written: usize) {
    let stats = table.stats();
    assert_eq!(stats.entries, written);
    assert!(stats.used_bytes <= stats.limit_bytes, "{stats:?}");
    let keys: Vec<_> = map.keys().cloned().chain([b"none".to_vec()]).collect();
    for search in Search::all() {
        let mut answers = 0;
        search.multi_get(table, &keys, ALL, |position, lookup| {
            answers += 1;
            let wanted = match map.get(&keys[position]) {
                None => Lookup::Missing,
                Some(None) => Lookup::Deleted,
                Some(Some(value)) => Lookup::Value(value),
            };
            assert_eq!(lookup.unwrap(), wanted, "{search}");
            assert_eq!(table.get(&keys[position], ALL).unwrap(), wanted);
        });
        assert_eq!(answers, keys.len());
    }
    let entries = || {
        let entries = map
            .iter()
            .filter_map(|(key, value)| value.as_ref().map(|value| (key, value)));
        entries.map(|(key, value)| (&key[..], &value[..]))
    };
    let mut cursor = table.cursor(ALL);
    for wanted in entries() {
        let entry = cursor.next().unwrap().map(|entry| (entry.key, entry.value));
        assert_eq!(entry, Some(wanted));
    }
    assert_eq!(cursor.next().unwrap(), None);
    for wanted in entries().rev() {
        let entry = cursor.prev().unwrap().map(|entry| (entry.key, entry.value));
        assert_eq!(entry, Some(wanted));
    }
    assert_eq!(cursor.prev().unwrap(), None);
}

#[test]
fn a_table_with_any_limit_keeps_what_it_took() {
    for (checks, hash_index) in KINDS {
        let mut written_max = 0;
        for limit_bytes in (0..6000).step_by(24).chain([1, 511, 512, 4097]) {
            let config = MemTableConfig::default()
                .limit_bytes(limit_bytes)
                .checks(checks)
                .hash_index(hash_index)
                .pages(Pages::Small);
            let needed_bytes = if hash_index { 2048 } else { 512 };
            match MemTable::new(config) {
                Ok(table) => {
                    let (map, written) = fill(&table, 20, limit_bytes as u64);
                    check(&table, &map, written);
                    written_max = written_max.max(written);
                }
                Err(Error::MemoryLimit { .. }) => {
                    assert!(limit_bytes < needed_bytes, "{limit_bytes} suffice");
                }
                Err(error) => panic!("{limit_bytes}: {error}"),
            }
        }
        assert!(written_max > 40, "{written_max}");
    }
}

#[test]
fn a_table_without_memory_for_its_skip_list_index_answers_all_the_same() {
    // An index is due at 2,048 entries, and the next one at 5/4 or twice as many.
    for (checks, hash_index) in KINDS {
        let mut written_min = usize::MAX;
        let mut written_max = 0;
        for limit_bytes in (100 << 10..260 << 10).step_by(12_000) {
            let config = MemTableConfig::default()
                .limit_bytes(limit_bytes)
                .checks(checks)
                .hash_index(hash_index)
                .pages(Pages::Small);
            let table = MemTable::new(config).unwrap();
            let (map, written) = fill(&table, 4, limit_bytes as u64);
            check(&table, &map, written);
            written_min = written_min.min(written);
            written_max = written_max.max(written);
        }
        assert!(
            written_min < 2048 && written_max > 2600,
            "{written_min} to {written_max}"
        );
    }
}
