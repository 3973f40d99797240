//! A bucket: eight slots in one cache line.
//!
//! ```text
//!   0        8        16                                    56       64 bytes
//!   | slot 0 | slot 1 | slot 2 | …                          | slot 7 |
//!
//!   a slot:   63..48   47..8                    7          6           5..0
//!           | tag    | where the item lies    | occupied | displaced | counter |
//! ```
//!
//! The tag is 16 bits of the key's hash. All eight tags are compared at once, and an item is read
//! only if its tag matches. Items lie at multiples of eight bytes, so that 40 bits address eight
//! TiB and eight bits per slot remain. As in the buckets of `forerun-hash`, they tell whether the
//! slot is occupied, whether its item is *displaced* (in the second of its two buckets instead of
//! its home), and, in a counter that the tag selects, how many items of this home bucket are
//! displaced. This is the overflow count of Folly's F14: a lookup that finds nothing at home
//! continues to the second bucket only if the counter is not zero.
//!
//! The counter of a free slot counts as well. A bucket of zeroes is empty.

use super::key_buckets::KeyBuckets;
use crate::sync::{AtomicU64, Ordering};
use forerun_core::arch::{Simd, prefetch_read_l2};

/// Slots per bucket.
pub(crate) const SLOTS: usize = 8;

const COUNTER: u64 = 0x3f;
const DISPLACED: u64 = 1 << 6;
const OCCUPIED: u64 = 1 << 7;
const ITEM_SHIFT: u32 = 8;
const TAG_SHIFT: u32 = 48;
const TAG: u64 = 0xffff << TAG_SHIFT;

/// The address of an item: its offset from the first block, in units of [`ItemRef::UNIT_BYTES`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct ItemRef(u64);

impl ItemRef {
    /// The alignment of items.
    pub(crate) const UNIT_BYTES: usize = 8;
    /// The memory that references can address.
    pub(crate) const ADDRESSABLE_BYTES: usize = Self::UNIT_BYTES << (TAG_SHIFT - ITEM_SHIFT);

    #[inline(always)]
    pub(crate) fn from_offset(offset_bytes: usize) -> ItemRef {
        debug_assert!(
            offset_bytes.is_multiple_of(Self::UNIT_BYTES) && offset_bytes < Self::ADDRESSABLE_BYTES
        );
        ItemRef((offset_bytes / Self::UNIT_BYTES) as u64)
    }

    #[inline(always)]
    pub(crate) fn offset_bytes(self) -> usize {
        self.0 as usize * Self::UNIT_BYTES
    }
}

/// The contents of an occupied slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) tag: u16,
    pub(crate) item: ItemRef,
    /// Whether the item is in its second bucket.
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

/// A bucket. Any number of threads may read it while one thread, the holder of its segment's lock,
/// writes.
///
/// A slot is one word, so a reader sees the old item or the new one, and both stay readable while
/// its pin lasts. Items move in one direction only, from the home bucket to the second: the item is
/// first written to its second bucket, then counted at home, then cleared there. A reader checks
/// the home bucket, the counter and the second bucket, in this order, and misses nothing.
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

    /// The slots whose tag matches a key: bit `i` for slot `i`.
    #[cfg(not(loom))]
    #[inline(always)]
    pub(crate) fn find<S: Simd>(&self, simd: S, key_buckets: KeyBuckets) -> u32 {
        let needle = u64::from(key_buckets.tag) << TAG_SHIFT | OCCUPIED;
        simd.eq_shared_u64(&self.slots, TAG | OCCUPIED, needle)
    }

    /// The same for loom's atomics.
    #[cfg(loom)]
    pub(crate) fn find<S: Simd>(&self, _: S, key_buckets: KeyBuckets) -> u32 {
        let needle = u64::from(key_buckets.tag) << TAG_SHIFT | OCCUPIED;
        let slots = self.slots.iter().enumerate();
        slots.fold(0, |mask, (at, slot)| {
            let word = slot.load(Ordering::Acquire);
            mask | u32::from(word & (TAG | OCCUPIED) == needle) << at
        })
    }

    /// The entry in a slot.
    #[inline(always)]
    pub(crate) fn entry(&self, slot: usize) -> Option<Entry> {
        // Acquire: the item's bytes were written before the slot.
        Entry::read(self.slots[slot].load(Ordering::Acquire))
    }

    /// Whether an item with this tag may be displaced from this home bucket. Call it after reading
    /// the slots.
    #[inline(always)]
    pub(crate) fn has_overflow(&self, tag: u16) -> bool {
        // Acquire: an item that is counted here has been written to its second bucket. The reads of
        // the slots before this are acquires, too: a thread that saw the slot that the item left
        // reads a counter that includes it.
        self.slots[counter_slot(tag)].load(Ordering::Acquire) & COUNTER != 0
    }

    /// A free slot. Only the writer calls this.
    pub(super) fn free_slot(&self) -> Option<usize> {
        (0..SLOTS).find(|&slot| self.entry(slot).is_none())
    }

    /// Writes an entry to a slot that is free or holds the same key.
    pub(super) fn put(&self, slot: usize, entry: Entry) {
        // Relaxed: only the holder of the lock changes slots.
        let counter = self.slots[slot].load(Ordering::Relaxed) & COUNTER;
        // Release: publishes the item's bytes.
        self.slots[slot].store(counter | entry.word(), Ordering::Release);
    }

    /// Frees a slot.
    pub(super) fn clear(&self, slot: usize) {
        let counter = self.slots[slot].load(Ordering::Relaxed) & COUNTER;
        // Release: a thread that sees the slot free also sees where its item went.
        self.slots[slot].store(counter, Ordering::Release);
    }

    /// Counts an item of this home bucket that has been written to its second bucket.
    pub(super) fn add_overflow(&self, tag: u16) {
        self.recount(tag, |count| (count + 1).min(COUNTER));
    }

    /// Uncounts one. A saturated counter stays so until the segment is split, because it has lost
    /// count.
    pub(super) fn remove_overflow(&self, tag: u16) {
        self.recount(tag, |count| {
            debug_assert!(count > 0, "uncounted an item that was never counted");
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
        // Release: a thread that reads the count finds the item that it counts.
        slot.store(word & !COUNTER | change(word & COUNTER), Ordering::Release);
    }
}

/// The slot whose counter belongs to a tag.
#[inline(always)]
fn counter_slot(tag: u16) -> usize {
    tag as usize % SLOTS
}
