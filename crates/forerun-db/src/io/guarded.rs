//! A user's file system; its panics become failed calls.
//!
//! Every call is caught here, in one place, so that a panic is handled like a failed call: a write
//! that may be half in the log is cut back, and a flush is retried.

use std::fs::File;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use forerun_core::sync::time;

use super::{Io, IoFile, OpenMode};

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

#[deny(clippy::missing_trait_methods)]
impl Io for GuardedIo {
    crate::forward_io!(
        this => this.0, |name, call| guard(name, call);
        list, create_dir, rename, remove, link, sync_dir, absolute, free_bytes, file_id,
        canonicalize
    );

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn IoFile>> {
        let file = guard("open", || self.0.open(path, mode))?;
        Ok(Box::new(GuardedFile(file)))
    }

    fn boot_id(&self) -> Option<u128> {
        // Without a number, recovery assumes that the power was lost.
        guard("boot_id", || Ok(self.0.boot_id())).unwrap_or(None)
    }

    fn open_dir(&self, dir: &Path) -> io::Result<Option<Arc<dyn Io>>> {
        let opened = guard("open_dir", || self.0.open_dir(dir))?;
        Ok(opened.map(|io| -> Arc<dyn Io> { Arc::new(GuardedIo(io)) }))
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

#[deny(clippy::missing_trait_methods)]
impl IoFile for GuardedFile {
    crate::forward_io!(
        this => this.0, |name, call| guard(name, call);
        read_at, read_cached_at, read_once_at, invalidate_cache, write_at, start_write_out, len,
        is_empty, set_len, sync, try_lock, try_lock_shared, id
    );

    fn is_direct(&self) -> bool {
        guard("is_direct", || Ok(self.0.is_direct())).unwrap_or(false)
    }

    fn openings(&self) -> u64 {
        guard("openings", || Ok(self.0.openings())).unwrap_or(0)
    }

    fn shared(&self) -> Option<Arc<File>> {
        // This makes no system call, and reads work without it.
        catch_unwind(AssertUnwindSafe(|| self.0.shared())).unwrap_or(None)
    }
}
