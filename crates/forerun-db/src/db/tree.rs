//! The runs of all keyspaces, and the locks under which they change.

use forerun_core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use forerun_core::sync::{Mutex, MutexGuard, PoisonError};

use super::stats::TreeStats;
use crate::cache::PageCache;
use crate::run::ObsoleteFiles;
use crate::tree::catalog::Catalog;
use crate::tree::limiter::RateLimiter;

pub(super) struct Tree {
    /// Held during a flush, so that memtable sets become runs in order.
    flushing: Mutex<()>,
    /// Held during a compaction.
    compacting: Mutex<()>,
    catalog: Mutex<Catalog>,
    pub(super) limiter: RateLimiter,
    pub(super) cache: Arc<PageCache>,
    /// Files of runs that nothing refers to any more, until they are deleted.
    pub(super) obsolete_files: Arc<ObsoleteFiles>,
    pub(super) counts: Counts,
    /// From this sequence number of the oldest reader on, a compaction of a last level is due that
    /// drops what no one sees; `u64::MAX` if there is nothing to drop.
    obsolete_from: AtomicU64,
}

/// All accesses are relaxed: counters order nothing.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) flushes: AtomicU64,
    pub(super) flushed_bytes: AtomicU64,
    pub(super) ingestions: AtomicU64,
    pub(super) ingested_bytes: AtomicU64,
    pub(super) compactions: AtomicU64,
    pub(super) compaction_read_bytes: AtomicU64,
    pub(super) compaction_written_bytes: AtomicU64,
    pub(super) dropped_entries: AtomicU64,
    pub(super) dropped_deletions: AtomicU64,
}

impl Tree {
    pub(super) fn new(catalog: Catalog, limiter: RateLimiter, cache: Arc<PageCache>) -> Tree {
        Tree {
            flushing: Mutex::new(()),
            compacting: Mutex::new(()),
            obsolete_files: Arc::clone(catalog.obsolete_files()),
            catalog: Mutex::new(catalog),
            limiter,
            cache,
            counts: Counts::default(),
            obsolete_from: AtomicU64::new(u64::MAX),
        }
    }

    /// Waits for the flush in progress and holds off others.
    pub(super) fn lock_flushing(&self) -> MutexGuard<'_, ()> {
        // The mutex guards no data that a panic could leave half changed.
        self.flushing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the compaction in progress and holds off others.
    pub(super) fn lock_compacting(&self) -> MutexGuard<'_, ()> {
        // As above.
        self.compacting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(super) fn is_flushing(&self) -> bool {
        self.flushing.try_lock().is_err()
    }

    pub(super) fn catalog(&self) -> MutexGuard<'_, Catalog> {
        // A comparator may panic while the lock is held. The catalog is consistent all the same: it
        // changes copies of what it holds and replaces the originals last.
        self.catalog.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// See the field.
    pub(super) fn obsolete_from(&self) -> u64 {
        // Relaxed, both: a hint. Who changes the runs looks for work afterwards.
        self.obsolete_from.load(Ordering::Relaxed)
    }

    pub(super) fn set_obsolete_from(&self, sequence: u64) {
        self.obsolete_from.store(sequence, Ordering::Relaxed);
    }

    pub(super) fn stats(&self) -> TreeStats {
        let counts = &self.counts;
        let now = |count: &AtomicU64| count.load(Ordering::Relaxed);
        TreeStats {
            flushes: now(&counts.flushes),
            flushed_bytes: now(&counts.flushed_bytes),
            ingestions: now(&counts.ingestions),
            ingested_bytes: now(&counts.ingested_bytes),
            compactions: now(&counts.compactions),
            compaction_read_bytes: now(&counts.compaction_read_bytes),
            compaction_written_bytes: now(&counts.compaction_written_bytes),
            dropped_entries: now(&counts.dropped_entries),
            dropped_deletions: now(&counts.dropped_deletions),
        }
    }
}
