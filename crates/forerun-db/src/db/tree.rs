//! The runs of all keyspaces, and the locks under which they change.

use forerun_core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::path::PathBuf;
use std::sync::Arc;

use forerun_core::sync::{Mutex, MutexGuard, PoisonError};

use super::filter_loading::FilterLoading;
use super::keyspace_data::KeyspaceData;
use super::stats::TreeStats;
use crate::cache::PageCache;
use crate::io::Io;
use crate::run::ObsoleteFiles;
use crate::tree::build::{Build, RunNumbers};
use crate::tree::catalog::Catalog;
use crate::tree::limiter::{IoClass, RateLimiter};
use crate::tree::pending_edits::PendingEdits;

pub(super) struct Tree {
    io: Arc<dyn Io>,
    dir: PathBuf,
    /// Held during a flush, so that memtable sets become runs in order.
    flushing: Mutex<()>,
    /// Held while the next compaction is picked.
    picking: Mutex<()>,
    catalog: Mutex<Catalog>,
    pub(super) filters: FilterLoading,
    /// Held while what writes have to wait for is noted.
    pressure: Mutex<()>,
    pub(super) limiter: RateLimiter,
    pub(super) cache: Arc<PageCache>,
    /// Files of runs that nothing refers to any more, until they are deleted.
    pub(super) obsolete_files: Arc<ObsoleteFiles>,
    /// Numbers for new runs.
    numbers: Arc<RunNumbers>,
    counts: Mutex<TreeStats>,
    /// From this sequence number of the oldest reader on, a compaction is due that drops what no
    /// one sees; `u64::MAX` if there is nothing to drop.
    obsolete_from: AtomicU64,
}

impl Tree {
    pub(super) fn new(
        io: Arc<dyn Io>,
        dir: PathBuf,
        catalog: Catalog,
        limiter: RateLimiter,
        cache: Arc<PageCache>,
    ) -> Tree {
        Tree {
            io,
            dir,
            flushing: Mutex::new(()),
            picking: Mutex::new(()),
            obsolete_files: Arc::clone(catalog.obsolete_files()),
            numbers: Arc::clone(catalog.numbers()),
            catalog: Mutex::new(catalog),
            filters: FilterLoading::default(),
            pressure: Mutex::new(()),
            limiter,
            cache,
            counts: Mutex::default(),
            obsolete_from: AtomicU64::new(u64::MAX),
        }
    }

    /// Waits for the flush in progress and holds off others.
    pub(super) fn lock_flushing(&self) -> MutexGuard<'_, ()> {
        // The mutex guards no data that a panic could leave half changed.
        self.flushing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds off compactions that have not begun.
    pub(super) fn lock_picking(&self) -> MutexGuard<'_, ()> {
        // As above.
        self.picking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn catalog(&self) -> MutexGuard<'_, Catalog> {
        // A comparator may panic while the lock is held. The catalog is consistent all the same: it
        // changes copies of what it holds and replaces the originals last.
        self.catalog.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn lock_pressure(&self) -> MutexGuard<'_, ()> {
        // It guards no data.
        self.pressure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// See the field.
    pub(super) fn obsolete_from(&self) -> u64 {
        // Relaxed, both: a hint. Who changes the runs looks for work afterwards.
        self.obsolete_from.load(Ordering::Relaxed)
    }

    pub(super) fn set_obsolete_from(&self, sequence: u64) {
        self.obsolete_from.store(sequence, Ordering::Relaxed);
    }

    /// Where and how to write a keyspace's runs for a level, each of about this size. `stop` ends
    /// it.
    pub(super) fn build<'a>(
        &'a self,
        keyspace: &'a KeyspaceData,
        level: usize,
        run_bytes: u64,
        stop: &'a Arc<AtomicBool>,
    ) -> Build<'a> {
        Build {
            io: &*self.io,
            dir: &self.dir,
            order: keyspace.order(),
            comparator: keyspace.comparator_name(),
            keyspace: (keyspace.id(), keyspace.name()),
            cache: &self.cache,
            options: keyspace.options.load().run_at(level),
            run_bytes,
            numbers: &self.numbers,
            limiter: &self.limiter,
            class: IoClass::of_level(level),
            stop,
        }
    }

    /// A change of the runs, still empty.
    pub(super) fn edits(&self) -> PendingEdits {
        PendingEdits::new(&self.obsolete_files)
    }

    /// Adds to the counters.
    pub(super) fn count(&self, add: impl FnOnce(&mut TreeStats)) {
        add(&mut self.counts());
    }

    pub(super) fn stats(&self) -> TreeStats {
        *self.counts()
    }

    fn counts(&self) -> MutexGuard<'_, TreeStats> {
        // Nothing panics while the lock is held, so a poisoned lock is still consistent.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
