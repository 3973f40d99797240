//! A file system that watches how runs are opened and read, and fails on request.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use forerun_db::forward_io;
use forerun_db::io::fault::FaultIo;
use forerun_db::io::{Io, IoFile, OpenMode};

/// The process may not open more files.
const EMFILE: i32 = 24;

/// How long a thread is held at most.
const HOLD_MAX: Duration = Duration::from_secs(60);

/// What happened to runs since [`WatchedIo::reset`]. The store's thread that loads filters is left
/// out.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The names of the threads that opened any.
    pub threads: BTreeSet<String>,
    /// Files that were opened.
    pub opened: u64,
    /// Reads, and their bytes.
    pub reads: u64,
    pub read_bytes: u64,
    /// Reads and openings that failed on request.
    pub failures: u64,
    /// The reads of each file by the thread that loads filters.
    pub loader_reads: BTreeMap<OsString, u64>,
}

#[derive(Debug, Default)]
struct State {
    seen: Seen,
    open: usize,
    open_max: usize,
    /// Reads and openings of files with these names fail.
    failing: BTreeSet<OsString>,
    /// Reads of any file at these offsets fail.
    failing_offsets: BTreeSet<u64>,
    /// How long each read takes.
    pause: Duration,
    /// The most runs that the system opens.
    open_limit: Option<usize>,
    /// Whether the thread that loads filters is held at its next read, and whether it is there.
    holds_loader: bool,
    is_loader_held: bool,
}

/// Passes calls on to a [`FaultIo`].
#[derive(Clone, Debug)]
pub struct WatchedIo {
    inner: FaultIo,
    state: Arc<Mutex<State>>,
    changed: Arc<Condvar>,
}

impl WatchedIo {
    pub fn new(inner: &FaultIo) -> WatchedIo {
        WatchedIo {
            inner: inner.clone(),
            state: Arc::default(),
            changed: Arc::default(),
        }
    }

    pub fn seen(&self) -> Seen {
        self.state.lock().unwrap().seen.clone()
    }

    pub fn reset(&self) {
        let mut state = self.state.lock().unwrap();
        state.seen = Seen::default();
        state.open_max = state.open;
    }

    /// The number of runs that are open now, and the most since the last reset.
    pub fn open_runs(&self) -> (usize, usize) {
        let state = self.state.lock().unwrap();
        (state.open, state.open_max)
    }

    /// Lets reads and openings of files with these names fail.
    pub fn fail(&self, names: &[&OsString]) {
        let names = names.iter().map(|name| (*name).clone());
        self.state.lock().unwrap().failing = names.collect();
    }

    /// Lets reads at these offsets fail.
    pub fn fail_at(&self, offsets: &[u64]) {
        self.state.lock().unwrap().failing_offsets = offsets.iter().copied().collect();
    }

    /// Lets the system open at most this many runs.
    pub fn limit_open(&self, limit: usize) {
        self.state.lock().unwrap().open_limit = Some(limit);
    }

    /// Holds the thread that loads filters at its next read.
    pub fn hold_loader(&self) {
        self.state.lock().unwrap().holds_loader = true;
    }

    pub fn wait_until_loader_is_held(&self) {
        let state = self.state.lock().unwrap();
        let is_free = |state: &mut State| !state.is_loader_held;
        drop(self.changed.wait_while(state, is_free).unwrap());
    }

    pub fn release_loader(&self) {
        self.state.lock().unwrap().holds_loader = false;
        self.changed.notify_all();
    }

    fn before_read(&self, name: &OsString, len: usize, offset: u64) -> io::Result<()> {
        let is_loader = thread::current().name() == Some("forerun-load");
        let mut state = self.state.lock().unwrap();
        if is_loader {
            state.is_loader_held = state.holds_loader;
            self.changed.notify_all();
            let held = |state: &mut State| state.holds_loader;
            // A test that fails ends all the same.
            let waited = self.changed.wait_timeout_while(state, HOLD_MAX, held);
            state = waited.unwrap().0;
            state.is_loader_held = false;
        }
        if state.failing.contains(name) || state.failing_offsets.contains(&offset) {
            state.seen.failures += 1;
            return Err(io::Error::from_raw_os_error(5));
        }
        if is_run(name) && is_loader {
            *state.seen.loader_reads.entry(name.clone()).or_default() += 1;
        } else if is_run(name) {
            state.seen.reads += 1;
            state.seen.read_bytes += len as u64;
        }
        let pause = state.pause;
        drop(state);
        if !pause.is_zero() {
            thread::sleep(pause);
        }
        Ok(())
    }

    pub fn set_pause(&self, pause: Duration) {
        self.state.lock().unwrap().pause = pause;
    }

    fn check(&self, name: &OsString) -> io::Result<()> {
        let mut state = self.state.lock().unwrap();
        if !state.failing.contains(name) {
            return Ok(());
        }
        state.seen.failures += 1;
        Err(io::Error::from_raw_os_error(5))
    }
}

#[derive(Debug)]
struct WatchedFile {
    file: Box<dyn IoFile>,
    name: OsString,
    io: WatchedIo,
}

fn is_run(name: &OsString) -> bool {
    name.to_str().is_some_and(|name| name.ends_with(".run"))
}

impl Drop for WatchedFile {
    fn drop(&mut self) {
        if is_run(&self.name) {
            self.io.state.lock().unwrap().open -= 1;
        }
    }
}

impl Io for WatchedIo {
    forward_io!(this => this.inner; list, create_dir, rename, remove, sync_dir, boot_id);

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn IoFile>> {
        let name = path.file_name().unwrap_or_default().to_owned();
        self.check(&name)?;
        let mut state = self.state.lock().unwrap();
        let is_full = state.open_limit.is_some_and(|limit| state.open >= limit);
        if is_run(&name) && is_full {
            return Err(io::Error::from_raw_os_error(EMFILE));
        }
        let file = self.inner.open(path, mode)?;
        if is_run(&name) {
            state.open += 1;
            state.open_max = state.open_max.max(state.open);
            let thread = thread::current().name().unwrap_or_default().to_owned();
            if thread != "forerun-load" {
                state.seen.opened += 1;
                state.seen.threads.insert(thread);
            }
        }
        drop(state);
        Ok(Box::new(WatchedFile {
            file,
            name,
            io: self.clone(),
        }))
    }
}

impl IoFile for WatchedFile {
    forward_io!(this => this.file; openings, write_at, len, set_len, sync, try_lock);

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.io.before_read(&self.name, buffer.len(), offset)?;
        self.file.read_at(buffer, offset)
    }

    fn read_cached_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.io.before_read(&self.name, buffer.len(), offset)?;
        self.file.read_cached_at(buffer, offset)
    }
}
