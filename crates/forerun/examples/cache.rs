//! A cache in front of a slow source: a batch is looked up, missing values are computed and stored,
//! and values are read in place.
//!
//! ```sh
//! cargo run --release -p forerun --example cache
//! ```

use forerun::cache::{Cache, CacheOptions, Expiry, Store, StoreResult};
use std::time::Duration;

fn main() -> Result<(), forerun::Error> {
    let cache = Cache::new(CacheOptions::default().memory_limit_bytes(64 << 20))?;
    let mut computed = 0;
    for request in 0..1000_u64 {
        let ids: Vec<u64> = (0..50).map(|n| (request * 7 + n * n) % 5000).collect();
        computed += answer(&cache, &ids)?;
    }
    let stats = cache.stats();
    println!("50,000 values answered, {computed} of them computed");
    println!("{} items in {} bytes", stats.items, stats.memory_bytes);
    Ok(())
}

/// Answers a request, and returns how many of its values were not in the cache.
fn answer(cache: &Cache, ids: &[u64]) -> Result<usize, forerun::Error> {
    let keys: Vec<[u8; 8]> = ids.iter().map(|id| id.to_be_bytes()).collect();
    let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
    let mut missing = Vec::new();
    {
        // The cache misses of all keys overlap. Items can be read while the guard lives. The guard
        // delays the reuse of memory, so it is dropped before anything slow begins.
        let guard = cache.pin();
        let mut items = vec![None; keys.len()];
        guard.multi_get(&keys, &mut items)?;
        for (position, item) in items.iter().enumerate() {
            match item {
                Some(item) => respond(item.value()),
                None => missing.push(position),
            }
        }
    }
    for &position in &missing {
        let value = compute(ids[position]);
        respond(&value);
        let stored = cache.store(Store {
            expiry: Expiry::In(Duration::from_secs(60)),
            ..Store::set(keys[position], &value[..])
        });
        if !matches!(stored, StoreResult::Stored { .. }) {
            println!("{}: {stored:?}", ids[position]);
        }
    }
    Ok(missing.len())
}

/// Stands for a query to a database.
fn compute(id: u64) -> Vec<u8> {
    format!("the value of {id}").into_bytes()
}

/// Stands for writing to a client.
fn respond(value: &[u8]) {
    std::hint::black_box(value);
}
