//! The results of lookups.

use crate::testing;

use forerun_cache::{Cache, CacheOptions, Delete, DeleteResult, Expiry, Store, StoreValue};
use testing::{cache, set, stored};

#[test]
fn an_item_is_found_with_all_its_fields() {
    let cache = cache(16 << 20);
    cache.advance(100);
    let store = Store {
        flags: 0xdead_beef,
        expiry: Expiry::At(130),
        ..Store::set(b"key", StoreValue::Parts(&[b"in ", b"", b"parts"]))
    };
    let cas = stored(cache.store(store));
    let guard = cache.pin();
    let item = guard.get(b"key").unwrap();
    assert_eq!((item.key(), item.value()), (&b"key"[..], &b"in parts"[..]));
    assert_eq!((item.flags(), item.cas()), (0xdead_beef, cas));
    assert_eq!((item.expiry(), item.last_access()), (Expiry::At(130), 100));
    assert!(!item.was_fetched() && !item.is_stale() && !item.is_claimed());
    assert!(item.to_shared().is_none() && item.size_bytes() >= 11);
    cache.advance(105);
    assert!(guard.get(b"key").unwrap().was_fetched());
    assert_eq!(guard.get(b"key").unwrap().last_access(), 105);
    assert!(guard.get(b"kez").is_none());
}

#[test]
fn values_of_every_size_come_back_whole() {
    let cache = Cache::new(
        CacheOptions::default()
            .clock(forerun_cache::Clock::Manual)
            .memory_limit_bytes(256 << 20)
            .max_item_bytes((64 << 20) + 1000),
    )
    .unwrap();
    let block = cache.stats().block_len_bytes as usize;
    let edge = block / 8;
    let lens = [
        0,
        1,
        7,
        8,
        1000,
        edge - 64,
        edge - 36,
        edge - 35,
        edge,
        block,
        64 << 20,
    ];
    for len in lens {
        let value: Vec<u8> = (0..len).map(|at| (at * 31 + len) as u8).collect();
        let key = format!("a value of {len}");
        set(&cache, key.as_bytes(), &value);
        let guard = cache.pin();
        let item = guard.get(key.as_bytes()).unwrap();
        assert!(item.value() == value, "{len}");
        let is_large = (28 + key.len() + len).next_multiple_of(8) > edge;
        assert_eq!(item.to_shared().is_some(), is_large, "{len}");
    }
    assert!(cache.stats().memory_bytes <= 256 << 20);
}

#[test]
fn a_shared_value_outlives_its_item_and_counts_until_it_is_dropped() {
    let cache = cache(16 << 20);
    let value = vec![7; 500_000];
    set(&cache, b"large", &value);
    let shared = cache.pin().get(b"large").unwrap().to_shared().unwrap();
    assert_eq!(cache.delete(Delete::key(b"large")), DeleteResult::Deleted);
    cache.advance(2);
    assert!(*shared == value[..]);
    assert!(cache.stats().large_bytes >= 500_000);
    drop(shared);
    assert_eq!(cache.stats().large_bytes, 0);
}

#[test]
fn an_item_under_a_guard_does_not_change_when_it_is_overwritten() {
    let cache = cache(16 << 20);
    set(&cache, b"key", b"old");
    let guard = cache.pin();
    let item = guard.get(b"key").unwrap();
    set(&cache, b"key", b"new");
    assert_eq!(item.value(), b"old");
    assert_eq!(guard.get(b"key").unwrap().value(), b"new");
    assert_ne!(guard.get(b"key").unwrap().cas(), item.cas());
}

#[test]
fn a_batch_of_any_length_finds_what_single_lookups_find() {
    let cache = cache(16 << 20);
    let keys: Vec<String> = (0..2000).map(|n| format!("key {n}")).collect();
    for key in keys.iter().step_by(3) {
        set(&cache, key.as_bytes(), key.as_bytes());
    }
    let _ = cache.store(Store {
        expiry: Expiry::At(1),
        ..Store::set(keys[0].as_bytes(), b"gone")
    });
    for len in [0, 1, 2, 63, 64, 65, 128, 100, 2000] {
        let guard = cache.pin();
        let batch: Vec<&[u8]> = keys[..len].iter().map(|key| key.as_bytes()).collect();
        let mut items = vec![None; len];
        guard.multi_get(&batch, &mut items).unwrap();
        for (n, (key, item)) in batch.iter().zip(items).enumerate() {
            let present = n % 3 == 0 && n > 0;
            assert_eq!(
                item.map(|item| item.value()),
                present.then_some(*key),
                "{n} of {len}"
            );
        }
    }
    let stats = cache.stats();
    assert_eq!(stats.get_hits + stats.get_misses, 2423);
    assert_eq!(stats.get_expired, 8);
}

#[test]
fn a_batch_may_repeat_a_key() {
    let cache = cache(16 << 20);
    set(&cache, b"a", b"1");
    let guard = cache.pin();
    let mut items = [None; 3];
    guard.multi_get(&[b"a", b"b", b"a"], &mut items).unwrap();
    assert_eq!(
        items.map(|item| item.map(|item| item.value())),
        [Some(&b"1"[..]), None, Some(b"1")]
    );
}

#[test]
fn a_prefetch_leaves_no_trace() {
    let cache = cache(16 << 20);
    let names: Vec<String> = (0..1000).map(|n| format!("key {n}")).collect();
    for name in names.iter().step_by(2) {
        set(&cache, name.as_bytes(), b"value");
    }
    let before = cache.stats();
    let keys: Vec<&[u8]> = names.iter().map(|name| name.as_bytes()).collect();
    for count in [0, 1, 2, 63, 64, 65, 1000] {
        cache.pin().prefetch(&keys[..count]);
    }
    cache
        .pin()
        .prefetch(&[&b""[..], &[b'x'; 70_000], keys[0], keys[0]]);
    assert_eq!(format!("{:?}", cache.stats()), format!("{before:?}"));
    let guard = cache.pin();
    for (n, key) in keys.iter().enumerate() {
        let item = guard.peek(key);
        assert_eq!(item.is_some(), n % 2 == 0);
        assert!(!item.is_some_and(|item| item.was_fetched()));
    }
}
