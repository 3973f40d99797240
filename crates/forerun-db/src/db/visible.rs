//! Which writes readers see: those up to a sequence number, and it moves up in order.
//!
//! ```text
//!   sequence   1 ... 40 │ 41   42-45   46 ...
//!                       │ linked, not linked yet, linked
//!                visible┘
//! ```
//!
//! Writers link their entries into the memtable in any order. Each then waits until all before it
//! are visible, and makes its own so: a snapshot has no holes, and a writer that returns can read
//! what it wrote.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

/// Turns of waiting without sleeping: the writer before needs about as long as one insertion takes.
const SPINS: usize = 200;
const YIELDS: usize = 20;

/// The newest sequence number that readers see.
#[derive(Debug, Default)]
pub(super) struct Visible {
    last: AtomicU64,
    sleepers: AtomicUsize,
    sleep: Mutex<()>,
    wake: Condvar,
}

impl Visible {
    pub(super) fn new(last: u64) -> Visible {
        Visible {
            last: AtomicU64::new(last),
            ..Visible::default()
        }
    }

    /// The sequence number that a read happening now goes by.
    pub(super) fn last(&self) -> u64 {
        // Acquire pairs with the release in `publish`: whoever sees the number sees the entries
        // that were linked before.
        self.last.load(Ordering::Acquire)
    }

    /// Makes the operations `first..=last` visible, once all before them are. Their entries are
    /// linked.
    pub(super) fn publish(&self, first: u64, last: u64) {
        if self.last.load(Ordering::Acquire) != first - 1 {
            self.wait_for(first - 1);
        }
        // Only the writer whose turn it is stores, so a store is enough. It carries on what the
        // writer before released, because this thread has seen that one's number. Sequentially
        // consistent, as the load below and both in `wait_for`: either this writer sees the
        // sleeper, or the sleeper sees the number.
        self.last.store(last, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            drop(self.sleep.lock().unwrap_or_else(PoisonError::into_inner));
            self.wake.notify_all();
        }
    }

    #[cold]
    fn wait_for(&self, turn: u64) {
        for spin in 0..SPINS + YIELDS {
            if self.last.load(Ordering::Acquire) == turn {
                return;
            }
            if spin < SPINS {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
        let mut guard = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while self.last.load(Ordering::SeqCst) != turn {
            guard = self
                .wake
                .wait(guard)
                .unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_become_visible_in_order_whatever_order_they_come_in() {
        let visible = Visible::new(10);
        let next = AtomicU64::new(11);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let first = next.fetch_add(3, Ordering::Relaxed);
                        if first.is_multiple_of(7) {
                            std::thread::yield_now();
                        }
                        visible.publish(first, first + 2);
                        assert!(
                            visible.last() >= first + 2,
                            "a writer does not see its own write"
                        );
                    }
                });
            }
        });
        assert_eq!(visible.last(), 10 + 4 * 500 * 3);
    }

    #[test]
    fn a_writer_that_sleeps_is_woken() {
        let visible = Visible::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| visible.publish(2, 2));
            while visible.sleepers.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            assert_eq!(visible.last(), 0);
            visible.publish(1, 1);
        });
        assert_eq!(visible.last(), 2);
    }
}
