//! A file system in which one directory is locked: nothing in the directory is changed once its
//! lock file is gone.
//!
//! ```text
//!   create, rename, remove, link, sync ──> is LOCK still the locked file? ─┬─ yes ──> the file system
//!                                                                          └─ no ───> refused from now on
//! ```
//!
//! Someone may remove the files of an open store, or its whole directory, and another process may
//! then create a store there. That process locks another `LOCK`, so both would write the same
//! names. The directory itself is open ([`Io::open_dir`]), so that a store follows its directory
//! when it is renamed; here the contents are watched. Between a check and the call that it precedes
//! there is a moment in which files could still be exchanged. A change counts as made only after
//! the sync that follows it, and the sync checks again.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forerun_core::sync::atomic::{AtomicBool, Ordering};

use super::{FileId, Io, IoFile, OpenMode, leads_to};
use crate::error::DirectoryGone;

/// A file system, and a directory in it that is locked.
#[derive(Debug)]
pub(crate) struct LockedDir {
    io: Arc<dyn Io>,
    watch: Arc<Watch>,
}

#[derive(Debug)]
struct Watch {
    /// Finds the files of the directory.
    io: Arc<dyn Io>,
    dir: PathBuf,
    lock: PathBuf,
    /// The file that is locked, if files have an identity.
    locked: Option<FileId>,
    /// Whether the lock file was found to be gone. Relaxed throughout: a hint to threads that have
    /// not looked themselves.
    is_gone: AtomicBool,
}

/// A file in the directory, open for writing.
#[derive(Debug)]
struct LockedFile {
    file: Box<dyn IoFile>,
    watch: Arc<Watch>,
}

impl LockedDir {
    /// `lock` is the path of the file in `dir` that was locked, and `locked` its identity.
    pub(crate) fn new(
        io: &Arc<dyn Io>,
        dir: &Path,
        lock: &Path,
        locked: Option<FileId>,
    ) -> LockedDir {
        LockedDir {
            io: Arc::clone(io),
            watch: Arc::new(Watch {
                io: Arc::clone(io),
                dir: dir.to_owned(),
                lock: lock.to_owned(),
                locked,
                is_gone: AtomicBool::new(false),
            }),
        }
    }

    /// Called before a change of this path.
    fn check(&self, path: &Path) -> io::Result<()> {
        if self.is_inside(path) {
            self.watch.check()
        } else {
            Ok(())
        }
    }

    fn is_inside(&self, path: &Path) -> bool {
        path == self.watch.dir || path.parent() == Some(&self.watch.dir)
    }
}

impl Watch {
    /// Looks whether the lock file is still there.
    ///
    /// # Errors
    /// [`DirectoryGone`]; that of the system if it cannot tell.
    fn check(&self) -> io::Result<()> {
        self.check_known()?;
        if !leads_to(&*self.io, &self.lock, self.locked)? {
            self.is_gone.store(true, Ordering::Relaxed);
        }
        self.check_known()
    }

    /// Like [`check`](Self::check), but does not look.
    fn check_known(&self) -> io::Result<()> {
        if self.is_gone.load(Ordering::Relaxed) {
            Err(io::Error::other(DirectoryGone(self.dir.clone())))
        } else {
            Ok(())
        }
    }
}

#[deny(clippy::missing_trait_methods)]
impl Io for LockedDir {
    crate::forward_io!(
        this => this.io;
        list, boot_id, unix_time_s, monotonic, absolute, free_bytes, file_id, canonicalize,
        opened_by
    );

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn IoFile>> {
        let is_read = matches!(
            mode,
            OpenMode::Read | OpenMode::ReadImmutable | OpenMode::ReadDirect
        );
        if is_read || !self.is_inside(path) {
            return self.io.open(path, mode);
        }
        self.watch.check()?;
        Ok(Box::new(LockedFile {
            file: self.io.open(path, mode)?,
            watch: Arc::clone(&self.watch),
        }))
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.check(path)?;
        self.io.create_dir(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.check(to)?;
        self.io.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.check(path)?;
        self.io.remove(path)
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.check(to)?;
        self.io.link(from, to)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.check(dir)?;
        self.io.sync_dir(dir)
    }

    fn open_dir(&self, dir: &Path) -> io::Result<Option<Arc<dyn Io>>> {
        let opened = self.io.open_dir(dir)?;
        Ok(opened.map(|io| -> Arc<dyn Io> {
            let watch = Arc::clone(&self.watch);
            Arc::new(LockedDir { io, watch })
        }))
    }
}

#[deny(clippy::missing_trait_methods)]
impl IoFile for LockedFile {
    crate::forward_io!(
        this => this.file;
        read_at, read_cached_at, read_once_at, invalidate_cache, is_direct, openings,
        start_write_out, len, is_empty, try_lock, try_lock_shared, id, shared
    );

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        self.watch.check_known()?;
        self.file.write_at(bytes, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.watch.check_known()?;
        self.file.set_len(len)
    }

    fn sync(&self) -> io::Result<()> {
        self.watch.check()?;
        self.file.sync()
    }
}
