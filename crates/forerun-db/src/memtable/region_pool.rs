//! The memory of memtables that were dropped, kept for the next ones.
//!
//! ```text
//!   a memtable is dropped ──► pool │ region of "users" │ region of the store's keyspace │
//!                                        │                  oldest first, up to `max_bytes`
//!   the next one of "users" ◄────────────┘
//! ```
//!
//! The first touch of a page is a fault, in which the kernel clears the page and, in a virtual
//! machine, the host may have to find memory for it. A writer that fills a new region waits for all
//! of them. A region that was in use before has its pages. It still contains the bytes of the last
//! table, but an arena hands out uninitialized memory anyway, because a range may be returned and
//! allocated again.

use std::collections::VecDeque;
use std::sync::Arc;

use forerun_core::sync::{Mutex, MutexGuard, PoisonError};
use forerun_core::{Pages, Region};

use crate::KEYSPACES_MAX;

/// The maximum number of regions in a pool. However little memory a region has, it takes address
/// space for a whole memtable, and systems limit the number of mappings.
const REGIONS_MAX: usize = KEYSPACES_MAX;

/// Regions without a memtable.
pub(crate) struct RegionPool {
    /// The maximum memory in the pool.
    max_bytes: usize,
    /// Oldest first.
    regions: Mutex<VecDeque<Pooled>>,
}

/// A region and what it is for.
pub(super) struct Pooled {
    pub(super) region: Region,
    /// Bytes from its start that may have pages.
    pub(super) touched_bytes: usize,
    pub(super) pages: Pages,
    pub(super) keyspace: u32,
}

/// Where a memtable's region comes from, and returns to.
pub(crate) struct RegionSource {
    pub(crate) pool: Arc<RegionPool>,
    /// Only memtables of the same keyspace share regions: they are probably filled as far as the
    /// last one.
    pub(crate) keyspace: u32,
}

impl Pooled {
    /// The memory of its pages.
    fn bytes(&self) -> usize {
        self.touched_bytes
            .next_multiple_of(self.region.backing().page_bytes())
    }
}

impl RegionPool {
    pub(crate) fn new(max_bytes: usize) -> RegionPool {
        RegionPool {
            max_bytes,
            regions: Mutex::default(),
        }
    }

    fn regions(&self) -> MutexGuard<'_, VecDeque<Pooled>> {
        // Each change is one call of the queue, so a thread that panics leaves it consistent.
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The latest region of this keyspace with this length and these pages.
    pub(super) fn take(&self, keyspace: u32, len_bytes: usize, pages: Pages) -> Option<Pooled> {
        let mut regions = self.regions();
        let fits = |of: &Pooled| {
            of.keyspace == keyspace && of.region.len() == len_bytes && of.pages == pages
        };
        let index = regions.iter().rposition(fits)?;
        regions.remove(index)
    }

    /// Keeps a region, and frees those for which there is no space.
    pub(super) fn put(&self, pooled: Pooled) {
        // A test that reads what its table did not write gets something that it will notice.
        #[cfg(debug_assertions)]
        // SAFETY: the pool owns the region, and `touched_bytes` is at most its length.
        unsafe {
            pooled
                .region
                .as_ptr()
                .write_bytes(0xa5, pooled.touched_bytes);
        }
        let mut regions = self.regions();
        let oldest = if regions.len() < REGIONS_MAX {
            None
        } else {
            regions.pop_front()
        };
        regions.push_back(pooled);
        drop(regions);
        drop(oldest);
        self.shrink_to(self.max_bytes);
    }

    /// The memory in the pool.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.regions().iter().map(Pooled::bytes).sum()
    }

    /// Frees the oldest regions until the others have at most this much memory.
    pub(crate) fn shrink_to(&self, max_bytes: usize) {
        let mut regions = self.regions();
        let mut bytes: usize = regions.iter().map(Pooled::bytes).sum();
        let mut freed = Vec::new();
        while bytes > max_bytes
            && let Some(oldest) = regions.pop_front()
        {
            bytes -= oldest.bytes();
            freed.push(oldest);
        }
        // Unmapping takes time, so it happens without the lock.
        drop(regions);
        drop(freed);
    }
}

#[cfg(test)]
mod tests {
    use forerun_core::region::page_bytes;

    use super::*;

    fn pooled(keyspace: u32, touched_bytes: usize) -> Pooled {
        Pooled {
            region: Region::new(1 << 16, Pages::Small).unwrap(),
            touched_bytes,
            pages: Pages::Small,
            keyspace,
        }
    }

    #[test]
    fn a_region_is_taken_by_its_keyspace_for_the_same_length_and_pages() {
        let page_bytes = page_bytes();
        let pool = RegionPool::new(1 << 20);
        pool.put(pooled(1, 100));
        pool.put(pooled(2, page_bytes + 200));
        pool.put(pooled(1, 300));
        assert!(pool.take(3, 1 << 16, Pages::Small).is_none());
        assert!(pool.take(1, 1 << 15, Pages::Small).is_none());
        assert!(pool.take(1, 1 << 16, Pages::Huge).is_none());
        assert_eq!(pool.bytes(), 4 * page_bytes);
        let touched = || {
            let taken = pool.take(1, 1 << 16, Pages::Small);
            taken.map(|pooled| pooled.touched_bytes)
        };
        assert_eq!(
            [touched(), touched(), touched()],
            [Some(300), Some(100), None]
        );
        assert_eq!(pool.bytes(), 2 * page_bytes);
    }

    #[test]
    fn a_region_counts_whole_pages_and_there_are_not_too_many() {
        let page_bytes = page_bytes();
        let pool = RegionPool::new(10 * page_bytes);
        for keyspace in 0..12 {
            pool.put(pooled(keyspace, 1));
        }
        assert_eq!(pool.regions().len(), 10);
        assert_eq!(pool.bytes(), 10 * page_bytes);
        let pool = RegionPool::new(usize::MAX);
        for keyspace in 0..2 * KEYSPACES_MAX as u32 {
            pool.put(pooled(keyspace, 1));
        }
        assert_eq!(pool.regions().len(), KEYSPACES_MAX);
    }

    #[test]
    fn the_oldest_regions_are_freed_where_there_is_no_space_for_all() {
        let pages = |count: usize| count * page_bytes();
        let pool = RegionPool::new(pages(5));
        for count in [1, 2, 3] {
            pool.put(pooled(1, pages(count)));
        }
        assert_eq!(pool.bytes(), pages(5));
        pool.put(pooled(1, pages(5) + 1));
        assert_eq!(pool.bytes(), 0);
        pool.put(pooled(1, pages(4)));
        pool.shrink_to(pages(4) - 1);
        assert_eq!(pool.bytes(), 0);
    }
}
