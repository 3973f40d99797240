//! A segment: the buckets of all hashes that begin alike, and the writers' lock.
//!
//! ```text
//!   | bucket 0 | bucket 1 | …  256 of 64 bytes … | lock: entries, retired | depth |
//! ```
//!
//! Readers come through the directory and take no lock. A writer holds the lock for one change; one that finds the segment
//! retired, split in two, starts again from the directory. A segment is 16 KiB, about 1,500 items, so that a split is a matter
//! of microseconds and holds up one part in a thousand of the writers.

use super::bucket::{Bucket, Entry, ItemRef, SLOTS};
use super::place::{BUCKETS, Place, other};
use crate::sync::{Mutex, MutexGuard, unpoisoned};
use forerun_core::arch::Scalar;

/// What the lock guards beside the buckets.
#[derive(Debug, Default)]
struct State {
    entries: usize,
    retired: bool,
}

/// A segment.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct Segment {
    buckets: [Bucket; BUCKETS],
    /// How many of the hashes' first bits are alike.
    depth: u32,
    state: Mutex<State>,
}

/// Where an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotRef {
    bucket: usize,
    slot: usize,
}

impl Segment {
    /// An empty one.
    pub(super) fn new(depth: u32) -> Segment {
        Segment {
            buckets: std::array::from_fn(|_| Bucket::default()),
            depth,
            state: Mutex::new(State::default()),
        }
    }

    pub(crate) fn depth(&self) -> u32 {
        self.depth
    }

    /// The first hash behind all those that may be here, by one that may; `None` if this is the last segment.
    pub(crate) fn next_after(&self, hash: u64) -> Option<u64> {
        let wide = 1u64.checked_shl(64 - self.depth)?;
        (hash & !(wide - 1)).checked_add(wide)
    }

    #[inline(always)]
    pub(crate) fn buckets(&self) -> &[Bucket; BUCKETS] {
        &self.buckets
    }

    /// Looks for an item by its place: `matches` tells by the item itself. The first slot that `matches` takes.
    #[inline(always)]
    pub(crate) fn find(
        &self,
        place: Place,
        mut matches: impl FnMut(ItemRef) -> bool,
    ) -> Option<(SlotRef, ItemRef)> {
        let home = &self.buckets[place.home];
        if let Some(found) = find_in(home, place.home, place, &mut matches) {
            return Some(found);
        }
        if !home.has_overflow(place.tag) {
            return None;
        }
        let second = place.second();
        find_in(&self.buckets[second], second, place, &mut matches)
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
}

#[inline(always)]
fn find_in(
    bucket: &Bucket,
    at: usize,
    place: Place,
    matches: &mut impl FnMut(ItemRef) -> bool,
) -> Option<(SlotRef, ItemRef)> {
    let mut mask = bucket.find(Scalar::new(), place);
    while mask != 0 {
        let slot = mask.trailing_zeros() as usize;
        mask &= mask - 1;
        // The slot may have changed hands meanwhile: then the item is another one, and `matches` says so.
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
    state: MutexGuard<'s, State>,
}

impl<'s> LockedSegment<'s> {
    pub(crate) fn segment(&self) -> &'s Segment {
        self.segment
    }

    /// How many there are.
    pub(super) fn entries(&self) -> usize {
        self.state.entries
    }

    /// Replaces an item by another one of the same key.
    pub(crate) fn replace(&self, slot_ref: SlotRef, item: ItemRef) {
        let bucket = &self.segment.buckets[slot_ref.bucket];
        if let Some(old) = bucket.entry(slot_ref.slot) {
            bucket.put(slot_ref.slot, Entry { item, ..old });
        }
    }

    /// Adds an item whose key is not here. `false`: there is no room, and nothing has changed.
    #[must_use]
    pub(crate) fn insert(&mut self, place: Place, item: ItemRef) -> bool {
        let free = self.free_slot_for(place);
        if let Some(slot_ref) = free {
            self.fill(slot_ref, place, item);
        }
        free.is_some()
    }

    /// A free slot for an item whose key is not here, to be filled at once. `None`: there is no room, and nothing has changed.
    pub(crate) fn free_slot_for(&self, place: Place) -> Option<SlotRef> {
        let (home, second) = (place.home, place.second());
        let at = |bucket| move |slot| SlotRef { bucket, slot };
        self.free_slot_in(home)
            .map(at(home))
            .or_else(|| self.free_slot_in(second).map(at(second)))
            .or_else(|| self.displace_one(home).map(at(home)))
            .or_else(|| self.displace_one(second).map(at(second)))
    }

    /// Adds an item at its [free slot](LockedSegment::free_slot_for).
    pub(crate) fn fill(&mut self, slot_ref: SlotRef, place: Place, item: ItemRef) {
        let entry = Entry {
            tag: place.tag,
            item,
            is_displaced: slot_ref.bucket != place.home,
        };
        match entry.is_displaced {
            true => self.put_displaced(slot_ref, entry),
            false => self.segment.buckets[slot_ref.bucket].put(slot_ref.slot, entry),
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

    /// An item of a home bucket, for whom it is too full.
    pub(crate) fn residents(&self, place: Place) -> impl Iterator<Item = (SlotRef, ItemRef)> {
        let bucket = place.home;
        (0..SLOTS).filter_map(move |slot| {
            let entry = self.segment.buckets[bucket].entry(slot)?;
            Some((SlotRef { bucket, slot }, entry.item))
        })
    }

    /// Marks the segment as replaced: writers that wait for the lock look for its successors.
    pub(super) fn retire(mut self) {
        self.state.retired = true;
    }

    fn free_slot_in(&self, bucket: usize) -> Option<usize> {
        self.segment.buckets[bucket].free_slot()
    }

    /// Writes an entry to its second bucket, and then counts it at home.
    fn put_displaced(&self, slot_ref: SlotRef, entry: Entry) {
        let buckets = &self.segment.buckets;
        buckets[slot_ref.bucket].put(slot_ref.slot, entry);
        buckets[other(slot_ref.bucket, entry.tag)].add_overflow(entry.tag);
    }

    /// Makes room in a full bucket: one that is at home there goes to its second bucket. Guests stay: a move back home could
    /// pass a reader by, who looked there before and looks into the second bucket after it.
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
