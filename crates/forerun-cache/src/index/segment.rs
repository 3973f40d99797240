//! A segment: the buckets of all hashes with a common prefix, and a lock for writers.
//!
//! ```text
//!   | bucket 0 | bucket 1 | …  256 of 64 bytes … | lock: entries, retired | depth |
//! ```
//!
//! Readers come through the directory and take no lock. A writer holds the lock for one change. If
//! it finds the segment retired, which means split in two, it starts again from the directory. A
//! segment has 16 KiB and about 1,500 items, so that a split takes microseconds and delays one
//! writer in a thousand.

use super::item_bucket::{Bucket, Entry, ItemRef, SLOTS};
use super::key_buckets::{BUCKETS, KeyBuckets, other};
use crate::sync::{Mutex, MutexGuard, unpoisoned};
use forerun_core::arch::Scalar;

/// The data that the lock guards in addition to the buckets.
#[derive(Debug, Default)]
struct SegmentState {
    entries: usize,
    retired: bool,
}

/// A segment.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct Segment {
    buckets: [Bucket; BUCKETS],
    /// The number of leading bits that all hashes here share.
    depth: u32,
    state: Mutex<SegmentState>,
}

/// The position of an entry in its segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotRef {
    bucket: usize,
    slot: usize,
}

impl Segment {
    /// An empty segment.
    pub(super) fn new(depth: u32) -> Segment {
        Segment {
            buckets: std::array::from_fn(|_| Bucket::default()),
            depth,
            state: Mutex::new(SegmentState::default()),
        }
    }

    pub(crate) fn depth(&self) -> u32 {
        self.depth
    }

    /// The first hash of this segment, given any of its hashes.
    pub(crate) fn first(&self, hash: u64) -> u64 {
        match 1u64.checked_shl(64 - self.depth) {
            Some(width) => hash & !(width - 1),
            None => 0,
        }
    }

    /// The first hash of the next segment, given any hash of this one; `None` if this is the last
    /// segment.
    pub(crate) fn next_after(&self, hash: u64) -> Option<u64> {
        self.first(hash)
            .checked_add(1u64.checked_shl(64 - self.depth)?)
    }

    #[inline(always)]
    pub(crate) fn buckets(&self) -> &[Bucket; BUCKETS] {
        &self.buckets
    }

    /// Finds the first item in these buckets for which `matches` holds.
    #[inline(always)]
    pub(crate) fn find(
        &self,
        key_buckets: KeyBuckets,
        mut matches: impl FnMut(ItemRef) -> bool,
    ) -> Option<(SlotRef, ItemRef)> {
        let home = &self.buckets[key_buckets.home];
        if let Some(found) = find_in(home, key_buckets.home, key_buckets, &mut matches) {
            return Some(found);
        }
        if !home.has_overflow(key_buckets.tag) {
            return None;
        }
        let second = key_buckets.second();
        find_in(&self.buckets[second], second, key_buckets, &mut matches)
    }

    /// Locks the segment, unless it was split.
    pub(super) fn lock(&self) -> Option<LockedSegment<'_>> {
        let state = unpoisoned(self.state.lock());
        (!state.retired).then_some(LockedSegment {
            segment: self,
            state,
        })
    }

    /// All entries.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (SlotRef, Entry)> {
        let slot_refs =
            (0..BUCKETS).flat_map(|bucket| (0..SLOTS).map(move |slot| SlotRef { bucket, slot }));
        slot_refs.filter_map(|slot_ref| {
            Some((
                slot_ref,
                self.buckets[slot_ref.bucket].entry(slot_ref.slot)?,
            ))
        })
    }

    /// All items with their [positions](KeyBuckets::position).
    pub(crate) fn positions(&self) -> impl Iterator<Item = (u64, ItemRef)> {
        self.entries().map(|(SlotRef { bucket, .. }, entry)| {
            let tag = entry.tag;
            let home = if entry.is_displaced {
                other(bucket, tag)
            } else {
                bucket
            };
            (KeyBuckets { tag, home }.position(), entry.item)
        })
    }

    /// The item in one of the slots, which a random number selects, if there is one.
    pub(crate) fn item_in_slot(&self, random: u64) -> Option<ItemRef> {
        let slot = random as usize % (BUCKETS * SLOTS);
        let entry = self.buckets[slot / SLOTS].entry(slot % SLOTS)?;
        Some(entry.item)
    }
}

#[inline(always)]
fn find_in(
    bucket: &Bucket,
    at: usize,
    key_buckets: KeyBuckets,
    matches: &mut impl FnMut(ItemRef) -> bool,
) -> Option<(SlotRef, ItemRef)> {
    let mut mask = bucket.find(Scalar::new(), key_buckets);
    while mask != 0 {
        let slot = mask.trailing_zeros() as usize;
        mask &= mask - 1;
        // Another item may have taken the slot since; `matches` then rejects it.
        if let Some(entry) = bucket.entry(slot)
            && matches(entry.item)
        {
            return Some((SlotRef { bucket: at, slot }, entry.item));
        }
    }
    None
}

/// A segment whose lock is held.
#[derive(Debug)]
pub(crate) struct LockedSegment<'s> {
    segment: &'s Segment,
    state: MutexGuard<'s, SegmentState>,
}

impl<'s> LockedSegment<'s> {
    pub(crate) fn segment(&self) -> &'s Segment {
        self.segment
    }

    /// The number of entries.
    pub(super) fn entries(&self) -> usize {
        self.state.entries
    }

    /// Replaces an item by another item of the same key.
    pub(crate) fn replace(&self, slot_ref: SlotRef, item: ItemRef) {
        let bucket = &self.segment.buckets[slot_ref.bucket];
        if let Some(old) = bucket.entry(slot_ref.slot) {
            bucket.put(slot_ref.slot, Entry { item, ..old });
        }
    }

    /// Adds an item whose key is not in the segment. `false`: the segment is full, and nothing has
    /// changed.
    #[must_use]
    pub(crate) fn insert(&mut self, key_buckets: KeyBuckets, item: ItemRef) -> bool {
        let free = self.free_slot_for(key_buckets);
        if let Some(slot_ref) = free {
            self.fill(slot_ref, key_buckets, item);
        }
        free.is_some()
    }

    /// Finds or makes a free slot for an item whose key is not in the segment. The caller fills it
    /// at once. `None`: the segment is full, and nothing has changed.
    pub(crate) fn free_slot_for(&self, key_buckets: KeyBuckets) -> Option<SlotRef> {
        let (home, second) = (key_buckets.home, key_buckets.second());
        let at = |bucket| move |slot| SlotRef { bucket, slot };
        self.free_slot_in(home)
            .map(at(home))
            .or_else(|| self.free_slot_in(second).map(at(second)))
            .or_else(|| self.displace_one(home).map(at(home)))
            .or_else(|| self.displace_one(second).map(at(second)))
    }

    /// Adds an item in its [free slot](LockedSegment::free_slot_for).
    pub(crate) fn fill(&mut self, slot_ref: SlotRef, key_buckets: KeyBuckets, item: ItemRef) {
        let entry = Entry {
            tag: key_buckets.tag,
            item,
            is_displaced: slot_ref.bucket != key_buckets.home,
        };
        if entry.is_displaced {
            self.put_displaced(slot_ref, entry);
        } else {
            self.segment.buckets[slot_ref.bucket].put(slot_ref.slot, entry);
        }
        self.state.entries += 1;
    }

    /// Removes an item.
    pub(crate) fn remove(&mut self, slot_ref: SlotRef) {
        let bucket = &self.segment.buckets[slot_ref.bucket];
        let Some(old) = bucket.entry(slot_ref.slot) else {
            return;
        };
        bucket.clear(slot_ref.slot);
        if old.is_displaced {
            self.segment.buckets[other(slot_ref.bucket, old.tag)].remove_overflow(old.tag);
        }
        self.state.entries -= 1;
    }

    /// The items in the home bucket.
    pub(crate) fn residents(
        &self,
        key_buckets: KeyBuckets,
    ) -> impl Iterator<Item = (SlotRef, ItemRef)> {
        let bucket = key_buckets.home;
        (0..SLOTS).filter_map(move |slot| {
            let entry = self.segment.buckets[bucket].entry(slot)?;
            Some((SlotRef { bucket, slot }, entry.item))
        })
    }

    /// Marks the segment as replaced: writers that wait for the lock then look for its successors.
    pub(super) fn retire(mut self) {
        self.state.retired = true;
    }

    fn free_slot_in(&self, bucket: usize) -> Option<usize> {
        self.segment.buckets[bucket].free_slot()
    }

    /// Writes an entry to its second bucket, then counts it at home.
    fn put_displaced(&self, slot_ref: SlotRef, entry: Entry) {
        let buckets = &self.segment.buckets;
        buckets[slot_ref.bucket].put(slot_ref.slot, entry);
        buckets[other(slot_ref.bucket, entry.tag)].add_overflow(entry.tag);
    }

    /// Makes room in a full bucket by displacing an item to its second bucket. Items that are
    /// displaced already stay: a reader that has checked the home bucket and comes to the second
    /// one would miss an item that moves back home in between.
    pub(super) fn displace_one(&self, bucket: usize) -> Option<usize> {
        let buckets = &self.segment.buckets;
        (0..SLOTS).find(|&slot| {
            let Some(entry) = buckets[bucket]
                .entry(slot)
                .filter(|entry| !entry.is_displaced)
            else {
                return false;
            };
            let second = other(bucket, entry.tag);
            let Some(free) = self.free_slot_in(second) else {
                return false;
            };
            let slot_ref = SlotRef {
                bucket: second,
                slot: free,
            };
            self.put_displaced(
                slot_ref,
                Entry {
                    is_displaced: true,
                    ..entry
                },
            );
            buckets[bucket].clear(slot);
            true
        })
    }
}
