//! A file system that watches how runs are opened and read, and fails on request.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use forerun_db::io::fault::FaultIo;
use forerun_db::io::{Io, IoFile, OpenMode};

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
    /// How long each read takes.
    pause: Duration,
}

/// Passes calls on to a [`FaultIo`].
#[derive(Clone, Debug)]
pub struct WatchedIo {
    inner: FaultIo,
    state: Arc<Mutex<State>>,
}

impl WatchedIo {
    pub fn new(inner: &FaultIo) -> WatchedIo {
        WatchedIo {
            inner: inner.clone(),
            state: Arc::default(),
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
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn IoFile>> {
        let name = path.file_name().unwrap_or_default().to_owned();
        self.check(&name)?;
        let file = self.inner.open(path, mode)?;
        if is_run(&name) {
            let mut state = self.state.lock().unwrap();
            state.open += 1;
            state.open_max = state.open_max.max(state.open);
            let thread = thread::current().name().unwrap_or_default().to_owned();
            if thread != "forerun-load" {
                state.seen.opened += 1;
                state.seen.threads.insert(thread);
            }
        }
        Ok(Box::new(WatchedFile {
            file,
            name,
            io: self.clone(),
        }))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<OsString>> {
        self.inner.list(dir)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.inner.create_dir(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.inner.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.inner.remove(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.inner.sync_dir(dir)
    }

    fn boot_id(&self) -> Option<u128> {
        self.inner.boot_id()
    }
}

impl IoFile for WatchedFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.io.check(&self.name)?;
        let mut state = self.io.state.lock().unwrap();
        let pause = state.pause;
        if is_run(&self.name) {
            if thread::current().name() == Some("forerun-load") {
                *state
                    .seen
                    .loader_reads
                    .entry(self.name.clone())
                    .or_default() += 1;
            } else {
                state.seen.reads += 1;
                state.seen.read_bytes += buffer.len() as u64;
            }
        }
        drop(state);
        if !pause.is_zero() {
            thread::sleep(pause);
        }
        self.file.read_at(buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        self.file.write_at(bytes, offset)
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }

    fn try_lock(&self) -> io::Result<bool> {
        self.file.try_lock()
    }
}
