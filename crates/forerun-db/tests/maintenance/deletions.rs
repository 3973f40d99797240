//! Deletions free the space of what they hide without being asked, and without further writes.

use crate::testing;

use std::time::{Duration, Instant};

use forerun_db::io::fault::FaultIo;
use forerun_db::{Background, Db, Durability, Options, TreeOptions, WriteBatch};
use testing::{open, small_options};

const KEYS: u32 = 20_000;

const DAY_S: u64 = 86_400;

/// When the stores are made.
const BEGUN_S: u64 = 1_000_000_000;

/// How long a thread may take that has work.
const PATIENCE: Duration = Duration::from_secs(20);

fn options(background: Background) -> Options {
    small_options()
        .memory_limit_bytes(64 << 20)
        .memtable_bytes(16 << 20)
        .wal_segment_bytes(16 << 20)
        .background(background)
}

fn write(db: &Db, keys: impl Iterator<Item = u32>, value: Option<&[u8]>) {
    let mut batch = WriteBatch::new();
    for key in keys {
        match value {
            Some(value) => batch.put(&key.to_be_bytes(), value),
            None => batch.delete(&key.to_be_bytes()),
        }
        .unwrap();
    }
    db.write(&batch, Durability::Buffered).unwrap();
}

/// A store with all keys in its last level.
fn full(io: &FaultIo, options: &Options) -> Db {
    let db = open(io, options).unwrap();
    write(&db, 0..KEYS, Some(b"value"));
    db.compact().unwrap();
    db
}

fn delete_every(db: &Db, step: usize) {
    write(db, (0..KEYS).step_by(step), None);
    db.flush().unwrap();
}

/// Entries in runs, including deletions.
fn entries(db: &Db) -> u64 {
    db.stats().levels.iter().map(|level| level.entries).sum()
}

/// Waits until so many entries are left in runs. No call asks for work.
fn wait_for_entries(db: &Db, left: u64) {
    let begun = Instant::now();
    while entries(db) != left {
        assert!(begun.elapsed() < PATIENCE, "{}", db.stats());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn many_deletions_free_the_space_of_what_they_hide_at_once() {
    let db = full(&FaultIo::new(), &options(Background::Threads));
    delete_every(&db, 2);
    let left = u64::from(KEYS - KEYS / 2);
    wait_for_entries(&db, left);
    assert_eq!(db.iter().count() as u64, left);
    let db = full(&FaultIo::new(), &options(Background::Caller));
    delete_every(&db, 2);
    db.wait_idle().unwrap();
    assert_eq!(entries(&db), left);
    assert!(!db.stats().is_compaction_due);
}

#[test]
fn a_few_deletions_in_a_large_store_wait_until_they_are_old() {
    for background in [Background::Caller, Background::Threads] {
        let io = FaultIo::new();
        io.set_unix_time_s(Some(BEGUN_S));
        let db = full(&io, &options(background));
        delete_every(&db, 16);
        let deleted = u64::from(KEYS.div_ceil(16));
        let compactions = || db.stats().tree.compactions;
        let before = compactions();
        io.set_unix_time_s(Some(BEGUN_S + 7 * DAY_S - 1));
        db.wait_idle().unwrap();
        assert_eq!(compactions(), before, "{background:?}: nothing is due");
        assert_eq!(entries(&db), u64::from(KEYS) + deleted);
        io.set_unix_time_s(Some(BEGUN_S + 7 * DAY_S));
        db.wait_idle().unwrap();
        assert_eq!(compactions(), before + 1, "{background:?}");
        assert_eq!(entries(&db), u64::from(KEYS) - deleted);
        io.set_unix_time_s(Some(BEGUN_S + 70 * DAY_S));
        db.wait_idle().unwrap();
        assert_eq!(compactions(), before + 1, "{background:?}: nothing is left");
    }
}

#[test]
fn deletions_are_not_old_after_the_clock_was_set_back() {
    for background in [Background::Caller, Background::Threads] {
        let io = FaultIo::new();
        io.set_unix_time_s(Some(BEGUN_S));
        let db = full(&io, &options(background));
        let before = db.stats().tree.compactions;
        io.set_unix_time_s(Some(BEGUN_S - 30 * DAY_S));
        for step in [16, 100] {
            delete_every(&db, step);
            db.wait_idle().unwrap();
            assert_eq!(db.stats().tree.compactions, before, "{background:?}");
        }
    }
}

#[test]
fn a_thread_notices_by_itself_that_deletions_have_become_old() {
    let tree = TreeOptions::default().deletion_max_age(Duration::from_secs(1));
    let db = full(&FaultIo::new(), &options(Background::Threads).tree(tree));
    delete_every(&db, 100);
    wait_for_entries(&db, u64::from(KEYS - KEYS / 100));
}

#[test]
fn deletions_never_become_old_without_a_limit() {
    let io = FaultIo::new();
    io.set_unix_time_s(Some(BEGUN_S));
    let tree = TreeOptions::default().deletion_max_age(None);
    let db = full(&io, &options(Background::Caller).tree(tree));
    delete_every(&db, 100);
    let before = entries(&db);
    io.set_unix_time_s(Some(BEGUN_S + 10_000 * DAY_S));
    db.wait_idle().unwrap();
    assert_eq!(entries(&db), before);
}

#[test]
fn deletions_that_a_snapshot_does_not_see_wait_for_it_and_are_not_compacted_meanwhile() {
    for step in [2, 100] {
        for background in [Background::Caller, Background::Threads] {
            let io = FaultIo::new();
            io.set_unix_time_s(Some(BEGUN_S));
            let db = full(&io, &options(background));
            let snapshot = db.snapshot();
            delete_every(&db, step);
            io.set_unix_time_s(Some(BEGUN_S + 8 * DAY_S));
            let before = db.stats().tree.compactions;
            for _ in 0..3 {
                db.wait_idle().unwrap();
                assert!(!db.stats().is_compaction_due, "{step}, {background:?}");
                // A later snapshot sees them.
                assert!(db.snapshot().iter().count() < KEYS as usize);
            }
            assert_eq!(
                db.stats().tree.compactions,
                before,
                "{step}, {background:?}"
            );
            assert_eq!(snapshot.iter().count(), KEYS as usize);
            drop(snapshot);
            let left = u64::from(KEYS) - u64::from(KEYS).div_ceil(step as u64);
            if background == Background::Threads && step == 2 {
                wait_for_entries(&db, left);
            }
            db.wait_idle().unwrap();
            assert_eq!(entries(&db), left, "{step}, {background:?}");
            assert_eq!(db.stats().tree.compactions, before + 1);
        }
    }
}

#[test]
fn deletions_of_everything_in_many_levels_leave_nothing_behind() {
    let tree = TreeOptions::default()
        .level1_bytes(32 << 10)
        .level_factor(3)
        .run_bytes(16 << 10);
    for background in [Background::Caller, Background::Threads] {
        let io = FaultIo::new();
        io.set_unix_time_s(Some(BEGUN_S));
        let db = open(&io, &options(background).tree(tree)).unwrap();
        // Two keyspaces, of which threads compact several at once.
        let other = db.keyspace("other").unwrap();
        for start in 0..10 {
            write(&db, (start..KEYS).step_by(10), Some(b"a value"));
            for key in (start..KEYS).step_by(20) {
                other.put(key.to_be_bytes(), b"value").unwrap();
            }
            db.flush().unwrap();
            db.wait_idle().unwrap();
        }
        let mut ingestion = other.ingest();
        for key in KEYS..2 * KEYS {
            ingestion.add(&key.to_be_bytes(), b"value").unwrap();
        }
        ingestion.commit().unwrap();
        db.wait_idle().unwrap();
        let filled = db
            .stats()
            .levels
            .iter()
            .filter(|level| level.runs > 0)
            .count();
        assert!(filled > 1, "{}", db.stats());
        write(&db, 0..KEYS, None);
        // The rest by range.
        for key in 0..KEYS + KEYS / 2 {
            other.delete(key.to_be_bytes()).unwrap();
        }
        let end = (2 * KEYS).to_be_bytes();
        other.delete_range(KEYS.to_be_bytes(), end).unwrap();
        db.flush().unwrap();
        db.wait_idle().unwrap();
        for days in 0..8 {
            io.set_unix_time_s(Some(BEGUN_S + 8 * days * DAY_S));
            db.wait_idle().unwrap();
        }
        assert_eq!(entries(&db), 0, "{background:?}: {}", db.stats());
        assert_eq!(db.iter().count() + other.iter().count(), 0);
    }
}
