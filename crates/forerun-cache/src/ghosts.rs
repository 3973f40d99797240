//! Keys that left lately without having been asked for: who comes back soon is kept at once.
//!
//! ```text
//!   hash ─▶ set │ newest │ … │ … 32 fingerprints of 16 bits, a line … │ oldest │
//! ```
//!
//! A set forgets its oldest when another one comes. All of it is a guess: fingerprints may collide, and two threads may lose
//! one between them.

use std::sync::atomic::{AtomicU16, Ordering::Relaxed};

const WAYS: usize = 32;

/// Fingerprints of keys.
#[derive(Debug)]
pub(crate) struct Ghosts {
    sets: Box<[Set]>,
}

#[repr(align(64))]
#[derive(Debug, Default)]
struct Set([AtomicU16; WAYS]);

impl Ghosts {
    /// Room for about `len_bytes` / 2 keys.
    pub(crate) fn new(len_bytes: usize) -> Ghosts {
        let sets = (len_bytes / size_of::<Set>()).max(1);
        Ghosts {
            sets: (0..sets).map(|_| Set::default()).collect(),
        }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.sets)
    }

    fn find(&self, hash: u64) -> (&Set, u16) {
        let at = forerun_core::hashing::scale(hash, self.sets.len() as u64);
        // Bits that the set does not tell; 0 is nobody.
        (&self.sets[at as usize], (hash as u16).max(1))
    }

    /// Notes that a key left.
    pub(crate) fn insert(&self, hash: u64) {
        let (set, mut coming) = self.find(hash);
        for way in &set.0 {
            // Relaxed: single numbers, none of which says anything of another.
            let left = way.load(Relaxed);
            way.store(coming, Relaxed);
            coming = left;
            if coming == 0 {
                break;
            }
        }
    }

    /// Whether a key left lately; it is then forgotten.
    pub(crate) fn take(&self, hash: u64) -> bool {
        let (set, wanted) = self.find(hash);
        let found = set.0.iter().find(|way| way.load(Relaxed) == wanted);
        found.inspect(|way| way.store(0, Relaxed)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_left_last_is_known_and_who_left_long_ago_is_not() {
        let ghosts = Ghosts::new(size_of::<Set>());
        for hash in 1..=100 {
            ghosts.insert(hash);
        }
        assert!(ghosts.take(100) && !ghosts.take(100));
        assert!(ghosts.take(70));
        assert!(!ghosts.take(100 - WAYS as u64) && !ghosts.take(1));
    }

    #[test]
    fn a_key_that_was_taken_leaves_its_place_to_the_next() {
        let ghosts = Ghosts::new(size_of::<Set>());
        (1..=32).for_each(|hash| ghosts.insert(hash));
        assert!(ghosts.take(30));
        ghosts.insert(33);
        assert!(ghosts.take(1), "the oldest stays: there was room");
    }
}
