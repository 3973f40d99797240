//! The large values that answers share with the cache while they wait for slow readers.
//!
//! ```text
//!   answer ── WaitingValue ──> value A, 2 answers ──┐
//!   answer ── WaitingValue ────┘                    ├──> bytes, compared with a limit
//!   answer ── WaitingValue ──> value B, 1 answer ───┘
//! ```
//!
//! The cache cannot reuse the memory of a value that an answer shares, even if it evicts the item.
//! A value counts once, however many answers share it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use forerun_cache::SharedValue;
use forerun_core::sync::{Mutex, MutexGuard, PoisonError};

/// The values that answers of a server share.
#[derive(Debug, Default)]
pub(crate) struct WaitingValues {
    /// By the address of the value.
    values: Mutex<HashMap<usize, Waiting>>,
    bytes: AtomicUsize,
}

#[derive(Debug)]
struct Waiting {
    bytes: usize,
    answers: usize,
}

/// One answer's claim on a value that waits. Drop it before the [`SharedValue`]: afterwards another
/// value may reuse the address.
#[derive(Debug)]
pub(crate) struct WaitingValue {
    all: Arc<WaitingValues>,
    address: usize,
}

impl WaitingValues {
    /// Counts a value for one more answer, unless all values together would exceed the limit.
    pub(crate) fn add(
        self: &Arc<Self>,
        value: &SharedValue,
        limit_bytes: usize,
    ) -> Option<WaitingValue> {
        let address = value.as_ptr().addr();
        let bytes = value.len();
        let mut values = self.values();
        match values.get_mut(&address) {
            Some(waiting) => waiting.answers += 1,
            None if self.bytes().saturating_add(bytes) > limit_bytes => return None,
            None => {
                values.insert(address, Waiting { bytes, answers: 1 });
                // Relaxed: changed under the lock only, and read as a statistic elsewhere.
                self.bytes.fetch_add(bytes, Ordering::Relaxed);
            }
        }
        Some(WaitingValue {
            all: Arc::clone(self),
            address,
        })
    }

    /// The bytes of all values.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    fn values(&self) -> MutexGuard<'_, HashMap<usize, Waiting>> {
        // A change is complete even if a thread panics after it.
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for WaitingValue {
    fn drop(&mut self) {
        let mut values = self.all.values();
        if let Some(waiting) = values.get_mut(&self.address) {
            waiting.answers -= 1;
            if waiting.answers == 0 {
                // Relaxed: as above.
                self.all.bytes.fetch_sub(waiting.bytes, Ordering::Relaxed);
                values.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forerun_cache::{Cache, CacheOptions, Store, StoreResult};

    #[test]
    fn a_value_counts_once_while_any_answer_shares_it() {
        let cache = Cache::new(CacheOptions::default()).expect("a cache");
        let shared = |key: &str| {
            let stored = cache.store(Store::set(key, vec![1; 200_000].as_slice()));
            assert!(matches!(stored, StoreResult::Stored { .. }), "{stored:?}");
            let guard = cache.pin();
            let shared = guard.get(key).and_then(|item| item.to_shared());
            shared.expect("a large value")
        };
        let (a, b) = (shared("a"), shared("b"));
        let values = Arc::new(WaitingValues::default());
        let first = values.add(&a, 300_000).expect("there is room");
        let second = values.add(&a, 300_000).expect("it counts once");
        assert_eq!(values.bytes(), 200_000);
        assert!(values.add(&b, 300_000).is_none());
        drop(first);
        assert_eq!(values.bytes(), 200_000);
        drop(second);
        assert_eq!(values.bytes(), 0);
        let _third = values.add(&b, 300_000).expect("there is room again");
        assert_eq!(values.bytes(), 200_000);
    }
}
