//! Files of replaced runs are removed by a thread of their own, at a pace, and never lost.

use crate::testing;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use forerun_core::sync::thread;
use forerun_db::io::fault::{EIO, FaultIo};
use forerun_db::{Background, Db, Options};
use testing::hook_io::{Change, HookIo};
use testing::{STORE, tiny_options};

fn options() -> Options {
    tiny_options().background(Background::Threads)
}

fn is_run(path: &Path) -> bool {
    path.extension().is_some_and(|of| of == "run")
}

fn runs(io: &FaultIo) -> Vec<PathBuf> {
    io.files().into_iter().filter(|path| is_run(path)).collect()
}

fn fill(db: &Db) {
    for round in 0..20_u64 {
        for number in 0..50_u64 {
            db.put(number.to_be_bytes(), [round as u8; 100]).unwrap();
        }
        db.flush().unwrap();
    }
}

fn wait_until_removed(db: &Db) {
    let begun = Instant::now();
    while db.stats().obsolete_files > 0 {
        assert!(begun.elapsed() < Duration::from_secs(60), "a bounded delay");
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(db.stats().obsolete_bytes, 0);
}

#[test]
fn neither_flushes_nor_compactions_nor_readers_remove_runs() {
    let io = FaultIo::new();
    let removers = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&removers);
    let hooked = HookIo::new(&io, move |change, path| {
        if change == Change::Remove && is_run(path) {
            let name = std::thread::current().name().unwrap_or_default().to_owned();
            noted.lock().unwrap().push(name);
        }
        Ok(())
    });
    let db = Db::open_with_io(Arc::new(hooked), STORE, options()).unwrap();
    fill(&db);
    db.compact().unwrap();
    // A reader holds runs that a compaction replaces, and is the last to drop them.
    let snapshot = db.snapshot();
    let mut iter = snapshot.iter();
    assert!(iter.next().is_some());
    let held = runs(&io);
    fill(&db);
    db.compact().unwrap();
    wait_until_removed(&db);
    let still: Vec<_> = runs(&io)
        .into_iter()
        .filter(|run| held.contains(run))
        .collect();
    assert!(!still.is_empty(), "the reader holds them");
    drop((iter, snapshot));
    let begun = Instant::now();
    while runs(&io).iter().any(|run| still.contains(run)) {
        assert!(begun.elapsed() < Duration::from_secs(90), "a bounded delay");
        thread::sleep(Duration::from_millis(1));
    }
    let removers = removers.lock().unwrap();
    assert!(removers.len() > 5);
    assert!(
        removers.iter().all(|name| name == "forerun-unlink"),
        "{removers:?}"
    );
}

/// Files of which no run can be removed.
fn keeping_runs(io: &FaultIo) -> HookIo {
    HookIo::new(io, |change, path| {
        if change == Change::Remove && is_run(path) {
            return Err(std::io::Error::from_raw_os_error(EIO));
        }
        Ok(())
    })
}

/// The files, and how many runs this thread has removed.
fn counting_own_removals(io: &FaultIo) -> (HookIo, Arc<AtomicUsize>) {
    let opener = std::thread::current().id();
    let by_opener = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&by_opener);
    let hooked = HookIo::new(io, move |change, path| {
        let is_opener = std::thread::current().id() == opener;
        if change == Change::Remove && is_run(path) && is_opener {
            counted.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    });
    (hooked, by_opener)
}

#[test]
fn a_file_that_cannot_be_removed_is_removed_when_the_store_is_opened_again() {
    let io = FaultIo::new();
    let db = Db::open_with_io(Arc::new(keeping_runs(&io)), STORE, options()).unwrap();
    fill(&db);
    db.compact().unwrap();
    db.wait_idle().unwrap();
    assert_eq!(db.stats().obsolete_files, 0, "nobody waits for ever");
    let entries = db.count().unwrap();
    db.close().unwrap();
    let left = runs(&io).len();
    assert!(left > 5);
    // Its number was given, but no manifest knows, so it is given again.
    let unknown = format!("{STORE}/run-999999.run");
    io.write(&unknown, b"half a run");
    // Opening does not wait for the others, which are removed at a pace.
    let (hooked, by_opener) = counting_own_removals(&io);
    let db = Db::open_with_io(Arc::new(hooked), STORE, options()).unwrap();
    assert!(io.read(&unknown).is_none());
    wait_until_removed(&db);
    assert_eq!(by_opener.load(Ordering::Relaxed), 1);
    let named: usize = db.stats().levels.iter().map(|level| level.runs).sum();
    assert_eq!(runs(&io).len(), named);
    assert!(named < left);
    assert_eq!(db.count().unwrap(), entries);
}

#[test]
fn what_waits_is_removed_when_the_store_is_idle_or_closed() {
    for is_closed in [false, true] {
        let io = FaultIo::new();
        let db = Db::open_with_io(Arc::new(io.clone()), STORE, options()).unwrap();
        fill(&db);
        db.compact().unwrap();
        let named: usize = db.stats().levels.iter().map(|level| level.runs).sum();
        if is_closed {
            db.close().unwrap();
        } else {
            db.wait_idle().unwrap();
            assert_eq!(db.stats().obsolete_files, 0);
        }
        assert_eq!(runs(&io).len(), named, "closed: {is_closed}");
    }
}

/// Bytes that do not compress.
fn noise(seed: u64) -> Vec<u8> {
    let words = (0..60_u64).map(|word| (seed << 8 | word).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    words
        .flat_map(|word| (word ^ word >> 29).to_le_bytes())
        .collect()
}

#[test]
fn a_write_does_not_fail_for_lack_of_space_while_files_wait() {
    let io = FaultIo::new();
    let tree = options().tree.delete_rate_bytes(1);
    let db = Db::open_with_io(Arc::new(io.clone()), STORE, options().tree(tree)).unwrap();
    for number in 0..1000_u64 {
        db.put(number.to_be_bytes(), noise(number)).unwrap();
    }
    db.compact().unwrap();
    db.wait_idle().unwrap();
    // What comes now waits for a minute, as it is little.
    let begun = Instant::now();
    let mut round = 0;
    while db.stats().obsolete_bytes < 3_000 {
        assert!(begun.elapsed() < Duration::from_secs(60), "nothing waits");
        round += 1;
        db.put(7_u64.to_be_bytes(), noise(round)).unwrap();
        db.flush().unwrap();
    }
    io.set_capacity_bytes(Some(io.used_bytes()));
    db.put("oslo", noise(0)).unwrap();
    assert_eq!(db.get("oslo").unwrap().unwrap(), noise(0));
}

#[test]
fn a_store_on_a_full_disk_opens_while_an_earlier_process_has_left_files() {
    let io = FaultIo::new();
    // What the next opening replays does not fit into its memtable, so it writes runs.
    let larger = options().memtable_bytes(64 << 10);
    let db = Db::open_with_io(Arc::new(keeping_runs(&io)), STORE, larger).unwrap();
    fill(&db);
    db.compact().unwrap();
    db.wait_idle().unwrap();
    for number in 100..110_u64 {
        db.put(number.to_be_bytes(), noise(number)).unwrap();
    }
    let entries = db.count().unwrap();
    db.close().unwrap();
    let left = runs(&io).len();
    io.set_capacity_bytes(Some(io.used_bytes()));
    let (hooked, by_opener) = counting_own_removals(&io);
    let db = Db::open_with_io(Arc::new(hooked), STORE, options()).unwrap();
    let removed = by_opener.load(Ordering::Relaxed);
    assert!(removed > 0, "opening needs space");
    assert!(removed < left / 2, "{removed} of {left}");
    assert_eq!(db.count().unwrap(), entries);
    wait_until_removed(&db);
    assert!(runs(&io).len() < left);
}

#[test]
fn closing_leaves_what_takes_long_to_the_next_opening() {
    let io = FaultIo::new();
    let is_closing = Arc::new(AtomicBool::new(false));
    let closes = Arc::clone(&is_closing);
    // Nothing is removed before the store is being closed, and little after that.
    let hooked = HookIo::new(&io, move |change, path| {
        if change == Change::Remove && is_run(path) {
            while !closes.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(1));
            }
            thread::sleep(Duration::from_millis(500));
        }
        Ok(())
    });
    let db = Db::open_with_io(Arc::new(hooked), STORE, options()).unwrap();
    fill(&db);
    db.compact().unwrap();
    let named: usize = db.stats().levels.iter().map(|level| level.runs).sum();
    let waiting = db.stats().obsolete_files;
    assert!(waiting > 12, "{waiting}");
    is_closing.store(true, Ordering::SeqCst);
    db.close().unwrap();
    let left = runs(&io).len();
    assert!(left > named, "{left} of {named} and {waiting}");
    let db = Db::open_with_io(Arc::new(io.clone()), STORE, options()).unwrap();
    wait_until_removed(&db);
    let named: usize = db.stats().levels.iter().map(|level| level.runs).sum();
    assert_eq!(runs(&io).len(), named);
    assert!(named < left);
}
