//! Large values use few of a process's mappings. One test per process, because it counts all
//! mappings.
#![cfg(target_os = "linux")]

use forerun_cache::{Cache, CacheOptions, Delete, Store, StoreResult};

fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps")
        .unwrap()
        .lines()
        .count()
}

#[test]
fn turnover_of_large_values_leaves_no_mappings_behind() {
    let cache = Cache::new(
        CacheOptions::default()
            .clock(forerun_cache::Clock::Manual)
            .memory_limit_bytes(32 << 20),
    )
    .unwrap();
    let len = |n: u32| 33_000 + n as usize % 7 * 5000;
    let set = |n: u32| {
        let stored = cache.store(Store::set(&n.to_be_bytes(), &vec![n as u8; len(n)][..]));
        assert!(matches!(stored, StoreResult::Stored { .. }), "{stored:?}");
    };
    let before = mappings();
    (0..500).for_each(set);
    assert!(cache.stats().large_bytes > 16 << 20);
    for n in (0..500u32).step_by(2) {
        cache.delete(Delete::key(&n.to_be_bytes()));
    }
    let after = mappings();
    assert!(after < before + 50, "{before} before, {after} after");
    // Several times the limit, so that most are evicted.
    (1000..6000).for_each(set);
    assert!(mappings() < before + 50);
    let found = (1000..6000u32).filter_map(|n| Some((n, cache.get(&n.to_be_bytes())?)));
    let whole = found.inspect(|(n, value)| assert!(*value == vec![*n as u8; len(*n)]));
    assert!(whole.count() > 300);
    cache.flush_all(0);
    cache.remove_expired();
    assert_eq!(cache.stats().large_bytes, 0);
}
