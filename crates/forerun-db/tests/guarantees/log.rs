//! The log, manifests and copies: written entries are there, and deleted ones do not return.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forerun_db::io::fault::{EIO, Fault, FaultIo};
use forerun_db::{Backups, Create, Db, Durability, Error};

use crate::testing::hook_io::{Change, HookIo};
use crate::testing::{STORE, open, run_files, tiny_options};
use crate::{after_kill, after_power_loss, holds, open_hooked};

const COPY: &str = "/copy";

fn put_synced(db: &Db) {
    db.put_with(b"key", b"value", Durability::Synced).unwrap();
}

fn is_value(found: Option<Vec<u8>>) -> bool {
    found.as_deref() == Some(b"value")
}

#[test]
fn synced_writes_survive_every_loss_of_power() {
    holds(|| {
        let io = FaultIo::new();
        let db = open(&io, &tiny_options()).unwrap();
        put_synced(&db);
        after_power_loss(&io, b"key").into_iter().all(is_value)
    });
}

#[test]
fn flushed_writes_survive_every_loss_of_power() {
    holds(|| {
        let io = FaultIo::new();
        let db = open(&io, &tiny_options()).unwrap();
        put_synced(&db);
        db.flush().unwrap();
        after_power_loss(&io, b"key").into_iter().all(is_value)
    });
}

#[test]
fn a_sync_that_failed_is_never_taken_for_one_that_succeeded() {
    holds(|| {
        let io = FaultIo::new();
        io.set_forgetful(true);
        let db = open(&io, &tiny_options()).unwrap();
        put_synced(&db);
        // A segment already exists, so a synced write makes a write and a sync.
        io.fail_call(io.calls() + 1, Fault::Fail(EIO));
        let written = db.put_with(b"next", b"value", Durability::Synced);
        assert!(io.hit().unwrap().starts_with("sync"));
        written.is_err() || after_power_loss(&io, b"next").into_iter().all(is_value)
    });
}

/// A store in whose log one write failed: the write of a key "next".
fn with_failed_write() -> (FaultIo, Db) {
    let io = FaultIo::new();
    let db = open(&io, &tiny_options()).unwrap();
    put_synced(&db);
    io.fail_call(io.calls(), Fault::Fail(EIO));
    db.put(b"next", b"value").unwrap_err();
    assert!(io.hit().unwrap().starts_with("write"));
    (io, db)
}

#[test]
fn a_failed_write_leaves_nothing_in_the_log() {
    holds(|| {
        let (io, _db) = with_failed_write();
        after_kill(&io, b"next").is_none()
    });
}

#[test]
fn a_failed_write_of_the_log_does_not_stop_later_ones() {
    holds(|| {
        let (_io, db) = with_failed_write();
        db.put(b"later", b"value").is_ok()
    });
}

#[test]
fn segments_stay_until_the_manifest_is_there() {
    holds(|| {
        let disk = FaultIo::new();
        let (io, is_failing) = failing_manifests(&disk);
        let db = open_hooked(&io, tiny_options());
        put_synced(&db);
        is_failing.store(true, Ordering::Relaxed);
        db.flush().unwrap_err();
        is_value(after_kill(&disk, b"key"))
    });
}

#[test]
fn manifests_that_fail_leave_no_runs() {
    holds(|| {
        let disk = FaultIo::new();
        let (io, is_failing) = failing_manifests(&disk);
        let db = open_hooked(&io, tiny_options());
        put_synced(&db);
        is_failing.store(true, Ordering::Relaxed);
        for _ in 0..5 {
            db.flush().unwrap_err();
        }
        run_files(&disk).len() <= 1
    });
}

/// A file system on which no manifest can be written while the flag is set.
fn failing_manifests(disk: &FaultIo) -> (HookIo, Arc<AtomicBool>) {
    let is_failing = Arc::new(AtomicBool::new(false));
    let is_on = Arc::clone(&is_failing);
    let io = HookIo::new(disk, move |change, path| {
        let is_it = change == Change::Create && path.ends_with("MANIFEST.new");
        if is_it && is_on.load(Ordering::Relaxed) {
            Err(io::Error::other("no manifests today"))
        } else {
            Ok(())
        }
    });
    (io, is_failing)
}

#[test]
fn a_record_with_a_wrong_checksum_is_ignored() {
    holds(|| {
        let io = FaultIo::new();
        let db = open(&io, &tiny_options()).unwrap();
        put_synced(&db);
        let io = io.kill();
        let is_log = |path: &&std::path::PathBuf| path.extension().is_some_and(|of| of == "log");
        let path = io.files().iter().find(is_log).unwrap().clone();
        let mut bytes = io.read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 0xff;
        io.write(&path, &bytes);
        match open(&io, &tiny_options()) {
            Ok(db) => db.get(b"key").unwrap().is_none(),
            Err(error) => matches!(error, Error::CorruptFile { .. }),
        }
    });
}

#[test]
fn the_last_record_of_the_log_counts() {
    holds(|| {
        let io = FaultIo::new();
        let db = open(&io, &tiny_options()).unwrap();
        db.put(b"key", b"value").unwrap();
        is_value(after_kill(&io, b"key"))
    });
}

#[test]
fn writes_after_a_flush_are_in_the_log() {
    holds(|| {
        let io = FaultIo::new();
        let db = open(&io, &tiny_options()).unwrap();
        db.put(b"before", b"value").unwrap();
        db.flush().unwrap();
        db.put(b"key", b"value").unwrap();
        is_value(after_kill(&io, b"key"))
    });
}

#[test]
fn a_dropped_keyspace_stays_dropped() {
    holds(|| {
        let io = FaultIo::new();
        let db = open(&io, &tiny_options()).unwrap();
        db.keyspace("gone").unwrap().put(b"key", b"value").unwrap();
        db.flush().unwrap();
        db.drop_keyspace("gone").unwrap();
        let db = open(&io.kill(), &tiny_options()).unwrap();
        db.keyspaces().is_empty()
    });
}

#[test]
fn a_backup_survives_the_power() {
    holds(|| {
        let io = FaultIo::new();
        let db = open(&io, &tiny_options()).unwrap();
        put_synced(&db);
        let backups = |io: &FaultIo| {
            Backups::open_with_io(Arc::new(io.clone()), "/backups", Create::IfMissing).unwrap()
        };
        backups(&io).create(&db).unwrap();
        let io = io.crash(0);
        backups(&io).restore(None, COPY).unwrap();
        is_value(open_copy(&io).get(b"key").unwrap())
    });
}

#[test]
fn a_restored_store_survives_the_power() {
    holds(|| {
        let io = FaultIo::new();
        let db = open(&io, &tiny_options()).unwrap();
        put_synced(&db);
        let path = "/backups";
        let mut backups =
            Backups::open_with_io(Arc::new(io.clone()), path, Create::IfMissing).unwrap();
        backups.create(&db).unwrap();
        backups.restore(None, COPY).unwrap();
        (0..20).all(|seed| is_value(open_copy(&io.crash(seed)).get(b"key").unwrap()))
    });
}

#[test]
fn a_checkpoint_stays_as_it_was() {
    holds(|| {
        let io = FaultIo::new();
        let db = open(&io, &tiny_options()).unwrap();
        put_synced(&db);
        db.checkpoint(COPY).unwrap();
        db.put(b"later", b"value").unwrap();
        let copy = open_copy(&io);
        is_value(copy.get(b"key").unwrap()) && copy.get(b"later").unwrap().is_none()
    });
}

fn open_copy(io: &FaultIo) -> Db {
    let options = tiny_options().create(Create::Never);
    Db::open_with_io(Arc::new(io.clone()), COPY, options).unwrap()
}

#[test]
fn a_directory_is_opened_once() {
    holds(|| {
        let io = FaultIo::new();
        let _db = open(&io, &tiny_options()).unwrap();
        let again = Db::open_with_io(Arc::new(io), STORE, tiny_options());
        matches!(again, Err(Error::Locked { .. }))
    });
}
