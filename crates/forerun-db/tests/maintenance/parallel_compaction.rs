//! Several compactions at once, on a file system that holds some of them.

use crate::testing;

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use forerun_core::sync::{Condvar, Mutex, PoisonError, thread};
use forerun_db::io::Io;
use forerun_db::io::fault::FaultIo;
use forerun_db::{Background, Db, Error, KeyspaceOptions, Options, RunOptions, TreeOptions};
use testing::hook_io::{Change, HookIo};
use testing::{STORE, small_options};

/// How long a test waits for what should happen within milliseconds.
const PATIENCE: Duration = Duration::from_secs(60);

/// Holds compactions that begin to write a run while it is closed.
#[derive(Default)]
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    /// How many more compactions are held.
    holds: usize,
    held: usize,
}

impl Gate {
    /// A file system with this gate.
    fn on(self: &Arc<Gate>, io: &FaultIo) -> Arc<HookIo> {
        let gate = Arc::clone(self);
        Arc::new(HookIo::new(io, move |change, path| {
            gate.pass(change, path);
            Ok(())
        }))
    }

    fn pass(&self, change: Change, path: &Path) {
        let is_run = path.extension().is_some_and(|of| of == "run");
        let thread = thread::current();
        // Its helpers are held too, or they would do the part of one that is held.
        let compacts = matches!(thread.name(), Some("forerun-compact" | "forerun-part"));
        if change != Change::Create || !is_run || !compacts {
            return;
        }
        let mut state = self.state.lock().unwrap();
        if state.holds == 0 {
            return;
        }
        state.holds -= 1;
        state.held += 1;
        self.changed.notify_all();
        while state.held > 0 {
            state = self.changed.wait(state).unwrap();
        }
    }

    /// Holds the next compactions, this many.
    fn hold(&self, compactions: usize) {
        self.state.lock().unwrap().holds = compactions;
    }

    /// Waits until this many are held.
    fn wait_for(&self, compactions: usize) {
        let begun = Instant::now();
        let mut state = self.state.lock().unwrap();
        while state.held < compactions {
            assert!(begun.elapsed() < PATIENCE, "{} are held", state.held);
            let waited = self.changed.wait_timeout(state, Duration::from_millis(50));
            state = waited.unwrap().0;
        }
    }

    /// Lets all go on.
    fn open(&self) {
        // A test that has waited too long has panicked with the lock held.
        let locked = self.state.lock();
        let mut state = locked.unwrap_or_else(PoisonError::into_inner);
        (state.holds, state.held) = (0, 0);
        self.changed.notify_all();
    }
}

/// Runs of a few KiB, and nothing that is due.
fn quiet_tree() -> TreeOptions {
    TreeOptions::default()
        .level0_runs(50)
        .level0_slow_runs(90)
        .level0_stop_runs(100)
        .level1_bytes(1 << 20)
        .level_factor(2)
        .run_bytes(4 << 10)
}

fn options(threads: usize, tree: TreeOptions) -> Options {
    small_options()
        .memtable_bytes(32 << 10)
        .cache_bytes(1 << 20)
        .background(Background::Threads)
        .background_threads(threads)
        .run(RunOptions::default().page_bytes(4 << 10))
        .tree(tree)
        .keyspace(
            "small",
            KeyspaceOptions::default().tree(quiet_tree().level0_runs(2)),
        )
}

fn value(key: u32, version: u32) -> Vec<u8> {
    let mut value = [key.to_be_bytes(), version.to_be_bytes()].concat();
    // Random bytes, which do not get smaller.
    let mut state = u64::from(key) << 32 | u64::from(version) | 1;
    value.extend((0..200).map(|_| {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(11);
        (state >> 56) as u8
    }));
    value
}

const KEYS: u32 = 600;

/// Makes a store with a level of many runs and another one above it.
fn prepare(io: &FaultIo) {
    let io = Arc::new(io.clone());
    let db = Db::open_with_io(io, STORE, options(1, quiet_tree())).unwrap();
    for version in 0..2 {
        let mut ingestion = db.ingest();
        for key in 0..KEYS {
            let value = value(key, version);
            ingestion.add(key.to_be_bytes(), value).unwrap();
        }
        ingestion.commit().unwrap();
    }
    let levels = db.stats().levels;
    let filled = levels.iter().filter(|level| level.runs > 10);
    assert_eq!(filled.count(), 2, "{levels:?}");
    db.close().unwrap();
}

/// Every run above the last level is due.
fn due_tree() -> TreeOptions {
    quiet_tree().level1_bytes(1)
}

fn check(db: &Db) {
    for key in 0..KEYS {
        let found = db.get(key.to_be_bytes()).unwrap();
        assert_eq!(found, Some(value(key, 1)), "key {key}");
    }
    assert!(db.verify().unwrap().problems.is_empty());
}

/// Makes level 0 of a keyspace due and waits until it has been compacted.
fn compact_small(db: &Db) {
    let small = db.keyspace("small").unwrap();
    let level0_runs = || {
        let levels = small.stats().levels;
        levels.first().map_or(0, |level| level.runs)
    };
    for round in 0..2_u32 {
        for key in 0..10_u32 {
            small.put(key.to_be_bytes(), round.to_be_bytes()).unwrap();
        }
        small.flush().unwrap();
    }
    let begun = Instant::now();
    while level0_runs() > 0 {
        assert!(begun.elapsed() < PATIENCE, "level 0 was not compacted");
        thread::sleep(Duration::from_millis(1));
    }
    for key in 0..10_u32 {
        let found = small.get(key.to_be_bytes()).unwrap();
        assert_eq!(found.as_deref(), Some(&1_u32.to_be_bytes()[..]));
    }
}

/// A store of this many threads, in which as many compactions as `held` wait at the gate.
fn open_with_held_compactions(held: usize, threads: usize) -> (FaultIo, Db, OpensOnDrop) {
    let (io, gate) = (FaultIo::new(), Arc::new(Gate::default()));
    prepare(&io);
    gate.hold(held);
    let db = Db::open_with_io(gate.on(&io), STORE, options(threads, due_tree())).unwrap();
    let gate = OpensOnDrop(gate);
    gate.wait_for(held);
    (io, db, gate)
}

/// A gate that opens when a test fails, before its store is closed, which waits for compactions.
struct OpensOnDrop(Arc<Gate>);

impl Deref for OpensOnDrop {
    type Target = Gate;

    fn deref(&self) -> &Gate {
        &self.0
    }
}

impl Drop for OpensOnDrop {
    fn drop(&mut self) {
        self.open();
    }
}

#[test]
fn level_0_of_a_keyspace_is_compacted_beside_a_long_compaction_of_another() {
    let (_io, db, gate) = open_with_held_compactions(1, 2);
    compact_small(&db);
    gate.open();
    db.wait_idle().unwrap();
    check(&db);
}

#[test]
fn compactions_of_disjoint_runs_of_a_keyspace_overlap_in_time() {
    let (_io, db, gate) = open_with_held_compactions(2, 3);
    // Every other thread is busy, and one is left for level 0.
    compact_small(&db);
    gate.open();
    db.wait_idle().unwrap();
    assert!(!db.stats().is_compaction_due);
    check(&db);
}

#[test]
fn a_full_compaction_beside_others_ends_and_so_does_one_that_waits_for_them() {
    let (io, db, gate) = open_with_held_compactions(2, 3);
    thread::scope(|scope| {
        let full = scope.spawn(|| db.compact());
        thread::sleep(Duration::from_millis(20));
        let is_finished = full.is_finished();
        gate.open();
        assert!(!is_finished, "it knows what the others have begun");
        full.join().unwrap().unwrap();
    });
    let levels = db.stats().levels;
    let above_last = &levels[..levels.len() - 1];
    assert!(above_last.iter().all(|level| level.runs == 0), "{levels:?}");
    check(&db);
    check_files(&db, &io);
}

/// Only the files of runs that the store has are left.
fn check_files(db: &Db, io: &FaultIo) {
    db.wait_idle().unwrap();
    let runs: usize = db.stats().levels.iter().map(|level| level.runs).sum();
    let is_run = |path: &&PathBuf| path.extension().is_some_and(|of| of == "run");
    assert_eq!(io.files().iter().filter(is_run).count(), runs);
}

#[test]
fn what_is_deleted_by_range_while_it_is_compacted_stays_deleted() {
    let (io, db, gate) = open_with_held_compactions(1, 2);
    db.delete_range(0_u32.to_be_bytes(), KEYS.to_be_bytes())
        .unwrap();
    db.flush().unwrap();
    // The other thread removes the runs in which everything is deleted.
    let runs = || {
        db.stats()
            .levels
            .iter()
            .map(|level| level.runs)
            .sum::<usize>()
    };
    let begun = Instant::now();
    while runs() > 10 {
        assert!(begun.elapsed() < PATIENCE, "{} runs are left", runs());
        thread::sleep(Duration::from_millis(1));
    }
    assert!(runs() > 0, "those that are being compacted");
    gate.open();
    db.wait_idle().unwrap();
    assert_eq!(db.iter().count(), 0);
    check_files(&db, &io);
}

#[test]
fn closing_waits_for_all_compactions() {
    let (io, db, gate) = open_with_held_compactions(2, 3);
    let reader = db.clone();
    thread::scope(|scope| {
        let full = scope.spawn(|| reader.compact());
        let closed = scope.spawn(|| db.close());
        thread::sleep(Duration::from_millis(20));
        let is_finished = closed.is_finished();
        gate.open();
        assert!(!is_finished);
        closed.join().unwrap().unwrap();
        assert!(matches!(full.join().unwrap(), Err(Error::Closed)));
    });
    let db = Db::open_with_io(Arc::new(io.clone()), STORE, options(2, quiet_tree())).unwrap();
    check(&db);
}

#[test]
fn a_keyspace_is_dropped_while_it_is_compacted() {
    let (io, gate) = (FaultIo::new(), Arc::new(Gate::default()));
    let db = Db::open_with_io(gate.on(&io), STORE, options(2, quiet_tree())).unwrap();
    let small = db.keyspace("small").unwrap();
    let gate = OpensOnDrop(gate);
    gate.hold(1);
    for round in 0..2_u32 {
        small.put(b"key", round.to_be_bytes()).unwrap();
        small.flush().unwrap();
    }
    gate.wait_for(1);
    db.drop_keyspace("small").unwrap();
    drop(small);
    gate.open();
    compact_small(&db);
    check_files(&db, &io);
}

#[test]
fn the_number_of_threads_is_checked() {
    for threads in [0, 65] {
        let options = options(threads, quiet_tree());
        let opened = Db::open_with_io(Arc::new(FaultIo::new()), STORE, options);
        assert!(
            matches!(
                &opened,
                Err(Error::BadOption {
                    option: "background_threads",
                    ..
                })
            ),
            "{opened:?}"
        );
    }
}

/// A file system on which whoever creates a run waits for another thread that does, once `armed`.
fn two_at_once(io: &FaultIo) -> (Arc<HookIo>, Arc<AtomicBool>) {
    let armed = Arc::new(AtomicBool::new(false));
    let is_armed = Arc::clone(&armed);
    let (creating, another) = (Mutex::new(BTreeSet::new()), Condvar::new());
    let hook = move |change, path: &Path| {
        let is_run = path.extension().is_some_and(|of| of == "run");
        if change == Change::Create && is_run && is_armed.load(SeqCst) {
            let mut threads = creating.lock().unwrap();
            threads.insert(format!("{:?}", thread::current().id()));
            another.notify_all();
            let is_alone = |threads: &mut BTreeSet<String>| threads.len() < 2;
            let waited = another.wait_timeout_while(threads, PATIENCE, is_alone);
            assert!(!waited.unwrap().1.timed_out(), "it does all alone");
        }
        Ok(())
    };
    (Arc::new(HookIo::new(io, hook)), armed)
}

#[test]
fn a_large_compaction_of_level_0_is_done_by_several_threads() {
    for is_requested in [true, false] {
        let (io, armed) = two_at_once(&FaultIo::new());
        let quiet = options(4, quiet_tree());
        let db = Db::open_with_io(Arc::clone(&io) as Arc<dyn Io>, STORE, quiet).unwrap();
        for version in 0..2 {
            // Every run has keys from all over.
            for number in 0..KEYS {
                let key = number * 7 % KEYS;
                db.put(key.to_be_bytes(), value(key, version)).unwrap();
            }
            db.flush().unwrap();
        }
        db.delete_range(100_u32.to_be_bytes(), 120_u32.to_be_bytes())
            .unwrap();
        db.flush().unwrap();
        db.close().unwrap();
        armed.store(true, SeqCst);
        let due = if is_requested { 50 } else { 2 };
        let options = options(4, quiet_tree().level0_runs(due));
        let db = Db::open_with_io(io, STORE, options).unwrap();
        if is_requested {
            db.compact().unwrap();
        }
        db.wait_idle().unwrap();
        let levels = db.stats().levels;
        assert!(levels[0].runs < 2 && levels.len() > 1, "{levels:?}");
        assert!(db.verify().unwrap().problems.is_empty());
        for key in 0..KEYS {
            let expected = (!(100..120).contains(&key)).then(|| value(key, 1));
            assert_eq!(db.get(key.to_be_bytes()).unwrap(), expected, "{key}");
        }
        db.close().unwrap();
    }
}

#[test]
fn when_a_part_fails_the_others_end_and_its_error_is_returned() {
    let disk = FaultIo::new();
    let (armed, created) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicUsize::new(0)),
    );
    let (is_armed, counted) = (Arc::clone(&armed), Arc::clone(&created));
    let hook = move |change, path: &Path| {
        let is_run = path.extension().is_some_and(|of| of == "run");
        if change == Change::Create && is_run {
            let before = counted.fetch_add(1, SeqCst);
            if is_armed.load(SeqCst) {
                if before == 1 {
                    return Err(ErrorKind::StorageFull.into());
                }
                // Time for the other one to fail.
                thread::sleep(Duration::from_millis(50));
            }
        }
        Ok(())
    };
    let io = Arc::new(HookIo::new(&disk, hook));
    let db = Db::open_with_io(io, STORE, options(4, quiet_tree())).unwrap();
    for version in 0..2 {
        for number in 0..KEYS {
            let key = number * 7 % KEYS;
            db.put(key.to_be_bytes(), value(key, version)).unwrap();
        }
        db.flush().unwrap();
    }
    armed.store(true, SeqCst);
    created.store(0, SeqCst);
    let error = db.compact().unwrap_err();
    let is_full = error.io_kind() == Some(ErrorKind::StorageFull);
    assert!(
        matches!(&error, Error::CompactionFailed { .. }) && is_full,
        "{error}"
    );
    let created_until_failure = created.load(SeqCst);
    check_files(&db, &disk);
    armed.store(false, SeqCst);
    created.store(0, SeqCst);
    db.compact().unwrap();
    let all = created.load(SeqCst);
    assert!(
        created_until_failure <= 10 && all >= 20,
        "{created_until_failure} of {all}"
    );
    check(&db);
}

#[test]
fn large_memtables_of_several_keyspaces_are_flushed_by_several_threads() {
    let disk = FaultIo::new();
    let (io, armed) = two_at_once(&disk);
    let options = options(4, quiet_tree())
        .memtable_bytes(16 << 20)
        .memory_limit_bytes(64 << 20);
    let db = Db::open_with_io(io, STORE, options.clone()).unwrap();
    let names = ["a", "b", "c"];
    let value = |name: &str, number: u8| [name.as_bytes()[0] ^ number; 64 << 10];
    for name in names {
        let keyspace = db.keyspace(name).unwrap();
        for number in 0..60 {
            keyspace.put([number], value(name, number)).unwrap();
        }
    }
    armed.store(true, SeqCst);
    db.flush().unwrap();
    assert_eq!(db.stats().tree.flushes, 1, "one change of the manifest");
    let io = disk.crash(0);
    let db = Db::open_with_io(Arc::new(io), STORE, options).unwrap();
    for name in names {
        let keyspace = db.keyspace(name).unwrap();
        for number in 0..60 {
            assert_eq!(
                keyspace.get([number]).unwrap().unwrap(),
                value(name, number)
            );
        }
    }
}
