//! A target without `mmap`: every region comes from the allocator.

use super::{Pages, Region};
use std::ptr::NonNull;

pub(super) fn region(_len_bytes: usize, _pages: Pages) -> Option<Region> {
    None
}

pub(super) fn page_bytes() -> usize {
    super::MIN_ALIGN_BYTES
}

/// # Safety
/// None is needed: there is no mapping to give back.
pub(super) unsafe fn unmap(_base: NonNull<u8>, _len_bytes: usize) {}

/// # Safety
/// None is needed: there is no mapping whose memory could be given back.
pub(super) unsafe fn release(_start: *mut u8, _len_bytes: usize) -> bool {
    false
}

/// # Safety
/// None is needed: there is no mapping to put memory behind.
pub(super) unsafe fn populate(_start: *mut u8, _len_bytes: usize) {}
