//! Copies of a store's files, for backups, restorations and checkpoints.
//!
//! ```text
//!   source ──read_once──> piece ──> hash, copy ──> Meter: progress, stop, rate of the copy, budget of the store
//!                                                  └─ sync ──> the system forgets the copy's pages
//! ```
//!
//! What the system has of the source in memory stays there, and nothing is added: a copy of a
//! large store must not evict what readers need.

use std::fmt;
use std::hash::Hasher;
use std::path::Path;
use std::sync::Arc;

use forerun_core::setters;
use forerun_core::sync::atomic::AtomicBool;
use twox_hash::XxHash3_64;

use crate::io::{Io, IoFile, OpenMode, read_pieces, write_all_at};
use crate::tree::limiter::{self, IoClass, RateLimiter};
use crate::{Error, Result, panics};

/// The progress of a backup, a restoration, a verification of backups, or a checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct CopyProgress {
    /// Bytes done.
    pub done_bytes: u64,
    /// Bytes in total.
    pub total_bytes: u64,
}

/// How fast files are copied or backups verified, who is told, and who may stop it.
///
/// ```
/// use forerun_db::{FileCopyOptions, Db, Options};
///
/// # let directory = tempfile::tempdir().unwrap();
/// # let (path, copy) = (directory.path().join("store"), directory.path().join("copy"));
/// let db = Db::open(path, Options::default())?;
/// let options = FileCopyOptions::default()
///     .rate_bytes(50 << 20) // 50 MiB/s
///     .on_progress(|of| println!("{} of {} bytes", of.done_bytes, of.total_bytes));
/// db.checkpoint_with(copy, &options)?;
/// # Ok::<(), forerun_db::Error>(())
/// ```
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct FileCopyOptions {
    /// The maximum number of bytes to copy, or to verify, per second; 0 for no limit. Default:
    /// none, so that only [`TreeOptions::write_rate_bytes`](crate::TreeOptions::write_rate_bytes)
    /// of the store limits it.
    pub rate_bytes: Option<u64>,
    on_progress: Option<Arc<dyn Fn(CopyProgress) + Send + Sync>>,
    interrupt: Option<Arc<dyn Fn() -> bool + Send + Sync>>,
}

setters! {
    FileCopyOptions {} into {
        rate_bytes: Option<u64>,
    }
}

impl FileCopyOptions {
    /// Sets a function that is called with the progress, every few hundred kilobytes, on the
    /// calling thread. If it panics, the copy ends with [`Error::Panicked`]. It must not close the
    /// store: closing waits for the copy.
    #[must_use]
    pub fn on_progress(mut self, watch: impl Fn(CopyProgress) + Send + Sync + 'static) -> Self {
        self.on_progress = Some(Arc::new(watch));
        self
    }

    /// Sets a function that is asked whether to stop, on the calling thread: before each file,
    /// every few hundred kilobytes, and while the copy waits for its rate. If it returns `true`,
    /// the copy ends with [`Error::Interrupted`].
    #[must_use]
    pub fn interrupt_if(mut self, ask: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        self.interrupt = Some(Arc::new(ask));
        self
    }
}

impl fmt::Debug for FileCopyOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileCopyOptions")
            .field("rate_bytes", &self.rate_bytes)
            .finish_non_exhaustive()
    }
}

/// The open store that is copied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CopiedStore<'a> {
    /// Its budget.
    pub(crate) limiter: &'a RateLimiter,
    /// Set when it is being closed.
    pub(crate) stop: &'a AtomicBool,
}

/// Work on bytes that keeps to a rate, reports its progress and can be stopped.
pub(crate) struct Meter<'a> {
    options: &'a FileCopyOptions,
    rate: RateLimiter,
    store: Option<CopiedStore<'a>>,
    progress: CopyProgress,
}

impl<'a> Meter<'a> {
    /// A meter for work on this many bytes.
    pub(crate) fn new(
        options: &'a FileCopyOptions,
        store: Option<CopiedStore<'a>>,
        total_bytes: u64,
    ) -> Self {
        Meter {
            options,
            rate: RateLimiter::new(options.rate_bytes),
            store,
            progress: CopyProgress {
                done_bytes: 0,
                total_bytes,
            },
        }
    }

    /// Notes bytes that were copied or read, and waits as long as the rates require.
    ///
    /// # Errors
    /// Those of [`check`](Self::check).
    fn add(&mut self, bytes: usize) -> Result<()> {
        self.skip(bytes as u64)?;
        let check = || self.check();
        self.rate.take_while(bytes as u64, IoClass::Copy, check)?;
        match self.store {
            Some(store) => store.limiter.take_while(bytes as u64, IoClass::Copy, check),
            None => Ok(()),
        }
    }

    /// Notes bytes that need not be copied.
    ///
    /// # Errors
    /// Those of [`check`](Self::check).
    pub(crate) fn skip(&mut self, bytes: u64) -> Result<()> {
        self.progress.done_bytes += bytes;
        if let Some(watch) = &self.options.on_progress {
            panics::catch("reporting the progress of a copy", || {
                watch(self.progress);
                Ok(())
            })?;
        }
        self.check()
    }

    /// # Errors
    /// [`Error::Closed`]: the store is closing. [`Error::Interrupted`]. [`Error::Panicked`]: the
    /// user's function panicked.
    pub(crate) fn check(&self) -> Result<()> {
        if let Some(store) = self.store {
            limiter::check(store.stop)?;
        }
        let Some(ask) = &self.options.interrupt else {
            return Ok(());
        };
        if panics::catch("asking whether to stop", || Ok(ask()))? {
            Err(Error::Interrupted)
        } else {
            Ok(())
        }
    }
}

/// A copy is synced each time it has grown by so much: otherwise, the system has all of a large
/// file to write at once, and the syncs of others wait for it.
const SYNC_BYTES: u64 = 8 << 20;

/// What becomes of a copy's pages in the system's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyPages {
    /// They stay for the caller, who verifies the copy and drops them then.
    Keep,
    Drop,
}

/// Copies the first `len` bytes of a file to a new one, durably, and returns their XXH3 hash. The
/// source's handle is used for nothing else.
pub(crate) fn copy(
    (source, path): (&dyn IoFile, &Path),
    io: &dyn Io,
    to: &Path,
    pages: CopyPages,
    len: u64,
    meter: &mut Meter<'_>,
) -> Result<u64> {
    meter.check()?;
    let copy = io
        .open(to, OpenMode::CreateEmpty)
        .map_err(|error| Error::io("create", to, error))?;
    let mut hasher = XxHash3_64::with_seed(0);
    let read = |buffer: &mut [u8], at| source.read_once_at(buffer, at);
    let unread = |error| Error::io("read", path, error);
    let sync = || -> Result<()> {
        copy.sync().map_err(|error| Error::io("sync", to, error))?;
        if pages == CopyPages::Drop {
            // If this fails, the pages stay until others need the memory.
            let _ = copy.invalidate_cache();
        }
        Ok(())
    };
    let mut unsynced_bytes = 0;
    read_pieces(read, len, unread, |piece, offset| {
        hasher.write(piece);
        write_all_at(&*copy, piece, offset).map_err(|error| Error::io("write", to, error))?;
        unsynced_bytes += piece.len() as u64;
        if unsynced_bytes >= SYNC_BYTES {
            sync()?;
            unsynced_bytes = 0;
        }
        meter.add(piece.len())
    })?;
    sync()?;
    Ok(hasher.finish())
}

/// Reads the first `len` bytes of a file, and returns their XXH3 hash. The handle is used for
/// nothing else.
pub(crate) fn hash(
    (file, path): (&dyn IoFile, &Path),
    len: u64,
    meter: &mut Meter<'_>,
) -> Result<u64> {
    let mut hasher = XxHash3_64::with_seed(0);
    let read = |buffer: &mut [u8], at| file.read_once_at(buffer, at);
    let unread = |error| Error::io("read", path, error);
    read_pieces(read, len, unread, |piece, _| {
        hasher.write(piece);
        meter.add(piece.len())
    })?;
    Ok(hasher.finish())
}
