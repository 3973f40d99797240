//! A bucket: four entries in one cache line, with counters that tell a lookup whether one line is
//! enough.
//!
//! ```text
//!   0        8        16       24       32       40       48       56       64 bytes
//!   | slot 0 | slot 1 | slot 2 | slot 3 | value 0| value 1| value 2| value 3|
//!
//!   a slot:   63..8       7          6..4       3      2..0
//!           | remainder | occupied | counter  | second | counter  |
//!                                     number s+4        number s
//! ```
//!
//! Keys are not stored. The hash is a permutation of the key, the bucket implies the top bits of
//! the hash, and the slot keeps the other 56, the *remainder* ([`super::place`] has the
//! arithmetic). That leaves eight bits per slot. Two show whether the slot is occupied, and whether
//! its entry is in the *second* of its two buckets instead of its home. The other six are overflow
//! counters. Each bucket has eight counters, selected by the remainder. They count the entries of
//! this home bucket that are in their second bucket. A lookup that finds nothing at home continues
//! to the second bucket only if its counter is not zero, so most misses read one line. (Folly's F14
//! calls this the overflow count; Cuckoo++, Le Scouarnec 2018, uses Bloom filters for the same
//! purpose.)
//!
//! The counters of a free slot count as well. A bucket of zeroes is empty.

use forerun_core::arch::{Simd, prefetch_read_l2};
use forerun_core::sync::modelled::atomic::{AtomicU64, Ordering};

/// Entries per bucket.
pub(super) const SLOTS: usize = 4;

/// How many bits of the hash a slot keeps.
pub(super) const REMAINDER_BITS: u32 = 56;

const META_BITS: u32 = 64 - REMAINDER_BITS;
/// The bits of a counter, after shifting its word right.
const COUNTER: u64 = 7;
const COUNTERS: u64 = COUNTER | COUNTER << CELL_SHIFT;
const CELL_SHIFT: u32 = 4;
const SECOND: u64 = 1 << 3;
const OCCUPIED: u64 = 1 << 7;
/// The bits that identify an entry.
const IDENTITY: u64 = !COUNTERS;

/// Which of its two buckets an entry is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// The bucket that lookups read first.
    Home,
    /// The other bucket.
    Second,
}

impl Side {
    pub(super) fn other(self) -> Side {
        match self {
            Side::Home => Side::Second,
            Side::Second => Side::Home,
        }
    }
}

/// Identifies an entry in a bucket: the remainder of its hash, and its side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity(u64);

impl Identity {
    /// The entry of a hash in its home bucket.
    #[inline(always)]
    pub(super) fn home(hash: u64) -> Identity {
        Identity(OCCUPIED | hash << META_BITS)
    }

    /// The same entry on the given side.
    #[inline(always)]
    pub(super) fn on(self, side: Side) -> Identity {
        match side {
            Side::Home => Identity(self.0 & !SECOND),
            Side::Second => Identity(self.0 | SECOND),
        }
    }

    #[inline(always)]
    pub(super) fn side(self) -> Side {
        if self.0 & SECOND == 0 {
            Side::Home
        } else {
            Side::Second
        }
    }

    /// The low [`REMAINDER_BITS`] of the hash.
    #[inline(always)]
    pub(super) fn remainder(self) -> u64 {
        self.0 >> META_BITS
    }
}

/// The position of an overflow counter in a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OverflowCounter {
    slot: usize,
    shift: u32,
}

impl OverflowCounter {
    /// The counter of a remainder. The low bits select it, because the top bits of the hash select
    /// the bucket.
    #[inline(always)]
    pub(super) fn new(remainder: u64) -> OverflowCounter {
        OverflowCounter {
            slot: remainder as usize % SLOTS,
            shift: remainder as u32 & CELL_SHIFT,
        }
    }
}

/// A bucket. Any number of threads may read it while one thread writes: the holder of its segment's
/// lock.
///
/// Stores are ordered for readers of a single slot: a value is written before the slot that
/// publishes it, and an entry's new slot and counter before its old slot is cleared. Two races
/// remain: another key takes a slot between a reader's loads of slot and value, and an entry moves
/// home after a reader has checked its home. [`super::version`] detects both.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub(super) struct Bucket {
    slots: [AtomicU64; SLOTS],
    values: [AtomicU64; SLOTS],
}

impl Bucket {
    #[inline(always)]
    pub(super) fn prefetch(&self) {
        prefetch_read_l2(self);
    }

    /// Finds the slot of an entry: bit `i` for slot `i`, at most one bit set.
    #[cfg(not(loom))]
    #[inline(always)]
    pub(super) fn find<S: Simd>(&self, simd: S, identity: Identity) -> u32 {
        // Each slot is loaded with acquire ordering, so later loads see everything that was written
        // before it, above all the value.
        simd.eq_shared_u64(&self.slots, IDENTITY, identity.0)
    }

    /// The same for loom's atomics.
    #[cfg(loom)]
    pub(super) fn find<S: Simd>(&self, _: S, identity: Identity) -> u32 {
        let slots = self.slots.iter().enumerate();
        slots.fold(0, |mask, (at, slot)| {
            mask | u32::from(slot.load(Ordering::Acquire) & IDENTITY == identity.0) << at
        })
    }

    /// [`Bucket::find`] in a bucket that no one writes.
    ///
    /// # Safety
    /// No thread writes the bucket during the call.
    #[cfg(not(loom))]
    #[inline(always)]
    pub(super) unsafe fn find_unshared<S: Simd>(&self, simd: S, identity: Identity) -> u32 {
        // SAFETY: an atomic word has the layout of a word. The caller excludes writers, so the
        // words do not change while they are borrowed as plain ones.
        let slots = unsafe { &*std::ptr::from_ref(&self.slots).cast::<[u64; SLOTS]>() };
        simd.eq_u64(&slots.map(|slot| slot & IDENTITY), identity.0)
    }

    /// The same for loom's atomics.
    ///
    /// # Safety
    /// None is required.
    #[cfg(loom)]
    pub(super) unsafe fn find_unshared<S: Simd>(&self, simd: S, identity: Identity) -> u32 {
        self.find(simd, identity)
    }

    /// The value of a slot.
    #[inline(always)]
    pub(super) fn value(&self, slot: usize) -> u64 {
        // Acquire: the version that is loaded after it must not be older.
        self.values[slot].load(Ordering::Acquire)
    }

    /// Whether an entry of this home bucket with this counter may be in its second bucket.
    #[inline(always)]
    pub(super) fn has_overflow(&self, cell: OverflowCounter) -> bool {
        // Acquire: an entry that is counted here has been written to its second bucket.
        let slot = self.slots[cell.slot].load(Ordering::Acquire);
        slot >> cell.shift & COUNTER != 0
    }

    /// The entry of a slot, if it is occupied. Only the writer calls this.
    pub(super) fn entry(&self, slot: usize) -> Option<Identity> {
        // Relaxed: the caller holds the lock.
        let slot = self.slots[slot].load(Ordering::Relaxed);
        (slot & OCCUPIED != 0).then_some(Identity(slot & IDENTITY))
    }

    /// A free slot. Only the writer calls this.
    pub(super) fn free_slot(&self) -> Option<usize> {
        (0..SLOTS).find(|&slot| self.entry(slot).is_none())
    }

    /// Writes an entry to a free slot.
    pub(super) fn put(&self, slot: usize, identity: Identity, value: u64) {
        debug_assert!(self.entry(slot).is_none(), "slot {slot} is occupied");
        // Release, like every store here: a reader that sees it also sees the version that was
        // incremented before it.
        self.values[slot].store(value, Ordering::Release);
        let counters = self.slots[slot].load(Ordering::Relaxed) & COUNTERS;
        // Release: a reader that finds the entry reads its value, not the slot's previous one.
        self.slots[slot].store(counters | identity.0, Ordering::Release);
    }

    /// Replaces the value of an occupied slot and returns the old one.
    pub(super) fn set_value(&self, slot: usize, value: u64) -> u64 {
        let old = self.values[slot].load(Ordering::Relaxed);
        // Release: as in `put`. A reader gets either value, and both belong to this key.
        self.values[slot].store(value, Ordering::Release);
        old
    }

    /// Frees a slot. Called inside `Version::write`.
    pub(super) fn clear(&self, slot: usize) {
        let counters = self.slots[slot].load(Ordering::Relaxed) & COUNTERS;
        // Release: a reader that sees the slot free also sees where its entry went, and the
        // incremented version.
        self.slots[slot].store(counters, Ordering::Release);
    }

    /// Counts an entry of this home bucket that has been written to its second bucket.
    pub(super) fn add_overflow(&self, cell: OverflowCounter) {
        self.recount(
            cell,
            |count| if count == COUNTER { count } else { count + 1 },
        );
    }

    /// Uncounts an entry that came home or was removed. A saturated counter stays saturated until
    /// the segment is rebuilt, because it has lost count.
    pub(super) fn remove_overflow(&self, cell: OverflowCounter) {
        self.recount(cell, |count| {
            debug_assert!(count > 0, "uncounted an entry that was never counted");
            if count == COUNTER {
                count
            } else {
                count.saturating_sub(1)
            }
        });
    }

    fn recount(&self, cell: OverflowCounter, change: impl FnOnce(u64) -> u64) {
        let slot = &self.slots[cell.slot];
        let word = slot.load(Ordering::Relaxed);
        let count = change(word >> cell.shift & COUNTER);
        let others = word & !(COUNTER << cell.shift);
        // Release: a reader of the count also finds the entry that it counts.
        slot.store(others | count << cell.shift, Ordering::Release);
    }
}
