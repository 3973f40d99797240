//! Where segments lie: pieces of one mapping, cut off its front and used again.

#![allow(unsafe_code, reason = "segments are made in mapped memory")]

use super::segment::Segment;
use crate::budget::Budget;
#[cfg(not(loom))]
use crate::{budget::Purpose, sync::unpoisoned};
#[cfg(not(loom))]
use forerun_core::{Pages, Region, sync::Mutex};
use std::ptr::NonNull;
use std::sync::Arc;

/// A segment that nobody else has.
#[derive(Debug)]
pub(crate) struct OwnedSegment(NonNull<Segment>);

// SAFETY: it is owned as a Box would be; Segment is Send.
unsafe impl Send for OwnedSegment {}

impl OwnedSegment {
    pub(super) fn as_ptr(&self) -> *mut Segment {
        self.0.as_ptr()
    }

    /// The segment that a directory no longer names.
    ///
    /// # Safety
    /// It came from [`SegmentMemory::allocate`], and no directory that is reachable names it.
    pub(super) unsafe fn from_ptr(segment: *mut Segment) -> Option<OwnedSegment> {
        NonNull::new(segment).map(OwnedSegment)
    }
}

impl std::ops::Deref for OwnedSegment {
    type Target = Segment;

    fn deref(&self) -> &Segment {
        // SAFETY: `allocate` made the segment there, and it stays until it is given to `release`, by value.
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

/// What is free.
#[cfg(not(loom))]
#[derive(Debug, Default)]
struct Pool {
    /// Segments that were given back.
    free: Vec<OwnedSegment>,
    /// Segments cut off so far.
    cut: usize,
}

#[cfg(not(loom))]
impl SegmentMemory {
    /// Room for `len_bytes` of segments at most; they cost nothing until they are made.
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

    /// An empty segment, if it is within the limit.
    pub(super) fn allocate(&self, depth: u32) -> Option<OwnedSegment> {
        if !self.budget.try_charge(Purpose::Index, size_of::<Segment>()) {
            return None;
        }
        let place = {
            let mut pool = unpoisoned(self.pool.lock());
            match pool.free.pop() {
                Some(segment) => Some(segment.0),
                None => self.cut(&mut pool),
            }
        };
        let Some(place) = place else {
            self.budget.uncharge(Purpose::Index, size_of::<Segment>());
            return None;
        };
        // SAFETY: the place is that of a segment, aligned and within the region, and nobody else's: it was cut off just now, or
        // given back by value and dropped.
        unsafe { place.write(Segment::new(depth)) };
        Some(OwnedSegment(place))
    }

    fn cut(&self, pool: &mut Pool) -> Option<NonNull<Segment>> {
        let offset = pool.cut.checked_mul(size_of::<Segment>())?;
        if offset.checked_add(size_of::<Segment>())? > self.region.len() {
            return None;
        }
        pool.cut += 1;
        // SAFETY: the offset is within the region, as was just checked.
        NonNull::new(unsafe { self.region.as_ptr().add(offset) }.cast())
    }

    /// Takes a segment back, which nobody reads any more.
    pub(crate) fn release(&self, segment: OwnedSegment) {
        // SAFETY: `allocate` made it, and it is given back by value: dropped once, and made anew before it is used again.
        unsafe { std::ptr::drop_in_place(segment.as_ptr()) };
        unpoisoned(self.pool.lock()).free.push(segment);
        self.budget.uncharge(Purpose::Index, size_of::<Segment>());
    }
}

/// Loom's atomics are no plain bytes: models have their segments boxed.
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
        // SAFETY: `allocate` leaked it from a box, and it is given back by value.
        drop(unsafe { Box::from_raw(segment.as_ptr()) });
    }
}
