//! The state that all threads of a simulation share: the machine, the open store, the number of
//! durable writes, and the finding.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forerun_db::io::fault::FaultIo;
use forerun_db::{Db, Error, Keyspace, Options, Recovery, WalMode};

use super::active_readers::ActiveReaders;
use super::draw::{THREADS, shared_name};
use super::entries::{KeyspaceId, KeyspaceRules};
use super::faults::SimIo;
use super::key_order::{KeyOrder, PLANNED_PANIC, Panics};
use super::program::{KeyspaceShape, Program, StoreShape};
use super::read_only::ReadOnlyContents;
use super::runtime;
use super::stamps::Stamps;
use super::wall_clock::{Span, WallClock};

/// The directory of the store.
pub const STORE: &str = "/store";

/// Why a thread stops.
#[derive(Clone, Debug)]
pub enum Stop {
    /// The process crashed.
    Crashed,
    /// The store broke one of its guarantees.
    Violation(String),
}

pub type Outcome<T = ()> = Result<T, Stop>;

/// A [`Stop::Violation`] with this text.
pub fn violation<T>(text: impl Into<String>) -> Outcome<T> {
    Err(Stop::Violation(text.into()))
}

/// One opening of the store.
pub struct Opened {
    pub db: Db,
    /// The shared keyspaces, the store's own first.
    pub keyspaces: Vec<Keyspace>,
    /// The number of this opening.
    pub number: u64,
    /// Whether a thread has begun to close it.
    pub is_closing: AtomicBool,
    /// Whether it has refused a write as poisoned.
    pub refuses_writes: AtomicBool,
}

impl Opened {
    /// A copy of the store.
    pub fn of_copy(db: Db, keyspaces: Vec<Keyspace>) -> Opened {
        Opened {
            db,
            keyspaces,
            number: 0,
            is_closing: AtomicBool::new(false),
            refuses_writes: AtomicBool::new(false),
        }
    }
}

/// The first of a thread's writes that may be missing, by how the store ended.
#[derive(Clone, Copy, Debug, Default)]
pub struct Floor {
    /// After the process crashed.
    pub killed: usize,
    /// After the power was lost.
    pub power_lost: usize,
}

/// How the last incarnation of the store ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IncarnationEnd {
    /// It was closed, or the process crashed: everything that it wrote is there.
    Kept,
    /// The power was lost.
    PowerLost,
}

impl Floor {
    /// The number of writes that are certainly there after this end.
    pub fn after(self, ended: IncarnationEnd) -> usize {
        match ended {
            IncarnationEnd::Kept => self.killed,
            IncarnationEnd::PowerLost => self.power_lost,
        }
    }
}

pub struct Simulation {
    pub program: Program,
    pub panics: Panics,
    options: Mutex<Options>,
    /// Whether the store was closed without an error, and not opened since.
    pub is_closed: AtomicBool,
    pub stamps: Stamps,
    pub readers: ActiveReaders,
    pub counts: Counts,
    pub clock: Arc<WallClock>,
    /// The contents that the last read-only opening read, unless the store was opened since.
    pub seen: Mutex<Option<ReadOnlyContents>>,
    io: Mutex<SimIo>,
    store: Mutex<Option<Arc<Opened>>>,
    openings: AtomicU64,
    /// How many writes of each thread were acknowledged, and by which opening of the store.
    acknowledged: Mutex<[(u64, usize); THREADS]>,
    floors: Mutex<[Floor; THREADS]>,
    /// The opening of the store in which each shared keyspace got its beacon, a key that is never
    /// deleted.
    beacons: Mutex<BTreeMap<KeyspaceId, u64>>,
    finding: Mutex<Option<String>>,
    trace: Option<Mutex<Vec<String>>>,
}

/// The totals of a simulation.
#[derive(Debug, Default)]
pub struct Counts {
    pub operations: AtomicU64,
    pub faults: AtomicU64,
    pub crashes: AtomicU64,
}

/// How many writes of each thread were acknowledged at a moment.
pub type AcknowledgedWrites = [usize; THREADS];

impl Simulation {
    pub fn new(program: Program, is_traced: bool) -> Simulation {
        let panics = Panics::default();
        let disk = FaultIo::new();
        disk.set_links(program.store.has_links);
        disk.set_forgetful(program.store.is_forgetful);
        disk.set_cached_percent(program.store.cached_percent);
        let clock = Arc::new(WallClock::default());
        let sync_time = Duration::from_micros(program.store.sync_us);
        Simulation {
            options: Mutex::new(program.store.options(&panics)),
            is_closed: AtomicBool::new(false),
            panics,
            stamps: Stamps::default(),
            readers: ActiveReaders::default(),
            counts: Counts::default(),
            io: Mutex::new(SimIo::new(disk, Arc::clone(&clock), sync_time)),
            clock,
            seen: Mutex::default(),
            store: Mutex::new(None),
            openings: AtomicU64::new(0),
            acknowledged: Mutex::default(),
            floors: Mutex::default(),
            beacons: Mutex::default(),
            finding: Mutex::new(None),
            trace: is_traced.then(Mutex::default),
            program,
        }
    }

    /// The current machine.
    pub fn io(&self) -> SimIo {
        lock(&self.io).clone()
    }

    /// Replaces a crashed machine by another one.
    pub fn set_io(&self, io: SimIo) {
        *lock(&self.io) = io;
    }

    /// The options of the current incarnation.
    pub fn options(&self) -> Options {
        lock(&self.options).clone()
    }

    /// Sets the options with which the store is opened from now on.
    pub fn set_options(&self, store: &StoreShape, recovery: Recovery) {
        *lock(&self.options) = store.options(&self.panics).recovery(recovery);
    }

    /// The open store, if there is one.
    pub fn store(&self) -> Option<Arc<Opened>> {
        lock(&self.store).clone()
    }

    pub fn set_store(&self, opened: Option<Arc<Opened>>) -> Option<Arc<Opened>> {
        std::mem::replace(&mut *lock(&self.store), opened)
    }

    /// Opens the store with its shared keyspaces. Planned failures are retried.
    ///
    /// # Errors
    /// [`Stop::Violation`]; [`Stop::Crashed`].
    pub fn open(&self) -> Outcome<Arc<Opened>> {
        // More than the calls that can fail: each of a few faults lasts for up to 50.
        const TRIES: usize = 1000;
        let io = self.io();
        for _ in 0..TRIES {
            match self.try_open(&io) {
                Ok(opened) => {
                    self.is_closed.store(false, SeqCst);
                    return match opened.db.recovery().skipped.first() {
                        None => Ok(opened),
                        Some(range) => violation(format!("the log has damage: {range:?}")),
                    };
                }
                Err(_) if io.is_crashed() => return Err(Stop::Crashed),
                // Another thread may be testing whether the store can be opened twice.
                Err(Error::Locked { .. }) => {}
                Err(error) => self.allow(&error, None, "open the store")?,
            }
            runtime::sleep(Duration::from_millis(10));
        }
        violation("the store cannot be opened, although the faults ended long ago")
    }

    fn try_open(&self, io: &SimIo) -> forerun_db::Result<Arc<Opened>> {
        let db = Db::open_with_io(Arc::new(io.clone()), STORE, self.options())?;
        let mut keyspaces = vec![db.default_keyspace()];
        for number in 1..self.program.store.keyspaces.len() {
            keyspaces.push(db.keyspace(&shared_name(number))?);
        }
        Ok(Arc::new(Opened {
            db,
            keyspaces,
            number: self.openings.fetch_add(1, SeqCst) + 1,
            is_closing: AtomicBool::new(false),
            refuses_writes: AtomicBool::new(false),
        }))
    }

    /// Checks that an error is an allowed one.
    ///
    /// # Errors
    /// [`Stop::Violation`] if it is not; [`Stop::Crashed`] if the process crashed.
    pub fn allow(&self, error: &Error, opened: Option<&Opened>, doing: &str) -> Outcome {
        let io = self.io();
        if io.is_crashed() {
            return Err(Stop::Crashed);
        }
        let is_closing = opened.is_some_and(|opened| opened.is_closing.load(SeqCst));
        if let (Error::Poisoned { .. }, Some(opened)) = (error, opened) {
            opened.refuses_writes.store(true, SeqCst);
        }
        if self.is_allowed(error, is_closing, &io) {
            Ok(())
        } else {
            violation(format!("cannot {doing}: {error}"))
        }
    }

    fn is_allowed(&self, error: &Error, is_closing: bool, io: &SimIo) -> bool {
        match error {
            // The next opening has deleted this run.
            Error::Io { path, cause, .. } if cause.kind() == ErrorKind::NotFound => {
                is_closing && path.extension().is_some_and(|of| of == "run")
            }
            Error::Io { op, path, cause } => io.explains(op, path, cause),
            Error::Closed => is_closing,
            Error::ForeignKeyspace { .. } => is_closing,
            Error::Panicked { message, .. } => message == PLANNED_PANIC,
            Error::Poisoned { cause } => {
                may_poison(cause, io) && self.is_allowed(cause, is_closing, io)
            }
            Error::CompactionFailed { cause, .. } | Error::KeyspaceStopped { cause, .. } => {
                self.is_allowed(cause, is_closing, io)
            }
            _ => false,
        }
    }

    /// The current time, as the beginning of a span.
    pub fn begin(&self) -> Span {
        let now = runtime::elapsed();
        Span {
            start: now,
            end: now,
        }
    }

    /// The span from `start` to now.
    pub fn end(&self, start: Span) -> Span {
        Span {
            start: start.start,
            end: runtime::elapsed(),
        }
    }

    /// How many writes of each thread this opening of the store has acknowledged.
    pub fn acknowledged_writes(&self, opening: u64) -> AcknowledgedWrites {
        let of_opening = |(of, writes): (u64, usize)| if of == opening { writes } else { 0 };
        lock(&self.acknowledged).map(of_opening)
    }

    /// Records that a thread's writes were acknowledged up to a number.
    pub fn acknowledge(&self, thread: usize, opening: u64, writes: usize) {
        lock(&self.acknowledged)[thread] = (opening, writes);
        if self.program.store.wal == WalMode::On {
            lock(&self.floors)[thread].killed = writes;
        }
    }

    /// Records that everything up to these counts is on stable storage.
    pub fn mark_durable(&self, acknowledged: &AcknowledgedWrites) {
        for (floor, mark) in lock(&self.floors).iter_mut().zip(acknowledged) {
            floor.killed = floor.killed.max(*mark);
            floor.power_lost = floor.power_lost.max(*mark);
        }
    }

    /// Records which of a thread's writes an opening found.
    pub fn resolved(&self, thread: usize, opening: u64, writes: usize, ended: IncarnationEnd) {
        lock(&self.acknowledged)[thread] = (opening, writes);
        let floor = &mut lock(&self.floors)[thread];
        floor.power_lost = match ended {
            IncarnationEnd::PowerLost => writes,
            IncarnationEnd::Kept => floor.power_lost.min(writes),
        };
        floor.killed = match (ended, self.keeps_all()) {
            (IncarnationEnd::PowerLost, _) | (_, true) => writes,
            (IncarnationEnd::Kept, false) => floor.killed.min(writes),
        };
    }

    pub fn floor(&self, thread: usize) -> Floor {
        lock(&self.floors)[thread]
    }

    /// Records what is wrong. Only the first violation counts: others may follow from it.
    pub fn report(&self, finding: String) {
        self.note(|| format!("found: {finding}"));
        lock(&self.finding).get_or_insert(finding);
    }

    pub fn finding(&self) -> Option<String> {
        lock(&self.finding).clone()
    }

    pub fn is_over(&self) -> bool {
        lock(&self.finding).is_some()
    }

    /// Adds a line to the history, if one is kept.
    pub fn note(&self, line: impl FnOnce() -> String) {
        if let Some(trace) = &self.trace {
            let at = runtime::last_elapsed();
            lock(trace).push(format!("{:>9.3} {}", at.as_secs_f64(), line()));
        }
    }

    pub fn take_trace(&self) -> Vec<String> {
        let trace = self.trace.as_ref();
        trace.map_or_else(Vec::new, |trace| std::mem::take(&mut *lock(trace)))
    }

    /// Records that a keyspace has its beacon.
    pub fn note_beacon(&self, keyspace_id: KeyspaceId, opening: u64) {
        lock(&self.beacons).insert(keyspace_id, opening);
    }

    /// Whether every reader of this opening finds the beacon of a keyspace from now on.
    pub fn has_beacon(&self, keyspace_id: KeyspaceId, opening: u64) -> bool {
        lock(&self.beacons).get(&keyspace_id) == Some(&opening)
    }

    /// The shared keyspaces that have stamps: those whose entries do not expire.
    pub fn stamped_keyspaces(&self) -> Vec<KeyspaceId> {
        let keyspaces = self.program.store.keyspaces.iter().enumerate();
        let stay = keyspaces.filter(|(_, keyspace)| keyspace.ttl_s.is_none());
        stay.map(|(number, _)| number as KeyspaceId).collect()
    }

    /// Whether all acknowledged writes survive a close and the crash of the process.
    pub fn keeps_all(&self) -> bool {
        self.program.store.wal == WalMode::On
    }

    pub fn count_operation(&self) {
        self.counts.operations.fetch_add(1, SeqCst);
    }

    fn shape(&self, keyspace_id: KeyspaceId) -> &KeyspaceShape {
        let store = &self.program.store;
        store
            .keyspaces
            .get(keyspace_id as usize)
            .unwrap_or(&store.private)
    }

    /// The names of the files in a directory.
    pub fn files_in(&self, dir: &Path) -> Vec<String> {
        let files = self.io().disk().files();
        let files = files.iter().filter(|path| path.parent() == Some(dir));
        let names = files.filter_map(|path| path.file_name()?.to_str().map(str::to_owned));
        names.collect()
    }
}

impl KeyspaceRules for Simulation {
    fn order(&self, keyspace_id: KeyspaceId) -> KeyOrder {
        self.shape(keyspace_id).order
    }

    fn ttl_s(&self, keyspace_id: KeyspaceId) -> Option<u64> {
        self.shape(keyspace_id).ttl_s
    }

    fn clock(&self) -> &WallClock {
        &self.clock
    }

    fn clock_may_go_back(&self) -> bool {
        self.program.sets_clock_back()
    }
}

/// Whether a failure may stop all writes: a panic, or a failure that leaves the log's content
/// unknown.
fn may_poison(cause: &Error, io: &SimIo) -> bool {
    match cause {
        Error::Panicked { .. } => true,
        Error::Io { op, path, .. } => match (*op, path.extension().is_some_and(|of| of == "log")) {
            ("sync", is_log) => is_log || path.extension().is_none(),
            ("write", true) => io.is_undoing_failed(path),
            _ => false,
        },
        _ => false,
    }
}

/// Locks a mutex. A poisoned lock is still consistent, since no thread can panic in the middle of a
/// change.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
