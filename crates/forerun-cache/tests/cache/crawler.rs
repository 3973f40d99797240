//! A crawler visits every item that stays in the cache, in bounded steps, and delays no other
//! thread in between.

use crate::testing;

use std::sync::atomic::{AtomicBool, Ordering};

use forerun_cache::{Cache, CacheOptions, Crawler, Cursor, Delete};

fn cache(memory_limit_bytes: usize) -> Cache {
    Cache::new(
        CacheOptions::default()
            .clock(forerun_cache::Clock::Manual)
            .memory_limit_bytes(memory_limit_bytes)
            .seed(3),
    )
    .unwrap()
}

fn set(cache: &Cache, n: u32, len: usize) {
    testing::set(cache, &n.to_be_bytes(), &vec![n as u8; len]);
}

#[test]
fn every_item_that_stays_is_visited_in_bounded_steps() {
    for (items, len, step_bytes) in [
        (9000, 20, 1 << 20),
        (9000, 20, 5000),
        (300, 60_000, 100_000),
    ] {
        let cache = cache(64 << 20);
        (0..items).for_each(|n| set(&cache, n, len));
        let mut visits = vec![0; items as usize];
        let (mut crawler, mut steps) = (Crawler::default(), 0);
        loop {
            let mut bytes = 0;
            let is_more = crawler.step(&cache, step_bytes, |item| {
                let n = u32::from_be_bytes(item.key().try_into().unwrap());
                assert_eq!(item.value()[0], n as u8);
                bytes += item.size_bytes();
                if let Some(visits) = visits.get_mut(n as usize) {
                    *visits += 1;
                }
            });
            assert!(bytes < step_bytes + len + 100, "{bytes} bytes");
            steps += 1;
            // New items split segments, and some old ones are overwritten.
            for n in 0..50 {
                set(&cache, items + steps * 50 + n, 20);
                set(&cache, (steps * 50 + n) % items, len);
            }
            if !is_more {
                break;
            }
        }
        assert!(steps > 4, "{steps} steps");
        assert!(
            visits.iter().all(|&visits| visits > 0),
            "{items} of {len} bytes"
        );
    }
}

#[test]
fn nothing_waits_for_a_crawler_between_its_steps() {
    let cache = cache(8 << 20);
    (0..200).for_each(|n| set(&cache, n, 60_000));
    let mut crawler = Crawler::default();
    let mut next = 1000;
    while crawler.step(&cache, 100_000, |_| {}) {
        // Each round stores as much as the whole cache holds.
        (next..next + 200).for_each(|n| set(&cache, n, 60_000));
        cache.delete(Delete::key(&next.to_be_bytes()));
        next += 200;
    }
    assert!(next > 1000, "{next}");
}

/// Items are displaced within a segment to make room for others. One that moves from an unvisited
/// bucket to a visited one must not be missed.
#[test]
fn a_scan_misses_nothing_while_other_items_come_and_go() {
    let cache = cache(64 << 20);
    let stay = 700u32;
    (0..stay).for_each(|n| set(&cache, n, 20));
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (cache, is_done) = (&cache, &is_done);
        scope.spawn(move || {
            // The segment is nearly full and never split.
            let mut next = stay;
            while !is_done.load(Ordering::Relaxed) {
                (next..next + 600).for_each(|n| set(cache, n, 20));
                (next..next + 600).for_each(|n| {
                    cache.delete(Delete::key(&n.to_be_bytes()));
                });
                next = if next > 1_000_000 { stay } else { next + 600 };
            }
        });
        let missed = (0..2000).find_map(|round| {
            let mut is_visited = vec![false; stay as usize];
            let mut cursor = Some(Cursor::default());
            while let Some(from) = cursor {
                cursor = cache.pin().scan(from, |item| {
                    let n = u32::from_be_bytes(item.key().try_into().unwrap());
                    if let Some(is_visited) = is_visited.get_mut(n as usize) {
                        *is_visited = true;
                    }
                });
            }
            let missed = is_visited.iter().position(|&is_visited| !is_visited)?;
            Some((missed, round))
        });
        is_done.store(true, Ordering::Relaxed);
        assert_eq!(missed, None, "(item, round)");
    });
    assert_eq!(cache.stats().evictions, 0);
}

#[test]
fn a_scan_in_parts_visits_every_item() {
    let cache = cache(16 << 20);
    for n in 0..5000u32 {
        testing::set(&cache, &n.to_be_bytes(), &n.to_le_bytes());
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
