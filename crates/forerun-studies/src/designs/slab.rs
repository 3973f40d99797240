//! An array of buckets in mapped memory, with a power of two as the stride.
//!
//! ```text
//!   base                stride_bytes          2 stride_bytes
//!   ├── bucket 0 ── pad ┼── bucket 1 ── pad ──┼── …               base is at a page's start
//! ```
//!
//! With such a stride, a bucket of at most one line is inside one line, and a larger one starts at
//! the beginning of a line. If the bucket's size is not a power of two, this costs padding: a
//! quarter of the memory for four entries of `u32` and `u64`.

use forerun_core::arch::prefetch_read_l2;
use forerun_core::{CACHE_LINE_BYTES, Pages, Region, RegionError};
use std::marker::PhantomData;

/// A type for which zeroed bytes are a value, and which needs no drop.
///
/// # Safety
/// Zero bytes are a valid value, and the alignment of the type is at most a page.
pub(super) unsafe trait Zeroed: Send + Sync {}

/// The requested number of zeroed buckets.
#[derive(Debug)]
pub(super) struct Slab<T> {
    region: Region,
    len: u32,
    owns: PhantomData<T>,
}

impl<T: Zeroed> Slab<T> {
    /// Bytes from one bucket to the next.
    pub(super) const STRIDE_BYTES: usize = size_of::<T>().next_power_of_two();
    /// Cache lines that a bucket spans.
    pub(super) const LINES: usize = size_of::<T>().div_ceil(CACHE_LINE_BYTES);

    /// `len` zeroed buckets, at least one.
    pub(super) fn new(len: u32) -> Result<Slab<T>, RegionError> {
        let len = len.max(1);
        let len_bytes = (len as usize).saturating_mul(Self::STRIDE_BYTES);
        Ok(Slab {
            region: Region::new(len_bytes, Pages::Huge)?,
            len,
            owns: PhantomData,
        })
    }

    #[inline(always)]
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.region.len()
    }

    /// The first bucket's address.
    #[inline(always)]
    pub(super) fn as_ptr(&self) -> *const T {
        self.region.as_ptr().cast()
    }

    /// Bucket `index`.
    ///
    /// # Panics
    /// If there is no such bucket.
    #[inline(always)]
    pub(super) fn get(&self, index: u32) -> &T {
        assert!(index < self.len);
        // SAFETY: the index was just checked.
        unsafe { &*self.ptr(index) }
    }

    /// Bucket `index`, mutably.
    ///
    /// # Panics
    /// If there is no such bucket.
    #[inline(always)]
    pub(super) fn get_mut(&mut self, index: u32) -> &mut T {
        assert!(index < self.len);
        // SAFETY: the index was just checked, and `self` is borrowed alone for as long as the
        // bucket is.
        unsafe { &mut *self.ptr(index) }
    }

    /// The address of bucket `index`.
    ///
    /// # Safety
    /// `index` must be below `len`. The memory at the address may then be used as a `T` under the
    /// borrow of `self`: the region has len x STRIDE_BYTES bytes, starts at a page, was zeroed,
    /// which is a valid `T`, and is written only as `T`s.
    #[inline(always)]
    unsafe fn ptr(&self, index: u32) -> *mut T {
        let at = index as usize * Self::STRIDE_BYTES;
        // SAFETY: by the caller's index, the bucket is inside the region.
        unsafe { self.region.as_ptr().add(at).cast() }
    }

    /// Prefetches every line of bucket `index`. Does nothing useful if there is no such bucket.
    #[inline(always)]
    pub(super) fn prefetch(&self, index: u32) {
        let at = index as usize * Self::STRIDE_BYTES;
        for line in 0..Self::LINES {
            // A prefetch of any address is harmless, so the index needs no check.
            prefetch_read_l2(
                self.region
                    .as_ptr()
                    .wrapping_add(at + line * CACHE_LINE_BYTES),
            );
        }
    }
}
