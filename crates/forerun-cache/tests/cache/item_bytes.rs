//! `CacheStats::item_bytes` is the size of the items that can be found, whatever became of the
//! others.

use forerun_cache::{Cache, CacheOptions, Delete, Store, StoreMode, StoreResult};

/// The number and the total size of the items that a guard finds.
fn found(cache: &Cache) -> (u64, u64) {
    let (mut items, mut bytes) = (0, 0);
    let mut crawler = forerun_cache::Crawler::default();
    while crawler.step(cache, 1 << 20, |item| {
        items += 1;
        bytes += item.size_bytes() as u64;
    }) {}
    (items, bytes)
}

#[track_caller]
fn expect_equal(cache: &Cache) {
    let stats = cache.stats();
    assert_eq!((stats.items, stats.item_bytes), found(cache), "{stats:?}");
}

#[test]
fn item_bytes_includes_values_of_all_sizes_until_their_items_leave() {
    let options = CacheOptions::default()
        .clock(forerun_cache::Clock::Manual)
        .memory_limit_bytes(64 << 20)
        .max_item_bytes(16 << 20);
    let cache = Cache::new(options).unwrap();
    let set = |key: &str, len: usize| {
        let stored = cache.store(Store::set(key, &vec![7; len]));
        assert!(matches!(stored, StoreResult::Stored { .. }), "{stored:?}");
    };
    let mut values_bytes = 0;
    for (number, len) in [0, 10, 60_000, 65_536, 70_000, 200_000, 10 << 20]
        .iter()
        .enumerate()
    {
        set(&number.to_string(), *len);
        values_bytes += *len as u64;
        expect_equal(&cache);
        assert!(
            cache.stats().item_bytes >= values_bytes,
            "after {len} bytes"
        );
    }
    // Replaced by shorter, longer, and in part by its own value.
    set("6", 300_000);
    expect_equal(&cache);
    set("1", 300_000);
    expect_equal(&cache);
    for mode in [StoreMode::Append, StoreMode::Prepend] {
        let more = vec![8; 100_000];
        let _ = cache.store(Store {
            mode,
            ..Store::set("1", &more)
        });
        expect_equal(&cache);
    }
    cache.touch("1", forerun_cache::Expiry::At(cache.now() + 10));
    expect_equal(&cache);
    cache.delete(Delete::key("6"));
    expect_equal(&cache);
    cache.advance(cache.now() + 11);
    cache.remove_expired();
    expect_equal(&cache);
    cache.flush_all(cache.now());
    assert_eq!(cache.stats().item_bytes, 0);
    set("1", 200_000);
    cache.remove_expired();
    expect_equal(&cache);
    assert!(cache.stats().item_bytes > 200_000);
}

#[test]
fn item_bytes_stays_right_while_items_are_evicted_and_moved() {
    let cache = Cache::new(
        CacheOptions::default()
            .clock(forerun_cache::Clock::Manual)
            .memory_limit_bytes(16 << 20),
    )
    .unwrap();
    let value = vec![7; 400_000];
    for number in 0..5_000_u32 {
        let len = [20, 3_000, 90_000, 400_000][number as usize % 4];
        let _ = cache.store(Store::set(&number.to_be_bytes(), &value[..len]));
        let _ = cache.get(&(number / 2).to_be_bytes());
    }
    assert!(cache.stats().evictions > 1_000, "{:?}", cache.stats());
    expect_equal(&cache);
}
