//! Who writes a key, and whether it was written since.
//!
//! ```text
//!   locks      256 mutexes            a key's writers, one at a time; a batch takes all of its stripes, in their order
//!   versions   65,536 counters        raised behind every change of what a key's row is, or of what the store has
//! ```
//!
//! Readers take none of the locks. What a lookup found in the store is brought up later, by then perhaps outdated. So the
//! lookup notes the key's version before it asks the store, and who brings the row up compares it, under the lock: every
//! change of the store or of the key's row is made under the lock and followed by a raise, so an equal version means that
//! the store still has what was read. Keys that share a counter make a promotion fail that need not; it is made up for by
//! the next lookup.

use std::sync::atomic::{AtomicU32, Ordering};

use forerun_core::sync::{Mutex, MutexGuard, PoisonError};

const STRIPES: usize = 256;
const VERSIONS: usize = 1 << 16;

/// Locks and versions of all keys.
#[derive(Debug)]
pub(crate) struct KeyLocks {
    locks: Box<[Mutex<()>]>,
    versions: Box<[AtomicU32]>,
}

/// A key's version when it was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version(u32);

/// The stripes of some keys, locked.
pub(crate) struct KeyGuard<'s> {
    _guards: Vec<MutexGuard<'s, ()>>,
}

impl Default for KeyLocks {
    fn default() -> KeyLocks {
        KeyLocks {
            locks: (0..STRIPES).map(|_| Mutex::new(())).collect(),
            versions: (0..VERSIONS).map(|_| AtomicU32::new(0)).collect(),
        }
    }
}

impl KeyLocks {
    /// Waits until nobody else writes any of these keys.
    pub(crate) fn lock(&self, keys: impl IntoIterator<Item = u64>) -> KeyGuard<'_> {
        let mut wanted = [0u64; STRIPES / 64];
        for key in keys {
            let stripe = spread(key) as usize >> 56;
            wanted[stripe / 64] |= 1 << (stripe % 64);
        }
        self.lock_wanted(wanted)
    }

    /// Waits until nobody else writes any key.
    pub(crate) fn lock_all(&self) -> KeyGuard<'_> {
        self.lock_wanted([u64::MAX; STRIPES / 64])
    }

    /// In ascending order, as everybody does: so no two wait for each other.
    fn lock_wanted(&self, mut wanted: [u64; STRIPES / 64]) -> KeyGuard<'_> {
        let count = wanted.iter().map(|bits| bits.count_ones()).sum::<u32>();
        let mut guards = Vec::with_capacity(count as usize);
        for (word, bits) in wanted.iter_mut().enumerate() {
            while *bits != 0 {
                let stripe = word * 64 + bits.trailing_zeros() as usize;
                *bits &= *bits - 1;
                // The lock guards no data that a panic could leave half changed.
                let guard = self.locks[stripe].lock();
                guards.push(guard.unwrap_or_else(PoisonError::into_inner));
            }
        }
        KeyGuard { _guards: guards }
    }

    /// The version of a key, before the store is asked.
    pub(crate) fn version(&self, key: u64) -> Version {
        // Acquire: who sees a version sees in the store what was written there before it was raised.
        Version(self.counter(key).load(Ordering::Acquire))
    }

    /// Notes that a key's row, or what the store has of it, was changed. For the holder of the key's lock.
    pub(crate) fn bump_version(&self, key: u64) {
        // Release: as above. Keys of two stripes may share a counter, hence no plain store.
        self.counter(key).fetch_add(1, Ordering::Release);
    }

    fn counter(&self, key: u64) -> &AtomicU32 {
        &self.versions[(spread(key) >> 40) as usize % VERSIONS]
    }
}

/// Fibonacci hashing (Knuth, The Art of Computer Programming 3, section 6.4): the top bits depend on all of the key's.
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
                        // All batches have key 7, in various company and order.
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
    fn a_raise_changes_the_version_of_its_key() {
        let key_locks = KeyLocks::default();
        let before = key_locks.version(5);
        assert_eq!(key_locks.version(5), before);
        key_locks.bump_version(5);
        assert_ne!(key_locks.version(5), before);
    }
}
