//! Flushes take constant time, remove all items, and do not affect items that are stored later.

use crate::testing;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use forerun_cache::{
    Arithmetic, ArithmeticResult, Cache, CacheOptions, Delete, DeleteResult, Expiry, Invalidate,
    Store, StoreMode, StoreResult, WhenFull,
};
use testing::{set, visited};

fn cache(when_full: WhenFull) -> Cache {
    Cache::new(
        CacheOptions::default()
            .clock(forerun_cache::Clock::Manual)
            .memory_limit_bytes(8 << 20)
            .when_full(when_full),
    )
    .unwrap()
}

#[test]
fn a_flush_removes_all_items_now_or_later() {
    let cache = cache(WhenFull::Evict);
    let fill = || {
        (0..3000u32).for_each(|n| {
            set(&cache, &n.to_be_bytes(), &[1; 100]);
        })
    };
    fill();
    cache.flush_all(0);
    assert_eq!(
        (cache.stats().items, cache.get(&5u32.to_be_bytes())),
        (0, None)
    );
    fill();
    cache.flush_all(20);
    cache.advance(19);
    set(&cache, b"late", b"v");
    assert!(cache.get(&5u32.to_be_bytes()).is_some());
    cache.advance(20);
    assert_eq!((cache.get(b"late"), cache.stats().items), (None, 0));
    set(&cache, b"after", b"v");
    cache.advance(21);
    assert!(cache.get(b"after").is_some());
}

#[test]
fn a_flush_visits_no_item() {
    let cache = cache(WhenFull::Evict);
    (0..20_000u32).for_each(|n| {
        set(&cache, &n.to_be_bytes(), b"value");
    });
    let items = cache.stats().items;
    cache.flush_all(0);
    let stats = cache.stats();
    assert_eq!((items, stats.items, stats.item_bytes), (20_000, 0, 0));
    assert!(
        stats.expired < 1000,
        "most items are not reclaimed yet: {stats:?}"
    );
    assert_eq!(visited(&cache), 0);
    assert_eq!(cache.remove_expired(), 20_000 - stats.expired);
    let stats = cache.stats();
    assert_eq!((stats.items, stats.expired), (0, 20_000));
    assert_eq!(stats.flushed, 20_000);
}

#[test]
fn no_operation_finds_a_flushed_item() {
    let cache = cache(WhenFull::Evict);
    let keys: Vec<[u8; 4]> = (0..16u32).map(u32::to_be_bytes).collect();
    for key in &keys {
        set(&cache, key, b"7");
    }
    let cas = cache.pin().get(&keys[0]).unwrap().cas();
    cache.flush_all(0);

    let mut items = [None; 16];
    let guard = cache.pin();
    let slices: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
    guard.multi_get(&slices, &mut items).unwrap();
    assert!(items.iter().all(Option::is_none));
    assert!(guard.get(&keys[0]).is_none() && guard.peek(&keys[0]).is_none());
    drop(guard);
    let mode = |mode, n: usize| {
        cache.store(Store {
            mode,
            ..Store::set(&keys[n], b"x")
        })
    };
    assert_eq!(mode(StoreMode::Replace, 1), StoreResult::NotStored);
    assert_eq!(mode(StoreMode::Append, 2), StoreResult::NotStored);
    assert_eq!(mode(StoreMode::Prepend, 3), StoreResult::NotStored);
    assert!(matches!(
        mode(StoreMode::Add, 4),
        StoreResult::Stored { .. }
    ));
    let compare_cas = Some(cas);
    let store = Store {
        compare_cas,
        ..Store::set(&keys[0], b"x")
    };
    assert_eq!(cache.store(store), StoreResult::NotFound);
    assert_eq!(
        cache.arithmetic(Arithmetic::increment(&keys[5], 1)),
        ArithmeticResult::NotFound
    );
    assert!(!cache.touch(&keys[6], Expiry::Never));
    assert!(!cache.touch(&keys[6], Expiry::At(50_000)));
    assert_eq!(
        cache.invalidate(Invalidate::key(&keys[7])),
        DeleteResult::NotFound
    );
    assert_eq!(cache.delete(Delete::key(&keys[8])), DeleteResult::NotFound);
    assert_eq!(cache.stats().items, 1);
    assert_eq!(cache.get(&keys[4]).unwrap(), b"x");
}

#[test]
fn a_refusing_cache_reuses_the_memory_of_flushed_items() {
    let cache = cache(WhenFull::Refuse);
    let value = |n: u32| vec![n as u8; if n.is_multiple_of(20) { 50_000 } else { 700 }];
    let fill = || {
        let stored = (0..).take_while(|&n: &u32| {
            matches!(
                cache.store(Store::set(&n.to_be_bytes(), &value(n)[..])),
                StoreResult::Stored { .. }
            )
        });
        stored.count()
    };
    let first = fill();
    assert!(first > 1000, "{first}");
    for round in 0..5 {
        cache.flush_all(0);
        let again = fill();
        assert!(
            again > first * 9 / 10,
            "round {round}: {again} after {first}"
        );
        assert_eq!(cache.stats().items, again as u64);
        assert!((0..again as u32).all(|n| cache.get(&n.to_be_bytes()).unwrap() == value(n)));
    }
}

#[test]
fn repeated_flushes_take_no_more_memory() {
    let cache = cache(WhenFull::Evict);
    let mut max_bytes = 0;
    for round in 0..1000u32 {
        (0..3u32).for_each(|n| {
            set(&cache, &n.to_be_bytes(), &round.to_be_bytes());
        });
        set(&cache, b"large", &[1; 100_000]);
        cache.flush_all(0);
        max_bytes = max_bytes.max(cache.stats().memory_bytes);
    }
    assert!(max_bytes < 2 << 20, "{max_bytes} bytes");
}

/// Items keep only a few bits of the flush count. None may reappear when these bits wrap around.
#[test]
fn no_item_reappears_after_thousands_of_flushes() {
    let cache = cache(WhenFull::Evict);
    let mut expected: HashMap<u32, u32> = HashMap::new();
    for round in 0..10_000u32 {
        for n in 0..round % 4 {
            let (key, value) = (round * 7 % 5000 + n, round);
            set(&cache, &key.to_be_bytes(), &value.to_be_bytes());
            expected.insert(key, value);
        }
        if round % 1000 == 999 {
            assert_eq!(cache.stats().items, expected.len() as u64);
            assert_eq!(visited(&cache), expected.len());
            for key in 0..5004u32 {
                let value = expected.get(&key).map(|value| value.to_be_bytes().to_vec());
                assert_eq!(
                    cache.get(&key.to_be_bytes()),
                    value,
                    "{key} in round {round}"
                );
            }
        }
        cache.flush_all(0);
        expected.clear();
    }
}

/// Each key has one writer. The writer finds what it has stored unless a flush came in between.
#[test]
fn concurrent_flushes_remove_only_what_they_flush() {
    let cache = cache(WhenFull::Evict);
    let flush_steps = AtomicU64::new(0);
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (cache, flush_steps, is_done) = (&cache, &flush_steps, &is_done);
        let writers: Vec<_> = (0..2u32)
            .map(|writer| {
                scope.spawn(move || {
                    let mut hits = 0;
                    for round in 0..30_000u32 {
                        let before = flush_steps.load(Ordering::SeqCst);
                        let key = (round % 100 * 2 + writer).to_be_bytes();
                        set(cache, &key, &round.to_be_bytes());
                        let counted = cache.arithmetic(Arithmetic {
                            initial: Some((u64::from(round), Expiry::Never)),
                            ..Arithmetic::increment(b"shared", 1)
                        });
                        assert!(
                            matches!(counted, ArithmeticResult::Changed { .. }),
                            "{counted:?}"
                        );
                        let found = cache.get(&key);
                        if before.is_multiple_of(2) && flush_steps.load(Ordering::SeqCst) == before
                        {
                            assert_eq!(found.as_deref(), Some(&round.to_be_bytes()[..]));
                            hits += 1;
                        }
                    }
                    hits
                })
            })
            .collect();
        scope.spawn(move || {
            // Odd during a flush.
            while !is_done.load(Ordering::SeqCst) {
                flush_steps.fetch_add(1, Ordering::SeqCst);
                cache.flush_all(0);
                flush_steps.fetch_add(1, Ordering::SeqCst);
                std::thread::yield_now();
            }
        });
        let hits: u32 = writers
            .into_iter()
            .map(|writer| writer.join().unwrap())
            .sum();
        is_done.store(true, Ordering::SeqCst);
        assert!(hits > 100, "{hits}");
    });
    cache.flush_all(0);
    assert_eq!((cache.stats().items, visited(&cache)), (0, 0));
}

/// A thread that has read an item and then flushes does not find it again, even while the call that
/// stored it still runs.
#[test]
fn an_item_read_before_a_flush_is_not_found_after_it() {
    let cache = cache(WhenFull::Evict);
    let round = AtomicU64::new(0);
    const ROUNDS: u64 = 10_000;
    std::thread::scope(|scope| {
        let (cache, round) = (&cache, &round);
        scope.spawn(move || {
            for n in 1..=ROUNDS {
                set(cache, b"key", &n.to_be_bytes());
                while round.load(Ordering::SeqCst) < n {
                    std::hint::spin_loop();
                }
            }
        });
        let mut reappeared = 0;
        for n in 1..=ROUNDS {
            while cache.get(b"key").is_none() {
                std::hint::spin_loop();
            }
            cache.flush_all(0);
            reappeared += u64::from(cache.get(b"key").is_some());
            cache.flush_all(0);
            cache.delete(Delete::key(b"key"));
            round.store(n, Ordering::SeqCst);
        }
        assert_eq!(reappeared, 0, "of {ROUNDS}");
    });
}

/// A flush that is scheduled while an earlier one becomes due is not lost.
#[test]
fn a_flush_scheduled_while_another_becomes_due_is_not_lost() {
    const ROUNDS: u32 = 3000;
    let cache = cache(WhenFull::Evict);
    let (begun, ended) = (AtomicU64::new(0), AtomicU64::new(0));
    let wait = |steps: &AtomicU64, round: u32| {
        while steps.load(Ordering::SeqCst) < u64::from(round) {
            std::hint::spin_loop();
        }
    };
    std::thread::scope(|scope| {
        let (cache, begun, ended) = (&cache, &begun, &ended);
        scope.spawn(move || {
            for round in 1..=ROUNDS {
                wait(begun, round);
                cache.advance(round * 10);
                ended.store(round.into(), Ordering::SeqCst);
            }
        });
        let mut lost = 0;
        for round in 1..=ROUNDS {
            cache.flush_all(round * 10);
            begun.store(round.into(), Ordering::SeqCst);
            // With varying delays, so that every step of the other thread is hit.
            (0..round % 64).for_each(|_| std::hint::spin_loop());
            cache.flush_all(round * 10 + 5);
            wait(ended, round);
            set(cache, b"key", b"value");
            cache.advance(round * 10 + 5);
            lost += u32::from(cache.get(b"key").is_some());
        }
        assert_eq!(lost, 0, "of {ROUNDS}");
    });
}
