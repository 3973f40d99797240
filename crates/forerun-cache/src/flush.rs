//! Flushes the whole cache in constant time, by counting flushes ([`crate::generation`]).
//!
//! Once items of [`LAG_MAX`] earlier flushes may still be in the index, each further flush sweeps a
//! small part of it. The sweep usually finds nothing to do, because blocks whose items were all
//! flushed are the first to be emptied when memory is needed.
//!
//! A writer reads the count before it looks at the current item, stamps its own item with it, and
//! publishes that item under the segment's lock only if the count has not changed. An item
//! therefore has the flush count of the state that its writer saw, and an item stored after a flush
//! is never replaced by one that the flush has hidden.

use crate::cache::Cache;
use crate::generation::{Generation, SweepProgress};
use crate::stats::{Count, sum};
use crate::sync::unpoisoned;
use crate::unlink::RemovalCause;
use std::sync::atomic::Ordering::Relaxed;

/// The number of flushes after which a sweep begins: half of those that items can tell apart.
const LAG_MAX: u64 = 1 << (Generation::BITS - 1);
/// A flush sweeps one of this many parts, so that a sweep ends with a quarter of the generations
/// left.
const PARTS: u64 = 1 << (Generation::BITS - 2);

/// Maximum number of blocks of expired items that are emptied when the clock has advanced.
const EXPIRED_BLOCKS_MAX: usize = 4;

/// Bytes of blocks that each flush goes through.
const QUANTUM_BYTES: usize = 16 << 10;

impl Cache {
    /// Removes all items at second `at` of the clock, or at once if that second has come. A later
    /// call replaces a flush that has not happened yet.
    ///
    /// A flush takes constant time. Afterwards no flushed item is found or counted. Their memory is
    /// reused as it is needed; [`Cache::remove_expired`] frees it at once.
    ///
    /// ```
    /// use forerun_cache::{Cache, CacheOptions};
    ///
    /// let cache = Cache::new(CacheOptions::default())?;
    /// let _ = cache.set("CH/Bern", "46.948,7.447");
    /// cache.flush_all(cache.now());
    /// assert!(cache.get("CH/Bern").is_none());
    /// # Ok::<(), forerun_cache::Error>(())
    /// ```
    pub fn flush_all(&self, at: u32) {
        if self.is_forked() {
            return;
        }
        // Relaxed: a number that the next guard or write reads.
        if at > self.now() {
            self.flush_at.store(at, Relaxed);
            return;
        }
        self.flush_at.store(0, Relaxed);
        self.flush_now();
    }

    /// The second of the clock at which [`Cache::flush_all`] is to remove all items, if it has been
    /// called for a second to come.
    pub fn scheduled_flush(&self) -> Option<u32> {
        Some(self.flush_at.load(Relaxed)).filter(|at| *at != 0)
    }

    fn flush_now(&self) {
        let mut sweep = unpoisoned(self.flushes.sweep.lock());
        let stored = sum(self.epochs.pins().map(|pin| &pin.counters), Count::Stored);
        if stored == sweep.stored {
            // Nothing was stored since the last flush. No thread has found an item whose store is
            // not counted yet, so that store comes after this flush.
            return;
        }
        sweep.stored = stored;
        self.sweep_ahead(&mut sweep);
        self.flushes.increment();
        // Later items go to other blocks, so that the present blocks can be emptied as a whole.
        self.blocks.close_open();
        // A caller who flushes again and again after a few items then reuses the same blocks.
        self.reclaim_some(QUANTUM_BYTES);
        self.collect();
    }

    /// Does what has become due since the clock advanced. Called by every write.
    #[inline]
    pub(crate) fn catch_up(&self) {
        // Relaxed: a guess, checked below.
        if self.caught_up.load(Relaxed) != self.now() {
            self.catch_up_to(self.now());
        }
    }

    #[cold]
    fn catch_up_to(&self, now: u32) {
        // Relaxed: one thread finds the earlier second, and nothing else is published.
        if self.caught_up.fetch_max(now, Relaxed) < now {
            self.flush_if_due();
            self.reclaim_expired(EXPIRED_BLOCKS_MAX);
            self.collect();
        }
    }

    /// Flushes the cache if a scheduled flush is due. Called by every guard, which must not find
    /// flushed items.
    #[inline]
    pub(crate) fn flush_if_due(&self) {
        // Relaxed: a number that is checked below.
        if self.flush_at.load(Relaxed) != 0 {
            self.flush_if_second_has_come();
        }
    }

    #[cold]
    fn flush_if_second_has_come(&self) {
        let at = self.flush_at.load(Relaxed);
        // Another thread may schedule a later flush at this moment; that flush stays scheduled.
        let is_due = at != 0 && at <= self.now() && !self.is_forked();
        if is_due && (self.flush_at.compare_exchange(at, 0, Relaxed, Relaxed)).is_ok() {
            self.flush_now();
        }
    }

    /// Ensures that no old item is taken for a new one after the count is incremented.
    fn sweep_ahead(&self, sweep: &mut SweepProgress) {
        let flushes = self.flushes.count();
        let lag = |sweep: &SweepProgress| flushes - sweep.none_below;
        if lag(sweep) < LAG_MAX {
            return;
        }
        loop {
            let (began, from) = sweep.current.unwrap_or((flushes, 0));
            let until = from.saturating_add(u64::MAX / PARTS);
            let mut next = Some(from);
            while let Some(hash) = next.filter(|&hash| hash < until) {
                next = self
                    .sweep_segment(hash, RemovalCause::Expired, |item, moment| {
                        item.is_gone(moment)
                    })
                    .1;
            }
            sweep.current = next.map(|hash| (began, hash));
            if next.is_none() {
                // A writer with an older count finds a later one under its segment's lock and
                // starts again.
                sweep.none_below = began;
            }
            if lag(sweep) < 2 * LAG_MAX - 1 {
                break;
            }
        }
        self.collect();
    }
}
