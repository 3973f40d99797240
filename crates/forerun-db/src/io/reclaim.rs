//! Makes room when the disk is full, and then tries again.
//!
//! ```text
//!   log, runs, manifest, copies ──write──> ReclaimIo ──write──> disk: full
//!                                              ├─ reclaim ──> removes the obsolete files that wait
//!                                              └─ write ────> disk
//! ```
//!
//! What could be removed at any time must not be the reason why a write fails.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forerun_core::sync::OnceLock;
use forerun_core::sync::atomic::{AtomicU64, Ordering};

use super::{Io, IoFile, OpenMode};

/// Removes what is not needed. Returns whether there was anything.
type ReclaimFn = Box<dyn Fn() -> bool + Send + Sync>;

/// A file system whose calls that fail for lack of space are repeated as long as space is found.
#[derive(Clone)]
pub(crate) struct ReclaimIo {
    io: Arc<dyn Io>,
    /// The store's directory, and what makes room there.
    reclaim: Arc<OnceLock<(PathBuf, ReclaimFn)>>,
    /// How many files were removed. Written with Release after each, and read with Acquire: who
    /// sees the number finds the space.
    removed: Arc<AtomicU64>,
}

struct ReclaimFile {
    path: PathBuf,
    file: Box<dyn IoFile>,
    io: ReclaimIo,
}

impl ReclaimIo {
    pub(crate) fn new(io: Arc<dyn Io>) -> ReclaimIo {
        ReclaimIo {
            io,
            reclaim: Arc::default(),
            removed: Arc::default(),
        }
    }

    /// Sets, once, what makes room in this directory. Copies may be on other file systems.
    pub(crate) fn reclaim_with(
        &self,
        dir: &Path,
        reclaim: impl Fn() -> bool + Send + Sync + 'static,
    ) {
        // A second call changes nothing.
        let _ = self.reclaim.set((dir.to_owned(), Box::new(reclaim)));
    }

    fn retry<T>(&self, path: &Path, mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        loop {
            let before = self.removed.load(Ordering::Acquire);
            // Another thread may have removed the last file after the call had failed.
            let has_room = || {
                let found = self.reclaim.get();
                found.is_some_and(|(dir, reclaim)| path.starts_with(dir) && reclaim())
                    || self.removed.load(Ordering::Acquire) != before
            };
            match call() {
                Err(error) if is_full(&error) && has_room() => {}
                result => return result,
            }
        }
    }
}

fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded)
}

impl fmt::Debug for ReclaimIo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.io.fmt(f)
    }
}

impl fmt::Debug for ReclaimFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.file.fmt(f)
    }
}

#[deny(clippy::missing_trait_methods)]
impl Io for ReclaimIo {
    crate::forward_io!(
        this => this.io;
        list, sync_dir, boot_id, unix_time_s, monotonic, absolute, free_bytes, file_id,
        canonicalize, opened_by
    );

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn IoFile>> {
        let file = self.retry(path, || self.io.open(path, mode))?;
        Ok(match mode {
            OpenMode::Read | OpenMode::ReadImmutable | OpenMode::ReadDirect => file,
            OpenMode::ReadWrite | OpenMode::Create | OpenMode::CreateEmpty => {
                let (path, io) = (path.to_owned(), self.clone());
                Box::new(ReclaimFile { path, file, io })
            }
        })
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.retry(path, || self.io.create_dir(path))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.retry(to, || self.io.rename(from, to))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.io.remove(path)?;
        self.removed.fetch_add(1, Ordering::Release);
        Ok(())
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.retry(to, || self.io.link(from, to))
    }

    fn open_dir(&self, dir: &Path) -> io::Result<Option<Arc<dyn Io>>> {
        let opened = self.io.open_dir(dir)?;
        Ok(opened.map(|io| -> Arc<dyn Io> {
            let reclaim = Arc::clone(&self.reclaim);
            let removed = Arc::clone(&self.removed);
            Arc::new(ReclaimIo {
                io,
                reclaim,
                removed,
            })
        }))
    }
}

#[deny(clippy::missing_trait_methods)]
impl IoFile for ReclaimFile {
    crate::forward_io!(
        this => this.file;
        read_at, read_cached_at, read_once_at, invalidate_cache, is_direct, openings,
        start_write_out, len, is_empty, try_lock, try_lock_shared, id, shared
    );

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        self.io
            .retry(&self.path, || self.file.write_at(bytes, offset))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.io.retry(&self.path, || self.file.set_len(len))
    }

    // Not repeated: after a failed sync, another one would prove nothing.
    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::fault::FaultIo;
    use crate::io::write_all_at;

    /// A disk of 100 bytes with an old file of 50, and an empty file of a store.
    fn nearly_full() -> (FaultIo, ReclaimIo, Box<dyn IoFile>) {
        let disk = FaultIo::new();
        disk.create_dir("/store".as_ref()).unwrap();
        disk.write("/old", &[7; 50]);
        disk.set_capacity_bytes(Some(100));
        let io = ReclaimIo::new(Arc::new(disk.clone()));
        let file = io.open("/store/a".as_ref(), OpenMode::Create).unwrap();
        (disk, io, file)
    }

    #[test]
    fn a_write_fails_for_lack_of_space_only_once_nothing_can_be_removed() {
        let (disk, io, file) = nearly_full();
        let full = |written: io::Result<()>| is_full(&written.unwrap_err());
        assert!(full(write_all_at(&*file, &[1; 80], 0)));
        let removed = disk.clone();
        io.reclaim_with("/store".as_ref(), move || {
            removed.remove("/old".as_ref()).is_ok()
        });
        write_all_at(&*file, &[1; 80], 0).unwrap();
        assert_eq!(disk.files(), [Path::new("/store/a")]);
        let copy = io.open("/copy".as_ref(), OpenMode::Create).unwrap();
        disk.write("/old", b"");
        assert!(full(write_all_at(&*copy, &[1; 80], 0)), "elsewhere");
        assert!(disk.read("/old").is_some());
        assert!(full(write_all_at(&*file, &[1; 80], 80)));
    }

    #[test]
    fn a_write_is_repeated_if_another_thread_removed_a_file_after_it_had_failed() {
        let (_, io, file) = nearly_full();
        let other = ReclaimIo {
            reclaim: Arc::default(),
            ..io.clone()
        };
        io.reclaim_with("/store".as_ref(), move || {
            let _ = other.remove("/old".as_ref());
            false
        });
        write_all_at(&*file, &[1; 80], 0).unwrap();
        assert!(is_full(&write_all_at(&*file, &[1; 80], 80).unwrap_err()));
    }
}
