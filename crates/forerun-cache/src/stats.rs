//! Statistics of a cache.

use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use forerun_core::metrics;
use forerun_core::sync::OnceLock;

metrics! {
    /// Counts since the cache was created, and its current contents. The counts of all threads are
    /// added up while the threads continue, so they come from about the same moment.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    #[cfg_attr(feature = "serde", derive(serde::Serialize))]
    #[non_exhaustive]
    pub struct CacheStats {
        /// Items in the cache. Includes expired items that are not yet reclaimed; excludes flushed
        /// ones.
        gauge items: u64,
        /// Bytes of these items' keys, values (large ones too) and headers.
        gauge item_bytes: u64,
        /// Items ever stored.
        counter stored: u64,
        /// Keys that were looked up and found.
        counter get_hits: u64,
        /// Keys that were looked up and not found.
        counter get_misses: u64,
        /// Misses whose item had expired.
        counter get_expired: u64,
        /// Items removed to make room.
        counter evictions: u64,
        /// Evicted items that had not been read since they were stored.
        counter evicted_unfetched: u64,
        /// Evicted items that had an expiry.
        counter evicted_with_ttl: u64,
        /// For how long the item that was evicted last had not been accessed, in seconds.
        gauge last_evicted_idle_s: u64,
        /// Expired or flushed items that were reclaimed.
        counter expired: u64,
        /// Those of them that were flushed.
        counter flushed: u64,
        /// Reclaimed items that had not been read since they were stored.
        counter expired_unfetched: u64,
        /// Sweeps through all items for expired ones
        /// ([`Cache::remove_expired`](crate::Cache::remove_expired)).
        counter sweeps: u64,
        /// Items that these sweeps checked.
        counter swept_items: u64,
        /// Expired or flushed items that these sweeps reclaimed.
        counter swept_expired: u64,
        /// Times a caller had to evict items itself to get memory, because none was free.
        counter direct_reclaims: u64,
        /// Stores that failed for lack of memory.
        counter out_of_memory: u64,
        /// The memory limit.
        ///
        /// It is [`CacheOptions::memory_limit_bytes`](crate::CacheOptions::memory_limit_bytes), or
        /// the last value that [`Cache::set_memory_limit`](crate::Cache::set_memory_limit) set.
        gauge limit_bytes: u64,
        /// All memory held, in bytes. It is the sum of the memory of blocks, large values
        /// and the index, and of the fixed memory.
        gauge memory_bytes: u64,
        /// Memory of the blocks of small items.
        gauge block_bytes: u64,
        /// Memory of large values, and of buffers for values that arrive in pieces.
        gauge large_bytes: u64,
        /// The part of `large_bytes` that buffers for values that arrive in pieces take.
        gauge buffer_bytes: u64,
        /// Memory of the index.
        gauge index_bytes: u64,
        /// Memory that does not depend on the number of items.
        gauge fixed_bytes: u64,
        /// Slots in the index.
        gauge index_slots: u64,
        /// Splits of index segments.
        counter index_splits: u64,
        /// Blocks in use.
        gauge blocks: u64,
        /// Bytes per block.
        gauge block_len_bytes: u64,
        /// Blocks that were emptied for reuse.
        counter blocks_reclaimed: u64,
        /// Bytes of items that were moved to another block because they were worth keeping.
        counter moved_bytes: u64,
    }
}

/// The counts that each pin keeps. They are added up on demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Count {
    GetHits,
    GetMisses,
    GetExpired,
    Stored,
    Evictions,
    EvictedUnfetched,
    EvictedWithTtl,
    Expired,
    Flushed,
    ExpiredUnfetched,
    Sweeps,
    SweptItems,
    SweptExpired,
    DirectReclaims,
    OutOfMemory,
    Splits,
    BlocksReclaimed,
    MovedBytes,
}

const COUNTS: usize = Count::MovedBytes as usize + 1;

/// The counters of a pin. Its holder writes them, and any thread may read them.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    counts: [AtomicU64; COUNTS],
    items: Items,
    /// The items of each keyspace, if there are several.
    keyspaces: OnceLock<Box<[Items]>>,
}

/// What a pin's counts of so many keyspaces take.
pub(crate) fn keyspaces_bytes(keyspaces: u16) -> usize {
    match keyspaces {
        1 => 0,
        keyspaces => usize::from(keyspaces) * size_of::<Items>(),
    }
}

/// Items that entered the index minus those that left it. A single pin may count more that left;
/// only the sum over all pins has meaning.
#[derive(Debug, Default)]
pub(crate) struct Items {
    /// The flush count of the items that are counted here.
    flushes: AtomicU64,
    count: AtomicU64,
    bytes: AtomicU64,
}

impl Counters {
    /// Adds to a counter. Only the pin's holder calls this.
    #[inline(always)]
    pub(crate) fn add(&self, count: Count, more: u64) {
        add(&self.counts[count as usize], more);
    }

    /// Counts an item with this flush count that entered the index. Only the pin's holder calls
    /// this.
    pub(crate) fn add_item(&self, flushes: u64, bytes: usize) {
        self.items.change(flushes, 1, bytes as u64);
    }

    /// Counts an item that left the index. Only the pin's holder calls this.
    pub(crate) fn remove_item(&self, flushes: u64, bytes: usize) {
        self.items
            .change(flushes, 1u64.wrapping_neg(), (bytes as u64).wrapping_neg());
    }

    /// The items of one of several keyspaces; `None`: there is none of this number.
    pub(crate) fn keyspace(&self, number: usize, keyspaces: u16) -> Option<&Items> {
        let new = || (0..keyspaces).map(|_| Items::default()).collect();
        self.keyspaces.get_or_init(new).get(number)
    }
}

impl Items {
    /// Adds to the counts. Only the pin's holder calls this.
    pub(crate) fn change(&self, flushes: u64, count: u64, bytes: u64) {
        let counted = self.flushes.load(Relaxed);
        if counted > flushes {
            return;
        }
        if counted < flushes {
            self.count.store(0, Relaxed);
            self.bytes.store(0, Relaxed);
            // Release: a thread that reads this number sees the zeroes or later counts.
            self.flushes.store(flushes, Release);
        }
        add(&self.count, count);
        add(&self.bytes, bytes);
    }
}

fn add(counter: &AtomicU64, more: u64) {
    // Relaxed, and no atomic read-modify-write: only the holder writes, and releasing a pin
    // synchronizes with its next holder.
    counter.store(counter.load(Relaxed).wrapping_add(more), Relaxed);
}

/// The sum of a counter over all pins.
pub(crate) fn sum<'c>(counters: impl Iterator<Item = &'c Counters>, count: Count) -> u64 {
    let values = counters.map(|counters| counters.counts[count as usize].load(Relaxed));
    values.fold(0, u64::wrapping_add)
}

/// The number of items with this flush count, and their bytes.
pub(crate) fn sum_items<'c>(
    counters: impl Iterator<Item = &'c Counters>,
    flushes: u64,
) -> (u64, u64) {
    sum_of(counters.map(|counters| &counters.items), flushes)
}

/// The number of items of a keyspace with this flush count.
pub(crate) fn sum_keyspace<'c>(
    counters: impl Iterator<Item = &'c Counters>,
    number: usize,
    flushes: u64,
) -> u64 {
    let items = counters.filter_map(|counters| counters.keyspaces.get()?.get(number));
    sum_of(items, flushes).0
}

fn sum_of<'c>(items: impl Iterator<Item = &'c Items>, flushes: u64) -> (u64, u64) {
    // Acquire: see `Items::change`.
    let counted = items.filter(|items| items.flushes.load(Acquire) == flushes);
    let (count, bytes) = counted.fold((0u64, 0u64), |(count, bytes), items| {
        (
            count.wrapping_add(items.count.load(Relaxed)),
            bytes.wrapping_add(items.bytes.load(Relaxed)),
        )
    });
    // While items come and go, the removal of an item may be counted before its insertion.
    let at_least_zero = |sum: u64| (sum as i64).max(0) as u64;
    (at_least_zero(count), at_least_zero(bytes))
}
