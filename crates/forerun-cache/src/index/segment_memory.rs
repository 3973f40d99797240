//! The memory of segments: pieces cut from the front of one mapping, and reused.

#![allow(unsafe_code, reason = "segments are made in mapped memory")]

use super::segment::Segment;
use crate::budget::Budget;
#[cfg(not(loom))]
use crate::{budget::Purpose, sync::unpoisoned};
#[cfg(not(loom))]
use forerun_core::{Pages, Region, sync::Mutex};
use std::ptr::NonNull;
use std::sync::Arc;

/// A segment with a single owner.
#[derive(Debug)]
pub(crate) struct OwnedSegment(NonNull<Segment>);

// SAFETY: it owns the segment like a Box; Segment is Send.
unsafe impl Send for OwnedSegment {}

impl OwnedSegment {
    pub(super) fn as_ptr(&self) -> *mut Segment {
        self.0.as_ptr()
    }

    /// Takes ownership of a segment that the directory no longer points to.
    ///
    /// # Safety
    /// It came from [`SegmentMemory::allocate`], and no reachable directory points to it.
    pub(super) unsafe fn from_ptr(segment: *mut Segment) -> Option<OwnedSegment> {
        NonNull::new(segment).map(OwnedSegment)
    }
}

impl std::ops::Deref for OwnedSegment {
    type Target = Segment;

    fn deref(&self) -> &Segment {
        // SAFETY: `allocate` made the segment there, and it stays until it is passed to `release`,
        // by value.
        unsafe { self.0.as_ref() }
    }
}

/// The memory of all segments.
#[derive(Debug)]
pub(crate) struct SegmentMemory {
    #[cfg(not(loom))]
    region: Region,
    #[cfg(not(loom))]
    budget: Arc<Budget>,
    #[cfg(not(loom))]
    pool: Mutex<Pool>,
}

/// Free segments.
#[cfg(not(loom))]
#[derive(Debug, Default)]
struct Pool {
    /// Segments that were released.
    free: Vec<OwnedSegment>,
    /// The number of segments cut off so far.
    cut: usize,
}

#[cfg(not(loom))]
impl SegmentMemory {
    /// Reserves address space for `len_bytes` of segments. They cost no memory until they are
    /// allocated.
    pub(super) fn new(
        len_bytes: usize,
        pages: Pages,
        budget: Arc<Budget>,
    ) -> Result<SegmentMemory, forerun_core::RegionError> {
        Ok(SegmentMemory {
            region: Region::new(len_bytes, pages)?,
            budget,
            pool: Mutex::default(),
        })
    }

    /// Allocates an empty segment if the memory limit allows it.
    pub(super) fn allocate(&self, depth: u32) -> Option<OwnedSegment> {
        if !self.budget.try_charge(Purpose::Index, size_of::<Segment>()) {
            return None;
        }
        let address = {
            let mut pool = unpoisoned(self.pool.lock());
            match pool.free.pop() {
                Some(segment) => Some(segment.0),
                None => self.cut(&mut pool),
            }
        };
        let Some(address) = address else {
            self.budget.uncharge(Purpose::Index, size_of::<Segment>());
            return None;
        };
        // SAFETY: the address is aligned and within the region, and nothing else uses it: it was
        // cut off just now, or released by value and dropped.
        unsafe { address.write(Segment::new(depth)) };
        Some(OwnedSegment(address))
    }

    fn cut(&self, pool: &mut Pool) -> Option<NonNull<Segment>> {
        let offset = pool.cut.checked_mul(size_of::<Segment>())?;
        if offset.checked_add(size_of::<Segment>())? > self.region.len() {
            return None;
        }
        pool.cut += 1;
        // SAFETY: the offset was just checked to be within the region.
        NonNull::new(unsafe { self.region.as_ptr().add(offset) }.cast())
    }

    /// Releases a segment that has no readers any more.
    pub(crate) fn release(&self, segment: OwnedSegment) {
        // SAFETY: `allocate` made it, and it is passed by value: it is dropped once and initialized
        // again before it is reused.
        unsafe { std::ptr::drop_in_place(segment.as_ptr()) };
        unpoisoned(self.pool.lock()).free.push(segment);
        self.budget.uncharge(Purpose::Index, size_of::<Segment>());
    }
}

/// Loom's atomics are not plain bytes, so models box their segments.
#[cfg(loom)]
impl SegmentMemory {
    pub(super) fn new(
        _: usize,
        _: forerun_core::Pages,
        _: Arc<Budget>,
    ) -> Result<SegmentMemory, forerun_core::RegionError> {
        Ok(SegmentMemory {})
    }

    pub(super) fn allocate(&self, depth: u32) -> Option<OwnedSegment> {
        let segment = Box::new(Segment::new(depth));
        Some(OwnedSegment(NonNull::from(Box::leak(segment))))
    }

    pub(crate) fn release(&self, segment: OwnedSegment) {
        // SAFETY: `allocate` leaked it from a box, and it is passed by value.
        drop(unsafe { Box::from_raw(segment.as_ptr()) });
    }
}
