//! The memory of one memtable: a single region, allocated from front to back and freed as a whole.
//!
//! ```text
//!   region   | node | node | node | …            never touched, so never backed by memory |
//!            0                     used                                               limit
//! ```
//!
//! The region is mapped at its full limit when the table is created; the kernel backs each page
//! when it is first written. An address therefore stays valid for the table's life, one counter is
//! the whole allocator, usage is known to the byte, and the limit cannot be exceeded.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

use forerun_core::{CachePadded, Pages, Region, RegionError};

use super::node::ALIGN_BYTES;

/// A request that does not fit below the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full {
    pub(super) needed_bytes: usize,
    pub(super) used_bytes: usize,
}

pub(super) struct Arena {
    region: Region,
    // The counter hands out disjoint ranges, which needs atomicity only: the link that leads to a
    // range publishes what was written there. But a range may be given back and allocated again,
    // and then the earlier owner's writes must come before the later one's. So giving back releases
    // and allocating acquires.
    used: CachePadded<AtomicUsize>,
}

impl Arena {
    pub(super) fn new(limit_bytes: usize, pages: Pages) -> Result<Self, RegionError> {
        Ok(Arena {
            region: Region::new(limit_bytes, pages)?,
            used: CachePadded::new(AtomicUsize::new(0)),
        })
    }

    /// Takes `len_bytes`, a multiple of `ALIGN_BYTES`, for the caller alone.
    pub(super) fn allocate(&self, len_bytes: usize) -> Result<NonNull<u8>, Full> {
        debug_assert!(len_bytes.is_multiple_of(ALIGN_BYTES));
        self.allocate_with(|start| start.saturating_add(len_bytes))
            .map(|(place, _)| place)
    }

    /// Takes a range whose length depends on where it starts: `end_of` returns the offset of its
    /// end for the offset of its start, both multiples of `ALIGN_BYTES`. Offset 0 lies at the start
    /// of a cache line. Returns the place and the length.
    pub(super) fn allocate_with(
        &self,
        end_of: impl Fn(usize) -> usize,
    ) -> Result<(NonNull<u8>, usize), Full> {
        // The last call of `end_of` is for the start that was taken, or for the one that leaves too
        // little space.
        let mut end = 0;
        let fits = |start| {
            end = end_of(start);
            (end <= self.region.len()).then_some(end)
        };
        let start = self
            .used
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, fits)
            .map_err(|used_bytes| Full {
                needed_bytes: end - used_bytes,
                used_bytes,
            })?;
        let len_bytes = end - start;
        // The region's base is not null, and the offset lies within it.
        let place = NonNull::new(self.region.as_ptr().wrapping_add(start));
        place.map(|place| (place, len_bytes)).ok_or(Full {
            needed_bytes: len_bytes,
            used_bytes: start,
        })
    }

    /// Takes back a range that nobody refers to. Only the latest range can be reclaimed; any other
    /// stays used.
    pub(super) fn give_back(&self, place: NonNull<u8>, len_bytes: usize) {
        let start = self.offset(place);
        let _ = self.used.compare_exchange(
            start + len_bytes,
            start,
            Ordering::Release,
            Ordering::Relaxed,
        );
    }

    pub(super) fn used_bytes(&self) -> usize {
        // Relaxed: a statistic.
        self.used.load(Ordering::Relaxed)
    }

    /// The place at an offset, which must lie within the region.
    #[inline(always)]
    pub(super) fn at(&self, offset: usize) -> NonNull<u8> {
        debug_assert!(offset < self.region.len());
        // SAFETY: the region's base is not null, and no object wraps around the address space.
        unsafe { NonNull::new_unchecked(self.region.as_ptr().wrapping_add(offset)) }
    }

    /// How far a place lies from the start of the arena.
    pub(super) fn offset(&self, place: NonNull<u8>) -> usize {
        place.as_ptr().addr() - self.region.as_ptr().addr()
    }

    pub(super) fn region(&self) -> &Region {
        &self.region
    }

    /// Whether a range lies entirely within the allocated part.
    pub(super) fn contains(&self, start: *const u8, len_bytes: usize) -> bool {
        start
            .addr()
            .checked_sub(self.region.as_ptr().addr())
            .and_then(|offset| offset.checked_add(len_bytes))
            .is_some_and(|end| end <= self.used_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_disjoint_up_to_the_limit_and_the_refused_one_takes_nothing() {
        let arena = Arena::new(4096, Pages::Small).unwrap();
        let first = arena.allocate(4000).unwrap();
        assert_eq!(
            arena.allocate(104),
            Err(Full {
                needed_bytes: 104,
                used_bytes: 4000
            })
        );
        let second = arena.allocate(96).unwrap();
        assert_eq!(second.as_ptr().addr() - first.as_ptr().addr(), 4000);
        assert_eq!(arena.used_bytes(), 4096);
    }

    #[test]
    fn only_the_latest_range_is_taken_back() {
        let arena = Arena::new(4096, Pages::Small).unwrap();
        let first = arena.allocate(64).unwrap();
        let second = arena.allocate(32).unwrap();
        arena.give_back(first, 64);
        assert_eq!(arena.used_bytes(), 96);
        arena.give_back(second, 32);
        assert_eq!(arena.used_bytes(), 64);
    }
}
