//! A stateless cursor finds every item that stays, whatever is stored and deleted between pages.

use crate::testing;

use forerun_cache::{Cache, CacheOptions, Clock};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

fn cache(seed: u64) -> Cache {
    let options = CacheOptions::default().clock(Clock::Manual).seed(seed);
    Cache::new(options.memory_limit_bytes(64 << 20)).unwrap()
}

/// The keys of a page, and the next cursor.
fn page(cache: &Cache, cursor: u64, count: usize) -> (Vec<u32>, u64) {
    let mut keys = Vec::new();
    let next = cache.pin().scan_keys(cursor, count, |item| {
        keys.push(u32::from_be_bytes(item.key().try_into().unwrap()));
    });
    (keys, next)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 12,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn what_stays_is_visited_and_what_was_never_there_is_not(
        seed in any::<u64>(),
        stay in 0..3000u32,
        count in prop_oneof![1..20usize, 1..4000usize],
        stored_each in 0..40u32,
        deletes in any::<bool>(),
    ) {
        let cache = cache(seed);
        let set = |n: u32| testing::set(&cache, &n.to_be_bytes(), b"v");
        (0..2 * stay).for_each(|n| _ = set(n));
        let (mut visits, mut cursor, mut next) = (BTreeMap::new(), 0, 2 * stay);
        let mut pages = 0;
        loop {
            let (keys, after) = page(&cache, cursor, count);
            prop_assert!(keys.len() <= count + 2, "{} on a page of {count}", keys.len());
            keys.into_iter().for_each(|key| *visits.entry(key).or_insert(0) += 1);
            if deletes && stay > 0 {
                // What was just visited, and others that do not stay.
                for n in 0..10 {
                    _ = cache.delete(&(stay + (pages * 10 + n) % stay).to_be_bytes());
                }
            }
            // The index grows, and full buckets displace items.
            if pages < 300 {
                (next..next + stored_each).for_each(|n| _ = set(n));
                next += stored_each;
            }
            pages += 1;
            prop_assert!(pages < 100_000);
            cursor = after;
            if cursor == 0 {
                break;
            }
        }
        let missed: Vec<u32> = (0..stay).filter(|key| !visits.contains_key(key)).collect();
        prop_assert!(missed.is_empty(), "{missed:?}");
        prop_assert!(visits.keys().all(|key| *key < next));
        if stored_each == 0 {
            prop_assert!(visits.values().all(|times| *times == 1));
        }
    }

    #[test]
    fn every_number_is_a_cursor(seed in any::<u64>(), cursor in any::<u64>(), items in 0..5000u32) {
        let cache = cache(seed);
        (0..items).for_each(|n| _ = testing::set(&cache, &n.to_be_bytes(), b"v"));
        for cursor in [cursor, u64::MAX, u64::MAX << 24, (1 << 24) - 1] {
            let (mut at, mut seen) = (cursor, BTreeSet::new());
            loop {
                let (keys, next) = page(&cache, at, 100);
                for key in keys {
                    prop_assert!(key < items && seen.insert(key), "{key} twice");
                }
                let is_later = next > at || at == cursor;
                prop_assert!(next == 0 || is_later, "{at} is followed by {next}");
                at = next;
                if at == 0 {
                    break;
                }
            }
        }
    }
}

/// The part of a segment that a page has visited is not forgotten when the segment splits.
#[test]
fn a_page_that_ends_within_a_segment_continues_in_both_of_its_halves() {
    for seed in 0..20 {
        let cache = cache(seed);
        let set = |n: u32| testing::set(&cache, &n.to_be_bytes(), b"v");
        (0..1000).for_each(|n| _ = set(n));
        let (keys, cursor) = page(&cache, 0, 500);
        let mut seen: BTreeSet<u32> = keys.into_iter().collect();
        assert!(cursor != 0 && seen.len() == 500, "{}", seen.len());
        let splits = cache.stats().index_splits;
        (1000..4000).for_each(|n| _ = set(n));
        assert!(cache.stats().index_splits > splits);
        let mut at = cursor;
        while at != 0 {
            let (keys, next) = page(&cache, at, 100);
            seen.extend(keys);
            at = next;
        }
        assert!((0..1000).all(|n| seen.contains(&n)));
    }
}

#[test]
fn expired_and_flushed_items_are_not_visited_and_do_not_end_a_scan() {
    let cache = cache(1);
    for n in 0..3000u32 {
        let expiry = match n % 2 {
            0 => forerun_cache::Expiry::AtMs(1500),
            _ => forerun_cache::Expiry::Never,
        };
        let _ = cache.store(forerun_cache::Store {
            expiry,
            ..forerun_cache::Store::set(&n.to_be_bytes(), "v")
        });
    }
    let visited = || {
        let (mut keys, mut at) = (0, 0);
        loop {
            let (page, next) = page(&cache, at, 10);
            keys += page.len();
            if next == 0 {
                return keys;
            }
            at = next;
        }
    };
    assert_eq!(visited(), 3000);
    cache.advance_ms(1500);
    assert_eq!(visited(), 1500);
    cache.flush_all(cache.now());
    assert_eq!(visited(), 0);
}

/// A page costs the work on one segment, so dead items do not take pages of their own.
#[test]
fn a_scan_of_dead_items_takes_about_a_page_per_segment() {
    let cache = cache(2);
    const ITEMS: u32 = 30_000;
    (0..ITEMS).for_each(|n| _ = testing::set(&cache, &n.to_be_bytes(), b"v"));
    cache.flush_all(cache.now());
    testing::set(&cache, &7u32.to_be_bytes(), b"v");
    let (mut keys, mut pages, mut at) = (Vec::new(), 0, 0);
    loop {
        let (page, next) = page(&cache, at, 10);
        keys.extend(page);
        pages += 1;
        if next == 0 {
            break;
        }
        at = next;
    }
    assert_eq!(keys, [7]);
    assert!(pages <= cache.stats().index_splits + 2, "{pages} pages");
}
