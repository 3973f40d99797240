//! The operating system's files, through the standard library.

use std::ffi::OsString;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forerun_core::Owner;
use forerun_core::sync::OnceLock;

use super::{Io, IoFile, OpenMode};

/// The operating system's file system (Unix).
#[derive(Clone, Copy, Debug, Default)]
pub struct OsIo;

impl Io for OsIo {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn IoFile>> {
        let mut options = OpenOptions::new();
        options.read(true);
        match mode {
            OpenMode::Read | OpenMode::ReadImmutable => &mut options,
            OpenMode::ReadWrite => options.write(true),
            OpenMode::Create => options.write(true).create(true).truncate(false),
            OpenMode::CreateEmpty => options.write(true).create(true).truncate(true),
        };
        Ok(Box::new(OsFile::new(options.open(path)?)))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<OsString>> {
        std::fs::read_dir(dir)?
            .map(|entry| Ok(entry?.file_name()))
            .collect()
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        std::fs::create_dir(path)
    }

    fn canonicalize(&self, path: &Path) -> io::Result<PathBuf> {
        std::fs::canonicalize(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::hard_link(from, to)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }

    fn boot_id(&self) -> Option<u128> {
        // Linux has this file. Elsewhere it is missing, and recovery assumes that the power may
        // have been lost.
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let digits: String = text.trim().chars().filter(|c| *c != '-').collect();
        u128::from_str_radix(&digits, 16).ok().filter(|id| *id != 0)
    }

    fn opened_by(&self, path: &Path) -> Vec<u32> {
        let Ok(wanted) = std::fs::metadata(path) else {
            return Vec::new();
        };
        let is_it = |descriptor: &Path| {
            let found = std::fs::metadata(descriptor);
            found.is_ok_and(|found| (found.dev(), found.ino()) == (wanted.dev(), wanted.ino()))
        };
        // Linux only. It does not show other users' processes.
        let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let mut found = Vec::new();
        for entry in processes {
            let name = entry.file_name();
            let Some(process) = name.to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            let descriptors = std::fs::read_dir(entry.path().join("fd"));
            let mut descriptors = descriptors.into_iter().flatten().flatten();
            if process != std::process::id() && descriptors.any(|entry| is_it(&entry.path())) {
                found.push(process);
            }
        }
        found
    }
}

#[derive(Debug)]
struct OsFile {
    file: Arc<File>,
    /// The process that has locked the file, if any.
    locked_by: OnceLock<Owner>,
}

impl OsFile {
    fn new(file: File) -> OsFile {
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

    fn shared(&self) -> Option<Arc<File>> {
        Some(Arc::clone(&self.file))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::{link_or_copy, read_all, write_all_at};

    #[test]
    fn a_file_is_written_read_cut_and_locked() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        assert_eq!(
            OsIo.open(&path, OpenMode::ReadWrite).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
        let file = OsIo.open(&path, OpenMode::Create).unwrap();
        write_all_at(&*file, b"hello world", 0).unwrap();
        file.set_len(5).unwrap();
        file.sync().unwrap();
        assert!(file.try_lock().unwrap());
        let again = OsIo.open(&path, OpenMode::Create).unwrap();
        assert_eq!(read_all(&*again).unwrap(), b"hello");
        assert!(!again.try_lock().unwrap(), "two openings hold the lock");
        drop(file);
        assert!(again.try_lock().unwrap());
        OsIo.rename(&path, &dir.path().join("b")).unwrap();
        OsIo.sync_dir(dir.path()).unwrap();
        assert_eq!(OsIo.list(dir.path()).unwrap(), ["b"]);
        assert!(
            OsIo.open(&dir.path().join("b"), OpenMode::CreateEmpty)
                .unwrap()
                .is_empty()
                .unwrap()
        );
    }

    #[test]
    fn a_second_name_refers_to_the_same_file() {
        let dir = tempfile::tempdir().unwrap();
        let [a, b] = ["a", "b"].map(|name| dir.path().join(name));
        let file = OsIo.open(&a, OpenMode::Create).unwrap();
        write_all_at(&*file, b"hello", 0).unwrap();
        link_or_copy(&OsIo, &a, &b).unwrap();
        OsIo.remove(&a).unwrap();
        let read = OsIo.open(&b, OpenMode::Read).unwrap();
        assert_eq!(read_all(&*read).unwrap(), b"hello");
        let taken = link_or_copy(&OsIo, &b, &b).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AlreadyExists);
    }

    #[test]
    fn the_boot_has_a_number_that_stays() {
        if cfg!(target_os = "linux") {
            assert!(OsIo.boot_id().is_some());
        }
        assert_eq!(OsIo.boot_id(), OsIo.boot_id());
    }
}
