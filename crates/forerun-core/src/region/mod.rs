//! Regions: contiguous memory, zeroed and aligned, with huge pages if the kernel grants them.
//!
//! ```text
//!  Pages::Huge       |<----------- mapping: length + 2 MiB, trimmed ----------->|
//!                    |  unmapped  | 2 MiB | 2 MiB | ...      | tail |  unmapped  |
//!                                 ^ base, a multiple of 2 MiB       ^ base + length, rounded up to a page
//! ```
//!
//! A region is an anonymous private mapping that reserves no memory. A page costs memory once it is
//! touched, so a caller may map the most that it will ever use. Huge pages are requested with
//! `madvise`; [`Region::huge_bytes`] returns how many the kernel granted. If mapping fails, or the
//! target has no `mmap`, the bytes come from the heap.

#[cfg(unix)]
#[path = "mmap.rs"]
mod map;
#[cfg(not(unix))]
#[path = "none.rs"]
mod map;

mod atomics;
mod cache_lines;

pub use atomics::{Atomic, Atomics};
pub use cache_lines::{CacheLine, CacheLines};

use std::alloc::Layout;
use std::fmt;
use std::ptr::NonNull;

/// The size of a huge page on the machines Forerun is tuned for, and the alignment of a region that
/// asks for them.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Alignment of every region: the smallest page of any supported target.
pub const ALIGN_BYTES_MIN: usize = 4096;

/// Which pages to request from the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum Pages {
    /// The target's ordinary pages.
    Small,
    /// Advised huge pages: fewer TLB misses, at the cost of up to 2 MiB of slack.
    #[default]
    Huge,
}

impl fmt::Display for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Pages::Small => "small",
            Pages::Huge => "huge",
        })
    }
}

/// The kind of memory that backs a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Backing {
    /// Mapped at a multiple of [`HUGE_PAGE_BYTES`], and the kernel accepted the advice to use huge
    /// pages.
    AdvisedHuge,
    /// Mapped with ordinary pages.
    #[default]
    SmallPages,
    /// Allocated on the heap.
    Heap,
}

impl Backing {
    /// The size of the pages in which memory of this kind is taken from the system and returned.
    pub fn page_bytes(self) -> usize {
        match self {
            Backing::AdvisedHuge => HUGE_PAGE_BYTES,
            Backing::SmallPages | Backing::Heap => page_bytes(),
        }
    }
}

impl fmt::Display for Backing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Backing::AdvisedHuge => "advised huge pages",
            Backing::SmallPages => "small pages",
            Backing::Heap => "heap",
        })
    }
}

/// Why a region could not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegionError {
    /// Neither the kernel nor the heap provided that much.
    #[error("out of memory for a region of {len_bytes} bytes")]
    OutOfMemory {
        /// The requested length.
        len_bytes: usize,
    },
    /// The length exceeds the address space.
    #[error("a region of {len_bytes} bytes is larger than the address space")]
    TooLarge {
        /// The requested length.
        len_bytes: usize,
    },
}

/// Zeroed contiguous memory, freed when dropped.
///
/// A region gives out a raw pointer and no borrows: how the bytes are shared is up to the owner and
/// the owner's `unsafe` code. The pointer does not change for the region's lifetime, even if the
/// `Region` is moved.
///
/// ```
/// use forerun_core::{Pages, Region};
///
/// let region = Region::new(1 << 20, Pages::Huge)?;
/// assert_eq!(region.len(), 1 << 20);
/// // SAFETY: the first byte lies inside the region, and nothing else uses it.
/// assert_eq!(unsafe { region.as_ptr().read() }, 0);
/// println!("{} ({:?} bytes in huge pages)", region.backing(), region.huge_bytes());
/// # Ok::<(), forerun_core::RegionError>(())
/// ```
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    len_bytes: usize,
    backing: Backing,
}

// SAFETY: a Region owns its bytes like a Box<[u8]> and is not tied to a thread. It only gives out a
// raw pointer, and every use of that is the user's `unsafe`.
unsafe impl Send for Region {}
// SAFETY: as above; no method reads or writes the bytes through a shared Region.
unsafe impl Sync for Region {}

impl Region {
    /// Makes a region of `len_bytes` zeroes. It is aligned to [`HUGE_PAGE_BYTES`] if `pages` is
    /// huge and mapping succeeds, otherwise to [`ALIGN_BYTES_MIN`]. An empty region is allowed and
    /// has a non-null pointer.
    ///
    /// # Errors
    /// [`RegionError`] if that much memory is not available.
    pub fn new(len_bytes: usize, pages: Pages) -> Result<Region, RegionError> {
        if len_bytes > isize::MAX as usize - 2 * HUGE_PAGE_BYTES {
            return Err(RegionError::TooLarge { len_bytes });
        }
        if len_bytes == 0 {
            return Region::on_heap(0);
        }
        map::region(len_bytes, pages).map_or_else(|| Region::on_heap(len_bytes), Ok)
    }

    /// Makes a region on the heap, as [`Region::new`] does if mapping fails.
    ///
    /// # Errors
    /// [`RegionError`] if the heap does not provide that much.
    pub fn on_heap(len_bytes: usize) -> Result<Region, RegionError> {
        let layout = heap_layout(len_bytes)?;
        // SAFETY: heap_layout never returns a layout of size zero.
        let base = unsafe { std::alloc::alloc_zeroed(layout) };
        let base = NonNull::new(base).ok_or(RegionError::OutOfMemory { len_bytes })?;
        Ok(Region {
            base,
            len_bytes,
            backing: Backing::Heap,
        })
    }

    /// The first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// The requested length, in bytes.
    pub fn len(&self) -> usize {
        self.len_bytes
    }

    /// Whether the region is empty.
    pub fn is_empty(&self) -> bool {
        self.len_bytes == 0
    }

    /// The kind of memory that backs the region.
    pub fn backing(&self) -> Backing {
        self.backing
    }

    /// How many bytes currently lie in huge pages, or `None` if the system does not report it.
    ///
    /// The kernel grants huge pages when memory is touched, or later, so call this after use. It
    /// reads `/proc/self/smaps`, which is slow: use it for a report, not in a loop.
    pub fn huge_bytes(&self) -> Option<usize> {
        let start = self.base.as_ptr() as usize;
        let smaps = std::fs::read_to_string("/proc/self/smaps").ok()?;
        huge_bytes_of(&smaps, start, start + self.len_bytes)
    }
}

impl Region {
    /// Returns the memory of the whole pages in a range of bytes to the system. They cost nothing
    /// until they are touched again, and then read as zeros. `false`: the system did not take all
    /// of it, or has no such call; the bytes are zeros or unchanged, and the memory is still held.
    ///
    /// # Safety
    /// The range must lie in the region, and nothing may refer to its bytes.
    pub unsafe fn release(&self, offset: usize, len_bytes: usize) -> bool {
        debug_assert!(offset + len_bytes <= self.len_bytes);
        // SAFETY: the caller guarantees that the range lies in our mapping and that nothing refers
        // to its bytes.
        self.backing != Backing::Heap
            && unsafe { map::release(self.base.as_ptr().add(offset), len_bytes) }
    }
}

impl Region {
    /// Whether [`release`](Self::release) can return memory to the system.
    pub fn is_releasable(&self) -> bool {
        self.backing != Backing::Heap && map::CAN_RELEASE
    }
}

impl Region {
    /// Faults the pages of a range in now, so that the first touch does not wait for memory. The
    /// bytes do not change, and other threads may use them during the call. Does nothing if the
    /// system has no such call (Linux has it since 5.14).
    pub fn populate(&self, offset: usize, len_bytes: usize) {
        let len_bytes = len_bytes.min(self.len_bytes.saturating_sub(offset));
        if self.backing != Backing::Heap && len_bytes > 0 {
            // SAFETY: the range was just clipped to our mapping.
            unsafe { map::populate(self.base.as_ptr().add(offset), len_bytes) };
        }
    }
}

/// The system's page size.
pub fn page_bytes() -> usize {
    map::page_bytes()
}

impl Drop for Region {
    fn drop(&mut self) {
        match self.backing {
            Backing::AdvisedHuge | Backing::SmallPages => {
                // SAFETY: map::region made this mapping with this length; a Region is dropped once,
                // and by its contract nothing uses its bytes after it.
                unsafe { map::unmap(self.base, self.len_bytes) }
            }
            Backing::Heap => {
                if let Ok(layout) = heap_layout(self.len_bytes) {
                    // SAFETY: on_heap took these bytes from the allocator with this very layout,
                    // and a Region is dropped once.
                    unsafe { std::alloc::dealloc(self.base.as_ptr(), layout) };
                }
            }
        }
    }
}

/// The layout of a heap region. It is never empty, because the allocator requires a size.
fn heap_layout(len_bytes: usize) -> Result<Layout, RegionError> {
    Layout::from_size_align(len_bytes.max(1), ALIGN_BYTES_MIN)
        .map_err(|_| RegionError::TooLarge { len_bytes })
}

/// Sums the `AnonHugePages` of the mappings in `smaps` that overlap `start..end`. `None` if no
/// mapping does or a number cannot be parsed. The kernel may split a region into several mappings
/// or merge it with a neighbour, so each mapping counts at most its overlap.
fn huge_bytes_of(smaps: &str, start: usize, end: usize) -> Option<usize> {
    let mut total_bytes = None;
    let mut overlap_bytes = 0;
    for line in smaps.lines() {
        if let Some((from, to)) = mapping_bounds(line) {
            overlap_bytes = to.min(end).saturating_sub(from.max(start));
        } else if overlap_bytes > 0
            && let Some(rest) = line.strip_prefix("AnonHugePages:")
        {
            let kib: usize = rest.trim().strip_suffix("kB")?.trim().parse().ok()?;
            *total_bytes.get_or_insert(0) += (kib * 1024).min(overlap_bytes);
        }
    }
    total_bytes
}

/// The bounds of a mapping, if `line` is the first line of one: `7f0000000000-7f0000200000 rw-p
/// ...`.
fn mapping_bounds(line: &str) -> Option<(usize, usize)> {
    let (from, to) = line.split_whitespace().next()?.split_once('-')?;
    let bound = |text| usize::from_str_radix(text, 16).ok();
    Some((bound(from)?, bound(to)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All bytes of a region. The caller must be its only user.
    fn bytes(region: &Region) -> &[u8] {
        // SAFETY: the region is len() readable, initialised (zeroed) bytes, and the tests write
        // none while the slice exists.
        unsafe { std::slice::from_raw_parts(region.as_ptr(), region.len()) }
    }

    #[test]
    fn every_backing_is_zeroed_aligned_and_writable_to_its_last_byte() {
        for len_bytes in [
            1,
            4095,
            4096,
            4097,
            HUGE_PAGE_BYTES,
            3 * HUGE_PAGE_BYTES + 5,
        ] {
            let sources = [
                Region::new(len_bytes, Pages::Small),
                Region::new(len_bytes, Pages::Huge),
                Region::on_heap(len_bytes),
            ];
            for region in sources.map(Result::unwrap) {
                assert_eq!(region.len(), len_bytes);
                assert_eq!(region.as_ptr() as usize % ALIGN_BYTES_MIN, 0);
                assert!(bytes(&region).iter().all(|&byte| byte == 0));
                // SAFETY: len_bytes - 1 is inside the region, and no reference to its bytes is
                // alive.
                unsafe { region.as_ptr().add(len_bytes - 1).write(9) };
                assert_eq!(bytes(&region)[len_bytes - 1], 9);
            }
        }
    }

    #[test]
    fn huge_regions_start_at_a_huge_page_and_report_their_backing() {
        let region = Region::new(4 * HUGE_PAGE_BYTES, Pages::Huge).unwrap();
        let small = Region::new(4 * HUGE_PAGE_BYTES, Pages::Small).unwrap();
        for region in [&region, &small] {
            // SAFETY: the whole region is ours, and no reference to its bytes is alive.
            unsafe { region.as_ptr().write_bytes(1, region.len()) };
        }
        if cfg!(unix) {
            assert_eq!(region.as_ptr() as usize % HUGE_PAGE_BYTES, 0);
            assert_eq!(small.backing(), Backing::SmallPages);
        }
        if cfg!(target_os = "linux") {
            assert_eq!(small.huge_bytes(), Some(0));
            let huge_bytes = region.huge_bytes().unwrap();
            assert!(huge_bytes <= region.len());
            assert!(region.backing() == Backing::AdvisedHuge || huge_bytes == 0);
        }
    }

    #[test]
    fn mapping_more_memory_than_the_machine_has_is_free_until_touched() {
        if cfg!(all(unix, target_pointer_width = "64")) {
            let region = Region::new(64 << 30, Pages::Huge).unwrap();
            // SAFETY: the last byte lies inside the region, and nothing else uses it.
            let last = unsafe { region.as_ptr().add(region.len() - 1).read() };
            assert_eq!(last, 0);
        }
    }

    #[test]
    fn released_pages_are_zeros_or_unchanged_and_the_rest_stays() {
        for pages in [Pages::Small, Pages::Huge] {
            let region = Region::new(2 * HUGE_PAGE_BYTES, pages).unwrap();
            // SAFETY: the whole region is ours, and no reference to its bytes is alive.
            unsafe {
                region.as_ptr().write_bytes(7, region.len());
                region.release(100, 3 * ALIGN_BYTES_MIN);
                region.release(0, 5);
            }
            let after = 100 + 3 * ALIGN_BYTES_MIN;
            assert!(bytes(&region)[..100].iter().all(|&byte| byte == 7));
            assert!(bytes(&region)[after..].iter().all(|&byte| byte == 7));
            assert!(
                bytes(&region)[100..after]
                    .iter()
                    .all(|&byte| byte == 0 || byte == 7)
            );
            if cfg!(target_os = "linux") && region.backing() != Backing::Heap {
                assert_eq!(bytes(&region)[2 * ALIGN_BYTES_MIN - 1], 0);
            }
        }
    }

    #[test]
    fn populating_any_range_keeps_its_bytes() {
        for pages in [Pages::Small, Pages::Huge] {
            let region = Region::new(2 * HUGE_PAGE_BYTES, pages).unwrap();
            // SAFETY: the whole region is ours, and no reference to its bytes is alive.
            unsafe { region.as_ptr().add(ALIGN_BYTES_MIN).write(7) };
            region.populate(0, HUGE_PAGE_BYTES);
            region.populate(5, 3 * HUGE_PAGE_BYTES);
            region.populate(region.len() + 1, 1);
            let bytes = bytes(&region);
            assert_eq!(bytes[ALIGN_BYTES_MIN], 7);
            assert_eq!(bytes.iter().filter(|&&byte| byte != 0).count(), 1);
        }
    }

    #[test]
    fn an_empty_region_is_allowed() {
        for region in [
            Region::new(0, Pages::Huge),
            Region::new(0, Pages::Small),
            Region::on_heap(0),
        ] {
            let region = region.unwrap();
            assert!(region.is_empty() && !region.as_ptr().is_null());
            assert_eq!(bytes(&region), []);
        }
    }

    #[test]
    fn a_refusal_names_the_size() {
        for len_bytes in [usize::MAX, isize::MAX as usize - 3 * HUGE_PAGE_BYTES] {
            let refusal = Region::new(len_bytes, Pages::Huge).unwrap_err();
            assert!(
                refusal.to_string().contains(&len_bytes.to_string()),
                "{refusal}"
            );
        }
    }

    #[test]
    fn regions_are_shared_and_moved_between_threads() {
        let region = Region::new(HUGE_PAGE_BYTES, Pages::Small).unwrap();
        crate::sync::thread::scope(|scope| {
            for at in 0..2 {
                let region = &region;
                // SAFETY: each thread writes a byte of its own, inside the region.
                scope.spawn(move || unsafe { region.as_ptr().add(at).write(at as u8 + 1) });
            }
        });
        std::thread::spawn(move || assert_eq!(bytes(&region)[..3], [1, 2, 0]))
            .join()
            .unwrap();
    }

    #[test]
    fn huge_bytes_are_summed_over_the_mappings_that_overlap() {
        let smaps = "1000-3000 rw-p 00000000 00:00 0\nSize: 8 kB\nAnonHugePages:      4 kB\n\
                     3000-5000 rw-p 00000000 00:00 0\nAnonHugePages:      2048 kB\n\
                     9000-a000 rw-p 00000000 00:00 0 [heap]\nAnonHugePages:      8 kB\n";
        assert_eq!(huge_bytes_of(smaps, 0x1000, 0x3000), Some(4096));
        assert_eq!(huge_bytes_of(smaps, 0x1000, 0x5000), Some(4096 + 8192));
        assert_eq!(huge_bytes_of(smaps, 0x6000, 0x7000), None);
        assert_eq!(
            huge_bytes_of("1000-3000 rw-p\nAnonHugePages: x kB", 0x1000, 0x3000),
            None
        );
    }
}
