//! The file system of a simulation. It is in memory, fails and fills up as planned by the program,
//! stops when the machine crashes, and counts open files.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forerun_db::io::fault::{Fault, FaultIo};
use forerun_db::io::{Io, IoFile, OpenMode};

use super::program::{CallFilter, FaultKind, PlannedFault};
use super::runtime;
use super::wall_clock::WallClock;

/// One read in this many returns half of the requested bytes, as reads may.
const SHORT_ONE_IN: u64 = 7;
/// A signal interrupts one read in this many before it reads anything.
const INTERRUPTED_ONE_IN: u64 = 31;

/// More calls than any simulation makes.
const OUTAGE: u32 = u32::MAX;

/// A machine with its disk. Clones share it.
#[derive(Clone, Debug)]
pub struct SimIo {
    disk: FaultIo,
    clock: Arc<WallClock>,
    /// How long a sync of a file takes.
    sync_time: Duration,
    state: Arc<FaultState>,
}

#[derive(Debug, Default)]
struct FaultState {
    is_crashed: AtomicBool,
    /// Calls that the disk failed since faults were last planned.
    failures: Mutex<Vec<Failure>>,
    calls: AtomicU64,
    open: AtomicU64,
    open_runs: AtomicU64,
    plan: Mutex<Plan>,
}

#[derive(Debug, Default)]
struct Plan {
    waiting: Vec<PlannedFault>,
    /// Kinds of calls that fail, how many more of them fail, and how.
    failing: Vec<(CallFilter, u32, Fault)>,
    /// The disk is full for this many more calls.
    full: u32,
    crashes_at: Option<u64>,
    /// How many of the planned faults happened.
    happened: u64,
}

/// A call that the disk failed.
#[derive(Clone, Debug)]
struct Failure {
    kind: CallKind,
    path: PathBuf,
    errno: i32,
}

/// The kind of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallKind {
    Read,
    Write,
    Sync,
    Directory,
}

impl CallKind {
    /// Whether a failed call of this kind can make an operation fail. `op` is the operation's name
    /// in an error.
    fn may_fail(self, op: &str) -> bool {
        match op {
            "read" | "list" | "copy" => self == CallKind::Read,
            "open" => matches!(self, CallKind::Read | CallKind::Directory),
            "write" | "cut" => self == CallKind::Write,
            // The sync of a file, or of a directory.
            "sync" => matches!(self, CallKind::Sync | CallKind::Directory),
            "create" | "rename" | "remove" | "link" | "lock" => self == CallKind::Directory,
            _ => false,
        }
    }
}

impl SimIo {
    pub fn new(disk: FaultIo, clock: Arc<WallClock>, sync_time: Duration) -> SimIo {
        SimIo {
            disk,
            clock,
            sync_time,
            state: Arc::default(),
        }
    }

    /// The machine as found after the process crashed.
    pub fn after_kill(&self) -> SimIo {
        self.die();
        self.with_disk(self.disk.kill())
    }

    /// The machine as found after a loss of power.
    pub fn after_power_loss(&self, seed: u64) -> SimIo {
        self.die();
        self.with_disk(self.disk.crash(seed))
    }

    fn with_disk(&self, disk: FaultIo) -> SimIo {
        SimIo::new(disk, Arc::clone(&self.clock), self.sync_time)
    }

    /// The disk, for examining its files.
    pub fn disk(&self) -> &FaultIo {
        &self.disk
    }

    /// Kills the process now: its calls have no effect from here on.
    pub fn die(&self) {
        if !self.state.is_crashed.swap(true, SeqCst) {
            self.disk.fail_call(self.disk.calls(), Fault::PowerLoss);
            // This call fails, as planned, and so does every call after it.
            let _ = self.disk.list("/".as_ref());
        }
    }

    pub fn is_crashed(&self) -> bool {
        self.state.is_crashed.load(SeqCst)
    }

    /// Whether the disk failed a call since faults were last planned.
    pub fn has_failed(&self) -> bool {
        self.is_crashed() || !self.failures().is_empty()
    }

    /// Whether the disk returned this error for this file or directory during the operation `op`.
    pub fn explains(&self, op: &str, path: &Path, error: &io::Error) -> bool {
        let is_it = |of: &Failure| {
            Some(of.errno) == error.raw_os_error()
                && of.path.as_path() == path
                && of.kind.may_fail(op)
        };
        self.failures().iter().any(is_it)
    }

    /// Whether a failed write of a segment of the log could not be undone either.
    pub fn is_undoing_failed(&self, segment: &Path) -> bool {
        let is_it = |of: &&Failure| {
            of.path == segment && matches!(of.kind, CallKind::Write | CallKind::Sync)
        };
        self.failures().iter().filter(is_it).count() > 1
    }

    fn failures(&self) -> MutexGuard<'_, Vec<Failure>> {
        let failures = self.state.failures.lock();
        failures.unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the disk's answer to a call if it is a failure. Only faults have an error number.
    fn record_failure<T>(
        &self,
        kind: CallKind,
        path: &Path,
        answer: io::Result<T>,
    ) -> io::Result<T> {
        if let Err(error) = &answer
            && let Some(errno) = error.raw_os_error()
        {
            self.failures().push(Failure {
                kind,
                path: path.to_owned(),
                errno,
            });
        }
        answer
    }

    /// The number of calls so far.
    pub fn calls(&self) -> u64 {
        self.state.calls.load(SeqCst)
    }

    /// The number of open files, and of those that are runs of a store.
    pub fn open_files(&self) -> (u64, u64) {
        let FaultState {
            open, open_runs, ..
        } = &*self.state;
        (open.load(SeqCst), open_runs.load(SeqCst))
    }

    /// Plans what goes wrong, counted from now.
    pub fn plan(&self, faults: &[PlannedFault], dies_after: Option<u64>) {
        let now = self.calls();
        let mut plan = self.lock();
        plan.waiting = faults
            .iter()
            .map(|planned| PlannedFault {
                at: planned.at + now,
                ..*planned
            })
            .collect();
        plan.crashes_at = dies_after.map(|after| after + now);
        self.failures().clear();
    }

    /// Makes calls fail from now on.
    pub fn fail(&self, kind: FaultKind) {
        let mut plan = self.lock();
        plan.happened += 1;
        self.begin(&mut plan, kind);
    }

    /// Makes all writes of the manifest fail until [`end_outage`](Self::end_outage).
    pub fn begin_outage(&self) {
        let fault = Fault::Fail(forerun_db::io::fault::ENOSPC);
        self.lock()
            .failing
            .push((CallFilter::Manifest, OUTAGE, fault));
    }

    pub fn end_outage(&self) {
        let is_planned = |(_, count, _): &(CallFilter, u32, Fault)| *count < OUTAGE / 2;
        self.lock().failing.retain(is_planned);
    }

    /// Cancels all planned faults. Returns how many happened.
    pub fn end_faults(&self) -> u64 {
        let mut plan = self.lock();
        self.disk.set_capacity_bytes(None);
        let happened = plan.happened;
        *plan = Plan::default();
        happened
    }

    fn lock(&self) -> MutexGuard<'_, Plan> {
        self.state
            .plan
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a call and applies the faults that are planned for it.
    fn enter(&self, kind: CallKind, path: &Path) {
        runtime::point();
        let call = self.state.calls.fetch_add(1, SeqCst);
        let mut plan = self.lock();
        if plan.full > 0 {
            plan.full -= 1;
            if plan.full == 0 {
                self.disk.set_capacity_bytes(None);
            }
        }
        if plan.crashes_at == Some(call) && !self.is_crashed() {
            // This call is the last one, and a write takes half of its bytes.
            self.state.is_crashed.store(true, SeqCst);
            self.disk.fail_call(self.disk.calls(), Fault::PowerLoss);
            return;
        }
        let due: Vec<PlannedFault> = plan
            .waiting
            .extract_if(.., |planned| planned.at <= call)
            .collect();
        for planned in due {
            plan.happened += 1;
            self.begin(&mut plan, planned.kind);
        }
        let meets = |(calls, _, fault): &(CallFilter, u32, Fault)| {
            let is_write = kind == CallKind::Write;
            calls.covers(kind, path) && (is_write || matches!(fault, Fault::Fail(_)))
        };
        if let Some(index) = plan.failing.iter().position(meets) {
            let (_, count, fault) = &mut plan.failing[index];
            let fault = *fault;
            *count -= 1;
            if *count == 0 {
                plan.failing.remove(index);
            }
            self.disk.fail_call(self.disk.calls(), fault);
        }
    }

    fn begin(&self, plan: &mut Plan, kind: FaultKind) {
        match kind {
            FaultKind::Fail {
                calls,
                count,
                errno,
            } => plan.failing.push((calls, count, Fault::Fail(errno))),
            FaultKind::ShortWrite => plan
                .failing
                .push((CallFilter::Writes, 1, Fault::ShortWrite)),
            FaultKind::TornWrite => {
                let fault = Fault::TornWrite(forerun_db::io::fault::EIO);
                plan.failing.push((CallFilter::Writes, 1, fault));
            }
            FaultKind::Full { count } => {
                let used_bytes = self.disk.used_bytes();
                self.disk.set_capacity_bytes(Some(used_bytes + 100));
                plan.full = count;
            }
            FaultKind::ClockBack { seconds } => {
                self.clock
                    .set_back(runtime::last_elapsed(), u64::from(seconds));
            }
            // Comparators count their own calls.
            FaultKind::Panic { .. } => {}
        }
    }
}

impl CallFilter {
    fn covers(self, kind: CallKind, path: &Path) -> bool {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        match self {
            CallFilter::Any => true,
            CallFilter::Reads => kind == CallKind::Read,
            CallFilter::Writes => kind == CallKind::Write,
            CallFilter::Syncs => kind == CallKind::Sync,
            CallFilter::LogSyncs => kind == CallKind::Sync && name.ends_with(".log"),
            CallFilter::Directory => kind == CallKind::Directory,
            CallFilter::Manifest => name.starts_with("MANIFEST"),
            CallFilter::Log => name.ends_with(".log") && kind != CallKind::Read,
            CallFilter::Runs => name.ends_with(".run") && kind != CallKind::Read,
        }
    }
}

impl Io for SimIo {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn IoFile>> {
        let kind = match mode {
            OpenMode::Create | OpenMode::CreateEmpty => CallKind::Directory,
            _ => CallKind::Read,
        };
        self.enter(kind, path);
        let file = self.record_failure(kind, path, self.disk.open(path, mode))?;
        let is_run = mode == OpenMode::ReadImmutable;
        self.state.open.fetch_add(1, SeqCst);
        self.state.open_runs.fetch_add(u64::from(is_run), SeqCst);
        Ok(Box::new(SimFile {
            file,
            path: path.to_owned(),
            io: self.clone(),
            is_run,
        }))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<OsString>> {
        self.enter(CallKind::Read, dir);
        let mut names = self.record_failure(CallKind::Read, dir, self.disk.list(dir))?;
        // Directory entries have no fixed order.
        let calls = self.calls() as usize;
        let len = names.len();
        names.rotate_left(calls.checked_rem(len).unwrap_or(0));
        if calls % 2 == 1 {
            names.reverse();
        }
        Ok(names)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.enter(CallKind::Directory, path);
        self.record_failure(CallKind::Directory, path, self.disk.create_dir(path))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.enter(CallKind::Directory, to);
        let renamed = self.record_failure(CallKind::Directory, from, self.disk.rename(from, to));
        self.record_failure(CallKind::Directory, to, renamed)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.enter(CallKind::Directory, path);
        self.record_failure(CallKind::Directory, path, self.disk.remove(path))
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.enter(CallKind::Directory, to);
        let linked = self.record_failure(CallKind::Directory, from, self.disk.link(from, to));
        self.record_failure(CallKind::Directory, to, linked)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.enter(CallKind::Directory, dir);
        self.record_failure(CallKind::Directory, dir, self.disk.sync_dir(dir))
    }

    fn boot_id(&self) -> Option<u128> {
        self.disk.boot_id()
    }

    fn free_bytes(&self, dir: &Path) -> io::Result<Option<u64>> {
        self.enter(CallKind::Read, dir);
        self.record_failure(CallKind::Read, dir, self.disk.free_bytes(dir))
    }

    fn unix_time_s(&self) -> u64 {
        self.clock.at(runtime::elapsed())
    }
}

#[derive(Debug)]
struct SimFile {
    file: Box<dyn IoFile>,
    path: PathBuf,
    io: SimIo,
    is_run: bool,
}

impl SimFile {
    /// A read, which may be interrupted or short.
    fn read(
        &self,
        buffer: &mut [u8],
        read: impl FnOnce(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        self.io.enter(CallKind::Read, &self.path);
        let calls = self.io.calls();
        if calls.is_multiple_of(INTERRUPTED_ONE_IN) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let short = buffer.len().div_ceil(2);
        let read = if calls.is_multiple_of(SHORT_ONE_IN) {
            read(&mut buffer[..short])
        } else {
            read(buffer)
        };
        self.io.record_failure(CallKind::Read, &self.path, read)
    }
}

impl IoFile for SimFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.read(buffer, |buffer| self.file.read_at(buffer, offset))
    }

    fn read_cached_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.read(buffer, |buffer| self.file.read_cached_at(buffer, offset))
    }

    fn read_once_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.read(buffer, |buffer| self.file.read_once_at(buffer, offset))
    }

    fn invalidate_cache(&self) -> io::Result<()> {
        self.io.enter(CallKind::Read, &self.path);
        let dropped = self.file.invalidate_cache();
        self.io.record_failure(CallKind::Read, &self.path, dropped)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        self.io.enter(CallKind::Write, &self.path);
        self.io.record_failure(
            CallKind::Write,
            &self.path,
            self.file.write_at(bytes, offset),
        )
    }

    fn len(&self) -> io::Result<u64> {
        self.io.enter(CallKind::Read, &self.path);
        self.io
            .record_failure(CallKind::Read, &self.path, self.file.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.io.enter(CallKind::Write, &self.path);
        self.io
            .record_failure(CallKind::Write, &self.path, self.file.set_len(len))
    }

    fn sync(&self) -> io::Result<()> {
        // Sleep first: a fault that is already planned must hit this call, not one of a thread that
        // runs during the sleep.
        if !self.io.sync_time.is_zero() {
            runtime::sleep(self.io.sync_time);
        }
        self.io.enter(CallKind::Sync, &self.path);
        self.io
            .record_failure(CallKind::Sync, &self.path, self.file.sync())
    }

    fn try_lock(&self) -> io::Result<bool> {
        self.io.enter(CallKind::Directory, &self.path);
        self.io
            .record_failure(CallKind::Directory, &self.path, self.file.try_lock())
    }

    fn try_lock_shared(&self) -> io::Result<bool> {
        self.io.enter(CallKind::Directory, &self.path);
        self.io
            .record_failure(CallKind::Directory, &self.path, self.file.try_lock_shared())
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        self.io.state.open.fetch_sub(1, SeqCst);
        self.io
            .state
            .open_runs
            .fetch_sub(u64::from(self.is_run), SeqCst);
    }
}
