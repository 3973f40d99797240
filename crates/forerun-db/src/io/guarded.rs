//! A user's file system; its panics become failed calls.
//!
//! Every call is caught here, in one place, so that a panic is handled like a failed call: a write
//! that may be half in the log is cut back, and a flush is retried.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use forerun_core::sync::time;

use super::{FileId, Io, IoFile, OpenMode};

/// Calls another file system.
#[derive(Debug)]
pub(crate) struct GuardedIo(pub(crate) Arc<dyn Io>);

#[derive(Debug)]
struct GuardedFile(Box<dyn IoFile>);

fn guard<T>(name: &str, call: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|payload| {
        let message = forerun_core::panic_message(&*payload);
        Err(io::Error::other(format!(
            "the file system panicked in `{name}`: {message}"
        )))
    })
}

impl Io for GuardedIo {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn IoFile>> {
        let file = guard("open", || self.0.open(path, mode))?;
        Ok(Box::new(GuardedFile(file)))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<OsString>> {
        guard("list", || self.0.list(dir))
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        guard("create_dir", || self.0.create_dir(path))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        guard("rename", || self.0.rename(from, to))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        guard("remove", || self.0.remove(path))
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        guard("link", || self.0.link(from, to))
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        guard("sync_dir", || self.0.sync_dir(dir))
    }

    fn boot_id(&self) -> Option<u128> {
        // Without a number, recovery assumes that the power was lost.
        guard("boot_id", || Ok(self.0.boot_id())).unwrap_or(None)
    }

    fn absolute(&self, path: &Path) -> io::Result<PathBuf> {
        guard("absolute", || self.0.absolute(path))
    }

    fn open_dir(&self, dir: &Path) -> io::Result<Option<Arc<dyn Io>>> {
        let opened = guard("open_dir", || self.0.open_dir(dir))?;
        Ok(opened.map(|io| -> Arc<dyn Io> { Arc::new(GuardedIo(io)) }))
    }

    fn free_bytes(&self, dir: &Path) -> io::Result<Option<u64>> {
        guard("free_bytes", || self.0.free_bytes(dir))
    }

    fn file_id(&self, path: &Path) -> io::Result<Option<FileId>> {
        guard("file_id", || self.0.file_id(path))
    }

    fn canonicalize(&self, path: &Path) -> io::Result<PathBuf> {
        guard("canonicalize", || self.0.canonicalize(path))
    }

    fn opened_by(&self, path: &Path) -> Vec<u32> {
        guard("opened_by", || Ok(self.0.opened_by(path))).unwrap_or_default()
    }

    fn unix_time_s(&self) -> u64 {
        guard("unix_time_s", || Ok(self.0.unix_time_s())).unwrap_or_else(|_| super::system_time_s())
    }

    fn monotonic(&self) -> Instant {
        guard("monotonic", || Ok(self.0.monotonic())).unwrap_or_else(|_| time::now())
    }
}

impl IoFile for GuardedFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        guard("read_at", || self.0.read_at(buffer, offset))
    }

    fn read_cached_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        guard("read_cached_at", || self.0.read_cached_at(buffer, offset))
    }

    fn read_once_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        guard("read_once_at", || self.0.read_once_at(buffer, offset))
    }

    fn invalidate_cache(&self) -> io::Result<()> {
        guard("invalidate_cache", || self.0.invalidate_cache())
    }

    fn openings(&self) -> u64 {
        guard("openings", || Ok(self.0.openings())).unwrap_or(0)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        guard("write_at", || self.0.write_at(bytes, offset))
    }

    fn len(&self) -> io::Result<u64> {
        guard("len", || self.0.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        guard("set_len", || self.0.set_len(len))
    }

    fn sync(&self) -> io::Result<()> {
        guard("sync", || self.0.sync())
    }

    fn try_lock(&self) -> io::Result<bool> {
        guard("try_lock", || self.0.try_lock())
    }

    fn try_lock_shared(&self) -> io::Result<bool> {
        guard("try_lock_shared", || self.0.try_lock_shared())
    }

    fn id(&self) -> io::Result<Option<FileId>> {
        guard("id", || self.0.id())
    }

    fn shared(&self) -> Option<Arc<File>> {
        // This makes no system call, and reads work without it.
        catch_unwind(AssertUnwindSafe(|| self.0.shared())).unwrap_or(None)
    }
}
