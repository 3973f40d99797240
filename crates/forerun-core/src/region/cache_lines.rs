//! Zeroed memory that is read and written in cache lines.

#![allow(
    unsafe_code,
    reason = "views a region's bytes as lines: each place says why it is valid"
)]

use std::fmt;
use std::ops::{Deref, DerefMut};

use super::{HUGE_PAGE_BYTES, Pages, Region, RegionError};

/// Bytes of a [`CacheLine`], whatever the target's own lines measure.
const LINE_BYTES: usize = 64;

/// A cache line, aligned to its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct CacheLine(pub [u8; LINE_BYTES]);

/// Zeroed cache lines. At least [`HUGE_PAGE_BYTES`] of them are in huge pages, if the kernel grants
/// these; fewer are on the heap.
///
/// ```
/// use forerun_core::CacheLines;
///
/// let mut lines = CacheLines::zeroed(1000)?;
/// lines[7].0[0] = 1;
/// assert_eq!((lines.len(), lines.bytes()[7 * 64]), (1000, 1));
/// # Ok::<(), forerun_core::RegionError>(())
/// ```
pub struct CacheLines(Memory);

enum Memory {
    Heap(Box<[CacheLine]>),
    /// A region whose length is a multiple of a line's.
    Huge(Region),
}

impl CacheLines {
    /// Makes `count` lines of zeros.
    ///
    /// # Errors
    /// [`RegionError`] if that much memory is not available.
    pub fn zeroed(count: usize) -> Result<CacheLines, RegionError> {
        let len_bytes = count.saturating_mul(LINE_BYTES);
        if len_bytes >= HUGE_PAGE_BYTES {
            return Ok(CacheLines(Memory::Huge(Region::new(
                len_bytes,
                Pages::Huge,
            )?)));
        }
        let mut lines = Vec::new();
        if lines.try_reserve_exact(count).is_err() {
            return Err(RegionError::OutOfMemory { len_bytes });
        }
        lines.resize(count, CacheLine([0; LINE_BYTES]));
        Ok(CacheLines(Memory::Heap(lines.into())))
    }

    /// The memory that `count` lines take: their bytes, rounded up to whole huge pages where they
    /// are in such pages.
    pub fn memory_bytes(count: usize) -> usize {
        let len_bytes = count.saturating_mul(LINE_BYTES);
        if len_bytes >= HUGE_PAGE_BYTES {
            len_bytes
                .checked_next_multiple_of(HUGE_PAGE_BYTES)
                .unwrap_or(usize::MAX)
        } else {
            len_bytes
        }
    }

    /// All bytes of the lines.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: a line is LINE_BYTES initialised bytes without padding, so that many lines are
        // that many bytes, borrowed as long as the lines are.
        unsafe { std::slice::from_raw_parts(self.as_ptr().cast(), self.len() * LINE_BYTES) }
    }
}

impl Deref for CacheLines {
    type Target = [CacheLine];

    #[inline(always)]
    fn deref(&self) -> &[CacheLine] {
        match &self.0 {
            Memory::Heap(lines) => lines,
            // SAFETY: the region is len() initialised bytes, aligned to more than a line. It is
            // written only through `deref_mut`, which borrows it mutably.
            Memory::Huge(region) => unsafe {
                std::slice::from_raw_parts(region.as_ptr().cast(), region.len() / LINE_BYTES)
            },
        }
    }
}

impl DerefMut for CacheLines {
    fn deref_mut(&mut self) -> &mut [CacheLine] {
        match &mut self.0 {
            Memory::Heap(lines) => lines,
            // SAFETY: as in `deref`; this borrow of the region is the only one.
            Memory::Huge(region) => unsafe {
                std::slice::from_raw_parts_mut(region.as_ptr().cast(), region.len() / LINE_BYTES)
            },
        }
    }
}

impl fmt::Debug for CacheLines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CacheLines")
            .field("count", &self.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_lines_and_many_are_zeroed_aligned_and_written_to_the_last_byte() {
        for count in [0, 1, 3, HUGE_PAGE_BYTES / LINE_BYTES, 100_001] {
            let mut lines = CacheLines::zeroed(count).unwrap();
            assert_eq!((lines.len(), lines.bytes().len()), (count, 64 * count));
            assert_eq!(lines.as_ptr() as usize % LINE_BYTES, 0);
            assert!(lines.bytes().iter().all(|byte| *byte == 0));
            assert!(CacheLines::memory_bytes(count) >= 64 * count);
            if let Some(last) = lines.last_mut() {
                last.0[63] = 9;
                assert_eq!(lines.bytes().last(), Some(&9));
            }
        }
        assert!(CacheLines::zeroed(usize::MAX).is_err());
    }
}
