//! The ghost queue: keys that were evicted recently without having been read. A key that comes back
//! while it is remembered goes straight to the main queue.
//!
//! ```text
//!   hash ─▶ set │ newest │ … 31 fingerprints … │ oldest │ age │      16 bits each, a line in all
//! ```
//!
//! A full set forgets its oldest fingerprint when a new one arrives. A set also forgets all of them
//! once as many bytes as the cache holds were evicted after the newest, so that keys of large
//! values are not remembered longer than S3-FIFO would. The answer is approximate: fingerprints may
//! collide, and two threads that write one set at once may lose an entry.

use forerun_core::{Atomics, Pages, RegionError};
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering::Relaxed};

/// The 16-bit words of a set: the fingerprints, and the time of the newest.
const SET_WORDS: usize = 32;
const WAYS: usize = SET_WORDS - 1;

/// The age at which a set is forgotten, in units of [`Ghosts::age_unit_bytes`].
const AGE_MAX: u16 = 64;

/// Fingerprints of evicted keys.
#[derive(Debug)]
pub(super) struct Ghosts {
    words: Atomics<AtomicU16>,
    /// Bytes of all items evicted so far.
    evicted_bytes: AtomicU64,
    /// The evicted bytes by which a set gets one older.
    age_unit_bytes: u64,
}

/// The words of a set.
#[derive(Clone, Copy)]
struct Set<'g> {
    fingerprints: &'g [AtomicU16],
    newest: &'g AtomicU16,
}

impl Set<'_> {
    /// Whether the newest fingerprint is too old at `time`.
    fn is_old(self, time: u16) -> bool {
        let age = time.wrapping_sub(self.newest.load(Relaxed));
        // Another thread may have counted later and come first. Then the age is below zero.
        (AGE_MAX + 1..=u16::MAX - AGE_MAX).contains(&age)
    }
}

impl Ghosts {
    /// Remembers about `len_bytes` / 2 keys, and those of items with `history_bytes` together.
    pub(super) fn new(
        len_bytes: usize,
        history_bytes: usize,
        pages: Pages,
    ) -> Result<Ghosts, RegionError> {
        let words = len_bytes / size_of::<AtomicU16>();
        let sets = (words / SET_WORDS).max(1);
        Ok(Ghosts {
            words: Atomics::new(sets * SET_WORDS, pages)?,
            evicted_bytes: AtomicU64::new(0),
            age_unit_bytes: (history_bytes as u64 / u64::from(AGE_MAX)).max(1),
        })
    }

    pub(super) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.words)
    }

    fn find(&self, hash: u64) -> (Set<'_>, u16) {
        let sets = (self.words.len() / SET_WORDS) as u64;
        let at = forerun_core::hashing::scale(hash, sets) as usize * SET_WORDS;
        let set = Set {
            fingerprints: &self.words[at..at + WAYS],
            newest: &self.words[at + WAYS],
        };
        // The low bits: the high ones choose the set. 0 marks an empty entry.
        (set, (hash as u16).max(1))
    }

    /// The time after this many evicted bytes. It wraps around, so a set that was left alone for
    /// very long may seem new again: it then remembers some keys too long.
    fn time(&self, evicted_bytes: u64) -> u16 {
        (evicted_bytes / self.age_unit_bytes) as u16
    }

    /// Remembers the key of an item that had this many bytes.
    pub(super) fn insert(&self, hash: u64, bytes: usize) {
        // Relaxed, here and below: a count and fingerprints, which stand alone and publish nothing
        // else.
        let evicted_bytes = self.evicted_bytes.fetch_add(bytes as u64, Relaxed);
        let time = self.time(evicted_bytes + bytes as u64);
        let (set, mut incoming) = self.find(hash);
        let is_old = set.is_old(time);
        set.newest.store(time, Relaxed);
        for slot in set.fingerprints {
            let displaced = slot.load(Relaxed);
            slot.store(incoming, Relaxed);
            incoming = if is_old { 0 } else { displaced };
            if displaced == 0 {
                break;
            }
        }
    }

    /// Whether a key is remembered. Forgets it.
    pub(super) fn take(&self, hash: u64) -> bool {
        let (set, wanted) = self.find(hash);
        let found = set
            .fingerprints
            .iter()
            .find(|slot| slot.load(Relaxed) == wanted)
            .filter(|_| !set.is_old(self.time(self.evicted_bytes.load(Relaxed))));
        found.inspect(|slot| slot.store(0, Relaxed)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One set.
    fn ghosts(history_bytes: usize) -> Ghosts {
        let len_bytes = SET_WORDS * size_of::<AtomicU16>();
        Ghosts::new(len_bytes, history_bytes, Pages::Small).unwrap()
    }

    #[test]
    fn recent_keys_are_remembered_and_old_ones_forgotten() {
        let ghosts = ghosts(1000);
        for hash in 1..=100 {
            ghosts.insert(hash, 1);
        }
        assert!(ghosts.take(100) && !ghosts.take(100));
        assert!(ghosts.take(70));
        assert!(!ghosts.take(100 - WAYS as u64) && !ghosts.take(1));
    }

    #[test]
    fn a_claimed_key_keeps_its_entry_for_the_next_claim() {
        let ghosts = ghosts(1000);
        (1..=WAYS as u64).for_each(|hash| ghosts.insert(hash, 1));
        assert!(ghosts.take(30));
        ghosts.insert(33, 1);
        assert!(ghosts.take(1), "the oldest stays: an entry was free");
    }

    #[test]
    fn a_thread_that_counted_earlier_than_the_last_one_finds_what_it_remembers() {
        let ghosts = ghosts(64_000);
        ghosts.insert(1 << 32 | 1, 10_000);
        ghosts.insert(1 << 32 | 2, 10_000);
        // As a thread sees it that was interrupted after it had read the count.
        ghosts.evicted_bytes.store(10_000, Relaxed);
        ghosts.insert(1 << 32 | 3, 10);
        assert!(ghosts.take(1 << 32 | 1) && ghosts.take(1 << 32 | 2));
    }

    #[test]
    fn keys_are_forgotten_once_larger_items_than_the_history_were_evicted() {
        let ghosts = ghosts(64_000);
        ghosts.insert(1 << 32 | 1, 10_000);
        ghosts.insert(1 << 32 | 2, 50_000);
        assert!(ghosts.take(1 << 32 | 1), "60,000 bytes");
        ghosts.insert(1 << 32 | 3, 200_000);
        assert!(!ghosts.take(1 << 32 | 2), "250,000 bytes later");
        assert!(ghosts.take(1 << 32 | 3), "the newest is remembered");
    }
}
