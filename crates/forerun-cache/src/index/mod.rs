//! The index: from a key's hash to its item, usually by reading one cache line.
//!
//! ```text
//!   hash ─ top bits ─▶ directory │ 00 │ 01 │ 10 │ 11 │      one word per entry
//!                                   \   /     |    |
//!                      segments      0*       10   11        256 buckets each, and a lock
//!   hash ─ tag, bucket ─▶ │ slot │ slot │ … 8 per line │ ─▶ item in a block
//! ```
//!
//! A full segment is split into two that are one bit of the hash deeper (extendible hashing, Fagin
//! et al. 1979). The directory entries that point to it are redirected one by one; if the segment
//! is as deep as the directory, the directory is first doubled by copying it. Readers continue in
//! the segment and directory they began with, which stay unchanged until their pins are dropped.

#![allow(
    unsafe_code,
    reason = "the directory and its segments are reached by atomic pointers"
)]

pub(crate) mod item_bucket;
pub(crate) mod key_buckets;
#[cfg(all(loom, test))]
mod loom_tests;
pub(crate) mod segment;
pub(crate) mod segment_memory;
#[cfg(all(test, not(loom)))]
mod tests;

use crate::budget::{Budget, Purpose};
use crate::epoch::Pinned;
use crate::sync::{AtomicPtr, Mutex, Ordering, unpoisoned};
use forerun_core::{Pages, RegionError};
use item_bucket::{ItemRef, SLOTS};
use key_buckets::{BUCKETS, DEPTH_MAX, KeyBuckets};
use segment::{LockedSegment, Segment};
use segment_memory::{OwnedSegment, SegmentMemory};
use std::sync::Arc;

/// Maps a hash to its segment.
#[derive(Debug)]
pub(crate) struct Directory {
    depth: u32,
    /// One entry for each value of the hash's top `depth` bits. Never null.
    entries: Box<[AtomicPtr<Segment>]>,
}

impl Directory {
    fn memory_bytes(depth: u32) -> usize {
        size_of::<Directory>() + (size_of::<AtomicPtr<Segment>>() << depth)
    }

    /// The segment of a hash. It may have been split since.
    #[inline(always)]
    pub(crate) fn segment(&self, hash: u64) -> &Segment {
        // SAFETY: entries point to segments that `allocate` made. A replaced segment is released
        // only after every pin that could find it is dropped. The directory is reached only under
        // such a pin, and has its lifetime.
        unsafe { &*self.entry(hash) }
    }

    #[inline(always)]
    fn entry(&self, hash: u64) -> *mut Segment {
        // Acquire: the segment was filled before it was published.
        self.entries[self.index(hash)].load(Ordering::Acquire)
    }

    #[inline(always)]
    fn index(&self, hash: u64) -> usize {
        // Two shifts, because a single shift by 64 is invalid when the depth is 0.
        (hash >> 1 >> (63 - self.depth)) as usize
    }

    /// The entries that point to the segment of a hash, which has this depth.
    fn range(&self, hash: u64, depth: u32) -> std::ops::Range<usize> {
        let wide = 1 << (self.depth - depth);
        let first = self.index(hash) / wide * wide;
        first..first + wide
    }
}

/// A part of the index that was replaced and that readers may still use.
#[derive(Debug)]
pub(crate) enum Replaced {
    Segment(OwnedSegment),
    Directory(Box<Directory>),
}

/// Why a segment could not be split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SplitError {
    /// The memory limit does not allow the new segments.
    NoMemory,
    /// The hashes are too similar, or another thread has just split the segment.
    Crowded,
}

/// The index.
#[derive(Debug)]
pub(crate) struct Index {
    directory: AtomicPtr<Directory>,
    memory: SegmentMemory,
    budget: Arc<Budget>,
    /// Held while the directory changes. The lock of the segment that is split is taken inside it.
    growing: Mutex<()>,
}

// SAFETY: the pointers lead to a directory and segments that the index owns, which are Send and
// Sync.
unsafe impl Send for Index {}
// SAFETY: as above; a shared index gives out only shared references.
unsafe impl Sync for Index {}

impl Index {
    /// Creates an index with one segment. The budget's limit may later be raised to `max_bytes`.
    pub(crate) fn new(
        pages: Pages,
        budget: &Arc<Budget>,
        max_bytes: usize,
    ) -> Result<Index, RegionError> {
        // An index of more than half of the memory would consist of slots without items.
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

    /// The current directory, for a reader.
    #[inline(always)]
    pub(crate) fn directory<'p>(&self, _: &'p Pinned<'_>) -> &'p Directory {
        // Acquire: it was filled before it was published.
        let directory = self.directory.load(Ordering::Acquire);
        // SAFETY: it is never null. A replaced directory is dropped only after every pin that could
        // have loaded it, and the reader has a pin.
        unsafe { &*directory }
    }

    /// Locks the segment of a hash.
    pub(crate) fn lock<'p>(&self, pinned: &'p Pinned<'_>, hash: u64) -> LockedSegment<'p> {
        loop {
            // The directory stops pointing to a split segment before the segment's lock is
            // released.
            if let Some(locked) = self.directory(pinned).segment(hash).lock() {
                return locked;
            }
        }
    }

    /// The depth of a hash's segment. Each split increases it by one.
    pub(crate) fn depth(&self, pinned: &Pinned<'_>, hash: u64) -> u32 {
        self.directory(pinned).segment(hash).depth()
    }

    /// Splits the segment of a hash in two. `hash_of` returns an item's hash; `prefetch` fetches
    /// what `hash_of` reads.
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
        // The segment is half empty but has no free slot for the key: another thread has just split
        // it, or the hashes are too similar.
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
                // Relaxed: entries change only under the growth lock, which is held.
                let segment = entry.load(Ordering::Relaxed);
                [AtomicPtr::new(segment), AtomicPtr::new(segment)]
            });
            let doubled = Box::new(Directory {
                depth: depth + 1,
                entries: entries.collect(),
            });
            doubled.redirect(hash, depth, &halves);
            // Release: publishes the entries and the segments that they point to.
            self.directory
                .store(Box::into_raw(doubled), Ordering::Release);
            // SAFETY: the pointer came from Box::into_raw, here or in `new`, and has left the
            // index.
            replaced(Replaced::Directory(unsafe {
                Box::from_raw(std::ptr::from_ref(directory).cast_mut())
            }));
        } else {
            directory.redirect(hash, depth, &halves);
        }
        let old = std::ptr::from_ref(old).cast_mut();
        locked.retire();
        // SAFETY: `allocate` made it, and the entries that pointed to it now point elsewhere.
        if let Some(old) = unsafe { OwnedSegment::from_ptr(old) } {
            replaced(Replaced::Segment(old));
        }
        Ok(())
    }

    /// Distributes the entries of a segment over two new ones, by the next bit of their hashes.
    fn halves(
        &self,
        old: &Segment,
        prefetch: impl Fn(ItemRef),
        hash_of: impl Fn(ItemRef) -> u64,
    ) -> Result<[OwnedSegment; 2], SplitError> {
        /// How many items ahead to prefetch.
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
            // No other thread can reach the new segments, so their locks are free.
            let mut locked = [&first, &second].map(|half| half.lock());
            let mut upcoming = items.iter().skip(AHEAD);
            items.iter().take(AHEAD).for_each(|&item| prefetch(item));
            items.iter().all(|&item| {
                upcoming.next().into_iter().for_each(|&item| prefetch(item));
                let hash = hash_of(item);
                let half = (hash >> (63 - depth)) as usize & 1;
                let locked = locked[half].as_mut();
                locked.is_some_and(|locked| locked.insert(KeyBuckets::new(hash), item))
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

    /// Frees a replaced part that no reader uses any more.
    pub(crate) fn release(&self, replaced: Replaced) {
        match replaced {
            Replaced::Segment(segment) => self.memory.release(segment),
            Replaced::Directory(directory) => {
                let bytes = Directory::memory_bytes(directory.depth);
                // The first directory is not charged.
                if directory.depth > 0 {
                    self.budget.uncharge(Purpose::Index, bytes);
                }
            }
        }
    }
}

impl Directory {
    /// Points to two segments instead of one of `depth`.
    fn redirect(&self, hash: u64, depth: u32, halves: &[OwnedSegment; 2]) {
        let range = self.range(hash, depth);
        let middle = range.start + range.len() / 2;
        for at in range {
            let half = &halves[usize::from(at >= middle)];
            // Release: publishes the segment's entries.
            self.entries[at].store(half.as_ptr(), Ordering::Release);
        }
    }
}

impl Drop for Index {
    fn drop(&mut self) {
        // Relaxed: no other thread uses the index any more.
        let directory = self.directory.load(Ordering::Relaxed);
        // SAFETY: it came from Box::into_raw, and nothing uses it any more. Its segments lie in the
        // mapping and own nothing.
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
                // SAFETY: the directory has left the index, which is being dropped.
                let own = unsafe { OwnedSegment::from_ptr(segment) };
                own.into_iter().for_each(|own| self.memory.release(own));
            }
        }
        drop(directory);
    }
}
