//! The keys of a batch, prefetched before their turn.
//!
//! The first thing that a lookup reads is its own key, to hash it. Where the keys of a batch lie
//! apart, as those of a `Vec<Vec<u8>>` do, each of these reads may miss the CPU's caches.
//!
//! ```text
//!   keys        k0 k1 k2 … k16 k17 …
//!   prefetched  ├── before the first ──┤
//!   yielded     k0 prefetches k16, k1 prefetches k17, …
//! ```

use crate::arch::{CACHE_LINE_BYTES, prefetch_bytes};

/// Keys that are prefetched before the first is yielded, and the distance from then on: about as
/// many misses as a core has in flight.
const AHEAD: usize = 16;

/// How much of a key is prefetched. The hardware prefetcher follows a longer one.
const BYTES_MAX: usize = CACHE_LINE_BYTES;

/// Yields `key(0)` to `key(len - 1)`. Each key's bytes are prefetched 16 keys before they are
/// yielded.
///
/// `key` is called up to twice for each position.
///
/// ```
/// use forerun_core::prefetch_ahead;
///
/// let keys = ["bern".to_owned(), "oslo".to_owned()];
/// let lengths = prefetch_ahead(keys.len(), |at| keys[at].as_bytes()).map(<[u8]>::len);
/// assert_eq!(lengths.collect::<Vec<_>>(), [4, 4]);
/// ```
#[inline(always)]
pub fn prefetch_ahead<'k>(
    len: usize,
    key: impl Fn(usize) -> &'k [u8],
) -> impl Iterator<Item = &'k [u8]> {
    for at in 0..len.min(AHEAD) {
        prefetch_bytes(key(at), BYTES_MAX);
    }
    (0..len).map(move |at| {
        if at + AHEAD < len {
            prefetch_bytes(key(at + AHEAD), BYTES_MAX);
        }
        key(at)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_yielded_once_and_in_order() {
        for len in [0, 1, AHEAD - 1, AHEAD, AHEAD + 1, 100] {
            let keys: Vec<Vec<u8>> = (0..len).map(|n| vec![n as u8; n]).collect();
            let yielded: Vec<&[u8]> = prefetch_ahead(len, |at| &keys[at]).collect();
            assert_eq!(yielded, keys);
        }
    }
}
