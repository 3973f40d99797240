//! Flushes, compactions, bulk loads, checkpoints and verification, on request.

use std::path::Path;
use std::sync::Arc;

use super::{Db, Ingestion};
use crate::Result;
use crate::tree::file_copy::FileCopyOptions;
use crate::tree::verify::VerifyReport;

impl Db {
    /// Flushes the memtables of all keyspaces to runs. When this returns, everything written before
    /// the call is durable, even without a log.
    ///
    /// ```
    /// use forerun_db::{Db, Options, WalMode};
    ///
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("store");
    /// let db = Db::open(&path, Options::default().wal(WalMode::Off))?;
    /// db.put("paris", "48.85,2.35")?;
    /// db.flush()?; // without this, closing the store would lose the write
    /// db.close()?;
    /// let db = Db::open(path, Options::default())?;
    /// assert!(db.get("paris")?.is_some());
    /// # Ok::<(), forerun_db::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io): nothing is lost; the entries stay in memory and in the log.
    /// [`Error::Closed`](crate::Error::Closed).
    pub fn flush(&self) -> Result<()> {
        self.inner()?.flush_all()
    }

    /// Flushes, then merges all runs of each keyspace into its last level. Overwritten and deleted
    /// entries that no snapshot sees are dropped. The store compacts as needed by itself; a full
    /// compaction reclaims the remaining space and makes later reads and writes cheaper.
    ///
    /// ```
    /// use forerun_db::{Db, Options};
    ///
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("store");
    /// let db = Db::open(path, Options::default())?;
    /// db.put("paris", "a first value")?;
    /// db.flush()?;
    /// db.put("paris", "48.85,2.35")?;
    /// db.compact()?;
    /// let stats = db.stats();
    /// assert_eq!(stats.levels.iter().map(|level| level.runs).sum::<usize>(), 1);
    /// # Ok::<(), forerun_db::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`flush`](Self::flush), and
    /// [`Error::CompactionFailed`](crate::Error::CompactionFailed): the runs of one keyspace cannot
    /// be compacted, for example because one is damaged. All other keyspaces are compacted.
    pub fn compact(&self) -> Result<()> {
        let inner = self.inner()?;
        let keyspaces: Vec<_> = inner.keyspaces.load().iter().cloned().collect();
        inner.compact_all(&keyspaces)
    }

    /// Waits until no memtable waits to be flushed, no compaction is due, no run is left in which
    /// everything is deleted or expired, obsolete files are deleted, except those that a reader
    /// still holds, and the indexes and filters of runs are in memory, except those that are
    /// damaged, cannot be read, or for which
    /// [`Options::cache_bytes`](crate::Options::cache_bytes) is too small. Entries in the active
    /// memtable stay there: call [`flush`](Self::flush) first to write them out. While other
    /// threads keep writing, this may not return.
    ///
    /// ```
    /// use forerun_db::{Db, Options};
    ///
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("store");
    /// let db = Db::open(path, Options::default())?;
    /// for n in 0..1000_u32 {
    ///     db.put(&n.to_be_bytes(), b"value")?;
    /// }
    /// db.flush()?;
    /// db.wait_idle()?;
    /// assert!(!db.stats().is_compaction_due);
    /// # Ok::<(), forerun_db::Error>(())
    /// ```
    ///
    /// # Errors
    /// - [`Error::Io`](crate::Error::Io): a flush failed, or a manifest whose last write failed
    ///   still cannot be written. Nothing is lost, and the store tries again.
    /// - [`Error::CompactionFailed`](crate::Error::CompactionFailed): the runs of one keyspace
    ///   cannot be compacted. The work of all other keyspaces is done.
    /// - [`Error::Poisoned`](crate::Error::Poisoned): flushing or compacting panicked.
    /// - [`Error::Panicked`](crate::Error::Panicked): a comparator panicked in this call.
    /// - [`Error::Closed`](crate::Error::Closed): the store is closed or was closed during the
    ///   call.
    ///
    /// Earlier failures do not count: this retries failed work at once, and returns an error only
    /// if it fails again.
    pub fn wait_idle(&self) -> Result<()> {
        self.inner()?.wait_idle()
    }

    /// Starts a bulk load of entries in ascending key order, which bypasses the log and the
    /// memtables: see [`Ingestion`]. Nothing is visible before [`Ingestion::commit`].
    pub fn ingest(&self) -> Ingestion {
        let own = Arc::clone(self.open.constant(|open| &open.inner.keyspaces.own));
        Ingestion::new(Arc::clone(&self.open), own)
    }

    /// Changes how many bytes flushes, compactions, copies and ingestions may write per second,
    /// initially [`TreeOptions::write_rate_bytes`](crate::TreeOptions::write_rate_bytes). `None`
    /// removes the limit.
    ///
    /// ```
    /// use forerun_db::{Db, Options};
    ///
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("store");
    /// let db = Db::open(path, Options::default())?;
    /// db.set_write_rate(Some(100 << 20)); // 100 MiB/s by day
    /// db.set_write_rate(None);
    /// # Ok::<(), forerun_db::Error>(())
    /// ```
    pub fn set_write_rate(&self, bytes_per_second: Option<u64>) {
        if let Ok(inner) = self.inner() {
            inner.tree.limiter.set(bytes_per_second);
        }
    }

    /// Copies the store, as it is now, into the directory `into`, which must be empty or not exist.
    /// Where the file system allows it, runs are hard-linked instead of copied. Reads and writes
    /// continue. The copy includes the writes made during the call up to some point in their order.
    ///
    /// ```
    /// use forerun_db::{Db, Options};
    ///
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let (path, copy) = (directory.path().join("store"), directory.path().join("copy"));
    /// let db = Db::open(path, Options::default())?;
    /// db.put(b"key", b"value")?;
    /// db.checkpoint(&copy)?;
    /// db.delete(b"key")?;
    /// let copy = Db::open(copy, Options::default())?;
    /// assert_eq!(copy.get(b"key")?.as_deref(), Some(&b"value"[..]));
    /// # Ok::<(), forerun_db::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::AlreadyExists`](crate::Error::AlreadyExists): `into` is not empty.
    /// [`Error::InsideStore`](crate::Error::InsideStore): `into` is inside the store's directory.
    /// [`Error::Io`](crate::Error::Io): the partial copy is removed.
    /// [`Error::Poisoned`](crate::Error::Poisoned): the log may end with a write that failed. Also
    /// the errors of [`flush`](Self::flush).
    pub fn checkpoint(&self, into: impl AsRef<Path>) -> Result<()> {
        self.checkpoint_with(into, &FileCopyOptions::default())
    }

    /// [`checkpoint`](Self::checkpoint) at a limited rate, with progress, and with a way to stop
    /// it. Runs that can be linked count as done at once.
    ///
    /// # Errors
    /// Those of [`checkpoint`](Self::checkpoint), and
    /// [`Error::Interrupted`](crate::Error::Interrupted).
    /// [`Error::Panicked`](crate::Error::Panicked): a function of the caller panicked. In all
    /// cases, the partial copy is removed.
    pub fn checkpoint_with(&self, into: impl AsRef<Path>, options: &FileCopyOptions) -> Result<()> {
        self.inner()?.checkpoint(into.as_ref(), options)
    }

    /// Reads every byte of the store's runs and checks checksums, key order, counts, filters and
    /// key ranges. The result lists what is wrong. (The log is checked at each opening.)
    ///
    /// ```
    /// use forerun_db::{Db, Options};
    ///
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("store");
    /// let db = Db::open(path, Options::default())?;
    /// db.put("paris", "48.85,2.35")?;
    /// db.flush()?;
    /// let report = db.verify()?;
    /// assert_eq!((report.runs, report.entries), (1, 1));
    /// assert!(report.problems.is_empty());
    /// # Ok::<(), forerun_db::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Closed`](crate::Error::Closed): the store was closed during the check.
    pub fn verify(&self) -> Result<VerifyReport> {
        self.inner()?.verify()
    }
}
