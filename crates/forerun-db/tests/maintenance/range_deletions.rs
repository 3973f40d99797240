//! Tens of thousands of range deletions: each costs about the same, whatever the others look like,
//! and their memory is counted.

use crate::testing;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use forerun_db::io::fault::{EIO, Fault, FaultIo};
use forerun_db::{
    Background, Db, Durability, Error, Options, Values, WriteBatch, check_with_io, repair_with_io,
};
use testing::{STORE, open, run_files, small_options};

/// How the ranges are arranged.
#[derive(Clone, Copy, Debug)]
enum Shape {
    /// Each contains all earlier ones.
    Growing,
    /// Each lies within the previous one.
    Shrinking,
    /// No two touch.
    Disjoint,
}

const SHAPES: [Shape; 3] = [Shape::Growing, Shape::Shrinking, Shape::Disjoint];

impl Shape {
    /// The bounds of range `i` of `count`.
    fn range(self, i: u32, count: u32) -> ([u8; 4], [u8; 4]) {
        let (start, end) = match self {
            Shape::Growing => (0, i + 1),
            Shape::Shrinking => (i, 4 * count - i),
            Shape::Disjoint => (2 * i, 2 * i + 1),
        };
        (start.to_be_bytes(), end.to_be_bytes())
    }

    fn covers(self, key: u32, count: u32) -> bool {
        match self {
            Shape::Growing => key < count,
            Shape::Shrinking => key < 4 * count,
            Shape::Disjoint => key.is_multiple_of(2) && key < 2 * count,
        }
    }
}

fn options() -> Options {
    small_options()
        .memory_limit_bytes(64 << 20)
        .memtable_bytes(16 << 20)
        .background(Background::Caller)
}

fn keys(count: u32) -> impl Iterator<Item = u32> {
    (0..5 * count).step_by(97)
}

fn put_all(db: &Db, count: u32) {
    let mut batch = WriteBatch::new();
    for key in keys(count) {
        batch.put(&key.to_be_bytes(), b"value").unwrap();
    }
    db.write(&batch, Durability::Buffered).unwrap();
}

fn check(db: &Db, shape: Shape, count: u32, when: &str) {
    let mut left = 0;
    for key in keys(count) {
        let found = db.get(&key.to_be_bytes()).unwrap();
        let is_deleted = shape.covers(key, count);
        assert_eq!(found.is_none(), is_deleted, "{shape:?} {when}: key {key}");
        left += usize::from(!is_deleted);
    }
    assert!(left > 0);
    assert_eq!(db.iter().count(), left, "{shape:?} {when}");
}

#[test]
fn ten_thousand_range_deletions_take_a_hundred_bytes_each_and_survive_flush_and_reopening() {
    const COUNT: u32 = 10_000;
    for shape in SHAPES {
        let io = FaultIo::new();
        let db = open(&io, &options()).unwrap();
        put_all(&db, COUNT);
        let snapshot = db.snapshot();
        let before = db.stats().memtables_used_bytes;
        let mut halfway = None;
        for i in 0..COUNT {
            let (start, end) = shape.range(i, COUNT);
            db.delete_range(&start, &end).unwrap();
            if i == COUNT / 2 - 1 {
                halfway = Some(db.snapshot());
            }
        }
        let taken = db.stats().memtables_used_bytes - before;
        let each = taken / COUNT as usize;
        assert!((10..=100).contains(&each), "{shape:?}: {each} bytes each");
        check(&db, shape, COUNT, "in memory");
        assert_eq!(snapshot.iter().count(), keys(COUNT).count());
        let halfway = halfway.unwrap();
        let is_deleted = |key: u32| match shape {
            // The first range is the widest.
            Shape::Shrinking => shape.covers(key, COUNT),
            _ => shape.covers(key, COUNT / 2),
        };
        for when in ["in memory", "flushed", "compacted"] {
            match when {
                "flushed" => db.flush().unwrap(),
                "compacted" => db.compact().unwrap(),
                _ => {}
            }
            for key in keys(COUNT) {
                let found = halfway.get(&key.to_be_bytes()).unwrap();
                assert_eq!(found.is_none(), is_deleted(key), "{shape:?} {when}: {key}");
            }
            check(&db, shape, COUNT, when);
        }
        drop((snapshot, halfway));
        db.compact().unwrap();
        check(&db, shape, COUNT, "compacted without snapshots");
        db.close().unwrap();
        let db = open(&io, &options()).unwrap();
        check(&db, shape, COUNT, "reopened");
    }
}

#[test]
fn range_deletions_are_read_back_from_the_log() {
    const COUNT: u32 = 10_000;
    for shape in SHAPES {
        let io = FaultIo::new();
        let db = open(&io, &options()).unwrap();
        put_all(&db, COUNT);
        delete_all(&db, shape, COUNT);
        db.close().unwrap();
        let db = open(&io, &options()).unwrap();
        check(&db, shape, COUNT, "reopened");
    }
}

#[test]
fn a_batch_of_thirty_thousand_nested_ranges_is_written_and_read_back() {
    const COUNT: u32 = 30_000;
    let io = FaultIo::new();
    let db = open(&io, &options()).unwrap();
    put_all(&db, COUNT);
    for shape in [Shape::Growing, Shape::Shrinking] {
        let mut batch = WriteBatch::new();
        for i in 0..COUNT {
            let (start, end) = shape.range(i, COUNT);
            batch.delete_range(&start, &end).unwrap();
        }
        let before = db.stats().memtables_used_bytes;
        db.write(&batch, Durability::Buffered).unwrap();
        let taken = db.stats().memtables_used_bytes - before;
        assert!(taken <= 100 * COUNT as usize, "{shape:?}: {taken} bytes");
        check(&db, shape, COUNT, "written");
    }
    db.close().unwrap();
    let db = open(&io, &options()).unwrap();
    check(&db, Shape::Shrinking, COUNT, "reopened");
}

#[test]
fn range_deletions_fill_a_memtable_like_any_other_write() {
    const COUNT: u32 = 4_000;
    for shape in SHAPES {
        let options = options().memtable_bytes(64 << 10);
        let io = FaultIo::new();
        let db = open(&io, &options).unwrap();
        put_all(&db, COUNT);
        let mut max = 0;
        for i in 0..COUNT {
            let (start, end) = shape.range(i, COUNT);
            db.delete_range(&start, &end).unwrap();
            max = max.max(db.stats().memtables_used_bytes);
        }
        assert!(db.stats().tree.flushes > 1, "{shape:?}: {}", db.stats());
        assert!(max <= 64 << 10, "{shape:?}: {max} bytes");
        check(&db, shape, COUNT, "flushed on the way");
        // Another keyspace shares the limit.
        let other = db.keyspace("other").unwrap();
        let flushes = db.stats().tree.flushes;
        for i in 0..COUNT {
            let (start, end) = shape.range(i, COUNT);
            other.delete_range(&start, &end).unwrap();
        }
        assert!(db.stats().tree.flushes > flushes + 1, "{shape:?}");
        check(&db, shape, COUNT, "beside another keyspace");
        db.close().unwrap();
        check(&open(&io, &options).unwrap(), shape, COUNT, "reopened");
    }
}

#[test]
fn range_deletions_replay_into_less_memory_than_they_were_written_with() {
    const COUNT: u32 = 4_000;
    for shape in SHAPES {
        let io = FaultIo::new();
        let db = open(&io, &options()).unwrap();
        put_all(&db, COUNT);
        delete_all(&db, shape, COUNT);
        db.close().unwrap();
        let less = options()
            .memtable_bytes(32 << 10)
            .memory_limit_bytes(512 << 10);
        let db = open(&io, &less).unwrap();
        assert!(db.stats().memtables_used_bytes <= 32 << 10);
        check(&db, shape, COUNT, "replayed");
    }
}

#[test]
fn a_batch_of_ranges_that_does_not_fit_the_memory_limit_is_refused_and_not_logged() {
    let io = FaultIo::new();
    let options = options()
        .memory_limit_bytes(128 << 10)
        .memtable_bytes(64 << 10);
    let db = open(&io, &options).unwrap();
    db.put(b"key", b"value").unwrap();
    let mut batch = WriteBatch::new();
    // The end keys take most of the memory.
    for i in 1..=200 {
        batch.delete_range(b"", &[i; 1000]).unwrap();
    }
    batch.delete_range(b"a", b"z").unwrap();
    let logged = db.stats().log_written_bytes;
    let refused = db.write(&batch, Durability::Buffered).unwrap_err();
    assert!(matches!(refused, Error::MemoryLimit { .. }), "{refused}");
    assert_eq!(db.stats().log_written_bytes, logged);
    assert!(db.get(b"key").unwrap().is_some());
    db.delete_range(b"a", b"z").unwrap();
    assert!(db.get(b"key").unwrap().is_none());
    db.close().unwrap();
    assert!(open(&io, &options).unwrap().get(b"key").unwrap().is_none());
}

fn delete_all(db: &Db, shape: Shape, count: u32) {
    for i in 0..count {
        let (start, end) = shape.range(i, count);
        db.delete_range(&start, &end).unwrap();
    }
}

/// Runs of keys.
fn runs_in_levels(db: &Db) -> usize {
    db.stats().levels.iter().map(|level| level.runs).sum()
}

#[test]
fn the_manifest_names_ten_thousand_range_deletions_in_a_few_bytes_and_no_run_repeats_them() {
    const COUNT: u32 = 10_000;
    let io = FaultIo::new();
    let db = open(&io, &options()).unwrap();
    put_all(&db, COUNT);
    db.flush().unwrap();
    // It needs what they cover.
    let snapshot = db.snapshot();
    delete_all(&db, Shape::Disjoint, COUNT);
    db.flush().unwrap();
    check(&db, Shape::Disjoint, COUNT, "flushed");
    let manifest = || {
        io.read(PathBuf::from(STORE).join("MANIFEST"))
            .unwrap()
            .len()
    };
    assert!(manifest() < 1000, "{} bytes", manifest());
    // One of them holds the ranges.
    assert_eq!(run_files(&io).len(), runs_in_levels(&db) + 1);
    let before = run_files(&io);
    db.put(b"more", b"value").unwrap();
    db.flush().unwrap();
    let mut new = run_files(&io);
    new.retain(|path| !before.contains(path));
    for path in new {
        let len = io.read(&path).unwrap().len();
        assert!(len < 1000, "{path}: {len} bytes");
    }
    assert!(manifest() < 1000, "{} bytes", manifest());
    db.delete(b"more").unwrap();
    drop(snapshot);
    // Range deletions that all runs have applied are forgotten.
    db.compact().unwrap();
    assert_eq!(run_files(&io).len(), runs_in_levels(&db));
    check(&db, Shape::Disjoint, COUNT, "compacted");
    db.close().unwrap();
    let db = open(&io, &options()).unwrap();
    check(&db, Shape::Disjoint, COUNT, "reopened");
}

#[test]
fn range_deletions_that_take_much_memory_are_applied_to_all_runs_without_being_asked() {
    const COUNT: u32 = 10_000;
    for is_in_last_level in [true, false] {
        let db = open(&FaultIo::new(), &options()).unwrap();
        put_all(&db, COUNT);
        db.flush().unwrap();
        if is_in_last_level {
            db.compact().unwrap();
        }
        let snapshot = db.snapshot();
        delete_all(&db, Shape::Disjoint, COUNT);
        db.flush().unwrap();
        db.wait_idle().unwrap();
        // A snapshot needs what they cover.
        let compactions = db.stats().tree.compactions;
        assert_eq!(snapshot.iter().count(), keys(COUNT).count());
        check(&db, Shape::Disjoint, COUNT, "with a snapshot");
        drop(snapshot);
        db.wait_idle().unwrap();
        let stats = db.stats();
        assert!(stats.tree.compactions > compactions);
        assert!(!stats.is_compaction_due);
        assert!(stats.tree.dropped_entries > 0);
        check(&db, Shape::Disjoint, COUNT, "without");
        let before = db.stats().tree.compactions;
        db.compact().unwrap();
        let (after, moves) = (db.stats().tree.compactions, u64::from(!is_in_last_level));
        assert!(after <= before + moves, "something was left to apply");
    }
}

#[test]
fn no_run_in_which_everything_is_deleted_is_left_once_the_store_is_idle() {
    for background in [Background::Caller, Background::Threads] {
        let io = FaultIo::new();
        let db = open(&io, &options().background(background)).unwrap();
        put_all(&db, 100);
        db.flush().unwrap();
        let snapshot = db.snapshot();
        db.delete_range([0; 4], [0xff; 4]).unwrap();
        db.flush().unwrap();
        db.wait_idle().unwrap();
        assert!(runs_in_levels(&db) > 0, "the snapshot sees them");
        drop(snapshot);
        db.wait_idle().unwrap();
        assert_eq!(runs_in_levels(&db), 0, "{background:?}");
        assert_eq!(db.count().unwrap(), 0);
    }
}

#[test]
fn a_range_deletion_within_newer_ones_is_not_kept() {
    const COUNT: u32 = 3_000;
    let io = FaultIo::new();
    let db = open(&io, &options()).unwrap();
    put_all(&db, COUNT);
    // Not covered, so that the run stays.
    db.put([255; 4], b"value").unwrap();
    db.flush().unwrap();
    let before = run_files(&io);
    let mut seen = None;
    for i in 0..COUNT {
        let (start, end) = Shape::Growing.range(i, COUNT);
        db.delete_range(&start, &end).unwrap();
        if i == COUNT / 2 {
            seen = Some(db.snapshot());
        }
    }
    db.flush().unwrap();
    let mut new = run_files(&io);
    new.retain(|path| !before.contains(path));
    let [ranges] = &new[..] else {
        panic!("{new:?}");
    };
    // The last one, and the last one that the snapshot sees.
    let len = io.read(ranges).unwrap().len();
    assert!(len < 1000, "{len} bytes");
    let seen = seen.unwrap();
    for key in keys(COUNT) {
        let found = seen.get(&key.to_be_bytes()).unwrap();
        assert_eq!(found.is_none(), key <= COUNT / 2, "key {key}");
    }
    assert!(db.get(&(COUNT - 1).to_be_bytes()).unwrap().is_none());
    db.close().unwrap();
    assert!(
        open(&io, &options())
            .unwrap()
            .get(&[0; 4])
            .unwrap()
            .is_none()
    );
}

#[test]
fn range_deletions_of_many_flushes_are_merged() {
    let io = FaultIo::new();
    let db = open(&io, &options()).unwrap();
    put_all(&db, 100);
    db.flush().unwrap();
    for i in 0..100 {
        let (start, end) = Shape::Disjoint.range(i, 100);
        db.delete_range(&start, &end).unwrap();
        db.flush().unwrap();
        let ranges = run_files(&io).len() - runs_in_levels(&db);
        assert!((1..=8).contains(&ranges), "{ranges} runs of ranges");
    }
    check(&db, Shape::Disjoint, 100, "flushed");
    assert!(db.verify().unwrap().problems.is_empty());
    db.close().unwrap();
    let db = open(&io, &options()).unwrap();
    check(&db, Shape::Disjoint, 100, "reopened");
}

#[test]
fn range_deletions_survive_a_lost_manifest_and_a_damaged_page() {
    const COUNT: u32 = 3_000;
    let io = FaultIo::new();
    let db = open(&io, &options()).unwrap();
    put_all(&db, COUNT);
    db.flush().unwrap();
    let before = run_files(&io);
    // It needs what they cover.
    let snapshot = db.snapshot();
    delete_all(&db, Shape::Disjoint, COUNT);
    db.flush().unwrap();
    drop(snapshot);
    db.close().unwrap();
    let mut ranges = run_files(&io);
    ranges.retain(|path| !before.contains(path));
    let [ranges] = &ranges[..] else {
        panic!("{ranges:?}");
    };
    let shared: Arc<FaultIo> = Arc::new(io.clone());

    let manifest = PathBuf::from(STORE).join("MANIFEST");
    let bytes = io.read(&manifest).unwrap();
    io.write(&manifest, &bytes[..bytes.len() / 2]);
    let repaired = repair_with_io(shared.clone(), STORE, &options()).unwrap();
    assert!(repaired.rebuilt_manifest && repaired.losses.is_empty());
    let db = open(&io, &options()).unwrap();
    check(&db, Shape::Disjoint, COUNT, "repaired");
    db.close().unwrap();

    let ranges = &PathBuf::from(ranges);
    let mut bytes = io.read(ranges).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    io.write(ranges, &bytes);
    let refused = open(&io, &options()).unwrap_err();
    assert!(matches!(&refused, Error::CorruptFile { path, .. } if path == ranges));
    let checked = check_with_io(shared.clone(), STORE, &options()).unwrap();
    assert_eq!(checked.problems.len(), 1, "{:?}", checked.problems);
    let repaired = repair_with_io(shared, STORE, &options()).unwrap();
    assert!(!repaired.losses.is_empty());
    let db = open(&io, &options()).unwrap();
    let left = keys(COUNT)
        .filter(|key| !Shape::Disjoint.covers(*key, COUNT))
        .count();
    let found = db.iter().count();
    assert!(
        (left + 1..keys(COUNT).count()).contains(&found),
        "{found} of {left}"
    );
    for key in keys(COUNT).filter(|key| !Shape::Disjoint.covers(*key, COUNT)) {
        assert!(db.get(&key.to_be_bytes()).unwrap().is_some(), "key {key}");
    }
}

/// One step of a short history: puts some keys, deletes two ranges, and in most steps flushes or
/// compacts.
fn live(db: &Db, step: u8) -> Result<(), Error> {
    let mut batch = WriteBatch::new();
    for key in 0..20 {
        batch.put(&[key, step], b"value").unwrap();
    }
    batch.delete_range(&[step], &[step + 3]).unwrap();
    batch.delete_range(&[0], &[step / 2 + 1]).unwrap();
    db.write(&batch, Durability::Synced)?;
    match step % 4 {
        3 => db.compact(),
        1 => Ok(()),
        _ => db.flush(),
    }
}

/// The keys that exist after this number of steps.
fn lived(steps: u8) -> BTreeSet<Vec<u8>> {
    let mut keys = BTreeSet::new();
    for step in 0..steps {
        keys.extend((0..20).map(|key| vec![key, step]));
        keys.retain(|key| key[0] > step / 2 && !(step..step + 3).contains(&key[0]));
    }
    keys
}

#[test]
fn no_failed_call_or_power_loss_resurrects_a_deleted_key() {
    const STEPS: u8 = 12;
    for fault in [Fault::Fail(EIO), Fault::PowerLoss] {
        let mut hits = 0;
        // Every fifth call, with a different offset each time.
        for call in (0..).step_by(5) {
            let io = FaultIo::new();
            io.fail_call(call + hits % 5, fault);
            let mut done = 0;
            if let Ok(db) = open(&io, &options()) {
                while done < STEPS && live(&db, done).is_ok() {
                    done += 1;
                }
            }
            if io.hit().is_none() {
                assert_eq!(done, STEPS);
                break;
            }
            hits += 1;
            let io = io.crash(hits);
            let Ok(db) = open(&io, &options()) else {
                panic!("{fault:?} at call {call}: the store does not open");
            };
            let found: BTreeSet<_> = db.iter().map(|entry| entry.unwrap().0).collect();
            let is_right = found == lived(done) || found == lived(done + 1);
            assert!(is_right, "{fault:?} at call {call}, after {done} steps");
            drop(db);
            let checked = check_with_io(Arc::new(io.clone()), STORE, &options()).unwrap();
            assert!(checked.problems.is_empty(), "{:?}", checked.problems);
        }
        assert!(hits > 20, "{hits}");
    }
}

/// Keys that are deleted by a range, put again afterwards, deleted singly, or never covered, in
/// runs, in a full memtable and in the active one.
#[test]
fn a_batch_gives_the_same_answers_as_single_reads_beside_a_live_range_deletion() {
    const COUNT: u32 = 700;
    let io = FaultIo::new();
    let db = open(&io, &options()).unwrap();
    let put = |key: u32, value: &str| db.put(key.to_be_bytes(), value).unwrap();
    for key in 0..COUNT {
        put(key, "old");
    }
    db.flush().unwrap();
    let before = db.snapshot();
    for key in (0..COUNT).step_by(5) {
        put(key, "covered");
    }
    db.delete_range(100_u32.to_be_bytes(), 500_u32.to_be_bytes())
        .unwrap();
    for key in (0..COUNT).step_by(7) {
        put(key, "new");
    }
    for key in (0..COUNT).step_by(11) {
        db.delete(key.to_be_bytes()).unwrap();
    }
    let wanted = |key: u32| match key {
        COUNT.. => None,
        _ if key.is_multiple_of(11) => None,
        _ if key.is_multiple_of(7) => Some(&b"new"[..]),
        100..500 => None,
        _ if key.is_multiple_of(5) => Some(&b"covered"[..]),
        _ => Some(&b"old"[..]),
    };
    // Some keys twice, in no order.
    let numbers: Vec<u32> = (0..2 * COUNT).map(|n| n * 379 % (COUNT + 20)).collect();
    let keys: Vec<[u8; 4]> = numbers.iter().map(|key| key.to_be_bytes()).collect();
    let mut values = Values::new();
    for when in ["in memory", "flushed"] {
        if when == "flushed" {
            db.flush().unwrap();
        }
        db.multi_get(&keys, &mut values).unwrap();
        for (at, &number) in numbers.iter().enumerate() {
            let found = values.get(at).unwrap();
            assert_eq!(found, wanted(number), "{when}: key {number}");
        }
        before.multi_get(&keys, &mut values).unwrap();
        for (at, &number) in numbers.iter().enumerate() {
            let old = (number < COUNT).then_some(&b"old"[..]);
            assert_eq!(values.get(at).unwrap(), old, "{when}: before");
        }
        for &number in &numbers {
            let found = db.get(number.to_be_bytes()).unwrap();
            assert_eq!(found.as_deref(), wanted(number), "{when}: key {number}");
            let len = db.read(number.to_be_bytes(), <[u8]>::len).unwrap();
            assert_eq!(len, wanted(number).map(<[u8]>::len), "{when}: key {number}");
        }
    }
}
