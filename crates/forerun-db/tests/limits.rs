//! Limits hold under any load.

mod testing;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use forerun_core::Pages;
use forerun_db::io::fault::FaultIo;
use forerun_db::{
    Access, Background, Db, Durability, Error, KEY_BYTES_MAX, Options, ReadBackend, Result,
    RunOptions, TreeOptions, VALUE_BYTES_MAX, Values, WriteBatch,
};
use testing::hook_io::{Change, HookIo};
use testing::{STORE, open, run_files, small_options, tiny_options};

#[test]
fn a_page_size_out_of_bounds_counts_as_the_nearest_bound_in_the_cache_too() {
    for page_bytes in [0, 1, 1 << 40, usize::MAX] {
        let options = small_options()
            .cache_bytes(1 << 20)
            .run(RunOptions::default().page_bytes(page_bytes));
        let db = open(&FaultIo::new(), &options).unwrap();
        for n in 0..4000_u32 {
            db.put(&n.to_be_bytes(), &[n as u8; 100]).unwrap();
        }
        db.flush().unwrap();
        for n in (0..4000_u32).chain(0..4000) {
            let value = db.get(&n.to_be_bytes()).unwrap();
            assert_eq!(value.as_deref(), Some(&[n as u8; 100][..]));
        }
        let cache = db.stats().cache;
        assert!(cache.hits > 4000 && cache.misses < 2000, "{cache}");
        assert!(cache.used_bytes <= cache.capacity_bytes, "{cache}");
    }
}

/// The number of run files of a store that this process has open.
fn open_runs(store: &Path) -> usize {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
    let links = descriptors.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    links
        .filter(|link| link.starts_with(store) && link.to_string_lossy().contains("run-"))
        .count()
}

#[test]
#[cfg(target_os = "linux")]
fn a_store_works_with_more_runs_than_open_files_allowed() {
    const KEYSPACES: u32 = 40;
    const FILES: usize = 4;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let options = |reads| {
        Options::default()
            .max_open_files(FILES)
            .memory_limit_bytes(8 << 20)
            .cache_bytes(64 << 10)
            .pages(Pages::Small)
            .reads(reads)
    };
    let db = Db::open(&path, options(ReadBackend::Auto)).unwrap();
    let key = |n: u32| n.to_be_bytes();
    for n in 0..KEYSPACES {
        let keyspace = db.keyspace(&format!("k{n}")).unwrap();
        for i in 0..200 {
            keyspace.put(&key(i), &[n as u8; 100]).unwrap();
        }
    }
    db.flush().unwrap();
    db.put(b"more", b"").unwrap();
    db.flush().unwrap();
    assert!(open_runs(&path) <= FILES, "{} files", open_runs(&path));
    db.close().unwrap();

    for reads in ReadBackend::ALL {
        let db = Db::open(&path, options(reads)).unwrap();
        assert!(open_runs(&path) <= FILES, "{} files", open_runs(&path));
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let db = &db;
                scope.spawn(move || {
                    let keys: Vec<_> = (0..200).map(key).collect();
                    let mut values = Values::new();
                    for n in (0..KEYSPACES).map(|n| (n * 7 + thread * 11) % KEYSPACES) {
                        let keyspace = db.find_keyspace(&format!("k{n}")).unwrap();
                        keyspace.multi_get(&keys, &mut values).unwrap();
                        for i in 0..200 {
                            let value = values.get(i).unwrap();
                            assert_eq!(value, Some(&[n as u8; 100][..]));
                        }
                        assert_eq!(keyspace.iter().map(Result::unwrap).count(), 200);
                    }
                });
            }
        });
        assert!(open_runs(&path) <= FILES, "{} files", open_runs(&path));
        assert!(db.verify().unwrap().problems.is_empty());
        db.close().unwrap();
    }
    let checked = forerun_db::check(&path, &options(ReadBackend::Auto)).unwrap();
    assert!(checked.problems.is_empty(), "{:?}", checked.problems);
    assert_eq!(checked.runs.runs, u64::from(KEYSPACES) + 1);
}

#[test]
fn a_reader_reads_obsolete_files_after_they_were_closed() {
    let io = FaultIo::new();
    let options = tiny_options()
        .max_open_files(1)
        .background(Background::Caller)
        .tree(
            TreeOptions::default()
                .level0_runs(100)
                .level0_slow_runs(200)
                .level0_stop_runs(300),
        );
    let db = open(&io, &options).unwrap();
    let value = |n: u32| vec![n as u8; 700];
    for n in 0..60_u32 {
        db.put(&n.to_be_bytes(), &value(n)).unwrap();
        db.flush().unwrap();
    }
    let before = run_files(&io);
    assert_eq!(before.len(), 60);
    let mut iter = db.iter();
    let first = iter.next_entry().unwrap().unwrap().key.to_vec();
    assert_eq!(first, 0_u32.to_be_bytes());
    for n in 0..60_u32 {
        db.put(&n.to_be_bytes(), b"new").unwrap();
    }
    db.compact().unwrap();
    let kept = run_files(&io);
    assert!(before.iter().all(|run| kept.contains(run)));
    for n in 1..60_u32 {
        let entry = iter.next_entry().unwrap().unwrap();
        assert_eq!(
            (entry.key, entry.value),
            (&n.to_be_bytes()[..], &value(n)[..])
        );
    }
    drop(iter);
    let left = run_files(&io);
    assert!(!before.iter().any(|run| left.contains(run)));
    assert_eq!(
        db.get(&7_u32.to_be_bytes()).unwrap().as_deref(),
        Some(&b"new"[..])
    );
}

#[test]
fn a_snapshot_of_a_closed_store_never_reads_a_file_that_another_store_has_put_there() {
    const KEYS: u32 = 2000;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let options = Options::default()
        .max_open_files(1)
        .memory_limit_bytes(8 << 20)
        .cache_bytes(64 << 10)
        .pages(Pages::Small);
    let make = |value: u8| {
        let db = Db::open(&path, options.clone()).unwrap();
        let other = db.keyspace("other").unwrap();
        for n in 0..KEYS {
            db.put(&n.to_be_bytes(), &[value; 100]).unwrap();
            other.put(&n.to_be_bytes(), &[value; 100]).unwrap();
        }
        db.flush().unwrap();
        (db, other)
    };
    let (db, other) = make(1);
    let snapshot = db.snapshot();
    db.close().unwrap();
    std::fs::remove_dir_all(&path).unwrap();
    let (_db, _other) = make(2);
    let mut errors = 0;
    for n in 0..KEYS {
        for value in [
            snapshot.get(&n.to_be_bytes()),
            snapshot.keyspace(&other).get(&n.to_be_bytes()),
        ] {
            match value {
                Ok(value) => assert_eq!(value.unwrap(), [1; 100]),
                Err(_) => errors += 1,
            }
        }
    }
    assert!(errors > 0, "no file was opened again");
}

fn limited(memory_limit_bytes: usize, memtable_bytes: usize) -> Options {
    small_options()
        .memory_limit_bytes(memory_limit_bytes)
        .memtable_bytes(memtable_bytes)
        .background(Background::Threads)
        .wal_segment_bytes(64 << 20)
}

fn batch(values: u32, bytes: usize, seed: u8) -> WriteBatch {
    let mut batch = WriteBatch::new();
    for n in 0..values {
        batch
            .put(
                &[&[seed][..], &n.to_be_bytes()].concat(),
                &vec![seed; bytes],
            )
            .unwrap();
    }
    batch
}

#[test]
fn batches_that_need_most_of_the_memory_take_turns() {
    const LIMIT: usize = 4 << 20;
    let db = open(&FaultIo::new(), &limited(LIMIT, 256 << 10)).unwrap();
    let done = AtomicBool::new(false);
    let max = std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut max = 0;
            while !done.load(SeqCst) {
                max = max.max(db.stats().memtables_used_bytes);
            }
            max
        });
        // Smaller writes run at the same time.
        let small = scope.spawn(|| {
            let mut written = 0_u32;
            while !done.load(SeqCst) {
                db.put(&[b"small", &written.to_be_bytes()[..]].concat(), &[1; 500])
                    .unwrap();
                written += 1;
            }
            written
        });
        for seed in 0..6 {
            db.write(&batch(33, 100 << 10, seed), Durability::Buffered)
                .unwrap();
            assert!(db.stats().memtables_used_bytes <= LIMIT);
        }
        done.store(true, SeqCst);
        assert!(small.join().unwrap() > 0);
        watch.join().unwrap()
    });
    assert!((3_300_000..=LIMIT).contains(&max), "{max} bytes");
    for seed in 0..6_u8 {
        assert_eq!(db.prefix(&[seed]).count(), 33);
    }
    let too_large = db.write(&batch(50, 100 << 10, 9), Durability::Buffered);
    assert!(
        matches!(too_large, Err(Error::MemoryLimit { .. })),
        "{too_large:?}"
    );
    db.put(b"more", b"").unwrap();
}

/// The default limit and the longest value have the ratio of the ones that this test uses.
#[test]
fn a_value_of_the_maximum_length_is_taken_under_the_default_memory_limit() {
    const SCALE: usize = 256;
    let limit = Options::default().memory_limit_bytes / SCALE;
    let memtable = Options::default().memtable_bytes / SCALE;
    let value = vec![7; VALUE_BYTES_MAX / SCALE];
    let key = vec![b'k'; KEY_BYTES_MAX];
    let io = FaultIo::new();
    let options = limited(limit, memtable);
    let db = open(&io, &options).unwrap();
    for other in ["of another length", "k"] {
        db.put(other.as_bytes(), &vec![1; memtable / 2]).unwrap();
        db.put(&key, &value).unwrap();
        assert!(db.stats().memtables_used_bytes <= limit);
    }
    let keyspace = db.keyspace("other").unwrap();
    keyspace.put(&key, &value).unwrap();
    let killed = io.kill();
    let read_only = options.clone().access(Access::ReadOnly);
    for options in [&read_only, &options] {
        let db = open(&killed, options).unwrap();
        let keyspace = db.find_keyspace("other").unwrap();
        assert!(keyspace.get(&key).unwrap().as_ref() == Some(&value));
        assert!(db.get(&key).unwrap().as_ref() == Some(&value));
    }

    let longer = vec![7; limit * 9 / 10];
    let error = db.put(&key, &longer).unwrap_err();
    match error {
        Error::MemoryLimit {
            needed_bytes,
            limit_bytes,
            ..
        } => assert!(needed_bytes > limit_bytes, "{error}"),
        error => panic!("{error}"),
    }
}

#[test]
fn memtables_held_by_iterators_count_and_their_writer_gets_an_error() {
    const LIMIT: usize = 1 << 20;
    for background in [Background::Threads, Background::Caller] {
        let options = limited(LIMIT, 128 << 10).background(background);
        let db = open(&FaultIo::new(), &options).unwrap();
        let mut held = Vec::new();
        let mut written = 0_u32;
        let error = loop {
            // Each iterator holds the memtable that is active now.
            if written.is_multiple_of(100) {
                let mut iter = db.iter();
                drop(iter.next_entry().unwrap().map(|entry| entry.key.to_vec()));
                held.push(iter);
            }
            match db.put(&written.to_be_bytes(), &[7; 1000]) {
                Ok(()) => written += 1,
                Err(error) => break error,
            }
            let used = db.stats().memtables_used_bytes;
            assert!(used <= LIMIT, "{used} bytes");
            assert!(written < 5000, "memory that iterators hold is not counted");
        };
        match &error {
            Error::MemoryLimit {
                used_bytes,
                limit_bytes,
                ..
            } => {
                assert!(*used_bytes > LIMIT / 2 && *limit_bytes == LIMIT, "{error}");
            }
            other => panic!("{other}"),
        }
        assert!(error.to_string().contains("iterators"), "{error}");
        assert!(written > 500);
        // A flush needs no memory, and everything written can be read.
        db.flush().unwrap();
        assert_eq!(db.iter().count(), written as usize);
        drop(held);
        for more in 0..500 {
            db.put(&(written + more).to_be_bytes(), &[7; 1000]).unwrap();
        }
        db.flush().unwrap();
        db.wait_idle().unwrap();
        assert!(db.stats().memtables_used_bytes < LIMIT / 4);
    }
}

#[test]
fn a_write_waits_for_an_iterator_of_another_thread() {
    const LIMIT: usize = 1 << 20;
    let db = open(&FaultIo::new(), &limited(LIMIT, 256 << 10)).unwrap();
    db.write(&batch(60, 10 << 10, 1), Durability::Buffered)
        .unwrap();
    let iter = db.iter();
    db.flush().unwrap();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| db.write(&batch(60, 10 << 10, 2), Durability::Buffered));
        // The reader drops its iterator while the writer waits, or earlier.
        while db.stats().memtables_used_bytes == 0 {
            std::thread::yield_now();
        }
        drop(iter);
        writer.join().unwrap().unwrap();
    });
    assert_eq!(db.iter().count(), 120);
}

#[test]
fn writes_flushes_and_ingestions_continue_while_a_checkpoint_copies() {
    const LIMIT: usize = 1 << 20;
    const PUTS: u32 = 4000;
    for has_links in [true, false] {
        let disk = FaultIo::new();
        disk.set_links(has_links);
        let (copying, is_copying) = mpsc::channel();
        let (go_on, may_go_on) = mpsc::channel::<()>();
        let may_go_on = Mutex::new(may_go_on);
        let io = HookIo::new(&disk, move |change, path| {
            if change == Change::CreateDir && path == Path::new("/copy") {
                copying.send(()).unwrap();
                // It fails once the test has.
                let _ = may_go_on.lock().unwrap().recv();
            }
            Ok(())
        });
        // Two memtables use all the memory, so that no other can be made while one is full.
        let options = limited(LIMIT, LIMIT / 2);
        let db = Db::open_with_io(Arc::new(io), STORE, options.clone()).unwrap();
        db.put(b"before", b"value").unwrap();
        let (done, is_done) = mpsc::channel();
        std::thread::scope(|scope| {
            let checkpoint = scope.spawn(|| db.checkpoint("/copy"));
            is_copying.recv().unwrap();
            scope.spawn(|| {
                for n in 0..PUTS {
                    db.put(n.to_be_bytes(), [7; 1000]).unwrap();
                }
                let other = db.keyspace("other").unwrap();
                let mut ingestion = other.ingest();
                ingestion.add(b"ingested", b"value").unwrap();
                ingestion.commit().unwrap();
                db.compact().unwrap();
                done.send(()).unwrap();
            });
            let is_done = is_done.recv_timeout(Duration::from_secs(60));
            assert!(!checkpoint.is_finished());
            drop(go_on);
            is_done.expect("nothing waits for the copy");
            checkpoint.join().unwrap().unwrap();
        });
        assert_eq!(db.iter().count(), PUTS as usize + 1);
        let copy = Db::open_with_io(Arc::new(disk), "/copy", options).unwrap();
        assert_eq!(copy.iter().count(), 1);
        assert!(copy.recovery().clean_close);
    }
}

#[test]
fn filters_stay_within_the_cache_and_return_when_space_is_free() {
    const CACHE: usize = 512 << 10;
    const KEYS: u32 = 80_000;
    let options = |cache_bytes| {
        Options::default()
            .cache_bytes(cache_bytes)
            .memory_limit_bytes(4 << 20)
            .run(
                RunOptions::default()
                    .page_bytes(4 << 10)
                    .filter_bits_per_key(64),
            )
            .tree(TreeOptions::default().run_bytes(128 << 10))
            .background(Background::Caller)
            .pages(Pages::Small)
    };
    let unfiltered = |db: &Db| -> usize {
        let levels = db.stats().levels;
        levels.iter().map(|level| level.unfiltered_runs).sum()
    };
    let io = FaultIo::new();
    let db = open(&io, &options(16 << 20)).unwrap();
    let mut ingestion = db.ingest();
    for n in 0..KEYS {
        ingestion.add(&(2 * n).to_be_bytes(), b"").unwrap();
    }
    ingestion.commit().unwrap();
    assert_eq!(unfiltered(&db), 0);
    db.close().unwrap();

    let db = open(&io, &options(CACHE)).unwrap();
    let cache = |db: &Db| db.stats().cache;
    assert!(cache(&db).used_bytes <= CACHE, "{}", cache(&db));
    assert!(unfiltered(&db) > 0);
    for n in (0..KEYS).step_by(997) {
        assert!(db.get(&(2 * n).to_be_bytes()).unwrap().is_some());
        assert!(db.get(&(2 * n + 1).to_be_bytes()).unwrap().is_none());
    }
    assert!(cache(&db).used_bytes <= CACHE, "{}", cache(&db));
    assert!(db.verify().unwrap().problems.is_empty());
    // When other runs are removed, there is space for the filters of the remaining ones.
    db.delete_range(&(KEYS / 2).to_be_bytes(), &u32::MAX.to_be_bytes())
        .unwrap();
    db.compact().unwrap();
    db.wait_idle().unwrap();
    assert_eq!(unfiltered(&db), 0);
    assert!(cache(&db).used_bytes <= CACHE, "{}", cache(&db));
    assert_eq!(db.iter().count() as u32, KEYS / 4);
}
