//! Obsolete files: files of runs that no manifest names and no reader uses.
//!
//! ```text
//!   reader, compaction ──drops the last reference──> add ─┬─> removed at once            without background threads
//!                                                         ├─> queue ──> unlink thread    one by one, at a pace
//!                                                         └─> kept                       once the store is closed
//! ```
//!
//! Unlinking 64 MiB takes the file system 20 ms, in which a sync waits, and then the disk has to
//! discard the blocks. So a compaction that frees a thousand runs must not have them unlinked at
//! once, and nobody who flushes or reads may wait for it. The queue is emptied without pauses while
//! it holds much of the store or of the disk's free space, and when it is asked for. Files are not
//! truncated piece by piece instead: a checkpoint may have a link to them, and another process may
//! read them.
//!
//! A reader may hold a run for longer than the store is open. By the time it drops the run, the
//! next opening may have removed the file, and the file's name may belong to another run.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use forerun_core::Owner;
use forerun_core::sync::atomic::{AtomicU64, Ordering};
use forerun_core::sync::{Condvar, Mutex, MutexGuard, PoisonError, time};

use crate::io::Io;

/// How fast files are removed, in bytes per second: two of 64 MiB a second, in which ext4 on a
/// virtual disk is busy with them for 4% of the time. Removed at once, 24 of them make every sync
/// beside them take 30 to 40 ms instead of 4.
const RATE_BYTES: u64 = 128 << 20;

/// What the smallest file counts: unlinking takes time however small a file is.
const FILE_BYTES_MIN: u64 = 128 << 10;

/// A longer queue is emptied faster, so that nothing waits much longer than this.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// The queue may hold a quarter of what the store needs, and an eighth of what is free.
const LIVE_SHARE: u64 = 4;
const FREE_SHARE: u64 = 8;

/// How long a pause may last before the free space is looked at again.
const SPACE_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Removes the files of obsolete runs.
pub(crate) struct ObsoleteFiles {
    /// Only this process removes files. A forked child that drops a run leaves its file alone.
    owner: Owner,
    io: Arc<dyn Io>,
    removal: Mutex<Removal>,
    /// Notified when a file comes into the queue, and when its thread is to end.
    changed: Condvar,
    /// Bytes of the runs that the manifest names. Relaxed throughout: a hint.
    live_bytes: AtomicU64,
}

/// A file that is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct ObsoleteFile {
    files: Arc<ObsoleteFiles>,
    path: PathBuf,
    bytes: u64,
}

/// What waits to be removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ObsoleteCounts {
    pub(crate) files: usize,
    pub(crate) bytes: u64,
}

/// When files are removed.
enum Removal {
    Immediate,
    /// A background thread removes them.
    Deferred(Queue),
    Closed,
}

struct Queue {
    waiting: VecDeque<(PathBuf, u64)>,
    /// What waits, and what threads have taken and not removed yet.
    counts: ObsoleteCounts,
    is_stopping: bool,
    on_empty: Notify,
}

/// Wakes the threads that wait until everything is removed.
type Notify = Arc<dyn Fn() + Send + Sync>;

impl Removal {
    fn queue(&mut self) -> Option<&mut Queue> {
        match self {
            Removal::Deferred(queue) => Some(queue),
            Removal::Immediate | Removal::Closed => None,
        }
    }
}

impl Drop for ObsoleteFile {
    fn drop(&mut self) {
        self.files.add(&self.path, self.bytes);
    }
}

impl ObsoleteFiles {
    /// Removes each file at once.
    pub(crate) fn new(io: Arc<dyn Io>) -> ObsoleteFiles {
        ObsoleteFiles {
            owner: Owner::this_process(),
            io,
            removal: Mutex::new(Removal::Immediate),
            changed: Condvar::new(),
            live_bytes: AtomicU64::new(0),
        }
    }

    /// A file of this many bytes that is obsolete once the result is dropped.
    pub(crate) fn file(self: &Arc<Self>, path: &Path, bytes: u64) -> ObsoleteFile {
        ObsoleteFile {
            files: Arc::clone(self),
            path: path.to_owned(),
            bytes,
        }
    }

    /// From now on a background thread calls [`remove_paced`](Self::remove_paced). `on_empty` is
    /// called when everything is removed.
    pub(crate) fn defer(&self, on_empty: Notify) {
        *self.lock() = Removal::Deferred(Queue {
            waiting: VecDeque::new(),
            counts: ObsoleteCounts::default(),
            is_stopping: false,
            on_empty,
        });
    }

    /// Notes how many bytes the runs have that the manifest names.
    pub(crate) fn set_live_bytes(&self, bytes: u64) {
        self.live_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Takes over an obsolete file.
    fn add(&self, path: &Path, bytes: u64) {
        if !self.owner.is_this_process() {
            return;
        }
        // This happens under the lock, so that nothing is removed after `close`.
        match &mut *self.lock() {
            Removal::Immediate => return self.remove(path),
            Removal::Deferred(queue) => {
                queue.waiting.push_back((path.to_owned(), bytes));
                queue.counts.files += 1;
                queue.counts.bytes += bytes;
            }
            Removal::Closed => return,
        }
        self.changed.notify_all();
    }

    /// Removes the files in the queue, with a pause after each, until [`stop`](Self::stop).
    pub(crate) fn remove_paced(&self) {
        let mut paused_until = time::now();
        let mut removal = self.lock();
        while let Some(queue) = removal.queue().filter(|queue| !queue.is_stopping) {
            let pause = paused_until.saturating_duration_since(time::now());
            let counts = queue.counts;
            let Some((path, _)) = queue.waiting.front() else {
                removal = self.wait(removal, None);
                continue;
            };
            if !pause.is_zero() {
                let path = path.clone();
                drop(removal);
                let is_urgent = self.is_urgent(&path, counts.bytes);
                removal = self.lock();
                if is_urgent {
                    paused_until = time::now();
                } else if removal.queue().is_some_and(|queue| !queue.is_stopping) {
                    removal = self.wait(removal, Some(pause.min(SPACE_CHECK_INTERVAL)));
                }
                continue;
            }
            let first = queue.waiting.pop_front();
            drop(removal);
            if let Some((path, bytes)) = first {
                self.remove(&path);
                self.note_removed(&[(path, bytes)]);
                paused_until = time::now() + pause_after(bytes, counts.bytes);
            }
            removal = self.lock();
        }
    }

    /// Removes the files in the queue, in the caller's thread and without pauses. The caller makes
    /// sure that the store is not closed meanwhile.
    pub(crate) fn purge(&self) {
        let taken = self
            .lock()
            .queue()
            .map(|queue| std::mem::take(&mut queue.waiting));
        let taken: Vec<(PathBuf, u64)> = taken.into_iter().flatten().collect();
        taken.iter().for_each(|(path, _)| self.remove(path));
        self.note_removed(&taken);
    }

    /// What waits to be removed.
    pub(crate) fn counts(&self) -> ObsoleteCounts {
        let mut removal = self.lock();
        removal
            .queue()
            .map_or_else(Default::default, |of| of.counts)
    }

    /// Whether every file added so far is removed.
    pub(crate) fn is_empty(&self) -> bool {
        self.counts() == ObsoleteCounts::default()
    }

    /// Ends the thread that removes files.
    pub(crate) fn stop(&self) {
        if let Some(queue) = self.lock().queue() {
            queue.is_stopping = true;
        }
        self.changed.notify_all();
    }

    /// Removes the files in the queue, and accepts no more.
    pub(crate) fn close(&self) {
        let mut removal = self.lock();
        if let Removal::Deferred(queue) = std::mem::replace(&mut *removal, Removal::Closed) {
            queue.waiting.iter().for_each(|(path, _)| self.remove(path));
        }
    }

    /// Whether the space is needed now.
    fn is_urgent(&self, path: &Path, waiting_bytes: u64) -> bool {
        let live_bytes = self.live_bytes.load(Ordering::Relaxed);
        let dir = path.parent().unwrap_or(Path::new("."));
        let free_bytes = self.io.free_bytes(dir).ok().flatten();
        waiting_bytes > live_bytes / LIVE_SHARE
            || free_bytes.is_some_and(|free| waiting_bytes > free / FREE_SHARE)
    }

    fn note_removed(&self, files: &[(PathBuf, u64)]) {
        let mut removal = self.lock();
        let Some(queue) = removal.queue() else {
            return;
        };
        queue.counts.files -= files.len();
        queue.counts.bytes -= files.iter().map(|(_, bytes)| bytes).sum::<u64>();
        if queue.counts.files == 0 && !files.is_empty() {
            let on_empty = Arc::clone(&queue.on_empty);
            drop(removal);
            on_empty();
        }
    }

    fn remove(&self, path: &Path) {
        if let Err(error) = self.io.remove(path) {
            // The next opening of the store removes it.
            let path = path.display();
            tracing::warn!(%path, %error, "cannot remove the file of an obsolete run");
        }
    }

    fn wait<'a>(
        &self,
        removal: MutexGuard<'a, Removal>,
        limit: Option<Duration>,
    ) -> MutexGuard<'a, Removal> {
        match limit {
            Some(limit) => {
                let woken = self.changed.wait_timeout(removal, limit);
                woken.unwrap_or_else(PoisonError::into_inner).0
            }
            None => {
                let woken = self.changed.wait(removal);
                woken.unwrap_or_else(PoisonError::into_inner)
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Removal> {
        // Nothing that holds the lock panics half-way through a change.
        self.removal.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How long to pause after a file, so that a queue of this many bytes is removed at the rate.
fn pause_after(file_bytes: u64, waiting_bytes: u64) -> Duration {
    let rate = RATE_BYTES.max(waiting_bytes / WAIT_MAX.as_secs());
    Duration::from_secs_f64(file_bytes.max(FILE_BYTES_MIN) as f64 / rate as f64)
}

impl std::fmt::Debug for ObsoleteFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut debug = f.debug_struct("ObsoleteFiles");
        debug.field("waiting", &self.counts()).finish()
    }
}

#[cfg(test)]
#[path = "obsolete_files_tests.rs"]
mod tests;
