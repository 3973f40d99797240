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
//!
//! A lock that is free for an instant goes to whoever is awake, which is its own worker. So a
//! transaction first shuts a gate, at which workers wait before their next commands, and waits for
//! each lock at most as long as the commands that have begun.

use std::sync::Arc;

use forerun_core::CachePadded;
use forerun_core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use forerun_core::sync::{Mutex, MutexGuard, PoisonError};

/// The locks of a server's workers.
#[derive(Debug)]
pub(crate) struct TransactionLocks {
    workers: Box<[CachePadded<Mutex<()>>]>,
    /// Held by the transaction that runs or waits for the workers.
    gate: Mutex<()>,
    /// Whether the gate is shut. Workers read it for each turn, so little else is near it.
    is_shut: CachePadded<AtomicBool>,
}

/// A worker's lock, and those of the others.
#[derive(Clone, Debug)]
pub(crate) struct WorkerLock {
    all: Arc<TransactionLocks>,
    own: usize,
}

/// While it exists, no transaction runs elsewhere, or no command at all.
pub(crate) enum Turn<'a> {
    Commands(#[expect(dead_code, reason = "only its drop matters")] Option<MutexGuard<'a, ()>>),
    Transaction {
        #[expect(dead_code, reason = "only its drop matters")]
        workers: Vec<MutexGuard<'a, ()>>,
        #[expect(dead_code, reason = "only its drop matters")]
        gate: Gate<'a>,
    },
}

/// The gate, shut.
pub(crate) struct Gate<'a> {
    is_shut: &'a AtomicBool,
    // Dropped after the gate was opened.
    _lock: MutexGuard<'a, ()>,
}

impl Drop for Gate<'_> {
    fn drop(&mut self) {
        // Relaxed, as everywhere: it only makes workers wait. The locks order what they do.
        self.is_shut.store(false, Relaxed);
    }
}

impl TransactionLocks {
    /// Locks for so many workers.
    pub(crate) fn new(workers: usize) -> Arc<TransactionLocks> {
        let lock = |_| CachePadded::new(Mutex::new(()));
        Arc::new(TransactionLocks {
            workers: (0..workers).map(lock).collect(),
            gate: Mutex::new(()),
            is_shut: CachePadded::new(AtomicBool::new(false)),
        })
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
        if self.all.is_shut.load(Relaxed) {
            // The gate opens when no transaction waits in front of this worker.
            drop(lock(&self.all.gate));
        }
        Turn::Commands(self.all.workers.get(self.own).map(|own| lock(own)))
    }

    /// Begins a transaction. The worker has no other turn, and holds no guard of the cache, for
    /// which another worker may wait.
    pub(crate) fn alone(&self) -> Turn<'_> {
        let gate_lock = lock(&self.all.gate);
        self.all.is_shut.store(true, Relaxed);
        let gate = Gate {
            is_shut: &self.all.is_shut,
            _lock: gate_lock,
        };
        // Only the owner of the gate has several locks, and nobody waits for the gate with a lock,
        // so none waits for another in a circle.
        let workers = self.all.workers.iter().map(|one| lock(one)).collect();
        Turn::Transaction { workers, gate }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::thread;
    use std::time::Duration;

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

    #[test]
    fn a_transaction_waits_for_no_more_than_the_commands_that_have_begun() {
        const ROUNDS: u64 = 40;
        let locks = TransactionLocks::new(3);
        let (is_over, late) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            for worker in 1..3 {
                let (locks, is_over, late) = (&locks, &is_over, &late);
                scope.spawn(move || {
                    let lock = locks.of_worker(worker);
                    // It takes its lock again at once.
                    while !is_over.load(Relaxed) {
                        let _turn = lock.turn();
                        let is_late = locks.is_shut.load(Relaxed);
                        late.fetch_add(is_late.into(), Relaxed);
                        thread::sleep(Duration::from_micros(200));
                    }
                });
            }
            let lock = locks.of_worker(0);
            for _ in 0..ROUNDS {
                let _alone = lock.alone();
            }
            is_over.store(true, Relaxed);
        });
        // Each worker may have looked at the gate just before it was shut, and may have its lock
        // back just before it is open.
        let late = late.load(Relaxed);
        assert!(late <= 4 * ROUNDS, "{late} turns in {ROUNDS} rounds");
    }
}
