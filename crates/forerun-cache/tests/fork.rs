//! A cache belongs to the process that created it. A fork of that process finds nothing and changes
//! nothing.

#[path = "../../forerun-core/tests/testing/fork.rs"]
mod fork;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use forerun_cache::{
    Arithmetic, ArithmeticResult, Cache, CacheOptions, Cursor, Delete, DeleteResult, Error, Expiry,
    Invalidate, Store, StoreResult,
};
use fork::Ending::{AtOnce, Exit};

/// The size of a value in a page run.
const LARGE: usize = 600 << 10;

fn cache() -> Cache {
    Cache::new(
        CacheOptions::default()
            .clock(forerun_cache::Clock::Manual)
            .memory_limit_bytes(16 << 20),
    )
    .unwrap()
}

fn use_all(cache: &Cache) {
    assert!(matches!(cache.check_process(), Err(Error::Forked(_))));
    assert_eq!(
        cache.store(Store::set(b"key", &b"child"[..])),
        StoreResult::Forked
    );
    assert_eq!(cache.delete(Delete::key(b"key")), DeleteResult::Forked);
    assert_eq!(
        cache.invalidate(Invalidate::key(b"key")),
        DeleteResult::Forked
    );
    let counted = cache.arithmetic(Arithmetic::increment(b"key", 1));
    assert_eq!(counted, ArithmeticResult::Forked);
    assert!(!cache.touch(b"key", Expiry::Never));
    assert!(matches!(cache.value_buffer(10), Err(Error::Forked(_))));
    assert!(matches!(
        cache.set_memory_limit(20 << 20),
        Err(Error::Forked(_))
    ));
    assert!(!cache.shrink(1 << 20) && !cache.prefault());
    cache.advance(1000);
    cache.tick();
    cache.flush_all(0);
    assert_eq!((cache.remove_expired(), cache.stats().items), (0, 0));
    assert_eq!(cache.get(b"key"), None);
    let guard = cache.pin();
    let mut items = [None; 1];
    guard.multi_get(&[b"key"], &mut items).unwrap();
    assert!(items[0].is_none() && guard.peek(b"key").is_none());
    assert!(guard.get_and_touch(b"key", Expiry::Never).is_none());
    assert_eq!(guard.scan(Cursor::default(), |_| panic!("an item")), None);
}

#[test]
fn a_child_finds_nothing_and_its_drops_do_not_affect_the_parent() {
    for ending in [AtOnce, Exit] {
        let cache = cache();
        let _ = cache.store(Store::set(b"key", &b"value"[..]));
        let _ = cache.store(Store::set(b"large", &vec![7; LARGE][..]));
        let shared = cache.pin().get(b"large").unwrap().to_shared().unwrap();
        let memory_bytes = cache.stats().memory_bytes;
        let mut handles = Some((cache, shared));
        fork::in_child(ending, || {
            let (cache, shared) = handles.take().unwrap();
            use_all(&cache);
            drop(shared);
            drop(cache);
            let own = self::cache();
            let _ = own.store(Store::set(b"key", &b"own"[..]));
            assert_eq!(own.get(b"key").as_deref(), Some(&b"own"[..]));
        });
        let (cache, shared) = handles.unwrap();
        assert_eq!(cache.get(b"key").as_deref(), Some(&b"value"[..]));
        assert!(shared.iter().all(|byte| *byte == 7));
        assert_eq!(cache.stats().memory_bytes, memory_bytes);
    }
}

#[test]
fn a_child_never_waits_for_a_lock_that_a_parent_thread_held() {
    let cache = cache();
    let (stop, stored) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..3_u64 {
            let (cache, stop, stored) = (&cache, &stop, &stored);
            scope.spawn(move || {
                let large = vec![7; LARGE];
                while !stop.load(Ordering::Relaxed) {
                    // Far more than fits, so that the threads evict, split and release all the
                    // time.
                    let number = stored.fetch_add(1, Ordering::Relaxed);
                    let key = (number % 50_000).to_be_bytes();
                    let value = if number % 64 == thread {
                        &large[..]
                    } else {
                        &large[..300]
                    };
                    let _ = cache.store(Store::set(&key, value));
                }
            });
        }
        for _ in 0..20 {
            let before = stored.load(Ordering::Relaxed);
            while stored.load(Ordering::Relaxed) < before + 200 {
                std::thread::yield_now();
            }
            fork::in_child(Exit, || {
                use_all(&cache);
                // SAFETY: in the child this is the only copy that is dropped; the child exits
                // without dropping the scope's.
                drop(unsafe { std::ptr::read(&raw const cache) });
            });
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(cache.stats().items > 0);
}
