//! The effect of each writing operation.

use crate::testing;

use forerun_cache::{
    Arithmetic, ArithmeticResult, Cache, CacheOptions, Delete, DeleteResult, Expiry, Invalidate,
    Store, StoreMode, StoreResult,
};
use testing::{cache, set, stored};

#[test]
fn modes_store_under_their_conditions() {
    let cache = cache(16 << 20);
    let store = |mode| {
        cache.store(Store {
            mode,
            flags: 9,
            ..Store::set(b"k", b"x")
        })
    };
    for mode in [StoreMode::Replace, StoreMode::Append, StoreMode::Prepend] {
        assert_eq!(store(mode), StoreResult::NotStored);
    }
    stored(store(StoreMode::Add));
    assert_eq!(store(StoreMode::Add), StoreResult::NotStored);
    set(&cache, b"k", b"mid");
    stored(store(StoreMode::Append));
    stored(store(StoreMode::Prepend));
    assert_eq!(cache.get(b"k").unwrap(), b"xmidx");
    assert_eq!(
        cache.pin().get(b"k").unwrap().flags(),
        0,
        "an append keeps the old flags"
    );
    stored(store(StoreMode::Replace));
    assert_eq!(cache.pin().get(b"k").unwrap().flags(), 9);
    let vivify = Store {
        mode: StoreMode::Append,
        vivify: Some(Expiry::At(50)),
        ..Store::set(b"new", b"v")
    };
    stored(cache.store(vivify));
    assert_eq!(cache.pin().get(b"new").unwrap().expiry(), Expiry::At(50));
}

#[test]
fn an_append_compares_a_cas_number_only_with_an_item() {
    let cache = cache(16 << 20);
    for (mode, joined) in [(StoreMode::Append, b"12"), (StoreMode::Prepend, b"21")] {
        let with = |compare_cas, vivify, value: &'static [u8]| {
            cache.store(Store {
                mode,
                compare_cas: Some(compare_cas),
                vivify,
                ..Store::set(b"k", value)
            })
        };
        assert_eq!(with(1, None, b"1"), StoreResult::NotStored);
        let cas = stored(with(1, Some(Expiry::Never), b"1"));
        assert_eq!(
            with(cas + 1, Some(Expiry::Never), b"2"),
            StoreResult::Exists
        );
        stored(with(cas, None, b"2"));
        assert_eq!(cache.get(b"k").unwrap(), joined);
        assert_eq!(cache.delete(Delete::key(b"k")), DeleteResult::Deleted);
    }
}

#[test]
fn a_cas_number_admits_one_change() {
    let cache = cache(16 << 20);
    let with = |compare_cas, value: &'static [u8]| {
        cache.store(Store {
            compare_cas: Some(compare_cas),
            ..Store::set(b"k", value)
        })
    };
    assert_eq!(with(1, b"x"), StoreResult::NotFound);
    let cas = set(&cache, b"k", b"1");
    assert_eq!(with(cas + 1, b"x"), StoreResult::Exists);
    let next = stored(with(cas, b"2"));
    assert!(next > cas);
    assert_eq!(with(cas, b"3"), StoreResult::Exists);
    let own = Store {
        new_cas: Some(77),
        ..Store::set(b"k", b"4")
    };
    assert_eq!(cache.store(own), StoreResult::Stored { cas: 77 });
    assert_eq!(cache.pin().get(b"k").unwrap().cas(), 77);
    let delete = |compare_cas| {
        cache.delete(Delete {
            compare_cas: Some(compare_cas),
            ..Delete::key(b"k")
        })
    };
    assert_eq!(delete(76), DeleteResult::Exists);
    assert_eq!(delete(77), DeleteResult::Deleted);
    assert_eq!(delete(77), DeleteResult::NotFound);
}

#[test]
fn an_older_version_can_be_stored_as_stale() {
    let cache = cache(16 << 20);
    let store = |compare_cas| {
        cache.store(Store {
            compare_cas: Some(compare_cas),
            stale_if_older: true,
            expiry: Expiry::At(9999),
            ..Store::set(b"k", b"late")
        })
    };
    stored(cache.store(Store {
        new_cas: Some(10),
        expiry: Expiry::At(60),
        ..Store::set(b"k", b"first")
    }));
    assert_eq!(store(11), StoreResult::Exists);
    stored(store(5));
    let guard = cache.pin();
    let item = guard.get(b"k").unwrap();
    assert!(item.is_stale() && item.value() == b"late" && item.expiry() == Expiry::At(60));
}

#[test]
fn one_caller_claims_an_item_until_it_is_stored_or_invalidated_again() {
    let cache = cache(16 << 20);
    set(&cache, b"k", b"v");
    let claim = || {
        let guard = cache.pin();
        let item = guard.get(b"k").unwrap();
        let was_claimed = item.is_claimed();
        (was_claimed, cache.claim(&item))
    };
    assert_eq!([claim(), claim()], [(false, true), (true, false)]);
    assert_eq!(
        cache.invalidate(Invalidate::key(b"k")),
        DeleteResult::Deleted
    );
    assert!(cache.pin().get(b"k").unwrap().is_stale());
    assert_eq!([claim(), claim()], [(false, true), (true, false)]);
    set(&cache, b"k", b"w");
    assert_eq!([claim(), claim()], [(false, true), (true, false)]);
    let placeholder = Store {
        claimed: true,
        ..Store::set(b"p", b"")
    };
    stored(cache.store(placeholder));
    assert!(cache.pin().get(b"p").unwrap().is_claimed());
    let old = cache.pin();
    let item = old.get(b"k").unwrap();
    set(&cache, b"k", b"x");
    assert!(!cache.claim(&item), "a replaced item cannot be claimed");
}

#[test]
fn invalidating_keeps_or_drops_the_value_and_sets_the_given_fields() {
    let cache = cache(16 << 20);
    let cas = stored(cache.store(Store {
        flags: 3,
        expiry: Expiry::At(40),
        ..Store::set(b"k", b"v")
    }));
    let invalidate = Invalidate {
        compare_cas: Some(cas),
        new_cas: Some(500),
        expiry: Some(Expiry::At(90)),
        ..Invalidate::key(b"k")
    };
    assert_eq!(cache.invalidate(invalidate), DeleteResult::Deleted);
    assert_eq!(cache.invalidate(invalidate), DeleteResult::Exists);
    let guard = cache.pin();
    let item = guard.get(b"k").unwrap();
    assert_eq!(
        (item.value(), item.flags(), item.cas()),
        (&b"v"[..], 3, 500)
    );
    assert!(item.is_stale() && item.expiry() == Expiry::At(90));
    let empty = Invalidate {
        drop_value: true,
        mark_stale: false,
        ..Invalidate::key(b"k")
    };
    assert_eq!(cache.invalidate(empty), DeleteResult::Deleted);
    let item = guard.get(b"k").unwrap();
    assert_eq!((item.value(), item.flags()), (&b""[..], 0));
    assert_eq!(
        cache.invalidate(Invalidate::key(b"missing")),
        DeleteResult::NotFound
    );
}

#[test]
fn numbers_wrap_around_stop_at_zero_and_keep_their_length() {
    let cache = cache(16 << 20);
    let value = |counted| match counted {
        ArithmeticResult::Changed { value, .. } => value,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        cache.arithmetic(Arithmetic::increment(b"n", 1)),
        ArithmeticResult::NotFound
    );
    set(&cache, b"n", b"99");
    assert_eq!(value(cache.arithmetic(Arithmetic::increment(b"n", 1))), 100);
    assert_eq!(value(cache.arithmetic(Arithmetic::decrement(b"n", 1))), 99);
    assert_eq!(cache.get(b"n").unwrap(), b"99 ");
    assert_eq!(value(cache.arithmetic(Arithmetic::decrement(b"n", 100))), 0);
    assert_eq!(cache.get(b"n").unwrap(), b"0  ");
    set(&cache, b"n", u64::MAX.to_string().as_bytes());
    assert_eq!(value(cache.arithmetic(Arithmetic::increment(b"n", 2))), 1);
    // Numbers are read as C's strtoull does, and therefore as memcached does.
    for one in [
        &b"000000000000000000001"[..],
        b"+1",
        b" 1",
        b"1 1",
        b"1\r",
        b"1\nx",
    ] {
        set(&cache, b"n", one);
        assert_eq!(value(cache.arithmetic(Arithmetic::increment(b"n", 1))), 2);
    }
    for not_a_number in [
        &b""[..],
        b"x",
        b" ",
        b"-1",
        b"++1",
        b"+ 1",
        b"1x",
        b"18446744073709551616",
    ] {
        set(&cache, b"n", not_a_number);
        let counted = cache.arithmetic(Arithmetic::increment(b"n", 1));
        assert_eq!(counted, ArithmeticResult::NotANumber, "{not_a_number:?}");
    }
    let initial = Arithmetic {
        initial: Some((13, Expiry::At(70))),
        ..Arithmetic::increment(b"fresh", 5)
    };
    let ArithmeticResult::Changed {
        value: 13,
        cas,
        expiry: Expiry::At(70),
        is_new: true,
    } = cache.arithmetic(initial)
    else {
        panic!();
    };
    let wrong = Arithmetic {
        compare_cas: Some(cas + 1),
        ..initial
    };
    assert_eq!(cache.arithmetic(wrong), ArithmeticResult::Exists);
    let touched = Arithmetic {
        expiry: Some(Expiry::Never),
        ..initial
    };
    assert!(matches!(
        cache.arithmetic(touched),
        ArithmeticResult::Changed {
            value: 18,
            expiry: Expiry::Never,
            is_new: false,
            ..
        }
    ));
}

#[test]
fn a_number_followed_by_much_white_space_is_changed_and_keeps_its_length() {
    let cache = cache(16 << 20);
    for len in [65_535, 65_536, 200_000] {
        let mut value = vec![b' '; len];
        value[..2].copy_from_slice(b"10");
        set(&cache, b"n", &value);
        let counted = cache.arithmetic(Arithmetic::decrement(b"n", 1));
        assert!(matches!(
            counted,
            ArithmeticResult::Changed { value: 9, .. }
        ));
        let guard = cache.pin();
        let item = guard.get(b"n").unwrap();
        assert_eq!(item.value().len(), len);
        assert!(item.value().starts_with(b"9  "));
    }
    // As in memcached, which stores such a value in chunks.
    let mut value = vec![b' '; (512 << 10) + 1];
    value[0] = b'1';
    set(&cache, b"n", &value);
    let counted = cache.arithmetic(Arithmetic::increment(b"n", 1));
    assert_eq!(counted, ArithmeticResult::NotANumber);
}

#[test]
fn items_expire_in_their_second_and_a_touch_extends_it() {
    let cache = cache(16 << 20);
    let until = |key: &[u8], second| {
        stored(cache.store(Store {
            expiry: Expiry::At(second),
            ..Store::set(key, b"v")
        }))
    };
    until(b"a", 10);
    until(b"b", 10);
    until(b"c", 1);
    assert_eq!(cache.get(b"c"), None, "its second has already come");
    cache.advance(9);
    assert!(cache.touch(b"b", Expiry::At(100_000)));
    assert!(cache.get(b"a").is_some());
    cache.advance(10);
    assert_eq!(cache.get(b"a"), None);
    assert!(!cache.touch(b"a", Expiry::Never));
    assert_eq!(
        cache.store(Store {
            mode: StoreMode::Replace,
            ..Store::set(b"a", b"w")
        }),
        StoreResult::NotStored
    );
    assert_eq!(cache.delete(Delete::key(b"a")), DeleteResult::NotFound);
    let guard = cache.pin();
    let item = guard.get_and_touch(b"b", Expiry::Never).unwrap();
    assert_eq!((item.value(), item.expiry()), (&b"v"[..], Expiry::Never));
    assert!(guard.get_and_touch(b"a", Expiry::Never).is_none());
    cache.advance(5);
    assert_eq!(cache.now(), 10, "the clock never goes back");
}

#[test]
fn touching_an_item_that_was_replaced_changes_nothing() {
    let cache = cache(16 << 20);
    let with_expiry = |second, value| Store {
        expiry: Expiry::At(second),
        ..Store::set(b"k", value)
    };
    stored(cache.store(with_expiry(50, b"old")));
    let guard = cache.pin();
    let old = guard.get(b"k").unwrap();
    // To a block of another TTL class and back.
    for second in [1_000_000, 60, 61] {
        assert!(cache.touch_item(&old, Expiry::At(second)));
        let now_there = guard.get(b"k").unwrap();
        assert_eq!(
            (now_there.expiry(), now_there.cas()),
            (Expiry::At(second), old.cas())
        );
    }
    stored(cache.store(with_expiry(5, b"new")));
    assert!(!cache.touch_item(&old, Expiry::At(3600)));
    assert_eq!(guard.get(b"k").unwrap().expiry(), Expiry::At(5));
    cache.delete(Delete::key(b"k"));
    assert!(!cache.touch_item(&old, Expiry::At(3600)));
}

#[test]
fn get_and_touch_touches_the_item_that_it_returns_and_no_other() {
    const ROUNDS: u32 = 2000;
    let cache = cache(16 << 20);
    let barrier = std::sync::Barrier::new(2);
    let keys: Vec<[u8; 1]> = (0..24).map(|n| [n]).collect();
    let mut wrong = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..ROUNDS {
                barrier.wait();
                for key in &keys {
                    let expiry = Expiry::At(5);
                    stored(cache.store(Store {
                        expiry,
                        ..Store::set(key, &round.to_be_bytes())
                    }));
                }
                barrier.wait();
            }
        });
        for _ in 0..ROUNDS {
            barrier.wait();
            let got: Vec<_> = keys
                .iter()
                .map(|key| {
                    let guard = cache.pin();
                    let item = guard.get_and_touch(key, Expiry::At(3600));
                    item.map(|item| item.value().to_vec())
                })
                .collect();
            barrier.wait();
            for (key, got) in keys.iter().zip(got) {
                let guard = cache.pin();
                let item = guard.peek(key).unwrap();
                let is_returned = got.as_deref() == Some(item.value());
                let expected = if is_returned { 3600 } else { 5 };
                wrong += u32::from(item.expiry() != Expiry::At(expected));
            }
        }
    });
    assert_eq!(wrong, 0);
}

#[test]
fn a_touch_does_not_evict_the_item_that_it_touches() {
    let cache = Cache::new(
        CacheOptions::default()
            .clock(forerun_cache::Clock::Manual)
            .memory_limit_bytes(1 << 20)
            .max_item_bytes(250_000)
            .seed(1),
    )
    .unwrap();
    let mut touches = 0;
    for n in 0..20_000u32 {
        let len = [20, 300, 3000][n as usize % 3];
        let expiry = [Expiry::Never, Expiry::At(100), Expiry::At(50_000)][n as usize / 3 % 3];
        let _ = cache.store(Store {
            expiry,
            ..Store::set(&(n % 2000).to_be_bytes(), &vec![1; len][..])
        });
        let key = (n * 7 % 2000).to_be_bytes();
        if cache.pin().peek(&key).is_some() {
            let expiry = [Expiry::At(5), Expiry::At(3000), Expiry::Never][n as usize % 3];
            assert!(cache.touch(&key, expiry), "step {n}");
            touches += 1;
        }
    }
    assert!(touches > 1000 && cache.stats().evictions > 1000);
}

#[test]
fn evictions_and_sweeps_are_counted_with_what_they_found() {
    let cache = Cache::new(
        CacheOptions::default()
            .clock(forerun_cache::Clock::Manual)
            .memory_limit_bytes(8 << 20),
    )
    .unwrap();
    let value = vec![7; 1_000];
    let expiry = Expiry::At(cache.now() + 1_000);
    for number in 0..2_000_u32 {
        let _ = cache.store(Store::set(&number.to_be_bytes(), &value));
    }
    cache.advance(cache.now() + 50);
    assert_eq!(cache.stats().evicted_with_ttl, 0);
    for number in 0..30_000_u32 {
        let key = [b"t".as_slice(), &number.to_be_bytes()].concat();
        let _ = cache.store(Store {
            expiry,
            ..Store::set(&key, &value)
        });
    }
    let full = cache.stats();
    assert!(full.evicted_with_ttl > 10_000, "{full:?}");
    assert!(full.evictions > full.evicted_with_ttl, "{full:?}");
    cache.advance(cache.now() + 7);
    for number in 0..30_000_u32 {
        let key = [b"u".as_slice(), &number.to_be_bytes()].concat();
        let _ = cache.store(Store::set(&key, &value));
    }
    // Items of this second have displaced all others, and some of them each other.
    assert!(
        cache.stats().last_evicted_idle_s <= 7,
        "{:?}",
        cache.stats()
    );
}

#[test]
fn a_sweep_counts_the_items_it_checks_and_reclaims() {
    let cache = Cache::new(CacheOptions::default().clock(forerun_cache::Clock::Manual)).unwrap();
    for number in 0..10_u32 {
        // Blocks whose items have all expired are reclaimed without a sweep.
        let expiry = Expiry::At(cache.now() + 3 + number % 2);
        let _ = cache.store(Store {
            expiry,
            ..Store::set(&number.to_be_bytes(), "v")
        });
    }
    cache.advance(cache.now() + 3);
    assert_eq!(cache.remove_expired(), 5);
    assert_eq!(cache.remove_expired(), 0);
    let stats = cache.stats();
    let swept = (stats.sweeps, stats.swept_items, stats.swept_expired);
    assert_eq!(swept, (2, 15, 5));
}
