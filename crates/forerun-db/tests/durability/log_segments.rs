//! Which log segments exist.

use crate::testing;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use forerun_db::io::fault::FaultIo;
use forerun_db::{Db, Durability, Error};
use testing::hook_io::{Change, HookIo};
use testing::{STORE, open, small_options, tiny_options};

/// The log's segments in a directory, and their lengths.
fn segments(io: &FaultIo, dir: &str) -> Vec<(PathBuf, usize)> {
    let is_segment =
        |path: &PathBuf| path.starts_with(dir) && path.extension() == Some("log".as_ref());
    let files = io.files().into_iter().filter(is_segment);
    files
        .map(|path| (path.clone(), io.read(&path).unwrap().len()))
        .collect()
}

#[test]
fn a_flush_of_all_that_was_written_leaves_nothing_in_the_log_nor_in_a_checkpoint() {
    for options in [small_options(), tiny_options()] {
        let options = options.wal_segment_bytes(1 << 20);
        let io = FaultIo::new();
        let db = open(&io, &options).unwrap();
        for number in 0..200_u32 {
            db.put(&number.to_be_bytes(), &[7; 100]).unwrap();
        }
        assert!(segments(&io, STORE).iter().map(|of| of.1).sum::<usize>() > 64);
        for round in 0..3 {
            db.compact().unwrap();
            db.wait_idle().unwrap();
            let left = segments(&io, STORE);
            assert!(
                left.len() == 1 && left[0].1 <= 32,
                "round {round}: {left:?}"
            );
        }
        db.checkpoint("/copy").unwrap();
        let copied = segments(&io, "/copy");
        assert!(copied.iter().all(|of| of.1 <= 32), "{copied:?}");
        let copy =
            forerun_db::Db::open_with_io(std::sync::Arc::new(io.clone()), "/copy", options.clone());
        assert_eq!(copy.unwrap().iter().count(), 200);
        // The log continues after it, however the process ends.
        db.put(b"after", b"").unwrap();
        db.flush_wal().unwrap();
        let db = open(&io.crash(0), &options).unwrap();
        assert_eq!(db.iter().count(), 201);
    }
}

#[test]
fn a_store_that_was_closed_after_a_flush_opens_with_and_without_more_writes() {
    let io = FaultIo::new();
    for round in 0..4_u32 {
        let db = open(&io, &small_options()).unwrap();
        assert_eq!(db.iter().count() as u32, round.div_ceil(2), "round {round}");
        assert!(round == 0 || db.recovery().clean_close);
        if round % 2 == 0 {
            db.put(&round.to_be_bytes(), b"value").unwrap();
        }
        db.flush().unwrap();
        db.close().unwrap();
    }
    assert!(
        segments(&io, STORE)
            .iter()
            .all(|(path, _)| path.parent() == Some(Path::new(STORE)))
    );
}

#[test]
fn a_segment_whose_creation_failed_does_not_make_the_end_of_the_log_damage() {
    let disk = FaultIo::new();
    let is_failing = Arc::new(AtomicBool::new(true));
    let is_on = Arc::clone(&is_failing);
    let io = HookIo::new(&disk, move |change, path| {
        let is_it = matches!(change, Change::Write | Change::Remove)
            && path.ends_with("wal-000002.log")
            && is_on.load(Ordering::Relaxed);
        if is_it {
            Err(io::Error::other("no second segment today"))
        } else {
            Ok(())
        }
    });
    let db = Db::open_with_io(Arc::new(io), STORE, tiny_options()).unwrap();
    db.put(b"flushed", b"value").unwrap();
    // Everything in the first segment is in runs, so a second one is begun.
    db.flush().unwrap();
    // As long as the second one cannot be removed, the log does not continue in the first one.
    db.put(b"refused", b"value").unwrap_err();
    is_failing.store(false, Ordering::Relaxed);
    let left = segments(&disk, STORE);
    assert_eq!(left.len(), 2, "{left:?}");
    // The log continues in the first one, whose end is not synced, without the second one.
    db.put(b"unsynced", &[7; 300]).unwrap();
    assert_eq!(segments(&disk, STORE).len(), 1);
    let mut kept = 0;
    for seed in 0..60 {
        let disk = disk.crash(seed);
        let db = open(&disk, &tiny_options()).unwrap();
        assert_eq!(db.get(b"flushed").unwrap().as_deref(), Some(&b"value"[..]));
        kept += usize::from(db.get(b"unsynced").unwrap().is_some());
        db.put_with(b"later", b"value", Durability::Synced).unwrap();
        drop(db);
        let db = open(&disk.crash(seed), &tiny_options()).unwrap();
        assert!(db.get(b"later").unwrap().is_some(), "seed {seed}");
    }
    assert!(
        0 < kept && kept < 60,
        "{kept} of 60 kept the end of the log"
    );
}

/// How long a test waits for something that must happen.
const DEADLINE: Duration = Duration::from_secs(60);

/// Syncs of the first segment wait until this is released.
#[derive(Default)]
struct HeldSync {
    is_released: Mutex<bool>,
    released: Condvar,
}

impl HeldSync {
    fn io(self: &Arc<Self>, disk: &FaultIo) -> HookIo {
        let held = Arc::clone(self);
        HookIo::new(disk, move |change, path| {
            if change == Change::Sync && path.ends_with("wal-000001.log") {
                let is_released = held.is_released.lock().unwrap();
                let is_held = |is_released: &mut bool| !*is_released;
                drop(held.released.wait_while(is_released, is_held).unwrap());
            }
            Ok(())
        })
    }

    fn release(&self) {
        *self.is_released.lock().unwrap() = true;
        self.released.notify_all();
    }
}

/// Writes until the log has this many segments.
fn fill_segments(db: &Db, disk: &FaultIo, count: usize) {
    for number in 0.. {
        if segments(disk, STORE).len() >= count {
            return;
        }
        db.put(format!("buffered-{count}-{number}"), [7; 100])
            .unwrap();
    }
}

#[test]
fn only_synced_writes_wait_until_a_full_segment_is_synced() {
    let (disk, held) = (FaultIo::new(), Arc::new(HeldSync::default()));
    let db = Db::open_with_io(Arc::new(held.io(&disk)), STORE, small_options()).unwrap();
    let (done, is_done) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| {
            fill_segments(&db, &disk, 4);
            done.send(()).unwrap();
            db.put_with("synced", "value", Durability::Synced).unwrap();
            done.send(()).unwrap();
        });
        let buffered = is_done.recv_timeout(DEADLINE);
        let synced = is_done.recv_timeout(Duration::from_millis(20));
        held.release();
        buffered.expect("buffered writes continue");
        synced.expect_err("a synced write waits for the segments before it");
    });
    is_done.recv_timeout(DEADLINE).unwrap();
    let db = open(&disk.crash(0), &small_options()).unwrap();
    assert!(db.get("synced").unwrap().is_some());
    assert!(
        db.get("buffered-4-0").unwrap().is_some(),
        "in the first segment"
    );
}

#[test]
fn buffered_writes_wait_for_a_disk_that_takes_no_segments_and_the_wait_is_counted() {
    let (disk, held) = (FaultIo::new(), Arc::new(HeldSync::default()));
    let db = Db::open_with_io(Arc::new(held.io(&disk)), STORE, small_options()).unwrap();
    let (done, is_done) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| {
            fill_segments(&db, &disk, 20);
            done.send(()).unwrap();
        });
        let filled = is_done.recv_timeout(Duration::from_millis(50));
        let left = segments(&disk, STORE).len();
        held.release();
        filled.expect_err("the number of unsynced segments is bounded");
        assert!(left < 20, "{left} segments");
    });
    let stalls = db.stats().write_stalls;
    assert!(
        stalls.log_stalls >= 1 && stalls.log_stalled_us >= 1_000,
        "{stalls:?}"
    );
}

#[test]
fn closing_waits_until_all_segments_are_synced() {
    let (disk, held) = (FaultIo::new(), Arc::new(HeldSync::default()));
    let db = Db::open_with_io(Arc::new(held.io(&disk)), STORE, small_options()).unwrap();
    fill_segments(&db, &disk, 3);
    thread::scope(|scope| {
        let closing = scope.spawn(|| db.close());
        thread::sleep(Duration::from_millis(20));
        let is_closed = closing.is_finished();
        held.release();
        assert!(!is_closed);
        closing.join().unwrap().unwrap();
    });
    let db = open(&disk.crash(0), &small_options()).unwrap();
    assert!(db.recovery().clean_close);
    assert!(db.get("buffered-3-0").unwrap().is_some());
}

#[test]
fn a_sync_in_the_background_that_fails_stops_writes() {
    let disk = FaultIo::new();
    disk.set_forgetful(true);
    let io = HookIo::new(&disk, |change, path| {
        if change == Change::Sync && path.ends_with("wal-000001.log") {
            return Err(io::Error::other("no syncs today"));
        }
        Ok(())
    });
    let db = Db::open_with_io(Arc::new(io), STORE, small_options()).unwrap();
    fill_segments(&db, &disk, 2);
    let synced = db.put_with("synced", "value", Durability::Synced);
    assert!(synced.is_err());
    let refused = (0..).find_map(|_| db.put("later", "value").err()).unwrap();
    assert!(matches!(refused, Error::Poisoned { .. }), "{refused}");
    assert!(db.get("buffered-2-0").unwrap().is_some());
    assert!(db.close().is_err(), "the log is not marked as whole");
    assert!(disk.read("/store/CLOSED").is_none());
    // Another process writes the segment again before it syncs it.
    let db = open(&disk.kill(), &small_options()).unwrap();
    assert!(db.get("buffered-2-0").unwrap().is_some());
}
