//! What compactions of a keyspace mean for each other.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use forerun_core::Pages;
use forerun_core::sync::thread;

use super::RunningCompaction;
use crate::db::keyspace_data::KeyspaceData;
use crate::events::{CompactionReason, DbEvent};
use crate::io::fault::FaultIo;
use crate::tree::pick::pick;
use crate::{
    Background, Compression, Db, Error, KeyspaceOptions, Options, RunOptions, TreeOptions,
};

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

/// A store of pages of 4 KiB that are not compressed, in which nothing is due.
fn quiet() -> Options {
    let tree = TreeOptions::default()
        .level0_runs(50)
        .level0_slow_runs(90)
        .level0_stop_runs(100)
        .run_bytes(4 << 10);
    let run = RunOptions::default().page_bytes(4 << 10);
    Options::default()
        .pages(Pages::Small)
        .memtable_bytes(1 << 20)
        .run(run.compression(Compression::None))
        .tree(tree)
}

#[test]
fn compactions_share_the_background_threads() {
    let options = quiet().background_threads(4);
    let due = options.tree.level0_runs(2);
    let db = Db::open_with_io(Arc::new(FaultIo::new()), "/db", options).unwrap();
    let inner = db.inner().unwrap();
    let begin = |name: &str, is_background| {
        let keyspace = db.keyspace(name).unwrap();
        for _ in 0..2 {
            for key in 0..300_u32 {
                keyspace.put(key.to_be_bytes(), [7; 100]).unwrap();
            }
            keyspace.flush().unwrap();
        }
        let keyspaces = inner.keyspaces.load_full();
        let keyspace = keyspaces.iter().find(|of| of.name() == name).unwrap();
        let levels = Arc::clone(&keyspace.version.load().levels);
        let mut catalog = inner.tree.catalog();
        let running = catalog.running().in_keyspace(keyspace.id());
        let picked = pick(&levels, &due, u64::MAX, &running).unwrap();
        let picked = (picked, CompactionReason::Level);
        RunningCompaction::begin(inner, &mut catalog, keyspace, picked, is_background).unwrap()
    };
    let taken = || inner.tree.catalog().running().threads();
    let first = begin("a", true);
    assert_eq!((first.threads, taken()), (4, 4));
    let second = begin("b", true);
    assert_eq!((second.threads, taken()), (1, 5));
    let of_caller = begin("c", false);
    assert_eq!((of_caller.threads, taken()), (1, 5));
    drop((first, of_caller));
    let of_caller = begin("d", false);
    assert_eq!(
        (of_caller.threads, taken()),
        (4, 4),
        "the caller's is not theirs"
    );
    drop((second, of_caller));
    assert_eq!(taken(), 0);
}

#[test]
fn a_full_compaction_remembers_the_run_that_it_could_not_read() {
    let io = FaultIo::new();
    let attempts = Arc::new(AtomicUsize::new(0));
    let keyspace: Arc<OnceLock<Arc<KeyspaceData>>> = Arc::default();
    let (counted, forgets) = (Arc::clone(&attempts), Arc::clone(&keyspace));
    // What a background thread does that finds nothing due, once the time of a retry has come.
    let forget = move |event: &DbEvent| {
        if let DbEvent::CompactionEnded { error: Some(_), .. } = event
            && counted.fetch_add(1, Ordering::SeqCst) < 5
        {
            let keyspace = forgets.get().unwrap();
            keyspace.retry_compaction(Instant::now());
            keyspace.forget_failures(true);
        }
    };
    let options = quiet()
        .background(Background::Caller)
        .event_listener(Arc::new(forget));
    let db = Db::open_with_io(Arc::new(io.clone()), "/db", options.clone()).unwrap();
    for _ in 0..4 {
        for key in 0..300_u32 {
            db.put(key.to_be_bytes(), [7; 100]).unwrap();
        }
        db.flush().unwrap();
    }
    db.close().unwrap();
    let files = io.files();
    let is_run = |path: &&PathBuf| path.extension().is_some_and(|of| of == "run");
    let run: &Path = files.iter().find(is_run).unwrap();
    let mut bytes = io.read(run).unwrap();
    bytes[4 << 10] ^= 0xff;
    io.write(run, &bytes);
    let db = Db::open_with_io(Arc::new(io), "/db", options).unwrap();
    assert!(keyspace.set(own(&db)).is_ok());
    let error = db.compact().unwrap_err();
    assert!(matches!(&error, Error::CompactionFailed { .. }), "{error}");
    let name = run.file_name().unwrap().to_string_lossy();
    assert!(error.to_string().contains(&*name), "{error}");
    assert_eq!(attempts.load(Ordering::SeqCst), 1);
    assert!(own(&db).compaction_failure().is_none(), "it was forgotten");
}
