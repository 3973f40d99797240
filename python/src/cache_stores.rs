//! Many stores into a cache by one call.

use std::ops::RangeInclusive;

use forerun::cache::{Cache, Expiry, Store, StoreResult};

/// The lengths of a key, as in memcached.
pub(crate) const KEY_BYTES: RangeInclusive<usize> = 1..=250;

/// Stores pairs of keys and values, in order. The memory accesses of several keys overlap. Ends at
/// the first pair that does not fit, and returns its position.
pub(crate) fn store_all(cache: &Cache, pairs: &[(&[u8], &[u8])], expiry: Expiry) -> Option<usize> {
    let is_refused = |&(key, value): &(&[u8], &[u8])| {
        let is_stored = || {
            let stored = cache.store(Store {
                expiry,
                ..Store::set(key, value)
            });
            matches!(stored, StoreResult::Stored { .. })
        };
        !(KEY_BYTES.contains(&key.len()) && is_stored())
    };
    let mut keys = [&[][..]; Cache::PREFETCH_KEYS];
    let mut stored = 0;
    for pairs in pairs.chunks(Cache::PREFETCH_KEYS) {
        for (slot, (key, _)) in keys.iter_mut().zip(pairs) {
            *slot = key;
        }
        cache.pin().prefetch(&keys[..pairs.len()]);
        if let Some(position) = pairs.iter().position(is_refused) {
            return Some(stored + position);
        }
        stored += pairs.len();
    }
    None
}
