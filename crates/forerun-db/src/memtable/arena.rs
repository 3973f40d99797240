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

use forerun_core::sync::{Mutex, MutexGuard, PoisonError};
use forerun_core::{Backing, CachePadded, Pages, Region, RegionError};

use super::node::ALIGN_BYTES;
use super::region_pool::{Pooled, RegionSource};

/// A request that does not fit below the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full {
    pub(super) needed_bytes: usize,
    pub(super) used_bytes: usize,
}

/// The bit of the counter that marks the arena as closed: it allocates nothing.
const CLOSED: usize = 1 << (usize::BITS - 1);

pub(super) struct Arena {
    /// The start of the region.
    base: NonNull<u8>,
    limit_bytes: usize,
    /// There is one until the arena is dropped.
    region: Option<Region>,
    pages: Pages,
    source: Option<RegionSource>,
    /// Bytes from the start of the region that may have pages although they are not in use: an
    /// earlier arena used them, or they were given back. It is locked while pages are returned.
    touched_bytes: Mutex<usize>,
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
            touched_bytes: Mutex::new(touched_bytes),
            used: CachePadded::new(AtomicUsize::new(0)),
        })
    }

    /// Refuses all further requests, and returns the memory behind the part in use to the system,
    /// except the rest of a page.
    pub(super) fn close(&self) {
        let mut touched_bytes = self.lock_touched();
        // Acquire: as for allocation, because this takes all that is left.
        let used_bytes = self.used.fetch_or(CLOSED, Ordering::Acquire) & !CLOSED;
        // SAFETY: the arena is closed for good.
        unsafe { self.release_behind(used_bytes, &mut touched_bytes) };
    }

    /// Returns memory after the part in use to the system, except `kept_bytes` and the rest of a
    /// page. Meanwhile every request is refused.
    pub(super) fn trim(&self, kept_bytes: usize) {
        let mut touched_bytes = self.lock_touched();
        // Acquire: as above.
        let before = self.used.fetch_or(CLOSED, Ordering::Acquire);
        let used_bytes = before & !CLOSED;
        let kept_bytes = used_bytes.saturating_add(kept_bytes);
        // Rounded down, unless a part of the page is in use.
        let page_bytes = self.backing().page_bytes();
        let kept_bytes = used_bytes.max(kept_bytes - kept_bytes % page_bytes);
        // SAFETY: the arena is closed. Only a holder of the lock, which is held, opens it again.
        unsafe { self.release_behind(kept_bytes, &mut touched_bytes) };
        if before & CLOSED == 0 {
            // Release: whoever is given a range sees it without pages, and not its pages go later.
            self.used.fetch_and(!CLOSED, Ordering::Release);
        }
    }

    /// Returns the pages behind the one in which the first `kept_bytes` end.
    ///
    /// # Safety
    /// The arena must be closed until this returns, and at most `kept_bytes` be in use.
    unsafe fn release_behind(&self, kept_bytes: usize, touched_bytes: &mut usize) {
        let page_bytes = self.backing().page_bytes();
        let kept_bytes = kept_bytes.next_multiple_of(page_bytes);
        let end = touched_bytes
            .next_multiple_of(page_bytes)
            .min(self.limit_bytes);
        if let Some(region) = &self.region
            && kept_bytes < end
            // SAFETY: the range lies in the region. No live allocation overlaps it, and by the
            // contract the arena hands out none meanwhile.
            && unsafe { region.release(kept_bytes, end - kept_bytes) }
        {
            *touched_bytes = kept_bytes;
        }
    }

    fn lock_touched(&self) -> MutexGuard<'_, usize> {
        // Nothing panics while the lock is held.
        let locked = self.touched_bytes.lock();
        locked.unwrap_or_else(PoisonError::into_inner)
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
        let fits = |used| {
            end = end_of(used & !CLOSED);
            (used & CLOSED == 0 && end <= self.limit_bytes).then_some(end)
        };
        let start = self
            .used
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, fits)
            .map_err(|used| Full {
                needed_bytes: end - (used & !CLOSED),
                used_bytes: used & !CLOSED,
            })?;
        let len_bytes = end - start;
        // SAFETY: the offset lies within the region.
        Ok((unsafe { self.base.add(start) }, len_bytes))
    }

    /// Takes back a range that nobody refers to. Only the latest range can be reclaimed; any other
    /// stays used. The memory behind a large one goes back to the system: the next one may be in
    /// another arena, while this one counts as if it had none. Returns whether the range was
    /// reclaimed.
    pub(super) fn give_back(&self, place: NonNull<u8>, len_bytes: usize) -> bool {
        let start = self.offset(place);
        self.release_given_back(start, start + len_bytes);
        self.used
            .compare_exchange(
                start + len_bytes,
                start,
                Ordering::Release,
                Ordering::Relaxed,
            )
            .is_ok()
    }

    /// Returns the whole pages of a range that is about to be given back, if it is the latest.
    fn release_given_back(&self, start: usize, end: usize) {
        // Relaxed: whether it is the latest is decided later.
        if self.used.load(Ordering::Relaxed) != end {
            return;
        }
        let mut touched_bytes = self.lock_touched();
        // Pages at both ends stay, and perhaps all.
        *touched_bytes = end.max(*touched_bytes);
        let page_bytes = self.backing().page_bytes();
        let (first, last) = (start.next_multiple_of(page_bytes), end - end % page_bytes);
        if let Some(region) = &self.region
            && first < last
        {
            // SAFETY: the range is the caller's, who does not use it any more.
            unsafe { region.release(first, last - first) };
        }
    }

    pub(super) fn used_bytes(&self) -> usize {
        // Relaxed: a statistic.
        self.used.load(Ordering::Relaxed) & !CLOSED
    }

    /// Bytes that may have pages, without the rest of the last page.
    pub(super) fn touched_bytes(&self) -> usize {
        self.used_bytes().max(*self.lock_touched())
    }

    /// Bytes beyond the part in use that are not zero, as those of a page that was never written
    /// are, and of one that was returned to the system.
    #[cfg(test)]
    pub(super) fn written_beyond_use(&self) -> usize {
        let used_bytes = self.used_bytes();
        let rest = self.base.as_ptr().wrapping_add(used_bytes);
        // SAFETY: the range lies in the region, whose bytes are initialized from the start. Tests
        // call this while nobody allocates.
        let rest = unsafe { std::slice::from_raw_parts(rest, self.limit_bytes - used_bytes) };
        rest.iter().filter(|byte| **byte != 0).count()
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
        let touched_bytes = self.touched_bytes();
        // Memory that an arena cannot return would count as if it could.
        if let (Some(source), Some(region)) = (&self.source, self.region.take())
            && region.is_releasable()
        {
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
// SAFETY: as above; the rest is atomic or locked, or does not change.
unsafe impl Sync for Arena {}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_os = "linux")]
    use {super::super::region_pool::RegionPool, std::sync::Arc};

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

    #[cfg(target_os = "linux")]
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
        assert_eq!(pool.bytes(), forerun_core::region::page_bytes());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_large_range_that_is_given_back_returns_its_pages_and_counts_as_touched() {
        let pool = Arc::new(RegionPool::new(usize::MAX));
        let source = RegionSource {
            pool: Arc::clone(&pool),
            keyspace: 7,
        };
        let arena = Arena::new(1 << 20, Pages::Small, Some(source)).unwrap();
        arena.allocate(64).unwrap();
        let (len_bytes, page_bytes) = (1 << 19, forerun_core::region::page_bytes());
        let place = arena.allocate(len_bytes).unwrap();
        // SAFETY: the range was just allocated.
        unsafe { place.write_bytes(3, len_bytes) };
        arena.give_back(place, len_bytes);
        assert_eq!(arena.used_bytes(), 64);
        assert!(arena.written_beyond_use() < 2 * page_bytes);
        assert_eq!(arena.touched_bytes(), 64 + len_bytes);
        arena.close();
        assert!(arena.written_beyond_use() < page_bytes);
        assert_eq!(arena.touched_bytes(), page_bytes);
        drop(arena);
        assert_eq!(pool.bytes(), page_bytes);
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
