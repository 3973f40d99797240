//! A scan needs nothing behind the ends of its range: it reads no run there, and passes over no
//! keys that are deleted, expired or too new.

use crate::testing;

use std::ops::Bound;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use forerun_db::io::fault::FaultIo;
use forerun_db::{
    Background, Compression, Db, Error, Iter, Options, Readable, Result, RunOptions, TreeOptions,
};
use testing::counting::Counting;
use testing::{open, small_options};

/// Level 0 may have many runs. Runs have pages of 4 KiB, and little besides.
fn options() -> Options {
    small_options()
        .memory_limit_bytes(16 << 20)
        .memtable_bytes(4 << 20)
        .wal_segment_bytes(1 << 20)
        .background(Background::Caller)
        .run(
            RunOptions::default()
                .page_bytes(4 << 10)
                .compression(Compression::None)
                .filter_bits_per_key(0)
                .index(false),
        )
        .tree(
            TreeOptions::default()
                .run_bytes(64 << 10)
                .level0_runs(30)
                .level0_slow_runs(60)
                .level0_stop_runs(90),
        )
}

const PARTS: usize = 6;
const PART_KEYS: usize = 200;

fn key(part: usize, number: usize) -> Vec<u8> {
    format!("{part}/{number:03}").into_bytes()
}

fn first(part: usize) -> Vec<u8> {
    key(part, 0)
}

fn last(part: usize) -> Vec<u8> {
    key(part, PART_KEYS - 1)
}

/// A closed store in which each part has a run of its own on level 0, with the runs' files in the
/// order of their parts.
fn store_of_parts() -> (FaultIo, Vec<PathBuf>) {
    let io = FaultIo::new();
    let db = open(&io, &options()).unwrap();
    for part in 0..PARTS {
        for number in 0..PART_KEYS {
            db.put(key(part, number), [part as u8; 100]).unwrap();
        }
        db.flush().unwrap();
    }
    db.close().unwrap();
    let mut runs: Vec<_> = io.files();
    runs.retain(|path| path.extension().is_some_and(|end| end == "run"));
    runs.sort();
    assert_eq!(runs.len(), PARTS);
    (io, runs)
}

/// Damages all leaves of a run.
fn damage(io: &FaultIo, run: &PathBuf) {
    let mut bytes = io.read(run).unwrap();
    // The root, the metadata and the footer follow.
    let end = bytes.len() - (1 << 10);
    bytes[1 << 10..end]
        .iter_mut()
        .for_each(|byte| *byte ^= 0x55);
    io.write(run, &bytes);
}

/// The numbers of entries that a scan returns in both directions, and from both ends in turns.
fn counts(scan: impl Fn() -> Iter) -> Result<[usize; 3]> {
    let mut forward = 0;
    let mut iter = scan();
    while iter.next_entry()?.is_some() {
        forward += 1;
    }
    let mut backward = 0;
    let mut iter = scan();
    while iter.next_entry_back()?.is_some() {
        backward += 1;
    }
    let mut both = 0;
    let mut iter = scan();
    while match both % 3 {
        0 => iter.next_entry()?.is_some(),
        _ => iter.next_entry_back()?.is_some(),
    } {
        both += 1;
    }
    Ok([forward, backward, both])
}

#[test]
fn a_scan_reads_no_run_on_either_side_of_its_range() {
    for is_level0 in [true, false] {
        for part in 0..PARTS {
            let (io, runs) = store_of_parts();
            if !is_level0 {
                // Moves the runs to the last level.
                let db = open(&io, &options()).unwrap();
                db.compact().unwrap();
                db.close().unwrap();
            }
            for (other, run) in runs.iter().enumerate() {
                if other != part {
                    damage(&io, run);
                }
            }
            let db = open(&io, &options()).unwrap();
            let level0 = db.default_keyspace().stats().levels[0].runs;
            assert_eq!(level0, if is_level0 { PARTS } else { 0 });
            let all = counts(|| db.iter());
            assert!(matches!(all, Err(Error::CorruptFile { .. })), "{all:?}");
            use Bound::{Excluded, Included, Unbounded};
            let (before, after) = match part {
                0 => (Unbounded, Excluded(first(1))),
                _ if part + 1 < PARTS => (Excluded(last(part - 1)), Excluded(first(part + 1))),
                _ => (Excluded(last(part - 1)), Unbounded),
            };
            let ranges = [
                (before.clone(), after.clone()),
                (Included(first(part)), after),
                (before, Included(last(part))),
                (Included(first(part)), Included(last(part))),
            ];
            for range in ranges {
                let found = counts(|| db.range(range.clone()));
                assert_eq!(found.unwrap(), [PART_KEYS; 3], "{range:?} of part {part}");
            }
            let found = counts(|| db.prefix(part.to_string()));
            assert_eq!(found.unwrap(), [PART_KEYS; 3], "part {part}");
            // A range without keys, in a gap between runs.
            let gap = (Excluded(last(part)), Excluded(key(part, PART_KEYS)));
            assert_eq!(counts(|| db.range(gap.clone())).unwrap(), [0; 3]);
        }
    }
}

/// Between the two keys that are visible.
const HIDDEN: u32 = 10_000;

fn numbered(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

/// Checks that scans which end at the first and the last key do not pass over those between, and
/// that scans which go on do.
fn check_ends(source: &impl Readable, comparisons: &Counting, case: &str) {
    let (low, high) = (numbered(0), numbered(HIDDEN + 1));
    let next = numbered(1);
    let before = numbered(HIDDEN);
    type Range<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);
    use Bound::{Excluded, Included, Unbounded};
    let count = |range: Range<'_>, from_back: bool| {
        let begun = comparisons.0.load(Relaxed);
        let mut iter = source.range::<&[u8]>(range);
        let mut found = Vec::new();
        while let Some(entry) = if from_back {
            iter.next_entry_back().unwrap()
        } else {
            iter.next_entry().unwrap()
        } {
            found.push(entry.key.to_vec());
        }
        drop(iter);
        (found, comparisons.0.load(Relaxed) - begun)
    };
    let ends: [(Range<'_>, bool, &[u8]); 6] = [
        ((Unbounded, Included(&low)), false, &low),
        ((Unbounded, Excluded(&next)), false, &low),
        ((Included(&low), Excluded(&next)), false, &low),
        ((Included(&high), Unbounded), true, &high),
        ((Excluded(&before), Unbounded), true, &high),
        ((Excluded(&before), Included(&high)), true, &high),
    ];
    for (range, from_back, key) in ends {
        let (found, comparisons) = count(range, from_back);
        assert_eq!(found, [key], "{case}: {range:?}");
        assert!(
            comparisons < 1_000,
            "{case}: {comparisons} comparisons for {range:?}"
        );
    }
    for from_back in [false, true] {
        let (mut found, comparisons) = count((Unbounded, Unbounded), from_back);
        found.sort();
        assert_eq!(found, [low.to_vec(), high.to_vec()], "{case}");
        // A range deletion is skipped as a whole.
        assert!(
            comparisons > u64::from(HIDDEN) || case.contains("as a range"),
            "{case}: {comparisons} comparisons"
        );
    }
}

#[test]
fn a_scan_does_not_pass_over_hidden_keys_behind_its_range() {
    let comparisons = Counting::default();
    let options = options().comparator(Arc::new(comparisons.clone()));
    let put_all = |db: &Db| {
        for number in 0..=HIDDEN + 1 {
            db.put(numbered(number), b"value").unwrap();
        }
    };
    for place in ["in memtables", "in runs"] {
        let flush = |db: &Db| {
            if place == "in runs" {
                db.flush().unwrap();
            }
        };
        let db = open(&FaultIo::new(), &options).unwrap();
        put_all(&db);
        db.flush().unwrap();
        // It keeps a compaction from dropping deleted entries.
        let _before = db.snapshot();
        for number in 1..=HIDDEN {
            db.delete(numbered(number)).unwrap();
        }
        flush(&db);
        check_ends(&db, &comparisons, &format!("deleted, {place}"));

        let db = open(&FaultIo::new(), &options).unwrap();
        put_all(&db);
        db.flush().unwrap();
        // Covers no run as a whole, so that compactions do not remove one.
        db.delete_range(numbered(1), numbered(HIDDEN + 1)).unwrap();
        flush(&db);
        check_ends(&db, &comparisons, &format!("deleted as a range, {place}"));
    }

    // The deletions are the only versions of their keys.
    let db = open(&FaultIo::new(), &options).unwrap();
    for number in 0..=HIDDEN + 1 {
        match number {
            0 | 10_001 => db.put(numbered(number), b"value").unwrap(),
            _ => db.delete(numbered(number)).unwrap(),
        };
    }
    check_ends(&db, &comparisons, "deletions alone");

    let db = open(&FaultIo::new(), &options).unwrap();
    for number in [0, HIDDEN + 1] {
        db.put(numbered(number), b"value").unwrap();
    }
    let snapshot = db.snapshot();
    put_all(&db);
    check_ends(&snapshot, &comparisons, "too new, in memtables");
    db.flush().unwrap();
    check_ends(&snapshot, &comparisons, "too new, in runs");

    let io = FaultIo::new();
    io.set_unix_time_s(Some(1_000));
    let options = options.ttl(Duration::from_secs(5));
    let db = open(&io, &options).unwrap();
    put_all(&db);
    db.flush().unwrap();
    io.set_unix_time_s(Some(1_004));
    for number in [0, HIDDEN + 1] {
        db.put(numbered(number), b"value").unwrap();
    }
    io.set_unix_time_s(Some(1_006));
    check_ends(&db, &comparisons, "expired");
}
