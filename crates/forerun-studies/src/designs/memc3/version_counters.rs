//! Striped version counters, which show a reader whether a key's slots changed while it read them.
//!
//! ```text
//!   writer   version 2 ─▶ 3 │ writes the key's slot │ ─▶ 4          odd: at work
//!   reader   reads 2        │ reads slots           │ reads 2 again: nothing was written of any key of the stripe
//! ```
//!
//! Only one writer works at a time, because it holds the table's lock. Every slot word is stored
//! with release and loaded with acquire. Therefore:
//! - a reader that sees any word of a write in progress synchronises with that store, which came
//!   after the odd version; so its second read of the version returns the odd one or a later one,
//!   and it starts over;
//! - a reader whose first read returns the even version after a write (acquire) sees all words of
//!   that write (release).
//!
//! There are no standalone fences, because ThreadSanitizer does not support them.

use super::super::sync::{AtomicU32, Ordering, pause};

/// Number of counters: the paper's 8,192, which fit into the first two cache levels.
#[cfg(not(loom))]
const COUNTERS: usize = 8192;
/// Two, so that models cover keys with the same counter and with different ones.
#[cfg(loom)]
const COUNTERS: usize = 2;

/// The counters.
#[derive(Debug)]
pub(super) struct Versions(Box<[AtomicU32]>);

impl Versions {
    pub(super) fn new() -> Versions {
        Versions((0..COUNTERS).map(|_| AtomicU32::new(0)).collect())
    }

    pub(super) fn memory_bytes(&self) -> usize {
        COUNTERS * size_of::<u32>()
    }

    /// The counter of a key, by its hash.
    #[inline(always)]
    fn of(&self, stripe: u32) -> &AtomicU32 {
        // The low bits are the tag. Use other bits; otherwise all keys of a counter would have
        // similar tags.
        &self.0[(stripe >> 8) as usize % COUNTERS]
    }

    /// A key's version before its slots are read. If it is odd, [`Versions::unchanged`] will return
    /// false.
    #[inline(always)]
    pub(super) fn read(&self, stripe: u32) -> u32 {
        // Acquire: the slots are read after it, and the reader sees everything that was written
        // before that version.
        self.of(stripe).load(Ordering::Acquire)
    }

    /// Whether nothing was written since `version` was read.
    #[inline(always)]
    pub(super) fn unchanged(&self, stripe: u32, version: u32) -> bool {
        // Relaxed suffices: the slots were loaded with acquire, so this load cannot come before
        // theirs.
        version.is_multiple_of(2) && self.of(stripe).load(Ordering::Relaxed) == version
    }

    /// Waits until no writer is writing a key, and returns its version.
    pub(super) fn stable_version(&self, stripe: u32) -> u32 {
        let mut turns = 0;
        loop {
            let version = self.read(stripe);
            if version.is_multiple_of(2) {
                return version;
            }
            pause(&mut turns);
        }
    }

    /// Writes slots of a key. The caller holds the table's lock.
    pub(super) fn write<R>(&self, stripe: u32, write: impl FnOnce() -> R) -> R {
        let counter = self.of(stripe);
        // Relaxed: the slots' stores are releases, so this one cannot come after them.
        counter.fetch_add(1, Ordering::Relaxed);
        let result = write();
        // Release: a reader that reads this version sees the slots as they are now.
        counter.fetch_add(1, Ordering::Release);
        result
    }
}
