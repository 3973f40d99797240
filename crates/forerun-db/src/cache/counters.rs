//! The cache's counters. Each batch updates them once.

use std::sync::atomic::{AtomicU64, Ordering};

use forerun_core::sync::thread_number;

/// Sets of counters. Threads are spread over them, so that they seldom share a cache line.
const SHARDS: usize = 16;

#[derive(Debug, Default)]
pub(super) struct Counters {
    shards: [Shard; SHARDS],
}

/// Aligned to two lines, because CPUs fetch lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard {
    hits: AtomicU64,
    misses: AtomicU64,
}

impl Counters {
    /// Counts hits and misses.
    pub(super) fn count(&self, hits: u64, misses: u64) {
        let shard = &self.shards[thread_number() % SHARDS];
        // Relaxed, here and below: a counter orders nothing.
        if hits > 0 {
            shard.hits.fetch_add(hits, Ordering::Relaxed);
        }
        if misses > 0 {
            shard.misses.fetch_add(misses, Ordering::Relaxed);
        }
    }

    /// Hits and misses.
    pub(super) fn sums(&self) -> (u64, u64) {
        let sum = |counter: fn(&Shard) -> &AtomicU64| {
            self.shards
                .iter()
                .map(|shard| counter(shard).load(Ordering::Relaxed))
                .sum()
        };
        (sum(|shard| &shard.hits), sum(|shard| &shard.misses))
    }
}
