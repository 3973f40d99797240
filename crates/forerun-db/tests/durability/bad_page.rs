//! A page that cannot be read affects its own keyspace and no other.

use crate::testing;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forerun_db::io::fault::FaultIo;
use forerun_db::io::{Io, OpenMode, write_all_at};
use forerun_db::{
    Background, Db, Error, Keyspace, Options, Result, RunOptions, TreeOptions, repair_with_io,
};
use testing::{STORE, open, small_options};

/// How long a test waits for something that must happen.
const DEADLINE: Duration = Duration::from_secs(60);

const STOP_RUNS: usize = 6;

/// Memtables of 64 KiB, and a short level 0.
fn options() -> Options {
    small_options()
        .memtable_bytes(64 << 10)
        .memory_limit_bytes(512 << 10)
        .cache_bytes(256 << 10)
        .wal_segment_bytes(64 << 10)
        .background(Background::Threads)
        .run(RunOptions::default().page_bytes(4 << 10))
        .tree(
            TreeOptions::default()
                .level0_runs(2)
                .level0_slow_runs(4)
                .level0_stop_runs(STOP_RUNS)
                .level1_bytes(128 << 10)
                .run_bytes(64 << 10),
        )
}

fn value(seed: u64) -> Vec<u8> {
    let words = (0..32).map(|word: u64| (seed << 8 | word).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    words.flat_map(u64::to_le_bytes).collect()
}

/// A store with runs of the keyspaces "good" and "bad", where a page of the first run of "bad" is
/// damaged; also the run's file and its original bytes.
fn damaged() -> (FaultIo, PathBuf, Vec<u8>) {
    let io = FaultIo::new();
    let piling_up = options().tree(
        options()
            .tree
            .level0_runs(90)
            .level0_slow_runs(100)
            .level0_stop_runs(101),
    );
    let db = open(&io, &piling_up).unwrap();
    let bad = db.keyspace("bad").unwrap();
    for round in 0..4 {
        for i in 0..100_u64 {
            bad.put(&i.to_be_bytes(), &value(round << 32 | i)).unwrap();
        }
        bad.flush().unwrap();
    }
    db.keyspace("good").unwrap();
    drop((bad, db));
    let files = io.files();
    let run = files
        .iter()
        .find(|path| path.to_string_lossy().ends_with(".run"));
    let run = run.unwrap().clone();
    let whole = io.read(&run).unwrap();
    let mut bytes = whole.clone();
    bytes[4 << 10] ^= 0xff;
    io.write(&run, &bytes);
    (io, run, whole)
}

fn level0(keyspace: &Keyspace) -> usize {
    keyspace
        .stats()
        .levels
        .first()
        .map_or(0, |level| level.runs)
}

/// Waits until a condition holds.
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < DEADLINE, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn names(error: &str, run: &Path) -> bool {
    let run = run.file_name().unwrap().to_string_lossy();
    error.contains(&*run) && error.contains("offset") && error.contains("\"bad\"")
}

/// Writes to both keyspaces until the good one has been compacted; every write to the good one
/// succeeds. Returns the error of a rejected write to the bad one.
fn write_both(good: &Keyspace, bad: &Keyspace, db: &Db) -> Option<Error> {
    let (begun, before) = (Instant::now(), db.stats().tree.compactions);
    let mut refused = None;
    for i in 0_u64.. {
        assert!(
            begun.elapsed() < DEADLINE,
            "no write was rejected, or nothing was compacted"
        );
        if i % 4 == 0
            && let Err(error) = bad.put(&(i % 100).to_be_bytes(), &value(i))
        {
            refused = Some(error);
        }
        let written = good.put(&(i % 500).to_be_bytes(), &value(i));
        written.unwrap_or_else(|error| panic!("write {i} to the good keyspace: {error}"));
        if refused.is_some() && db.stats().tree.compactions >= before + 5 {
            break;
        }
    }
    refused
}

#[test]
fn a_bad_page_in_one_keyspace_stops_neither_the_writes_nor_the_compactions_of_another() {
    let (io, run, _) = damaged();
    let db = open(&io, &options()).unwrap();
    let (good, bad) = (db.keyspace("good").unwrap(), db.keyspace("bad").unwrap());
    let refused = write_both(&good, &bad, &db).unwrap();
    assert!(names(&refused.to_string(), &run), "{refused}");
    // Flushes that were already under way add a few more runs.
    assert!(level0(&bad) <= STOP_RUNS + 6, "{}", level0(&bad));
    wait_until("the good keyspace is compacted", || level0(&good) < 2);
    assert!(db.put(b"own", b"value").is_ok());
    db.flush().unwrap();
    let reported = db.stats().background_failure.unwrap();
    assert!(names(&reported, &run), "{reported}");
    // Keys on other pages can still be read.
    assert!(bad.get(&99_u64.to_be_bytes()).unwrap().is_some());
    db.close().unwrap();
}

#[test]
fn a_keyspace_that_cannot_be_compacted_reports_why_and_recovers() {
    let (io, run, whole) = damaged();
    let db = open(&io, &options()).unwrap();
    let (good, bad) = (db.keyspace("good").unwrap(), db.keyspace("bad").unwrap());
    let refused = write_both(&good, &bad, &db).unwrap();
    assert!(matches!(&refused, Error::KeyspaceStopped { keyspace, .. } if keyspace == "bad"));
    let mut batch = forerun_db::WriteBatch::new();
    batch.put(b"both", b"1").unwrap();
    batch.keyspace(&bad).put(b"both", b"1").unwrap();
    let durability = forerun_db::Durability::Buffered;
    assert!(matches!(
        db.write(&batch, durability),
        Err(Error::KeyspaceStopped { .. })
    ));
    assert_eq!(
        db.get(b"both").unwrap(),
        None,
        "a batch is written completely or not at all"
    );
    let mut ingestion = bad.ingest();
    ingestion.add(b"ingested", b"1").unwrap();
    assert!(matches!(
        ingestion.commit(),
        Err(Error::KeyspaceStopped { .. })
    ));

    let reported = bad.stats().compaction_failure.unwrap();
    assert!(names(&reported, &run), "{reported}");
    assert_eq!(good.stats().compaction_failure, None);
    // Callers that request a compaction get the error too, and all other keyspaces are compacted.
    for asked in [bad.compact(), db.compact(), db.wait_idle()] {
        let error = asked.unwrap_err();
        assert!(matches!(&error, Error::CompactionFailed { .. }), "{error}");
        assert!(names(&error.to_string(), &run), "{error}");
    }
    good.compact().unwrap();
    assert_eq!(level0(&good), 0);

    // Overwrite in place, because the store has the file open.
    let file = io.open(&run, OpenMode::ReadWrite).unwrap();
    write_all_at(&*file, &whole, 0).unwrap();
    bad.compact().unwrap();
    assert_eq!((level0(&bad), bad.stats().compaction_failure), (0, None));
    assert_eq!(db.stats().background_failure, None);
    bad.put(b"key", b"value").unwrap();
    db.wait_idle().unwrap();
    db.close().unwrap();
}

#[test]
fn a_full_level_0_with_a_bad_page_refuses_writes_that_are_never_slowed_down() {
    let (io, run, _) = damaged();
    let options = options();
    let tree = options.tree.level0_slow_runs(usize::MAX);
    let db = open(&io, &options.tree(tree)).unwrap();
    let (good, bad) = (db.keyspace("good").unwrap(), db.keyspace("bad").unwrap());
    let writing = std::thread::spawn(move || write_both(&good, &bad, &db).unwrap());
    // A write that waits for ever would hang the test.
    wait_until("a write is refused", || writing.is_finished());
    let refused = writing.join().unwrap().to_string();
    assert!(names(&refused, &run), "{refused}");
}

#[test]
fn a_repair_makes_a_keyspace_with_a_bad_page_usable_again() {
    for background in [Background::Threads, Background::Caller] {
        let (io, _, _) = damaged();
        let options = options().background(background);
        let db = open(&io, &options).unwrap();
        let (good, bad) = (db.keyspace("good").unwrap(), db.keyspace("bad").unwrap());
        write_both(&good, &bad, &db).unwrap();
        drop((good, bad));
        db.close().unwrap();
        let repaired = repair_with_io(std::sync::Arc::new(io.clone()), STORE, &options).unwrap();
        assert_eq!(repaired.losses.len(), 1);
        let db = open(&io, &options).unwrap();
        let bad = db.keyspace("bad").unwrap();
        for i in 0..100_u64 {
            bad.put(&i.to_be_bytes(), &value(i)).unwrap();
        }
        db.compact().unwrap();
        db.wait_idle().unwrap();
        assert_eq!(bad.stats().compaction_failure, None);
        let read: Result<Vec<_>> = bad.iter().collect();
        assert!(read.unwrap().len() >= 100);
    }
}

/// A store with a full last level, of which the run with the lowest keys has a damaged page; also
/// that run's file.
fn damaged_below(options: &Options) -> (FaultIo, PathBuf) {
    let io = FaultIo::new();
    let db = open(&io, options).unwrap();
    for i in 0..DEEP_KEYS {
        db.put(i.to_be_bytes(), value(i)).unwrap();
    }
    db.compact().unwrap();
    db.close().unwrap();
    let (mut lowest, mut damaged) = (u64::MAX, None);
    for path in io.files() {
        if path.extension().is_some_and(|of| of == "run") {
            let bytes = io.read(&path).unwrap();
            // The key is in front of its value.
            let at = |i: u64| bytes.windows(8).position(|of| of == i.to_be_bytes());
            if let Some(first) = (0..DEEP_KEYS).find(|i| at(*i).is_some())
                && first < lowest
            {
                (lowest, damaged) = (first, Some(path));
            }
        }
    }
    let run = damaged.unwrap();
    let mut bytes = io.read(&run).unwrap();
    bytes[4 << 10] ^= 0xff;
    io.write(&run, &bytes);
    (io, run)
}

const DEEP_KEYS: u64 = 2_000;

#[test]
fn a_bad_page_in_a_deep_level_stops_no_compaction_that_does_not_read_it() {
    let options = options();
    let (io, run) = damaged_below(&options);
    let db = open(&io, &options).unwrap();
    let own = db.default_keyspace();
    let (begun, mut written) = (Instant::now(), 0_u64);
    let mut reported = None;
    // Far longer than the first retries take.
    while written < 20_000 || begun.elapsed() < Duration::from_secs(3) {
        let key = written * 7919 % DEEP_KEYS;
        let put = own.put(&key.to_be_bytes(), &value(written));
        put.unwrap_or_else(|error| panic!("write {written}: {error}"));
        written += 1;
        reported = reported.or_else(|| own.stats().compaction_failure);
    }
    let reported = reported.unwrap();
    let name = run.file_name().unwrap().to_string_lossy();
    assert!(reported.contains(&*name), "{reported}");
    assert!(level0(&own) <= STOP_RUNS + 6, "{}", level0(&own));
    // What the page does not concern has gone down.
    assert!(db.wait_idle().is_err());
    assert!(level0(&own) < STOP_RUNS, "{}", level0(&own));
    db.close().unwrap();
}

#[test]
fn a_full_compaction_goes_on_without_a_run_that_cannot_be_read() {
    let options = options();
    let (io, run) = damaged_below(&options);
    // Level 0 goes directly into the last level, and nothing is due.
    let tree = options.tree.level1_bytes(1 << 30);
    let tree = tree.level0_runs(10).level0_stop_runs(20);
    let quiet = options.tree(tree).background(Background::Caller);
    let db = open(&io, &quiet).unwrap();
    let own = db.default_keyspace();
    // The older one needs the run that is damaged.
    for key in [0, DEEP_KEYS - 1] {
        own.put(key.to_be_bytes(), b"new").unwrap();
        own.flush().unwrap();
    }
    assert_eq!(level0(&own), 2);
    let error = db.compact().unwrap_err();
    assert!(matches!(&error, Error::CompactionFailed { .. }), "{error}");
    let name = run.file_name().unwrap().to_string_lossy();
    assert!(error.to_string().contains(&*name), "{error}");
    assert_eq!(level0(&own), 1);
    assert_eq!(own.get(0_u64.to_be_bytes()).unwrap().unwrap(), b"new");
    // It is not forgotten, and read again on request.
    assert!(own.stats().compaction_failure.is_some());
    assert!(db.compact().is_err());
    db.close().unwrap();
}
