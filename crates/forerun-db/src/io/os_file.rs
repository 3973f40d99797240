//! The operating system's open files, through the standard library.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use forerun_core::Owner;
use forerun_core::sync::OnceLock;
use rustix::fs::{Stat, fstat};
#[cfg(target_os = "linux")]
use rustix::io::ReadWriteFlags;

use super::{FileId, IoFile};

/// An open file.
#[derive(Debug)]
pub(super) struct OsFile {
    file: Arc<File>,
    /// The process that has locked the file, if any.
    locked_by: OnceLock<Owner>,
}

impl OsFile {
    pub(super) fn new(file: File) -> OsFile {
        OsFile {
            file: Arc::new(file),
            locked_by: OnceLock::new(),
        }
    }
}

impl Drop for OsFile {
    /// Releases the lock. Closing the file is not enough, because a child of this process shares
    /// the open file and would keep the lock. The child itself only closes its descriptor.
    fn drop(&mut self) {
        if self.locked_by.get().is_some_and(Owner::is_this_process) {
            // If this fails, the lock is released with the last descriptor, as every lock is.
            let _ = self.file.unlock();
        }
    }
}

impl IoFile for OsFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(&*self.file, buffer, offset)
    }

    #[cfg(target_os = "linux")]
    fn read_cached_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let buffers = &mut [io::IoSliceMut::new(buffer)];
        let read = rustix::io::preadv2(&self.file, buffers, offset, ReadWriteFlags::NOWAIT);
        Ok(read?)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        FileExt::write_at(&*self.file, bytes, offset)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn sync(&self) -> io::Result<()> {
        // `fdatasync` also makes the length durable, because reading the bytes back needs it.
        self.file.sync_data()
    }

    fn try_lock(&self) -> io::Result<bool> {
        match self.file.try_lock() {
            Ok(()) => {
                // It may be locked twice, but the owner is the same.
                let _ = self.locked_by.set(Owner::this_process());
                Ok(true)
            }
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    fn try_lock_shared(&self) -> io::Result<bool> {
        match self.file.try_lock_shared() {
            Ok(()) => {
                // As in `try_lock`.
                let _ = self.locked_by.set(Owner::this_process());
                Ok(true)
            }
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    fn id(&self) -> io::Result<Option<FileId>> {
        Ok(Some(file_id(&fstat(&self.file)?)))
    }

    fn shared(&self) -> Option<Arc<File>> {
        Some(Arc::clone(&self.file))
    }
}

/// The identity of the file that the system describes so.
#[allow(
    clippy::unnecessary_cast,
    reason = "the types of these fields differ between systems"
)]
pub(super) fn file_id(stat: &Stat) -> FileId {
    FileId {
        device: stat.st_dev as u64,
        number: stat.st_ino as u64,
    }
}
