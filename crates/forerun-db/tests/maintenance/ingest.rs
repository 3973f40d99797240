//! Ingestion is atomic and takes its place in the order of writes, whatever fails during the
//! ingestion.

use crate::testing;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forerun_db::io::Io;
use forerun_db::io::fault::{EIO, ENOSPC, Fault, FaultIo};
use forerun_db::{
    Background, Db, Durability, Error, Options, Result, TreeOptions, Values, WalMode,
};
use testing::{STORE, open, small_options, tiny_options, with_and_without_index};

/// Keys of the script. Ingested keys have large values, so that there are several runs.
const KEYS: usize = 12;

fn key(number: usize) -> Vec<u8> {
    format!("key-{number:02}").into_bytes()
}

/// A word, followed by bytes that do not compress.
fn value(what: &str, number: usize) -> Vec<u8> {
    let noise = (1..120).map(|i: u64| (i << 8 | number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let word = what.bytes().chain(*b".");
    word.chain(noise.flat_map(u64::to_be_bytes)).collect()
}

/// The word stored under a key; empty if the key is missing.
fn holds(db: &Db, number: usize, case: &str) -> String {
    let value = db.get(&key(number));
    let value = value.unwrap_or_else(|error| panic!("{case}: {error}"));
    let value = value.unwrap_or_default();
    let word = value.split(|byte| *byte == b'.').next().unwrap_or(&[]);
    String::from_utf8(word.to_vec()).unwrap()
}

/// How far the script came, according to its results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Progress {
    Nothing,
    /// All keys hold `before`, synced.
    Before,
    /// The commit of the ingestion has begun, so the ingestion may be visible.
    Committing,
    /// The ingestion is visible: even keys hold `ingested`, and every fourth key is deleted.
    Ingested,
    /// Every third key holds `after`, synced.
    After,
}

fn ingest(db: &Db, progress: &mut Progress) -> Result<()> {
    let mut ingestion = db.ingest();
    for number in (0..KEYS).step_by(2) {
        match number % 4 {
            0 => ingestion.add(&key(number), &value("ingested", number))?,
            _ => ingestion.delete(&key(number))?,
        }
    }
    *progress = Progress::Committing;
    ingestion.commit()?;
    *progress = Progress::Ingested;
    Ok(())
}

fn put_all(db: &Db, what: &str, step: usize) -> Result<()> {
    for number in (0..KEYS).step_by(step) {
        db.put_with(&key(number), &value(what, number), Durability::Synced)?;
    }
    Ok(())
}

/// Runs the script until a step fails.
fn run(io: &FaultIo, options: &Options, progress: &mut Progress) -> Result<()> {
    let db = open(io, options)?;
    put_all(&db, "before", 1)?;
    *progress = Progress::Before;
    ingest(&db, progress)?;
    put_all(&db, "after", 3)?;
    *progress = Progress::After;
    db.close()
}

/// Checks what the keys hold after the script was interrupted.
fn check(db: &Db, progress: Progress, case: &str) {
    if progress == Progress::Nothing {
        for number in 0..KEYS {
            let held = holds(db, number, case);
            assert!(held.is_empty() || held == "before", "{case}: {held}");
        }
        return;
    }
    let ingested = |number: usize| match number % 4 {
        0 => "ingested",
        2 => "",
        _ => "before",
    };
    let is_ingested = (0..KEYS)
        .filter(|number| number % 2 == 0 && number % 3 != 0)
        .map(|number| holds(db, number, case) == ingested(number))
        .collect::<Vec<bool>>();
    assert!(
        is_ingested.iter().all(|is| *is == is_ingested[0]),
        "{case}: half of the ingestion is there"
    );
    let is_ingested = is_ingested[0];
    match progress {
        Progress::Nothing | Progress::Before => {
            assert!(!is_ingested, "{case}: ingested from nowhere")
        }
        Progress::Committing => {}
        Progress::Ingested | Progress::After => {
            assert!(is_ingested, "{case}: the ingestion is gone")
        }
    }
    for number in 0..KEYS {
        let held = holds(db, number, case);
        let mut may_be = vec![if is_ingested {
            ingested(number)
        } else {
            "before"
        }];
        match progress {
            Progress::Nothing => may_be.push(""),
            Progress::Ingested if number % 3 == 0 => may_be.push("after"),
            Progress::After if number % 3 == 0 => may_be = vec!["after"],
            _ => {}
        }
        assert!(
            may_be.contains(&held.as_str()),
            "{case}: key {number} holds {held:?} instead of one of {may_be:?}"
        );
    }
    let verified = db.verify().unwrap();
    assert!(
        verified.problems.is_empty(),
        "{case}: {:?}",
        verified.problems
    );
}

/// Run files in the store's directory.
fn run_files(io: &FaultIo) -> usize {
    let names = io.list(STORE.as_ref()).unwrap();
    let is_run = |name: &std::ffi::OsString| name.to_str().unwrap().ends_with(".run");
    names.iter().filter(|name| is_run(name)).count()
}

/// A store that flushes only for ingestions, with and without indexes of its memtables, and one
/// that flushes and compacts all the time. The caller's thread does all the work, so that calls
/// come in the same order each time.
fn stores() -> [Options; 3] {
    let flushes_rarely = small_options().background(Background::Caller);
    let [with, without] = with_and_without_index(&flushes_rarely);
    [with, without, tiny_options()]
}

#[test]
fn a_power_loss_at_any_call_leaves_all_of_an_ingestion_or_nothing() {
    for options in stores() {
        let mut committing = 0;
        for call in 0.. {
            let io = FaultIo::new();
            io.fail_call(call, Fault::PowerLoss);
            let mut progress = Progress::Nothing;
            let _ = run(&io, &options, &mut progress);
            let Some(hit) = io.hit() else { break };
            committing += usize::from(progress == Progress::Committing);
            let case = format!("power lost at call {call} ({hit}), result {progress:?}");
            let killed = io.kill();
            let crashed = [0, 1, 2 + call].map(|seed| (format!("seed {seed}"), io.crash(seed)));
            let ends = crashed.into_iter().chain([("killed".to_owned(), killed)]);
            for (i, (how, after)) in ends.enumerate() {
                let case = format!("{case}, {how}");
                let db = open(&after, &options).unwrap_or_else(|error| panic!("{case}: {error}"));
                check(&db, progress, &case);
                if call % 4 != i as u64 {
                    continue;
                }
                // The store still works, and sequence numbers continue: what is written now is the
                // newest.
                put_all(&db, "more", 2).unwrap();
                let mut again = Progress::Nothing;
                ingest(&db, &mut again).unwrap();
                db.put(&key(0), &value("last", 0)).unwrap();
                drop(db);
                let db = open(&after, &options).unwrap_or_else(|error| panic!("{case}: {error}"));
                assert_eq!(holds(&db, 0, &case), "last", "{case}");
                assert_eq!(holds(&db, 2, &case), "", "{case}");
                assert_eq!(holds(&db, 4, &case), "ingested", "{case}");
            }
        }
        assert!(
            committing > 20,
            "only {committing} power losses in a commit"
        );
    }
}

#[test]
fn a_failed_call_leaves_an_ingestion_atomic_and_the_store_intact() {
    for options in stores() {
        // One kind of fault at every call, the others at some calls.
        for (fault, step) in [
            (Fault::Fail(EIO), 1),
            (Fault::Fail(ENOSPC), 5),
            (Fault::TornWrite(EIO), 3),
            (Fault::ShortWrite, 7),
        ] {
            let io = FaultIo::new();
            let db = open(&io, &options).unwrap();
            put_all(&db, "before", 1).unwrap();
            let first = io.calls();
            let mut progress = Progress::Before;
            ingest(&db, &mut progress).unwrap();
            let calls = io.calls() - first;
            let mut in_doubt = 0;
            for call in (0..calls).step_by(step) {
                let io = FaultIo::new();
                let db = open(&io, &options).unwrap();
                put_all(&db, "before", 1).unwrap();
                io.fail_call(io.calls() + call, fault);
                let mut progress = Progress::Before;
                let ingested = ingest(&db, &mut progress);
                let case = format!("{fault:?} at call {call} ({:?})", io.hit());
                let progress = match ingested {
                    Ok(()) => Progress::Ingested,
                    Err(_) => Progress::Before,
                };
                check(&db, progress, &case);
                let is_writable = put_all(&db, "before", 5).is_ok();
                if is_writable {
                    // A new attempt succeeds and leaves no file of the first one.
                    let mut progress = Progress::Before;
                    ingest(&db, &mut progress).unwrap_or_else(|error| panic!("{case}: {error}"));
                    check(&db, Progress::Ingested, &case);
                    put_all(&db, "before", 1).unwrap();
                }
                let named: usize = db.stats().levels.iter().map(|level| level.runs).sum();
                // A file that cannot be removed stays until the next opening.
                let is_left = io.hit().is_some_and(|hit| hit.starts_with("remove"));
                if is_writable && !is_left {
                    assert_eq!(run_files(&io), named, "{case}");
                }
                drop(db);
                let after = io.kill();
                let db = open(&after, &options).unwrap_or_else(|error| panic!("{case}: {error}"));
                // The log stopped, so it is open whether the manifest was written.
                let progress = if is_writable {
                    Progress::Nothing
                } else {
                    Progress::Committing
                };
                in_doubt += usize::from(!is_writable);
                if !is_writable {
                    check(&db, progress, &case);
                }
                let named: usize = db.stats().levels.iter().map(|level| level.runs).sum();
                assert_eq!(
                    run_files(&after),
                    named,
                    "{case}: files that no manifest names"
                );
            }
            assert!(
                in_doubt < calls as usize / 2,
                "{in_doubt} of {calls} stopped the store"
            );
        }
    }
}

#[test]
fn an_uncommitted_ingestion_leaves_nothing() {
    let io = FaultIo::new();
    let db = open(&io, &tiny_options()).unwrap();
    let mut progress = Progress::Nothing;
    ingest(&db, &mut progress).unwrap();
    let runs = run_files(&io);
    let mut ingestion = db.ingest();
    for number in 0..KEYS {
        ingestion
            .add(&key(number), &value("dropped", number))
            .unwrap();
    }
    assert!(run_files(&io) > runs + 1, "several runs were begun");
    drop(ingestion);
    assert_eq!(run_files(&io), runs);
    assert_eq!(holds(&db, 0, ""), "ingested");

    // A process that dies leaves files; the next opening removes them.
    let mut ingestion = db.ingest();
    for number in 0..KEYS {
        ingestion
            .add(&key(number), &value("dropped", number))
            .unwrap();
    }
    let after = io.kill();
    assert!(run_files(&after) > runs);
    let db = open(&after, &tiny_options()).unwrap();
    assert_eq!(run_files(&after), runs);
    assert_eq!(holds(&db, 0, ""), "ingested");
}

#[test]
fn keys_come_in_order_and_one_that_does_not_is_left_out() {
    let io = FaultIo::new();
    let db = open(&io, &small_options()).unwrap();
    assert_eq!(db.ingest().commit().unwrap(), 0, "nothing was added");
    let mut ingestion = db.ingest();
    ingestion.add(b"b", b"1").unwrap();
    for late in [&b"b"[..], b"a", b""] {
        let refused = ingestion.add(late, b"2");
        assert!(matches!(refused, Err(Error::OutOfOrder { key }) if key == late));
    }
    let refused = ingestion.add(&vec![b'c'; 65_537], b"");
    assert!(matches!(refused, Err(Error::KeyTooLong { .. })));
    ingestion.delete(b"c").unwrap();
    assert_eq!(ingestion.commit().unwrap(), 1);
    let entries: Vec<_> = db.iter().map(Result::unwrap).collect();
    assert_eq!(entries, [(b"b".to_vec(), b"1".to_vec())]);
}

#[test]
fn ingested_runs_go_to_the_deepest_level_without_overlap() {
    let io = FaultIo::new();
    let db = open(&io, &small_options()).unwrap();
    let ingest = |keys: &[&str]| {
        let mut ingestion = db.ingest();
        for key in keys {
            ingestion.add(key.as_bytes(), b"value").unwrap();
        }
        ingestion.commit().unwrap();
    };
    let runs = || -> Vec<usize> { db.stats().levels.iter().map(|level| level.runs).collect() };
    ingest(&["a", "c"]);
    ingest(&["d", "f"]);
    assert_eq!(runs(), [0, 0, 0, 0, 0, 0, 2]);
    ingest(&["e"]);
    assert_eq!(runs(), [0, 0, 0, 0, 0, 1, 2]);
    db.put(b"g", b"value").unwrap();
    ingest(&["g"]);
    assert_eq!(runs(), [2, 0, 0, 0, 0, 1, 2], "above the memtable's run");
    ingest(&["h"]);
    assert_eq!(runs(), [2, 0, 0, 0, 0, 1, 3]);
}

#[test]
fn runs_with_no_key_among_the_ingested_ones_do_not_keep_them_above() {
    let options = small_options().tree(TreeOptions::default().level0_runs(10));
    let db = open(&FaultIo::new(), &options).unwrap();
    let ingest = |keys: &[&str]| {
        let mut ingestion = db.ingest();
        for key in keys {
            ingestion.add(key.as_bytes(), b"ingested").unwrap();
        }
        ingestion.commit().unwrap();
    };
    let runs = || -> Vec<usize> { db.stats().levels.iter().map(|level| level.runs).collect() };
    ingest(&["c", "x"]);
    db.put("a", "put").unwrap();
    db.put("z", "put").unwrap();
    ingest(&["m", "n"]);
    assert_eq!(
        runs(),
        [1, 0, 0, 0, 0, 1, 1],
        "runs of a level are disjoint"
    );
    ingest(&["y"]);
    assert_eq!(runs(), [1, 0, 0, 0, 0, 1, 2]);
    db.put("m", "put").unwrap();
    ingest(&["k", "m"]);
    assert_eq!(runs(), [3, 0, 0, 0, 0, 1, 2], "above the memtable's run");
    let check = || {
        let entries = db.iter().map(Result::unwrap);
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let entries = entries.map(|(key, value)| text(key) + " " + &text(value));
        let entries = entries.collect::<Vec<_>>().join(", ");
        assert_eq!(
            entries,
            "a put, c ingested, k ingested, m ingested, n ingested, x ingested, y ingested, z put"
        );
    };
    check();
    db.compact().unwrap();
    check();
}

#[test]
fn an_earlier_snapshot_sees_no_ingestion_even_after_compaction() {
    let io = FaultIo::new();
    let db = open(&io, &tiny_options()).unwrap();
    put_all(&db, "before", 1).unwrap();
    let before = db.snapshot();
    let mut progress = Progress::Nothing;
    ingest(&db, &mut progress).unwrap();
    let after = db.snapshot();
    put_all(&db, "after", 1).unwrap();
    db.compact().unwrap();
    for number in 0..KEYS {
        let key = key(number);
        assert_eq!(before.get(&key).unwrap(), Some(value("before", number)));
        let seen = match number % 4 {
            0 => Some(value("ingested", number)),
            2 => None,
            _ => Some(value("before", number)),
        };
        assert_eq!(after.get(&key).unwrap(), seen, "key {number}");
        assert_eq!(db.get(&key).unwrap(), Some(value("after", number)));
    }
    let keys: Vec<_> = (0..KEYS).map(key).collect();
    let mut values = Values::new();
    before.multi_get(&keys, &mut values).unwrap();
    assert_eq!(values.found(), KEYS);
    after.multi_get(&keys, &mut values).unwrap();
    assert_eq!(values.found(), KEYS - KEYS / 4);
    assert_eq!(before.iter().count(), KEYS);
    assert_eq!(after.iter().rev().count(), KEYS - KEYS / 4);
}

#[test]
fn readers_see_ingestions_and_writes_in_the_order_they_were_made() {
    let directory = tempfile::tempdir().unwrap();
    let options = tiny_options().background(Background::Threads);
    let db = Db::open(directory.path().join("store"), options).unwrap();
    let is_done = AtomicBool::new(false);
    let number = |value: Option<&[u8]>| -> u64 {
        value.map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().unwrap()))
    };
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut values = Values::new();
                while !is_done.load(Ordering::Relaxed) {
                    let keys = [&b"a"[..], b"put", b"z"];
                    db.multi_get(&keys, &mut values).unwrap();
                    let [a, put, z] = [0, 1, 2].map(|i| number(values.get(i).unwrap()));
                    assert_eq!(a, z, "half of an ingestion");
                    // Round n ingests `n` and then puts `n`.
                    assert!(a == put || a == put + 1, "ingested {a}, put {put}");
                }
            });
        }
        for round in 1..=60_u64 {
            let mut ingestion = db.ingest();
            for key in [b"a", b"z"] {
                ingestion.add(key, &round.to_le_bytes()).unwrap();
            }
            ingestion.commit().unwrap();
            db.put(b"put", &round.to_le_bytes()).unwrap();
        }
        is_done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn concurrent_writers_lose_nothing_and_later_writes_win() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let options = tiny_options().background(Background::Threads);
    let db = Db::open(&path, options.clone()).unwrap();
    std::thread::scope(|scope| {
        for writer in 0..2 {
            let db = &db;
            scope.spawn(move || {
                for round in 0..400_u32 {
                    let key = format!("w{writer}-{:02}", round % 40);
                    db.put(key.as_bytes(), &round.to_le_bytes()).unwrap();
                    let got = db.get(key.as_bytes()).unwrap();
                    assert_eq!(got.as_deref(), Some(&round.to_le_bytes()[..]));
                }
            });
        }
        for round in 0..20_u32 {
            let mut ingestion = db.ingest();
            ingestion.add(b"a", &round.to_le_bytes()).unwrap();
            // Among the writers' keys.
            ingestion.add(b"w0-99", &round.to_le_bytes()).unwrap();
            ingestion.commit().unwrap();
        }
    });
    for db in [&db, &db.clone()] {
        assert_eq!(db.iter().count(), 82);
    }
    db.close().unwrap();
    let db = Db::open(&path, options).unwrap();
    assert_eq!(db.iter().count(), 82);
    for writer in 0..2 {
        for slot in 0..40_u32 {
            let key = format!("w{writer}-{slot:02}");
            let last = (360 + slot).to_le_bytes();
            assert_eq!(db.get(key.as_bytes()).unwrap().as_deref(), Some(&last[..]));
        }
    }
}

#[test]
fn an_ingestion_is_durable_without_a_log() {
    let io = FaultIo::new();
    let options = tiny_options().wal(WalMode::Off);
    let db = open(&io, &options).unwrap();
    db.put(&key(0), b"before").unwrap();
    let mut progress = Progress::Nothing;
    ingest(&db, &mut progress).unwrap();
    let io = io.crash(0);
    let db = open(&io, &options).unwrap();
    assert_eq!(holds(&db, 0, ""), "ingested");
    db.put(&key(0), b"after").unwrap();
    assert_eq!(holds(&db, 0, ""), "after");
    db.flush().unwrap();
    assert_eq!(holds(&db, 0, ""), "after");
}

#[test]
fn a_repair_without_the_manifest_keeps_runs_ordered_by_age() {
    let io = FaultIo::new();
    let options = small_options();
    let db = open(&io, &options).unwrap();
    put_all(&db, "before", 1).unwrap();
    db.flush().unwrap();
    let mut progress = Progress::Nothing;
    ingest(&db, &mut progress).unwrap();
    put_all(&db, "after", 3).unwrap();
    db.flush().unwrap();
    db.close().unwrap();
    io.remove(format!("{STORE}/MANIFEST").as_ref()).unwrap();
    assert!(open(&io, &options).is_err());
    let repaired = forerun_db::repair_with_io(Arc::new(io.clone()), STORE, &options).unwrap();
    assert!(repaired.rebuilt_manifest && repaired.losses.is_empty());
    let db = open(&io, &options).unwrap();
    check(&db, Progress::After, "repaired");
}

#[test]
fn a_checkpoint_contains_ingestions_and_later_writes() {
    let io = FaultIo::new();
    let options = small_options();
    let db = open(&io, &options).unwrap();
    put_all(&db, "before", 1).unwrap();
    let mut progress = Progress::Nothing;
    ingest(&db, &mut progress).unwrap();
    put_all(&db, "after", 3).unwrap();
    db.checkpoint("/copy").unwrap();
    let copy = Db::open_with_io(Arc::new(io.clone()), "/copy", options).unwrap();
    check(&copy, Progress::After, "the copy");
    assert_eq!(copy.stats().last_sequence, db.stats().last_sequence);
}
