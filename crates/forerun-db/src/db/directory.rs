//! The store's directory, its lock, and the operations that need both.
//!
//! ```text
//!   flush, compaction, ingestion, … -enter-> DirGuard -> writes runs, installs manifests -> dropped
//!   close -refuse-> no new guards -release-> waits for the last guard -> unlocks the directory
//! ```
//!
//! An operation may run in any thread: a background thread, or a caller inside
//! [`Db::compact`](crate::Db::compact). Whatever changes the directory, or relies on its files,
//! holds a [`DirGuard`] from before its first change until after its last. The directory stays
//! locked as long as there is a guard, so no other process opens a store that this one still
//! changes. Guards are held only for work that ends by itself or soon after the stop flag is set.

use forerun_core::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::store_dir::StoreDir;
use crate::{Error, Result};

/// A store's directory, locked until [`release`](Self::release).
#[derive(Debug)]
pub(super) struct Directory {
    /// The error for changes, if the store was opened read-only.
    read_only: Option<Error>,
    state: Mutex<State>,
    /// Notified when the last guard is dropped and a thread waits for that.
    idle: Condvar,
}

#[derive(Debug)]
struct State {
    /// `None` once it is released.
    dir: Option<StoreDir>,
    /// How many guards there are.
    guards: usize,
    /// Whether new guards are refused.
    is_closing: bool,
}

/// The right to change the directory, which stays locked while this lives.
#[derive(Debug)]
pub(super) struct DirGuard<'a> {
    directory: &'a Directory,
}

impl Directory {
    pub(super) fn new(dir: StoreDir, read_only: Option<Error>) -> Directory {
        Directory {
            read_only,
            state: Mutex::new(State {
                dir: Some(dir),
                guards: 0,
                is_closing: false,
            }),
            idle: Condvar::new(),
        }
    }

    /// Lets the caller change the directory until it drops the guard.
    ///
    /// # Errors
    /// [`Error::Closed`]: the store is closed or is being closed. [`Error::ReadOnly`].
    pub(super) fn enter(&self) -> Result<DirGuard<'_>> {
        match &self.read_only {
            Some(error) => Err(error.clone()),
            None => self.enter_for_reading(),
        }
    }

    /// Lets the caller rely on the directory's files, without changing any, until it drops the
    /// guard.
    ///
    /// # Errors
    /// [`Error::Closed`]: the store is closed or is being closed.
    pub(super) fn enter_for_reading(&self) -> Result<DirGuard<'_>> {
        let mut state = self.lock();
        if state.is_closing {
            return Err(Error::Closed);
        }
        state.guards += 1;
        Ok(DirGuard { directory: self })
    }

    /// Refuses new guards from now on.
    pub(super) fn refuse(&self) {
        self.lock().is_closing = true;
    }

    /// Waits until there are no guards. The caller has already called `refuse`.
    pub(super) fn wait_until_idle(&self) {
        let mut state = self.lock();
        debug_assert!(state.is_closing);
        while state.guards > 0 {
            state = self
                .idle
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Returns the directory, still locked, once there are no guards; `None` if another caller has
    /// it. Dropping it releases the lock.
    pub(super) fn release(&self) -> Option<StoreDir> {
        self.refuse();
        self.wait_until_idle();
        self.lock().dir.take()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while the lock is held, so a poisoned lock is still consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for DirGuard<'_> {
    fn drop(&mut self) {
        let mut state = self.directory.lock();
        state.guards -= 1;
        if state.guards == 0 && state.is_closing {
            self.directory.idle.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::io::Io;
    use crate::io::fault::FaultIo;
    use crate::{Create, Error};

    fn open(io: &FaultIo) -> Result<StoreDir> {
        let io: Arc<dyn Io> = Arc::new(io.clone());
        StoreDir::open(&io, "/store".as_ref(), Create::IfMissing, "order")
    }

    #[test]
    fn the_directory_stays_locked_until_the_last_guard_is_dropped() {
        let io = FaultIo::new();
        let directory = Directory::new(open(&io).unwrap(), None);
        let (first, second) = (directory.enter().unwrap(), directory.enter().unwrap());
        directory.refuse();
        assert!(matches!(directory.enter(), Err(Error::Closed)));
        forerun_core::sync::thread::scope(|scope| {
            let released = scope.spawn(|| drop(directory.release()));
            drop(first);
            assert!(!released.is_finished());
            assert!(matches!(open(&io), Err(Error::Locked { .. })));
            drop(second);
        });
        open(&io).unwrap();
        assert!(directory.release().is_none());
        assert!(matches!(directory.enter(), Err(Error::Closed)));
    }
}
