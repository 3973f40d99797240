//! The published sequence number: readers see every write up to it, and it advances in order.
//! (RocksDB calls it the last published sequence.)
//!
//! ```text
//!   sequence   1 ... 40 │ 41    42-45    46 ...
//!                       │ late  linked   linked
//!                visible┘       └── early ──┘
//! ```
//!
//! Writers link their entries into the memtable in any order. A writer whose turn it is publishes
//! its own range. A writer that is early adds its range to the heap of early ranges and waits. The
//! writer that closes the gap publishes all ranges that follow it, so no writer depends on another
//! one waking up. A snapshot has no holes, and a writer that returns can read what it wrote.
//!
//! A writer that panics before its entries are linked leaves a permanent hole. Writers after it
//! get an error, and the published number stays below it.

use forerun_core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

use forerun_core::arch::prefetch_read;
use forerun_core::sync::{Condvar, Mutex, MutexGuard, PoisonError, hint, thread};

/// How long a writer spins and yields before it sleeps: the writer before it needs about as long as
/// one insertion, unless it lost its CPU.
const SPINS: usize = 200;
const YIELDS: usize = 20;

/// Ranges of sequence numbers, first and last, the lowest on top.
type Ranges = BinaryHeap<Reverse<(u64, u64)>>;

/// The newest sequence number that readers see. Every read loads it, so it shares no cache line,
/// nor a pair of lines, which CPUs fetch together, with the locks that each write changes.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct PublishedSequence {
    last: AtomicU64,
    /// Number of ranges in `early`.
    early_count: AtomicUsize,
    early: Mutex<Ranges>,
    wake: Condvar,
    /// The first number of the lowest permanent hole; `u64::MAX` if there is none. Stored under the
    /// lock, for writers that sleep on it.
    hole: AtomicU64,
}

/// An earlier writer left a permanent hole, so no later operation becomes visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hole;

impl PublishedSequence {
    pub(super) fn new(last: u64) -> PublishedSequence {
        PublishedSequence {
            last: AtomicU64::new(last),
            early_count: AtomicUsize::new(0),
            early: Mutex::default(),
            wake: Condvar::new(),
            hole: AtomicU64::new(u64::MAX),
        }
    }

    /// Prefetches what [`last`](Self::last) reads.
    #[inline]
    pub(super) fn prefetch(&self) {
        prefetch_read(&self.last);
    }

    /// The sequence number at which a read that starts now reads.
    pub(super) fn last(&self) -> u64 {
        // Acquire pairs with the release in `advance`: a thread that sees the number sees the
        // entries linked before it was stored.
        self.last.load(Ordering::Acquire)
    }

    /// Publishes the operations `first..=last`, whose entries are linked, and returns once they are
    /// visible, which requires that all operations before them are visible.
    ///
    /// # Errors
    /// [`Hole`]: they never will be.
    pub(super) fn publish(&self, first: u64, last: u64) -> Result<(), Hole> {
        if self.last.load(Ordering::Acquire) == first - 1 {
            self.advance(last);
            // Sequentially consistent, as the store in `advance` and both in `wait`: either this
            // writer sees the early range, or the early writer sees the number.
            if self.early_count.load(Ordering::SeqCst) > 0 {
                self.take_early(&mut self.lock());
            }
            Ok(())
        } else {
            self.wait(first, last)
        }
    }

    /// Records that the operations from `first` on have no entries and never will. Writers waiting
    /// after them get an error.
    pub(super) fn leave_hole(&self, first: u64) {
        let early = self.lock();
        // Relaxed: waiting writers look under the lock.
        self.hole.fetch_min(first, Ordering::Relaxed);
        drop(early);
        self.wake.notify_all();
    }

    /// Whether there is a permanent hole. The caller blocks all writers, so every writer that could
    /// have left a hole has ended.
    pub(super) fn has_hole(&self) -> bool {
        // Relaxed: the lock that blocks the writers orders it.
        self.hole.load(Ordering::Relaxed) != u64::MAX
    }

    /// Advances the number. Only one thread at a time can be about to do so: the one with the next
    /// range, either its own or, under the lock, one from `early`. It has read the number that it
    /// replaces, so it passes on what earlier writers released.
    fn advance(&self, last: u64) {
        self.last.store(last, Ordering::SeqCst);
    }

    #[cold]
    fn wait(&self, first: u64, last: u64) -> Result<(), Hole> {
        let mut early = self.lock();
        early.push(Reverse((first, last)));
        self.early_count.fetch_add(1, Ordering::SeqCst);
        self.take_early(&mut early);
        drop(early);
        for spin in 0..SPINS + YIELDS {
            if self.last.load(Ordering::Acquire) >= last {
                return Ok(());
            }
            if spin < SPINS {
                hint::spin_loop();
            } else {
                thread::yield_now();
            }
        }
        let mut early = self.lock();
        while self.last.load(Ordering::Acquire) < last {
            if self.hole.load(Ordering::Relaxed) < first {
                return Err(Hole);
            }
            early = self
                .wake
                .wait(early)
                .unwrap_or_else(PoisonError::into_inner);
        }
        Ok(())
    }

    /// Publishes those early ranges whose turn has come, and wakes their writers.
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
        // Nothing panics while the lock is held, so a poisoned lock is still consistent.
        self.early.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_become_visible_in_order() {
        let visible = PublishedSequence::new(10);
        let next = AtomicU64::new(11);
        let linked: Vec<AtomicU64> = (0..4 * 500).map(|_| AtomicU64::new(0)).collect();
        forerun_core::sync::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let first = next.fetch_add(3, Ordering::Relaxed);
                        if first.is_multiple_of(7) {
                            std::thread::yield_now();
                        }
                        linked[(first - 11) as usize / 3].store(first, Ordering::Relaxed);
                        visible.publish(first, first + 2).unwrap();
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
    fn one_writer_publishes_all_waiting_writes() {
        let visible = PublishedSequence::new(0);
        forerun_core::sync::thread::scope(|scope| {
            for first in [2, 4, 6, 8] {
                let visible = &visible;
                scope.spawn(move || visible.publish(first, first + 1).unwrap());
            }
            while visible.early_count.load(Ordering::SeqCst) < 4 {
                std::thread::yield_now();
            }
            assert_eq!(visible.last(), 0);
            visible.publish(1, 1).unwrap();
            assert_eq!(visible.last(), 9);
        });
    }

    #[test]
    fn writers_after_a_gap_get_an_error_and_earlier_ones_become_visible() {
        let visible = PublishedSequence::new(0);
        forerun_core::sync::thread::scope(|scope| {
            let before = scope.spawn(|| visible.publish(2, 3));
            let behind = [5, 7].map(|first| {
                let visible = &visible;
                scope.spawn(move || visible.publish(first, first + 1))
            });
            while visible.early_count.load(Ordering::SeqCst) < 3 {
                std::thread::yield_now();
            }
            assert!(!visible.has_hole());
            visible.leave_hole(4);
            assert!(visible.has_hole());
            for writer in behind {
                assert_eq!(writer.join().unwrap(), Err(Hole));
            }
            assert!(!before.is_finished());
            visible.publish(1, 1).unwrap();
            assert_eq!(before.join().unwrap(), Ok(()));
        });
        assert_eq!(visible.publish(9, 9), Err(Hole));
        assert_eq!(visible.last(), 3);
    }
}
