//! Larger segments, and whole tables made anew.
//!
//! ```text
//!   a full segment     | prefix 01, n buckets |  -->  | prefix 01, 1.5 n |            while it is small
//!                                                -->  | 010, .75 n | 011, .75 n |     beyond 4 MiB
//! ```
//!
//! The writer that found the segment full fills its successors while it holds the lock, and then
//! exchanges the directory. Readers go on in the old segment, which stays as it is; other writers wait
//! for the lock, find the segment retired and go to the successors. So a table grows a few MiB at a
//! time: nobody waits for all of it, and only one segment is there twice.

use super::directory::Directory;
use super::place::selector;
use super::segment::{Locked, Segment};
use super::{Error, HashTable};
use crossbeam_epoch::{Guard, Owned};
use forerun_core::sync::PoisonError;
use forerun_core::{Pages, epoch};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The load that a table made for a number of entries has when they are in. Below the largest, since
/// no two segments get equally many.
const PLANNED_LOAD: f64 = 0.95;

/// A segment whose load is below this is not full because of its load.
const CROWDED_LOAD: f64 = 0.125;

/// The size beyond which a segment is split, in buckets. Few segments make the directory small enough
/// for the nearest cache, many make each of them short to copy.
fn max_len(depth: u32) -> u64 {
    match depth {
        0..6 => (16 << 20) / 64,
        6..12 => (128 << 20) / 64,
        // Beyond this a segment's buckets would share bits of the hash with its prefix.
        _ => 1 << 24,
    }
}

/// Segments for a table of `capacity` entries, equally large.
pub(super) fn empty_segments(capacity: u64, pages: Pages) -> Result<Vec<Arc<Segment>>, Error> {
    let len = |depth: u32| {
        let entries = capacity as f64 / f64::from(depth).exp2();
        // Four standard deviations of a segment's share, so that none of them has to grow.
        let slots = entries / PLANNED_LOAD + 4.0 * if depth == 0 { 0.0 } else { entries.sqrt() };
        (slots / 4.0).ceil() as u64
    };
    let depth = (0..32)
        .find(|&depth| len(depth) <= max_len(depth))
        .unwrap_or(32);
    let numbers = 0..1u64 << depth;
    let prefixes: Vec<u64> = numbers.map(|number| number.rotate_right(depth)).collect();
    Segment::empty(&prefixes, depth, len(depth), pages)
}

/// Segments to take the place of a full one: `len` buckets in all.
fn successors(old: &Segment, len: u64, pages: Pages) -> Result<Vec<Arc<Segment>>, Error> {
    let depth = old.depth;
    if len <= max_len(depth) {
        Segment::empty(&[old.prefix], depth, len, pages)
    } else {
        let halves = [old.prefix, old.prefix | 1 << (63 - depth)];
        Segment::empty(&halves, depth + 1, len.div_ceil(2), pages)
    }
}

/// Copies all entries of some segments into new ones, which are equally deep and in the order of
/// their prefixes. Tells the hash for which there is no room.
fn fill(new: &[Arc<Segment>], old: &[Locked<'_>]) -> Result<(), u64> {
    // Nobody else knows the new segments: the locks are free, and none of them is retired.
    let mut segments: Vec<Locked<'_>> = new.iter().filter_map(|segment| segment.lock()).collect();
    let depth = new[0].depth;
    let number = |selector: u64| selector.checked_shr(64 - depth).unwrap_or(0);
    let first = number(new[0].prefix);
    let mut full = None;
    for old in old {
        old.for_each(|hash, value| {
            let segment = &mut segments[(number(selector(hash)) - first) as usize];
            match segment.make_room(hash) {
                Some(room) => segment.put(room, hash, value),
                None => full = full.or(Some(hash)),
            }
        });
    }
    full.map_or(Ok(()), Err)
}

impl HashTable {
    /// Replaces a segment that has no room for `hash` by larger ones.
    pub(super) fn grow(&self, locked: Locked<'_>, hash: u64, guard: &Guard) -> Result<(), Error> {
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

    /// Makes room for `additional` more entries at once, as far as it is not there. Writers wait while
    /// the table is copied; readers do not.
    ///
    /// # Errors
    /// [`Error::Memory`], [`Error::TooLarge`]; the table is then as it was.
    pub fn reserve(&self, additional: usize) -> Result<(), Error> {
        let capacity = self.len().saturating_add(additional);
        if capacity as f64 <= self.slots() as f64 * PLANNED_LOAD {
            return Ok(());
        }
        self.rebuild(capacity)
    }

    /// Gives back the memory that the present entries do not need. Writers wait while the table is
    /// copied; readers do not.
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
    /// [`Error::Memory`] if there is none for the copy; the table is then as it was.
    pub fn shrink_to_fit(&self) -> Result<(), Error> {
        self.rebuild(0)
    }

    /// Copies the table into one of equal segments, with room for `capacity` entries at least.
    fn rebuild(&self, capacity: usize) -> Result<(), Error> {
        let guard = epoch::pin();
        let old = self.lock_all(&guard);
        let entries: u64 = old.iter().map(|locked| locked.segment.entries()).sum();
        let mut room = entries.max(capacity as u64);
        loop {
            let new = empty_segments(room, self.pages)?;
            let Err(hash) = fill(&new, &old) else {
                self.exchange(old, |_| Directory::new(&new), &guard);
                return Ok(());
            };
            if (entries as f64) < room as f64 * CROWDED_LOAD {
                return Err(Error::Crowded {
                    key: self.permutation.key(hash),
                });
            }
            room += room.div_ceil(8);
        }
    }

    /// Every segment, locked: nothing is written until they are dropped.
    pub(super) fn lock_all<'g>(&self, guard: &'g Guard) -> Vec<Locked<'g>> {
        loop {
            // In the order of the prefixes, as all do that lock more than one.
            let segments = self.directory(guard).segments();
            if let Some(all) = segments.map(|segment| segment.lock()).collect() {
                return all;
            }
        }
    }

    /// Puts a new directory in the place of the present one, and retires segments it does not name.
    fn exchange(
        &self,
        retired: Vec<Locked<'_>>,
        make: impl FnOnce(&Directory) -> Directory,
        guard: &Guard,
    ) {
        let _exchange = self.exchange.lock().unwrap_or_else(PoisonError::into_inner);
        let new = Owned::new(make(self.directory(guard)));
        // Acquire and release: readers of the new directory find what it names; and what is freed
        // below was made by whoever stored it.
        let old = self.directory.swap(new, Ordering::AcqRel, guard);
        for locked in retired {
            locked.retire();
        }
        // SAFETY: `old` has just been taken out of the table, by the only thread that could (the mutex
        // is held), so no later reader gets it and nobody else defers its destruction; earlier ones
        // are pinned. It was made by Owned::new or Atomic::new.
        unsafe { guard.defer_destroy(old) };
    }
}
