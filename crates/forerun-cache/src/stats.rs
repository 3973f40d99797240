//! What a cache tells of itself.

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
    /// Items whose time had come and whose memory was reclaimed.
    pub expired: u64,
    /// Of these: items that nobody had asked for since they were stored.
    pub expired_unfetched: u64,
    /// Stores that were refused because nothing made room.
    pub out_of_memory: u64,
    /// The limit: [`CacheOptions::memory_limit_bytes`](crate::CacheOptions::memory_limit_bytes).
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
    /// Slots of the index, and how many times a part of it was split.
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
