//! A store that outgrows its memory: flushes and compactions run while it is written and read.

use crate::testing;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use forerun_db::io::fault::FaultIo;
use forerun_db::{
    Background, Db, Durability, Error, KeyspaceOptions, Options, ReadBackend, TreeOptions, Values,
    WalMode, WriteBatch,
};
use testing::{STORE, open, small_options, tiny_options};

/// Small memtables and runs, and the store's own background threads.
fn busy_options() -> Options {
    small_options()
        .memory_limit_bytes(1 << 20)
        .memtable_bytes(64 << 10)
        .cache_bytes(1 << 20)
        .wal_segment_bytes(32 << 10)
        .background(Background::Threads)
        .tree(
            TreeOptions::default()
                .level1_bytes(256 << 10)
                .level_factor(4)
                .run_bytes(64 << 10),
        )
}

fn key(i: u64) -> Vec<u8> {
    format!("key {:08}", i.wrapping_mul(0x9e37_79b1) % 1_000_003).into_bytes()
}

fn value(i: u64, version: u64) -> Vec<u8> {
    format!("{i} @ {version} ")
        .repeat(1 + (i % 7) as usize)
        .into_bytes()
}

#[test]
fn an_idle_store_has_only_its_runs_and_the_end_of_its_log() {
    for background in [Background::Threads, Background::Caller] {
        let io = FaultIo::new();
        let options = busy_options().background(background);
        let db = open(&io, &options).unwrap();
        for i in 0..6_000 {
            db.put(&key(i % 2_000), &value(i, 1)).unwrap();
        }
        db.flush().unwrap();
        db.wait_idle().unwrap();
        let stats = db.stats();
        assert!(!stats.is_compaction_due, "{background:?}");
        assert!(stats.tree.compactions > 0, "{background:?}");
        let runs: usize = stats.levels.iter().map(|level| level.runs).sum();
        let files = io.files();
        let of_kind = |end: &str| {
            let names = files.iter().filter_map(|path| path.to_str());
            names.filter(|name| name.ends_with(end)).count()
        };
        assert_eq!(of_kind(".run"), runs, "{background:?}: {files:?}");
        assert_eq!(of_kind(".log"), 1, "{background:?}: {files:?}");
    }
}

#[test]
fn a_store_holds_and_returns_many_times_its_memory() {
    const KEYS: u64 = 12_000;
    let dir = tempfile::tempdir().unwrap();
    for reads in ReadBackend::ALL {
        let path = dir.path().join(reads.to_string());
        let options = busy_options().reads(reads);
        let db = Db::open(&path, options.clone()).unwrap();
        for version in 0..2 {
            let mut batch = WriteBatch::new();
            for i in 0..KEYS {
                if i % 10 == 9 && version == 1 {
                    batch.delete(&key(i)).unwrap()
                } else {
                    batch.put(&key(i), &value(i, version)).unwrap()
                }
                if batch.len() == 50 {
                    db.write(&batch, Durability::Buffered).unwrap();
                    batch.clear();
                }
            }
        }
        let check = |db: &Db, when: &str| {
            let mut values = Values::new();
            for first in (0..KEYS).step_by(300) {
                let keys: Vec<Vec<u8>> = (first..(first + 300).min(KEYS)).map(key).collect();
                db.multi_get(&keys, &mut values).unwrap();
                for (i, found) in (first..).zip(values.iter()) {
                    let wanted = (i % 10 != 9).then(|| value(i, 1));
                    assert_eq!(
                        found.unwrap(),
                        wanted.as_deref(),
                        "{reads}, {when}: key {i}"
                    );
                }
            }
            for i in (0..KEYS).step_by(97) {
                assert_eq!(db.get(&key(i)).unwrap(), (i % 10 != 9).then(|| value(i, 1)));
                assert_eq!(db.get(&[&key(i)[..], b"x"].concat()).unwrap(), None);
            }
            assert_eq!(
                db.iter().count() as u64,
                KEYS - KEYS / 10,
                "{reads}, {when}"
            );
            assert_eq!(
                db.iter().rev().count() as u64,
                KEYS - KEYS / 10,
                "{reads}, {when}"
            );
        };
        check(&db, "just written");
        let stats = db.stats();
        assert!(
            stats.tree.flushes > 10 && stats.tree.compactions > 3,
            "{stats}"
        );
        assert!(
            stats.memtables_used_bytes <= options.memory_limit_bytes,
            "{stats}"
        );
        // Pages that find no free frame are lent to the batch beyond the budget, a few dozen at
        // most.
        let lent_at_most = 1 << 20;
        assert!(
            stats.cache.used_bytes <= stats.cache.capacity_bytes + lent_at_most,
            "{stats}"
        );
        db.close().unwrap();
        let db = Db::open(&path, options).unwrap();
        check(&db, "reopened");
        db.compact().unwrap();
        check(&db, "compacted");
        let entries: u64 = db.stats().levels.iter().map(|level| level.entries).sum();
        assert_eq!(
            entries,
            KEYS - KEYS / 10,
            "old versions and deletions are gone: {}",
            db.stats()
        );
        let log_bytes: u64 = std::fs::read_dir(&path)
            .unwrap()
            .map(|entry| entry.unwrap())
            .filter(|entry| entry.file_name().to_string_lossy().starts_with("wal-"))
            .map(|entry| entry.metadata().unwrap().len())
            .sum();
        assert!(
            log_bytes < 200 << 10,
            "the log keeps {log_bytes} bytes that are in runs"
        );
    }
}

#[test]
fn snapshots_and_iterators_are_stable_across_flushes_and_compactions() {
    let db = open(&FaultIo::new(), &tiny_options()).unwrap();
    let mut model = BTreeMap::new();
    let mut seen = Vec::new();
    for i in 0..600_u64 {
        let key = key(i % 37);
        if i % 11 == 3 {
            db.delete(&key).unwrap();
            model.remove(&key);
        } else {
            db.put(&key, &value(i, 0)).unwrap();
            model.insert(key, value(i, 0));
        }
        if i % 23 == 0 {
            let mut iter = db.iter();
            let first = iter.next().transpose().unwrap();
            seen.push((db.snapshot(), iter, first, model.clone()));
        }
        if i == 300 {
            db.compact().unwrap();
        }
    }
    assert!(db.stats().tree.compactions > 5, "{}", db.stats());
    for (snapshot, iter, first, model) in seen {
        let wanted: Vec<_> = model.into_iter().collect();
        let found: Result<Vec<_>, _> = snapshot.iter().collect();
        assert_eq!(found.unwrap(), wanted);
        let found: Result<Vec<_>, _> = first.into_iter().map(Ok).chain(iter).collect();
        assert_eq!(found.unwrap(), wanted, "an iterator keeps its read point");
        let keys: Vec<_> = (0..37).map(key).collect();
        let mut values = Values::new();
        snapshot.multi_get(&keys, &mut values).unwrap();
        for (key, value) in keys.iter().zip(values.iter()) {
            let wanted = wanted
                .iter()
                .find(|(k, _)| k == key)
                .map(|(_, v)| v.as_slice());
            assert_eq!(value.unwrap(), wanted);
        }
    }
    // Without snapshots, nothing old is kept.
    db.compact().unwrap();
    let entries: u64 = db.stats().levels.iter().map(|level| level.entries).sum();
    assert_eq!(entries, model_len(&db));
}

fn model_len(db: &Db) -> u64 {
    db.iter().count() as u64
}

#[test]
fn readers_see_whole_batches_while_memtables_become_runs() {
    const PAIRS: u64 = 50;
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path().join("store"), busy_options()).unwrap();
    let (a, b) = (
        |i: u64| format!("a{i:03}").into_bytes(),
        |i: u64| format!("b{i:03}").into_bytes(),
    );
    let is_over = AtomicBool::new(false);
    let acknowledged: Vec<AtomicU64> = (0..PAIRS).map(|_| AtomicU64::new(0)).collect();
    forerun_core::sync::thread::scope(|scope| {
        for writer in 0..2 {
            let (db, acknowledged, is_over) = (&db, &acknowledged, &is_over);
            scope.spawn(move || {
                let mut batch = WriteBatch::new();
                for n in 1..6_000_u64 {
                    let i = (n * 7 + writer) % (PAIRS / 2) * 2 + writer;
                    let value = n.to_string().into_bytes().repeat(9);
                    batch.clear();
                    batch.put(&a(i), &value).unwrap();
                    batch.put(&b(i), &value).unwrap();
                    db.write(&batch, Durability::Buffered).unwrap();
                    acknowledged[i as usize].store(n, Ordering::SeqCst);
                }
                is_over.store(true, Ordering::SeqCst);
            });
        }
        for _ in 0..2 {
            scope.spawn(|| {
                let mut values = Values::new();
                let keys: Vec<Vec<u8>> = (0..PAIRS).flat_map(|i| [a(i), b(i)]).collect();
                while !is_over.load(Ordering::SeqCst) {
                    let least: Vec<u64> = acknowledged
                        .iter()
                        .map(|n| n.load(Ordering::SeqCst))
                        .collect();
                    let number = |value: Option<&[u8]>| {
                        value.map_or(0, |v| {
                            let digits = &v[..v.len() / 9];
                            std::str::from_utf8(digits).unwrap().parse::<u64>().unwrap()
                        })
                    };
                    db.multi_get(&keys, &mut values).unwrap();
                    for (i, least) in least.iter().enumerate() {
                        let (x, y) = (values.get(2 * i).unwrap(), values.get(2 * i + 1).unwrap());
                        assert_eq!(x, y, "half of a batch is there");
                        assert!(number(x) >= *least, "an acknowledged write is not visible");
                    }
                    let scanned: BTreeMap<_, _> = db.iter().map(Result::unwrap).collect();
                    for i in 0..PAIRS {
                        let (x, y) = (scanned.get(&a(i)), scanned.get(&b(i)));
                        assert_eq!(x, y, "a scan returns half of a batch");
                        assert!(number(x.map(Vec::as_slice)) >= least[i as usize]);
                    }
                }
            });
        }
    });
    assert!(db.stats().tree.flushes > 5, "{}", db.stats());
}

#[test]
fn a_full_disk_refuses_writes_with_its_error_and_loses_nothing() {
    for background in [Background::Caller, Background::Threads] {
        let io = FaultIo::new();
        // Without the log, only runs need the disk.
        let options = tiny_options()
            .background(background)
            .wal(WalMode::Off)
            .memory_limit_bytes(64 << 10)
            .memtable_bytes(16 << 10);
        let db = open(&io, &options).unwrap();
        io.set_capacity_bytes(Some(2_000));
        let mut written = 0;
        let failure = loop {
            match db.put(&key(written), &value(written, 0)) {
                Ok(()) => written += 1,
                Err(error) => break error,
            }
            assert!(written < 10_000, "the disk is full, and memory has a limit");
        };
        assert_eq!(
            failure.io_kind(),
            Some(std::io::ErrorKind::StorageFull),
            "{failure}"
        );
        assert!(matches!(failure, Error::Io { .. }));
        for i in 0..written {
            assert_eq!(
                db.get(&key(i)).unwrap(),
                Some(value(i, 0)),
                "what was written is there"
            );
        }
        assert_eq!(
            db.get(&key(written)).unwrap(),
            None,
            "what was refused is not"
        );
        io.set_capacity_bytes(None);
        // The disk has space again; the store may need a moment to notice.
        while let Err(error) = db.put(&key(written), &value(written, 0)) {
            assert_eq!(
                error.io_kind(),
                Some(std::io::ErrorKind::StorageFull),
                "{error}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        db.flush().unwrap();
        db.close().unwrap();
        let db = open(&io, &options).unwrap();
        assert_eq!(db.iter().count() as u64, written + 1);
        assert!(
            io.files()
                .iter()
                .all(|path| !path.to_string_lossy().ends_with(".new"))
        );
    }
}

#[test]
fn a_failure_at_any_call_of_a_flush_or_compaction_loses_nothing() {
    use forerun_db::io::fault::{EIO, Fault};
    let run = |fail_at: Option<u64>| {
        let io = FaultIo::new();
        let db = open(&io, &tiny_options()).unwrap();
        if let Some(call) = fail_at {
            io.fail_call(call, Fault::Fail(EIO));
        }
        let mut model = BTreeMap::new();
        for i in 0..120_u64 {
            if db.put(&key(i % 29), &value(i, 0)).is_ok() {
                model.insert(key(i % 29), value(i, 0));
            }
        }
        let calls = io.calls();
        let hit = io.hit();
        let case = format!("call {fail_at:?} failed ({hit:?})");
        let found: BTreeMap<_, _> = db
            .iter()
            .map(|entry| entry.unwrap_or_else(|e| panic!("{case}: {e}")))
            .collect();
        // A failed write may reappear after the next opening if the log could not be cut back; in
        // this test it does not.
        assert_eq!(found, model, "{case}");
        let poisoned = db.stats().poisoned.is_some();
        let _ = db.close();
        // If the call was not reached before, the opening meets it and fails once.
        let opened = open(&io, &tiny_options()).or_else(|_| open(&io, &tiny_options()));
        let db = opened.unwrap_or_else(|error| panic!("{case}: {error}"));
        for (key, value) in &model {
            let found = db.get(key).unwrap();
            assert!(
                found.as_ref() == Some(value) || poisoned,
                "{case}: a write is lost"
            );
        }
        (calls, hit.is_some())
    };
    let (calls, _) = run(None);
    let mut hits = 0;
    for call in 0..calls {
        hits += u64::from(run(Some(call)).1);
    }
    assert!(hits > 200, "only {hits} of {calls} calls failed");
}

#[test]
fn runs_that_the_manifest_does_not_name_are_removed_and_a_lost_manifest_is_an_error() {
    let io = FaultIo::new();
    let db = open(&io, &tiny_options()).unwrap();
    for i in 0..100 {
        db.put(&key(i), &value(i, 0)).unwrap();
    }
    db.flush().unwrap();
    db.close().unwrap();
    let stray = format!("{STORE}/run-999999.run");
    io.write(&stray, b"a run that a crash left half written");
    let db = open(&io, &tiny_options()).unwrap();
    assert!(io.read(&stray).is_none());
    assert_eq!(db.iter().count(), 100);
    db.close().unwrap();
    io.take(format!("{STORE}/MANIFEST"));
    let error = open(&io, &tiny_options()).unwrap_err();
    assert!(error.to_string().contains("MANIFEST"), "{error}");
    let runs = io
        .files()
        .iter()
        .filter(|path| path.to_string_lossy().ends_with(".run"))
        .count();
    assert!(
        runs > 0,
        "nothing is removed on the strength of a missing manifest"
    );
}

#[test]
fn a_compaction_drops_what_only_a_dropped_snapshot_needed() {
    for is_reopened in [false, true] {
        let io = FaultIo::new();
        let mut db = open(&io, &tiny_options()).unwrap();
        let in_runs = |db: &Db| {
            db.stats()
                .levels
                .iter()
                .map(|level| level.entries)
                .sum::<u64>()
        };
        db.put(b"key", b"old").unwrap();
        let snapshot = db.snapshot();
        db.put(b"key", b"new").unwrap();
        db.compact().unwrap();
        assert_eq!(in_runs(&db), 2);
        assert_eq!(snapshot.get(b"key").unwrap().as_deref(), Some(&b"old"[..]));
        drop(snapshot);
        if is_reopened {
            db.close().unwrap();
            db = open(&io, &tiny_options()).unwrap();
        }
        db.compact().unwrap();
        assert_eq!(in_runs(&db), 1, "reopened: {is_reopened}");
        assert_eq!(db.get(b"key").unwrap().as_deref(), Some(&b"new"[..]));
    }
}

#[test]
fn snapshots_stay_readable_after_close_and_compaction() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let options = busy_options();
    let db = Db::open(&path, options.clone()).unwrap();
    for i in 0..5_000 {
        db.put(&key(i), &value(i, 0)).unwrap();
    }
    db.flush().unwrap();
    let snapshot = db.snapshot();
    db.close().unwrap();
    let db = Db::open(&path, options).unwrap();
    for i in 0..5_000 {
        db.put(&key(i), &value(i, 1)).unwrap();
    }
    db.compact().unwrap();
    let keys: Vec<_> = (0..5_000).map(key).collect();
    let mut values = Values::new();
    snapshot.multi_get(&keys, &mut values).unwrap();
    for (i, found) in (0..).zip(values.iter()) {
        assert_eq!(found.unwrap(), Some(&value(i, 0)[..]));
    }
    db.multi_get(&keys, &mut values).unwrap();
    assert_eq!(values.found(), 5_000);
}

#[test]
fn small_memtables_under_much_larger_levels_rewrite_little() {
    let options = small_options()
        .memtable_bytes(16 << 10)
        .background(Background::Caller);
    let db = open(&FaultIo::new(), &options).unwrap();
    let mut batch = WriteBatch::new();
    for i in 0..20_000 {
        batch.put(key(i), value(i, 1)).unwrap();
        if i % 20 == 19 {
            db.write(&batch, Durability::Buffered).unwrap();
            batch.clear();
        }
    }
    let stats = db.stats();
    let flushed = stats.tree.flushes;
    assert!(flushed > 100, "{flushed}");
    let amplification = stats.tree.write_amplification();
    assert!(amplification < 8.0, "{amplification}");
    assert!(stats.levels[0].runs < 4);
}

#[test]
fn a_dropped_snapshot_frees_what_only_it_saw() {
    let db = open(&FaultIo::new(), &busy_options()).unwrap();
    let entries = || -> u64 { db.stats().levels.iter().map(|level| level.entries).sum() };
    let write_all = || (0..2_000).for_each(|i| db.put(&key(i), &value(i, 1)).unwrap());
    write_all();
    db.compact().unwrap();
    let snapshot = db.snapshot();
    write_all();
    db.compact().unwrap();
    assert_eq!(entries(), 4_000);
    assert!(!db.stats().is_compaction_due);
    drop(snapshot);
    let begun = std::time::Instant::now();
    while entries() > 2_000 {
        assert!(begun.elapsed() < Duration::from_secs(30), "{}", entries());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn compactions_that_are_due_do_not_wait_for_a_full_one() {
    let tree = busy_options().tree;
    let options = busy_options().background(Background::Caller);
    let db = open(&FaultIo::new(), &options.tree(tree.level0_runs(10))).unwrap();
    let other = db.keyspace("other").unwrap();
    for i in 0..6_000 {
        db.put(&key(i), &value(i, 1)).unwrap();
        if i % 1_000 == 0 {
            other.put(&key(i), &value(i, 1)).unwrap();
            other.put(&key(i + 1), &value(i, 1)).unwrap();
            db.flush().unwrap();
        }
    }
    db.flush().unwrap();
    assert!(other.stats().levels[0].runs > 4);
    let with = |runs| KeyspaceOptions::default().tree(tree.level0_runs(runs));
    db.keyspace_with("other", with(2)).unwrap();
    db.default_keyspace().compact().unwrap();
    assert!(other.stats().levels[0].runs < 2);
}

#[test]
fn a_deleted_range_frees_its_space_without_being_read() {
    let io = FaultIo::new();
    let db = open(&io, &tiny_options()).unwrap();
    let name = |i: u64| format!("{i:05}").into_bytes();
    for i in 0..400 {
        db.put(&name(i), &value(i, 0)).unwrap();
    }
    db.compact().unwrap();
    let before = db.snapshot();
    let runs_before = db
        .stats()
        .levels
        .iter()
        .map(|level| level.runs)
        .sum::<usize>();
    assert!(runs_before > 3);
    db.delete_range(&name(50), &name(350)).unwrap();
    db.put(&name(200), b"back").unwrap();
    let check = |db: &Db, when: &str| {
        let keys: Vec<_> = (0..400).map(name).collect();
        let mut values = Values::new();
        db.multi_get(&keys, &mut values).unwrap();
        for (i, found) in (0..).zip(values.iter()) {
            let wanted = match i {
                200 => Some(b"back".to_vec()),
                50..350 => None,
                _ => Some(value(i, 0)),
            };
            assert_eq!(found.unwrap(), wanted.as_deref(), "{when}: key {i}");
            assert_eq!(db.get(&name(i)).unwrap(), wanted, "{when}: key {i}");
        }
        assert_eq!(db.iter().count(), 101, "{when}");
        assert_eq!(db.iter().rev().count(), 101, "{when}");
    };
    check(&db, "in memory");
    db.flush().unwrap();
    check(&db, "flushed");
    assert_eq!(before.iter().count(), 400, "a snapshot sees what was there");
    db.compact().unwrap();
    assert_eq!(before.iter().count(), 400, "after a compaction too");
    check(&db, "compacted under a snapshot");
    drop(before);
    db.compact().unwrap();
    check(&db, "compacted");
    let entries: u64 = db.stats().levels.iter().map(|level| level.entries).sum();
    assert_eq!(entries, 101, "{}", db.stats());
    db.close().unwrap();
    let db = open(&io, &tiny_options()).unwrap();
    check(&db, "reopened");
    // A range over whole runs removes them without reading them.
    let read = db.stats().tree.compaction_read_bytes;
    db.delete_range(&name(0), &name(400)).unwrap();
    db.flush().unwrap();
    assert_eq!(db.iter().count(), 0);
    assert_eq!(db.stats().tree.compaction_read_bytes, read);
    // Only the run that came with the deletion itself is left.
    let entries: u64 = db.stats().levels.iter().map(|level| level.entries).sum();
    assert!(entries <= 1, "{}", db.stats());
}
