//! A full cache that refuses new items: it evicts nothing, and the items that it has can change.

use crate::testing;

use forerun_cache::{
    Arithmetic, ArithmeticResult, Cache, CacheOptions, Delete, DeleteResult, Expiry, Invalidate,
    Store, StoreResult, WhenFull,
};
use std::sync::atomic::{AtomicBool, Ordering};
use testing::stored;

fn cache(memory_limit_bytes: usize) -> Cache {
    let options = CacheOptions::default()
        .clock(forerun_cache::Clock::Manual)
        .memory_limit_bytes(memory_limit_bytes)
        .when_full(WhenFull::Refuse);
    Cache::new(options).unwrap()
}

/// Stores items with this prefix and of this length until one is refused. Returns their number.
fn fill(cache: &Cache, prefix: &str, len: usize) -> u32 {
    let mut count = 0;
    while let StoreResult::Stored { .. } =
        cache.store(Store::set(&format!("{prefix}{count}"), &vec![1; len]))
    {
        count += 1;
    }
    count
}

#[test]
fn compaction_evicts_nothing_when_items_have_moved_to_many_ttl_classes() {
    let cache = cache(16 << 20);
    let count = fill(&cache, "k", 500);
    let times = [2_000_000, 300_000, 50_000, 4000, 200, 0, 34_000_000];
    // In a scattered order, so that every block has items of all classes.
    for n in 0..count {
        let n = (u64::from(n) * 7919 % u64::from(count)) as u32;
        let expiry = match times[n as usize % times.len()] {
            0 => Expiry::Never,
            seconds => Expiry::At(cache.now() + seconds),
        };
        assert!(cache.touch(format!("k{n}"), expiry));
    }
    for n in (0..count).step_by(5) {
        let key = format!("k{n}");
        assert_eq!(cache.delete(Delete::key(&key)), DeleteResult::Deleted);
    }
    let more = fill(&cache, "n", 500);
    let left = (0..count).filter(|n| n % 5 != 0);
    let lost = left
        .filter(|n| cache.get(format!("k{n}")).is_none())
        .count();
    assert_eq!((lost, cache.stats().evictions), (0, 0));
    assert!(more > count / 7, "{more} in place of {}", count / 5);
}

#[test]
fn counters_invalidations_and_values_of_the_same_length_find_memory_in_a_full_cache() {
    let cache = cache(8 << 20);
    let counter = |n: u32| format!("counter {n}");
    for n in 0..100 {
        stored(cache.store(Store::set(&counter(n), "1000")));
    }
    let items = fill(&cache, "k", 300);
    for len in [100, 30, 5, 1] {
        fill(&cache, &format!("{len} "), len);
    }
    let full = cache.stats();
    // Many more bytes than any reserve has.
    for round in 1..=200 {
        for n in 0..100 {
            let key = counter(n);
            let counted = cache.arithmetic(Arithmetic::increment(&key, 1));
            let expected = 1000 + round;
            assert!(
                matches!(counted, ArithmeticResult::Changed { value, .. } if value == expected),
                "{counted:?}"
            );
        }
    }
    for n in 0..items {
        let key = format!("k{n}");
        let expiry = Some(Expiry::At(cache.now() + 30 * (1 + n % 1000)));
        let invalidate = Invalidate {
            expiry,
            ..Invalidate::key(&key)
        };
        assert_eq!(cache.invalidate(invalidate), DeleteResult::Deleted, "{n}");
        assert!(cache.pin().get(&key).unwrap().is_stale());
    }
    for n in 0..items {
        stored(cache.store(Store::set(&format!("k{n}"), &[n as u8; 300])));
    }
    for n in 0..items {
        assert_eq!(cache.get(format!("k{n}")).unwrap(), [n as u8; 300]);
    }
    let stats = cache.stats();
    assert_eq!((stats.items, stats.evictions), (full.items, 0));
    assert!(stats.memory_bytes <= 8 << 20);
    let more = fill(&cache, "new ", 300);
    assert!(more < 100, "{more}: the cache is still full");
}

#[test]
fn a_refused_store_moves_nothing_when_no_bytes_are_dead() {
    let cache = cache(8 << 20);
    // Eight such items leave the end of a block unused, and no ninth fits there.
    let count = fill(&cache, "k", 7400);
    let full = cache.stats();
    assert_eq!(full.moved_bytes, 0);
    for _ in 0..3 {
        let refused = cache.store(Store::set(&format!("k{count}"), &[1; 7400]));
        let moved_bytes = cache.stats().moved_bytes - full.moved_bytes;
        assert_eq!((moved_bytes, refused), (0, StoreResult::OutOfMemory));
    }
}

#[test]
fn counters_find_memory_while_other_threads_fill_every_gap() {
    const ROUNDS: u64 = 300;
    let cache = cache(4 << 20);
    let counter = |thread: u32, n: u32| format!("counter {thread} {n}");
    for n in 0..50 {
        (0..2).for_each(|thread| {
            stored(cache.store(Store::set(&counter(thread, n), "1000")));
        });
    }
    let items = fill(&cache, "k", 300);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let counting: Vec<_> = (0..2)
            .map(|thread| {
                let cache = &cache;
                scope.spawn(move || {
                    for n in (0..ROUNDS).flat_map(|_| 0..50) {
                        let counted =
                            cache.arithmetic(Arithmetic::increment(&counter(thread, n), 1));
                        assert!(
                            matches!(counted, ArithmeticResult::Changed { .. }),
                            "{counted:?}"
                        );
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            // New items, and deletions of some of them, which leave dead bytes everywhere.
            for n in 0.. {
                let _ = cache.store(Store::set(&format!("new {n}"), &[4; 300]));
                cache.delete(Delete::key(&format!("new {}", n / 2)));
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let counted: Vec<_> = counting.into_iter().map(|thread| thread.join()).collect();
        is_over.store(true, Ordering::Relaxed);
        counted.into_iter().for_each(|counted| counted.unwrap());
    });
    for (thread, n) in (0..2).flat_map(|thread| (0..50).map(move |n| (thread, n))) {
        let value = cache.get(counter(thread, n)).unwrap();
        assert_eq!(value, (1000 + ROUNDS).to_string().as_bytes());
    }
    let lost = (0..items).filter(|n| cache.get(format!("k{n}")).is_none());
    assert_eq!((lost.count(), cache.stats().evictions), (0, 0));
}
