//! Keeps a snapshot file to one server at a time. Another server with the same file would remove
//! what this one writes, and leave a file that is stale.
//!
//! ```text
//!   start   FILE.lock is locked ──> FILE is read and removed
//!   end     FILE is written ──> FILE.lock is unlocked, and stays
//! ```

use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;

use forerun_core::above_standard_streams;

use crate::snapshot::with_suffix;
use crate::snapshot_error::SnapshotError;

/// The right to use a snapshot file. The system takes it back when the process ends.
#[derive(Debug)]
pub(crate) struct SnapshotLock(File);

impl SnapshotLock {
    /// Locks the snapshot at `path`.
    ///
    /// # Errors
    /// [`SnapshotError::InUse`]; [`SnapshotError::Io`].
    pub(crate) fn take(path: &Path) -> Result<SnapshotLock, SnapshotError> {
        let lock = with_suffix(path, ".lock");
        let opened = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(&lock);
        let opened = opened.and_then(above_standard_streams);
        let locked = opened
            .map_err(TryLockError::Error)
            .and_then(|file| file.try_lock().map(|()| SnapshotLock(file)));
        locked.map_err(|error| match error {
            TryLockError::WouldBlock => SnapshotError::InUse {
                path: path.to_owned(),
            },
            TryLockError::Error(source) => SnapshotError::Io {
                doing: "lock",
                path: lock,
                source,
            },
        })
    }
}

impl Drop for SnapshotLock {
    /// Closing the file is not enough, because a child of this process shares it. The child itself
    /// never comes here: it has no acceptor.
    fn drop(&mut self) {
        // If this fails, the lock is released with the last descriptor.
        let _ = self.0.unlock();
    }
}
