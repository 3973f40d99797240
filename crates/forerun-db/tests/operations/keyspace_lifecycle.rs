//! Keyspaces are created and dropped, and errors name the keyspace, the comparator or the option.

use crate::testing;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use forerun_core::sync::Barrier;
use forerun_db::io::fault::{EIO, Fault, FaultIo};
use forerun_db::{
    Background, Db, Durability, Error, KEYSPACE_NAME_BYTES_MAX, KEYSPACES_MAX, KeyspaceOptions,
    TreeOptions, Values, WriteBatch,
};
use testing::hook_io::{Change, HookIo};
use testing::{
    STORE, entries, open, options_with_orders, reverse, run_files, small_options, tiny_options,
};

#[test]
fn names_are_bounded_and_so_is_their_number() {
    let io = FaultIo::new();
    let db = open(&io, &small_options()).unwrap();
    let long = "x".repeat(KEYSPACE_NAME_BYTES_MAX + 1);
    for name in ["", &long] {
        assert!(matches!(db.keyspace(name), Err(Error::KeyspaceName { .. })));
    }
    let longest = &long[1..];
    assert_eq!(db.keyspace(longest).unwrap().name(), longest);
    for i in 2..KEYSPACES_MAX {
        db.keyspace(&i.to_string()).unwrap();
    }
    let error = db.keyspace("one more").unwrap_err();
    assert!(matches!(error, Error::TooManyKeyspaces { .. }), "{error}");
    db.keyspace("2").unwrap().put(b"key", b"value").unwrap();
    db.drop_keyspace("3").unwrap();
    db.keyspace("one more").unwrap();
    db.close().unwrap();
    let db = open(&io, &small_options()).unwrap();
    assert_eq!(db.keyspaces().len(), KEYSPACES_MAX - 1);
    assert_eq!(
        db.keyspace("2").unwrap().get(b"key").unwrap().as_deref(),
        Some(&b"value"[..])
    );
}

#[test]
fn a_comparator_is_kept_and_a_wrong_or_missing_one_is_refused_by_name() {
    let io = FaultIo::new();
    let db = open(&io, &options_with_orders()).unwrap();
    db.keyspace("lengths").unwrap().put(b"aaa", b"").unwrap();
    db.keyspace_with("reverse", reverse())
        .unwrap()
        .put(b"b", b"")
        .unwrap();
    let wrong = db.keyspace_with("lengths", reverse()).unwrap_err();
    assert!(wrong.to_string().contains("\"test.by-length\""), "{wrong}");
    assert!(
        wrong.to_string().contains("\"forerun.reverse-bytewise\""),
        "{wrong}"
    );
    db.close().unwrap();

    // The options do not have it, so the store cannot know what the name means.
    let missing = open(&io, &tiny_options()).unwrap_err();
    assert!(
        matches!(&missing,
            Error::KeyspaceComparator { keyspace, given: None, .. } if keyspace == "lengths"),
        "{missing}"
    );
    let wrong = tiny_options().keyspaces(vec![("lengths".into(), reverse())]);
    let wrong = open(&io, &wrong).unwrap_err();
    assert!(
        matches!(wrong, Error::KeyspaceComparator { given: Some(_), .. }),
        "{wrong}"
    );
    // The reverse order is known without an option.
    let db = open(&io, &options_with_orders()).unwrap();
    assert_eq!(db.find_keyspace("reverse").unwrap().iter().count(), 1);
}

#[test]
fn options_that_make_no_sense_are_refused_with_words() {
    let tree = TreeOptions::default().level0_runs(8).level0_stop_runs(8);
    let io = FaultIo::new();
    let options = small_options().tree(tree);
    let refused = open(&io, &options).unwrap_err();
    assert!(
        refused.to_string().contains("level0_stop_runs"),
        "{refused}"
    );
    let db = open(&io, &small_options()).unwrap();
    let with_tree = KeyspaceOptions::default().tree(tree);
    let refused = db.keyspace_with("x", with_tree).unwrap_err();
    assert!(matches!(refused, Error::BadOption { .. }), "{refused}");
    assert!(db.keyspaces().is_empty());
}

#[test]
fn a_keyspace_of_another_store_is_refused() {
    let (a, b) = (FaultIo::new(), FaultIo::new());
    let (a, b) = (
        open(&a, &small_options()).unwrap(),
        open(&b, &small_options()).unwrap(),
    );
    let (of_a, of_b) = (a.keyspace("x").unwrap(), b.keyspace("x").unwrap());
    let mut batch = WriteBatch::new();
    batch.keyspace(&of_a).put(b"k", b"v").unwrap();
    let mixed = batch.keyspace(&of_b).put(b"k", b"v");
    assert!(
        matches!(mixed, Err(Error::ForeignKeyspace { .. })),
        "{mixed:?}"
    );
    assert_eq!(batch.len(), 1);
    let foreign = b.write(&batch, Durability::Buffered);
    assert!(
        matches!(foreign, Err(Error::ForeignKeyspace { .. })),
        "{foreign:?}"
    );
    let snapshot = b.snapshot();
    let read = snapshot.keyspace(&of_a).get(b"k");
    assert!(
        matches!(read, Err(Error::ForeignKeyspace { .. })),
        "{read:?}"
    );
    let mut iter = snapshot.keyspace(&of_a).iter();
    assert!(matches!(
        iter.next(),
        Some(Err(Error::ForeignKeyspace { .. }))
    ));
    assert!(iter.next().is_none());
    a.write(&batch, Durability::Buffered).unwrap();
    assert_eq!(of_b.get(b"k").unwrap(), None);
}

#[test]
fn running_reads_of_a_dropped_keyspace_finish_before_its_files_are_removed() {
    let io = FaultIo::new();
    let db = open(&io, &tiny_options()).unwrap();
    let (kept, gone) = (db.keyspace("kept").unwrap(), db.keyspace("gone").unwrap());
    for i in 0..200_u32 {
        let mut batch = WriteBatch::new();
        batch
            .keyspace(&kept)
            .put(&i.to_be_bytes(), &[1; 50])
            .unwrap();
        batch
            .keyspace(&gone)
            .put(&i.to_be_bytes(), &[2; 50])
            .unwrap();
        db.write(&batch, Durability::Buffered).unwrap();
    }
    db.flush().unwrap();
    let (all, snapshot) = (run_files(&io).len(), db.snapshot());
    let mut reader = gone.iter();
    assert!(reader.next().is_some());

    db.drop_keyspace("gone").unwrap();
    assert_eq!(db.keyspaces(), ["kept"]);
    assert_eq!(run_files(&io).len(), all, "the iterator reads them");
    assert_eq!(reader.by_ref().map(Result::unwrap).count(), 199);
    let is_dropped =
        |error: Error| matches!(error, Error::KeyspaceDropped { name } if name == "gone");
    assert!(is_dropped(gone.get(b"k").unwrap_err()));
    assert!(is_dropped(gone.put(b"k", b"v").unwrap_err()));
    assert!(is_dropped(gone.delete_range(b"a", b"b").unwrap_err()));
    assert!(is_dropped(gone.iter().next().unwrap().unwrap_err()));
    assert!(is_dropped(
        gone.ingest()
            .commit()
            .map(|_| gone.get(b"k").unwrap_err())
            .unwrap()
    ));
    assert!(is_dropped(snapshot.keyspace(&gone).get(b"k").unwrap_err()));
    assert!(is_dropped(
        gone.multi_get(&["k"], &mut Values::new()).unwrap_err()
    ));
    drop(reader);
    let left = run_files(&io).len();
    assert!(left < all && left > 0, "{left} of {all}");
    let unknown = db.drop_keyspace("gone").unwrap_err();
    assert!(
        matches!(unknown, Error::UnknownKeyspace { .. }),
        "{unknown}"
    );

    // Another keyspace of the same name is a different one.
    let again = db.keyspace("gone").unwrap();
    assert!(again.id() > gone.id());
    assert_eq!(again.iter().count(), 0);
    again.put(b"new", b"1").unwrap();
    assert_eq!(kept.iter().count(), 200);
    drop((db, kept, gone, again, snapshot));
    let db = open(&io.kill(), &tiny_options()).unwrap();
    assert_eq!(db.find_keyspace("kept").unwrap().iter().count(), 200);
    assert_eq!(
        entries(db.find_keyspace("gone").unwrap().iter()),
        [(b"new".to_vec(), b"1".to_vec())]
    );
}

#[test]
fn log_records_of_a_dropped_keyspace_are_skipped() {
    let io = FaultIo::new();
    let db = open(&io, &small_options()).unwrap();
    let (kept, gone) = (db.keyspace("kept").unwrap(), db.keyspace("gone").unwrap());
    for i in 0..10_u8 {
        let mut batch = WriteBatch::new();
        batch.keyspace(&gone).put(&[i], b"gone").unwrap();
        batch.keyspace(&kept).put(&[i], b"kept").unwrap();
        batch.keyspace(&gone).delete_range(&[i], &[i + 1]).unwrap();
        batch.put(&[i], b"own").unwrap();
        db.write(&batch, Durability::Synced).unwrap();
    }
    gone.put(b"alone", b"in its record").unwrap();
    db.drop_keyspace("gone").unwrap();
    drop((db, kept, gone));
    let db = open(&io.kill(), &small_options()).unwrap();
    assert_eq!(db.recovery().operations, 41);
    assert_eq!(db.find_keyspace("kept").unwrap().iter().count(), 10);
    assert_eq!(db.iter().count(), 10);
    assert!(db.find_keyspace("gone").is_none());
    assert_eq!(db.stats().last_sequence, 41);
    // Its successor does not inherit anything either.
    assert_eq!(db.keyspace("gone").unwrap().iter().count(), 0);
}

#[test]
fn a_creation_that_fails_makes_nothing_and_a_drop_that_fails_stops_writes() {
    let io = FaultIo::new();
    let db = open(&io, &small_options()).unwrap();
    io.fail_call(io.calls(), Fault::Fail(EIO));
    assert!(matches!(db.keyspace("x"), Err(Error::Io { .. })));
    assert!(db.find_keyspace("x").is_none());
    let x = db.keyspace("x").unwrap();
    x.put(b"k", b"v").unwrap();
    io.fail_call(io.calls(), Fault::Fail(EIO));
    assert!(matches!(db.drop_keyspace("x"), Err(Error::Io { .. })));
    // It may be gone, so it accepts no more writes.
    assert!(matches!(
        x.put(b"k", b"w"),
        Err(Error::KeyspaceDropped { .. })
    ));
    assert_eq!(x.get(b"k").unwrap().as_deref(), Some(&b"v"[..]));
    db.drop_keyspace("x").unwrap();
    assert!(db.keyspaces().is_empty());
}

#[test]
fn raising_the_level_0_limit_releases_waiting_writers() {
    let barrier = Arc::new(Barrier::new(2));
    let hook = {
        let (barrier, was_held) = (Arc::clone(&barrier), AtomicBool::new(false));
        move |change, path: &Path| {
            let is_run = path.extension().is_some_and(|extension| extension == "run");
            let is_compaction = std::thread::current().name() == Some("forerun-compact");
            let is_first = || !was_held.swap(true, SeqCst);
            if change == Change::Create && is_run && is_compaction && is_first() {
                barrier.wait();
                barrier.wait();
            }
            Ok(())
        }
    };
    let io = HookIo::new(&FaultIo::new(), hook);
    let options = small_options().background(Background::Threads);
    let with_stop = |level0_stop_runs| {
        KeyspaceOptions::default().tree(
            TreeOptions::default()
                .level0_runs(2)
                .level0_slow_runs(3)
                .level0_stop_runs(level0_stop_runs),
        )
    };
    let db = Db::open_with_io(Arc::new(io), STORE, options).unwrap();
    let keyspace = db.keyspace_with("k", with_stop(3)).unwrap();
    for n in 0..3_u8 {
        keyspace.put(b"key", &[n]).unwrap();
        db.flush().unwrap();
        if n == 1 {
            // From here on, the compaction of the first two is running.
            barrier.wait();
        }
    }
    forerun_core::sync::thread::scope(|scope| {
        let write = scope.spawn(|| keyspace.put(b"key", b"new"));
        std::thread::sleep(Duration::from_millis(100));
        assert!(!write.is_finished());
        db.keyspace_with("k", with_stop(100)).unwrap();
        let begun = Instant::now();
        while !write.is_finished() && begun.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let is_finished = write.is_finished();
        barrier.wait();
        write.join().unwrap().unwrap();
        assert!(is_finished, "it waited for the compaction");
    });
    assert_eq!(keyspace.get(b"key").unwrap().unwrap(), b"new");
}
