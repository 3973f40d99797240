//! An observer sees every eviction, and nothing else.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use forerun_cache::{Cache, CacheOptions, Expiry, MEMORY_BYTES_MIN, Store};

#[test]
fn an_observer_sees_each_evicted_item_once() {
    let options = CacheOptions::default()
        .clock(forerun_cache::Clock::Manual)
        .memory_limit_bytes(MEMORY_BYTES_MIN);
    let cache = Cache::new(options).expect("a cache");
    let (count, keys) = (
        Arc::new(AtomicU64::new(0)),
        Arc::new(Mutex::new(HashSet::new())),
    );
    let (counted, seen) = (count.clone(), keys.clone());
    let is_first = cache.observe_evictions(move |evicted| {
        counted.fetch_add(1, Ordering::Relaxed);
        assert_eq!(evicted.value_len, 1000);
        assert!(!evicted.was_fetched);
        assert_eq!((evicted.now, evicted.last_access), (1, 1));
        assert_eq!(evicted.expiry, Expiry::At(900));
        seen.lock().expect("no panic").insert(evicted.key.to_vec());
    });
    assert!(is_first);
    assert!(!cache.observe_evictions(|_| {}), "a second observer");
    let items = 2 * MEMORY_BYTES_MIN / 1000;
    for item in 0..items {
        let _ = cache.store(Store {
            expiry: Expiry::At(900),
            ..Store::set(format!("key{item}").as_bytes(), vec![0; 1000].as_slice())
        });
    }
    let _ = cache.store(Store {
        expiry: Expiry::At(900),
        ..Store::set(b"deleted", vec![0; 1000].as_slice())
    });
    cache.delete(forerun_cache::Delete::key(b"deleted"));
    let evictions = cache.stats().evictions;
    assert!(evictions > 100, "{evictions}");
    assert_eq!(count.load(Ordering::Relaxed), evictions);
    let keys = keys.lock().expect("no panic");
    assert_eq!(keys.len() as u64, evictions);
    assert!(!keys.contains(&b"deleted"[..]));
    for key in keys.iter() {
        assert!(cache.get(key).is_none());
    }
}
