//! A computation is one step to all other threads, and a refused one changes nothing.

mod testing;

use forerun_cache::{
    Cache, CacheOptions, Clock, ComputeOp, ComputePut, ComputeResult, ComputeValue, Expiry, Item,
    Store, ValuePart, WhenFull,
};
use std::sync::atomic::{AtomicU64, Ordering};

#[test]
fn no_count_of_several_threads_is_lost() {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 5000;
    let cache = testing::cache(64 << 20);
    let calls = AtomicU64::new(0);
    let add = || {
        let added = cache.compute("visits", |old| {
            calls.fetch_add(1, Ordering::Relaxed);
            let old = old.map_or(0, |old| {
                std::str::from_utf8(old.value())
                    .unwrap()
                    .parse::<u64>()
                    .unwrap()
            });
            ComputeOp::Put(ComputePut::new((old + 1).to_string().into_bytes()))
        });
        assert!(matches!(added, ComputeResult::Stored { .. }), "{added:?}");
    };
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| (0..ROUNDS).for_each(|_| add()));
        }
    });
    let count = String::from_utf8(cache.get("visits").unwrap()).unwrap();
    assert_eq!(count, (THREADS * ROUNDS).to_string());
    assert!(calls.into_inner() >= THREADS * ROUNDS);
}

/// One thread stores ever larger numbers. The other ends even ones only, so an odd one that is gone
/// was stored between its decision and its change.
#[test]
fn an_item_is_removed_or_expired_only_as_it_was_seen() {
    let cache = testing::cache(64 << 20);
    let number = |item: &Item<'_>| u32::from_be_bytes(item.value().try_into().unwrap());
    std::thread::scope(|scope| {
        let cache = &cache;
        let setter = scope.spawn(move || {
            let mut last = 0u32;
            while last < 30_000 {
                let stored = cache.compute("k", |old| {
                    match old {
                        Some(old) => assert_eq!(number(old), last),
                        None => assert!(last % 2 == 0, "{last} is gone"),
                    }
                    ComputeOp::Put(ComputePut::new((last + 1).to_be_bytes().to_vec()))
                });
                assert!(matches!(stored, ComputeResult::Stored { .. }), "{stored:?}");
                last += 1;
            }
        });
        let (mut ended, mut expires) = (0, false);
        while !setter.is_finished() {
            let result = cache.compute("k", |old| match old {
                Some(old) if number(old) % 2 != 0 => ComputeOp::Keep,
                _ if expires => ComputeOp::Expire(Expiry::AtMs(1)),
                _ => ComputeOp::Remove,
            });
            ended += u32::from(result != ComputeResult::Kept);
            expires = !expires;
        }
        assert!(ended > 0 && setter.join().is_ok());
    });
}

#[test]
fn a_refused_computation_keeps_the_old_item() {
    let options = CacheOptions::default()
        .clock(Clock::Manual)
        .memory_limit_bytes(4 << 20)
        .when_full(WhenFull::Refuse);
    let cache = Cache::new(options).unwrap();
    testing::set(&cache, b"k", b"v");
    let too_large = vec![0; cache.options().max_item_bytes];
    let put = |value: &[u8]| cache.compute("k", |_| ComputeOp::Put(ComputePut::new(value)));
    assert_eq!(put(&too_large), ComputeResult::TooLarge);
    assert_eq!(cache.get("k").as_deref(), Some(&b"v"[..]));
    let is_full = (0..100_000u32).any(|n| {
        let stored = cache.set(&n.to_be_bytes(), &[7; 500]);
        !matches!(stored, forerun_cache::StoreResult::Stored { .. })
    });
    assert!(is_full);
    assert_eq!(put(&too_large[..100_000]), ComputeResult::OutOfMemory);
    assert_eq!(cache.get("k").as_deref(), Some(&b"v"[..]));
    let long = vec![b'k'; cache.key_bytes_max() + 1];
    let refused = cache.compute(&long, |_| panic!("nothing to decide"));
    assert_eq!(refused, ComputeResult::InvalidKey);
}

#[test]
fn a_large_value_is_shared_with_the_new_item_and_copied_from_another_cache() {
    let (cache, other) = (testing::cache(64 << 20), testing::cache(64 << 20));
    let value: Vec<u8> = (0..400_000u32).map(|n| n as u8).collect();
    testing::set(&cache, b"old", &value);
    let shared = cache.pin().get("old").unwrap().to_shared().unwrap();
    let start = shared.as_ptr();
    for cache in [&cache, &other] {
        let put = ComputePut::new(shared.clone());
        let mut put = Some(ComputePut {
            expiry: Expiry::AtMs(90_000),
            ..put
        });
        let renamed = cache.compute("new", |_| {
            put.take().map_or(ComputeOp::Keep, ComputeOp::Put)
        });
        assert!(
            matches!(renamed, ComputeResult::Stored { .. }),
            "{renamed:?}"
        );
    }
    drop(shared);
    let is_same = |cache: &Cache| {
        let guard = cache.pin();
        let item = guard.get("new").unwrap();
        assert_eq!((item.value(), item.expiry_ms()), (&value[..], Some(90_000)));
        item.value().as_ptr() == start
    };
    assert!(is_same(&cache) && !is_same(&other));
    let large_bytes = cache.stats().large_bytes;
    let _ = cache.delete("old");
    cache.remove_expired();
    assert_eq!(
        cache.stats().large_bytes,
        large_bytes,
        "the new item still has it"
    );
}

#[test]
fn ranges_beyond_the_old_value_are_empty() {
    let cache = testing::cache(16 << 20);
    testing::set(&cache, b"k", b"0123456789");
    let parts = [
        ValuePart::Old(8..20),
        ValuePart::Bytes(b"-"),
        ValuePart::Old(20..30),
        ValuePart::Old(3..2),
        ValuePart::Old(0..2),
    ];
    for expected in [&b"89-01"[..], b"-89", b"--8"] {
        let put = || ComputePut::new(ComputeValue::Parts(parts.to_vec()));
        let stored = cache.compute("k", |_| ComputeOp::Put(put()));
        assert!(matches!(stored, ComputeResult::Stored { .. }));
        assert_eq!(cache.get("k").as_deref(), Some(expected));
    }
}

#[test]
fn an_item_that_is_evicted_for_the_new_one_is_decided_on_again() {
    let cache = testing::cache(1 << 20);
    for n in 0..20_000u32 {
        let key = (n % 6000).to_be_bytes();
        let mut last = None;
        let result = cache.compute(key, |old| {
            last = Some(old.map(|old| old.value().len()));
            let parts = vec![ValuePart::Old(0..200), ValuePart::Bytes(&[1; 50])];
            ComputeOp::Put(ComputePut::new(parts))
        });
        assert!(matches!(result, ComputeResult::Stored { .. }), "{result:?}");
        let expected = last.unwrap().map_or(50, |len| len.min(200) + 50);
        assert_eq!(cache.get(key).map(|value| value.len()), Some(expected));
    }
    assert!(cache.stats().evictions > 1000);
}

#[test]
fn a_thread_that_holds_a_guard_is_refused_rather_than_blocked() {
    let cache = testing::cache(1 << 20);
    (0..5000u32).for_each(|n| _ = cache.set(&n.to_be_bytes(), &[0; 300]));
    let _guard = cache.pin();
    let refused = (0..5000u32).find_map(|n| {
        let put = || ComputeOp::Put(ComputePut::new(&[1; 300]));
        match cache.compute(n.to_le_bytes(), |_| put()) {
            ComputeResult::Stored { .. } => None,
            other => Some(other),
        }
    });
    assert_eq!(refused, Some(ComputeResult::OutOfMemory));
}

#[test]
fn claims_and_marks_end_with_a_new_value_and_stay_with_a_new_expiry() {
    let cache = testing::cache(16 << 20);
    let _ = cache.store(Store {
        claimed: true,
        ..Store::set("k", "v")
    });
    let is_claimed = || cache.pin().peek("k").unwrap().is_claimed();
    let touched = cache.compute("k", |_| ComputeOp::Expire(Expiry::AtMs(90_000)));
    assert_eq!(touched, ComputeResult::Touched);
    assert!(is_claimed());
    let _ = cache.compute("k", |_| ComputeOp::Put(ComputePut::new("w")));
    assert!(!is_claimed());
}
