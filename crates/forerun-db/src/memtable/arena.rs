//! The memory of one memtable: a single region, allocated from front to back and freed as a whole.
//!
//! ```text
//!   region   | node | node | node | …            never touched, so never backed by memory |
//!            0                     used                                               limit
//! ```
//!
//! The region is mapped at its full limit when the table is created; the kernel backs each page
//! when it is first written. An address therefore stays valid for the table's life, one counter is
//! the whole allocator, usage is known to the byte, and the limit cannot be exceeded. Memtables of
//! a store pass their regions on (`region_pool.rs`).

use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

use forerun_core::region::{self, HUGE_PAGE_BYTES};
use forerun_core::{Backing, CachePadded, Pages, Region, RegionError};

use super::node::ALIGN_BYTES;
use super::region_pool::{Pooled, RegionSource};

/// A request that does not fit below the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full {
    pub(super) needed_bytes: usize,
    pub(super) used_bytes: usize,
}

/// The bit of the counter that says that the arena gives out nothing more. With it, every request
/// is beyond the limit.
const CLOSED: usize = 1 << (usize::BITS - 1);

pub(super) struct Arena {
    /// The start of the region.
    base: NonNull<u8>,
    limit_bytes: usize,
    /// There is one until the arena is dropped.
    region: Option<Region>,
    pages: Pages,
    source: Option<RegionSource>,
    /// Bytes from the start of the region that had pages when the arena got it.
    // Relaxed: only `close` changes it, once.
    touched_before: AtomicUsize,
    /// Bytes in use, and `CLOSED`.
    // The counter hands out disjoint ranges, which needs atomicity only: the link that leads to a
    // range publishes what was written there. But a range may be given back and allocated again,
    // and then the earlier owner's writes must come before the later one's. So giving back releases
    // and allocating acquires.
    used: CachePadded<AtomicUsize>,
}

impl Arena {
    /// An empty arena. With a source, its region comes from the pool, if that has one, and returns
    /// there.
    pub(super) fn new(
        limit_bytes: usize,
        pages: Pages,
        source: Option<RegionSource>,
    ) -> Result<Self, RegionError> {
        let pooled = source
            .as_ref()
            .and_then(|source| source.pool.take(source.keyspace, limit_bytes, pages));
        let (region, touched_bytes) = match pooled {
            Some(pooled) => (pooled.region, pooled.touched_bytes),
            None => (Region::new(limit_bytes, pages)?, 0),
        };
        Ok(Arena {
            // SAFETY: a region's base is not null.
            base: unsafe { NonNull::new_unchecked(region.as_ptr()) },
            limit_bytes,
            region: Some(region),
            pages,
            source,
            touched_before: AtomicUsize::new(touched_bytes),
            used: CachePadded::new(AtomicUsize::new(0)),
        })
    }

    /// Refuses all further requests, and returns the memory behind the part in use to the system,
    /// except the rest of a page.
    pub(super) fn close(&self) {
        // Acquire: as for allocation, because this takes all that is left.
        let used_bytes = self.used.fetch_or(CLOSED, Ordering::Acquire) & !CLOSED;
        let page_bytes = match self.backing() {
            Backing::AdvisedHuge => HUGE_PAGE_BYTES,
            _ => region::page_bytes(),
        };
        let used_bytes = used_bytes.next_multiple_of(page_bytes);
        let touched_bytes = self.touched_before.load(Ordering::Relaxed);
        if let Some(region) = &self.region
            && used_bytes < touched_bytes
        {
            // SAFETY: the range lies in the region. Nobody was given it, or who was has given it
            // back, and nobody will be given it.
            unsafe { region.release(used_bytes, touched_bytes - used_bytes) };
            self.touched_before.store(used_bytes, Ordering::Relaxed);
        }
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
            (end <= self.limit_bytes).then_some(end)
        };
        let start = self
            .used
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, fits)
            .map_err(|used_bytes| Full {
                needed_bytes: end - used_bytes,
                used_bytes: used_bytes & !CLOSED,
            })?;
        let len_bytes = end - start;
        // SAFETY: the offset lies within the region.
        Ok((unsafe { self.base.add(start) }, len_bytes))
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
        self.used.load(Ordering::Relaxed) & !CLOSED
    }

    /// Bytes that may have pages, without the rest of the last page.
    #[cfg(test)]
    pub(super) fn touched_bytes(&self) -> usize {
        self.used_bytes()
            .max(self.touched_before.load(Ordering::Relaxed))
    }

    /// The place at an offset, which must lie within the region.
    #[inline(always)]
    pub(super) fn at(&self, offset: usize) -> NonNull<u8> {
        debug_assert!(offset < self.limit_bytes);
        // SAFETY: the base is not null, and no object wraps around the address space.
        unsafe { NonNull::new_unchecked(self.base.as_ptr().wrapping_add(offset)) }
    }

    /// How far a place lies from the start of the arena.
    pub(super) fn offset(&self, place: NonNull<u8>) -> usize {
        place.as_ptr().addr() - self.base.as_ptr().addr()
    }

    pub(super) fn limit_bytes(&self) -> usize {
        self.limit_bytes
    }

    /// The kind of memory that the system granted.
    pub(super) fn backing(&self) -> Backing {
        self.region
            .as_ref()
            .map_or(Backing::default(), Region::backing)
    }

    /// Whether a range lies entirely within the allocated part.
    pub(super) fn contains(&self, start: *const u8, len_bytes: usize) -> bool {
        start
            .addr()
            .checked_sub(self.base.as_ptr().addr())
            .and_then(|offset| offset.checked_add(len_bytes))
            .is_some_and(|end| end <= self.used_bytes())
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let touched_bytes = self.used_bytes().max(*self.touched_before.get_mut());
        if let (Some(source), Some(region)) = (&self.source, self.region.take()) {
            source.pool.put(Pooled {
                region,
                touched_bytes,
                pages: self.pages,
                keyspace: source.keyspace,
            });
        }
    }
}

// SAFETY: the arena owns the region that `base` points into, and a region is not tied to a thread.
unsafe impl Send for Arena {}
// SAFETY: as above; the rest is atomic, or does not change.
unsafe impl Sync for Arena {}

#[cfg(test)]
mod tests {
    use super::super::region_pool::RegionPool;
    use super::*;
    use std::sync::Arc;

    #[test]
    fn ranges_are_disjoint_up_to_the_limit_and_the_refused_one_takes_nothing() {
        let arena = Arena::new(4096, Pages::Small, None).unwrap();
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
    fn a_closed_arena_gives_out_nothing_and_keeps_what_it_gave() {
        let pool = Arc::new(RegionPool::new(usize::MAX));
        let arena = || {
            let source = RegionSource {
                pool: Arc::clone(&pool),
                keyspace: 7,
            };
            Arena::new(1 << 20, Pages::Small, Some(source)).unwrap()
        };
        let first = arena();
        first.allocate(1 << 20).unwrap();
        drop(first);
        assert_eq!(pool.bytes(), 1 << 20);

        let second = arena();
        assert_eq!(pool.bytes(), 0);
        let place = second.allocate(64).unwrap();
        // SAFETY: the place was just allocated.
        unsafe { place.write_bytes(3, 64) };
        second.close();
        assert_eq!(second.used_bytes(), 64);
        let refused = Full {
            needed_bytes: 8,
            used_bytes: 64,
        };
        assert_eq!(second.allocate(8), Err(refused));
        second.give_back(place, 64);
        assert_eq!(second.allocate(8), Err(refused));
        // SAFETY: the place is still ours, since a closed arena takes nothing back.
        assert_eq!(unsafe { place.add(63).read() }, 3);
        drop(second);
        assert_eq!(pool.bytes(), region::page_bytes());
    }

    #[test]
    fn only_the_latest_range_is_taken_back() {
        let arena = Arena::new(4096, Pages::Small, None).unwrap();
        let first = arena.allocate(64).unwrap();
        let second = arena.allocate(32).unwrap();
        arena.give_back(first, 64);
        assert_eq!(arena.used_bytes(), 96);
        arena.give_back(second, 32);
        assert_eq!(arena.used_bytes(), 64);
    }
}
