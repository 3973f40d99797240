//! For targets without `mmap`: every region comes from the heap.

use super::{Pages, Region};
use std::ptr::NonNull;

pub(super) fn region(_len_bytes: usize, _pages: Pages) -> Option<Region> {
    None
}

pub(super) fn page_bytes() -> usize {
    super::ALIGN_BYTES_MIN
}

/// # Safety
/// No requirements: there is no mapping to unmap.
pub(super) unsafe fn unmap(_base: NonNull<u8>, _len_bytes: usize) {}

/// Whether [`release`] has an effect.
pub(super) const CAN_RELEASE: bool = false;

/// # Safety
/// No requirements: there is no mapping to release.
pub(super) unsafe fn release(_start: *mut u8, _len_bytes: usize) -> bool {
    false
}

/// # Safety
/// No requirements: there is no mapping to populate.
pub(super) unsafe fn populate(_start: *mut u8, _len_bytes: usize) {}
