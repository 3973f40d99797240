//! A file system that calls the test before every call that may change a file or a directory.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forerun_db::io::fault::FaultIo;
use forerun_db::io::{Io, IoFile, OpenMode};

/// A call that may change a file or a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Create,
    Write,
    Cut,
    Sync,
    Rename,
    Remove,
    Link,
    CreateDir,
    SyncDir,
}

type Hook = dyn Fn(Change, &Path) -> io::Result<()> + Send + Sync;

/// Passes calls on to a [`FaultIo`]. The hook sees each change first: it may wait, and its error
/// fails the call.
#[derive(Clone)]
pub struct HookIo {
    inner: FaultIo,
    hook: Arc<Hook>,
}

impl HookIo {
    pub fn new(
        inner: &FaultIo,
        hook: impl Fn(Change, &Path) -> io::Result<()> + Send + Sync + 'static,
    ) -> HookIo {
        HookIo {
            inner: inner.clone(),
            hook: Arc::new(hook),
        }
    }
}

impl fmt::Debug for HookIo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HookIo").finish_non_exhaustive()
    }
}

impl Io for HookIo {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn IoFile>> {
        if matches!(mode, OpenMode::Create | OpenMode::CreateEmpty) {
            (self.hook)(Change::Create, path)?;
        }
        Ok(Box::new(HookFile {
            file: self.inner.open(path, mode)?,
            path: path.to_owned(),
            hook: Arc::clone(&self.hook),
        }))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<OsString>> {
        self.inner.list(dir)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        (self.hook)(Change::CreateDir, path)?;
        self.inner.create_dir(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        (self.hook)(Change::Rename, to)?;
        self.inner.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        (self.hook)(Change::Remove, path)?;
        self.inner.remove(path)
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        (self.hook)(Change::Link, to)?;
        self.inner.link(from, to)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        (self.hook)(Change::SyncDir, dir)?;
        self.inner.sync_dir(dir)
    }

    fn boot_id(&self) -> Option<u128> {
        self.inner.boot_id()
    }

    fn free_bytes(&self, dir: &Path) -> io::Result<Option<u64>> {
        self.inner.free_bytes(dir)
    }
}

struct HookFile {
    file: Box<dyn IoFile>,
    path: PathBuf,
    hook: Arc<Hook>,
}

impl fmt::Debug for HookFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.file.fmt(f)
    }
}

impl IoFile for HookFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buffer, offset)
    }

    fn read_cached_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_cached_at(buffer, offset)
    }

    fn read_once_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_once_at(buffer, offset)
    }

    fn invalidate_cache(&self) -> io::Result<()> {
        self.file.invalidate_cache()
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        (self.hook)(Change::Write, &self.path)?;
        self.file.write_at(bytes, offset)
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        (self.hook)(Change::Cut, &self.path)?;
        self.file.set_len(len)
    }

    fn sync(&self) -> io::Result<()> {
        (self.hook)(Change::Sync, &self.path)?;
        self.file.sync()
    }

    fn try_lock(&self) -> io::Result<bool> {
        self.file.try_lock()
    }
}
