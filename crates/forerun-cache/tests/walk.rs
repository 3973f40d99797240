//! A walk visits whatever is there all the time, in bounded steps, and holds nothing up in between.

use forerun_cache::{Cache, CacheOptions, Delete, Store, Stored, Walk};

fn cache(memory_limit_bytes: usize) -> Cache {
    Cache::new(CacheOptions {
        memory_limit_bytes,
        seed: Some(3),
        ..CacheOptions::default()
    })
    .unwrap()
}

fn set(cache: &Cache, n: u32, len: usize) {
    let stored = cache.store(Store::set(&n.to_be_bytes(), &vec![n as u8; len][..]));
    assert!(matches!(stored, Stored::Stored { .. }), "{stored:?}");
}

#[test]
fn what_is_there_all_the_time_is_visited_in_bounded_steps() {
    for (items, len, step_bytes) in [
        (9000, 20, 1 << 20),
        (9000, 20, 5000),
        (300, 60_000, 100_000),
    ] {
        let cache = cache(64 << 20);
        (0..items).for_each(|n| set(&cache, n, len));
        let mut visits = vec![0; items as usize];
        let (mut walk, mut steps) = (Walk::default(), 0);
        loop {
            let mut bytes = 0;
            let is_more = walk.step(&cache, step_bytes, |item| {
                let n = u32::from_be_bytes(item.key().try_into().unwrap());
                assert_eq!(item.value()[0], n as u8);
                bytes += item.size_bytes();
                if let Some(visits) = visits.get_mut(n as usize) {
                    *visits += 1;
                }
            });
            assert!(bytes < step_bytes + len + 100, "{bytes} bytes");
            steps += 1;
            // Others come, so that segments are split; some are written anew.
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
fn nothing_waits_for_a_walk_between_its_steps() {
    let cache = cache(8 << 20);
    (0..200).for_each(|n| set(&cache, n, 60_000));
    let mut walk = Walk::default();
    let mut next = 1000;
    while walk.step(&cache, 100_000, |_| {}) {
        // Each time as much as all of the cache.
        (next..next + 200).for_each(|n| set(&cache, n, 60_000));
        cache.delete(Delete::key(&next.to_be_bytes()));
        next += 200;
    }
    assert!(next > 1000, "{next}");
}
