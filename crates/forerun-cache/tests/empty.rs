//! What an empty cache costs, as the system sees it. One test per process, because it measures the
//! whole process.
#![cfg(target_os = "linux")]

mod testing;

use forerun_cache::{Cache, CacheOptions, Error};
use testing::resident_bytes;

#[test]
fn a_limit_costs_no_memory_until_it_is_used_and_an_impossible_one_is_an_error() {
    let before = resident_bytes();
    let cache = testing::cache(64 << 30);
    let taken = resident_bytes() - before;
    assert!(taken < 16 << 20, "{taken} bytes");
    testing::set(&cache, b"k", b"v");
    assert_eq!(cache.get(b"k").unwrap(), b"v");
    drop(cache);
    for shift in [44, 50, 56, 62] {
        match Cache::new(CacheOptions::default().memory_limit_bytes(1 << shift)) {
            Ok(cache) => {
                testing::set(&cache, b"k", b"v");
                assert!(shift < 50, "a limit of {} bytes", 1_u64 << shift);
            }
            Err(error) => assert!(matches!(error, Error::Memory(_)), "{error}"),
        }
    }
}
