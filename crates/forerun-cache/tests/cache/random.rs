//! Items drawn at random come from all that are there, and a search takes bounded steps.

use crate::testing;

use forerun_cache::{Cache, CacheOptions, Clock, RandomSearch};

const LIMIT_BYTES: usize = 128 << 20;

fn cache() -> Cache {
    let options = CacheOptions::default().clock(Clock::Manual).seed(5);
    Cache::new(options.memory_limit_bytes(LIMIT_BYTES)).unwrap()
}

fn set(cache: &Cache, n: u32) {
    testing::set(cache, &n.to_be_bytes(), b"v");
}

/// The item and the number of steps.
fn draw(cache: &Cache) -> (Option<u32>, u64) {
    let (mut search, mut steps) = (RandomSearch::default(), 0);
    loop {
        steps += 1;
        let guard = cache.pin();
        if let Some(item) = guard.random(&mut search) {
            let key = item.key().try_into().unwrap();
            return (Some(u32::from_be_bytes(key)), steps);
        }
        if search.is_over() {
            return (None, steps);
        }
    }
}

#[test]
fn random_items_are_drawn_from_all_and_only_from_those_that_are_there() {
    let cache = cache();
    assert_eq!(draw(&cache), (None, 1));
    const ITEMS: u32 = 4000;
    (0..ITEMS).for_each(|n| set(&cache, n));
    let mut times = vec![0; ITEMS as usize];
    for _ in 0..40 * ITEMS {
        times[draw(&cache).0.unwrap() as usize] += 1;
    }
    // Forty each on the average. An item in a segment that is twice as full as another's is drawn
    // as often as an item there.
    assert!(
        times.iter().all(|&times| (1..160).contains(&times)),
        "{times:?}"
    );
    // The last of many is found, and so is that there is none.
    (1..ITEMS).for_each(|n| _ = cache.delete(&n.to_be_bytes()));
    assert_eq!(draw(&cache).0, Some(0));
    let _ = cache.delete(&0u32.to_be_bytes());
    assert_eq!(draw(&cache), (None, 1));
}

#[test]
fn each_of_a_few_items_is_as_likely_as_the_others() {
    for items in [2, 3, 10, 50] {
        let cache = cache();
        (0..items).for_each(|n| set(&cache, n));
        let mut times = vec![0; items as usize];
        for _ in 0..500 * items {
            times[draw(&cache).0.unwrap() as usize] += 1;
        }
        // 500 each on the average, with a standard deviation below 23.
        assert!(
            times.iter().all(|times| (350..650).contains(times)),
            "{times:?}"
        );
    }
}

/// A flush leaves its items in the index.
#[test]
fn one_item_among_dead_ones_is_found_in_small_steps() {
    let cache = cache();
    (0..100_000).for_each(|n| set(&cache, n));
    let segments = cache.stats().index_splits + 1;
    assert!(segments > 48, "{segments}");
    cache.flush_all(cache.now());
    assert_eq!(draw(&cache), (None, 1));
    set(&cache, 7);
    let most = (0..50)
        .map(|_| {
            let (key, steps) = draw(&cache);
            assert_eq!(key, Some(7));
            steps
        })
        .max();
    assert!((2..=segments / 16 + 1).contains(&most.unwrap()), "{most:?}");
    // It has expired, but is still counted.
    let soon = forerun_cache::Expiry::At(cache.now() + 1);
    let _ = cache.touch(&7u32.to_be_bytes(), soon);
    cache.advance(cache.now() + 1);
    assert_eq!(draw(&cache).0, None);
}
