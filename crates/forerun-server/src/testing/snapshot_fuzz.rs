//! The body of the fuzz target for snapshots.

use forerun_cache::{Cache, CacheOptions};

use crate::snapshot::is_readable;

/// Reads bytes as a snapshot into a small cache. The result is an error or a cache, never a panic.
pub fn fuzz_snapshot(bytes: &[u8]) {
    let options = CacheOptions::default()
        .clock(forerun_cache::Clock::Manual)
        .memory_limit_bytes(4 << 20)
        .max_item_bytes(1 << 20);
    if let Ok(cache) = Cache::new(options) {
        // An error is a valid result.
        let _ = is_readable(&cache, bytes);
    }
}
