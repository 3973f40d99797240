//! A file system that calls the test before every call that may change a file or a directory.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forerun_db::forward_io;
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
    forward_io!(this => this.inner; list, boot_id, free_bytes);

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
    forward_io!(
        this => this.file;
        read_at, read_cached_at, read_once_at, invalidate_cache, len, try_lock
    );

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        (self.hook)(Change::Write, &self.path)?;
        self.file.write_at(bytes, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        (self.hook)(Change::Cut, &self.path)?;
        self.file.set_len(len)
    }

    fn sync(&self) -> io::Result<()> {
        (self.hook)(Change::Sync, &self.path)?;
        self.file.sync()
    }
}
