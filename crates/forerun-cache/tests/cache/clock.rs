//! The clock: a thread of the cache advances it, unless the caller does.

use forerun_cache::{Cache, CacheOptions, Clock, Expiry, Store, StoreResult};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Waits until a condition holds. Returns after how long, or panics after a minute.
fn wait_until(condition: impl Fn() -> bool) -> Duration {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < Duration::from_secs(60));
        sleep(Duration::from_millis(5));
    }
    began.elapsed()
}

fn set_for(cache: &Cache, key: &str, time: Duration) {
    let expiry = Expiry::In(time);
    let stored = cache.store(Store {
        expiry,
        ..Store::set(key, "v")
    });
    assert!(matches!(stored, StoreResult::Stored { .. }), "{stored:?}");
}

#[test]
fn items_expire_and_scheduled_flushes_happen_without_a_call_of_the_clock() {
    let cache = Cache::new(CacheOptions::default()).unwrap();
    // Long enough for the next line, even beside tests that keep all cores busy.
    set_for(&cache, "soon", Duration::from_secs(5));
    assert!(cache.get("soon").is_some());
    set_for(&cache, "hour", Duration::from_secs(3600));
    wait_until(|| cache.get("soon").is_none());
    assert!(cache.get("hour").is_some());
    let begun = cache.now();
    cache.flush_all(cache.now() + 1);
    assert!(cache.get("hour").is_some() || cache.now() > begun);
    wait_until(|| cache.get("hour").is_none());
    set_for(&cache, "another hour", Duration::from_secs(3600));
    assert!(cache.get("another hour").is_some());
}

#[test]
fn a_manual_clock_advances_only_when_the_caller_advances_it() {
    let cache = Cache::new(CacheOptions::default().clock(Clock::Manual)).unwrap();
    set_for(&cache, "k", Duration::from_millis(1500));
    sleep(Duration::from_millis(2100));
    assert_eq!((cache.now(), cache.get("k").is_some()), (1, true));
    cache.advance(2);
    assert!(cache.get("k").is_some(), "the time is rounded up");
    cache.tick();
    assert!(cache.now() >= 3 && cache.get("k").is_none());
}

#[test]
fn the_thread_of_the_clock_ends_with_its_cache() {
    let began = Instant::now();
    for _ in 0..20 {
        drop(Cache::new(CacheOptions::default()).unwrap());
    }
    // A thread that finished its second first would take twenty.
    assert!(began.elapsed() < Duration::from_secs(8));
}
