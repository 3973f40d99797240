//! What compactions of a keyspace mean for each other.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forerun_core::Pages;
use forerun_core::sync::thread;

use crate::db::keyspace_data::KeyspaceData;
use crate::io::fault::FaultIo;
use crate::{Background, Db, Error, KeyspaceOptions, Options, RunOptions, TreeOptions};

fn open() -> Db {
    let tree = TreeOptions::default().level0_runs(2);
    let options = Options::default()
        .pages(Pages::Small)
        .memtable_bytes(16 << 10)
        .background_threads(2)
        .tree(tree);
    Db::open_with_io(Arc::new(FaultIo::new()), "/db", options).unwrap()
}

fn own(db: &Db) -> Arc<KeyspaceData> {
    Arc::clone(&db.inner().unwrap().keyspaces.own)
}

#[test]
fn level_0_is_compacted_while_a_full_compaction_waits() {
    let db = open();
    let inner = db.inner().unwrap();
    let turn = inner.take_turn(0);
    for round in 0..4_u8 {
        db.put([round], b"value").unwrap();
        db.put([100 + round], b"value").unwrap();
        db.flush().unwrap();
    }
    let begun = Instant::now();
    while own(&db).version.load().levels.level0_depth() >= 2 {
        assert!(begun.elapsed() < Duration::from_secs(60));
        thread::sleep(Duration::from_millis(1));
    }
    drop(turn);
    db.wait_idle().unwrap();
}

#[test]
fn a_compaction_that_began_before_another_failed_does_not_undo_that() {
    let db = open();
    let keyspace = own(&db);
    let begun = Instant::now();
    let fail = |begun| drop(keyspace.note_compaction_failed(None, Error::LogOff, begun));
    // Two that met the same fault are one attempt, and a third one ends beside them.
    fail(begun);
    let retry_at = keyspace.compaction_retry_at().unwrap();
    fail(begun);
    keyspace.note_compacted([].into_iter(), begun);
    assert_eq!(keyspace.compaction_retry_at(), Some(retry_at));
    assert!(keyspace.compaction_failure().is_some());
    // The retry fails too, so the next one waits for longer. That one succeeds.
    fail(retry_at);
    let next_retry_at = keyspace.compaction_retry_at().unwrap();
    assert!(next_retry_at > retry_at);
    keyspace.note_compacted([].into_iter(), next_retry_at);
    assert!(keyspace.compaction_failure().is_none());
}

#[test]
fn after_a_failure_a_single_compaction_tries_again() {
    let tree = TreeOptions::default().level_factor(2).run_bytes(4 << 10);
    let options = Options::default()
        .pages(Pages::Small)
        .memtable_bytes(16 << 10)
        .background(Background::Caller)
        .run(RunOptions::default().page_bytes(4 << 10))
        .tree(tree.level1_bytes(1 << 20));
    let db = Db::open_with_io(Arc::new(FaultIo::new()), "/db", options).unwrap();
    for value in 0..2_u8 {
        let mut ingestion = db.ingest();
        for key in 0..600_u32 {
            // Bytes that do not get smaller.
            let value = (0..200_u32).map(|at| (key * 199 + at * 211 + key * at) as u8 ^ value);
            let value: Vec<u8> = value.collect();
            ingestion.add(key.to_be_bytes(), value).unwrap();
        }
        ingestion.commit().unwrap();
    }
    let (inner, keyspace) = (db.inner().unwrap(), own(&db));
    // Every run above the last level is due.
    let due = KeyspaceOptions::clone(&keyspace.options.load()).tree(tree.level1_bytes(1));
    keyspace.set_options(due);
    let begin = || inner.begin_due_beside(&keyspace).unwrap();
    let at_once = [begin(), begin()];
    assert!(at_once.iter().all(Option::is_some));
    drop(at_once);
    keyspace.note_compaction_failed(None, Error::LogOff, Instant::now());
    assert!(begin().is_none());
    keyspace.retry_compaction(Instant::now());
    let retry = begin();
    assert!(retry.is_some() && begin().is_none());
    drop(retry);
    assert!(begin().is_some());
}

#[test]
fn a_thread_that_found_no_work_wakes_only_for_retries_that_were_not_due() {
    let options = Options::default().pages(Pages::Small);
    let options = options.background(Background::Caller);
    let db = Db::open_with_io(Arc::new(FaultIo::new()), "/db", options).unwrap();
    let keyspace = own(&db);
    let begun = Instant::now();
    keyspace.note_compaction_failed(Some(7), Error::LogOff, begun);
    let retry_at = keyspace.compaction_retries()[0];
    let keyspaces = db.inner().unwrap().keyspaces.load_full();
    let wait = |looked| keyspaces.compaction_retry(looked, |_| true);
    assert!(wait(begun).is_some());
    // Another run that cannot be read keeps it from being tried.
    assert_eq!(wait(retry_at), None);
}
