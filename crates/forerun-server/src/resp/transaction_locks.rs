//! Lets one thread run a transaction while no other thread runs a command.
//!
//! ```text
//!   worker 0   lock 0 ── commands ──        all: lock 0, 1, 2 … in order ── EXEC ──
//!   worker 1   lock 1 ── commands ──        waits ……………………………………………………………………………  commands ──
//! ```
//!
//! Each worker has a lock of its own, on a cache line of its own, which it takes for its commands.
//! A transaction takes all of them. One lock for all, even for reading, would be a cache line that
//! each command takes away from another core. A server without RESP has no such locks.

use std::sync::Arc;

use forerun_core::CachePadded;
use forerun_core::sync::{Mutex, MutexGuard, PoisonError};

/// The locks of a server's workers.
#[derive(Debug)]
pub(crate) struct TransactionLocks(Box<[CachePadded<Mutex<()>>]>);

/// A worker's lock, and those of the others.
#[derive(Clone, Debug)]
pub(crate) struct WorkerLock {
    all: Arc<TransactionLocks>,
    own: usize,
}

/// While it exists, no transaction runs elsewhere, or no command at all.
pub(crate) struct Turn<'a>(
    #[expect(dead_code, reason = "only its drop matters")] Vec<MutexGuard<'a, ()>>,
    #[expect(dead_code, reason = "only its drop matters")] Option<MutexGuard<'a, ()>>,
);

impl TransactionLocks {
    /// Locks for so many workers.
    pub(crate) fn new(workers: usize) -> Arc<TransactionLocks> {
        let lock = |_| CachePadded::new(Mutex::new(()));
        Arc::new(TransactionLocks((0..workers).map(lock).collect()))
    }

    /// The lock of a worker, by its number.
    pub(crate) fn of_worker(self: &Arc<Self>, own: usize) -> WorkerLock {
        WorkerLock {
            all: Arc::clone(self),
            own,
        }
    }
}

fn lock(lock: &Mutex<()>) -> MutexGuard<'_, ()> {
    // The lock protects no data of its own. A panic in the middle of a transaction leaves the cache
    // as the commands before it did.
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

impl WorkerLock {
    /// Begins commands of this worker. The worker has no other turn.
    #[inline]
    pub(crate) fn turn(&self) -> Turn<'_> {
        Turn(Vec::new(), self.all.0.get(self.own).map(|own| lock(own)))
    }

    /// Begins a transaction. The worker has no other turn, and holds no guard of the cache, for
    /// which another worker may wait.
    pub(crate) fn alone(&self) -> Turn<'_> {
        // All threads take them in the same order, so none waits for another in a circle.
        Turn(self.all.0.iter().map(|one| lock(one)).collect(), None)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use std::thread;

    use super::*;

    #[test]
    fn a_transaction_runs_while_nothing_else_does() {
        const WORKERS: usize = 4;
        let locks = TransactionLocks::new(WORKERS);
        // Two numbers that commands change one after the other.
        let numbers = [AtomicU64::new(0), AtomicU64::new(0)];
        thread::scope(|scope| {
            for worker in 0..WORKERS {
                let (lock, numbers) = (locks.of_worker(worker), &numbers);
                scope.spawn(move || {
                    for round in 0..2_000 {
                        if round % 4 == worker % 4 {
                            let _alone = lock.alone();
                            let [a, b] = numbers;
                            assert_eq!(a.load(Relaxed), b.load(Relaxed));
                        } else {
                            let _turn = lock.turn();
                            numbers
                                .iter()
                                .for_each(|number| _ = number.fetch_add(1, Relaxed));
                        }
                    }
                });
            }
        });
        assert_eq!(numbers[0].load(Relaxed), 4 * 1_500);
    }
}
