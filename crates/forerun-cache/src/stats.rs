//! What a cache tells of itself.

use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

/// Counts since the cache was made, and what it holds now. Counts of several threads are added up while they go on, so they
/// are of about one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheStats {
    /// Items that are stored, those among them included that have expired and were not yet reclaimed, but not those that were
    /// flushed.
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
pub(crate) struct Counters {
    counts: [AtomicU64; COUNTS],
    items: Items,
}

/// Items that came into the index less those that left it. A pin may have seen more leave than come: the sum over all pins counts.
#[derive(Debug, Default)]
struct Items {
    /// Only those stored after so many flushes are counted.
    flushes: AtomicU64,
    count: AtomicU64,
    bytes: AtomicU64,
}

impl Counters {
    /// Adds to a counter. For the pin's holder.
    #[inline(always)]
    pub(crate) fn add(&self, count: Count, more: u64) {
        add(&self.counts[count as usize], more);
    }

    /// An item that was stored after so many flushes came into the index. For the pin's holder.
    pub(crate) fn add_item(&self, flushes: u64, bytes: usize) {
        self.items.change(flushes, 1, bytes as u64);
    }

    /// And one left it.
    pub(crate) fn remove_item(&self, flushes: u64, bytes: usize) {
        self.items
            .change(flushes, 1u64.wrapping_neg(), (bytes as u64).wrapping_neg());
    }
}

impl Items {
    fn change(&self, flushes: u64, count: u64, bytes: u64) {
        let counted = self.flushes.load(Relaxed);
        if counted > flushes {
            return;
        }
        if counted < flushes {
            self.count.store(0, Relaxed);
            self.bytes.store(0, Relaxed);
            // Release: whoever reads this number finds the zeroes, or later counts.
            self.flushes.store(flushes, Release);
        }
        add(&self.count, count);
        add(&self.bytes, bytes);
    }
}

fn add(counter: &AtomicU64, more: u64) {
    // Relaxed, and not one step: the holder alone writes, and one holder's release of the pin is the next one's acquire.
    counter.store(counter.load(Relaxed).wrapping_add(more), Relaxed);
}

/// A counter, added up over all pins.
pub(crate) fn sum<'c>(counters: impl Iterator<Item = &'c Counters>, count: Count) -> u64 {
    let values = counters.map(|counters| counters.counts[count as usize].load(Relaxed));
    values.fold(0, u64::wrapping_add)
}

/// The items that were stored after so many flushes, and their bytes.
pub(crate) fn sum_items<'c>(
    counters: impl Iterator<Item = &'c Counters>,
    flushes: u64,
) -> (u64, u64) {
    let items = counters.map(|counters| &counters.items);
    // Acquire: see `Items::change`.
    let counted = items.filter(|items| items.flushes.load(Acquire) == flushes);
    let (count, bytes) = counted.fold((0u64, 0u64), |(count, bytes), items| {
        (
            count.wrapping_add(items.count.load(Relaxed)),
            bytes.wrapping_add(items.bytes.load(Relaxed)),
        )
    });
    // While items come and go, one that left may be counted and its coming not yet.
    let at_least_none = |sum: u64| (sum as i64).max(0) as u64;
    (at_least_none(count), at_least_none(bytes))
}
