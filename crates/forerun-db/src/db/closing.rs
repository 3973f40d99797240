//! How a store is closed: by the last handle that goes, or by whoever asks for it.
//!
//! ```text
//!   no more writes ─> no more work ─> workers end ─> work in callers' threads ends ─> pooled cursors and obsolete files
//!   are let go of ─> the directory is unlocked
//! ```

use std::sync::Arc;

use forerun_core::sync::{Mutex, PoisonError};

use super::Inner;
use super::background::Workers;
use crate::store_dir::StoreDir;
use crate::{Error, Result};

/// An open store: closed when the last handle or snapshot goes. Bound to the process that opened it; see
/// [`forerun_core::ProcessBound`].
pub(super) struct Open {
    pub(super) inner: Arc<Inner>,
    workers: Mutex<Workers>,
    /// How closing went, once it is done. Held meanwhile, so that who closes it as well waits for that.
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
        match &*closed {
            Some(result) => result.clone(),
            None => {
                let (result, dir) = self.stop();
                drop(dir);
                closed.insert(result).clone()
            }
        }
    }

    /// [`close`](Self::close), but the directory stays locked until what this returns is dropped.
    pub(super) fn close_and_keep_lock(&self) -> Result<StoreDir> {
        let mut closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        if closed.is_some() {
            return Err(Error::Closed);
        }
        let (result, dir) = self.stop();
        closed.insert(result).clone()?;
        dir.ok_or(Error::Closed)
    }

    /// Ends all work, and hands the directory over, still locked.
    fn stop(&self) -> (Result<()>, Option<StoreDir>) {
        let inner = &self.inner;
        // First no more writes, so that nobody waits for the workers; then the workers, and what runs in threads of
        // others; then the lock, since until here the files are ours.
        let closed = inner.writer.close();
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
        // What is let go of later stays where it is: its name may be another's by then.
        inner.obsolete_files.close();
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
