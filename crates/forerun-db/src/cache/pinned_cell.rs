//! A value that readers use without a lock, and that goes once it is of no use.
//!
//! ```text
//!   empty ──set──> value ──clear──> empty
//!                    │                └ the value is dropped when every reader pinned now has gone
//!                    └ read under a pin
//! ```

#![allow(
    unsafe_code,
    reason = "a value that was cleared is dropped only after the pins that may have seen it"
)]

use std::fmt;

use crossbeam_epoch::{Atomic, Owned, Shared, unprotected};
use forerun_core::sync::atomic::Ordering;

use super::frames::{Pin, pin};

/// A cell that is empty or has a value.
pub(crate) struct PinnedCell<T: Send + Sync + 'static>(Atomic<T>);

impl<T: Send + Sync + 'static> PinnedCell<T> {
    /// An empty cell.
    pub(crate) fn new() -> PinnedCell<T> {
        PinnedCell(Atomic::null())
    }

    /// The value. It stays for this reader until the pin is dropped.
    #[inline(always)]
    pub(crate) fn get<'p>(&'p self, pin: &'p Pin) -> Option<&'p T> {
        // Acquire: pairs with the Release in `set`, so the value is complete.
        let value = self.0.load(Ordering::Acquire, pin.guard());
        // SAFETY: it is null or a value that `set` has published, which nobody changes. `clear`
        // defers its drop until every pin that is held then has been dropped, and this one, which
        // belongs to this process's epoch as those that it defers to do, is held as long as the
        // reference lives. `drop` has the cell for itself, and the reference borrows the cell.
        unsafe { value.as_ref() }
    }

    /// Whether there is a value.
    pub(crate) fn is_set(&self) -> bool {
        self.get(&pin()).is_some()
    }

    /// Gives an empty cell a value. A cell with a value keeps that one.
    pub(crate) fn set(&self, value: T) {
        let pin = pin();
        // Release: pairs with the Acquire in `get`. Relaxed on failure: nothing is read.
        let (set, fails) = (Ordering::Release, Ordering::Relaxed);
        let value = Owned::new(value);
        let _ = (self.0).compare_exchange(Shared::null(), value, set, fails, pin.guard());
    }

    /// Empties the cell.
    pub(crate) fn clear(&self) {
        let pin = pin();
        // Acquire: pairs with the Release in `set`, so the value that is dropped is complete.
        let value = self.0.swap(Shared::null(), Ordering::Acquire, pin.guard());
        if !value.is_null() {
            // SAFETY: the exchange took the value out of the cell, once, so no reader that pins
            // later finds it, and nobody else drops it. The epoch is this process's own.
            unsafe { pin.guard().defer_destroy(value) };
            // Otherwise it would stay in this thread's bag until several dozen more have come.
            pin.flush();
        }
    }
}

impl<T: Send + Sync + 'static> Drop for PinnedCell<T> {
    fn drop(&mut self) {
        // SAFETY: the cell is borrowed mutably, so no reader has a reference into it, and no other
        // thread uses it: a guard protects nothing here. Relaxed: whoever handed the cell to this
        // thread has ordered what was done with it before.
        unsafe {
            let value = self.0.load(Ordering::Relaxed, unprotected());
            drop(value.try_into_owned());
        }
    }
}

impl<T: fmt::Debug + Send + Sync + 'static> fmt::Debug for PinnedCell<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get(&pin()).fmt(f)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::super::frames::reclaim;
    use super::*;
    use crate::testing::small_cache::small_cache;

    #[test]
    fn a_value_stays_for_those_who_read_it_and_is_dropped_after_them() {
        let value = Arc::new(7);
        let cell = PinnedCell::new();
        assert!(cell.get(&pin()).is_none());
        cell.set(Arc::clone(&value));
        cell.set(Arc::new(8));
        let reading = pin();
        let read = cell.get(&reading);
        cell.clear();
        cell.clear();
        reclaim();
        assert!(!cell.is_set());
        assert_eq!((read, Arc::strong_count(&value)), (Some(&value), 2));
        drop(reading);
        let begun = std::time::Instant::now();
        while Arc::strong_count(&value) > 1 {
            // Threads of other tests pin too.
            assert!(begun.elapsed() < std::time::Duration::from_secs(60));
            reclaim();
        }
        cell.set(Arc::clone(&value));
        drop(cell);
        assert_eq!(Arc::strong_count(&value), 1);
    }

    #[test]
    fn a_value_that_is_dropped_late_does_not_keep_the_cache_that_it_is_charged_to() {
        let cache = small_cache();
        let cell = PinnedCell::new();
        cell.set(cache.charge(100));
        let reading = pin();
        cell.clear();
        drop(cell);
        let left = Arc::downgrade(&cache);
        drop(cache);
        assert!(left.upgrade().is_none());
        drop(reading);
        reclaim();
    }

    #[test]
    fn threads_read_a_complete_value_or_none() {
        let cell = PinnedCell::new();
        forerun_core::sync::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..2_000 {
                        let pin = pin();
                        let value: Option<&Vec<u64>> = cell.get(&pin);
                        assert!(value.is_none_or(|value| value.iter().all(|word| *word == 3)));
                    }
                });
            }
            for _ in 0..500 {
                cell.set(vec![3; 100]);
                cell.clear();
            }
        });
    }
}
