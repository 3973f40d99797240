//! Counts of a table with a store: exact after every kind of write, and cheap after small ones.

use crate::testing;

use forerun_db::{Db, Options};
use forerun_table::{Dtype, Table, Update, WritePolicy};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use testing::rows;

const WORDS: usize = 4;
/// So many that a count looks up what was written since the last one.
const KEYS: u64 = 20_000;
/// More than half a memtable: an ascending import is an ingestion.
const MEMTABLE_BYTES: usize = 64 << 10;

fn open(db: &Db, writes: WritePolicy) -> Table {
    let builder = Table::builder(Dtype::I64, WORDS as u32).db(db.clone());
    builder.host_capacity(64).writes(writes).open().unwrap()
}

fn open_db(directory: &tempfile::TempDir) -> Db {
    let options = Options::default().memtable_bytes(MEMTABLE_BYTES);
    Db::open(directory.path().join("store"), options).unwrap()
}

fn insert(table: &Table, keys: &[u64]) {
    table.insert(keys, &rows(WORDS, keys, 1)).unwrap();
}

/// The keys that the store looked up while the table counted.
fn lookups_of_a_count(table: &Table, db: &Db, wanted: usize, when: &str) -> u64 {
    let before = db.stats().lookup_keys;
    assert_eq!(table.count().unwrap(), wanted as u64, "{when}");
    db.stats().lookup_keys - before
}

#[test]
fn a_count_looks_up_what_was_written_since_the_last_one() {
    for writes in [WritePolicy::WriteThrough, WritePolicy::WriteBack] {
        let directory = tempfile::tempdir().unwrap();
        let db = open_db(&directory);
        let table = open(&db, writes);
        insert(&table, &(0..KEYS).collect::<Vec<_>>());
        let mut model: BTreeSet<u64> = (0..KEYS).collect();
        let counted = |model: &BTreeSet<u64>, keys: u64, when: &str| {
            let looked_up = lookups_of_a_count(&table, &db, model.len(), when);
            // Each key in the snapshot of the last count and in the present one.
            assert_eq!(looked_up, 2 * keys, "{writes:?}, {when}");
        };
        counted(&model, 0, "first");
        // New and existing keys, some of them twice.
        let keys: Vec<u64> = (KEYS - 10..KEYS + 40).collect();
        insert(&table, &[&keys[..], &keys[..30]].concat());
        model.extend(&keys);
        counted(&model, 50, "inserted");
        counted(&model, 0, "unchanged");

        // Missing and existing keys.
        let keys: Vec<u64> = (KEYS + 20..KEYS + 60).collect();
        table.erase(&keys).unwrap();
        model.retain(|key| !keys.contains(key));
        counted(&model, 40, "erased");
        // Erased and inserted again, and the reverse.
        table.erase(&[1, 2]).unwrap();
        insert(&table, &[2, KEYS + 100]);
        table.erase(&[KEYS + 100]).unwrap();
        model.remove(&1);
        counted(&model, 3, "erased and inserted");

        // Updates insert nothing.
        let keys = [1, 5, 6];
        let mut found = [false; 3];
        let given = rows(WORDS, &keys, 0);
        table
            .update(&keys, &given, Update::Add, &mut found)
            .unwrap();
        assert_eq!(found, [false, true, true]);
        counted(&model, 2, "updated");

        // Through the log, and as an ingestion.
        let keys: Vec<u64> = (KEYS + 300..KEYS + 320).rev().collect();
        table.import_rows(&keys, &rows(WORDS, &keys, 1)).unwrap();
        model.extend(&keys);
        counted(&model, 20, "imported");
        let keys: Vec<u64> = (KEYS + 310..KEYS + 1600).collect();
        let before = db.stats().tree.ingestions;
        table.import_rows(&keys, &rows(WORDS, &keys, 1)).unwrap();
        assert_eq!(db.stats().tree.ingestions, before + 1);
        model.extend(&keys);
        counted(&model, 1290, "ingested");

        // The snapshot of the last count sees what compaction would drop otherwise.
        table.erase(&(0..500).collect::<Vec<_>>()).unwrap();
        model.retain(|key| *key >= 500);
        table.flush().unwrap();
        db.compact().unwrap();
        counted(&model, 500, "compacted");
        drop(db);
    }
}

#[test]
fn a_count_sees_what_others_write_to_the_store() {
    let directory = tempfile::tempdir().unwrap();
    let db = open_db(&directory);
    let table = open(&db, WritePolicy::WriteThrough);
    insert(&table, &(0..KEYS).collect::<Vec<_>>());
    assert_eq!(table.count().unwrap(), KEYS);
    // Operations of the table and of others, in the same number of each.
    insert(&table, &[KEYS]);
    db.delete(7_u64.to_be_bytes()).unwrap();
    assert_eq!(table.count().unwrap(), KEYS);
    db.keyspace("other").unwrap().put(b"key", b"value").unwrap();
    insert(&table, &[KEYS + 1]);
    assert_eq!(table.count().unwrap(), KEYS + 1);
    insert(&table, &[KEYS + 2]);
    assert_eq!(
        lookups_of_a_count(&table, &db, KEYS as usize + 2, "alone"),
        2
    );
}

#[test]
fn a_count_after_many_writes_remembers_none_of_them() {
    let directory = tempfile::tempdir().unwrap();
    let db = open_db(&directory);
    let table = open(&db, WritePolicy::WriteThrough);
    insert(&table, &[1]);
    assert_eq!(table.count().unwrap(), 1);
    // The same key so often that the table would need megabytes to remember it.
    for _ in 0..80 {
        insert(&table, &[2; 1000]);
    }
    assert_eq!(lookups_of_a_count(&table, &db, 2, "many"), 0);
    // Many keys for a small table: the store counts faster.
    insert(&table, &[3]);
    assert_eq!(lookups_of_a_count(&table, &db, 3, "small"), 0);
}

#[test]
fn counts_beside_writes_lie_between_what_was_there_before_and_after() {
    for writes in [WritePolicy::WriteThrough, WritePolicy::WriteBack] {
        let directory = tempfile::tempdir().unwrap();
        let db = open_db(&directory);
        let table = open(&db, writes);
        insert(&table, &(0..KEYS).collect::<Vec<_>>());
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for first in [KEYS, 2 * KEYS] {
                let (table, is_done) = (&table, &is_done);
                scope.spawn(move || {
                    // Each thread inserts 600 keys, and erases every third of them.
                    for key in first..first + 600 {
                        insert(table, &[key]);
                        if key % 3 == 0 {
                            table.erase(&[key]).unwrap();
                        }
                    }
                    is_done.store(true, Ordering::Release);
                });
            }
            let mut last = KEYS;
            for _ in 0..2 {
                let (table, is_done) = (&table, &is_done);
                scope.spawn(move || {
                    while !is_done.load(Ordering::Acquire) {
                        let count = table.count().unwrap();
                        // At most one key of each thread is there for a moment.
                        assert!(count + 2 >= last, "{count} after {last}");
                        assert!(count <= KEYS + 1200);
                        last = count;
                    }
                });
            }
        });
        assert_eq!(table.count().unwrap(), KEYS + 800, "{writes:?}");
        assert_eq!(table.count().unwrap(), KEYS + 800, "{writes:?}");
    }
}
