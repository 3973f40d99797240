//! Which writes readers see: those up to a sequence number, and it moves up in order.
//!
//! ```text
//!   sequence   1 ... 40 │ 41    42-45    46 ...
//!                       │ late  linked   linked
//!                visible┘       └── early ──┘
//! ```
//!
//! Writers link their entries into the memtable in any order. One whose turn it is makes its own
//! visible. One that is early leaves its range with the others that are, and waits; whoever closes
//! the gap makes all that follow visible too, so that no writer waits for another to wake up and
//! pass the word. A snapshot has no holes, and a writer that returns can read what it wrote.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use forerun_core::arch::prefetch_read;

/// Turns of waiting without sleeping: the writer before needs about as long as one insertion takes,
/// unless it lost its processor.
const SPINS: usize = 200;
const YIELDS: usize = 20;

/// Ranges of sequence numbers, first and last, the lowest on top.
type Ranges = BinaryHeap<Reverse<(u64, u64)>>;

/// The newest sequence number that readers see.
#[derive(Debug, Default)]
pub(super) struct Visible {
    last: AtomicU64,
    /// Number of ranges in `early`.
    early_count: AtomicUsize,
    early: Mutex<Ranges>,
    wake: Condvar,
}

impl Visible {
    pub(super) fn new(last: u64) -> Visible {
        Visible {
            last: AtomicU64::new(last),
            ..Visible::default()
        }
    }

    /// Asks for what [`last`](Self::last) reads.
    #[inline]
    pub(super) fn prefetch(&self) {
        prefetch_read(&self.last);
    }

    /// The sequence number that a read happening now goes by.
    pub(super) fn last(&self) -> u64 {
        // Acquire pairs with the release in `advance`: whoever sees the number sees the entries that
        // were linked before.
        self.last.load(Ordering::Acquire)
    }

    /// Makes the operations `first..=last` visible, and returns when they are: once all before them
    /// are. Their entries are linked.
    pub(super) fn publish(&self, first: u64, last: u64) {
        if self.last.load(Ordering::Acquire) == first - 1 {
            self.advance(last);
            // Sequentially consistent, as the store in `advance` and both in `wait`: either this
            // writer sees the early range, or the early writer sees the number.
            if self.early_count.load(Ordering::SeqCst) > 0 {
                self.take_early(&mut self.lock());
            }
        } else {
            self.wait(first, last);
        }
    }

    /// Moves the number up. Only one thread can be about to: the one with the range that follows, be it
    /// its own or, under the lock, one from `early`. It has seen the number it replaces, so what earlier
    /// writers released is carried on.
    fn advance(&self, last: u64) {
        self.last.store(last, Ordering::SeqCst);
    }

    #[cold]
    fn wait(&self, first: u64, last: u64) {
        let mut early = self.lock();
        early.push(Reverse((first, last)));
        self.early_count.fetch_add(1, Ordering::SeqCst);
        self.take_early(&mut early);
        drop(early);
        for spin in 0..SPINS + YIELDS {
            if self.last.load(Ordering::Acquire) >= last {
                return;
            }
            if spin < SPINS {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
        let mut early = self.lock();
        while self.last.load(Ordering::Acquire) < last {
            early = self
                .wake
                .wait(early)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Makes those early ranges visible that are not early any more, and wakes their writers.
    fn take_early(&self, early: &mut Ranges) {
        let mut is_moved = false;
        while let Some(Reverse((first, last))) = early.peek().copied()
            && first - 1 == self.last.load(Ordering::SeqCst)
        {
            early.pop();
            self.early_count.fetch_sub(1, Ordering::SeqCst);
            self.advance(last);
            is_moved = true;
        }
        if is_moved {
            self.wake.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Ranges> {
        // Nothing under the lock panics half-way through a change.
        self.early.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_become_visible_in_order_whatever_order_they_come_in() {
        let visible = Visible::new(10);
        let next = AtomicU64::new(11);
        let linked: Vec<AtomicU64> = (0..4 * 500).map(|_| AtomicU64::new(0)).collect();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let first = next.fetch_add(3, Ordering::Relaxed);
                        if first.is_multiple_of(7) {
                            std::thread::yield_now();
                        }
                        linked[(first - 11) as usize / 3].store(first, Ordering::Relaxed);
                        visible.publish(first, first + 2);
                        let last = visible.last();
                        assert!(last >= first + 2, "a writer does not see its own write");
                        assert_eq!((last - 10) % 3, 0, "half of a range is visible");
                        let seen = &linked[..(last - 10) as usize / 3];
                        let is_linked = |of: &AtomicU64| of.load(Ordering::Relaxed) > 0;
                        assert!(
                            seen.iter().rev().take(20).all(is_linked),
                            "a hole is visible"
                        );
                    }
                });
            }
        });
        assert_eq!(visible.last(), 10 + 4 * 500 * 3);
        assert!(visible.lock().is_empty() && visible.early_count.into_inner() == 0);
    }

    #[test]
    fn one_writer_makes_all_that_wait_for_it_visible() {
        let visible = Visible::new(0);
        std::thread::scope(|scope| {
            for first in [2, 4, 6, 8] {
                let visible = &visible;
                scope.spawn(move || visible.publish(first, first + 1));
            }
            while visible.early_count.load(Ordering::SeqCst) < 4 {
                std::thread::yield_now();
            }
            assert_eq!(visible.last(), 0);
            visible.publish(1, 1);
            assert_eq!(visible.last(), 9);
        });
    }
}
