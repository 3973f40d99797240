//! Which writes wait for compactions and for other writes, and what is counted.

use std::sync::Arc;
use std::time::Duration;

use forerun_core::Pages;
use forerun_core::sync::{atomic::AtomicBool, atomic::Ordering, thread};

use crate::db::memtables::HeldFor;
use crate::io::fault::FaultIo;
use crate::{Db, Options, TreeOptions, WriteStalls};

#[test]
fn a_full_level_0_stops_writes_to_its_keyspace_only() {
    let tree = TreeOptions::default().level0_runs(2).level0_slow_runs(3);
    let options = Options::default()
        .pages(Pages::Small)
        .memtable_bytes(16 << 10)
        .memory_limit_bytes(256 << 10)
        .tree(tree.level0_stop_runs(4));
    let db = Db::open_with_io(Arc::new(FaultIo::new()), "/db", options).unwrap();
    let [full, other] = ["full", "other"].map(|name| db.keyspace(name).unwrap());
    let compacting = db.inner().unwrap().tree.lock_picking();
    for round in 0..4_u8 {
        full.put([round], b"value").unwrap();
        full.put([100 + round], b"value").unwrap();
        full.flush().unwrap();
    }
    let has_written = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            full.put(b"key", b"value").unwrap();
            has_written.store(true, Ordering::Relaxed);
        });
        // More than fits into the memtables at a time.
        for i in 0..1_000_u32 {
            other.put(i.to_be_bytes(), [7; 500]).unwrap();
        }
        thread::sleep(Duration::from_millis(20));
        assert!(!has_written.load(Ordering::Relaxed));
        drop(compacting);
    });
    let stalls = db.stats().write_stalls;
    assert!(
        stalls.level0_stalls > 0 && stalls.level0_stalled_us >= 20_000,
        "{stalls:?}"
    );
}

/// The stalls of two writes that wait for another write, the first because its keyspace has no
/// memtable yet, until that one has taken so long.
fn stalls_behind_a_write(pause: Duration) -> WriteStalls {
    let options = Options::default().pages(Pages::Small);
    let db = Db::open_with_io(Arc::new(FaultIo::new()), "/db", options).unwrap();
    let users = db.keyspace("users").unwrap();
    let memtables = &db.inner().unwrap().memtables;
    // As a write that waits for a sync of the log does.
    let in_progress = memtables.read_active();
    let is_writing = AtomicBool::new(false);
    thread::scope(|scope| {
        // The first of its keyspace adds a memtable.
        scope.spawn(|| users.put(b"b", b"2").unwrap());
        while memtables.try_read_active().is_ok() {
            thread::yield_now();
        }
        scope.spawn(|| {
            is_writing.store(true, Ordering::Relaxed);
            db.put(b"c", b"3").unwrap();
        });
        while !is_writing.load(Ordering::Relaxed) {
            thread::yield_now();
        }
        thread::sleep(pause);
        drop(in_progress);
    });
    db.stats().write_stalls
}

#[test]
fn writes_that_wait_for_a_new_memtable_and_so_for_the_writes_in_progress_are_counted() {
    // On a busy machine, a thread may begin late.
    for pause_ms in [50, 500, 5_000] {
        let stalls = stalls_behind_a_write(Duration::from_millis(pause_ms));
        assert_eq!((stalls.stalls, stalls.log_stalls), (0, 0), "{stalls:?}");
        if stalls.switch_stalls == 2 {
            assert!(stalls.switch_stalled_us >= 50_000, "{stalls:?}");
            return;
        }
    }
    panic!("one of two writes did not wait");
}

#[test]
fn writes_that_want_a_new_memtable_during_an_ingestion_or_a_backup_wait_for_that() {
    let options = Options::default().pages(Pages::Small);
    let db = Db::open_with_io(Arc::new(FaultIo::new()), "/db", options).unwrap();
    let users = db.keyspace("users").unwrap();
    let inner = db.inner().unwrap();
    let number = inner.memtables.read_active().number;
    let during = |held_for, write: &(dyn Fn() + Sync)| {
        let held = inner.memtables.hold_active(held_for);
        let is_writing = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                is_writing.store(true, Ordering::Relaxed);
                write();
            });
            while !is_writing.load(Ordering::Relaxed) {
                thread::yield_now();
            }
            thread::sleep(Duration::from_millis(500));
            drop(held);
        });
    };
    during(HeldFor::Ingestion, &|| {
        inner.add_table(users.data()).unwrap()
    });
    during(HeldFor::Backup, &|| {
        inner.make_room_for_write(number, 0).unwrap()
    });
    let stalls = db.stats().write_stalls;
    let counts = (stalls.ingestion_stalls, stalls.backup_stalls);
    assert_eq!((counts, stalls.switch_stalls), ((1, 1), 0), "{stalls:?}");
}
