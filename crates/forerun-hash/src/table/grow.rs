//! Growth: replacing full segments by larger ones, and rebuilding whole tables.
//!
//! ```text
//!   a full segment     | prefix 01, n buckets |  -->  | prefix 01, 1.5 n |           while it is small
//!                                                -->  | 010, .75 n | 011, .75 n |    beyond 16 MiB
//! ```
//!
//! The writer that finds a segment full fills its successors while holding the lock, and then
//! replaces the directory. Readers continue in the old segment, which does not change. Other
//! writers wait for the lock, find the segment retired, and go to the successors. A table therefore
//! grows one segment at a time: no thread waits for the whole table, and only one segment exists
//! twice.

use super::directory::Directory;
use super::place::selector;
use super::segment::{LockedSegment, Segment};
use super::{Error, HashTable};
use crossbeam_epoch::{Guard, Owned};
use forerun_core::Pages;
use forerun_core::sync::PoisonError;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Load factor of a table that holds as many entries as it was created for. It is below the maximum
/// because segments fill unevenly.
const PLANNED_LOAD: f64 = 0.95;

/// If a segment with a load below this is full, its keys share too few buckets.
const CROWDED_LOAD: f64 = 0.125;

/// The size in buckets beyond which a segment is split: 16 MiB in tables of up to about half a GiB,
/// 128 MiB in tables of up to about half a TiB, and otherwise 1 GiB. Few segments keep the
/// directory in L1; many segments make each of them quick to copy.
fn len_max(depth: u32) -> u64 {
    match depth {
        0..6 => (16 << 20) / 64,
        6..12 => (128 << 20) / 64,
        // A larger segment's buckets would share bits of the hash with its prefix.
        _ => 1 << 24,
    }
}

/// Segments of equal size for a table of `capacity` entries.
pub(super) fn empty_segments(capacity: u64, pages: Pages) -> Result<Vec<Arc<Segment>>, Error> {
    let len = |depth: u32| {
        let entries = capacity as f64 / f64::from(depth).exp2();
        // Add four standard deviations of a segment's share, so that no segment has to grow.
        let slots = entries / PLANNED_LOAD + 4.0 * if depth == 0 { 0.0 } else { entries.sqrt() };
        (slots / 4.0).ceil() as u64
    };
    let depth = (0..32)
        .find(|&depth| len(depth) <= len_max(depth))
        .unwrap_or(32);
    let numbers = 0..1u64 << depth;
    let prefixes: Vec<u64> = numbers.map(|number| number.rotate_right(depth)).collect();
    Segment::empty(&prefixes, depth, len(depth), pages)
}

/// Segments with `len` buckets in total to replace a full one.
fn successors(old: &Segment, len: u64, pages: Pages) -> Result<Vec<Arc<Segment>>, Error> {
    let depth = old.depth;
    if len <= len_max(depth) {
        Segment::empty(&[old.prefix], depth, len, pages)
    } else {
        let halves = [old.prefix, old.prefix | 1 << (63 - depth)];
        Segment::empty(&halves, depth + 1, len.div_ceil(2), pages)
    }
}

/// Copies all entries of some segments into new ones, which have equal depth and are ordered by
/// prefix. Fails with a hash that does not fit.
fn fill(new: &[Arc<Segment>], old: &[LockedSegment<'_>]) -> Result<(), u64> {
    // No other thread can reach the new segments, so their locks are free and none is retired.
    let mut segments: Vec<LockedSegment<'_>> =
        new.iter().filter_map(|segment| segment.lock()).collect();
    let depth = new[0].depth;
    let number = |selector: u64| selector.checked_shr(64 - depth).unwrap_or(0);
    let first = number(new[0].prefix);
    let mut full = None;
    for old in old {
        old.for_each(|hash, value| {
            let segment = &mut segments[(number(selector(hash)) - first) as usize];
            match segment.free_slot_for(hash) {
                Some(free_slot) => segment.put(free_slot, hash, value),
                None => full = full.or(Some(hash)),
            }
        });
    }
    full.map_or(Ok(()), Err)
}

impl HashTable {
    /// Replaces a segment in which `hash` does not fit by larger ones.
    pub(super) fn grow(
        &self,
        locked: LockedSegment<'_>,
        hash: u64,
        guard: &Guard,
    ) -> Result<(), Error> {
        let mut len = locked.segment.geometry.len;
        let old = vec![locked];
        loop {
            let old_segment = old[0].segment;
            if (old_segment.entries() as f64) < (len * 4) as f64 * CROWDED_LOAD {
                return Err(Error::Crowded {
                    key: self.permutation.key(hash),
                });
            }
            len += len.div_ceil(2);
            let new = successors(old_segment, len, self.pages)?;
            if fill(&new, &old).is_ok() {
                self.exchange(old, |directory| directory.with(old_segment, &new), guard);
                return Ok(());
            }
        }
    }

    /// Reserves memory for `additional` more entries. If the table has to be copied, writers wait
    /// for that; readers do not.
    ///
    /// # Errors
    /// [`Error::Memory`], [`Error::TooLarge`]. The table is then unchanged.
    pub fn reserve(&self, additional: usize) -> Result<(), Error> {
        let capacity = self.len().saturating_add(additional);
        if capacity as f64 <= self.slots() as f64 * PLANNED_LOAD {
            return Ok(());
        }
        self.rebuild(capacity)
    }

    /// Shrinks the table to the size that its entries need. Writers wait while the table is copied;
    /// readers do not.
    ///
    /// ```
    /// use forerun_hash::HashTable;
    ///
    /// let table = HashTable::with_capacity(1_000_000)?;
    /// table.insert(1, 10)?;
    /// table.shrink_to_fit()?;
    /// assert!(table.memory_bytes() < 20_000);
    /// assert_eq!(table.get(1), Some(10));
    /// # Ok::<(), forerun_hash::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Memory`] if there is no memory for the copy. The table is then unchanged.
    pub fn shrink_to_fit(&self) -> Result<(), Error> {
        self.rebuild(0)
    }

    /// Copies the table into segments of equal size, for at least `capacity` entries.
    fn rebuild(&self, capacity: usize) -> Result<(), Error> {
        let guard = self.pin_epoch();
        let old = self.lock_all(&guard);
        let entries: u64 = old.iter().map(|locked| locked.segment.entries()).sum();
        let mut capacity = entries.max(capacity as u64);
        loop {
            let new = empty_segments(capacity, self.pages)?;
            let Err(hash) = fill(&new, &old) else {
                self.exchange(old, |_| Directory::new(&new), &guard);
                return Ok(());
            };
            if (entries as f64) < capacity as f64 * CROWDED_LOAD {
                return Err(Error::Crowded {
                    key: self.permutation.key(hash),
                });
            }
            capacity += capacity.div_ceil(8);
        }
    }

    /// Locks every segment: nothing is written until the locks are dropped.
    pub(super) fn lock_all<'g>(&self, guard: &'g Guard) -> Vec<LockedSegment<'g>> {
        loop {
            // Lock in the order of the prefixes, as every caller does that locks more than one
            // segment.
            let segments = self.directory(guard).segments();
            if let Some(all) = segments.map(|segment| segment.lock()).collect() {
                return all;
            }
        }
    }

    /// Replaces the directory, and retires the segments that the new one does not contain.
    fn exchange(
        &self,
        retired: Vec<LockedSegment<'_>>,
        make: impl FnOnce(&Directory) -> Directory,
        guard: &Guard,
    ) {
        let _exchange = self.exchange.lock().unwrap_or_else(PoisonError::into_inner);
        let new = Owned::new(make(self.directory(guard)));
        // Release: publishes the new directory. Acquire: the old one, which is freed below, was
        // published by whoever stored it.
        let old = self.directory.swap(new, Ordering::AcqRel, guard);
        for locked in retired {
            locked.retire();
        }
        // SAFETY: `old` has just been taken out of the table by the only thread that can do so (the
        // mutex is held). No later reader gets it, earlier readers are pinned, and no other thread
        // defers its destruction. It was made by Owned::new or Atomic::new.
        unsafe { guard.defer_destroy(old) };
    }
}
