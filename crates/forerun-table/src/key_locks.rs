//! Locks for the writers of keys, and versions that show whether a key changed.
//!
//! ```text
//!   locks      256 mutexes            one writer per key at a time; a batch takes the mutexes of its keys in ascending order
//!   versions   65,536 counters        incremented after every change of a key's row, or of the store's copy of it
//! ```
//!
//! Readers take no locks. A row that a lookup found in the store is promoted later, and may be
//! outdated by then. So the lookup records the key's version before it reads the store, and the
//! promotion compares versions under the lock. Every change of the key's row or of the store
//! happens under the lock and is followed by an increment, so an equal version means that the store
//! still has the row that was read. Keys that share a counter can make a promotion fail needlessly;
//! a later lookup then promotes the row.

use std::sync::atomic::{AtomicU32, Ordering};

use forerun_core::sync::{Mutex, MutexGuard, PoisonError};

const LOCKS: usize = 256;
const VERSIONS: usize = 1 << 16;

/// The locks and versions of all keys.
#[derive(Debug)]
pub(crate) struct KeyLocks {
    locks: Box<[Mutex<()>]>,
    versions: Box<[AtomicU32]>,
}

/// A key's version at some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version(u32);

/// The locks of some keys, held until this is dropped.
pub(crate) struct KeyGuard<'s> {
    _guards: Vec<MutexGuard<'s, ()>>,
}

impl Default for KeyLocks {
    fn default() -> KeyLocks {
        KeyLocks {
            locks: (0..LOCKS).map(|_| Mutex::new(())).collect(),
            versions: (0..VERSIONS).map(|_| AtomicU32::new(0)).collect(),
        }
    }
}

impl KeyLocks {
    /// Waits until no other thread writes any of these keys.
    pub(crate) fn lock(&self, keys: impl IntoIterator<Item = u64>) -> KeyGuard<'_> {
        let mut wanted = [0u64; LOCKS / 64];
        for key in keys {
            let lock = spread(key) as usize >> 56;
            wanted[lock / 64] |= 1 << (lock % 64);
        }
        self.lock_wanted(wanted)
    }

    /// Waits until no other thread writes any key.
    pub(crate) fn lock_all(&self) -> KeyGuard<'_> {
        self.lock_wanted([u64::MAX; LOCKS / 64])
    }

    /// Locks in ascending order. All callers do, so there is no deadlock.
    fn lock_wanted(&self, mut wanted: [u64; LOCKS / 64]) -> KeyGuard<'_> {
        let count = wanted.iter().map(|bits| bits.count_ones()).sum::<u32>();
        let mut guards = Vec::with_capacity(count as usize);
        for (word, bits) in wanted.iter_mut().enumerate() {
            while *bits != 0 {
                let lock = word * 64 + bits.trailing_zeros() as usize;
                *bits &= *bits - 1;
                // The lock guards no data that a panic could leave half changed.
                let guard = self.locks[lock].lock();
                guards.push(guard.unwrap_or_else(PoisonError::into_inner));
            }
        }
        KeyGuard { _guards: guards }
    }

    /// A key's version, to be taken before the store is read.
    pub(crate) fn version(&self, key: u64) -> Version {
        // Acquire: a thread that sees a version also sees the store's writes from before its
        // increment.
        Version(self.counter(key).load(Ordering::Acquire))
    }

    /// Marks a key's row, or the store's copy of it, as changed. The caller holds the key's lock.
    pub(crate) fn bump_version(&self, key: u64) {
        // Release: pairs with `version`. Keys with different locks may share a counter, so a plain
        // store would not do.
        self.counter(key).fetch_add(1, Ordering::Release);
    }

    fn counter(&self, key: u64) -> &AtomicU32 {
        &self.versions[(spread(key) >> 40) as usize % VERSIONS]
    }
}

/// Fibonacci hashing (Knuth, The Art of Computer Programming 3, section 6.4): the top bits depend
/// on all bits of the key.
fn spread(key: u64) -> u64 {
    (key ^ (key >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn batches_with_keys_in_common_exclude_each_other_and_never_deadlock() {
        let key_locks = KeyLocks::default();
        let inside = AtomicUsize::new(0);
        forerun_core::sync::thread::scope(|scope| {
            for thread in 0..4u64 {
                let (key_locks, inside) = (&key_locks, &inside);
                scope.spawn(move || {
                    for round in 0..200u64 {
                        // All batches contain key 7, with different other keys and in different
                        // orders.
                        let others = (0..50).map(|n| n * (thread + 1) + round);
                        let guard = key_locks.lock(others.chain([7]));
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        inside.fetch_sub(1, Ordering::SeqCst);
                        drop(guard);
                        drop(key_locks.lock_all());
                    }
                });
            }
        });
    }

    #[test]
    fn bump_version_changes_the_version_of_its_key() {
        let key_locks = KeyLocks::default();
        let before = key_locks.version(5);
        assert_eq!(key_locks.version(5), before);
        key_locks.bump_version(5);
        assert_ne!(key_locks.version(5), before);
    }
}
