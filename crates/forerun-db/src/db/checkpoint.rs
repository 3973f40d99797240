//! Copies of an open store, and a look at every byte of it.

use forerun_core::sync::atomic::AtomicBool;
use std::path::Path;
use std::sync::Arc;

use forerun_core::sync::PoisonError;

use super::commit::Commit;
use super::keyspace_data::KeyspaceData;
use super::write::Writer;
use super::{Db, Inner};
use crate::cache::PageCache;
use crate::io::OpenMode;
use crate::tree::catalog::CatalogSnapshot;
use crate::tree::checkpoint::LogEnd;
use crate::tree::verify::{Verified, verify_levels};
use crate::wal::segment;
use crate::{Error, Result, panics};

/// What a backup is made of, and what it takes to look at it.
pub(crate) struct BackupSource<'a> {
    pub(crate) catalog: CatalogSnapshot,
    pub(crate) cache: &'a Arc<PageCache>,
    /// Set when the store is being closed.
    pub(crate) stop: &'a AtomicBool,
}

impl Db {
    /// The store as it is now, all of it in runs. Writes wait while what came in during the flush is flushed as well.
    pub(crate) fn backup_source(&self) -> Result<BackupSource<'_>> {
        let inner = self.inner()?;
        inner.flush_all()?;
        let mut active = inner.active.write().unwrap_or_else(PoisonError::into_inner);
        inner.flush_under_lock(&mut active)?;
        Ok(BackupSource {
            catalog: inner.tree.catalog().snapshot(),
            cache: &inner.cache,
            stop: inner.work.stop_flag(),
        })
    }
}

impl Inner {
    /// Makes a store in `into` that holds what this one holds now. Writes and reads go on meanwhile.
    pub(super) fn checkpoint(&self, into: &Path) -> Result<()> {
        // So that there is little of the log to copy; without a log, so that there is anything.
        self.flush_all()?;
        // What is copied must stay where it is, so closing waits until this has stopped.
        let _guard = self.directory.enter()?;
        // Neither flush nor compaction until it is done: the files that the manifest names, and the log behind them,
        // stay where they are.
        let _no_flush = self.flushing.lock().unwrap_or_else(PoisonError::into_inner);
        let _no_compaction = self.lock_compacting();
        // Nor is an ingestion installed while the catalog is locked, so log and manifest are of one moment.
        let catalog = self.tree.catalog();
        let log = match &self.writer {
            Writer::Logged(commit) => self.log_end(commit, catalog.first_segment())?,
            Writer::Unlogged { .. } => LogEnd::default(),
        };
        // The log may end with a write that failed, and that nobody sees here.
        if self.writer.poison().is_some() {
            return Err(self.poisoned());
        }
        catalog.checkpoint(into, &log, self.work.stop_flag())
    }

    /// Where the log ends, between two groups of records. Segments before the first one that the manifest needs are left
    /// out: they may be removed at any time.
    fn log_end(&self, commit: &Commit, first_segment: u64) -> Result<LogEnd> {
        let (tail, last_sequence) = commit.end();
        let Some((last, len)) = tail else {
            return Ok(LogEnd {
                segments: Vec::new(),
                last_sequence,
            });
        };
        let mut segments = Vec::new();
        let numbers = commit.segments().before(last).into_iter();
        for number in numbers.filter(|number| *number >= first_segment) {
            let path = segment::path(&self.path, number);
            let len = self
                .io
                .open(&path, OpenMode::Read)
                .and_then(|file| file.len());
            let len = len.map_err(|error| Error::io("open", &path, error))?;
            segments.push((number, len));
        }
        segments.push((last, len));
        Ok(LogEnd {
            segments,
            last_sequence,
        })
    }

    /// Reads every page of every run from its file, and looks whether it is what it should be.
    pub(super) fn verify(&self) -> Result<Verified> {
        // Else another process may remove a run before it is looked at.
        let _guard = self.directory.enter_for_reading()?;
        let keyspaces = self.keyspaces.load();
        let levels = |keyspace: &Arc<KeyspaceData>| Arc::clone(&keyspace.version.load().levels);
        let levels: Vec<_> = keyspaces.iter().map(levels).collect();
        let catalog = self.tree.catalog();
        let ranges = keyspaces.iter().filter_map(|keyspace| {
            let runs = &catalog.runs_of(keyspace.id())?.range_runs;
            Some((keyspace.order().clone(), runs.clone()))
        });
        let ranges: Vec<_> = ranges.collect();
        drop(catalog);
        let stop = self.work.stop_flag();
        let dir = &self.path;
        panics::catch("verifying a store", || {
            verify_levels(&*self.io, dir, &levels, &ranges, &self.cache, stop)
        })
    }
}
