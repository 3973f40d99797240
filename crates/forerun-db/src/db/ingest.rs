//! Bulk loading of sorted entries: directly to runs, bypassing the log and the memtables.
//!
//! ```text
//!   add      -> run files without a description, each up to the tree's target size;
//!               no one sees them, and no one waits
//!   commit   -> flush -> stop writes -> flush the rest -> number S, in the log -> descriptions with S
//!               -> manifest -> visible up to S -> super version -> writes continue
//! ```
//!
//! All entries get one sequence number, taken last: they are newer than everything written before
//! the commit and older than everything after it. The memtables are flushed first, so everything up
//! to S is in runs, as after a flush; recovery, checkpoints and repair need no special case. While
//! writes wait, only a description of a few hundred bytes is written and synced for each run,
//! several at a time, and the manifest. The pages are already on stable storage, and indexes and
//! filters are loaded later.
//!
//! No description is written before: a repair without a manifest takes every run it finds, and
//! everything up to the largest number in runs as flushed. So S must not be ahead of the log.
//!
//! S becomes visible before the runs are shown, and no snapshot is taken in between. So a reader
//! that sees the runs sees S, and a compaction never meets a version newer than the number at which
//! readers read.
//!
//! If it is interrupted before the manifest is written, it leaves files that the manifest does not
//! name, which the next opening removes, and at most a log record for an unused sequence number.

use std::path::PathBuf;
use std::sync::Arc;

use forerun_core::ProcessBound;

use super::background_work::{FailOn, Task};
use super::keyspace_data::KeyspaceData;
use super::memtables::HeldFor;
use super::{Inner, Open};
use crate::panics;
use crate::run::{INGESTED_SEQUENCE, PendingRun, Run, RunWriter};
use crate::tree::build;
use crate::tree::levels::{Edit, Ingested};
use crate::tree::limiter::{self, IoClass, RateLimiter};
use crate::tree::open_runs::{make_in_order, threads};
use crate::tree::parallel::Threads;
use crate::tree::place::look_around;
use crate::versions::{Kind, Version};
use crate::{Background, Error, Op, Result, TreeOptions};

/// A bulk load of entries in ascending order. Each entry is written once, straight to where
/// compaction would put it in the end, and not to the log and a memtable first.
///
/// Other reads and writes continue. Nothing is visible before [`commit`](Self::commit); dropping
/// the ingestion discards it.
///
/// ```
/// use forerun_db::{Db, Options};
///
/// # let directory = tempfile::tempdir().unwrap();
/// # let path = directory.path().join("store");
/// let db = Db::open(path, Options::default())?;
/// let mut ingestion = db.ingest();
/// for number in 0..10_000 {
///     ingestion.add(format!("{number:06}").as_bytes(), b"value")?;
/// }
/// assert_eq!(db.get(b"000042")?, None);
/// ingestion.commit()?;
/// assert_eq!(db.get(b"000042")?.as_deref(), Some(&b"value"[..]));
/// # Ok::<(), forerun_db::Error>(())
/// ```
pub struct Ingestion {
    open: Arc<ProcessBound<Open>>,
    keyspace: Arc<KeyspaceData>,
    /// The run being written.
    writer: Option<RunWriter>,
    rate: RateLimiter,
    /// Bytes of complete runs.
    ended_bytes: u64,
    /// Bytes for which the rates have been kept.
    paid_bytes: u64,
    /// Runs whose pages are written and whose descriptions are not.
    pending: Vec<PendingRun>,
    /// Number and path of each file begun.
    files: Vec<(u64, PathBuf)>,
    last_key: Option<Vec<u8>>,
    /// Why nothing more can be added.
    failure: Option<Error>,
}

impl Ingestion {
    pub(super) fn new(open: Arc<ProcessBound<Open>>, keyspace: Arc<KeyspaceData>) -> Ingestion {
        Ingestion {
            open,
            keyspace,
            writer: None,
            rate: RateLimiter::new(None),
            ended_bytes: 0,
            paid_bytes: 0,
            pending: Vec::new(),
            files: Vec::new(),
            last_key: None,
            failure: None,
        }
    }

    /// Sets how many bytes per second are written to runs from now on: [`add`](Self::add) waits as
    /// long as that requires. `None`, the default, is no limit but
    /// [`TreeOptions::write_rate_bytes`] of the store.
    pub fn set_rate(&mut self, bytes_per_second: Option<u64>) {
        self.rate.set(bytes_per_second);
    }

    /// Returns the number of bytes written to runs so far.
    ///
    /// ```
    /// use forerun_db::{Db, Options};
    ///
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("store");
    /// let db = Db::open(path, Options::default())?;
    /// let mut ingestion = db.ingest();
    /// ingestion.set_rate(Some(50 << 20)); // 50 MiB/s
    /// for number in 0..10_000 {
    ///     ingestion.add(format!("{number:06}").as_bytes(), b"value")?;
    /// }
    /// assert!(ingestion.written_bytes() > 0);
    /// ingestion.commit()?;
    /// # Ok::<(), forerun_db::Error>(())
    /// ```
    pub fn written_bytes(&self) -> u64 {
        self.ended_bytes + self.writer.as_ref().map_or(0, RunWriter::written_bytes)
    }

    /// Adds an entry that sets `key` to `value`.
    ///
    /// ```
    /// use forerun_db::{Db, Error, Options};
    ///
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("store");
    /// let db = Db::open(path, Options::default())?;
    /// let mut ingestion = db.ingest();
    /// ingestion.add("oslo", "59.91,10.75")?;
    /// let unordered = ingestion.add("bern", "46.95,7.45");
    /// assert!(matches!(unordered, Err(Error::OutOfOrder { .. })));
    /// ingestion.add("paris", "48.85,2.35")?; // the ingestion continues
    /// ingestion.commit()?;
    /// assert_eq!(db.count()?, 2);
    /// # Ok::<(), forerun_db::Error>(())
    /// ```
    ///
    /// # Errors
    /// - [`Error::OutOfOrder`]: `key` is not greater than the last key in the keyspace's order.
    ///   [`Error::KeyTooLong`], [`Error::ValueTooLong`]. The entry is not added; others still can
    ///   be.
    /// - [`Error::Io`], [`Error::Closed`]: the ingestion can no longer be committed.
    #[inline]
    pub fn add(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.add_slices(key.as_ref(), value.as_ref())
    }

    fn add_slices(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        Op::Put { key, value }.check_lengths()?;
        self.push(key, Kind::Value, value)
    }

    /// Adds an entry that removes `key`, whether or not it exists.
    ///
    /// # Errors
    /// The same as for [`add`](Self::add).
    #[inline]
    pub fn delete(&mut self, key: impl AsRef<[u8]>) -> Result<()> {
        self.delete_slice(key.as_ref())
    }

    fn delete_slice(&mut self, key: &[u8]) -> Result<()> {
        Op::Delete { key }.check_lengths()?;
        self.push(key, Kind::Deletion, &[])
    }

    /// Makes all added entries visible at once and durable, whatever
    /// [`Options::durability`](crate::Options) says. They are newer than everything written before.
    /// Returns their sequence number; if nothing was added, the newest visible one.
    ///
    /// This flushes the memtables. Writes wait for the last part of that flush, and for a short
    /// write and a sync per run, several at a time. Reads do not wait.
    ///
    /// # Errors
    /// [`Error::Io`] and the errors of a flush: nothing is visible, and all files are removed. The
    /// one exception: if writing the manifest failed, the next opening may find either all entries
    /// or none. [`Error::Poisoned`], [`Error::Closed`], [`Error::KeyspaceDropped`]: no writes are
    /// taken.
    pub fn commit(mut self) -> Result<u64> {
        self.check()?;
        // The last page takes the prefixes of its keys.
        let may_panic = self.keyspace.order().may_panic();
        panics::catch_if(may_panic, "writing a run", || self.end_run())?;
        let inner = &self.open.get()?.inner;
        if self.pending.is_empty() {
            return Ok(inner.write_path.visible_sequence());
        }
        let synced = {
            let _guard = inner.directory.enter()?;
            inner.io.sync_dir(&inner.path)
        };
        synced.map_err(|error| Error::io("sync", &inner.path, error))?;
        let sequence = inner.commit_ingestion(&self.keyspace, &self.pending, &mut self.files)?;
        inner.load_filters_after_change();
        match inner.options.background {
            Background::Threads => inner.work.notify(),
            // A failure here does not concern the ingestion; the next write meets it again.
            Background::Caller => drop(inner.run_all_work()),
        }
        Ok(sequence)
    }

    fn push(&mut self, key: &[u8], kind: Kind, value: &[u8]) -> Result<()> {
        self.check()?;
        let order = self.keyspace.order();
        let may_panic = order.may_panic();
        if let Some(last) = &self.last_key {
            let compare = || Ok(order.compare(last, key));
            if panics::catch_if(may_panic, "comparing keys", compare)?.is_ge() {
                return Err(Error::OutOfOrder { key: key.to_vec() });
            }
        }
        let version = Version {
            key,
            sequence: INGESTED_SEQUENCE,
            kind,
            value,
        };
        let written = panics::catch_if(may_panic, "writing a run", || self.write(version));
        if let Err(error) = &written {
            self.failure = Some(error.clone());
        }
        let last = self.last_key.get_or_insert_default();
        last.clear();
        last.extend_from_slice(key);
        written
    }

    fn write(&mut self, version: Version<'_>) -> Result<()> {
        // No guard: until it is committed, only this ingestion uses the file, and after a crash or
        // a close the next opening removes it. The check merely stops a caller that keeps adding
        // entries.
        limiter::check(self.open.get()?.inner.work.stop_flag())?;
        let limit_bytes = self.keyspace.options.load().tree.run_bytes;
        let is_full = |writer: &RunWriter| writer.written_bytes() >= limit_bytes;
        if self.writer.as_ref().is_some_and(is_full) {
            self.end_run()?;
        }
        let inner = &self.open.get()?.inner;
        let writer = match &mut self.writer {
            Some(writer) => writer,
            None => {
                let writer = inner.begin_run(&self.keyspace, &mut self.files)?;
                self.writer.insert(writer)
            }
        };
        writer.add(version)?;
        self.keep_to_rates()
    }

    /// Waits for its own rate, and for its share of the store's.
    fn keep_to_rates(&mut self) -> Result<()> {
        let due_bytes = self.written_bytes() - self.paid_bytes;
        if due_bytes < build::PIECE_BYTES {
            return Ok(());
        }
        self.paid_bytes += due_bytes;
        let inner = &self.open.get()?.inner;
        for limiter in [&self.rate, &inner.tree.limiter] {
            limiter.take(due_bytes, IoClass::Copy, inner.work.stop_flag())?;
        }
        Ok(())
    }

    fn end_run(&mut self) -> Result<()> {
        if let Some(writer) = self.writer.take() {
            let _guard = self.open.get()?.inner.directory.enter()?;
            let run = writer.finish_later()?;
            self.ended_bytes += run.written_bytes();
            self.pending.push(run);
        }
        Ok(())
    }

    fn check(&self) -> Result<()> {
        self.open.get()?;
        match &self.failure {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }
}

impl Drop for Ingestion {
    fn drop(&mut self) {
        let Ok(Open { inner, .. }) = self.open.get() else {
            // The files, and what is not written to them yet, belong to the parent.
            std::mem::forget(self.writer.take());
            std::mem::forget(std::mem::take(&mut self.pending));
            return;
        };
        // If the store was closed, the names may belong to another process by now; the next opening
        // removes the files.
        let Ok(_guard) = inner.directory.enter() else {
            return;
        };
        for (_, path) in &self.files {
            // If this fails, the next opening removes it: no manifest names the file.
            let _ = inner.io.remove(path);
        }
    }
}

impl std::fmt::Debug for Ingestion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ingestion")
            .field("runs", &self.files.len())
            .field("failure", &self.failure)
            .finish_non_exhaustive()
    }
}

impl Inner {
    /// Creates the file of a run.
    fn begin_run(
        &self,
        keyspace: &KeyspaceData,
        files: &mut Vec<(u64, PathBuf)>,
    ) -> Result<RunWriter> {
        let _guard = self.directory.enter()?;
        // Its level is chosen later.
        let level = TreeOptions::BOTTOMMOST_LEVEL;
        build::begin(&self.build(keyspace, level, u64::MAX), files)
    }

    /// Gives the runs a sequence number and adds them to the tree. Leaves the files that must be
    /// removed in `files`.
    fn commit_ingestion(
        &self,
        keyspace: &Arc<KeyspaceData>,
        pending: &[PendingRun],
        files: &mut Vec<(u64, PathBuf)>,
    ) -> Result<u64> {
        // Most of the flush happens while writes continue. Then wait until level 0 has space.
        self.flush_all()?;
        self.wait_until(|| {
            keyspace.check_takes_writes()?;
            let stop_runs = keyspace.options.load().tree.level0_stop_runs;
            let is_done = keyspace.version.load().levels.level0_depth() < stop_runs;
            self.work
                .done_or_fails(is_done, Task::Compact, FailOn::Repeated)
        })?;
        let mut active = self.memtables.hold_active(HeldFor::Ingestion);
        keyspace.check_takes_writes()?;
        self.flush_under_lock(&mut active)?;
        // Closing waits for this guard: the files must be ours until the manifest is written.
        let guard = self.directory.enter()?;
        self.tree.catalog().write_again()?;
        let sequence = self.write_path.log_ingestion()?;
        let installed = self.guard("committing an ingestion", || {
            let edit = Edit {
                ingested: self.describe(keyspace, pending, files, sequence)?,
                ..Edit::default()
            };
            // From here on the runs own their files.
            let edits = self.tree.edits().with(keyspace.id(), edit);
            files.clear();
            self.install_ingestion(&guard, keyspace, edits, sequence, &mut active)
        });
        if self.write_path.visible_sequence() < sequence {
            // Nothing was installed, so nothing has this number, and later writes must not wait for
            // it.
            self.write_path.publish(sequence, sequence)?;
        }
        installed.map(|()| sequence)
    }

    /// Writes the descriptions of the runs, opens them, and finds out how deep they may go.
    fn describe(
        &self,
        keyspace: &KeyspaceData,
        pending: &[PendingRun],
        files: &[(u64, PathBuf)],
        sequence: u64,
    ) -> Result<Vec<Ingested>> {
        // Compactions may change them until the runs are installed, but no version comes in.
        let levels = Arc::clone(&keyspace.version.load().levels);
        let describe = |at: usize| -> Result<Ingested> {
            let (number, path) = &files[at];
            pending[at].finish(&*self.io, sequence)?;
            let (order, cache) = (keyspace.order().clone(), &self.tree.cache);
            let run = Run::open_without_filter(&*self.io, path, *number, order, cache)?;
            Ok(look_around(Arc::new(run), &levels))
        };
        let threads = Threads {
            // They wait for the storage, which can sync several files at once.
            count: threads(&self.options, pending.len()),
            name: "forerun-ingest",
            doing: "committing an ingestion",
        };
        make_in_order(pending.len(), threads, describe)
    }
}

#[cfg(test)]
#[path = "ingest_tests.rs"]
mod tests;
