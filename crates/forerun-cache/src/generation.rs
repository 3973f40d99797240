//! Flush generations. The cache counts its flushes, and each item keeps the low bits of the count
//! from when it was stored.
//!
//! ```text
//!   flushes   … 6 ─────────────┬─ 7 ──────────── …      flush_all increments the count
//!   items       a: 6   b: 6    │    c: 7                 afterwards a and b are gone, and c is not
//! ```
//!
//! An item keeps only [`Generation::BITS`] bits, so it must leave before the count returns to the
//! same bits. [`crate::flush`] ensures that.

use crate::ms_clock::MsClock;
use crate::sync::{AtomicU64, Ordering};
use forerun_core::sync::Mutex;

/// The part of the flush count that an item keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Generation(pub(crate) u16);

impl Generation {
    pub(crate) const BITS: u32 = 11;

    fn of(flushes: u64) -> Generation {
        Generation((flushes & ((1 << Generation::BITS) - 1)) as u16)
    }
}

/// The time of a lookup or a write. It decides which items are visible.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment<'c> {
    /// The second of the cache's clock.
    pub(crate) now: u32,
    /// That clock, for items that expire within a second.
    pub(crate) clock: &'c MsClock,
    /// Number of flushes so far.
    pub(crate) flushes: u64,
}

impl Moment<'_> {
    #[inline(always)]
    pub(crate) fn generation(self) -> Generation {
        Generation::of(self.flushes)
    }
}

/// The number of flushes of the whole cache.
#[derive(Debug)]
pub(crate) struct Flushes {
    count: AtomicU64,
    pub(crate) sweep: Mutex<SweepProgress>,
}

/// Tracks up to which flush all older items are known to have left.
#[derive(Debug)]
pub(crate) struct SweepProgress {
    /// The number of stores at the last flush.
    pub(crate) stored: u64,
    /// The index holds no item with a lower flush count.
    pub(crate) none_below: u64,
    /// The flush count when the current sweep began, and the hash at which it continues.
    pub(crate) current: Option<(u64, u64)>,
}

impl Flushes {
    pub(crate) fn new() -> Flushes {
        Flushes {
            count: AtomicU64::new(1),
            sweep: Mutex::new(SweepProgress {
                stored: 0,
                none_below: 1,
                current: None,
            }),
        }
    }

    #[inline(always)]
    pub(crate) fn count(&self) -> u64 {
        // Relaxed: a thread that learned of a flush reads its count or a later one. The segment's
        // lock orders two writers of one key, so the second reads the count that the first read, or
        // a later one.
        self.count.load(Ordering::Relaxed)
    }

    /// Hides everything stored so far.
    pub(crate) fn increment(&self) {
        // Relaxed, as above: this publishes nothing.
        self.count.fetch_add(1, Ordering::Relaxed);
    }
}
