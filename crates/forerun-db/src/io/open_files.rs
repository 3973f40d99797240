//! A limit on the number of open files: RocksDB's table cache, below the code that reads.
//!
//! ```text
//!   run ──> ImmutableFile ──> entry: path, [ open file ]          reopened when a read finds it closed
//!                               ^
//!   clock   entry ─> entry ─> entry ─> …   one for each open file; evicts the first not used lately
//! ```
//!
//! A file that is opened as [`OpenMode::ReadImmutable`] may be closed between two reads and
//! reopened, because its name leads to the same bytes while anyone holds the run: a run's file is
//! removed after its last reference is dropped. A read in progress keeps the file open with a
//! reference count of its own, so it always reads the file that it began to read. Only a read of a
//! page that is not in memory comes here, and it takes one uncontended lock.
//!
//! Locks are taken in the order entry, clock. A thread that sweeps the clock only tries the locks
//! of entries.

use forerun_core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forerun_core::sync::{Mutex, MutexGuard, PoisonError};
use rustix::io::Errno;

use super::{Io, IoFile, OpenMode};

/// A file system that keeps a bounded number of immutable files open. It opens all other files
/// directly.
#[derive(Clone, Debug)]
pub(crate) struct OpenFiles(Arc<Files>);

#[derive(Debug)]
struct Files {
    io: Arc<dyn Io>,
    limit: usize,
    /// How immutable files are opened.
    mode: OpenMode,
    clock: Mutex<Clock>,
    /// Whether more files are open than the limit allows, because all were being read at some
    /// moment. Relaxed throughout: a hint.
    is_over: AtomicBool,
}

#[derive(Debug, Default)]
struct Clock {
    /// The entries whose file is open, in the order in which the clock visits them.
    entries: VecDeque<Arc<Entry>>,
    /// Files that are about to be opened; slots are reserved for them.
    opening: usize,
}

#[derive(Debug)]
struct Entry {
    path: PathBuf,
    file: Mutex<Option<Arc<dyn IoFile>>>,
    /// Whether it was read since the clock's last visit. Relaxed throughout: a hint.
    is_used: AtomicBool,
    /// How often it has been opened, by this or by the file system's own handle.
    openings: AtomicU64,
    /// What the file system's handle said last: 0 if it does not know.
    inner_openings: AtomicU64,
}

/// A file that is opened when it is needed.
#[derive(Debug)]
struct ImmutableFile {
    files: Arc<Files>,
    entry: Arc<Entry>,
}

/// The share of the process's file limit that a store uses by default, and the bounds of the
/// result.
const SHARE: u64 = 2;
const FILES_MIN: u64 = 16;
const FILES_MAX: u64 = 1 << 16;

/// How many run files a store keeps open by default: half of the files that the process may open.
pub(crate) fn default_limit() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    (limit.unwrap_or(u64::MAX) / SHARE).clamp(FILES_MIN, FILES_MAX) as usize
}

impl OpenFiles {
    /// Keeps at most this many immutable files of `io` open at a time, plus those that are being
    /// read.
    pub(crate) fn new(io: Arc<dyn Io>, limit: usize) -> OpenFiles {
        OpenFiles::with_mode(io, limit, OpenMode::ReadImmutable)
    }

    /// [`new`](Self::new) that reads immutable files past the memory of the system.
    pub(crate) fn direct(io: Arc<dyn Io>, limit: usize) -> OpenFiles {
        OpenFiles::with_mode(io, limit, OpenMode::ReadDirect)
    }

    fn with_mode(io: Arc<dyn Io>, limit: usize, mode: OpenMode) -> OpenFiles {
        OpenFiles(Arc::new(Files {
            io,
            limit: limit.max(1),
            mode,
            clock: Mutex::default(),
            is_over: AtomicBool::new(false),
        }))
    }
}

impl Files {
    fn clock(&self) -> MutexGuard<'_, Clock> {
        // Nothing under the lock can panic in the middle of a change.
        self.clock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a file. If the system has no descriptor left, closes open files that are not in use.
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn IoFile>> {
        loop {
            match self.io.open(path, mode) {
                Err(error) if is_out_of_files(&error) => {
                    let closed = self.clock().close_one();
                    if closed.is_none() {
                        return Err(error);
                    }
                }
                opened => return opened,
            }
        }
    }

    /// Opens an entry's file. The caller holds the entry's lock.
    fn open_entry(&self, entry: &Arc<Entry>) -> io::Result<Arc<dyn IoFile>> {
        let mut clock = self.clock();
        let mut closed = Vec::new();
        while clock.entries.len() + clock.opening >= self.limit
            && let Some(file) = clock.close_one()
        {
            closed.push(file);
        }
        clock.opening += 1;
        drop(clock);
        // Closing makes a system call.
        drop(closed);
        let opened = self.open(&entry.path, self.mode);
        let mut clock = self.clock();
        clock.opening -= 1;
        if opened.is_ok() {
            clock.entries.push_back(Arc::clone(entry));
        }
        if clock.entries.len() > self.limit {
            self.is_over.store(true, Ordering::Relaxed);
        }
        drop(clock);
        opened.map(Arc::from)
    }

    /// Called after a read: closes files beyond the limit that are no longer being read.
    #[inline]
    fn after_read(&self) {
        if self.is_over.load(Ordering::Relaxed) {
            self.close_surplus();
        }
    }

    #[cold]
    fn close_surplus(&self) {
        let mut closed = Vec::new();
        let mut clock = self.clock();
        while clock.entries.len() > self.limit
            && let Some(file) = clock.close_one()
        {
            closed.push(file);
        }
        let is_over = clock.entries.len() > self.limit;
        self.is_over.store(is_over, Ordering::Relaxed);
        drop(clock);
        // Closing makes a system call.
        drop(closed);
    }
}

impl Clock {
    /// Removes a file that was not read since the clock's last visit and is not being read. `None`:
    /// there is none.
    fn close_one(&mut self) -> Option<Arc<dyn IoFile>> {
        // Two rounds, because the first one clears the marks.
        for _ in 0..2 * self.entries.len() {
            let entry = self.entries.pop_front()?;
            let was_used = entry.is_used.swap(false, Ordering::Relaxed);
            let closed = match entry.file.try_lock() {
                Ok(mut file) if !was_used => file.take_if(|file| !is_being_read(file)),
                _ => None,
            };
            if closed.is_some() {
                return closed;
            }
            self.entries.push_back(entry);
        }
        None
    }
}

/// Whether a reader holds the file, besides the entry. The caller holds the entry's lock.
fn is_being_read(file: &mut Arc<dyn IoFile>) -> bool {
    // The file itself holds one reference, and the one just requested is another.
    let is_shared = |file: Arc<File>| Arc::strong_count(&file) > 2;
    Arc::strong_count(file) > 1 || file.shared().is_some_and(is_shared)
}

/// Whether the process, or the system, may not open more files.
pub(crate) fn is_out_of_files(error: &io::Error) -> bool {
    let numbers = [Errno::MFILE, Errno::NFILE].map(Errno::raw_os_error);
    error
        .raw_os_error()
        .is_some_and(|number| numbers.contains(&number))
}

impl ImmutableFile {
    /// The file, open.
    fn open(&self) -> io::Result<Arc<dyn IoFile>> {
        let entry = &self.entry;
        // Held while the file is opened, so that other threads that need it wait.
        let mut file = entry.file.lock().unwrap_or_else(PoisonError::into_inner);
        entry.is_used.store(true, Ordering::Relaxed);
        if let Some(file) = &*file {
            return Ok(Arc::clone(file));
        }
        let opened = self.files.open_entry(entry)?;
        // Release: pairs with the Acquire in `openings`.
        entry
            .inner_openings
            .store(opened.openings(), Ordering::Release);
        entry.openings.fetch_add(1, Ordering::Release);
        Ok(Arc::clone(file.insert(opened)))
    }

    /// Notes whether the file system's handle has opened the file anew. Called after a read.
    fn note_openings(&self, file: &dyn IoFile) {
        let entry = &self.entry;
        let now = file.openings();
        // Acquire and Release: as in `openings`.
        if entry.inner_openings.load(Ordering::Acquire) != now {
            entry.inner_openings.store(now, Ordering::Release);
            entry.openings.fetch_add(1, Ordering::Release);
        }
    }
}

impl Drop for ImmutableFile {
    fn drop(&mut self) {
        let mut clock = self.files.clock();
        let place = clock
            .entries
            .iter()
            .position(|of| Arc::ptr_eq(of, &self.entry));
        let entry = place.and_then(|place| clock.entries.remove(place));
        drop(clock);
        drop(entry);
    }
}

impl IoFile for ImmutableFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let read = self.open()?.read_at(buffer, offset);
        self.files.after_read();
        read
    }

    fn read_cached_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let file = self.open()?;
        self.note_openings(&*file);
        let read = file.read_cached_at(buffer, offset);
        self.note_openings(&*file);
        drop(file);
        self.files.after_read();
        read
    }

    fn read_once_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let read = self.open()?.read_once_at(buffer, offset);
        self.files.after_read();
        read
    }

    fn invalidate_cache(&self) -> io::Result<()> {
        self.open()?.invalidate_cache()
    }

    fn is_direct(&self) -> bool {
        // If the file cannot be opened, the read that follows reports why.
        self.files.mode == OpenMode::ReadDirect && self.open().is_ok_and(|file| file.is_direct())
    }

    fn openings(&self) -> u64 {
        // Acquire: pairs with the Release in `open`, so a number that is the same before and after
        // a read is that of the opening that was read.
        match self.entry.inner_openings.load(Ordering::Acquire) {
            0 => 0,
            _ => self.entry.openings.load(Ordering::Acquire),
        }
    }

    fn write_at(&self, _: &[u8], _: u64) -> io::Result<usize> {
        Err(io::ErrorKind::PermissionDenied.into())
    }

    fn len(&self) -> io::Result<u64> {
        let len = self.open()?.len();
        self.files.after_read();
        len
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::PermissionDenied.into())
    }

    fn sync(&self) -> io::Result<()> {
        self.open()?.sync()
    }

    fn try_lock(&self) -> io::Result<bool> {
        // A lock would be lost when the file is closed.
        Err(io::ErrorKind::Unsupported.into())
    }

    fn shared(&self) -> Option<Arc<File>> {
        // If the file cannot be opened, the read that follows reports why.
        self.open().ok()?.shared()
    }
}

#[deny(clippy::missing_trait_methods)]
impl Io for OpenFiles {
    crate::forward_io!(
        this => this.0.io;
        list, create_dir, rename, remove, link, sync_dir, boot_id, unix_time_s, monotonic, absolute,
        free_bytes, file_id, canonicalize, opened_by
    );

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn IoFile>> {
        if mode != OpenMode::ReadImmutable {
            return self.0.open(path, mode);
        }
        let file = ImmutableFile {
            files: Arc::clone(&self.0),
            entry: Arc::new(Entry {
                path: path.to_owned(),
                file: Mutex::default(),
                is_used: AtomicBool::new(false),
                openings: AtomicU64::new(0),
                inner_openings: AtomicU64::new(0),
            }),
        };
        // Open the file now, so that a missing file is noticed at once.
        let opened = file.open()?;
        if self.0.mode == OpenMode::ReadDirect {
            // The system may have it in memory since it was written. If this fails, it stays there.
            let _ = opened.invalidate_cache();
        }
        Ok(Box::new(file))
    }

    fn open_dir(&self, dir: &Path) -> io::Result<Option<Arc<dyn Io>>> {
        let opened = self.0.io.open_dir(dir)?;
        Ok(opened.map(|io| -> Arc<dyn Io> {
            Arc::new(OpenFiles::with_mode(io, self.0.limit, self.0.mode))
        }))
    }
}

#[cfg(test)]
#[path = "open_files_tests.rs"]
mod tests;
