//! How a store is closed: by the last handle to be dropped, or by a call.
//!
//! ```text
//!   stop writes -> stop background work -> workers end -> work in callers' threads ends
//!   -> drop pooled cursors and obsolete files -> unlock the directory -> drop the listener
//! ```

use std::sync::Arc;

use forerun_core::sync::{Mutex, PoisonError};

use super::Inner;
use super::background::Workers;
use crate::store_dir::StoreDir;
use crate::{Error, Result};

/// An open store, closed when the last handle or snapshot is dropped. Bound to the process that
/// opened it; see [`forerun_core::ProcessBound`].
pub(super) struct Open {
    pub(super) inner: Arc<Inner>,
    workers: Mutex<Workers>,
    /// The result of closing, once it is done. Locked during closing, so that other callers of
    /// `close` wait for it.
    closed: Mutex<Option<Result<()>>>,
}

impl Open {
    pub(super) fn new(inner: Arc<Inner>, workers: Workers) -> Open {
        Open {
            inner,
            workers: Mutex::new(workers),
            closed: Mutex::default(),
        }
    }

    pub(super) fn close(&self) -> Result<()> {
        let mut closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(result) = &*closed {
            return result.clone();
        }
        let (result, dir) = self.stop();
        drop(dir);
        *closed = Some(result.clone());
        // The drop of the listener is the user's code, which may close the store too.
        drop(closed);
        self.inner.events.close();
        result
    }

    /// [`close`](Self::close), but keeps the directory locked until the returned value is dropped.
    pub(super) fn close_and_keep_lock(&self) -> Result<StoreDir> {
        let mut closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        if closed.is_some() {
            return Err(Error::Closed);
        }
        let (result, dir) = self.stop();
        *closed = Some(result.clone());
        // As in `close`.
        drop(closed);
        self.inner.events.close();
        result?;
        dir.ok_or(Error::Closed)
    }

    /// Stops all work and returns the directory, still locked.
    fn stop(&self) -> (Result<()>, Option<StoreDir>) {
        let inner = &self.inner;
        // First stop writes, so that no one waits for the workers. Then stop the workers and the
        // work in callers' threads. Unlock last, since the files are ours until then.
        let closed = inner.write_path.close();
        inner.directory.refuse();
        inner.work.stop();
        self.workers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .join();
        inner.directory.wait_until_idle();
        for keyspace in inner.keyspaces.load().iter() {
            keyspace.cursors.close();
        }
        // Files released later stay where they are: by then their names may belong to another
        // process.
        inner.tree.obsolete_files.close();
        (closed, inner.directory.release())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let closed = self.closed.get_mut();
        let is_open = closed.unwrap_or_else(PoisonError::into_inner).is_none();
        if is_open && let Err(error) = self.close() {
            let path = self.inner.path.display();
            tracing::warn!(%path, %error, "the store was dropped and could not be closed cleanly");
        }
    }
}
