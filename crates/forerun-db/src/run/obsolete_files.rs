//! Obsolete files: files of runs that no manifest names and no reader uses.
//!
//! ```text
//!   reader, compaction ──drops the last reference──> add ─┬─> removed at once          without background threads
//!                                                         ├─> queue ──> flush thread   so that no reader waits for a removal
//!                                                         └─> kept                     once the store is closed
//! ```
//!
//! A reader may hold a run for longer than the store is open. By the time it drops the run, the
//! next opening may have removed the file, and the file's name may belong to another run.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use forerun_core::Owner;
use forerun_core::sync::{Mutex, MutexGuard, PoisonError};

use crate::io::Io;

/// Removes the files of obsolete runs.
pub(crate) struct ObsoleteFiles {
    /// Only this process removes files. A forked child that drops a run leaves its file alone.
    owner: Owner,
    io: Arc<dyn Io>,
    removal: Mutex<Removal>,
}

/// When files are removed.
enum Removal {
    Immediate,
    /// A background thread removes them.
    Deferred(Queue),
    Closed,
}

struct Queue {
    waiting: Vec<PathBuf>,
    /// How many files a thread has taken and not removed yet.
    being_removed: usize,
    notify: Notify,
}

/// Wakes the thread that removes files, and the threads that wait for it.
type Notify = Arc<dyn Fn() + Send + Sync>;

impl Removal {
    fn queue(&mut self) -> Option<&mut Queue> {
        match self {
            Removal::Deferred(queue) => Some(queue),
            Removal::Immediate | Removal::Closed => None,
        }
    }
}

impl Queue {
    fn take(&mut self) -> Vec<PathBuf> {
        self.being_removed += self.waiting.len();
        std::mem::take(&mut self.waiting)
    }

    /// Records that this many files are removed, and returns the callback that wakes waiting
    /// threads.
    fn removed(&mut self, files: usize) -> Notify {
        self.being_removed -= files;
        Arc::clone(&self.notify)
    }
}

impl ObsoleteFiles {
    /// Removes each file at once.
    pub(crate) fn new(io: Arc<dyn Io>) -> ObsoleteFiles {
        ObsoleteFiles {
            owner: Owner::this_process(),
            io,
            removal: Mutex::new(Removal::Immediate),
        }
    }

    /// From now on a background thread calls [`purge`](Self::purge) when it is notified.
    pub(crate) fn defer(&self, notify: Notify) {
        *self.lock() = Removal::Deferred(Queue {
            waiting: Vec::new(),
            being_removed: 0,
            notify,
        });
    }

    /// Takes over an obsolete file.
    pub(crate) fn add(&self, path: &Path) {
        if !self.owner.is_this_process() {
            return;
        }
        // This happens under the lock, so that nothing is removed after `close`.
        let notify = match &mut *self.lock() {
            Removal::Immediate => return self.remove(path),
            Removal::Deferred(queue) => {
                queue.waiting.push(path.to_owned());
                Arc::clone(&queue.notify)
            }
            Removal::Closed => return,
        };
        notify();
    }

    /// Removes the files in the queue.
    pub(crate) fn purge(&self) {
        let taken = self.lock().queue().map(Queue::take);
        let Some(taken) = taken.filter(|taken| !taken.is_empty()) else {
            return;
        };
        taken.iter().for_each(|path| self.remove(path));
        let notify = self.lock().queue().map(|queue| queue.removed(taken.len()));
        if let Some(notify) = notify {
            notify();
        }
    }

    /// Whether every file added so far is removed.
    pub(crate) fn is_empty(&self) -> bool {
        let mut removal = self.lock();
        removal
            .queue()
            .is_none_or(|queue| queue.waiting.is_empty() && queue.being_removed == 0)
    }

    /// Removes the files in the queue, and accepts no more.
    pub(crate) fn close(&self) {
        let mut removal = self.lock();
        if let Removal::Deferred(queue) = std::mem::replace(&mut *removal, Removal::Closed) {
            queue.waiting.iter().for_each(|path| self.remove(path));
        }
    }

    fn remove(&self, path: &Path) {
        if let Err(error) = self.io.remove(path) {
            // The next opening of the store removes it.
            let path = path.display();
            tracing::warn!(%path, %error, "cannot remove the file of an obsolete run");
        }
    }

    fn lock(&self) -> MutexGuard<'_, Removal> {
        // Nothing that holds the lock panics half-way through a change.
        self.removal.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for ObsoleteFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let waiting = self.lock().queue().map_or(0, |queue| queue.waiting.len());
        let mut debug = f.debug_struct("ObsoleteFiles");
        debug.field("waiting", &waiting).finish()
    }
}

#[cfg(test)]
mod tests {
    use forerun_core::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::io::fault::FaultIo;

    #[test]
    fn files_are_removed_at_once_or_by_a_purge_and_kept_once_the_store_is_closed() {
        let io = FaultIo::new();
        let names = ["/a", "/b", "/c"];
        names.iter().for_each(|name| io.write(name, b"x"));
        let left = || io.files().len();
        let obsolete = ObsoleteFiles::new(Arc::new(io.clone()));
        obsolete.add("/a".as_ref());
        assert_eq!(left(), 2);
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&calls);
        obsolete.defer(Arc::new(move || {
            counted.fetch_add(1, Ordering::Relaxed);
        }));
        obsolete.add("/b".as_ref());
        assert_eq!((left(), calls.load(Ordering::Relaxed)), (2, 1));
        assert!(!obsolete.is_empty());
        obsolete.purge();
        assert_eq!((left(), calls.load(Ordering::Relaxed)), (1, 2));
        assert!(obsolete.is_empty(), "a purge notifies those that wait");
        obsolete.purge();
        assert_eq!(
            calls.load(Ordering::Relaxed),
            2,
            "nothing to remove, no thread to notify"
        );
        obsolete.add("/c".as_ref());
        obsolete.close();
        assert_eq!(left(), 0);
        // By now the name belongs to another run.
        io.write("/c", b"x");
        obsolete.add("/c".as_ref());
        obsolete.purge();
        assert_eq!(left(), 1);
    }
}
