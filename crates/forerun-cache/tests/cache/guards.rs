//! Writing while the same thread holds a guard.

use std::time::{Duration, Instant};

use forerun_cache::{Cache, CacheOptions, Expiry, Store, StoreResult};

#[test]
fn a_thread_that_holds_a_guard_never_waits_for_itself() {
    let cache = Cache::new(
        CacheOptions::default()
            .clock(forerun_cache::Clock::Manual)
            .memory_limit_bytes(2 << 20),
    )
    .unwrap();
    let fill = |from: u32| {
        let store = |n: u32| cache.store(Store::set(&n.to_be_bytes(), &[1; 1000]));
        (from..from + 4000)
            .filter(|&n| store(n) == StoreResult::OutOfMemory)
            .count()
    };
    assert_eq!(fill(0), 0);
    let evictions = cache.stats().evictions;
    let begin = Instant::now();
    let guard = cache.pin();
    let refused = fill(4000);
    // There is no memory to move an item, yet its expiry changes.
    let key = (0..4000u32)
        .map(u32::to_be_bytes)
        .find(|key| guard.get(key).is_some());
    let key = key.unwrap();
    let until = Expiry::At(cache.now() + 1_000_000);
    let item = guard.get_and_touch(&key, until).unwrap();
    assert_eq!(item.expiry(), until);
    drop(guard);
    assert!(refused > 1000, "{refused}");
    // Evicting under the guard would free nothing, so no refused store evicts.
    let evicted = cache.stats().evictions - evictions;
    assert!(evicted < 400, "{evicted}");
    // Any wait would take at least 40 ms.
    assert!(begin.elapsed() < Duration::from_millis(10) * refused as u32);
    assert_eq!(fill(8000), 0);
}
