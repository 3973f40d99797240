//! Items expire at their millisecond: never earlier, and in a running clock not much later.

use crate::testing;

use forerun_cache::{Cache, CacheOptions, Clock, ComputeOp, Expiry, Item, Store};
use std::time::{Duration, Instant};

fn set(cache: &Cache, key: &str, expiry: Expiry) {
    testing::stored(cache.store(Store {
        expiry,
        ..Store::set(key, "v")
    }));
}

/// Whether a single lookup, a batch and a scan all find it.
fn is_there(cache: &Cache, key: &str) -> bool {
    let guard = cache.pin();
    let single = guard.get(key).is_some();
    let mut batch = [None; 2];
    guard.multi_get(&[key, "another key"], &mut batch).unwrap();
    let mut scanned = false;
    let next = guard.scan_keys(0, 1000, |item: Item<'_>| {
        scanned |= item.key() == key.as_bytes()
    });
    assert_eq!((batch[0].is_some(), scanned, next), (single, single, 0));
    single
}

#[test]
fn an_item_expires_at_its_millisecond_by_a_manual_clock() {
    for at_ms in [1001, 1999, 2000, 2001, 2500, 65_000, 65_001] {
        let cache = testing::cache(16 << 20);
        set(&cache, "k", Expiry::AtMs(at_ms));
        cache.advance_ms(at_ms - 1);
        assert!(is_there(&cache, "k"), "a millisecond before {at_ms}");
        // Nothing that goes through blocks or segments takes it for expired.
        assert_eq!(cache.remove_expired(), 0);
        cache.advance_ms(at_ms);
        assert!(!is_there(&cache, "k"), "at {at_ms}");
        cache.remove_expired();
        let stats = cache.stats();
        assert_eq!((cache.len(), stats.expired, stats.flushed), (0, 1, 0));
    }
}

#[test]
fn a_whole_block_is_not_reclaimed_in_the_second_in_which_its_items_expire() {
    let cache = testing::cache(16 << 20);
    for n in 0..20_000u32 {
        let expiry = Expiry::AtMs(9_999);
        testing::stored(cache.store(Store {
            expiry,
            ..Store::set(&n.to_be_bytes(), "v")
        }));
    }
    cache.advance_ms(9_998);
    assert_eq!((cache.len(), cache.stats().expired), (20_000, 0));
    cache.advance_ms(10_000);
    assert!(cache.stats().expired > 0, "the blocks are reclaimed");
}

#[test]
fn a_new_expiry_counts_from_then_on() {
    let cache = testing::cache(16 << 20);
    set(&cache, "k", Expiry::AtMs(5_500));
    assert!(cache.touch("k", Expiry::AtMs(3_700)));
    assert_eq!(cache.pin().peek("k").unwrap().expiry(), Expiry::AtMs(3_700));
    cache.advance_ms(3_699);
    let _ = cache.compute("k", |_| ComputeOp::Expire(Expiry::AtMs(3_900)));
    cache.advance_ms(3_899);
    assert!(is_there(&cache, "k"));
    // A second, as memcached has it, is over when the clock's second comes.
    assert!(cache.touch("k", Expiry::At(5)));
    cache.advance_ms(4_999);
    assert!(is_there(&cache, "k"));
    assert!(cache.touch("k", Expiry::Never));
    cache.advance_ms(1 << 40);
    assert!(is_there(&cache, "k"));
    assert!(cache.touch("k", Expiry::AtMs(u64::MAX)));
    let end = cache.pin().peek("k").unwrap().expiry_ms();
    assert_eq!(end, Some(1000 << 32));
}

#[test]
fn items_that_move_keep_their_millisecond() {
    let cache = testing::cache(2 << 20);
    let at_ms = |n: u32| 1_000_000 + u64::from(n);
    for n in 0..12_000u32 {
        let expiry = Expiry::AtMs(at_ms(n));
        let _ = cache.store(Store {
            expiry,
            ..Store::set(&n.to_be_bytes(), &[0; 200])
        });
        // What is read again and again is moved instead of evicted.
        (0..20u32).for_each(|n| _ = cache.get(n.to_be_bytes()));
    }
    assert!(cache.stats().moved_bytes > 0 && cache.stats().evictions > 0);
    let mut crawler = forerun_cache::Crawler::default();
    let mut visited = 0;
    while crawler.step(&cache, 1000, |item| {
        let n = u32::from_be_bytes(item.key().try_into().unwrap());
        assert_eq!(item.expiry_ms(), Some(at_ms(n)));
        visited += 1;
    }) {}
    assert!(visited > 1000);
}

/// The system's clock may be late, but is never early.
#[test]
fn a_running_clock_lets_an_item_live_for_its_time_and_not_much_longer() {
    for clock in [Clock::Automatic, Clock::Ticked] {
        let cache = Cache::new(CacheOptions::default().clock(clock)).unwrap();
        for time in [30, 150, 1100].map(Duration::from_millis) {
            let began = Instant::now();
            // The current millisecond has begun already.
            let at_ms = cache.now_ms() + 1 + time.as_millis() as u64;
            set(&cache, "k", Expiry::AtMs(at_ms));
            let left = |cache: &Cache| {
                let guard = cache.pin();
                guard.peek("k").map(|item| item.expiry_ms().unwrap())
            };
            while left(&cache).is_some() {
                assert!(began.elapsed() < Duration::from_secs(10));
                std::thread::sleep(Duration::from_millis(1));
                if clock == Clock::Ticked && began.elapsed() > Duration::from_secs(1) {
                    cache.tick();
                }
            }
            assert!(began.elapsed() >= time, "{:?} of {time:?}", began.elapsed());
        }
    }
}

#[test]
fn a_clock_stands_still_or_runs_between_ticks_as_its_option_says() {
    let cache = |clock| Cache::new(CacheOptions::default().clock(clock)).unwrap();
    let (manual, ticked) = (cache(Clock::Manual), cache(Clock::Ticked));
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!((manual.now_ms(), manual.now()), (1000, 1));
    assert!(ticked.now_ms() >= 1020 && ticked.now() == 1);
    manual.tick();
    assert!(manual.now_ms() >= 1020);
    for cache in [&manual, &ticked] {
        cache.advance(50);
        assert!(cache.now_ms() >= 50_000);
        cache.advance_ms(70_123);
        assert!(cache.now_ms() >= 70_123 && cache.now() == 70);
        cache.advance_ms(5);
        cache.advance(5);
        assert!(cache.now_ms() >= 70_123 && cache.now() == 70);
    }
    assert_eq!(manual.now_ms(), 70_123);
}

/// A lookup asks for the precise time only if the item is due in the second of the last tick or in
/// the next one.
#[test]
fn an_item_may_be_found_after_its_time_until_the_clock_ticks() {
    let cache = Cache::new(CacheOptions::default().clock(Clock::Ticked)).unwrap();
    let at_ms = cache.now_ms() + 2100;
    set(&cache, "k", Expiry::AtMs(at_ms));
    while cache.now_ms() < at_ms {
        std::thread::sleep(Duration::from_millis(20));
    }
    let expiry_ms = cache.pin().peek("k").map(|item| item.expiry_ms());
    assert_eq!(expiry_ms, Some(Some(at_ms)));
    cache.tick();
    assert!(!is_there(&cache, "k"));
}
