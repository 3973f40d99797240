//! A bucket: eight slots in one cache line.
//!
//! ```text
//!   0        8        16                                    56       64 bytes
//!   | slot 0 | slot 1 | slot 2 | …                          | slot 7 |
//!
//!   a slot:   63..48   47..8                    7          6      5..0
//!           | tag    | where the item lies    | occupied | away | counter |
//! ```
//!
//! The tag is 16 bits of the key's hash: all eight are compared at once, and an item is looked at only where they match. Items
//! lie at multiples of eight bytes, so that 40 bits reach eight TiB, and eight bits a slot are left. As in the buckets of
//! `forerun-hash`, they say whether the slot is taken, whether its item is *away* (in the second of its two buckets rather
//! than at home), and, in counters chosen by the tag, how many items belong here and are away: a lookup that finds nothing at
//! home goes on to the second bucket only if its counter is not zero.
//!
//! A free slot's counter counts as well. A bucket of zeroes is empty.

use super::place::Place;
use crate::sync::{AtomicU64, Ordering};
use forerun_core::arch::{Simd, prefetch_read_l2};

/// Slots a bucket.
pub(crate) const SLOTS: usize = 8;

const COUNTER: u64 = 0x3f;
const DISPLACED: u64 = 1 << 6;
const OCCUPIED: u64 = 1 << 7;
const ITEM_SHIFT: u32 = 8;
const TAG_SHIFT: u32 = 48;
const TAG: u64 = 0xffff << TAG_SHIFT;

/// Where an item lies: its first byte's distance from that of the first block, in units of [`ItemRef::UNIT_BYTES`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct ItemRef(u64);

impl ItemRef {
    /// What items are aligned to.
    pub(crate) const UNIT_BYTES: usize = 8;
    /// The memory that references reach.
    pub(crate) const REACH_BYTES: usize = Self::UNIT_BYTES << (TAG_SHIFT - ITEM_SHIFT);

    #[inline(always)]
    pub(crate) fn from_offset(offset_bytes: usize) -> ItemRef {
        debug_assert!(
            offset_bytes.is_multiple_of(Self::UNIT_BYTES) && offset_bytes < Self::REACH_BYTES
        );
        ItemRef((offset_bytes / Self::UNIT_BYTES) as u64)
    }

    #[inline(always)]
    pub(crate) fn offset_bytes(self) -> usize {
        self.0 as usize * Self::UNIT_BYTES
    }
}

/// What a taken slot says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) tag: u16,
    pub(crate) item: ItemRef,
    /// Whether this is its second bucket.
    pub(crate) is_displaced: bool,
}

impl Entry {
    #[inline(always)]
    fn read(word: u64) -> Option<Entry> {
        (word & OCCUPIED != 0).then_some(Entry {
            tag: (word >> TAG_SHIFT) as u16,
            item: ItemRef((word & !TAG) >> ITEM_SHIFT),
            is_displaced: word & DISPLACED != 0,
        })
    }

    fn word(self) -> u64 {
        u64::from(self.tag) << TAG_SHIFT
            | self.item.0 << ITEM_SHIFT
            | OCCUPIED
            | if self.is_displaced { DISPLACED } else { 0 }
    }
}

/// A bucket. Any number of threads read it while one, the holder of its segment's lock, writes.
///
/// A slot is one word, so that a reader has the old item or the new one, and both stay readable while its pin lasts. Items move
/// in one direction only, from home away: first the item is written to its second bucket, then it is counted at home, then it
/// is cleared there. A reader looks at home, at the counter, and into the second bucket, in this order, so it misses none.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub(crate) struct Bucket {
    slots: [AtomicU64; SLOTS],
}

impl Bucket {
    #[inline(always)]
    pub(crate) fn prefetch(&self) {
        prefetch_read_l2(self);
    }

    /// The slots with the tag of a place: bit `i` for slot `i`.
    #[cfg(not(loom))]
    #[inline(always)]
    pub(crate) fn find<S: Simd>(&self, simd: S, place: Place) -> u32 {
        let needle = u64::from(place.tag) << TAG_SHIFT | OCCUPIED;
        simd.eq_shared_u64(&self.slots, TAG | OCCUPIED, needle)
    }

    /// The same for loom's atomics.
    #[cfg(loom)]
    pub(crate) fn find<S: Simd>(&self, _: S, place: Place) -> u32 {
        let needle = u64::from(place.tag) << TAG_SHIFT | OCCUPIED;
        let slots = self.slots.iter().enumerate();
        slots.fold(0, |mask, (at, slot)| {
            let word = slot.load(Ordering::Acquire);
            mask | u32::from(word & (TAG | OCCUPIED) == needle) << at
        })
    }

    /// What a slot says.
    #[inline(always)]
    pub(crate) fn entry(&self, slot: usize) -> Option<Entry> {
        // Acquire: the item's bytes were written before the slot.
        Entry::read(self.slots[slot].load(Ordering::Acquire))
    }

    /// Whether an item with this tag that belongs here may be away. Asked after the slots were read.
    #[inline(always)]
    pub(crate) fn has_overflow(&self, tag: u16) -> bool {
        // Acquire: an item that is counted here has been written to its second bucket. The reads of the slots before it are
        // acquires, too: who saw the slot that the item left reads a counter that has it.
        self.slots[counter_slot(tag)].load(Ordering::Acquire) & COUNTER != 0
    }

    /// A free slot. For the writer.
    pub(super) fn free_slot(&self) -> Option<usize> {
        (0..SLOTS).find(|&slot| self.entry(slot).is_none())
    }

    /// Writes an entry into a slot: a free one, or one of the same key.
    pub(super) fn put(&self, slot: usize, entry: Entry) {
        // Relaxed: only the writer, who holds the lock, changes slots.
        let counter = self.slots[slot].load(Ordering::Relaxed) & COUNTER;
        // Release: whoever finds the item reads its bytes.
        self.slots[slot].store(counter | entry.word(), Ordering::Release);
    }

    /// Frees a slot.
    pub(super) fn clear(&self, slot: usize) {
        let counter = self.slots[slot].load(Ordering::Relaxed) & COUNTER;
        // Release: who sees the slot free sees where its item went.
        self.slots[slot].store(counter, Ordering::Release);
    }

    /// Counts an item that belongs here and has been written to its second bucket.
    pub(super) fn add_overflow(&self, tag: u16) {
        self.recount(tag, |count| (count + 1).min(COUNTER));
    }

    /// Takes it back. A counter that is full stays so until the segment is split: it no longer knows.
    pub(super) fn remove_overflow(&self, tag: u16) {
        self.recount(tag, |count| {
            debug_assert!(count > 0, "an item that was never counted");
            if count == COUNTER {
                count
            } else {
                count.saturating_sub(1)
            }
        });
    }

    fn recount(&self, tag: u16, change: impl FnOnce(u64) -> u64) {
        let slot = &self.slots[counter_slot(tag)];
        let word = slot.load(Ordering::Relaxed);
        // Release: who reads the count finds the item that it counts.
        slot.store(word & !COUNTER | change(word & COUNTER), Ordering::Release);
    }
}

/// Whose counter is that of a tag.
#[inline(always)]
fn counter_slot(tag: u16) -> usize {
    tag as usize % SLOTS
}
