//! Limits on options, keys, items and memory, and the items that are removed because of them.

use crate::testing;

use forerun_cache::{
    Cache, CacheOptions, Delete, DeleteResult, Error, Expiry, Store, StoreMode, StoreResult,
    WhenFull,
};
use testing::{cache, set};

#[test]
fn invalid_options_are_refused_with_a_message() {
    let new = |memory_limit_bytes, max_item_bytes| {
        Cache::new(
            CacheOptions::default()
                .clock(forerun_cache::Clock::Manual)
                .memory_limit_bytes(memory_limit_bytes)
                .max_item_bytes(max_item_bytes),
        )
    };
    let refusal = new(1000, 100).unwrap_err().to_string();
    assert!(
        refusal.contains("1000 bytes") && refusal.contains("1048576"),
        "{refusal}"
    );
    let refusal = new(8 << 20, 5 << 20).unwrap_err().to_string();
    assert!(
        refusal.contains("5242880") && refusal.contains("4194304"),
        "{refusal}"
    );
    assert!(new(1 << 20, 1 << 19).is_ok());
}

#[test]
fn the_largest_item_is_by_default_at_most_half_of_the_memory() {
    for (memory_limit_bytes, max_item_bytes) in [
        (1 << 20, 1 << 19),
        (3 << 19, 3 << 18),
        (2 << 20, 1 << 20),
        (64 << 20, 1 << 20),
    ] {
        let options = CacheOptions::default()
            .clock(forerun_cache::Clock::Manual)
            .memory_limit_bytes(memory_limit_bytes);
        let cache = Cache::new(options).unwrap();
        assert_eq!(cache.options().max_item_bytes, max_item_bytes);
        set(&cache, b"k", b"v");
        assert_eq!(cache.get(b"k").unwrap(), b"v");
    }
}

#[test]
fn keys_and_items_out_of_bounds_are_refused_and_change_nothing() {
    let cache = cache(16 << 20);
    set(&cache, b"k", b"v");
    let long = vec![b'k'; cache.key_bytes_max() + 1];
    assert_eq!(cache.set(&long, b"v"), StoreResult::InvalidKey);
    assert_eq!(cache.get(&long), None);
    let limit = cache.options().max_item_bytes;
    assert_eq!(
        cache.store(Store::set(b"k", &vec![0; limit][..])),
        StoreResult::TooLarge
    );
    let half = vec![0; limit / 2 + 1];
    set(&cache, b"half", &half);
    let append = Store {
        mode: StoreMode::Append,
        ..Store::set(b"half", &half[..])
    };
    assert_eq!(cache.store(append), StoreResult::TooLarge);
    assert_eq!(cache.get(b"k").unwrap(), b"v");
    assert_eq!(cache.get(b"half").unwrap().len(), half.len());
    assert!(matches!(
        cache.value_buffer(limit),
        Err(Error::ValueTooLarge { .. })
    ));
    let longest = vec![0xff; cache.key_bytes_max()];
    for key in [&longest[..], b""] {
        set(&cache, key, b"v");
        assert_eq!(cache.get(key).unwrap(), b"v");
    }
}

#[test]
fn remove_expired_removes_expired_items_and_nothing_else() {
    let cache = Cache::new(CacheOptions::default().clock(forerun_cache::Clock::Manual)).unwrap();
    for n in 0..3000u32 {
        let expiry = match n % 3 {
            0 => Expiry::Never,
            1 => Expiry::At(cache.now() + 2),
            _ => Expiry::At(cache.now() + 100),
        };
        let _ = cache.store(Store {
            expiry,
            ..Store::set(&n.to_be_bytes(), b"v")
        });
    }
    assert_eq!(cache.remove_expired(), 0);
    let now = cache.now();
    // Advancing the clock reclaims whole blocks only. Here every block also holds live items.
    cache.advance(now + 2);
    let before = cache.stats();
    assert_eq!(cache.remove_expired() + before.expired, 1000);
    let after = cache.stats();
    assert_eq!((after.items, after.expired), (2000, 1000));
    let lives = |n: u32| cache.get(&n.to_be_bytes()).is_some();
    assert!((0..3000).all(|n| lives(n) == (n % 3 != 1)));
}

#[test]
fn a_refusing_cache_keeps_all_items_and_accepts_more_after_deletions() {
    let cache = Cache::new(
        CacheOptions::default()
            .clock(forerun_cache::Clock::Manual)
            .memory_limit_bytes(8 << 20)
            .when_full(WhenFull::Refuse),
    )
    .unwrap();
    let key = |n: u32| format!("key {n}");
    let mut count = 0;
    while let StoreResult::Stored { .. } =
        cache.store(Store::set(key(count).as_bytes(), &[count as u8; 500]))
    {
        count += 1;
    }
    assert!(count > 10_000, "{count}");
    let all = |range: std::ops::Range<u32>| {
        range
            .clone()
            .all(|n| cache.get(key(n).as_bytes()) == Some(vec![n as u8; 500]))
    };
    assert!(all(0..count));
    let stats = cache.stats();
    assert_eq!(
        (stats.evictions, u32::try_from(stats.items).unwrap()),
        (0, count)
    );
    assert!(stats.out_of_memory > 0);
    // Deleting every third item frees half as much memory as the others take, once blocks are
    // compacted.
    (0..count).step_by(3).for_each(|n| {
        assert_eq!(
            cache.delete(Delete::key(key(n).as_bytes())),
            DeleteResult::Deleted
        )
    });
    let mut more = count;
    while let StoreResult::Stored { .. } =
        cache.store(Store::set(key(more).as_bytes(), &[more as u8; 500]))
    {
        more += 1;
    }
    assert!(more - count > count / 4, "{} of {count}", more - count);
    assert!((0..count).filter(|n| n % 3 != 0).all(|n| all(n..n + 1)) && all(count..more));
    assert_eq!(cache.stats().evictions, 0);
}

#[test]
fn a_buffer_of_another_cache_takes_no_bytes_and_is_stored_as_a_copy_once_full() {
    let (ours, other) = (cache(16 << 20), cache(16 << 20));
    let large_bytes = ours.options().max_item_bytes / 2;
    for len_bytes in [5, large_bytes] {
        let mut buffer = other.value_buffer(len_bytes).unwrap();
        assert_eq!(buffer.put(&ours, b"never"), Err(Error::OtherCache));
        assert_eq!(buffer.filled_bytes(), 0);
        assert_eq!(
            ours.store(Store::set(b"k", buffer)),
            StoreResult::OutOfMemory,
            "the rest of the buffer would have to be charged to another cache"
        );

        let before_bytes = other.stats().buffer_bytes;
        let mut buffer = other.value_buffer(len_bytes).unwrap();
        let value = vec![7; len_bytes];
        assert_eq!(buffer.put(&other, &value), Ok(len_bytes));
        assert!(matches!(
            ours.store(Store::set(b"k", buffer)),
            StoreResult::Stored { .. }
        ));
        assert_eq!(ours.get(b"k").unwrap(), value);
        assert_eq!(other.stats().buffer_bytes, before_bytes);
    }
}
