//! Helpers for the tests of the cache.

#![allow(dead_code, reason = "each test uses some of these")]

use forerun_cache::{Cache, CacheOptions, Cursor, Store, StoreResult};

/// Whether every case is to be tried, as every night: `FORERUN_ALL_CASES` is set.
pub fn all_cases() -> bool {
    std::env::var_os("FORERUN_ALL_CASES").is_some()
}

/// A cache with this memory limit and default options.
pub fn cache(memory_limit_bytes: usize) -> Cache {
    Cache::new(
        CacheOptions::default()
            .clock(forerun_cache::Clock::Manual)
            .memory_limit_bytes(memory_limit_bytes),
    )
    .unwrap()
}

/// The CAS number of a store that succeeded.
#[track_caller]
pub fn stored(stored: StoreResult) -> u64 {
    match stored {
        StoreResult::Stored { cas } => cas,
        other => panic!("{other:?}"),
    }
}

/// Stores a value, which must succeed, and returns its CAS number.
#[track_caller]
pub fn set(cache: &Cache, key: &[u8], value: &[u8]) -> u64 {
    stored(cache.store(Store::set(key, value)))
}

/// The number of items that a scan visits.
pub fn visited(cache: &Cache) -> usize {
    let mut visited = 0;
    let mut cursor = Some(Cursor::default());
    while let Some(from) = cursor {
        cursor = cache.pin().scan(from, |_| visited += 1);
    }
    visited
}

/// Bytes of this process that are resident in memory.
#[cfg(target_os = "linux")]
pub fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<usize>().ok());
    kib.unwrap() << 10
}
