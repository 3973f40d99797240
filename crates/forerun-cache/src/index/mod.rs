//! The index: from a key's hash to the item, in one line mostly.
//!
//! ```text
//!   hash ─ top bits ─▶ directory │ 00 │ 01 │ 10 │ 11 │      a word an entry
//!                                   \   /     |    |
//!                      segments      0*       10   11        256 buckets each, and a lock
//!   hash ─ tag, bucket ─▶ │ slot │ slot │ … 8 to a line │ ─▶ item in a block
//! ```
//!
//! A full segment is replaced by two, one bit of the hash deeper (extendible hashing, Fagin et al. 1979): the entries of the
//! directory that named it are swung one by one, and the directory is doubled, by copy, when the segment was as deep as it
//! is. Readers go on in what they began with, which stays as it was until their pins are gone.

#![allow(
    unsafe_code,
    reason = "the directory and its segments are reached by atomic pointers"
)]

pub(crate) mod bucket;
#[cfg(all(loom, test))]
mod loom_tests;
pub(crate) mod memory;
pub(crate) mod place;
pub(crate) mod segment;
#[cfg(all(test, not(loom)))]
mod tests;

use crate::budget::{Budget, Purpose};
use crate::epoch::Pinned;
use crate::sync::{AtomicPtr, Mutex, Ordering, unpoisoned};
use bucket::{ItemRef, SLOTS};
use forerun_core::{Pages, RegionError};
use memory::{OwnedSegment, SegmentMemory};
use place::{BUCKETS, DEPTH_MAX, Place};
use segment::{LockedSegment, Segment};
use std::sync::Arc;

/// Which segment holds a hash.
#[derive(Debug)]
pub(crate) struct Directory {
    depth: u32,
    /// One for each value of the top `depth` bits. Never null.
    entries: Box<[AtomicPtr<Segment>]>,
}

impl Directory {
    fn memory_bytes(depth: u32) -> usize {
        size_of::<Directory>() + (size_of::<AtomicPtr<Segment>>() << depth)
    }

    /// The segment of a hash. It may have been split since.
    #[inline(always)]
    pub(crate) fn segment(&self, hash: u64) -> &Segment {
        // SAFETY: entries name segments that `allocate` made; one that is replaced is given back after the pins of all who could
        // come upon it, and the directory is reached under such a pin only, whose lifetime it has.
        unsafe { &*self.entry(hash) }
    }

    #[inline(always)]
    fn entry(&self, hash: u64) -> *mut Segment {
        // Acquire: the segment was filled before it was named.
        self.entries[self.index(hash)].load(Ordering::Acquire)
    }

    #[inline(always)]
    fn index(&self, hash: u64) -> usize {
        // Shifted twice: by 64 at once is no shift, where the depth is 0.
        (hash >> 1 >> (63 - self.depth)) as usize
    }

    /// The entries that name the segment of a hash, of that depth.
    fn range(&self, hash: u64, depth: u32) -> std::ops::Range<usize> {
        let wide = 1 << (self.depth - depth);
        let first = self.index(hash) / wide * wide;
        first..first + wide
    }
}

/// What was taken out of the index, for readers who may still be in it.
#[derive(Debug)]
pub(crate) enum Replaced {
    Segment(OwnedSegment),
    Directory(Box<Directory>),
}

/// Why a segment was not split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SplitError {
    /// There is no memory for the new ones within the limit.
    NoMemory,
    /// The hashes are too much alike, or it was split just before.
    Crowded,
}

/// The index.
#[derive(Debug)]
pub(crate) struct Index {
    directory: AtomicPtr<Directory>,
    memory: SegmentMemory,
    budget: Arc<Budget>,
    /// Held while the directory changes; inside it, the lock of the segment that is split.
    growing: Mutex<()>,
}

// SAFETY: the pointers are to a directory and segments that the index owns, which are Send and Sync.
unsafe impl Send for Index {}
// SAFETY: as above; what is reached through a shared index is only ever shared.
unsafe impl Sync for Index {}

impl Index {
    /// An index of one segment, within a budget whose limit may be raised to `max_bytes`.
    pub(crate) fn new(
        pages: Pages,
        budget: &Arc<Budget>,
        max_bytes: usize,
    ) -> Result<Index, RegionError> {
        // More than half of the memory in the index would be slots without items.
        let reserve_bytes = max_bytes / 2 + 4 * size_of::<Segment>();
        let memory = SegmentMemory::new(reserve_bytes, pages, Arc::clone(budget))?;
        let refused = RegionError::OutOfMemory {
            len_bytes: size_of::<Segment>(),
        };
        let first = memory.allocate(0).ok_or(refused)?;
        let directory = Box::new(Directory {
            depth: 0,
            entries: [AtomicPtr::new(first.as_ptr())].into(),
        });
        Ok(Index {
            directory: AtomicPtr::new(Box::into_raw(directory)),
            memory,
            budget: Arc::clone(budget),
            growing: Mutex::new(()),
        })
    }

    /// The directory of this moment, for a reader.
    #[inline(always)]
    pub(crate) fn directory<'p>(&self, _: &'p Pinned<'_>) -> &'p Directory {
        // Acquire: it was filled before it was published.
        let directory = self.directory.load(Ordering::Acquire);
        // SAFETY: it is never null; a directory that is replaced is dropped after the pins of all who could have loaded it, and
        // the reader has a pin.
        unsafe { &*directory }
    }

    /// Locks the segment of a hash.
    pub(crate) fn lock<'p>(&self, pinned: &'p Pinned<'_>, hash: u64) -> LockedSegment<'p> {
        loop {
            // A segment that was split is named no more before its lock is free.
            if let Some(locked) = self.directory(pinned).segment(hash).lock() {
                return locked;
            }
        }
    }

    /// How deep the segment of a hash is: each split makes it one deeper.
    pub(crate) fn depth(&self, pinned: &Pinned<'_>, hash: u64) -> u32 {
        self.directory(pinned).segment(hash).depth()
    }

    /// Splits the segment of a hash in two. `hash_of` gives an item's hash, `prefetch` asks for what it reads.
    pub(crate) fn split(
        &self,
        pinned: &Pinned<'_>,
        hash: u64,
        prefetch: impl Fn(ItemRef),
        hash_of: impl Fn(ItemRef) -> u64,
        mut replaced: impl FnMut(Replaced),
    ) -> Result<(), SplitError> {
        let _growing = unpoisoned(self.growing.lock());
        let locked = self.lock(pinned, hash);
        let old = locked.segment();
        let depth = old.depth();
        // Half empty and yet no room: another split was faster, or the hashes are much alike.
        if depth == DEPTH_MAX || locked.entries() < BUCKETS * SLOTS / 2 {
            return Err(SplitError::Crowded);
        }
        let halves = self.halves(old, prefetch, hash_of)?;
        let directory = self.directory(pinned);
        if depth == directory.depth {
            let bytes = Directory::memory_bytes(depth + 1);
            if !self.budget.try_charge(Purpose::Index, bytes) {
                halves
                    .into_iter()
                    .for_each(|half| self.memory.release(half));
                return Err(SplitError::NoMemory);
            }
            let entries = directory.entries.iter().flat_map(|entry| {
                // Relaxed: entries change under the lock of growth, which is held.
                let segment = entry.load(Ordering::Relaxed);
                [AtomicPtr::new(segment), AtomicPtr::new(segment)]
            });
            let doubled = Box::new(Directory {
                depth: depth + 1,
                entries: entries.collect(),
            });
            doubled.name(hash, depth, &halves);
            // Release: whoever loads it sees its entries, and the segments that they name.
            self.directory
                .store(Box::into_raw(doubled), Ordering::Release);
            // SAFETY: the pointer came from Box::into_raw, here or in `new`, and is out of the index now.
            replaced(Replaced::Directory(unsafe {
                Box::from_raw(std::ptr::from_ref(directory).cast_mut())
            }));
        } else {
            directory.name(hash, depth, &halves);
        }
        let old = std::ptr::from_ref(old).cast_mut();
        locked.retire();
        // SAFETY: `allocate` made it, and the entries that named it name others.
        if let Some(old) = unsafe { OwnedSegment::from_ptr(old) } {
            replaced(Replaced::Segment(old));
        }
        Ok(())
    }

    /// Two segments with the entries of one, by the next bit of their hashes.
    fn halves(
        &self,
        old: &Segment,
        prefetch: impl Fn(ItemRef),
        hash_of: impl Fn(ItemRef) -> u64,
    ) -> Result<[OwnedSegment; 2], SplitError> {
        /// Items asked for before the first of them is read.
        const AHEAD: usize = 32;
        let depth = old.depth();
        let first = self
            .memory
            .allocate(depth + 1)
            .ok_or(SplitError::NoMemory)?;
        let Some(second) = self.memory.allocate(depth + 1) else {
            self.memory.release(first);
            return Err(SplitError::NoMemory);
        };
        let items: Vec<ItemRef> = old.entries().map(|(_, entry)| entry.item).collect();
        let placed = {
            // Nobody else knows them: the locks are free.
            let mut locked = [&first, &second].map(|half| half.lock());
            let mut coming = items.iter().skip(AHEAD);
            items.iter().take(AHEAD).for_each(|&item| prefetch(item));
            items.iter().all(|&item| {
                coming.next().into_iter().for_each(|&item| prefetch(item));
                let hash = hash_of(item);
                let half = (hash >> (63 - depth)) as usize & 1;
                let locked = locked[half].as_mut();
                locked.is_some_and(|locked| locked.insert(Place::new(hash), item))
            })
        };
        if placed {
            Ok([first, second])
        } else {
            self.memory.release(first);
            self.memory.release(second);
            Err(SplitError::Crowded)
        }
    }

    /// Takes back what no reader is in any more.
    pub(crate) fn release(&self, replaced: Replaced) {
        match replaced {
            Replaced::Segment(segment) => self.memory.release(segment),
            Replaced::Directory(directory) => {
                let bytes = Directory::memory_bytes(directory.depth);
                // The first directory came with the cache.
                if directory.depth > 0 {
                    self.budget.uncharge(Purpose::Index, bytes);
                }
            }
        }
    }
}

impl Directory {
    /// Names two segments where one of `depth` was.
    fn name(&self, hash: u64, depth: u32, halves: &[OwnedSegment; 2]) {
        let range = self.range(hash, depth);
        let middle = range.start + range.len() / 2;
        for at in range {
            let half = &halves[usize::from(at >= middle)];
            // Release: whoever finds the segment here finds its entries.
            self.entries[at].store(half.as_ptr(), Ordering::Release);
        }
    }
}

impl Drop for Index {
    fn drop(&mut self) {
        // Relaxed: nobody else is left.
        let directory = self.directory.load(Ordering::Relaxed);
        // SAFETY: it came from Box::into_raw, and nobody has it any more. Its segments lie in the mapping, and own nothing.
        let directory = unsafe { Box::from_raw(directory) };
        #[cfg(loom)]
        {
            let mut segments: Vec<_> = directory
                .entries
                .iter()
                .map(|entry| entry.load(Ordering::Relaxed))
                .collect();
            segments.dedup();
            for segment in segments {
                // SAFETY: the directory is gone from the index, which is dropped.
                let own = unsafe { OwnedSegment::from_ptr(segment) };
                own.into_iter().for_each(|own| self.memory.release(own));
            }
        }
        drop(directory);
    }
}
