//! Every call to the file system fails once, in every way, and nothing acknowledged is lost.

use crate::testing;

use forerun_db::io::fault::{EIO, ENOSPC, Fault, FaultIo};
use forerun_db::{Durability, Error, Options};
use testing::{
    BATCHES, Outcome, STORE, Script, all_cases, open, seeds, small_options, with_and_without_index,
};

/// Number of calls that the script makes when nothing fails.
fn calls_of_the_script(options: &Options) -> u64 {
    let io = FaultIo::new();
    let mut script = Script::new();
    let db = script.run(&io, options).expect("nothing fails");
    script.check(&db, Outcome::Buffered, "nothing fails");
    assert!(
        script
            .outcomes
            .iter()
            .all(|outcome| *outcome != Outcome::Failed && *outcome != Outcome::Untried)
    );
    let segments = io
        .files()
        .iter()
        .filter(|path| path.to_string_lossy().contains("wal-"))
        .count();
    assert!(
        segments >= 3,
        "the script must begin several segments; it has {segments}"
    );
    io.calls()
}

#[test]
fn a_call_that_fails_once_loses_nothing_acknowledged() {
    for options in with_and_without_index(&small_options()) {
        fail_every_call_once(&options);
    }
}

fn fail_every_call_once(options: &Options) {
    let calls = calls_of_the_script(options);
    assert!(calls > 70, "the script makes {calls} calls");
    let (mut failed_writes, mut failed_opens) = (0, 0);
    for call in 0..calls {
        for fault in [
            Fault::Fail(EIO),
            Fault::Fail(ENOSPC),
            Fault::TornWrite(ENOSPC),
            Fault::TornWrite(EIO),
            Fault::ShortWrite,
        ] {
            let io = FaultIo::new();
            io.fail_call(call, fault);
            let mut script = Script::new();
            let db = script.run(&io, options);
            let hit = io.hit().expect("the call came");
            let case = format!("{fault:?} at call {call} ({hit})");

            let failed = script
                .outcomes
                .iter()
                .filter(|outcome| **outcome == Outcome::Failed)
                .count();
            failed_writes += failed;
            failed_opens += usize::from(script.outcomes[0] == Outcome::Untried || db.is_none());
            if fault == Fault::ShortWrite {
                assert_eq!(failed, 0, "{case}: a short write is not a failure");
            }
            if let Some(db) = &db {
                // Readers see everything acknowledged without a restart too.
                script.check(db, Outcome::Buffered, &case);
            }
            // The process dies, or the power is lost, before the store is closed.
            let after = io.kill();
            let db = open(&after, options).unwrap_or_else(|error| panic!("{case}: {error}"));
            script.check(&db, Outcome::Buffered, &case);
            drop(db);
            for seed in seeds(call, 6) {
                let case = format!("{case}, then power loss with seed {seed}");
                let db = open(&io.crash(seed), options)
                    .unwrap_or_else(|error| panic!("{case}: {error}"));
                script.check(&db, Outcome::Synced, &case);
            }
        }
    }
    assert!(
        failed_writes > 100,
        "only {failed_writes} writes failed: the sweep reaches too few"
    );
    assert_eq!(
        failed_opens, 0,
        "an opening that failed once must succeed at the second try"
    );
}

#[test]
fn a_power_loss_soon_after_a_failed_call_loses_nothing_synced() {
    for options in with_and_without_index(&small_options()) {
        lose_power_soon_after_a_failure(&options);
    }
}

fn lose_power_soon_after_a_failure(options: &Options) {
    let (mut call, mut losses) = (0, 0);
    loop {
        let mut is_within = false;
        for later in 1..7 {
            let io = FaultIo::new();
            io.fail_call(call, Fault::TornWrite(ENOSPC));
            io.fail_call(call + later, Fault::PowerLoss);
            let mut script = Script::new();
            drop(script.run(&io, options));
            let Some(hit) = io.hit() else { break };
            is_within = true;
            for seed in seeds(call + later, 8) {
                let case =
                    format!("call {call} fails, power lost {later} later ({hit}), seed {seed}");
                let db = open(&io.crash(seed), options)
                    .unwrap_or_else(|error| panic!("{case}: {error}"));
                script.check(&db, Outcome::Synced, &case);
                losses += usize::from(db.recovery().dropped_tail.is_some());
            }
        }
        if !is_within {
            break;
        }
        call += 1;
    }
    let least = if all_cases() { 20 } else { 6 };
    assert!(losses > least, "only {losses} crashes left a torn tail");
}

#[test]
fn writes_fail_on_a_full_disk_and_succeed_once_space_is_free() {
    let io = FaultIo::new();
    let options = small_options();
    let db = open(&io, &options).unwrap();
    let mut script = Script::new();
    script.write(&db, 0..3);
    let used: usize = io
        .files()
        .iter()
        .map(|path| io.read(path).unwrap().len())
        .sum();
    for free_bytes in 0..400 {
        io.set_capacity_bytes(Some(used as u64 + free_bytes));
        let big = vec![7; 500];
        match db.put_with(b"big", &big, Durability::Synced) {
            Err(error @ Error::Io { .. }) => {
                assert!(error.to_string().contains("wal-"), "{error}");
                assert_eq!(error.io_kind(), Some(std::io::ErrorKind::StorageFull));
            }
            other => panic!("{free_bytes} bytes of free space: {other:?}"),
        }
        assert_eq!(db.get(b"big").unwrap(), None);
    }
    io.set_capacity_bytes(None);
    assert_eq!(db.stats().poisoned, None);
    script.write(&db, 3..BATCHES);
    script.check(&db, Outcome::Buffered, "after the disk had space again");
    let db = open(&io.kill(), &options).unwrap();
    script.check(
        &db,
        Outcome::Buffered,
        "after the disk had space again, reopened",
    );
    assert_eq!(db.get(b"big").unwrap(), None);
    assert_eq!(
        db.recovery().dropped_tail,
        None,
        "what failed was taken back"
    );
}

#[test]
fn a_failed_sync_stops_writes_and_not_reads() {
    let io = FaultIo::new();
    let db = open(&io, &small_options()).unwrap();
    db.put(b"before", b"1").unwrap();
    io.fail_call(io.calls() + 1, Fault::Fail(EIO));
    let error = db
        .put_with(b"during", b"2", Durability::Synced)
        .unwrap_err();
    assert_eq!(io.hit().as_deref(), Some("sync /store/wal-000001.log"));
    assert!(
        error
            .to_string()
            .starts_with("cannot sync /store/wal-000001.log"),
        "{error}"
    );
    for _ in 0..2 {
        let later = db.put(b"after", b"3").unwrap_err();
        assert!(
            matches!(&later, Error::Poisoned { cause } if cause.to_string() == error.to_string()),
            "{later}"
        );
    }
    assert!(matches!(db.flush_wal(), Err(Error::Poisoned { .. })));
    assert!(
        db.stats()
            .poisoned
            .is_some_and(|cause| cause.contains("cannot sync"))
    );
    let used_bytes = db.stats().memtable.used_bytes;
    assert!(db.put(b"after", b"3").is_err());
    assert_eq!(
        db.stats().memtable.used_bytes,
        used_bytes,
        "a rejected write must take no memory"
    );
    assert_eq!(db.get(b"before").unwrap().as_deref(), Some(&b"1"[..]));
    assert_eq!(db.get(b"during").unwrap(), None);
    assert!(matches!(db.close(), Err(Error::Poisoned { .. })));
    assert!(
        io.read("/store/CLOSED").is_none(),
        "a poisoned store is not marked as closed cleanly"
    );
    let db = open(&io, &small_options()).unwrap();
    assert_eq!(db.get(b"before").unwrap().as_deref(), Some(&b"1"[..]));
}

#[test]
fn a_write_that_cannot_be_undone_stops_writes() {
    let io = FaultIo::new();
    let db = open(&io, &small_options()).unwrap();
    db.put(b"before", b"1").unwrap();
    // The disk fills up in the middle of the record, and then the power is lost when the rest
    // should be cut off.
    let used: usize = io
        .files()
        .iter()
        .map(|path| io.read(path).unwrap().len())
        .sum();
    io.set_capacity_bytes(Some(used as u64 + 5));
    io.fail_call(io.calls() + 2, Fault::Fail(EIO));
    let error = db.put(b"torn", b"2").unwrap_err();
    assert_eq!(io.hit().as_deref(), Some("cut /store/wal-000001.log"));
    assert_eq!(
        error.io_kind(),
        Some(std::io::ErrorKind::StorageFull),
        "the first failure must be reported: {error}"
    );
    assert!(matches!(
        db.put(b"after", b"3"),
        Err(Error::Poisoned { .. })
    ));
    let after = io.kill();
    after.set_capacity_bytes(None);
    let db = open(&after, &small_options()).unwrap();
    let tail = db
        .recovery()
        .dropped_tail
        .clone()
        .expect("the torn record must be reported");
    assert_eq!(
        (tail.path.to_str(), tail.len_bytes),
        (Some("/store/wal-000001.log"), 5)
    );
    assert_eq!(db.iter().count(), 1);
    assert_eq!(db.path().to_str(), Some(STORE));
}

#[test]
fn the_log_tail_is_rewritten_after_a_failed_sync_before_later_syncs() {
    // The operating system may have forgotten that the bytes are not on disk, so another sync would
    // prove nothing.
    for is_killed in [false, true] {
        let io = FaultIo::new();
        io.set_forgetful(true);
        let db = open(&io, &small_options()).unwrap();
        db.put_with(b"first", b"value", Durability::Synced).unwrap();
        db.put_with(b"second", b"value", Durability::Buffered)
            .unwrap();
        io.fail_call(io.calls(), Fault::Fail(EIO));
        db.flush_wal().unwrap_err();
        assert!(io.hit().unwrap().starts_with("sync"));
        drop(db);
        let io = if is_killed { io.kill() } else { io };
        let db = open(&io, &small_options()).unwrap();
        db.put_with(b"third", b"value", Durability::Synced).unwrap();
        for seed in 0..40 {
            let db = open(&io.crash(seed), &small_options()).unwrap();
            for key in ["first", "second", "third"] {
                let found = db.get(key.as_bytes()).unwrap();
                assert_eq!(found.as_deref(), Some(&b"value"[..]), "{key}, seed {seed}");
            }
        }
    }
}

#[test]
fn a_log_is_marked_closed_after_a_failed_sync_only_once_rewritten() {
    let io = FaultIo::new();
    io.set_forgetful(true);
    let db = open(&io, &small_options()).unwrap();
    db.put_with(b"first", b"value", Durability::Synced).unwrap();
    db.put_with(b"second", b"value", Durability::Buffered)
        .unwrap();
    io.fail_call(io.calls(), Fault::Fail(EIO));
    db.flush_wal().unwrap_err();
    drop(db);
    open(&io, &small_options()).unwrap().close().unwrap();
    for seed in 0..40 {
        let db = open(&io.crash(seed), &small_options()).unwrap();
        assert_eq!(db.iter().count(), 2, "seed {seed}");
    }
}
