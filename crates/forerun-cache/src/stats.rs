//! What a cache tells of itself.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counts since the cache was made, and what it holds now. Counts of several threads are added up while they go on, so they
/// are of about one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheStats {
    /// Items that are stored, those among them included that have expired and were not yet reclaimed.
    pub items: u64,
    /// Their keys, values and headers, in bytes.
    pub item_bytes: u64,
    /// Items ever stored.
    pub stored: u64,
    /// Keys asked for and found.
    pub get_hits: u64,
    /// Keys asked for and not found.
    pub get_misses: u64,
    /// Of the misses: keys whose item had expired.
    pub get_expired: u64,
    /// Items that were removed to make room.
    pub evictions: u64,
    /// Of the evictions: items that nobody had asked for since they were stored.
    pub evicted_unfetched: u64,
    /// Items whose time had come and whose memory was reclaimed, those that were flushed included.
    pub expired: u64,
    /// Of these: items that nobody had asked for since they were stored.
    pub expired_unfetched: u64,
    /// Stores that were refused because nothing made room.
    pub out_of_memory: u64,
    /// The limit: [`CacheOptions::memory_limit_bytes`](crate::CacheOptions::memory_limit_bytes), or what
    /// [`Cache::set_memory_limit`](crate::Cache::set_memory_limit) has set since.
    pub limit_bytes: u64,
    /// All memory held, in bytes: the sum of the following.
    pub memory_bytes: u64,
    /// Blocks of small items.
    pub block_bytes: u64,
    /// Values with mappings of their own, and values on their way in.
    pub large_bytes: u64,
    /// The index.
    pub index_bytes: u64,
    /// What is held however many items there are.
    pub fixed_bytes: u64,
    /// Slots of the index.
    pub index_slots: u64,
    /// Splits of index segments.
    pub index_splits: u64,
    /// Blocks in use, whole ones.
    pub blocks: u64,
    /// Bytes a block.
    pub block_len_bytes: u64,
    /// Blocks that were emptied to be used again.
    pub blocks_reclaimed: u64,
    /// Bytes that were moved on because their items were worth keeping.
    pub moved_bytes: u64,
}

/// What is counted by each pin for itself, to be added up when somebody asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Count {
    GetHits,
    GetMisses,
    GetExpired,
    Stored,
    /// Items that came into the index.
    Added,
    AddedBytes,
    /// Items that left it, for whatever reason.
    Removed,
    RemovedBytes,
    Evictions,
    EvictedUnfetched,
    Expired,
    ExpiredUnfetched,
    OutOfMemory,
    Splits,
    BlocksReclaimed,
    MovedBytes,
}

const COUNTS: usize = Count::MovedBytes as usize + 1;

/// The counters of a pin: written by its holder, read by anybody.
#[derive(Debug, Default)]
pub(crate) struct Counters([AtomicU64; COUNTS]);

impl Counters {
    /// Adds to a counter. For the pin's holder.
    #[inline(always)]
    pub(crate) fn add(&self, count: Count, more: u64) {
        let counter = &self.0[count as usize];
        // Relaxed, and not one step: the holder alone writes, and one holder's release of the pin is the next one's acquire.
        counter.store(counter.load(Relaxed).wrapping_add(more), Relaxed);
    }
}

/// A counter, added up over all pins.
pub(crate) fn sum<'c>(counters: impl Iterator<Item = &'c Counters>, count: Count) -> u64 {
    let values = counters.map(|counters| counters.0[count as usize].load(Relaxed));
    values.fold(0, u64::wrapping_add)
}
