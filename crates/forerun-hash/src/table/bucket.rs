//! A bucket: four entries in one cache line, and what tells a lookup that one line is enough.
//!
//! ```text
//!   0        8        16       24       32       40       48       56       64 bytes
//!   | slot 0 | slot 1 | slot 2 | slot 3 | value 0| value 1| value 2| value 3|
//!
//!   a slot:   63..8       7          6..4       3      2..0
//!           | remainder | occupied | counter  | away | counter  |
//!                                    cell s+4          cell s
//! ```
//!
//! An entry's key is not stored: its hash is a permutation of the key, the bucket tells the hash's
//! top bits, and the slot keeps the other 56, the *remainder* ([`super::place`] has the arithmetic).
//! That leaves eight bits a slot. Two tell whether the slot is taken, and whether its entry is *away*:
//! in the second of its two buckets rather than at home. The other six are counters: each bucket has
//! eight, in *cells* chosen by the remainder, which count the entries that belong here and are away.
//! A lookup that finds nothing in the home bucket goes on to the second only if its cell is not zero:
//! most misses end after one line (a counting form of the filters of Cuckoo++, Le Scouarnec 2018).
//!
//! A free slot's counters count as well. A bucket of zeroes is empty.

use forerun_core::arch::{Simd, prefetch_read_l2};
use forerun_core::sync::modelled::atomic::{AtomicU64, Ordering};

/// Entries a bucket.
pub(super) const SLOTS: usize = 4;

/// Bits of the hash that a slot keeps.
pub(super) const REMAINDER_BITS: u32 = 56;

const META_BITS: u32 = 64 - REMAINDER_BITS;
/// The counter of a word, once the word is shifted right by its cell's shift.
const COUNTER: u64 = 7;
const COUNTERS: u64 = COUNTER | COUNTER << CELL_SHIFT;
const CELL_SHIFT: u32 = 4;
const AWAY: u64 = 1 << 3;
const OCCUPIED: u64 = 1 << 7;
/// What two slots of the same key share.
const IDENTITY: u64 = !COUNTERS;

/// Which of its two buckets an entry is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// The first that is looked at.
    Home,
    /// The second.
    Away,
}

impl Side {
    pub(super) fn other(self) -> Side {
        match self {
            Side::Home => Side::Away,
            Side::Away => Side::Home,
        }
    }
}

/// What identifies an entry within a bucket: the remainder of its hash, and its side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity(u64);

impl Identity {
    /// The entry of a hash, at home.
    #[inline(always)]
    pub(super) fn home(hash: u64) -> Identity {
        Identity(OCCUPIED | hash << META_BITS)
    }

    /// The same entry on a side.
    #[inline(always)]
    pub(super) fn on(self, side: Side) -> Identity {
        match side {
            Side::Home => Identity(self.0 & !AWAY),
            Side::Away => Identity(self.0 | AWAY),
        }
    }

    #[inline(always)]
    pub(super) fn side(self) -> Side {
        if self.0 & AWAY == 0 {
            Side::Home
        } else {
            Side::Away
        }
    }

    /// The low [`REMAINDER_BITS`] of the hash.
    #[inline(always)]
    pub(super) fn remainder(self) -> u64 {
        self.0 >> META_BITS
    }
}

/// One counter of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    slot: usize,
    shift: u32,
}

impl Cell {
    /// The cell of a remainder: by its low bits, since the bucket is told by the hash's top ones.
    #[inline(always)]
    pub(super) fn new(remainder: u64) -> Cell {
        Cell {
            slot: remainder as usize % SLOTS,
            shift: remainder as u32 & CELL_SHIFT,
        }
    }
}

/// A bucket. Any number of threads read it while one, the holder of its segment's lock, writes.
///
/// The stores are ordered for the reader of one slot: a value before the slot that makes it found,
/// and an entry's new place and counter before its old place is cleared. That leaves two things a
/// reader could get wrong, that a slot was cleared and taken by another key between the reads of
/// slot and value, and that an entry went home behind its back; [`super::version`] tells of both.
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

    /// The slot of an entry, if it is here: bit `i` for slot `i`, and at most one bit.
    #[cfg(not(loom))]
    #[inline(always)]
    pub(super) fn find<S: Simd>(&self, simd: S, identity: Identity) -> u32 {
        // Each slot is read with acquire ordering: what is read after it, the value above all, was
        // written before the slot was.
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

    /// The value of a slot.
    #[inline(always)]
    pub(super) fn value(&self, slot: usize) -> u64 {
        // Acquire: the version that is read after it must not be older than it.
        self.values[slot].load(Ordering::Acquire)
    }

    /// Whether an entry of this cell that belongs here may be away.
    #[inline(always)]
    pub(super) fn may_be_away(&self, cell: Cell) -> bool {
        // Acquire: an entry that is counted here has been written to its second bucket.
        let slot = self.slots[cell.slot].load(Ordering::Acquire);
        slot >> cell.shift & COUNTER != 0
    }

    /// The entry of a slot, if it is taken. For the writer.
    pub(super) fn entry(&self, slot: usize) -> Option<Identity> {
        // Relaxed: only the writer, who holds the lock, asks.
        let slot = self.slots[slot].load(Ordering::Relaxed);
        (slot & OCCUPIED != 0).then_some(Identity(slot & IDENTITY))
    }

    /// A free slot. For the writer.
    pub(super) fn free_slot(&self) -> Option<usize> {
        (0..SLOTS).find(|&slot| self.entry(slot).is_none())
    }

    /// Writes an entry into a free slot.
    pub(super) fn put(&self, slot: usize, identity: Identity, value: u64) {
        debug_assert!(self.entry(slot).is_none(), "slot {slot} is taken");
        // Release, like every store here: a reader that sees it sees the version that was raised
        // before it.
        self.values[slot].store(value, Ordering::Release);
        let counters = self.slots[slot].load(Ordering::Relaxed) & COUNTERS;
        // Release: whoever finds the entry reads its value, not the slot's former one.
        self.slots[slot].store(counters | identity.0, Ordering::Release);
    }

    /// Replaces the value of a taken slot and gives the former one.
    pub(super) fn set_value(&self, slot: usize, value: u64) -> u64 {
        let old = self.values[slot].load(Ordering::Relaxed);
        // Release: as in `put`. A reader gets the one value or the other, either of them this key's.
        self.values[slot].store(value, Ordering::Release);
        old
    }

    /// Frees a slot. The version of the bucket must have been raised.
    pub(super) fn clear(&self, slot: usize) {
        let counters = self.slots[slot].load(Ordering::Relaxed) & COUNTERS;
        // Release: who sees the slot free sees where its entry went, and the version raised.
        self.slots[slot].store(counters, Ordering::Release);
    }

    /// Counts an entry that belongs here and has been written to its second bucket.
    pub(super) fn count_away(&self, cell: Cell) {
        self.recount(
            cell,
            |count| if count == COUNTER { count } else { count + 1 },
        );
    }

    /// Takes it back: the entry is here again, or gone. A counter that is full stays full until the
    /// segment is rebuilt: it no longer knows.
    pub(super) fn uncount_away(&self, cell: Cell) {
        self.recount(cell, |count| {
            debug_assert!(count > 0, "an entry that was never counted");
            if count == COUNTER {
                count
            } else {
                count.saturating_sub(1)
            }
        });
    }

    fn recount(&self, cell: Cell, change: impl FnOnce(u64) -> u64) {
        let slot = &self.slots[cell.slot];
        let word = slot.load(Ordering::Relaxed);
        let count = change(word >> cell.shift & COUNTER);
        let others = word & !(COUNTER << cell.shift);
        // Release: who reads the count finds the entry that it counts.
        slot.store(others | count << cell.shift, Ordering::Release);
    }
}
