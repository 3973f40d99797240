//! Striped version counters, by which a reader knows whether what it read of a key stood still.
//!
//! ```text
//!   writer   version 2 ─▶ 3 │ writes the key's slot │ ─▶ 4          odd: at work
//!   reader   reads 2        │ reads slots           │ reads 2 again: nothing was written of any key of the stripe
//! ```
//!
//! One writer at a time works (it holds the table's lock). The orderings, with every slot word
//! stored with release and loaded with acquire:
//! - a reader that sees any word of a write in progress synchronises with that store, which came
//!   after the odd version; so its second reading of the version cannot be older than the odd one,
//!   and it reads again;
//! - a reader whose first reading is the even version after a write (acquire) sees all words of
//!   that write (release).
//!
//! No bare fences, so that ThreadSanitizer can follow.

use super::sync::{AtomicU32, Ordering, pause};

/// Counters of a table: the paper's 8,192, which the first two levels of cache hold.
#[cfg(not(loom))]
const COUNTERS: usize = 8192;
/// Two, so that keys of one stripe and of different ones are tried.
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
        // The low bits are the tag's: other bits, or the keys of a stripe would be alike.
        &self.0[(stripe >> 8) as usize % COUNTERS]
    }

    /// A key's version before its slots are read. It may be odd: then [`Versions::unchanged`] will
    /// say no.
    #[inline(always)]
    pub(super) fn read(&self, stripe: u32) -> u32 {
        // Acquire: the slots are read after it, and all that was written before that version is
        // seen.
        self.of(stripe).load(Ordering::Acquire)
    }

    /// Whether nothing was written since `version` was read.
    #[inline(always)]
    pub(super) fn unchanged(&self, stripe: u32, version: u32) -> bool {
        // Relaxed suffices: the slots were loaded with acquire, so this load cannot come before
        // theirs.
        version.is_multiple_of(2) && self.of(stripe).load(Ordering::Relaxed) == version
    }

    /// Waits until no writer is at a key, and gives its version.
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
        // Release: who reads this version sees the slots as they are now.
        counter.fetch_add(1, Ordering::Release);
        result
    }
}
