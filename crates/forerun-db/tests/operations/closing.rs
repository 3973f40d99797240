//! Closing a store while other threads work on it: their work stops or completes, and nothing in
//! the directory changes afterwards.

use crate::testing;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use forerun_db::io::fault::FaultIo;
use forerun_db::{
    Backups, Create, Db, Durability, Error, Options, Result, check_with_io, repair_with_io,
};
use testing::hook_io::{Change, HookIo};
use testing::{STORE, open, tiny_options};

const COPY: &str = "/copy";
const BACKUPS: &str = "/backups";

/// Bytes of a log file before its first record.
const LOG_HEADER_BYTES: usize = 32;

/// How long the test waits before it concludes that an event does not happen.
const A_WHILE: Duration = Duration::from_millis(4);

/// How long a test waits for something that must happen.
const DEADLINE: Duration = Duration::from_secs(60);

thread_local! {
    /// Whether this thread runs the operation that is held up.
    static IS_HELD_UP: Cell<bool> = const { Cell::new(false) };
}

/// Holds an operation up at one of its changes, and records changes in the store's directory after
/// the store was closed.
#[derive(Default)]
struct HeldChange {
    state: Mutex<State>,
    moved: Condvar,
}

#[derive(Default)]
struct State {
    /// Changes that the operation makes before it is held up.
    left: usize,
    /// Where it is held up.
    held_at: Option<(Change, PathBuf)>,
    is_open: bool,
    is_closed: bool,
    changed_after: Vec<(Change, PathBuf)>,
}

impl HeldChange {
    fn at(left: usize) -> Arc<HeldChange> {
        let held = HeldChange::default();
        held.lock().left = left;
        Arc::new(held)
    }

    fn io(self: &Arc<Self>, inner: &FaultIo) -> HookIo {
        let held = Arc::clone(self);
        HookIo::new(inner, move |change, path| held.pass(change, path))
    }

    fn pass(&self, change: Change, path: &Path) -> io::Result<()> {
        let mut state = self.lock();
        if IS_HELD_UP.get() && state.held_at.is_none() {
            match state.left.checked_sub(1) {
                Some(left) => state.left = left,
                None => {
                    state.held_at = Some((change, path.to_owned()));
                    self.moved.notify_all();
                    let open = self
                        .moved
                        .wait_timeout_while(state, DEADLINE, |state| !state.is_open);
                    state = open.unwrap().0;
                }
            }
        }
        if state.is_closed && path.starts_with(STORE) {
            state.changed_after.push((change, path.to_owned()));
        }
        Ok(())
    }

    /// Waits until the operation is held up, and returns where; `None` if it ended before.
    fn held_at<T>(&self, operation: &ScopedJoinHandle<'_, T>) -> Option<(Change, PathBuf)> {
        let begun = Instant::now();
        let mut state = self.lock();
        while state.held_at.is_none() && !operation.is_finished() {
            assert!(
                begun.elapsed() < DEADLINE,
                "the operation neither ended nor made a change"
            );
            state = self
                .moved
                .wait_timeout(state, Duration::from_millis(1))
                .unwrap()
                .0;
        }
        state.held_at.clone()
    }

    fn open(&self) {
        self.lock().is_open = true;
        self.moved.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

/// Little memory, and a level 0 large enough for all runs of the test, so that only the operation
/// compacts.
fn options() -> Options {
    tiny_options().tree(tiny_options().tree.level0_runs(10))
}

fn entries(db: &Db) -> BTreeMap<Vec<u8>, Vec<u8>> {
    db.iter().map(Result::unwrap).collect()
}

/// A store with data in each place: runs of two keyspaces, the log, and memory.
fn fill(db: &Db) {
    let other = db.keyspace("other").unwrap();
    for round in 0..3_u8 {
        for i in 0..20_u8 {
            db.put(&[i], &[round; 90]).unwrap();
            other.put(&[i, round], &[round; 40]).unwrap();
        }
        db.flush().unwrap();
    }
    db.put_with(b"logged", b"value", Durability::Synced)
        .unwrap();
}

/// An operation that may run while the store is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Compact,
    CompactKeyspace,
    Put,
    Flush,
    Ingest,
    Checkpoint,
    /// A checkpoint where files cannot have two names.
    CheckpointByCopy,
    CreateKeyspace,
    DropKeyspace,
    Backup,
}

impl Operation {
    const ALL: [Operation; 10] = [
        Operation::Compact,
        Operation::CompactKeyspace,
        Operation::Put,
        Operation::Flush,
        Operation::Ingest,
        Operation::Checkpoint,
        Operation::CheckpointByCopy,
        Operation::CreateKeyspace,
        Operation::DropKeyspace,
        Operation::Backup,
    ];

    fn run(self, db: &Db, io: &HookIo) -> Result<()> {
        match self {
            Operation::Compact => db.compact(),
            Operation::CompactKeyspace => db.keyspace("other")?.compact(),
            Operation::Put => db.put_with(b"put", b"value", Durability::Synced),
            Operation::Flush => db.flush(),
            Operation::Ingest => {
                let mut ingestion = db.ingest();
                ingestion.add(b"ingested", b"value")?;
                ingestion.commit().map(drop)
            }
            Operation::Checkpoint | Operation::CheckpointByCopy => db.checkpoint(COPY),
            Operation::CreateKeyspace => db.keyspace("new").map(drop),
            Operation::DropKeyspace => db.drop_keyspace("other"),
            Operation::Backup => {
                let mut backups =
                    Backups::open_with_io(Arc::new(io.clone()), BACKUPS, Create::IfMissing)?;
                backups.create(db).map(drop)
            }
        }
    }

    /// Runs it in its own thread, in which the held holds it up.
    fn spawn<'s>(
        self,
        scope: &'s Scope<'s, '_>,
        db: Db,
        io: HookIo,
    ) -> ScopedJoinHandle<'s, Result<()>> {
        scope.spawn(move || {
            IS_HELD_UP.set(true);
            self.run(&db, &io)
        })
    }
}

fn is_locked(io: &FaultIo) -> bool {
    match open(io, &options()) {
        Err(Error::Locked { .. }) => true,
        Err(other) => panic!("{other}"),
        Ok(_) => false,
    }
}

/// Closes a store while an operation is held up at one of its changes. Returns `false` if it makes
/// fewer changes.
fn close_during(operation: Operation, change: usize) -> bool {
    let disk = FaultIo::new();
    disk.set_links(operation != Operation::CheckpointByCopy);
    let held = HeldChange::at(change);
    let io = held.io(&disk);
    let db = Db::open_with_io(Arc::new(io.clone()), STORE, options()).unwrap();
    fill(&db);
    let before = entries(&db);
    let (case, ended, closed) = std::thread::scope(|scope| {
        let work = operation.spawn(scope, db.clone(), io.clone());
        let Some((change, path)) = held.held_at(&work) else {
            work.join().unwrap().unwrap();
            return (None, Ok(()), [Ok(()), Ok(())]);
        };
        let case = format!("{operation:?} held up at {change:?} {}", path.display());
        let close = || {
            let closed = db.clone().close();
            held.lock().is_closed = true;
            closed
        };
        let closers = [scope.spawn(close), scope.spawn(close)];
        let begun = Instant::now();
        let is_any_closed = || closers.iter().any(|closer| closer.is_finished());
        while !is_any_closed() && begun.elapsed() < A_WHILE {
            std::thread::yield_now();
        }
        let kept = !is_any_closed() && is_locked(&disk);
        held.open();
        // Writes to a directory of backups read from files that stay open, so they do not need the
        // store.
        let needs_store = operation != Operation::Backup || path.starts_with(STORE);
        assert!(kept || !needs_store, "{case}: closing did not wait");
        let closed = closers.map(|closer| closer.join().unwrap());
        (Some(case), work.join().unwrap(), closed)
    });
    let Some(case) = case else { return false };
    closed.into_iter().for_each(Result::unwrap);
    assert!(
        matches!(ended, Ok(()) | Err(Error::Closed)),
        "{case}: {ended:?}"
    );
    assert_eq!(
        held.lock().changed_after,
        [],
        "{case}: changed after closing"
    );
    let is_done = ended.is_ok()
        && matches!(
            operation,
            Operation::CreateKeyspace | Operation::DropKeyspace
        );
    let again = operation.run(&db, &io);
    assert!(
        is_done || matches!(again, Err(Error::Closed)),
        "{case}: {again:?}"
    );

    let checked = check_with_io(Arc::new(disk.clone()), STORE, &options()).unwrap();
    assert!(
        checked.problems.is_empty(),
        "{case}: {:?}",
        checked.problems
    );
    let reopened = open(&disk, &options()).unwrap();
    let mut expected = before;
    let written = match operation {
        Operation::Ingest if ended.is_ok() => Some("ingested"),
        Operation::Put if ended.is_ok() => Some("put"),
        _ => None,
    };
    expected.extend(written.map(|key| (key.into(), b"value".to_vec())));
    assert_eq!(entries(&reopened), expected, "{case}");
    if let Operation::Checkpoint | Operation::CheckpointByCopy = operation {
        let copy = options().create(Create::Never);
        let copy = Db::open_with_io(Arc::new(disk), COPY, copy);
        match ended {
            Ok(()) => assert_eq!(entries(&copy.unwrap()), expected, "{case}"),
            Err(_) => assert!(matches!(copy, Err(Error::NotAStore { .. })), "{case}"),
        }
    }
    true
}

#[test]
fn closing_waits_for_every_operation_in_other_threads_and_nothing_changes_afterwards() {
    for operation in Operation::ALL {
        let (mut change, mut changes) = (0, 0);
        // Each of the first changes; later ones are similar.
        while close_during(operation, change) {
            (change, changes) = (change + 1 + change / 8, changes + 1);
        }
        assert!(
            changes >= 2,
            "{operation:?} was held up only at {changes} changes"
        );
    }
}

#[test]
fn a_second_thread_that_closes_a_store_waits_until_it_is_closed_and_gets_the_same_result() {
    // The first call is held up at each of its changes while it writes the end of the log.
    for change in 0.. {
        let disk = FaultIo::new();
        let held = HeldChange::at(change);
        let db = Db::open_with_io(Arc::new(held.io(&disk)), STORE, options()).unwrap();
        fill(&db);
        let (first, second) = (db.clone(), db.clone());
        let was_held = std::thread::scope(|scope| {
            let first = scope.spawn(|| {
                IS_HELD_UP.set(true);
                first.close()
            });
            let was_held = held.held_at(&first).is_some();
            let second = scope.spawn(|| second.close());
            let begun = Instant::now();
            let mut waits = true;
            while was_held && waits && begun.elapsed() < A_WHILE {
                waits = !second.is_finished() && is_locked(&disk);
            }
            held.open();
            assert!(waits, "change {change}: the second close returned early");
            first.join().unwrap().unwrap();
            second.join().unwrap().unwrap();
            was_held
        });
        assert!(open(&disk, &options()).unwrap().recovery().clean_close);
        drop(db);
        if !was_held {
            assert!(change >= 3, "closing makes {change} changes");
            return;
        }
    }
}

#[test]
fn a_store_that_cannot_be_closed_cleanly_says_so_to_everyone_who_closes_it() {
    let disk = FaultIo::new();
    let db = open(&disk, &options()).unwrap();
    db.put(b"key", b"value").unwrap();
    disk.fail_call(disk.calls(), forerun_db::io::fault::Fault::Fail(5));
    let other = db.clone();
    let first = db.close().unwrap_err();
    let second = other.close().unwrap_err();
    assert_eq!(first.to_string(), second.to_string());
    assert_eq!(open(&disk, &options()).unwrap().iter().count(), 1);
}

#[test]
fn the_last_handle_of_any_kind_keeps_the_directory_locked_until_its_operation_ends() {
    let disk = FaultIo::new();
    let held = HeldChange::at(2);
    let io = held.io(&disk);
    let db = Db::open_with_io(Arc::new(io), STORE, options()).unwrap();
    fill(&db);
    let keyspace = db.keyspace("other").unwrap();
    std::thread::scope(|scope| {
        let work = scope.spawn(move || {
            IS_HELD_UP.set(true);
            keyspace.compact()
        });
        assert!(held.held_at(&work).is_some());
        drop(db);
        assert!(is_locked(&disk));
        held.open();
        work.join().unwrap().unwrap();
    });
    assert!(open(&disk, &options()).unwrap().recovery().clean_close);
}

#[test]
fn a_repair_locks_the_directory_once_from_its_first_step_to_its_last() {
    let disk = FaultIo::new();
    // No memtable fills up, so the log holds everything since the flush. The small memtables of the
    // other tests are full after a random number of writes, because the heights of their nodes are
    // random, and then a new log begins.
    let options = options().memtable_bytes(64 << 10);
    let db = open(&disk, &options).unwrap();
    fill(&db);
    for i in 0..20_u8 {
        db.put_with(&[i], b"logged", Durability::Synced).unwrap();
    }
    let io = disk.kill();
    drop(db);
    // A damaged log, so that a repair opens the store and starts a new log. The damage is in the
    // first record, the only one with the key "logged". Recovery would drop a bad record at the end
    // as a write that the kill cut short.
    let files = io.files().into_iter();
    let logs: Vec<_> = files
        .filter(|path| path.extension() == Some("log".as_ref()))
        .collect();
    let mut bytes = io.read(&logs[0]).unwrap();
    bytes[LOG_HEADER_BYTES] ^= 1;
    io.write(&logs[0], &bytes);
    let times_locked = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&times_locked);
    let hooked = HookIo::new(&io, move |change, path| {
        *counted.lock().unwrap() += usize::from(change == Change::Create && path.ends_with("LOCK"));
        Ok(())
    });
    let repaired = repair_with_io(Arc::new(hooked), STORE, &options).unwrap();
    let lost: Vec<_> = repaired.losses.iter().map(|loss| &loss.path).collect();
    assert_eq!(lost, [&logs[0]]);
    // If it were locked more than once, another process could write something in between that the
    // repair would not know of.
    assert_eq!(*times_locked.lock().unwrap(), 1);
    let db = open(&io, &options).unwrap();
    assert_eq!(db.get(b"logged").unwrap(), None);
    for i in 0..20_u8 {
        assert_eq!(db.get([i]).unwrap().as_deref(), Some(&b"logged"[..]));
    }
    assert!(
        io.read(&logs[0]).is_none(),
        "the damaged log is still there"
    );
    db.put(b"more", b"value").unwrap();
}
