//! The cache: its parts, its clock, and what it tells of itself.

use crate::blocks::Blocks;
use crate::blocks::record::Record;
use crate::budget::{Budget, Purpose};
use crate::epoch::{Epochs, Pinned};
use crate::evict::Evictor;
use crate::flush::Flushes;
use crate::ghosts::Ghosts;
use crate::guard::Guard;
use crate::hasher::KeyHasher;
use crate::index::Index;
use crate::index::bucket::{ItemRef, SLOTS};
use crate::index::place::{BUCKETS, Place};
use crate::limbo::Limbo;
use crate::options::{CacheOptions, Error};
use crate::page_runs::PageRuns;
use crate::stats::{CacheStats, Count, sum, sum_items};
use crate::value::LargeValue;
use forerun_core::sync::{Mutex, time};
use forerun_core::{LeakedInFork, Owner};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// A bounded map from byte strings to byte strings, with expiry, flags and CAS numbers. The crate's first page shows it at work.
#[derive(Debug)]
pub struct Cache {
    /// The process that made it: in any other nothing is looked at, changed or given back.
    owner: Owner,
    options: CacheOptions,
    pub(crate) hasher: KeyHasher,
    pub(crate) index: LeakedInFork<Index>,
    pub(crate) blocks: LeakedInFork<Blocks>,
    pub(crate) epochs: Epochs,
    pub(crate) limbo: LeakedInFork<Limbo>,
    pub(crate) ghosts: Ghosts,
    pub(crate) evictor: LeakedInFork<Mutex<Evictor>>,
    pub(crate) budget: Arc<Budget>,
    /// Where large values lie.
    pub(crate) runs: Arc<PageRuns>,
    /// Blocks that are kept free ahead of the writers.
    pub(crate) blocks_ahead: usize,
    last_cas: AtomicU64,
    now: AtomicU32,
    pub(crate) flushes: LeakedInFork<Flushes>,
    /// When everything is to be flushed; 0 is never.
    pub(crate) flush_at: AtomicU32,
    started: Instant,
}

/// Keys that left and are remembered: one byte in so many of the memory.
const GHOSTS_SHARE: usize = 128;

/// Blocks of expired items that one call of [`Cache::advance`] empties at most.
const EXPIRED_BLOCKS_MAX: usize = 4;

impl Cache {
    /// An empty cache. Where the system has no address space for a limit that may be raised, it is made for the limit alone.
    ///
    /// # Errors
    /// [`Error`] if the options make no cache, or the system gives no memory.
    pub fn new(mut options: CacheOptions) -> Result<Cache, Error> {
        options.check()?;
        let limit_bytes = options.memory_limit_bytes;
        options.memory_limit_max_bytes = options.memory_limit_max_bytes.max(limit_bytes);
        match Cache::reserve(options.clone()) {
            Err(Error::Memory(_)) if options.memory_limit_max_bytes > limit_bytes => {
                options.memory_limit_max_bytes = limit_bytes;
                Cache::reserve(options)
            }
            made => made,
        }
    }

    fn reserve(options: CacheOptions) -> Result<Cache, Error> {
        let limit_bytes = options.memory_limit_bytes;
        let budget = Arc::new(Budget::new(limit_bytes));
        let ghosts = Ghosts::new(limit_bytes / GHOSTS_SHARE);
        let max_bytes = options.memory_limit_max_bytes;
        let blocks = Blocks::new(options.pages, &budget, max_bytes)?;
        let index = Index::new(options.pages, &budget, max_bytes)?;
        let epochs = Epochs::new();
        let fixed_bytes = size_of::<Cache>()
            + ghosts.memory_bytes()
            + blocks.fixed_bytes()
            + epochs.memory_bytes();
        if !budget.try_charge(Purpose::Fixed, fixed_bytes) {
            return Err(Error::MemoryLimitTooSmall { limit_bytes });
        }
        let runs = PageRuns::new(&budget, max_bytes, LargeValue::OVERHEAD_BYTES);
        let blocks_ahead = (limit_bytes / blocks.len_bytes() / 256).clamp(1, 8);
        Ok(Cache {
            owner: Owner::this_process(),
            hasher: KeyHasher::new(options.seed),
            options,
            index: LeakedInFork::new(index),
            blocks: LeakedInFork::new(blocks),
            epochs,
            limbo: LeakedInFork::new(Limbo::default()),
            ghosts,
            evictor: LeakedInFork::new(Mutex::default()),
            budget,
            runs: Arc::new(runs),
            blocks_ahead,
            last_cas: AtomicU64::new(0),
            now: AtomicU32::new(1),
            flushes: LeakedInFork::new(Flushes::new()),
            flush_at: AtomicU32::new(0),
            started: time::now(),
        })
    }

    /// Refuses every process but the one that made the cache. In a fork of that process lookups find nothing, and writes are
    /// refused as [`Stored::Forked`](crate::Stored::Forked) and the like.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn check_process(&self) -> Result<(), Error> {
        Ok(self.owner.check()?)
    }

    #[inline(always)]
    pub(crate) fn is_forked(&self) -> bool {
        !self.owner.is_this_process()
    }

    /// Begins to read.
    #[inline]
    pub fn pin(&self) -> Guard<'_> {
        Guard::new(self)
    }

    /// What it was made with. The memory limit may be another one by now: [`Cache::memory_limit_bytes`].
    pub fn options(&self) -> &CacheOptions {
        &self.options
    }

    /// A copy of the value of a key. For values in place, and for several keys at once, see [`Cache::pin`].
    pub fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        Some(self.pin().get(key)?.value().to_vec())
    }

    /// The second of the cache's clock.
    #[inline]
    pub fn now(&self) -> u32 {
        self.now.load(Relaxed)
    }

    /// Sets the clock by the time since the cache was made. Call it about once a second.
    pub fn tick(&self) {
        let seconds = time::elapsed(self.started).as_secs();
        self.advance(u32::try_from(seconds + 1).unwrap_or(u32::MAX));
    }

    /// Sets the clock to a later second; an earlier one changes nothing. It also does some of the work of reclaiming what has
    /// expired.
    pub fn advance(&self, second: u32) {
        if self.is_forked() {
            return;
        }
        // Relaxed: time is told to nobody by it but the number itself.
        self.now.fetch_max(second, Relaxed);
        self.flush_if_due();
        self.reclaim_expired(EXPIRED_BLOCKS_MAX);
        self.collect();
    }

    /// Counts, and memory. All zeros in a fork, where nothing can be asked.
    pub fn stats(&self) -> CacheStats {
        if self.is_forked() {
            return CacheStats::default();
        }
        let of = |count| sum(self.epochs.pins().map(|pin| &pin.counters), count);
        let bytes_for = |purpose| self.budget.used_for(purpose) as u64;
        let counters = self.epochs.pins().map(|pin| &pin.counters);
        let (items, item_bytes) = sum_items(counters, self.flushes.count());
        CacheStats {
            items,
            item_bytes,
            stored: of(Count::Stored),
            get_hits: of(Count::GetHits),
            get_misses: of(Count::GetMisses),
            get_expired: of(Count::GetExpired),
            evictions: of(Count::Evictions),
            evicted_unfetched: of(Count::EvictedUnfetched),
            expired: of(Count::Expired),
            expired_unfetched: of(Count::ExpiredUnfetched),
            out_of_memory: of(Count::OutOfMemory),
            limit_bytes: self.budget.limit_bytes() as u64,
            memory_bytes: self.budget.used_bytes() as u64,
            block_bytes: bytes_for(Purpose::Blocks),
            large_bytes: bytes_for(Purpose::Large),
            index_bytes: bytes_for(Purpose::Index),
            fixed_bytes: bytes_for(Purpose::Fixed),
            // Each split makes two segments of one.
            index_slots: (of(Count::Splits) + 1) * (BUCKETS * SLOTS) as u64,
            index_splits: of(Count::Splits),
            blocks: self.blocks.in_use_len() as u64,
            block_len_bytes: self.blocks.len_bytes() as u64,
            blocks_reclaimed: of(Count::BlocksReclaimed),
            moved_bytes: of(Count::MovedBytes),
        }
    }

    /// CAS numbers that are still to be given are above `cas`: for a cache that takes over another's items, whose readers
    /// hold that one's numbers.
    pub fn advance_cas_past(&self, cas: u64) {
        // Relaxed: as for the numbers themselves, all that counts is that each is given once.
        self.last_cas.fetch_max(cas, Relaxed);
    }

    /// A CAS number that no item had.
    pub(crate) fn next_cas(&self) -> u64 {
        // Relaxed: each is another one; they order nothing.
        self.last_cas.fetch_add(1, Relaxed) + 1
    }

    /// The item of a key, be it expired or flushed.
    #[inline(always)]
    pub(crate) fn find<'p>(
        &self,
        pinned: &'p Pinned<'_>,
        hash: u64,
        key: &[u8],
    ) -> Option<(ItemRef, Record<'p>)> {
        let segment = self.index.directory(pinned).segment(hash);
        let matches = |item| self.record(pinned, item).key() == key;
        let (_, item) = segment.find(Place::new(hash), matches)?;
        Some((item, self.record(pinned, item)))
    }

    /// An item that was found under this pin: see [`Blocks::record`].
    #[inline(always)]
    pub(crate) fn record<'p>(&self, pinned: &'p Pinned<'_>, item: ItemRef) -> Record<'p> {
        self.blocks.record(pinned, item)
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        if self.is_forked() {
            return;
        }
        // Large values lie outside of the blocks: their shares are given back one by one.
        if self.budget.used_for(Purpose::Large) > 0 {
            self.sweep(|_, _| true);
        }
    }
}
