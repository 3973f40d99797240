//! Checkpoints and verification of an open store, and the source of its backups.

use std::path::Path;
use std::sync::Arc;

use forerun_core::Pages;

use super::commit::Commit;
use super::keyspace_data::KeyspaceData;
use super::memtables::HeldFor;
use super::{Db, Inner};
use crate::cache::{CacheOptions, PageCache};
use crate::io::{Io, OpenMode};
use crate::tree::catalog::CatalogSnapshot;
use crate::tree::checkpoint::{LogEnd, LogPart, checkpoint};
use crate::tree::file_copy::{CopiedStore, FileCopyOptions, Meter};
use crate::tree::verify::{VerifyReport, verify_levels};
use crate::wal::log_file;
use crate::{Error, Result, panics, store_dir};

/// Memory for the root of the copy that a backup verifies. The store's own cache holds what readers
/// need, and verification bypasses it.
const VERIFICATION_CACHE_BYTES: usize = 1 << 20;

/// The files that a backup copies.
pub(crate) struct BackupSource<'a> {
    pub(crate) catalog: CatalogSnapshot,
    /// Finds them.
    pub(crate) io: &'a dyn Io,
    pub(crate) store: CopiedStore<'a>,
    page_bytes: usize,
}

impl BackupSource<'_> {
    /// A cache for runs that are open only to be verified.
    pub(crate) fn verification_cache(&self) -> Result<Arc<PageCache>> {
        PageCache::new(CacheOptions {
            capacity_bytes: VERIFICATION_CACHE_BYTES,
            page_bytes: self.page_bytes,
            pages: Pages::Small,
        })
    }
}

impl Db {
    /// Refuses a directory for copies that is inside the store's directory.
    pub(crate) fn check_outside(&self, copies: &Path) -> Result<()> {
        self.inner()?.check_outside(copies)
    }

    /// The store as it is now, entirely in runs. Writes wait only while entries that arrived during
    /// the first flush are flushed too.
    pub(crate) fn backup_source(&self) -> Result<BackupSource<'_>> {
        let inner = self.inner()?;
        inner.flush_all()?;
        let mut active = inner.memtables.hold_active(HeldFor::Backup);
        inner.flush_under_lock(&mut active)?;
        Ok(BackupSource {
            catalog: inner.tree.catalog().snapshot(),
            io: &*inner.io,
            store: inner.copied(),
            page_bytes: inner.options.run.page_limit_bytes(),
        })
    }
}

impl Inner {
    fn check_outside(&self, copies: &Path) -> Result<()> {
        if store_dir::is_inside(&*self.io, copies, &self.path) {
            Err(Error::InsideStore {
                path: copies.to_owned(),
                store: self.path.clone(),
            })
        } else {
            Ok(())
        }
    }

    /// What limits and stops a copy of this store.
    fn copied(&self) -> CopiedStore<'_> {
        CopiedStore {
            limiter: &self.tree.limiter,
            stop: self.work.stop_flag(),
        }
    }

    /// Makes a copy of the store, as it is now, in `into`. Reads and writes continue.
    pub(super) fn checkpoint(&self, into: &Path, options: &FileCopyOptions) -> Result<()> {
        let into = &store_dir::absolute(&*self.io, into)?;
        self.check_outside(into)?;
        // After a flush, little of the log is left to copy. Without a log, only the flush makes the
        // entries durable.
        self.flush_all()?;
        // The files to copy must stay, so closing the store waits until this has stopped.
        let _guard = self.directory.enter()?;
        let (source, log) = self.checkpoint_source()?;
        // No lock is held while files are copied: the runs stay as long as they are referred to,
        // and segments of the log as long as they are open.
        let total_bytes = log.bytes() + source.manifest.runs().map(|run| run.bytes).sum::<u64>();
        let mut meter = Meter::new(options, Some(self.copied()), total_bytes);
        checkpoint(
            &self.io,
            &self.path,
            into,
            &source.manifest,
            &log,
            &mut meter,
        )
    }

    /// The runs and the log as they are now.
    pub(super) fn checkpoint_source(&self) -> Result<(CatalogSnapshot, LogEnd)> {
        // While the catalog is locked, no flush and no ingestion is installed and no segment that
        // it needs is removed, so the log and the manifest describe the same moment.
        let catalog = self.tree.catalog();
        let log = match self.write_path.commit() {
            Some(commit) => self.log_end(commit, catalog.first_segment())?,
            None => LogEnd::default(),
        };
        // The log may end with a failed write that no reader sees.
        if self.write_path.poison().is_some() {
            return Err(self.write_path.poisoned());
        }
        Ok((catalog.snapshot(), log))
    }

    /// Returns where the log ends, between two groups of records. Segments that the manifest no
    /// longer needs are left out, since they may be removed at any time.
    fn log_end(&self, commit: &Commit, first_segment: u64) -> Result<LogEnd> {
        let (tail, last_sequence) = commit.end();
        let mut segments = Vec::new();
        if let Some((last, last_len)) = tail {
            let numbers = commit.segments().before(last).into_iter();
            let numbers = numbers.filter(|number| *number >= first_segment);
            for number in numbers.chain([last]) {
                let path = log_file::path(&self.path, number);
                let failed = |error| Error::io("open", &path, error);
                let file = self.io.open(&path, OpenMode::Read).map_err(failed)?;
                let len = if number == last {
                    last_len
                } else {
                    file.len().map_err(failed)?
                };
                segments.push(LogPart { number, file, len });
            }
        }
        Ok(LogEnd {
            segments,
            last_sequence,
        })
    }

    /// Reads every page of every run from its file and checks it.
    pub(super) fn verify(&self) -> Result<VerifyReport> {
        // Otherwise another process might remove a run before it is read.
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
            verify_levels(&*self.io, dir, &levels, &ranges, &self.tree.cache, stop)
        })
    }
}
