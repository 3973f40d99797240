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
pub(crate) struct Spot {
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

    /// Looks for an item by its place: `is_it` tells by the item itself. The first slot that `is_it` takes.
    #[inline(always)]
    pub(crate) fn find(
        &self,
        place: Place,
        mut is_it: impl FnMut(ItemRef) -> bool,
    ) -> Option<(Spot, ItemRef)> {
        let home = &self.buckets[place.home];
        if let Some(found) = find_in(home, place.home, place, &mut is_it) {
            return Some(found);
        }
        if !home.may_be_away(place.tag) {
            return None;
        }
        let second = place.second();
        find_in(&self.buckets[second], second, place, &mut is_it)
    }

    /// Locks the segment, unless it was split.
    pub(super) fn lock(&self) -> Option<Locked<'_>> {
        let state = unpoisoned(self.state.lock());
        (!state.retired).then_some(Locked {
            segment: self,
            state,
        })
    }

    /// All entries.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (Spot, Entry)> {
        let spots =
            (0..BUCKETS).flat_map(|bucket| (0..SLOTS).map(move |slot| Spot { bucket, slot }));
        spots.filter_map(|spot| Some((spot, self.buckets[spot.bucket].entry(spot.slot)?)))
    }
}

#[inline(always)]
fn find_in(
    bucket: &Bucket,
    at: usize,
    place: Place,
    is_it: &mut impl FnMut(ItemRef) -> bool,
) -> Option<(Spot, ItemRef)> {
    let mut mask = bucket.find(Scalar::new(), place);
    while mask != 0 {
        let slot = mask.trailing_zeros() as usize;
        mask &= mask - 1;
        // The slot may have changed hands meanwhile: then the item is another one, and `is_it` says so.
        if let Some(entry) = bucket.entry(slot)
            && is_it(entry.item)
        {
            return Some((Spot { bucket: at, slot }, entry.item));
        }
    }
    None
}

/// A segment whose lock is held.
#[derive(Debug)]
pub(crate) struct Locked<'s> {
    segment: &'s Segment,
    state: MutexGuard<'s, State>,
}

impl<'s> Locked<'s> {
    pub(crate) fn segment(&self) -> &'s Segment {
        self.segment
    }

    /// How many there are.
    pub(super) fn entries(&self) -> usize {
        self.state.entries
    }

    /// Replaces an item by another one of the same key.
    pub(crate) fn replace(&self, spot: Spot, item: ItemRef) {
        let bucket = &self.segment.buckets[spot.bucket];
        if let Some(old) = bucket.entry(spot.slot) {
            bucket.put(spot.slot, Entry { item, ..old });
        }
    }

    /// Adds an item whose key is not here. `false`: there is no room, and nothing has changed.
    #[must_use]
    pub(crate) fn insert(&mut self, place: Place, item: ItemRef) -> bool {
        let free = self.free_spot(place);
        if let Some(spot) = free {
            self.fill(spot, place, item);
        }
        free.is_some()
    }

    /// A free slot for an item whose key is not here, to be filled at once. `None`: there is no room, and nothing has changed.
    pub(crate) fn free_spot(&self, place: Place) -> Option<Spot> {
        let (home, second) = (place.home, place.second());
        let at = |bucket| move |slot| Spot { bucket, slot };
        self.room(home)
            .map(at(home))
            .or_else(|| self.room(second).map(at(second)))
            .or_else(|| self.send_one_away(home).map(at(home)))
            .or_else(|| self.send_one_away(second).map(at(second)))
    }

    /// Adds an item at its [free spot](Locked::free_spot).
    pub(crate) fn fill(&mut self, spot: Spot, place: Place, item: ItemRef) {
        let entry = Entry {
            tag: place.tag,
            item,
            is_away: spot.bucket != place.home,
        };
        match entry.is_away {
            true => self.put_away(spot, entry),
            false => self.segment.buckets[spot.bucket].put(spot.slot, entry),
        }
        self.state.entries += 1;
    }

    /// Removes an item.
    pub(crate) fn remove(&mut self, spot: Spot) {
        let bucket = &self.segment.buckets[spot.bucket];
        let Some(old) = bucket.entry(spot.slot) else {
            return;
        };
        bucket.clear(spot.slot);
        if old.is_away {
            self.segment.buckets[other(spot.bucket, old.tag)].uncount_away(old.tag);
        }
        self.state.entries -= 1;
    }

    /// An item of a home bucket, for whom it is too full.
    pub(crate) fn residents(&self, place: Place) -> impl Iterator<Item = (Spot, ItemRef)> {
        let bucket = place.home;
        (0..SLOTS).filter_map(move |slot| {
            let entry = self.segment.buckets[bucket].entry(slot)?;
            Some((Spot { bucket, slot }, entry.item))
        })
    }

    /// Marks the segment as replaced: writers that wait for the lock look for its successors.
    pub(super) fn retire(mut self) {
        self.state.retired = true;
    }

    fn room(&self, bucket: usize) -> Option<usize> {
        self.segment.buckets[bucket].free_slot()
    }

    /// Writes an entry to its second bucket, and then counts it at home.
    fn put_away(&self, spot: Spot, entry: Entry) {
        let buckets = &self.segment.buckets;
        buckets[spot.bucket].put(spot.slot, entry);
        buckets[other(spot.bucket, entry.tag)].count_away(entry.tag);
    }

    /// Makes room in a full bucket: one that is at home there goes to its second bucket. Guests stay: a move back home could
    /// pass a reader by, who looked there before and looks into the second bucket after it.
    pub(super) fn send_one_away(&self, bucket: usize) -> Option<usize> {
        let buckets = &self.segment.buckets;
        (0..SLOTS).find(|&slot| {
            let Some(entry) = buckets[bucket].entry(slot).filter(|entry| !entry.is_away) else {
                return false;
            };
            let second = other(bucket, entry.tag);
            let Some(room) = self.room(second) else {
                return false;
            };
            let spot = Spot {
                bucket: second,
                slot: room,
            };
            self.put_away(
                spot,
                Entry {
                    is_away: true,
                    ..entry
                },
            );
            buckets[bucket].clear(slot);
            true
        })
    }
}
