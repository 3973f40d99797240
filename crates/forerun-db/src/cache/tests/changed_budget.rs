//! Budgets that change while the cache is in use.

use super::*;

#[test]
fn a_smaller_limit_frees_pages_and_a_larger_one_is_used_again() {
    let io = FaultIo::new();
    let cache = cache_of(400);
    let capacity = cache.stats().capacity_bytes;
    let source = Numbered::modelled(&io, &cache, vec![PAGE; 1_000]);
    let some = shuffled(3_000, 1_000, 5);
    take_all(&source, &some, ReadBackend::Sync);
    wait_idle(&cache);
    assert!(cache.stats().used_bytes > capacity * 8 / 10);

    assert!(cache.set_limit(capacity / 4), "pages take more than that");
    cache.free_excess();
    wait_idle(&cache);
    let stats = cache.stats();
    assert_eq!(stats.capacity_bytes, capacity / 4);
    assert!(stats.used_bytes <= capacity / 4, "{stats:?}");
    take_all(&source, &some, ReadBackend::Sync);
    wait_idle(&cache);
    assert!(cache.stats().used_bytes <= capacity / 4);

    assert!(!cache.set_limit(10 * capacity));
    let stats = cache.stats();
    assert_eq!(stats.capacity_bytes, capacity, "there are no more frames");
    take_all(&source, &some, ReadBackend::Sync);
    wait_idle(&cache);
    assert!(cache.stats().used_bytes > capacity * 8 / 10);
}

#[test]
fn readers_see_intact_pages_while_the_limit_changes() {
    let io = FaultIo::new();
    let cache = cache_of(200);
    let capacity = cache.stats().capacity_bytes;
    let source = Numbered::modelled(&io, &cache, vec![PAGE; 300]);
    let is_over = AtomicBool::new(false);
    forerun_core::sync::thread::scope(|scope| {
        scope.spawn(|| {
            let mut share = 0;
            while !is_over.load(Ordering::Relaxed) {
                share = share % 8 + 1;
                cache.set_limit(capacity * share / 8);
                cache.free_excess();
            }
        });
        for seed in 0..20 {
            let failed = take_all(&source, &shuffled(1_000, 300, seed), ReadBackend::Sync);
            assert_eq!(failed, []);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    cache.set_limit(capacity / 8);
    cache.free_excess();
    wait_idle(&cache);
    assert!(cache.stats().used_bytes <= capacity / 8);
}
