//! The ghost queue: keys that were evicted recently without having been read. A key that comes back
//! while it is remembered goes straight to the main queue.
//!
//! ```text
//!   hash ─▶ set │ newest │ … │ … 32 fingerprints of 16 bits, a line … │ oldest │
//! ```
//!
//! A full set forgets its oldest fingerprint when a new one arrives. The answer is approximate:
//! fingerprints may collide, and two threads that write one set at once may lose an entry.

use std::sync::atomic::{AtomicU16, Ordering::Relaxed};

const WAYS: usize = 32;

/// Fingerprints of evicted keys.
#[derive(Debug)]
pub(super) struct Ghosts {
    sets: Box<[Set]>,
}

#[repr(align(64))]
#[derive(Debug, Default)]
struct Set([AtomicU16; WAYS]);

impl Ghosts {
    /// Remembers about `len_bytes` / 2 keys.
    pub(super) fn new(len_bytes: usize) -> Ghosts {
        let sets = (len_bytes / size_of::<Set>()).max(1);
        Ghosts {
            sets: (0..sets).map(|_| Set::default()).collect(),
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.sets)
    }

    fn find(&self, hash: u64) -> (&Set, u16) {
        let at = forerun_core::hashing::scale(hash, self.sets.len() as u64);
        // The low bits: the high ones choose the set. 0 marks an empty entry.
        (&self.sets[at as usize], (hash as u16).max(1))
    }

    /// Remembers a key.
    pub(super) fn insert(&self, hash: u64) {
        let (set, mut incoming) = self.find(hash);
        for slot in &set.0 {
            // Relaxed: each fingerprint stands alone and publishes nothing else.
            let displaced = slot.load(Relaxed);
            slot.store(incoming, Relaxed);
            incoming = displaced;
            if incoming == 0 {
                break;
            }
        }
    }

    /// Whether a key is remembered. Forgets it.
    pub(super) fn take(&self, hash: u64) -> bool {
        let (set, wanted) = self.find(hash);
        let found = set.0.iter().find(|slot| slot.load(Relaxed) == wanted);
        found.inspect(|slot| slot.store(0, Relaxed)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recent_keys_are_remembered_and_old_ones_forgotten() {
        let ghosts = Ghosts::new(size_of::<Set>());
        for hash in 1..=100 {
            ghosts.insert(hash);
        }
        assert!(ghosts.take(100) && !ghosts.take(100));
        assert!(ghosts.take(70));
        assert!(!ghosts.take(100 - WAYS as u64) && !ghosts.take(1));
    }

    #[test]
    fn a_claimed_key_keeps_its_entry_for_the_next_claim() {
        let ghosts = Ghosts::new(size_of::<Set>());
        (1..=32).for_each(|hash| ghosts.insert(hash));
        assert!(ghosts.take(30));
        ghosts.insert(33);
        assert!(ghosts.take(1), "the oldest stays: an entry was free");
    }
}
