//! Changing the memory limit of a cache in use, as the system sees it. One test per process,
//! because it measures the whole process.
#![cfg(target_os = "linux")]

mod testing;

use forerun_cache::{Cache, CacheOptions, Error, Store, StoreResult, WhenFull};
use forerun_core::Pages;
use testing::resident_bytes;

const MIB: usize = 1 << 20;

fn cache(when_full: WhenFull) -> Cache {
    Cache::new(
        CacheOptions::default()
            .clock(forerun_cache::Clock::Manual)
            .memory_limit_bytes(8 * MIB)
            .memory_limit_max_bytes(64 * MIB)
            .when_full(when_full)
            // The kernel grants huge pages in units of two MiB, which would blur the measurement.
            .pages(Pages::Small),
    )
    .unwrap()
}

fn key(n: u32) -> [u8; 4] {
    n.to_be_bytes()
}

fn value(n: u32) -> Vec<u8> {
    // Some are large enough for page runs.
    vec![n as u8; if n.is_multiple_of(50) { 40_000 } else { 900 }]
}

fn store(cache: &Cache, range: std::ops::Range<u32>) {
    for n in range {
        let stored = cache.store(Store::set(&key(n), value(n).as_slice()));
        assert!(
            matches!(stored, StoreResult::Stored { .. }),
            "{n}: {stored:?}"
        );
    }
}

/// The number of items found. Each one must be as it was stored.
fn found(cache: &Cache, range: std::ops::Range<u32>) -> usize {
    let values = range.filter_map(|n| Some((n, cache.get(&key(n))?)));
    values
        .inspect(|(n, found)| assert_eq!(*found, value(*n)))
        .count()
}

#[test]
fn a_raised_limit_is_used_and_a_lowered_limit_returns_memory() {
    let before = resident_bytes();
    let cache = cache(WhenFull::Evict);
    store(&cache, 0..10_000);
    let at_first = cache.stats();
    assert!(at_first.evictions > 0 && at_first.memory_bytes <= 8 * MIB as u64);

    cache.set_memory_limit(48 * MIB).unwrap();
    assert_eq!(cache.stats().limit_bytes, 48 * MIB as u64);
    store(&cache, 0..10_000);
    assert_eq!(found(&cache, 0..10_000), 10_000);
    assert_eq!(cache.stats().evictions, at_first.evictions);
    assert!(!cache.shrink(MIB), "there is nothing to return");

    cache.set_memory_limit(8 * MIB).unwrap();
    let mut steps = 0;
    while cache.shrink(MIB) {
        steps += 1;
        // The cache stays usable during the shrink.
        store(&cache, steps..steps + 3);
    }
    assert!(steps > 2, "{steps} steps");
    let stats = cache.stats();
    let resident = resident_bytes() - before;
    assert!(stats.memory_bytes <= 8 * MIB as u64, "{stats:?}");
    assert!(resident <= 8 * MIB + 4 * MIB, "{resident} bytes: {stats:?}");
    let left = found(&cache, 0..10_000);
    assert!(
        left > 2000 && left as u64 <= stats.items,
        "{left}: {stats:?}"
    );
    store(&cache, 10_000..20_000);
    assert!(cache.stats().memory_bytes <= 8 * MIB as u64);

    refusals(&cache);
    prefaulted_memory_counts_and_is_returned_when_it_is_needed();
    a_refusing_cache_returns_free_memory();
}

fn refusals(cache: &Cache) {
    assert!(matches!(
        cache.set_memory_limit(65 * MIB),
        Err(Error::MemoryLimitTooLarge { .. })
    ));
    assert!(matches!(
        cache.set_memory_limit(1000),
        Err(Error::MemoryLimitTooSmall { limit_bytes: 1000 })
    ));
    // The largest item has one MiB.
    assert!(matches!(
        cache.set_memory_limit(3 * MIB / 2),
        Err(Error::ItemLimitTooLarge { .. })
    ));
    assert_eq!(cache.stats().limit_bytes, 8 * MIB as u64);
    let fixed = Cache::new(CacheOptions::default().clock(forerun_cache::Clock::Manual)).unwrap();
    let limit_bytes = fixed.options().memory_limit_bytes;
    assert!(fixed.set_memory_limit(limit_bytes + 1).is_err());
    assert!(fixed.set_memory_limit(limit_bytes - 1).is_ok());
}

fn a_refusing_cache_returns_free_memory() {
    let cache = cache(WhenFull::Refuse);
    cache.set_memory_limit(32 * MIB).unwrap();
    store(&cache, 0..9_000);
    cache.set_memory_limit(8 * MIB).unwrap();
    while cache.shrink(MIB) {}
    let stats = cache.stats();
    assert!(stats.memory_bytes > 8 * MIB as u64, "{stats:?}");
    assert_eq!(found(&cache, 0..9_000), 9_000);
    let refused = cache.store(Store::set(b"another", &[1; 40_000]));
    assert_eq!(refused, StoreResult::OutOfMemory);
    cache.flush_all(0);
    while cache.shrink(MIB) {}
    assert!(cache.stats().memory_bytes <= 8 * MIB as u64);
    store(&cache, 0..100);
}

fn prefaulted_memory_counts_and_is_returned_when_it_is_needed() {
    let cache = cache(WhenFull::Evict);
    assert!(!cache.prefault(), "an empty cache does not prefault");
    cache.set_memory_limit(64 * MIB).unwrap();
    store(&cache, 0..10);
    let (before, resident) = (cache.stats().memory_bytes, resident_bytes());
    while cache.prefault() {}
    let taken = cache.stats().memory_bytes - before;
    assert!(
        (MIB as u64..=2 * MIB as u64).contains(&taken),
        "{taken} bytes"
    );
    let grown = resident_bytes().saturating_sub(resident);
    assert!(
        grown as u64 <= taken + (1 << 20),
        "{grown} bytes for {taken}"
    );
    // Once everything else is used, nothing is left to prefault, and prefaulted blocks make room.
    cache.set_memory_limit(8 * MIB).unwrap();
    while cache.shrink(MIB) {}
    store(&cache, 0..20_000);
    while cache.prefault() {}
    assert!(cache.stats().memory_bytes <= 8 * MIB as u64);
    let large = vec![1; MIB - 1000];
    for n in 0..20 {
        let stored = cache.store(Store::set(&key(n), large.as_slice()));
        assert!(matches!(stored, StoreResult::Stored { .. }), "{stored:?}");
        while cache.prefault() {}
        assert!(cache.stats().memory_bytes <= 8 * MIB as u64);
    }
}
