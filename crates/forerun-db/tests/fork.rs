//! A store belongs to the process that opened it: a fork of that process gets errors and changes
//! nothing.

#[path = "../../forerun-core/tests/testing/fork.rs"]
mod fork;

use std::io::{Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use forerun_core::Pages;
use forerun_db::{
    Backups, Create, Db, Durability, Error, Options, ReadBackend, Result, Values, WriteBatch,
};
use fork::Ending::{AtOnce, Exit};

fn options() -> Options {
    Options::default()
        .memory_limit_bytes(4 << 20)
        .memtable_bytes(1 << 20)
        .pages(Pages::Small)
}

/// Options with which nearly every read goes to disk, through the given backend.
fn cold(reads: ReadBackend) -> Options {
    options().cache_bytes(0).reads(reads)
}

fn key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

fn value(number: u64) -> Vec<u8> {
    number.to_string().into_bytes().repeat(20)
}

/// Fills a store with this many entries, in runs.
fn fill(path: &Path, entries: u64) {
    let db = Db::open(path, options()).unwrap();
    for number in 0..entries {
        db.put(&key(number), &value(number)).unwrap();
    }
    db.flush().unwrap();
    db.close().unwrap();
}

/// Looks up keys all over the store, in batches.
fn check_reads(db: &Db, entries: u64, batches: u64) {
    let mut values = Values::new();
    for batch in 0..batches {
        let numbers: Vec<u64> = (0..64)
            .map(|at| (batch * 7919 + at * 104_729) % entries)
            .collect();
        let keys: Vec<_> = numbers.iter().map(|number| key(*number)).collect();
        db.multi_get(&keys, &mut values).unwrap();
        for (at, number) in numbers.iter().enumerate() {
            assert_eq!(values.get(at).unwrap(), Some(&*value(*number)));
        }
    }
}

#[track_caller]
fn refused<T>(result: Result<T>) {
    match result {
        Err(Error::Forked(_)) => {}
        Err(other) => panic!("another error: {other}"),
        Ok(_) => panic!("it was let through"),
    }
}

/// Makes every call that a store offers, and drops everything it returns.
fn use_all(db: &Db, path: &Path) {
    let keyspace = db.default_keyspace();
    let mut batch = WriteBatch::new();
    batch.put(b"child", b"1").unwrap();
    let mut values = Values::new();
    refused(db.check_process());
    refused(db.put(b"child", b"1"));
    refused(db.put_with(b"child", b"1", Durability::Synced));
    refused(db.delete(&key(1)));
    refused(db.delete_range(&key(1), &key(2)));
    refused(db.write(&batch, Durability::Buffered));
    refused(db.write(&WriteBatch::new(), Durability::Synced));
    refused(db.get(&key(1)));
    refused(db.multi_get(&[key(1)], &mut values));
    refused(db.flush_wal());
    refused(db.flush());
    refused(db.compact());
    refused(db.wait_idle());
    refused(db.verify());
    refused(db.checkpoint(path.with_extension("copy")));
    refused(db.keyspace("child"));
    refused(db.keyspace("users"));
    refused(db.drop_keyspace("users"));
    refused(db.iter().next().unwrap());
    refused(db.range(key(0)..key(9)).next().unwrap());
    refused(db.prefix(&key(1)).next_entry());
    refused(db.ingest().add(b"child", b"1"));
    refused(db.ingest().commit());
    refused(keyspace.put(b"child", b"1"));
    refused(keyspace.delete(b"child"));
    refused(keyspace.delete_range(b"a", b"b"));
    refused(keyspace.get(b"child"));
    refused(keyspace.multi_get(&[b"child"], &mut values));
    refused(keyspace.iter().next_back().unwrap());
    refused(keyspace.flush());
    refused(keyspace.compact());
    refused(keyspace.ingest().delete(b"child"));
    let snapshot = db.snapshot();
    refused(snapshot.get(&key(1)));
    refused(snapshot.clone().multi_get(&[key(1)], &mut values));
    refused(snapshot.keyspace(&keyspace).get(&key(1)));
    refused(snapshot.keyspace(&keyspace).iter().next().unwrap());
    refused(snapshot.iter().next().unwrap());
    db.set_write_rate(Some(1));
    assert_eq!(db.stats().memtables, 0);
    assert_eq!(keyspace.stats().memtable_entries, 0);
    assert!(db.keyspaces().is_empty() && db.find_keyspace("users").is_none());
    assert_eq!(db.path(), path);
    assert!(db.recovery().last_sequence < u64::MAX);
    refused(db.clone().close());
}

#[test]
fn a_childs_writes_are_refused_and_its_parent_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let db = Db::open(&path, options()).unwrap();
    db.put(b"start", b"1").unwrap();
    let child = fork::begin(Exit, || {
        for number in 0..2000 {
            refused(db.put(&key(number), b"child"));
        }
    });
    for number in 0..2000 {
        db.put(&key(number), b"parent").unwrap();
    }
    child.wait();
    db.close().unwrap();
    let db = Db::open(&path, options()).unwrap();
    assert!(db.recovery().clean_close && db.recovery().skipped.is_empty());
    assert_eq!(db.iter().count(), 2001);
    for number in 0..2000 {
        assert_eq!(
            db.get(&key(number)).unwrap().as_deref(),
            Some(&b"parent"[..])
        );
    }
}

#[test]
fn every_handle_gives_errors_in_a_child_and_dropping_them_there_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    fill(&path, 5000);
    for ending in [AtOnce, Exit] {
        let db = Db::open(&path, options()).unwrap();
        let users = db.keyspace("users").unwrap();
        users.put(b"4711", b"Ada").unwrap();
        let snapshot = db.snapshot();
        let mut iter = db.iter();
        iter.next().unwrap().unwrap();
        // A pooled cursor of this thread, which also runs in the child.
        assert_eq!(users.iter().count(), 1);
        let mut ingestion = users.ingest();
        ingestion.add(b"5000", b"Grace").unwrap();
        let backups = path.with_extension("backups");
        let mut backups = Backups::open_or_create(&backups).unwrap();
        backups.create(&db).unwrap();
        let mut batch = WriteBatch::new();
        batch.keyspace(&users).put(b"1", b"child").unwrap();

        let mut handles = Some((db, users, snapshot, iter, ingestion, backups));
        fork::in_child(ending, || {
            let (db, users, snapshot, mut iter, mut ingestion, mut backups) =
                handles.take().unwrap();
            use_all(&db, &path);
            refused(users.get(b"4711"));
            refused(users.put(b"4711", b"child"));
            refused(db.write(&batch, Durability::Buffered));
            refused(snapshot.get(&key(1)));
            refused(snapshot.keyspace(&users).get(b"4711"));
            refused(iter.next().unwrap());
            assert!(iter.next_entry_back().unwrap().is_none(), "it has ended");
            refused(ingestion.add(b"5001", b"child"));
            refused(backups.create(&db));
            refused(backups.list());
            refused(backups.verify());
            refused(backups.purge_old(1));
            refused(backups.restore(None, path.with_extension("restored")));
            drop((iter, snapshot, ingestion, users, db, backups));
        });
        let (db, users, snapshot, iter, ingestion, mut backups) = handles.unwrap();
        assert_eq!(iter.count(), 4999);
        ingestion.commit().unwrap();
        assert_eq!(users.get(b"5000").unwrap().as_deref(), Some(&b"Grace"[..]));
        assert_eq!(snapshot.get(&key(7)).unwrap(), Some(value(7)));
        let refused_lock = Db::open(&path, options()).unwrap_err();
        assert!(
            matches!(refused_lock, Error::Locked { .. }),
            "{refused_lock}"
        );
        assert!(backups.verify().unwrap().problems.is_empty());
        backups.purge_old(1).unwrap();
        assert!(db.verify().unwrap().problems.is_empty());
        db.drop_keyspace("users").unwrap();
        drop((users, snapshot));
        db.close().unwrap();
    }
}

#[test]
fn a_child_of_a_process_that_reads_leaves_its_reads_alone() {
    for backend in ReadBackend::ALL {
        let dir = tempfile::tempdir().unwrap();
        let [path, other] = ["store", "other"].map(|name| dir.path().join(name));
        fill(&path, 4000);
        fill(&other, 1000);
        let db = Db::open(&path, cold(backend)).unwrap();
        check_reads(&db, 4000, 10);
        let children = [0, 1, 2].map(|at| {
            fork::begin(Exit, || {
                refused(db.get(&key(1)));
                if at == 0 {
                    // A store that the child opens is its own.
                    let own = Db::open(&other, cold(backend)).unwrap();
                    check_reads(&own, 1000, 20);
                    own.put(b"child", b"1").unwrap();
                    own.close().unwrap();
                }
            })
        });
        check_reads(&db, 4000, 30);
        children.into_iter().for_each(fork::Child::wait);
        check_reads(&db, 4000, 10);
        assert!(db.verify().unwrap().problems.is_empty());
    }
}

#[test]
fn a_child_never_waits_for_a_lock_that_a_thread_of_its_parent_held() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let db = Db::open(&path, options()).unwrap();
    db.keyspace("users").unwrap();
    let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        // The threads hold locks most of the time: of the log, memtables, snapshots and the
        // directory.
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let number = written.fetch_add(1, Ordering::Relaxed);
                db.put(&key(number), &value(number)).unwrap();
            }
        });
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                drop((db.snapshot(), db.stats(), db.iter().next()));
            }
        });
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let mut ingestion = db.keyspace("users").unwrap().ingest();
                ingestion.add(b"key", b"value").unwrap();
                ingestion.commit().unwrap();
            }
        });
        for _ in 0..10 {
            let before = written.load(Ordering::Relaxed);
            while written.load(Ordering::Relaxed) < before + 20 {
                std::thread::yield_now();
            }
            fork::in_child(Exit, || {
                use_all(&db, &path);
                let own = path.with_extension(std::process::id().to_string());
                let own = Db::open(own, options()).unwrap();
                own.put(b"own", b"1").unwrap();
                own.flush().unwrap();
                assert_eq!(own.get(b"own").unwrap().as_deref(), Some(&b"1"[..]));
                own.close().unwrap();
            });
        }
        stop.store(true, Ordering::Relaxed);
    });
    db.close().unwrap();
    let db = Db::open(&path, options()).unwrap();
    let written = written.load(Ordering::Relaxed);
    assert!((0..written).all(|number| db.get(&key(number)).unwrap() == Some(value(number))));
}

#[test]
fn a_closed_store_can_be_opened_while_a_child_of_the_closing_process_lives() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let db = Db::open(&path, options()).unwrap();
    let (mut wait, mut tell) = std::io::pipe().unwrap();
    let (mut reported, mut tell_parent) = std::io::pipe().unwrap();
    let child = fork::begin(AtOnce, || {
        wait.read_exact(&mut [0]).unwrap();
        refused(db.get(b"key"));
        // The parent has closed it and opened it again.
        let locked = Db::open(&path, options()).unwrap_err();
        assert!(matches!(locked, Error::Locked { .. }), "{locked}");
        tell_parent.write_all(b"1").unwrap();
        wait.read_exact(&mut [0]).unwrap();
        let own = Db::open(&path, options()).unwrap();
        own.put(b"key", b"child").unwrap();
        own.close().unwrap();
    });
    db.put(b"key", b"parent").unwrap();
    db.close().unwrap();
    let again = Db::open(&path, options()).unwrap();
    assert_eq!(again.get(b"key").unwrap().as_deref(), Some(&b"parent"[..]));
    tell.write_all(b"1").unwrap();
    reported.read_exact(&mut [0]).unwrap();
    again.close().unwrap();
    tell.write_all(b"2").unwrap();
    child.wait();
    let last = Db::open(&path, options()).unwrap();
    assert_eq!(last.get(b"key").unwrap().as_deref(), Some(&b"child"[..]));
}

#[test]
#[cfg(target_os = "linux")]
fn a_lock_that_outlives_its_process_in_a_child_names_the_child() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let (mut wait, mut tell) = std::io::pipe().unwrap();
    let (mut reported, mut tell_child) = std::io::pipe().unwrap();
    let parent = fork::begin(AtOnce, || {
        let db = Db::open(&path, options()).unwrap();
        db.put_with(b"key", b"value", Durability::Synced).unwrap();
        // This acts like a kill: nothing is closed.
        let child = fork::begin(AtOnce, || {
            tell_child
                .write_all(&std::process::id().to_le_bytes())
                .unwrap();
            wait.read_exact(&mut [0]).unwrap();
        });
        std::mem::forget((db, child));
    });
    let ended = parent.process();
    parent.wait();
    let mut child = [0; 4];
    reported.read_exact(&mut child).unwrap();
    let child = u32::from_le_bytes(child);
    match Db::open(&path, options()) {
        Err(Error::Locked { holder, .. }) => {
            assert_eq!((holder, ended == child), (Some(child), false))
        }
        other => panic!("{other:?}"),
    }
    tell.write_all(b"1").unwrap();
    // The lock is released with the child, which ends now.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let db = loop {
        match Db::open(&path, options().create(Create::Never)) {
            Ok(db) => break db,
            Err(error) => assert!(std::time::Instant::now() < deadline, "{error}"),
        }
        std::thread::yield_now();
    };
    assert_eq!(db.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
}
