//! The cache: its parts, its statistics, and lookups by key.
//!
//! ```text
//!   Cache ┬ index      the item of a hash: a directory, and segments with a lock each
//!         ├ blocks     the items; runs: large values, of which their items have shares
//!         ├ limbo      blocks, large values and parts of the index, until no reader has them
//!         ├ epochs     the pins of readers, and the counters of statistics
//!         ├ policy     which items to evict; evacuation: the block that is being emptied in steps
//!         ├ flushes    the number of flushes, and how far the items before them are swept
//!         ├ budget     the memory limit: index, blocks, runs and the buffers of values charge it
//!         └ clock      the second, which a thread of the cache or its user advances
//! ```
//!
//! Lookups hold a pin and take no lock. Other threads take locks in this order, and may leave out
//! any of them:
//!
//! ```text
//!   sweep              generation.rs      during a flush, which skips `evacuation` if it is held
//!   └─ evacuation      cache.rs           while a block is emptied in steps, or so that none is
//!   └─ growing         index/mod.rs       while a segment is split
//!      └─ a segment    index/segment.rs   while items of it change; eviction hooks are called here
//!         └─ locks under which no other is taken: of the pool of blocks, the queue of limbo,
//!            free page runs and free segments
//! ```
//!
//! No thread waits for the end of a grace period while it holds one of them.

use crate::blocks::Blocks;
use crate::blocks::item_layout::Record;
use crate::blocks::victim::Evacuation;
use crate::budget::{Budget, Purpose};
use crate::epoch::{Epochs, Pinned};
use crate::eviction::S3Fifo;
use crate::eviction_hook::{Evicted, EvictionHook};
use crate::generation::{Flushes, Moment};
use crate::hasher::KeyHasher;
use crate::index::Index;
use crate::index::item_bucket::{ItemRef, SLOTS};
use crate::index::key_buckets::{BUCKETS, KeyBuckets};
use crate::keyspace::CacheKeyspace;
use crate::limbo::Limbo;
use crate::ms_clock::MsClock;
use crate::options::{CacheOptions, Clock, Error, WhenFull};
use crate::page_runs::PageRuns;
use crate::stats::{CacheStats, Count, keyspaces_bytes, sum, sum_items, sum_keyspace};
use crate::ticker::Ticker;
use crate::value::LargeValue;
use forerun_core::sync::Mutex;
use forerun_core::{LeakedInFork, Owner};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// A block that wastes a larger share of its bytes is worth compacting while the cache may evict.
const WASTE_SHARE: f64 = 0.25;
/// The same in a cache that refuses new items instead.
const WASTE_SHARE_IF_REFUSING: f64 = 0.06;

/// A cache that refuses new items keeps one block in this many free. Replacements fill them, and
/// the more there are, the fewer live bytes have to be moved to win back the bytes of replaced
/// items.
const RESERVE_SHARE_IF_REFUSING: usize = 256;

/// A bounded map from byte strings to byte strings, with expiry, flags and CAS numbers. See the
/// crate's front page for an example.
#[derive(Debug)]
pub struct Cache {
    /// The process that created the cache. In any other process, nothing is read, changed or freed.
    owner: Owner,
    options: CacheOptions,
    pub(crate) hasher: KeyHasher,
    pub(crate) index: LeakedInFork<Index>,
    pub(crate) blocks: LeakedInFork<Blocks>,
    pub(crate) epochs: Epochs,
    pub(crate) limbo: LeakedInFork<Limbo>,
    pub(crate) policy: S3Fifo,
    /// The block that is being emptied in steps.
    pub(crate) evacuation: LeakedInFork<Mutex<Option<Evacuation>>>,
    pub(crate) budget: Arc<Budget>,
    /// The memory of large values.
    pub(crate) runs: Arc<PageRuns>,
    /// Blocks that are kept free ahead of writers.
    pub(crate) blocks_ahead: usize,
    last_cas: AtomicU64,
    pub(crate) clock: Arc<MsClock>,
    /// The second for which everything that was due is done.
    pub(crate) caught_up: AtomicU32,
    pub(crate) flushes: LeakedInFork<Flushes>,
    /// The second of the scheduled flush; 0 if none is scheduled.
    pub(crate) flush_at: AtomicU32,
    /// For how long the item that was evicted last had not been accessed, in seconds.
    pub(crate) last_evicted_idle_s: AtomicU32,
    pub(crate) eviction_hook: EvictionHook,
    /// Advances the clock. `None`: the caller does.
    _ticker: LeakedInFork<Option<Ticker>>,
}

impl Cache {
    /// Creates an empty cache. If the system lacks the address space for `memory_limit_max_bytes`,
    /// the limit of the new cache cannot be raised.
    ///
    /// # Errors
    /// [`Error`] if the options are invalid or the system gives no memory, or no thread for the
    /// clock.
    pub fn new(mut options: CacheOptions) -> Result<Cache, Error> {
        options.complete()?;
        let limit_bytes = options.memory_limit_bytes;
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
        let policy = S3Fifo::new(limit_bytes, options.pages)?;
        let max_bytes = options.memory_limit_max_bytes;
        let (reserve_share, waste_share) = match options.when_full {
            WhenFull::Evict => (usize::MAX, WASTE_SHARE),
            WhenFull::Refuse => (RESERVE_SHARE_IF_REFUSING, WASTE_SHARE_IF_REFUSING),
        };
        let blocks = Blocks::new(
            options.pages,
            &budget,
            max_bytes,
            reserve_share,
            waste_share,
        )?;
        let index = Index::new(options.pages, &budget, max_bytes)?;
        let epochs = Epochs::new();
        let fixed_bytes = size_of::<Cache>()
            + policy.memory_bytes()
            + blocks.fixed_bytes()
            + epochs.memory_bytes()
            + epochs.pins().count() * keyspaces_bytes(options.keyspaces);
        if !budget.try_charge(Purpose::Fixed, fixed_bytes) {
            return Err(Error::MemoryLimitTooSmall { limit_bytes });
        }
        let runs = PageRuns::new(&budget, max_bytes, LargeValue::OVERHEAD_BYTES);
        let clock = Arc::new(MsClock::new(options.clock != Clock::Manual));
        let ticker = match options.clock {
            Clock::Manual | Clock::Ticked => None,
            Clock::Automatic => {
                let ticker = Ticker::start(Arc::clone(&clock));
                Some(ticker.map_err(|error| Error::Thread {
                    reason: error.to_string(),
                })?)
            }
        };
        let blocks_ahead = (limit_bytes / blocks.len_bytes() / 256).clamp(1, 8);
        Ok(Cache {
            owner: Owner::this_process(),
            hasher: KeyHasher::new(options.seed),
            options,
            index: LeakedInFork::new(index),
            blocks: LeakedInFork::new(blocks),
            epochs,
            limbo: LeakedInFork::new(Limbo::default()),
            policy,
            evacuation: LeakedInFork::new(Mutex::default()),
            budget,
            runs: Arc::new(runs),
            blocks_ahead,
            last_cas: AtomicU64::new(0),
            clock,
            caught_up: AtomicU32::new(1),
            flushes: LeakedInFork::new(Flushes::new()),
            flush_at: AtomicU32::new(0),
            last_evicted_idle_s: AtomicU32::new(0),
            eviction_hook: EvictionHook::default(),
            _ticker: LeakedInFork::new(ticker),
        })
    }

    /// Calls `observe` for each item that is evicted from now on, on the thread that evicts it,
    /// which may be that of any writer. It must return soon and must not use the cache: a part of
    /// the index is locked. Only the first call has an effect; returns false for a later one.
    ///
    /// ```
    /// use forerun_cache::{Cache, CacheOptions};
    ///
    /// let cache = Cache::new(CacheOptions::default())?;
    /// assert!(cache.observe_evictions(|evicted| println!("{:?}", evicted.key)));
    /// # Ok::<(), forerun_cache::Error>(())
    /// ```
    pub fn observe_evictions(
        &self,
        observe: impl Fn(&Evicted<'_>) + Send + Sync + 'static,
    ) -> bool {
        self.eviction_hook.set(Box::new(observe))
    }

    /// Checks that the calling process created the cache. In a fork of that process, lookups find
    /// nothing, and writes return [`StoreResult::Forked`](crate::StoreResult::Forked) or its
    /// equivalent.
    ///
    /// # Errors
    /// [`Error::Forked`] in any other process.
    pub fn check_process(&self) -> Result<(), Error> {
        Ok(self.owner.check()?)
    }

    #[inline(always)]
    pub(crate) fn is_forked(&self) -> bool {
        !self.owner.is_this_process()
    }

    /// The options that the cache was created with. The memory limit may have changed since: see
    /// [`Cache::memory_limit_bytes`].
    pub fn options(&self) -> &CacheOptions {
        &self.options
    }

    /// The current second of the cache's clock.
    #[inline]
    pub fn now(&self) -> u32 {
        self.clock.second()
    }

    /// The current second and flush count.
    #[inline(always)]
    pub(crate) fn moment(&self) -> Moment<'_> {
        Moment {
            now: self.now(),
            clock: &self.clock,
            flushes: self.flushes.count(),
        }
    }

    /// Frees garbage that no reader can hold any more.
    pub(crate) fn collect(&self) {
        self.limbo.collect(&self.epochs, &self.blocks, &self.index);
    }

    /// Frees garbage, if there is any.
    pub(crate) fn collect_waiting(&self) {
        if self.limbo.waiting_bytes() > 0 {
            self.collect();
        }
    }

    /// Counts and memory use. All are zero in a fork of the process that created the cache.
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
            evicted_with_ttl: of(Count::EvictedWithTtl),
            // Relaxed: a statistic, which orders nothing.
            last_evicted_idle_s: self.last_evicted_idle_s.load(Relaxed).into(),
            expired: of(Count::Expired),
            flushed: of(Count::Flushed),
            expired_unfetched: of(Count::ExpiredUnfetched),
            sweeps: of(Count::Sweeps),
            swept_items: of(Count::SweptItems),
            swept_expired: of(Count::SweptExpired),
            direct_reclaims: of(Count::DirectReclaims),
            out_of_memory: of(Count::OutOfMemory),
            limit_bytes: self.budget.limit_bytes() as u64,
            memory_bytes: self.budget.used_bytes() as u64,
            block_bytes: bytes_for(Purpose::Blocks),
            large_bytes: bytes_for(Purpose::Large),
            buffer_bytes: self.budget.buffer_bytes() as u64,
            index_bytes: bytes_for(Purpose::Index),
            fixed_bytes: bytes_for(Purpose::Fixed),
            // Each split turns one segment into two.
            index_slots: (of(Count::Splits) + 1) * (BUCKETS * SLOTS) as u64,
            index_splits: of(Count::Splits),
            blocks: self.blocks.in_use_len() as u64,
            block_len_bytes: self.blocks.len_bytes() as u64,
            blocks_reclaimed: of(Count::BlocksReclaimed),
            moved_bytes: of(Count::MovedBytes),
        }
    }

    /// The most memory that the cache has ever held, in bytes: see [`CacheStats::memory_bytes`].
    pub fn memory_peak_bytes(&self) -> u64 {
        self.budget.peak_bytes() as u64
    }

    /// The number of items: [`CacheStats::items`] without the other statistics.
    ///
    /// ```
    /// use forerun_cache::{Cache, CacheOptions};
    ///
    /// let cache = Cache::new(CacheOptions::default())?;
    /// assert!(cache.is_empty());
    /// let _ = cache.set("town", "Oslo");
    /// assert_eq!(cache.len(), 1);
    /// # Ok::<(), forerun_cache::Error>(())
    /// ```
    pub fn len(&self) -> u64 {
        if self.is_forked() {
            return 0;
        }
        let counters = self.epochs.pins().map(|pin| &pin.counters);
        sum_items(counters, self.flushes.count()).0
    }

    /// One of the cache's [keyspaces](CacheOptions::keyspaces), by its number from 0; `None`: it
    /// has fewer.
    #[inline]
    pub fn keyspace(&self, number: u16) -> Option<CacheKeyspace> {
        CacheKeyspace::new(number, self.options.keyspaces)
    }

    /// The number of items in a keyspace, counted as in [`CacheStats::items`].
    pub fn keyspace_len(&self, keyspace: CacheKeyspace) -> u64 {
        if keyspace.is_only() || self.is_forked() {
            return self.len();
        }
        let counters = self.epochs.pins().map(|pin| &pin.counters);
        sum_keyspace(counters, keyspace.number().into(), self.flushes.count())
    }

    /// Whether there are no items.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The longest key of an item, in bytes: [`KEY_BYTES_MAX`](crate::KEY_BYTES_MAX), or less if
    /// the cache was created with a memory limit below 128 MiB, down to 4,060 at 1 MiB.
    ///
    /// ```
    /// use forerun_cache::{Cache, CacheOptions, KEY_BYTES_MAX};
    ///
    /// let cache = Cache::new(CacheOptions::default().memory_limit_bytes(256 << 20))?;
    /// assert_eq!(cache.key_bytes_max(), KEY_BYTES_MAX);
    /// let small = Cache::new(CacheOptions::default().memory_limit_bytes(1 << 20))?;
    /// assert_eq!(small.key_bytes_max(), 4060);
    /// # Ok::<(), forerun_cache::Error>(())
    /// ```
    pub fn key_bytes_max(&self) -> usize {
        self.blocks.key_bytes_max()
    }

    /// The last CAS number that the cache has given. Numbers that clients chose do not count.
    pub fn last_cas(&self) -> u64 {
        // Relaxed: a count that orders nothing.
        self.last_cas.load(Relaxed)
    }

    /// Makes all later CAS numbers larger than `cas`. A cache that takes over another cache's items
    /// needs this, because clients still hold numbers of the other one.
    pub fn advance_cas_past(&self, cas: u64) {
        // Relaxed: all that matters is that each number is issued once.
        self.last_cas.fetch_max(cas, Relaxed);
    }

    /// A CAS number that no item has had.
    pub(crate) fn next_cas(&self) -> u64 {
        // Relaxed: each number is unique; they order nothing.
        self.last_cas.fetch_add(1, Relaxed) + 1
    }

    /// The item of a key, even if it has expired or was flushed.
    #[inline(always)]
    pub(crate) fn find<'p>(
        &self,
        pinned: &'p Pinned<'_>,
        hash: u64,
        key: &[u8],
    ) -> Option<(ItemRef, Record<'p>)> {
        let segment = self.index.directory(pinned).segment(hash);
        let matches = |item| self.record(pinned, item).key() == key;
        let (_, item) = segment.find(KeyBuckets::new(hash), matches)?;
        Some((item, self.record(pinned, item)))
    }

    /// Reads an item that was found under this pin: see [`Blocks::record`].
    #[inline(always)]
    pub(crate) fn record<'p>(&self, pinned: &'p Pinned<'_>, item: ItemRef) -> Record<'p> {
        self.blocks.record(pinned, item)
    }
}
