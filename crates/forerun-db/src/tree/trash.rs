//! Files of runs that no manifest names and nobody holds any more, on their way off the disk.
//!
//! ```text
//!   reader, compaction ──last reference──> throw ─┬─> removed at once         where the caller does all work
//!                                                 ├─> list ──> flush thread   so that no reader waits for it
//!                                                 └─> left where it is        once the store is closed
//! ```
//!
//! A reader may hold a run for longer than the store is open. When it lets go, the file was removed by the next opening,
//! and its name may be another's by then.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use forerun_core::Owner;
use forerun_core::sync::{Mutex, MutexGuard, PoisonError};

use crate::io::Io;

/// Removes files of runs.
pub(crate) struct Trash {
    /// Files are the business of this process alone: a child that lets go of a run leaves its file.
    owner: Owner,
    io: Arc<dyn Io>,
    way: Mutex<Way>,
}

/// What becomes of a file.
enum Way {
    AtOnce,
    /// It is removed when somebody comes for it, who is called.
    Collected(Collected),
    Closed,
}

struct Collected {
    waiting: Vec<PathBuf>,
    /// How many somebody has come for, and has not removed yet.
    on_the_way: usize,
    call: Call,
}

/// Calls who collects, and who waits for that.
type Call = Arc<dyn Fn() + Send + Sync>;

impl Way {
    fn collected(&mut self) -> Option<&mut Collected> {
        match self {
            Way::Collected(collected) => Some(collected),
            Way::AtOnce | Way::Closed => None,
        }
    }
}

impl Collected {
    fn take(&mut self) -> Vec<PathBuf> {
        self.on_the_way += self.waiting.len();
        std::mem::take(&mut self.waiting)
    }

    /// Notes that so many are removed; whom to call.
    fn removed(&mut self, files: usize) -> Call {
        self.on_the_way -= files;
        Arc::clone(&self.call)
    }
}

impl Trash {
    /// One that removes at once.
    pub(crate) fn new(io: Arc<dyn Io>) -> Trash {
        Trash {
            owner: Owner::this_process(),
            io,
            way: Mutex::new(Way::AtOnce),
        }
    }

    /// From now on somebody [`collect`](Self::collect)s, when called.
    pub(crate) fn gather(&self, call: Call) {
        *self.lock() = Way::Collected(Collected {
            waiting: Vec::new(),
            on_the_way: 0,
            call,
        });
    }

    /// Takes a file that is of no use any more.
    pub(crate) fn throw(&self, path: &Path) {
        if !self.owner.is_this_process() {
            return;
        }
        // Under the lock, so that nothing is removed after `close`.
        let call = match &mut *self.lock() {
            Way::AtOnce => return self.remove(path),
            Way::Collected(to) => {
                to.waiting.push(path.to_owned());
                Arc::clone(&to.call)
            }
            Way::Closed => return,
        };
        call();
    }

    /// Removes what waits.
    pub(crate) fn collect(&self) {
        let taken = self.lock().collected().map(Collected::take);
        let Some(taken) = taken.filter(|taken| !taken.is_empty()) else {
            return;
        };
        taken.iter().for_each(|path| self.remove(path));
        let call = self.lock().collected().map(|of| of.removed(taken.len()));
        if let Some(call) = call {
            call();
        }
    }

    /// Whether all that was thrown so far is off the disk.
    pub(crate) fn is_empty(&self) -> bool {
        let mut way = self.lock();
        way.collected()
            .is_none_or(|of| of.waiting.is_empty() && of.on_the_way == 0)
    }

    /// Removes what waits, and nothing from then on.
    pub(crate) fn close(&self) {
        let mut way = self.lock();
        if let Way::Collected(left) = std::mem::replace(&mut *way, Way::Closed) {
            left.waiting.iter().for_each(|path| self.remove(path));
        }
    }

    fn remove(&self, path: &Path) {
        if let Err(error) = self.io.remove(path) {
            // The next opening of the store removes it.
            let path = path.display();
            tracing::warn!(%path, %error, "a run that is of no use any more cannot be removed");
        }
    }

    fn lock(&self) -> MutexGuard<'_, Way> {
        // Nothing under the lock panics half-way through a change.
        self.way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Trash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let waiting = self.lock().collected().map_or(0, |of| of.waiting.len());
        f.debug_struct("Trash").field("waiting", &waiting).finish()
    }
}

#[cfg(test)]
mod tests {
    use forerun_core::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::io::fault::FaultIo;

    #[test]
    fn files_go_at_once_or_when_somebody_comes_and_stay_once_the_store_is_closed() {
        let io = FaultIo::new();
        let names = ["/a", "/b", "/c"];
        names.iter().for_each(|name| io.write(name, b"x"));
        let left = || io.files().len();
        let trash = Trash::new(Arc::new(io.clone()));
        trash.throw("/a".as_ref());
        assert_eq!(left(), 2);
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&calls);
        trash.gather(Arc::new(move || {
            counted.fetch_add(1, Ordering::Relaxed);
        }));
        trash.throw("/b".as_ref());
        assert_eq!((left(), calls.load(Ordering::Relaxed)), (2, 1));
        assert!(!trash.is_empty());
        trash.collect();
        assert_eq!((left(), calls.load(Ordering::Relaxed)), (1, 2));
        assert!(trash.is_empty(), "and whoever waits for that was called");
        trash.collect();
        assert_eq!(calls.load(Ordering::Relaxed), 2, "there was nothing");
        trash.throw("/c".as_ref());
        trash.close();
        assert_eq!(left(), 0);
        // Another's by now.
        io.write("/c", b"x");
        trash.throw("/c".as_ref());
        trash.collect();
        assert_eq!(left(), 1);
    }
}
