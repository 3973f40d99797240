//! Recently looked-up keys that are not in the tier, with the number of their lookups.
//!
//! ```text
//!   ghosts   | tag 12, count 4 | tag 12, count 4 | ...       one 16-bit word at the place that the key's hash selects
//! ```
//!
//! A key replaces the previous key at its place, so the table remembers the most recent lookups,
//! about as many keys as it has places. (S3-FIFO, Yang et al., SOSP 2023, keeps such a queue of
//! ghosts; a table of tags costs two bytes per key and one line per lookup.)

use crate::Result;
use forerun_core::arch::prefetch_read;
use forerun_core::hashing::{Permutation, scale};
use forerun_core::{Atomics, Pages};
use std::sync::atomic::{AtomicU16, Ordering};

/// The highest count.
const COUNT_MAX: u16 = 15;
const COUNT_BITS: u32 = 4;

/// Lookups of keys that are not in the tier.
#[derive(Debug)]
pub(crate) struct Ghosts {
    permutation: Permutation,
    places: Atomics<AtomicU16>,
}

impl Ghosts {
    /// Bytes of a place.
    pub(crate) const PLACE_BYTES: usize = size_of::<AtomicU16>();

    /// A table that remembers about `keys` keys.
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory).
    pub(crate) fn new(keys: usize) -> Result<Ghosts> {
        Ok(Ghosts {
            permutation: Permutation::random(),
            places: Atomics::new(keys.max(64), Pages::Huge)?,
        })
    }

    /// Prefetches the line of a key's place.
    pub(crate) fn prefetch(&self, key: u64) {
        prefetch_read(self.place(key).0);
    }

    /// Counts a lookup of a key and returns the number of earlier ones.
    pub(crate) fn touch(&self, key: u64) -> u16 {
        let (place, tag) = self.place(key);
        // Relaxed, and not atomic as a whole: a count orders nothing, and a lost count does no
        // harm.
        let word = place.load(Ordering::Relaxed);
        let before = if word >> COUNT_BITS == tag {
            word & COUNT_MAX
        } else {
            0
        };
        let count = (before + 1).min(COUNT_MAX);
        place.store(tag << COUNT_BITS | count, Ordering::Relaxed);
        before
    }

    /// Memory in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.places)
    }

    /// The place of a key, and the tag that identifies it there. No tag is 0, so an empty place
    /// matches no key.
    fn place(&self, key: u64) -> (&AtomicU16, u16) {
        let hash = self.permutation.hash(key);
        let place = scale(hash, self.places.len() as u64) as usize;
        let tag = (hash >> 16 & 0xfff) as u16;
        (&self.places[place], tag.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touches_are_counted_up_to_the_highest_count() {
        let ghosts = Ghosts::new(1000).unwrap();
        let before: Vec<u16> = (0..20).map(|_| ghosts.touch(7)).collect();
        assert_eq!(before[..4], [0, 1, 2, 3]);
        assert_eq!(before[16..], [15; 4]);
    }

    #[test]
    fn a_key_is_forgotten_after_enough_later_keys() {
        let ghosts = Ghosts::new(1000).unwrap();
        let remembered = |among: u64| {
            for key in (0..200).chain(1000..1000 + among) {
                ghosts.touch(key);
            }
            (0..200u64).filter(|&key| ghosts.touch(key) > 0).count()
        };
        // This counts those of the 200 keys whose place no other of the 300 keys takes later and no
        // earlier key had used. A random permutation gives about 148, plus or minus 7.
        assert!(remembered(100) > 100);
        assert!(remembered(10_000) < 20);
    }
}
