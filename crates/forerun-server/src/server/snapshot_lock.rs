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
///
/// The descriptor is closed when a child of the process executes another program. A child that only
/// forks shares the lock: if the server is killed, the lock lasts until that child ends. Nothing
/// here can prevent that, because the system binds such a lock to the open file, not to the
/// process.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_a_child_executes_does_not_keep_the_lock() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("cache");
        let lock = SnapshotLock::take(&path).expect("nobody has it");
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .expect("a program");
        // The child's program must not inherit the descriptor.
        let flags = rustix::io::fcntl_getfd(&lock.0).expect("it is open");
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        let inherited = format!("/proc/{}/fd", child.id());
        let is_lock = |entry: std::io::Result<std::fs::DirEntry>| {
            let target = entry.and_then(|entry| std::fs::read_link(entry.path()));
            target.is_ok_and(|target| target == with_suffix(&path, ".lock"))
        };
        let has_lock = std::fs::read_dir(inherited).map(|mut open| open.any(is_lock));
        child.kill().expect("it runs");
        child.wait().expect("it ends");
        // There is no such directory on every system.
        assert!(!has_lock.unwrap_or(false));
        assert!(SnapshotLock::take(&path).is_err());
    }
}
