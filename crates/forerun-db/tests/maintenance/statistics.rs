//! Statistics can be read at any time.

use crate::testing;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use forerun_core::sync::{Barrier, thread};
use forerun_db::io::fault::FaultIo;
use forerun_db::{Background, Db, Durability, StatsLevel, Values};
use testing::hook_io::{Change, HookIo};
use testing::{STORE, open, small_options, tiny_options};

#[test]
fn statistics_do_not_wait_for_the_commit_of_an_ingestion() {
    let barrier = Arc::new(Barrier::new(2));
    let is_committing = Arc::new(AtomicBool::new(false));
    let hook = {
        let (barrier, is_committing) = (Arc::clone(&barrier), Arc::clone(&is_committing));
        move |change, path: &Path| {
            // No write is possible while the manifest names the new runs.
            let is_install = change == Change::Rename && path.ends_with("MANIFEST");
            if is_install && is_committing.swap(false, SeqCst) {
                barrier.wait();
                barrier.wait();
            }
            Ok(())
        }
    };
    let io = HookIo::new(&FaultIo::new(), hook);
    let options = small_options().background(Background::Threads);
    let db = Db::open_with_io(Arc::new(io), STORE, options).unwrap();
    db.put("written", "value").unwrap();
    db.flush().unwrap();
    let mut ingestion = db.ingest();
    ingestion.add("ingested", "value").unwrap();
    is_committing.store(true, SeqCst);
    thread::scope(|scope| {
        let commit = scope.spawn(|| ingestion.commit());
        barrier.wait();
        let read = scope.spawn(|| db.stats());
        let begun = Instant::now();
        while !read.is_finished() && begun.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let has_read = read.is_finished();
        barrier.wait();
        commit.join().unwrap().unwrap();
        let stats = read.join().unwrap();
        assert!(has_read, "it waited for the commit");
        assert_eq!((stats.tree.ingestions, stats.memtables), (0, 1));
        assert!(stats.memtables_used_bytes > 0);
    });
    let stats = db.stats();
    assert_eq!((stats.tree.ingestions, stats.memtables), (1, 1));
    assert_eq!(stats.memtables_used_bytes, stats.memtable.used_bytes);
}

#[test]
fn statistics_count_the_snapshots_and_tell_the_age_of_the_oldest() {
    let db = open(&FaultIo::new(), &small_options()).unwrap();
    let counts = || (db.stats().snapshots, db.stats().oldest_snapshot_age_s);
    assert_eq!(counts(), (0, 0));
    let first = db.snapshot();
    db.put("key", "value").unwrap();
    let second = db.snapshot();
    let third = second.clone();
    assert_eq!(counts().0, 3);
    thread::sleep(Duration::from_millis(1_001));
    assert!((1..60).contains(&counts().1));
    let text = db.stats().to_string();
    assert!(text.contains("snapshots  3, the oldest "), "{text}");
    drop((first, second, third));
    assert_eq!(counts(), (0, 0));
}

#[test]
fn every_operation_of_every_thread_is_timed_on_request() {
    const THREADS: u64 = 20;
    let options = small_options().stats_level(StatsLevel::All);
    let db = open(&FaultIo::new(), &options).unwrap();
    let begun = Instant::now();
    thread::scope(|scope| {
        for number in 0..THREADS {
            let db = &db;
            scope.spawn(move || {
                let mut values = Values::new();
                let snapshot = db.snapshot();
                for key in 0..10_u64 {
                    db.put((10 * number + key).to_be_bytes(), "value").unwrap();
                    db.get(key.to_be_bytes()).unwrap();
                    db.read(key.to_be_bytes(), |_| ()).unwrap();
                    snapshot.get(key.to_be_bytes()).unwrap();
                    db.multi_get(&[key.to_be_bytes()], &mut values).unwrap();
                    db.multi_get(&[[1; 8], key.to_be_bytes()], &mut values)
                        .unwrap();
                }
                db.put_with("synced", "value", Durability::Synced).unwrap();
            });
        }
    });
    let elapsed_ns = begun.elapsed().as_nanos() as u64;
    let stats = db.stats();
    assert_eq!(stats.get.calls, THREADS * 40);
    assert_eq!(stats.multi_get.calls, THREADS * 10);
    assert_eq!(stats.write.calls, THREADS * 10);
    assert_eq!(stats.synced_write.calls, THREADS);
    for latency in [stats.get, stats.multi_get, stats.write, stats.synced_write] {
        assert!(
            latency.min_ns > 0 && latency.max_ns <= elapsed_ns,
            "{latency:?}"
        );
        assert!(latency.sum_ns >= latency.max_ns, "{latency:?}");
    }
}

#[test]
fn few_short_operations_are_timed_by_default_and_every_synced_write() {
    let db = open(&FaultIo::new(), &small_options()).unwrap();
    for key in 0..5_000_u32 {
        db.put((key % 10).to_be_bytes(), "value").unwrap();
        db.get(key.to_be_bytes()).unwrap();
    }
    let stats = db.stats();
    assert!((3..=7).contains(&stats.get.calls), "{:?}", stats.get);
    assert!((3..=7).contains(&stats.write.calls), "{:?}", stats.write);
    assert_eq!((stats.lookup_batches, stats.write_batches), (5_000, 5_000));
    for _ in 0..100 {
        db.put_with("key", "value", Durability::Synced).unwrap();
    }
    let before = stats;
    let stats = db.stats();
    // They take far longer, and would hide how long buffered writes take.
    assert_eq!(
        (stats.synced_write.calls, stats.write.calls),
        (100, before.write.calls)
    );
    let text = stats.to_string();
    for name in ["write", "synced"] {
        assert!(text.contains(&format!("\n{name:<10} ")), "{text}");
    }
}

#[test]
fn a_run_that_only_moves_is_counted_and_not_timed() {
    let options = tiny_options();
    let tree = options.tree.level0_runs(1);
    let db = open(&FaultIo::new(), &options.tree(tree)).unwrap();
    db.put("key", "value").unwrap();
    db.flush().unwrap();
    db.wait_idle().unwrap();
    let stats = db.stats();
    assert_eq!(
        (stats.tree.compactions, stats.tree.compaction_read_bytes),
        (1, 0)
    );
    assert_eq!(stats.compaction.calls, 0, "{:?}", stats.compaction);
    db.put("key", "newer").unwrap();
    db.compact().unwrap();
    let stats = db.stats();
    assert!(stats.tree.compaction_read_bytes > 0);
    assert_eq!(stats.compaction.calls, stats.tree.compactions - 1);
}
