//! A store with many runs opens with few reads and descriptors. Indexes and filters are loaded
//! afterwards, and lookups are right meanwhile.

use crate::testing;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forerun_db::io::Io;
use forerun_db::io::fault::FaultIo;
use forerun_db::{
    Access, Background, Compression, Db, Error, Options, Result, RunOptions, StatsLevel,
    TreeOptions, Values, repair_with_io,
};
use testing::watched_io::WatchedIo;
use testing::{STORE, small_options};

/// Rows of a run, about.
const ROWS: u32 = 1200;

fn options(background: Background) -> Options {
    small_options()
        .cache_bytes(32 << 20)
        .background(background)
        .run(
            RunOptions::default()
                .page_bytes(4 << 10)
                .compression(Compression::None),
        )
        .tree(TreeOptions::default().run_bytes(40 << 10))
}

fn open(io: &WatchedIo, options: &Options) -> Result<Db> {
    Db::open_with_io(Arc::new(io.clone()), STORE, options.clone())
}

/// Even numbers are keys; each tenth of them was deleted again, and each seventh rewritten.
fn value(number: u32) -> Option<Vec<u8>> {
    match number {
        odd if odd % 2 == 1 => None,
        deleted if deleted % 20 == 0 => None,
        newer if newer % 14 == 0 => Some(format!("newer {newer}").into_bytes()),
        _ => Some(number.to_le_bytes().to_vec()),
    }
}

/// A closed store of `runs` runs in the last level, and one above it.
fn store(runs: u32) -> FaultIo {
    let io = FaultIo::new();
    let options = options(Background::Caller);
    let db = Db::open_with_io(Arc::new(io.clone()), STORE, options).unwrap();
    let mut ingestion = db.ingest();
    for number in (0..2 * ROWS * runs).step_by(2) {
        let value = number.to_le_bytes();
        ingestion.add(number.to_be_bytes(), value).unwrap();
    }
    ingestion.commit().unwrap();
    let mut ingestion = db.ingest();
    for number in (0..2 * ROWS * runs).step_by(2) {
        if number % 20 == 0 {
            ingestion.delete(number.to_be_bytes()).unwrap();
        } else if number % 14 == 0 {
            let value = format!("newer {number}");
            ingestion.add(number.to_be_bytes(), value).unwrap();
        }
    }
    ingestion.commit().unwrap();
    db.close().unwrap();
    io
}

/// The runs' files, in no order that matters.
fn run_files(io: &FaultIo) -> Vec<PathBuf> {
    let is_run = |path: &PathBuf| path.extension().is_some_and(|end| end == "run");
    io.files().into_iter().filter(is_run).collect()
}

fn name(path: &Path) -> OsString {
    path.file_name().unwrap().to_owned()
}

/// Offsets of filter, index and metadata, from the footer.
fn offsets(bytes: &[u8]) -> [usize; 3] {
    let footer = &bytes[bytes.len() - 72..];
    [32, 40, 48].map(|at| u64::from_le_bytes(footer[at..at + 8].try_into().unwrap()) as usize)
}

struct Loaded {
    runs: usize,
    indexed: usize,
    unfiltered: usize,
}

fn loaded(db: &Db) -> Loaded {
    let levels = db.stats().levels;
    Loaded {
        runs: levels.iter().map(|level| level.runs).sum(),
        indexed: levels.iter().map(|level| level.indexed_runs).sum(),
        unfiltered: levels.iter().map(|level| level.unfiltered_runs).sum(),
    }
}

/// Looks up numbers from `first` on, alone and as a batch.
fn check(db: &Db, first: u32, step: usize, rows: u32) {
    let numbers: Vec<u32> = (first..2 * rows).step_by(step).collect();
    let keys: Vec<_> = numbers.iter().map(|number| number.to_be_bytes()).collect();
    let mut values = Values::new();
    for (keys, numbers) in keys.chunks(300).zip(numbers.chunks(300)) {
        db.multi_get(keys, &mut values).unwrap();
        for (number, found) in numbers.iter().zip(values.iter()) {
            assert_eq!(found.unwrap(), value(*number).as_deref(), "{number}");
        }
        let number = numbers[numbers.len() / 2];
        assert_eq!(db.get(number.to_be_bytes()).unwrap(), value(number));
    }
}

#[test]
fn many_runs_open_with_few_reads_and_descriptors_by_several_threads() {
    let io = WatchedIo::new(&store(150));
    for (max_open, is_shared) in [(32, true), (3, false), (1, false)] {
        let options = options(Background::Threads).max_open_files(max_open);
        io.hold_loader();
        io.reset();
        // So long that other threads start before one has opened all.
        io.set_pause(Duration::from_micros(300));
        let db = open(&io, &options).unwrap();
        let seen = io.seen();
        io.set_pause(Duration::ZERO);
        let runs = loaded(&db).runs as u64;
        assert!(runs > 140);
        // The tail, the head, and a root that is not in the tail.
        assert!((2 * runs..=3 * runs).contains(&seen.reads), "{seen:?}");
        let bytes = seen.read_bytes / runs;
        assert!(bytes < 21 << 10, "{bytes} bytes for each run");
        assert_eq!(seen.threads.contains("forerun-open"), is_shared, "{seen:?}");
        if !is_shared {
            assert_eq!((seen.opened, seen.threads.len()), (runs, 1), "each once");
        }
        io.release_loader();
        check(&db, 0, 101, 150 * ROWS);
        db.wait_idle().unwrap();
        assert_eq!(loaded(&db).unfiltered, 0);
        check(&db, 1, 97, 150 * ROWS);
        // Besides, the loader and a lookup may each read one.
        let open_max = io.open_runs().1;
        assert!(open_max <= max_open.max(3), "{open_max} of {max_open}");
        db.close().unwrap();
        assert_eq!(io.open_runs().0, 0);
    }
}

#[test]
fn lookups_load_nothing_and_are_right_before_the_loader_has() {
    let files = store(6);
    let io = WatchedIo::new(&files);
    io.hold_loader();
    let db = open(&io, &options(Background::Threads)).unwrap();
    io.wait_until_loader_is_held();
    for _ in 0..3 {
        check(&db, 0, 3, 6 * ROWS);
    }
    let before = loaded(&db);
    assert_eq!((before.indexed, before.unfiltered), (0, before.runs));
    io.release_loader();
    db.wait_idle().unwrap();
    let after = loaded(&db);
    assert_eq!((after.indexed, after.unfiltered), (after.runs, 0));
    check(&db, 0, 3, 6 * ROWS);
}

#[test]
fn without_background_threads_opening_loads_indexes() {
    let files = store(6);
    let read_only = options(Background::Threads).access(Access::ReadOnly);
    for options in [options(Background::Caller), read_only] {
        let io = WatchedIo::new(&files);
        let db = open(&io, &options).unwrap();
        let at_first = loaded(&db);
        assert_eq!((at_first.indexed, at_first.unfiltered), (at_first.runs, 0));
        check(&db, 0, 3, 6 * ROWS);
        db.wait_idle().unwrap();
        assert!(io.seen().loader_reads.is_empty());
        db.close().unwrap();
    }
}

#[test]
fn the_store_can_be_closed_and_a_keyspace_dropped_while_the_loader_reads() {
    let io = WatchedIo::new(&store(20));
    let options = options(Background::Threads);
    io.hold_loader();
    let db = open(&io, &options).unwrap();
    io.wait_until_loader_is_held();
    std::thread::scope(|scope| {
        let closing = scope.spawn(|| db.clone().close());
        // Writes fail once the store is being closed.
        while db.put([0], [0]).is_ok() && !closing.is_finished() {
            std::thread::sleep(Duration::from_millis(1));
        }
        io.release_loader();
        closing.join().unwrap().unwrap();
    });
    drop(db);
    assert_eq!(io.open_runs().0, 0);
    // A store with one run, in the keyspace.
    let inner = FaultIo::new();
    let io = WatchedIo::new(&inner);
    let db = open(&io, &options).unwrap();
    let keyspace = db.keyspace("other").unwrap();
    let mut ingestion = keyspace.ingest();
    ingestion.add("key", "value").unwrap();
    ingestion.commit().unwrap();
    drop(keyspace);
    db.close().unwrap();
    io.hold_loader();
    let db = open(&io, &options).unwrap();
    io.wait_until_loader_is_held();
    db.drop_keyspace("other").unwrap();
    assert_eq!(run_files(&inner).len(), 1, "the loader has it");
    io.release_loader();
    db.wait_idle().unwrap();
    assert!(run_files(&inner).is_empty());
}

#[test]
fn opening_goes_on_with_one_thread_when_the_system_opens_no_more_files() {
    let io = WatchedIo::new(&store(100));
    io.set_pause(Duration::from_micros(300));
    io.limit_open(8);
    let options = options(Background::Threads).max_open_files(64);
    let db = open(&io, &options).unwrap();
    assert!(io.seen().threads.contains("forerun-open"));
    check(&db, 0, 101, 100 * ROWS);
    db.wait_idle().unwrap();
    assert_eq!(loaded(&db).unfiltered, 0);
    assert!(io.open_runs().1 <= 8);
}

#[test]
fn each_index_is_read_once_and_the_newest_first() {
    let files = store(20);
    let io = WatchedIo::new(&files);
    let options = options(Background::Threads);
    let db = open(&io, &options).unwrap();
    db.wait_idle().unwrap();
    db.wait_idle().unwrap();
    let reads = io.seen().loader_reads;
    let runs = loaded(&db).runs;
    assert_eq!((reads.len(), loaded(&db).indexed), (runs, runs));
    assert!(reads.values().all(|reads| *reads == 1), "{reads:?}");
    db.close().unwrap();
    // With space for a few, the level above the last one has its own.
    let db = open(&io, &options.cache_bytes(512 << 10)).unwrap();
    db.wait_idle().unwrap();
    let levels = db.stats().levels;
    let filled: Vec<_> = levels.iter().filter(|level| level.runs > 0).collect();
    let [upper, last] = filled[..] else {
        panic!("{levels:?}");
    };
    assert_eq!(upper.indexed_runs, upper.runs);
    assert!(last.indexed_runs < last.runs, "{levels:?}");
    assert!(db.stats().cache.used_bytes <= 512 << 10);
    check(&db, 0, 11, 20 * ROWS);
}

#[test]
fn lookups_are_right_while_indexes_are_loaded() {
    const RUNS: u32 = 30;
    let files = store(RUNS);
    for cache_bytes in [256 << 10, 32 << 20] {
        for background in [Background::Threads, Background::Caller] {
            let io = WatchedIo::new(&files);
            io.set_pause(Duration::from_micros(50));
            let options = options(background).cache_bytes(cache_bytes);
            let options = options.max_open_files(4);
            let db = open(&io, &options).unwrap();
            std::thread::scope(|scope| {
                for thread in 0..4 {
                    let db = &db;
                    scope.spawn(move || check(db, thread, 29 + thread as usize, RUNS * ROWS));
                }
            });
            db.close().unwrap();
        }
    }
}

#[test]
fn a_damaged_index_or_filter_is_never_believed_and_a_repair_writes_it_again() {
    const RUNS: u32 = 3;
    let good = store(RUNS);
    let path = run_files(&good).into_iter().next().unwrap();
    let bytes = good.read(&path).unwrap();
    let [filter, index, meta] = offsets(&bytes);
    for background in [Background::Threads, Background::Caller] {
        // Small caches have no space for indexes.
        for cache_bytes in [8 << 20, 128 << 10] {
            for at in [filter, index - 1, index + 70, meta - 1] {
                let io = good.kill();
                let mut damaged = bytes.clone();
                damaged[at] ^= 0x10;
                io.write(&path, &damaged);
                let options = options(background).cache_bytes(cache_bytes);
                let db = Db::open_with_io(Arc::new(io.clone()), STORE, options.clone()).unwrap();
                check(&db, 0, 3, RUNS * ROWS);
                db.wait_idle().unwrap();
                check(&db, 1, 3, RUNS * ROWS);
                let found = loaded(&db);
                assert!(found.indexed < found.runs || at < index);
                let problems = db.verify().unwrap().problems;
                let [Error::CorruptFile { path: named, .. }] = &problems[..] else {
                    panic!("{problems:?}");
                };
                assert_eq!(*named, path);
                db.close().unwrap();
                let io: Arc<dyn Io> = Arc::new(io);
                let repaired = repair_with_io(Arc::clone(&io), STORE, &options).unwrap();
                assert!(repaired.losses.is_empty() && repaired.new_runs == 1);
                let db = Db::open_with_io(io, STORE, options).unwrap();
                db.wait_idle().unwrap();
                check(&db, 0, 5, RUNS * ROWS);
                assert!(db.verify().unwrap().problems.is_empty());
            }
        }
    }
}

/// Damages a file.
type Harm<'h> = &'h dyn Fn(&FaultIo, &PathBuf);

#[test]
fn a_missing_foreign_or_truncated_run_is_refused_and_the_first_is_named() {
    let good = store(60);
    let files = run_files(&good);
    let in_order = {
        let io = WatchedIo::new(&good);
        let mut order = Vec::new();
        let mut left = files.clone();
        while !left.is_empty() {
            let names: Vec<_> = left.iter().map(|path| name(path)).collect();
            io.fail(&names.iter().collect::<Vec<_>>());
            match open(&io, &options(Background::Caller)) {
                Err(Error::Io { path, .. }) => {
                    left.retain(|of| *of != path);
                    order.push(path);
                }
                other => panic!("{other:?}"),
            }
        }
        order
    };
    let missing = |io: &FaultIo, path: &PathBuf| io.take(path);
    let foreign = |io: &FaultIo, path: &PathBuf| {
        let other = files.iter().find(|of| *of != path).unwrap();
        io.write(path, &io.read(other).unwrap());
    };
    let truncated = |io: &FaultIo, path: &PathBuf| {
        let bytes = io.read(path).unwrap();
        io.write(path, &bytes[..bytes.len() / 2]);
    };
    let kinds: [(Harm<'_>, &str); 3] = [
        (&missing, "missing"),
        (&foreign, "not the run"),
        (&truncated, "footer"),
    ];
    for (harm, word) in kinds {
        for places in [&[0][..], &[59, 31, 44], &[33]] {
            let inner = good.kill();
            for place in places {
                harm(&inner, &in_order[*place]);
            }
            let first = &in_order[*places.iter().min().unwrap()];
            for background in [Background::Threads, Background::Caller] {
                let io = WatchedIo::new(&inner);
                let before = inner.files();
                match open(&io, &options(background)) {
                    Err(Error::CorruptFile { path, reason, .. }) => {
                        assert_eq!(path, *first);
                        assert!(reason.contains(word), "{reason}");
                    }
                    other => panic!("{other:?}"),
                }
                assert_eq!(io.open_runs().0, 0, "a descriptor is left");
                assert_eq!(inner.files(), before, "nothing is removed");
            }
        }
    }
}

#[test]
fn an_error_while_several_threads_open_runs_ends_all_of_them() {
    let good = store(60);
    let files = run_files(&good);
    let io = WatchedIo::new(&good);
    io.set_pause(Duration::from_micros(100));
    for place in [0, 1, 20, files.len() - 1] {
        io.fail(&[&name(&files[place])]);
        let options = options(Background::Threads).max_open_files(8);
        io.reset();
        match open(&io, &options) {
            Err(Error::Io { path, .. }) => assert_eq!(path, files[place]),
            other => panic!("{other:?}"),
        }
        let (open_now, open_max) = io.open_runs();
        assert!(open_now == 0 && open_max <= 8, "{open_now}, {open_max}");
        io.fail(&[]);
        let db = open(&io, &options).unwrap();
        check(&db, 0, 501, 60 * ROWS);
        db.close().unwrap();
        assert_eq!(io.open_runs().0, 0);
    }
}

#[test]
fn an_index_that_cannot_be_read_leaves_the_filter_and_is_read_later() {
    let files = store(2);
    let index_offset = |path: &PathBuf| offsets(&files.read(path).unwrap())[1] as u64;
    let index_offsets: Vec<u64> = run_files(&files).iter().map(index_offset).collect();
    for background in [Background::Threads, Background::Caller] {
        let io = WatchedIo::new(&files.kill());
        io.fail_at(&index_offsets);
        let db = open(&io, &options(background)).unwrap();
        for _ in 0..6 {
            db.wait_idle().unwrap();
        }
        let found = loaded(&db);
        assert_eq!((found.indexed, found.unfiltered), (0, 0), "filters");
        check(&db, 0, 5, 2 * ROWS);
        // It is not tried again at each change.
        let failures = io.seen().failures;
        assert!(failures >= 6 * found.runs as u64, "{failures}");
        db.put([1], [1]).unwrap();
        db.flush().unwrap();
        io.fail_at(&[]);
        if background == Background::Caller {
            db.put([1], [1]).unwrap();
            db.flush().unwrap();
            let found = loaded(&db);
            assert!(found.indexed <= 2 && found.runs >= 5, "only the new ones");
        }
        assert_eq!(io.seen().failures, failures);
        db.wait_idle().unwrap();
        let found = loaded(&db);
        assert_eq!((found.indexed, found.unfiltered), (found.runs, 0));
        check(&db, 0, 5, 2 * ROWS);
        db.close().unwrap();
    }
}

#[test]
fn an_index_that_could_not_be_read_is_read_later_though_nothing_is_asked_of_the_store() {
    let files = store(2);
    let index_offset = |path: &PathBuf| offsets(&files.read(path).unwrap())[1] as u64;
    let index_offsets: Vec<u64> = run_files(&files).iter().map(index_offset).collect();
    let io = WatchedIo::new(&files);
    io.fail_at(&index_offsets);
    let db = open(&io, &options(Background::Threads)).unwrap();
    let wait_for = |what: &dyn Fn() -> bool| {
        let start = Instant::now();
        while !what() {
            assert!(start.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    wait_for(&|| io.seen().failures > 0);
    io.fail_at(&[]);
    wait_for(&|| loaded(&db).indexed == loaded(&db).runs);
    check(&db, 0, 5, 2 * ROWS);
    db.close().unwrap();
}

#[test]
fn lookups_read_again_what_could_not_be_read_if_the_store_has_no_thread_for_that() {
    let files = store(2);
    let index_offset = |path: &PathBuf| offsets(&files.read(path).unwrap())[1] as u64;
    let index_offsets: Vec<u64> = run_files(&files).iter().map(index_offset).collect();
    let read_only = options(Background::Threads).access(Access::ReadOnly);
    for options in [options(Background::Caller), read_only] {
        let io = WatchedIo::new(&files);
        io.fail_at(&index_offsets);
        let db = open(&io, &options.stats_level(StatsLevel::All)).unwrap();
        let failures = io.seen().failures;
        assert!(failures > 0 && loaded(&db).indexed == 0);
        let begun = Instant::now();
        while io.seen().failures == failures {
            assert!(begun.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(5));
            check(&db, 0, 97, 2 * ROWS);
        }
        // As soon as that, it was not tried again.
        assert!(begun.elapsed() > Duration::from_millis(500));
        io.fail_at(&[]);
        while loaded(&db).indexed < loaded(&db).runs {
            assert!(begun.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(5));
            check(&db, 0, 97, 2 * ROWS);
        }
        check(&db, 0, 5, 2 * ROWS);
        db.close().unwrap();
    }
}
