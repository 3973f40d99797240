//! A store with many runs opens with few reads and descriptors. Indexes and filters are loaded when
//! they are needed, and lookups are right meanwhile.

mod testing;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forerun_db::io::Io;
use forerun_db::io::fault::FaultIo;
use forerun_db::{
    Access, Background, Compression, Db, Error, Options, Result, RunOptions, TreeOptions, Values,
    repair_with_io,
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

fn name(path: &PathBuf) -> OsString {
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
    const MAX_OPEN: usize = 32;
    let io = WatchedIo::new(&store(150));
    for background in [Background::Threads, Background::Caller] {
        let options = options(background).max_open_files(MAX_OPEN);
        io.reset();
        let db = open(&io, &options).unwrap();
        let seen = io.seen();
        let runs = loaded(&db).runs as u64;
        // Between its reads, a file may be closed for another one.
        let opened = runs..=runs + runs / 8;
        assert!(
            runs > 140 && opened.contains(&seen.opened),
            "{runs} runs: {seen:?}"
        );
        // The tail, the head, and a root that is not in the tail.
        assert!((2 * runs..=3 * runs).contains(&seen.reads), "{seen:?}");
        let bytes = seen.read_bytes / runs;
        assert!(bytes < 21 << 10, "{bytes} bytes for each run");
        assert!(io.open_runs().1 <= MAX_OPEN, "{:?}", io.open_runs());
        // In the background, all but one have this name.
        let is_shared = seen.threads.contains("forerun-open");
        assert_eq!(is_shared, background == Background::Threads, "{seen:?}");
        check(&db, 0, 101, 150 * ROWS);
        db.wait_idle().unwrap();
        assert_eq!(loaded(&db).unfiltered, 0);
        check(&db, 1, 97, 150 * ROWS);
        assert!(io.open_runs().1 <= MAX_OPEN, "{:?}", io.open_runs());
        db.close().unwrap();
        assert_eq!(io.open_runs().0, 0);
    }
}

#[test]
fn a_small_run_is_loaded_by_its_first_lookup_and_a_large_one_by_later_ones() {
    let files = store(6);
    let io = WatchedIo::new(&files);
    let options = options(Background::Caller);
    let index_bytes = |path: &PathBuf| {
        let [_, index, meta] = offsets(&files.read(path).unwrap());
        meta - index
    };
    let largest = run_files(&files).iter().map(index_bytes).max().unwrap();
    assert!(largest > 8 << 10, "{largest}");
    for is_batch in [false, true] {
        let db = open(&io, &options).unwrap();
        let at_first = loaded(&db);
        assert_eq!((at_first.indexed, at_first.unfiltered), (0, at_first.runs));
        // Each of these keys is in the range of two runs.
        let look_up = || {
            let keys = [[0, 0, 1, 1], [0, 0, 1, 3]];
            if is_batch {
                db.multi_get(&keys, &mut Values::new()).unwrap();
            } else {
                keys.iter().for_each(|key| drop(db.get(key).unwrap()));
            }
        };
        let mut lookups = 0;
        while loaded(&db).indexed < 2 {
            look_up();
            lookups += 2;
            assert!(lookups < 1000);
        }
        // One leaf of 4 KiB is counted for each.
        let expected = largest.div_ceil(4 << 10);
        assert!(
            (2..=expected + 2).contains(&lookups),
            "{lookups} of {expected}"
        );
        look_up();
        let after = loaded(&db);
        assert_eq!(after.indexed, 2, "others are not needed");
        assert_eq!(after.unfiltered, after.runs - 2);
        db.wait_idle().unwrap();
        let after = loaded(&db);
        assert_eq!((after.indexed, after.unfiltered), (after.runs, 0));
        check(&db, 0, 7, 6 * ROWS);
        db.close().unwrap();
    }
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
fn a_store_that_is_only_read_loads_what_lookups_need() {
    let files = store(6);
    let io = WatchedIo::new(&files);
    let options = options(Background::Threads).access(Access::ReadOnly);
    let db = open(&io, &options).unwrap();
    assert_eq!(loaded(&db).indexed, 0);
    check(&db, 0, 3, 6 * ROWS);
    let after = loaded(&db);
    assert_eq!(after.indexed, after.runs);
    assert!(io.seen().loader_reads.is_empty());
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

#[test]
fn a_missing_foreign_or_truncated_run_is_refused_and_the_first_is_named() {
    let good = store(60);
    let files = run_files(&good);
    let in_order = {
        let io = WatchedIo::new(&good);
        let mut order = Vec::new();
        let mut left = files.clone();
        while !left.is_empty() {
            let names: Vec<_> = left.iter().map(name).collect();
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
    let kinds: [(&dyn Fn(&FaultIo, &PathBuf), &str); 3] = [
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
fn an_index_that_cannot_be_read_is_read_later_and_not_at_each_lookup() {
    let files = store(2);
    let io = WatchedIo::new(&files);
    let db = open(&io, &options(Background::Caller)).unwrap();
    // All pages enter the cache, and neither index nor filter.
    assert!(db.iter().all(|entry| entry.is_ok()));
    assert_eq!(loaded(&db).indexed, 0);
    let names: Vec<_> = run_files(&files).iter().map(name).collect();
    io.fail(&names.iter().collect::<Vec<_>>());
    io.reset();
    for round in 0..5000_u32 {
        let key = ROWS + round % 64;
        assert_eq!(db.get(key.to_be_bytes()).unwrap(), value(key));
    }
    let failures = io.seen().failures;
    assert!((2..40).contains(&failures), "{failures}");
    assert_eq!(loaded(&db).indexed, 0);
    io.fail(&[]);
    db.wait_idle().unwrap();
    assert_eq!(loaded(&db).unfiltered, 0);
    check(&db, 0, 5, 2 * ROWS);
}
