//! Flushes and compactions: versions that readers need stay, and deleted ones do not return.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use forerun_db::io::fault::FaultIo;
use forerun_db::io::{Io, OpenMode, write_all_at};
use forerun_db::{Background, Db, Error, KeyspaceOptions, Options, TreeOptions, WriteBatch};

use crate::testing::hook_io::{Change, HookIo};
use crate::testing::{open, run_files, small_options, tiny_options};
use crate::{holds, many_runs, open_hooked};

#[test]
fn a_snapshot_keeps_the_newest_version_that_it_sees() {
    holds(|| {
        let db = open(&FaultIo::new(), &tiny_options()).unwrap();
        db.put(b"key", b"old").unwrap();
        let before = db.snapshot();
        db.put(b"key", b"new").unwrap();
        db.put(b"other", b"value").unwrap();
        db.compact().unwrap();
        before.get(b"key").unwrap().as_deref() == Some(b"old")
    });
}

#[test]
fn a_dropped_snapshot_keeps_nothing() {
    holds(|| {
        let db = open(&FaultIo::new(), &tiny_options()).unwrap();
        db.put(b"key", b"old").unwrap();
        drop(db.snapshot());
        db.put(b"key", b"new").unwrap();
        db.compact().unwrap();
        db.stats()
            .levels
            .iter()
            .map(|level| level.entries)
            .sum::<u64>()
            == 1
    });
}

/// Level 0 is merged into level 5, and level 6 holds everything that existed before.
fn two_levels() -> Options {
    tiny_options().memtable_bytes(64 << 10).tree(
        TreeOptions::default()
            .level0_runs(2)
            .level1_bytes(8 << 10)
            .level_factor(10)
            .run_bytes(64 << 10),
    )
}

/// Bytes that do not compress.
fn noise(seed: u64) -> Vec<u8> {
    let words = (1..33).map(|word: u64| (seed << 8 | word).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    words
        .flat_map(|word| (word ^ word >> 29).to_le_bytes())
        .collect()
}

#[test]
fn a_deletion_stays_while_a_deeper_level_has_the_key() {
    holds(|| {
        let db = open(&FaultIo::new(), &two_levels()).unwrap();
        for i in 0..100_u64 {
            db.put(&i.to_be_bytes(), &noise(i)).unwrap();
        }
        db.compact().unwrap();
        for round in 0..2 {
            db.put(&0_u64.to_be_bytes(), &noise(1000 + round)).unwrap();
            db.delete(&50_u64.to_be_bytes()).unwrap();
            db.put(&99_u64.to_be_bytes(), &noise(2000 + round)).unwrap();
            db.flush().unwrap();
        }
        db.wait_idle().unwrap();
        let levels = db.stats().levels;
        assert!(levels[5].runs > 0 && levels[6].runs > 0, "{levels:?}");
        db.get(&50_u64.to_be_bytes()).unwrap().is_none()
    });
}

#[test]
fn a_range_deletion_stays_while_it_covers_the_last_key_of_a_run() {
    holds(|| {
        let db = open(&FaultIo::new(), &tiny_options()).unwrap();
        db.put(b"a", b"value").unwrap();
        db.put(b"m", b"value").unwrap();
        db.flush().unwrap();
        db.delete_range(b"m", b"z").unwrap();
        db.flush().unwrap();
        db.get(b"m").unwrap().is_none()
    });
}

#[test]
fn range_deletions_respect_the_memory_limit() {
    holds(|| {
        let options = small_options();
        let db = open(&FaultIo::new(), &options).unwrap();
        let mut batch = WriteBatch::new();
        while batch.encoded().len() <= options.memory_limit_bytes {
            batch.delete_range(&[b'a'; 100], &[b'z'; 100]).unwrap();
        }
        let written = db.write(&batch, options.durability);
        matches!(written, Err(Error::MemoryLimit { .. }))
    });
}

/// A store with a keyspace "bad", where a page of the first run is damaged; also the run's file and
/// its original bytes.
fn with_bad_page() -> (FaultIo, String, Vec<u8>) {
    let io = FaultIo::new();
    let db = open(&io, &many_runs()).unwrap();
    let bad = db.keyspace("bad").unwrap();
    for round in 0..4 {
        for i in 0..60_u64 {
            bad.put(&i.to_be_bytes(), &noise(round << 32 | i)).unwrap();
        }
        bad.flush().unwrap();
    }
    drop((bad, db));
    let run = run_files(&io).swap_remove(0);
    let whole = io.read(&run).unwrap();
    let mut bytes = whole.clone();
    bytes[4 << 10] ^= 0xff;
    io.write(&run, &bytes);
    (io, run, whole)
}

#[test]
fn a_bad_page_of_one_keyspace_refuses_no_writes_of_another() {
    holds(|| {
        let (io, ..) = with_bad_page();
        let db = open(&io, &tiny_options()).unwrap();
        let good = db.keyspace("good").unwrap();
        (0..100_u64).all(|i| good.put(&i.to_be_bytes(), &noise(i)).is_ok())
    });
}

#[test]
fn a_keyspace_takes_writes_again_once_it_was_compacted() {
    holds(|| {
        let (io, run, whole) = with_bad_page();
        let db = open(&io, &tiny_options()).unwrap();
        let bad = db.keyspace("bad").unwrap();
        // The same keys again and again, so that level 0 gets deep.
        let mut puts = (0..4_000_u64).map(|i| bad.put(&(i % 60).to_be_bytes(), &noise(i)));
        let refused = puts.find_map(Result::err);
        assert!(
            matches!(refused, Some(Error::KeyspaceStopped { .. })),
            "{refused:?}"
        );
        // Overwritten in place, because the store has the file open.
        let file = io.open(run.as_ref(), OpenMode::ReadWrite).unwrap();
        write_all_at(&*file, &whole, 0).unwrap();
        bad.compact().unwrap();
        bad.put(b"key", b"value").is_ok()
    });
}

/// A hook that is called once, while a log segment is removed.
type Hook = Box<dyn FnOnce() + Send>;

#[test]
fn readers_find_the_key_while_an_ingestion_commits() {
    holds(|| {
        let disk = FaultIo::new();
        let hook: Arc<Mutex<Option<Hook>>> = Arc::default();
        let hooked = Arc::clone(&hook);
        let manifests = Arc::new(AtomicUsize::new(0));
        let renamed = Arc::clone(&manifests);
        let io = HookIo::new(&disk, move |change, path| {
            let is_log = path.extension().is_some_and(|of| of == "log");
            if change == Change::Rename {
                renamed.fetch_add(1, Ordering::SeqCst);
            }
            if change == Change::Remove && is_log {
                let hook = hooked.lock().unwrap().take();
                hook.into_iter().for_each(|hook| hook());
            }
            Ok(())
        });
        let options = small_options()
            .background(Background::Threads)
            .wal_segment_bytes(1)
            .tree(TreeOptions::default().level0_runs(1).level1_bytes(1));
        let db = open_hooked(&io, options);
        db.put(b"k", b"old").unwrap();
        db.flush().unwrap();
        db.wait_idle().unwrap();
        let other = db.keyspace("other").unwrap();
        other.put(b"z", b"z").unwrap();
        db.flush().unwrap();
        db.wait_idle().unwrap();
        let (reported, found) = std::sync::mpsc::channel();
        let reader = db.clone();
        *hook.lock().unwrap() = Some(Box::new(move || {
            // The runs are installed, and their log segments are being removed. A compaction that
            // follows writes a manifest.
            let (before, begun) = (manifests.load(Ordering::SeqCst), Instant::now());
            let is_compacted = || manifests.load(Ordering::SeqCst) > before;
            while !is_compacted() && begun.elapsed() < Duration::from_secs(2) {
                let options = KeyspaceOptions::default();
                reader.keyspace_with("other", options).unwrap();
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_millis(20));
            reported.send(reader.get(b"k").unwrap()).unwrap();
        }));
        let mut ingestion = db.ingest();
        ingestion.add(b"k", b"new").unwrap();
        ingestion.commit().unwrap();
        found.recv().unwrap().is_some()
    });
}

#[test]
fn a_lookup_searches_a_run_for_its_last_key() {
    holds(|| {
        let db: Db = open(&FaultIo::new(), &tiny_options()).unwrap();
        db.put(b"a", b"value").unwrap();
        db.put(b"b", b"value").unwrap();
        db.flush().unwrap();
        db.get(b"b").unwrap().is_some()
    });
}
