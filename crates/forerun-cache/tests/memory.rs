//! The memory limit, as the system sees it. One test per process, because it measures the whole
//! process.
#![cfg(target_os = "linux")]

mod testing;

use forerun_cache::{Cache, CacheOptions, Expiry, Store, StoreResult};
use forerun_core::Pages;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use testing::resident_bytes;

const LIMIT: usize = 16 << 20;

/// Stores several times the limit, with the given distributions of sizes and times to live.
fn turn_over(
    cache: &Cache,
    value: &[u8],
    rng: &mut SmallRng,
    times: usize,
    sizes: &dyn Fn(&mut SmallRng) -> usize,
    ttl: u32,
) {
    let mut bytes = 0;
    while bytes < times * LIMIT {
        let key = rng.random::<u32>().to_be_bytes();
        let len = sizes(rng);
        let expiry = match ttl {
            0 => Expiry::Never,
            ttl => Expiry::At(cache.now() + rng.random_range(1..ttl)),
        };
        let stored = cache.store(Store {
            expiry,
            ..Store::set(&key, &value[..len])
        });
        assert!(matches!(stored, StoreResult::Stored { .. }), "{stored:?}");
        bytes += len + 40;
        if bytes % 1024 == 0 {
            cache.advance(cache.now() + 1);
        }
    }
}

#[test]
fn resident_memory_stays_within_the_limit_whatever_is_stored() {
    let value = vec![7; 1 << 20];
    let before = resident_bytes();
    let cache = Cache::new(
        CacheOptions::default()
            .clock(forerun_cache::Clock::Manual)
            .memory_limit_bytes(LIMIT)
            // The kernel grants huge pages in units of two MiB, which would blur the measurement.
            .pages(Pages::Small),
    )
    .unwrap();
    let mut rng = SmallRng::seed_from_u64(3);
    let small: &dyn Fn(&mut SmallRng) -> usize = &|rng| rng.random_range(0..100);
    let medium: &dyn Fn(&mut SmallRng) -> usize = &|rng| rng.random_range(100..20_000);
    let large: &dyn Fn(&mut SmallRng) -> usize = &|rng| rng.random_range(50_000..900_000);
    let mixed: &dyn Fn(&mut SmallRng) -> usize = &|rng| 1 << rng.random_range(0..20);
    for (name, times, sizes, ttl) in [
        ("medium", 10, medium, 0),
        ("large", 10, large, 0),
        ("small", 2, small, 0),
        ("mixed", 10, mixed, 100_000),
        ("small for a while", 2, small, 50),
        ("large for a while", 5, large, 5000),
        ("mixed again", 10, mixed, 0),
    ] {
        turn_over(&cache, &value, &mut rng, times, sizes, ttl);
        let stats = cache.stats();
        let resident = resident_bytes() - before;
        assert!(
            resident <= LIMIT + LIMIT / 20,
            "{name}: {resident} bytes: {stats:?}"
        );
        assert!(stats.memory_bytes <= LIMIT as u64, "{name}: {stats:?}");
        // The memory is also used.
        assert!(
            stats.memory_bytes > LIMIT as u64 * 3 / 4,
            "{name}: {stats:?}"
        );
    }
    cache.flush_all(0);
    let items: Vec<_> = (0..1000u32).map(|n| cache.get(&n.to_be_bytes())).collect();
    assert!(items.iter().all(Option::is_none) && cache.stats().items == 0);
}
