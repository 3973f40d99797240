//! Many entries at once, sorted: written straight to runs, beside the log and the memtables.
//!
//! ```text
//!   add       ─> run files without a description, each up to the tree's target size     nobody sees them, nobody waits
//!   commit    ─> flush ─┬ no more writes                                               ┬─> writes go on
//!                       └ flush the rest ─> number @S, in the log ─> descriptions @S   │
//!                                           ─> manifest ─> visible up to S ─> super version ───┘
//! ```
//!
//! All entries have one sequence number, which is taken last: they are newer than what was written before the commit,
//! and older than what is after. The memtables are flushed first, so that everything up to S is in runs, as it is after
//! a flush: recovery, checkpoints and repairs meet nothing new. While writes wait, a description of a few hundred bytes
//! is written and synced for each run, and the manifest; the pages are on stable storage before.
//!
//! S becomes visible before the runs are shown, and no snapshot is taken in between. So whoever sees the runs sees S, and a
//! compaction never meets a version that is newer than what readers go by.
//!
//! Cut short anywhere before the manifest, there are files that it does not name, which the next opening removes, and at
//! most a record in the log of a number that nothing has.

use std::path::PathBuf;
use std::sync::Arc;

use forerun_core::ProcessBound;
use forerun_core::sync::PoisonError;

use super::keyspace_data::KeyspaceData;
use super::published_sequence::Hole;
use super::work::{Patience, Task};
use super::{Inner, Open};
use crate::panics;
use crate::run::{self, INGESTED_SEQUENCE, PendingRun, Run, RunWriter};
use crate::tree::limiter;
use crate::versions::{Kind, Version};
use crate::{Background, Error, Op, Result};

/// Entries on their way into a store, in ascending order: for loading much at once. They are written once, to where
/// compaction would bring them in the end, and not to the log and a memtable first.
///
/// Other writes and reads go on beside it. Nothing of it is visible before [`commit`](Self::commit); dropped without,
/// it leaves nothing.
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
    /// The run in the making.
    writer: Option<RunWriter>,
    /// Those that are written, but for their descriptions.
    pending: Vec<PendingRun>,
    /// Number and path of each file that was begun.
    files: Vec<(u64, PathBuf)>,
    last_key: Option<Vec<u8>>,
    /// Why nothing can be added any more.
    failure: Option<Error>,
}

impl Ingestion {
    pub(super) fn new(open: Arc<ProcessBound<Open>>, keyspace: Arc<KeyspaceData>) -> Ingestion {
        Ingestion {
            open,
            keyspace,
            writer: None,
            pending: Vec::new(),
            files: Vec::new(),
            last_key: None,
            failure: None,
        }
    }

    /// Adds: set `key` to `value`.
    ///
    /// # Errors
    /// - [`Error::OutOfOrder`]: the key is not behind the last one, in the store's order. [`Error::KeyTooLong`],
    ///   [`Error::ValueTooLong`]. Nothing is added then, and others can be.
    /// - [`Error::Io`], [`Error::Closed`]: nothing of the ingestion can come in any more.
    pub fn add(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        Op::Put { key, value }.check_lengths()?;
        self.push(key, Kind::Value, value)
    }

    /// Adds: remove `key`, which need not be there.
    ///
    /// # Errors
    /// As [`add`](Self::add).
    pub fn delete(&mut self, key: &[u8]) -> Result<()> {
        Op::Delete { key }.check_lengths()?;
        self.push(key, Kind::Deletion, &[])
    }

    /// Makes all that was added visible, at once, and durable, whatever [`Options::durability`](crate::Options) says; it
    /// is newer than all that was written before. Returns its sequence number; if nothing was added, that of the newest
    /// visible operation.
    ///
    /// Everything that is in memory is flushed on the way. Writes wait for the last part of that, and for a short write
    /// and a sync for each run; reads do not.
    ///
    /// # Errors
    /// [`Error::Io`], and what flushing meets: nothing is visible, and all of it is removed. Only where it was the
    /// manifest that could not be written, it is open whether all is there after the next opening, or nothing.
    /// [`Error::Poisoned`], [`Error::Closed`], [`Error::KeyspaceDropped`]: there are no writes taken.
    pub fn commit(mut self) -> Result<u64> {
        self.check()?;
        self.end_run()?;
        let inner = &self.open.get()?.inner;
        if self.pending.is_empty() {
            return Ok(inner.published.last());
        }
        let synced = {
            let _guard = inner.directory.enter()?;
            inner.io.sync_dir(&inner.path)
        };
        synced.map_err(|error| Error::io("sync", &inner.path, error))?;
        let pending = std::mem::take(&mut self.pending);
        let sequence = inner.commit_ingestion(&self.keyspace, pending, &mut self.files)?;
        match inner.options.background {
            Background::Threads => inner.work.nudge(),
            // What fails here is not the ingestion: the next write meets it again.
            Background::Caller => drop(inner.work_off()),
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
        // No guard: the file is this ingestion's alone until it is committed, and after a crash or a close the next
        // opening removes it. Whoever goes on adding is told soon, though.
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
        writer.add(version)
    }

    fn end_run(&mut self) -> Result<()> {
        if let Some(writer) = self.writer.take() {
            let _guard = self.open.get()?.inner.directory.enter()?;
            self.pending.push(writer.finish_later()?);
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
            // The files are the parent's, and so is what is not written to them yet.
            std::mem::forget(self.writer.take());
            std::mem::forget(std::mem::take(&mut self.pending));
            return;
        };
        // Where the store was closed, the names may be another's by now; the next opening has removed the files.
        let Ok(_guard) = inner.directory.enter() else {
            return;
        };
        for (_, path) in &self.files {
            // If this fails, the next opening does it: no manifest names the file.
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
    /// Begins the file of a run.
    fn begin_run(
        &self,
        keyspace: &KeyspaceData,
        files: &mut Vec<(u64, PathBuf)>,
    ) -> Result<RunWriter> {
        let _guard = self.directory.enter()?;
        self.with_build(keyspace, u64::MAX, |build| {
            let number = build.numbers.take();
            let path = run::path(build.dir, number);
            files.push((number, path.clone()));
            let mut writer = RunWriter::create(
                build.io,
                &path,
                build.order,
                build.comparator,
                build.options,
            )?;
            writer.note_keyspace(build.keyspace.0, build.keyspace.1);
            Ok(writer)
        })
    }

    /// Gives the runs a sequence number and puts them into the tree. Those of `files` that are to be removed are left.
    fn commit_ingestion(
        &self,
        keyspace: &Arc<KeyspaceData>,
        pending: Vec<PendingRun>,
        files: &mut Vec<(u64, PathBuf)>,
    ) -> Result<u64> {
        // Most of what is in memory is flushed while writes go on, and there is room in level 0, should it be needed.
        self.flush_all()?;
        self.wait_until(|| {
            keyspace.check_takes_writes()?;
            let stop_runs = keyspace.options.load().tree.level0_stop_runs;
            let is_done = keyspace.version.load().levels.level(0).runs().len() < stop_runs;
            self.or_fails(is_done, Task::Compact, Patience::UntilRepeated)
        })?;
        let mut active = self.active.write().unwrap_or_else(PoisonError::into_inner);
        keyspace.check_takes_writes()?;
        self.flush_under_lock(&mut active)?;
        // Closing waits for this: from here on the files must be ours until the manifest is written.
        let guard = self.directory.enter()?;
        self.tree.catalog().write_again()?;
        let sequence = self.log_ingestion()?;
        let installed = self.guard("committing an ingestion", || {
            let runs = self.describe(keyspace, pending, files, sequence)?;
            // Installed, or in doubt: the catalog knows which of the files are to go.
            files.clear();
            self.install_ingestion(&guard, keyspace, runs, sequence, &mut active)
        });
        if self.published.last() < sequence {
            // Nothing was installed, so nothing has this number, and what is written next must not wait for it.
            let visible = self.published.publish(sequence, sequence);
            visible.map_err(|Hole| self.poisoned())?;
        }
        installed.map(|()| sequence)
    }

    /// Completes the runs, and opens them.
    fn describe(
        &self,
        keyspace: &KeyspaceData,
        pending: Vec<PendingRun>,
        files: &[(u64, PathBuf)],
        sequence: u64,
    ) -> Result<Vec<Arc<Run>>> {
        let runs = pending.into_iter().zip(files);
        let open = |(pending, (number, path)): (PendingRun, &(u64, PathBuf))| {
            pending.finish(&*self.io, sequence)?;
            let order = keyspace.order().clone();
            Run::open(&*self.io, path, *number, order, &self.cache).map(Arc::new)
        };
        runs.map(open).collect()
    }
}

#[cfg(test)]
#[path = "ingest_tests.rs"]
mod tests;
