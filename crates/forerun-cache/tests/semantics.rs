//! What each operation does, one behaviour a test.

use forerun_cache::{
    Arithmetic, Cache, CacheOptions, Counted, Cursor, Delete, Deleted, Error, Expiry, Invalidate,
    Mode, Store, Stored, Value, WhenFull,
};

fn cache() -> Cache {
    Cache::new(CacheOptions {
        memory_limit_bytes: 16 << 20,
        ..CacheOptions::default()
    })
    .unwrap()
}

fn set(cache: &Cache, key: &[u8], value: &[u8]) -> u64 {
    stored(cache.store(Store::set(key, value)))
}

#[track_caller]
fn stored(stored: Stored) -> u64 {
    match stored {
        Stored::Stored { cas } => cas,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_was_stored_is_found_with_all_that_belongs_to_it() {
    let cache = cache();
    cache.advance(100);
    let store = Store {
        flags: 0xdead_beef,
        expiry: Expiry::At(130),
        ..Store::set(b"key", Value::Parts(&[b"in ", b"", b"parts"]))
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
fn values_of_no_bytes_to_the_largest_come_back_whole() {
    let cache = Cache::new(CacheOptions {
        memory_limit_bytes: 256 << 20,
        max_item_bytes: (64 << 20) + 1000,
        ..CacheOptions::default()
    })
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
    let cache = cache();
    let value = vec![7; 500_000];
    set(&cache, b"large", &value);
    let shared = cache.pin().get(b"large").unwrap().to_shared().unwrap();
    assert_eq!(cache.delete(Delete::key(b"large")), Deleted::Deleted);
    cache.advance(2);
    assert!(*shared == value[..]);
    assert!(cache.stats().large_bytes >= 500_000);
    drop(shared);
    assert_eq!(cache.stats().large_bytes, 0);
}

#[test]
fn what_a_guard_has_read_stays_while_it_is_overwritten() {
    let cache = cache();
    set(&cache, b"key", b"old");
    let guard = cache.pin();
    let item = guard.get(b"key").unwrap();
    set(&cache, b"key", b"new");
    assert_eq!(item.value(), b"old");
    assert_eq!(guard.get(b"key").unwrap().value(), b"new");
    assert_ne!(guard.get(b"key").unwrap().cas(), item.cas());
}

#[test]
fn a_batch_finds_what_single_keys_find_whatever_its_length() {
    let cache = cache();
    let keys: Vec<String> = (0..2000).map(|n| format!("key {n}")).collect();
    for key in keys.iter().step_by(3) {
        set(&cache, key.as_bytes(), key.as_bytes());
    }
    cache.store(Store {
        expiry: Expiry::At(1),
        ..Store::set(keys[0].as_bytes(), b"gone")
    });
    for len in [0, 1, 2, 63, 64, 65, 128, 100, 2000] {
        let guard = cache.pin();
        let batch: Vec<&[u8]> = keys[..len].iter().map(|key| key.as_bytes()).collect();
        let mut items = vec![None; len];
        guard.multi_get(&batch, &mut items);
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
fn a_batch_may_ask_for_a_key_twice() {
    let cache = cache();
    set(&cache, b"a", b"1");
    let guard = cache.pin();
    let mut items = [None; 3];
    guard.multi_get(&[b"a", b"b", b"a"], &mut items);
    assert_eq!(
        items.map(|item| item.map(|item| item.value())),
        [Some(&b"1"[..]), None, Some(b"1")]
    );
}

#[test]
fn modes_store_under_their_conditions() {
    let cache = cache();
    let store = |mode| {
        cache.store(Store {
            mode,
            flags: 9,
            ..Store::set(b"k", b"x")
        })
    };
    for mode in [Mode::Replace, Mode::Append, Mode::Prepend] {
        assert_eq!(store(mode), Stored::NotStored);
    }
    stored(store(Mode::Add));
    assert_eq!(store(Mode::Add), Stored::NotStored);
    set(&cache, b"k", b"mid");
    stored(store(Mode::Append));
    stored(store(Mode::Prepend));
    assert_eq!(cache.get(b"k").unwrap(), b"xmidx");
    assert_eq!(
        cache.pin().get(b"k").unwrap().flags(),
        0,
        "flags stay the older value's"
    );
    stored(store(Mode::Replace));
    assert_eq!(cache.pin().get(b"k").unwrap().flags(), 9);
    let vivify = Store {
        mode: Mode::Append,
        vivify: Some(Expiry::At(50)),
        ..Store::set(b"new", b"v")
    };
    stored(cache.store(vivify));
    assert_eq!(cache.pin().get(b"new").unwrap().expiry(), Expiry::At(50));
}

#[test]
fn a_cas_number_admits_one_change() {
    let cache = cache();
    let with = |compare_cas, value: &'static [u8]| {
        cache.store(Store {
            compare_cas: Some(compare_cas),
            ..Store::set(b"k", value)
        })
    };
    assert_eq!(with(1, b"x"), Stored::NotFound);
    let cas = set(&cache, b"k", b"1");
    assert_eq!(with(cas + 1, b"x"), Stored::Exists);
    let next = stored(with(cas, b"2"));
    assert!(next > cas);
    assert_eq!(with(cas, b"3"), Stored::Exists);
    let own = Store {
        new_cas: Some(77),
        ..Store::set(b"k", b"4")
    };
    assert_eq!(cache.store(own), Stored::Stored { cas: 77 });
    assert_eq!(cache.pin().get(b"k").unwrap().cas(), 77);
    let delete = |compare_cas| {
        cache.delete(Delete {
            compare_cas: Some(compare_cas),
            ..Delete::key(b"k")
        })
    };
    assert_eq!(delete(76), Deleted::Exists);
    assert_eq!(delete(77), Deleted::Deleted);
    assert_eq!(delete(77), Deleted::NotFound);
}

#[test]
fn an_older_version_is_stored_as_stale_where_that_is_wanted() {
    let cache = cache();
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
    assert_eq!(store(11), Stored::Exists);
    stored(store(5));
    let guard = cache.pin();
    let item = guard.get(b"k").unwrap();
    assert!(item.is_stale() && item.value() == b"late" && item.expiry() == Expiry::At(60));
}

#[test]
fn one_caller_claims_an_item_until_it_is_stored_or_invalidated_again() {
    let cache = cache();
    set(&cache, b"k", b"v");
    let claim = || {
        let guard = cache.pin();
        let item = guard.get(b"k").unwrap();
        let was_claimed = item.is_claimed();
        (was_claimed, cache.claim(&item))
    };
    assert_eq!([claim(), claim()], [(false, true), (true, false)]);
    assert_eq!(cache.invalidate(Invalidate::key(b"k")), Deleted::Deleted);
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
    assert!(
        !cache.claim(&item),
        "what was replaced is nobody's to claim"
    );
}

#[test]
fn invalidating_keeps_or_drops_the_value_and_sets_what_it_is_told() {
    let cache = cache();
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
    assert_eq!(cache.invalidate(invalidate), Deleted::Deleted);
    assert_eq!(cache.invalidate(invalidate), Deleted::Exists);
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
    assert_eq!(cache.invalidate(empty), Deleted::Deleted);
    let item = guard.get(b"k").unwrap();
    assert_eq!((item.value(), item.flags()), (&b""[..], 0));
    assert_eq!(
        cache.invalidate(Invalidate::key(b"nobody")),
        Deleted::NotFound
    );
}

#[test]
fn numbers_wrap_upwards_stop_at_zero_and_keep_their_length() {
    let cache = cache();
    let value = |counted| match counted {
        Counted::Counted { value, .. } => value,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        cache.arithmetic(Arithmetic::increment(b"n", 1)),
        Counted::NotFound
    );
    set(&cache, b"n", b"99");
    assert_eq!(value(cache.arithmetic(Arithmetic::increment(b"n", 1))), 100);
    assert_eq!(value(cache.arithmetic(Arithmetic::decrement(b"n", 1))), 99);
    assert_eq!(cache.get(b"n").unwrap(), b"99 ");
    assert_eq!(value(cache.arithmetic(Arithmetic::decrement(b"n", 100))), 0);
    assert_eq!(cache.get(b"n").unwrap(), b"0  ");
    set(&cache, b"n", u64::MAX.to_string().as_bytes());
    assert_eq!(value(cache.arithmetic(Arithmetic::increment(b"n", 2))), 1);
    // As C's strtoull has it, and hence memcached.
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
    for no_number in [
        &b""[..],
        b"x",
        b" ",
        b"-1",
        b"++1",
        b"+ 1",
        b"1x",
        b"18446744073709551616",
    ] {
        set(&cache, b"n", no_number);
        let counted = cache.arithmetic(Arithmetic::increment(b"n", 1));
        assert_eq!(counted, Counted::NotANumber, "{no_number:?}");
    }
    let initial = Arithmetic {
        initial: Some((13, Expiry::At(70))),
        ..Arithmetic::increment(b"fresh", 5)
    };
    let Counted::Counted {
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
    assert_eq!(cache.arithmetic(wrong), Counted::Exists);
    let touched = Arithmetic {
        expiry: Some(Expiry::Never),
        ..initial
    };
    assert!(matches!(
        cache.arithmetic(touched),
        Counted::Counted {
            value: 18,
            expiry: Expiry::Never,
            is_new: false,
            ..
        }
    ));
}

#[test]
fn items_are_gone_in_their_second_and_touching_puts_it_off() {
    let cache = cache();
    let until = |key: &[u8], second| {
        stored(cache.store(Store {
            expiry: Expiry::At(second),
            ..Store::set(key, b"v")
        }))
    };
    until(b"a", 10);
    until(b"b", 10);
    until(b"c", 1);
    assert_eq!(cache.get(b"c"), None, "its second has come");
    cache.advance(9);
    assert!(cache.touch(b"b", Expiry::At(100_000)));
    assert!(cache.get(b"a").is_some());
    cache.advance(10);
    assert_eq!(cache.get(b"a"), None);
    assert!(!cache.touch(b"a", Expiry::Never));
    assert_eq!(
        cache.store(Store {
            mode: Mode::Replace,
            ..Store::set(b"a", b"w")
        }),
        Stored::NotStored
    );
    assert_eq!(cache.delete(Delete::key(b"a")), Deleted::NotFound);
    let guard = cache.pin();
    let item = guard.get_and_touch(b"b", Expiry::Never).unwrap();
    assert_eq!((item.value(), item.expiry()), (&b"v"[..], Expiry::Never));
    assert!(guard.get_and_touch(b"a", Expiry::Never).is_none());
    cache.advance(5);
    assert_eq!(cache.now(), 10, "the clock never goes back");
}

#[test]
fn flushing_removes_what_is_there_now_or_then() {
    let cache = cache();
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
fn a_scan_in_parts_visits_every_item() {
    let cache = cache();
    for n in 0..5000u32 {
        set(&cache, &n.to_be_bytes(), &n.to_le_bytes());
    }
    let mut seen = vec![0; 5000];
    let mut parts = 0;
    let mut cursor = Some(Cursor::default());
    while let Some(from) = cursor {
        let guard = cache.pin();
        cursor = guard.scan(from, |item| {
            let n = u32::from_be_bytes(item.key().try_into().unwrap());
            assert_eq!(item.value(), n.to_le_bytes());
            seen[n as usize] += 1;
        });
        parts += 1;
    }
    assert!(seen.iter().all(|&times| times == 1) && parts > 1);
}

#[test]
fn keys_and_items_out_of_bounds_are_refused_and_change_nothing() {
    let cache = cache();
    set(&cache, b"k", b"v");
    for key in [&[b'k'; 251][..], b""] {
        assert_eq!(cache.store(Store::set(key, b"v")), Stored::TooLarge);
        assert_eq!(cache.get(key), None);
    }
    let limit = cache.options().max_item_bytes;
    assert_eq!(
        cache.store(Store::set(b"k", &vec![0; limit][..])),
        Stored::TooLarge
    );
    let half = vec![0; limit / 2 + 1];
    set(&cache, b"half", &half);
    let append = Store {
        mode: Mode::Append,
        ..Store::set(b"half", &half[..])
    };
    assert_eq!(cache.store(append), Stored::TooLarge);
    assert_eq!(cache.get(b"k").unwrap(), b"v");
    assert_eq!(cache.get(b"half").unwrap().len(), half.len());
    assert!(matches!(
        cache.value_buffer(limit),
        Err(Error::ValueTooLarge { .. })
    ));
    let longest = [0xff; 250];
    set(&cache, &longest, b"v");
    assert_eq!(cache.get(&longest).unwrap(), b"v");
}

#[test]
fn options_that_make_no_cache_are_refused_in_words() {
    let new = |memory_limit_bytes, max_item_bytes| {
        Cache::new(CacheOptions {
            memory_limit_bytes,
            max_item_bytes,
            ..CacheOptions::default()
        })
    };
    let refusal = new(1000, 100).unwrap_err().to_string();
    assert!(
        refusal.contains("1000 bytes") && refusal.contains("1048576"),
        "{refusal}"
    );
    let refusal = new(8 << 20, 5 << 20).unwrap_err().to_string();
    assert!(
        refusal.contains("5242880") && refusal.contains("4194304"),
        "{refusal}"
    );
    assert!(new(1 << 20, 1 << 19).is_ok());
}

#[test]
fn what_has_expired_can_be_removed_at_once_and_nothing_else() {
    let cache = Cache::new(CacheOptions::default()).unwrap();
    for n in 0..3000u32 {
        let expiry = match n % 3 {
            0 => Expiry::Never,
            1 => Expiry::At(cache.now() + 2),
            _ => Expiry::At(cache.now() + 100),
        };
        cache.store(Store {
            expiry,
            ..Store::set(&n.to_be_bytes(), b"v")
        });
    }
    assert_eq!(cache.remove_expired(), 0);
    let now = cache.now();
    // The clock's own step reclaims at most whole blocks, which there are none of: others live in them.
    cache.advance(now + 2);
    let before = cache.stats();
    assert_eq!(cache.remove_expired() + before.expired, 1000);
    let after = cache.stats();
    assert_eq!((after.items, after.expired), (2000, 1000));
    let lives = |n: u32| cache.get(&n.to_be_bytes()).is_some();
    assert!((0..3000).all(|n| lives(n) == (n % 3 != 1)));
}

#[test]
fn a_cache_that_refuses_keeps_all_it_has_and_takes_more_when_some_is_deleted() {
    let cache = Cache::new(CacheOptions {
        memory_limit_bytes: 8 << 20,
        when_full: WhenFull::Refuse,
        ..CacheOptions::default()
    })
    .unwrap();
    let key = |n: u32| format!("key {n}");
    let mut count = 0;
    while let Stored::Stored { .. } =
        cache.store(Store::set(key(count).as_bytes(), &[count as u8; 500]))
    {
        count += 1;
    }
    assert!(count > 10_000, "{count}");
    let all = |range: std::ops::Range<u32>| {
        range
            .clone()
            .all(|n| cache.get(key(n).as_bytes()) == Some(vec![n as u8; 500]))
    };
    assert!(all(0..count));
    let stats = cache.stats();
    assert_eq!(
        (stats.evictions, u32::try_from(stats.items).unwrap()),
        (0, count)
    );
    assert!(stats.out_of_memory > 0);
    // Each third leaves: as much room as half of the others take is there again, in blocks that are only put together.
    (0..count).step_by(3).for_each(|n| {
        assert_eq!(
            cache.delete(Delete::key(key(n).as_bytes())),
            Deleted::Deleted
        )
    });
    let mut more = count;
    while let Stored::Stored { .. } =
        cache.store(Store::set(key(more).as_bytes(), &[more as u8; 500]))
    {
        more += 1;
    }
    assert!(more - count > count / 4, "{} of {count}", more - count);
    assert!((0..count).filter(|n| n % 3 != 0).all(|n| all(n..n + 1)) && all(count..more));
    assert_eq!(cache.stats().evictions, 0);
}

/// In a full cache, too, where an item with a new expiry belongs into another block.
#[test]
fn a_touch_does_not_evict_the_item_that_it_touches() {
    let cache = Cache::new(CacheOptions {
        memory_limit_bytes: 1 << 20,
        max_item_bytes: 250_000,
        seed: Some(1),
        ..CacheOptions::default()
    })
    .unwrap();
    let mut touches = 0;
    for n in 0..20_000u32 {
        let len = [20, 300, 3000][n as usize % 3];
        let expiry = [Expiry::Never, Expiry::At(100), Expiry::At(50_000)][n as usize / 3 % 3];
        cache.store(Store {
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
fn a_number_with_much_white_space_behind_it_is_counted_and_keeps_its_length() {
    let cache = cache();
    for len in [65_535, 65_536, 200_000] {
        let mut value = vec![b' '; len];
        value[..2].copy_from_slice(b"10");
        set(&cache, b"n", &value);
        let counted = cache.arithmetic(Arithmetic::decrement(b"n", 1));
        assert!(matches!(counted, Counted::Counted { value: 9, .. }));
        let guard = cache.pin();
        let item = guard.get(b"n").unwrap();
        assert_eq!(item.value().len(), len);
        assert!(item.value().starts_with(b"9  "));
    }
}
