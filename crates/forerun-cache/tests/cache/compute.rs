//! A computation is one step to all other threads, and a refused one changes nothing.

use crate::testing;

use forerun_cache::{
    Cache, CacheOptions, Clock, ComputeOp, ComputePut, ComputeResult, ComputeValue, Expiry, Item,
    Store, ValuePart, WhenFull,
};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How long a thread waits for another.
const PATIENCE: Duration = Duration::from_secs(60);

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
    let ended = AtomicU32::new(0);
    std::thread::scope(|scope| {
        let (cache, ended) = (&cache, &ended);
        let setter = scope.spawn(move || {
            let (mut last, begun) = (0u32, Instant::now());
            // On a busy machine, the other thread may begin late.
            let is_met = || ended.load(Relaxed) > 0 || begun.elapsed() > PATIENCE;
            while last < 30_000 || !is_met() {
                let stored = cache.compute("k", |old| {
                    match old {
                        Some(old) => assert_eq!(number(old), last),
                        None => assert!(last.is_multiple_of(2), "{last} is gone"),
                    }
                    ComputeOp::Put(ComputePut::new((last + 1).to_be_bytes().to_vec()))
                });
                assert!(matches!(stored, ComputeResult::Stored { .. }), "{stored:?}");
                last += 1;
            }
        });
        let mut expires = false;
        while !setter.is_finished() {
            let result = cache.compute("k", |old| match old {
                Some(old) if !number(old).is_multiple_of(2) => ComputeOp::Keep,
                _ if expires => ComputeOp::Expire(Expiry::AtMs(1)),
                _ => ComputeOp::Remove,
            });
            ended.fetch_add(u32::from(result != ComputeResult::Kept), Relaxed);
            expires = !expires;
        }
        assert!(ended.load(Relaxed) > 0 && setter.join().is_ok());
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
        ValuePart::Old(usize::MAX..usize::MAX),
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

/// The parts of a value with one byte more.
fn appended(old: Option<&Item<'_>>) -> ComputeOp<'static> {
    let mut parts = vec![ValuePart::Old(0..usize::MAX)];
    parts.push(ValuePart::Bytes(match old {
        Some(_) => b"x",
        None => &[0; 200_000],
    }));
    ComputeOp::Put(ComputePut::new(parts))
}

#[test]
fn others_are_evicted_before_the_item_that_is_edited() {
    let cache = testing::cache(8 << 20);
    for n in 0..400u32 {
        let key = (n % 45).to_be_bytes();
        let is_there = cache.pin().peek(key).is_some();
        let mut was_there = true;
        let result = cache.compute(key, |old| {
            was_there &= old.is_some();
            appended(old)
        });
        assert!(matches!(result, ComputeResult::Stored { .. }), "{result:?}");
        assert_eq!(was_there, is_there, "round {n}");
    }
    assert!(cache.stats().evictions > 20);
}

#[test]
fn items_of_one_large_value_do_not_count_as_more_memory_than_there_is() {
    const LIMIT_BYTES: usize = 64 << 20;
    let cache = testing::cache(LIMIT_BYTES);
    testing::set(&cache, b"original", &vec![7; 600 << 10]);
    let shared = cache.pin().get("original").unwrap().to_shared().unwrap();
    for n in 0..500u32 {
        let copied = cache.compute(n.to_be_bytes(), |_| {
            ComputeOp::Put(ComputePut::new(shared.clone()))
        });
        assert!(matches!(copied, ComputeResult::Stored { .. }), "{copied:?}");
    }
    let item_bytes = cache.stats().item_bytes;
    assert!(item_bytes <= LIMIT_BYTES as u64, "{item_bytes}");
    testing::set(&cache, b"another", &vec![7; 600 << 10]);
}

/// Appends to an item that another thread changes during each of the first `changes` attempts, and
/// once more later. Returns the number of attempts.
fn contended_append(cache: &Cache, changes: u32) -> u32 {
    let mut calls = 0;
    std::thread::scope(|scope| {
        let result = cache.compute("k", |old| {
            calls += 1;
            let expiry = Expiry::At(cache.now() + 1000 + calls);
            let touch = scope.spawn(move || cache.touch("k", expiry));
            if calls <= changes {
                assert!(touch.join().unwrap());
            } else {
                std::thread::sleep(std::time::Duration::from_millis(50));
            }
            appended(old)
        });
        assert!(matches!(result, ComputeResult::Stored { .. }), "{result:?}");
    });
    calls
}

#[test]
fn an_edit_that_others_interrupt_succeeds_at_last() {
    let cache = testing::cache(64 << 20);
    for len in [10, 100_000] {
        testing::set(&cache, b"k", &vec![7; len]);
        assert_eq!(contended_append(&cache, 8), 9);
        assert_eq!(cache.get("k").unwrap().len(), len + 1);
    }
}

#[test]
fn a_failed_attempt_keeps_no_memory_from_the_next_one() {
    let options = CacheOptions::default()
        .clock(Clock::Manual)
        .memory_limit_bytes(16 << 20)
        .max_item_bytes(8 << 20);
    let cache = Cache::new(options).unwrap();
    // Two of these fit, and three do not.
    testing::set(&cache, b"k", &vec![7; 11 << 19]);
    (0..1000u32).for_each(|n| _ = testing::set(&cache, &n.to_be_bytes(), b"v"));
    assert_eq!(contended_append(&cache, 8), 9);
    assert_eq!(cache.stats().evictions, 0);
}
