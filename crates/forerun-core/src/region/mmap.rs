//! Regions from `mmap`: mapped, advised and released in whole pages.

use super::{Backing, HUGE_PAGE_BYTES, Pages, Region};
#[cfg(target_os = "linux")]
use rustix::mm::Advice;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::ptr::{self, NonNull};

/// Maps `len_bytes` (not zero). `None` if the kernel refuses.
pub(super) fn region(len_bytes: usize, pages: Pages) -> Option<Region> {
    // Below one huge page there is nothing to advise.
    if pages == Pages::Huge && len_bytes >= HUGE_PAGE_BYTES {
        aligned(len_bytes)
    } else {
        let base = map(page_multiple(len_bytes))?;
        // Transparent huge pages may be enabled for all memory, but this caller wants small pages.
        // A kernel without huge pages rejects the advice, which does no harm.
        #[cfg(target_os = "linux")]
        let _ = advise(base, page_multiple(len_bytes), Advice::LinuxNoHugepage);
        Some(Region {
            base,
            len_bytes,
            backing: Backing::SmallPages,
        })
    }
}

/// Maps more than needed, unmaps what lies before the first multiple of a huge page and after the
/// end, and advises the rest.
fn aligned(len_bytes: usize) -> Option<Region> {
    let needed_bytes = page_multiple(len_bytes);
    let mapped_bytes = needed_bytes + HUGE_PAGE_BYTES;
    let mapping = map(mapped_bytes)?;
    let before_bytes = mapping.as_ptr().align_offset(HUGE_PAGE_BYTES);
    // SAFETY: before_bytes is below HUGE_PAGE_BYTES, so the sum lies inside the mapping.
    let base = unsafe { mapping.add(before_bytes) };
    let after_bytes = mapped_bytes - before_bytes - needed_bytes;
    // SAFETY: the two ranges are the mapping's first and last bytes; base + needed_bytes is at most
    // its end. No other code has seen the mapping yet.
    unsafe {
        unmap(mapping, before_bytes);
        unmap(base.add(needed_bytes), after_bytes);
    }
    #[cfg(target_os = "linux")]
    let backing = match advise(base, needed_bytes, Advice::LinuxHugepage) {
        Ok(()) => Backing::AdvisedHuge,
        Err(_) => Backing::SmallPages,
    };
    #[cfg(not(target_os = "linux"))]
    let backing = Backing::SmallPages;
    Some(Region {
        base,
        len_bytes,
        backing,
    })
}

#[cfg(target_os = "linux")]
fn advise(base: NonNull<u8>, len_bytes: usize, advice: Advice) -> rustix::io::Result<()> {
    // SAFETY: the range is our mapping, and advice on page sizes does not change its bytes.
    unsafe { rustix::mm::madvise(base.as_ptr().cast(), len_bytes, advice) }
}

fn map(len_bytes: usize) -> Option<NonNull<u8>> {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let flags = MapFlags::PRIVATE;
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: with a null hint and without MAP_FIXED the kernel picks addresses that nothing
    // uses.
    let mapped = unsafe { mmap_anonymous(ptr::null_mut(), len_bytes, prot, flags) };
    NonNull::new(mapped.ok()?.cast())
}

/// Unmaps `len_bytes`, rounded up to a page, from `base` on.
///
/// # Safety
/// The range was mapped by this module, `base` is a multiple of the page, and nothing uses the
/// bytes any more.
pub(super) unsafe fn unmap(base: NonNull<u8>, len_bytes: usize) {
    if len_bytes == 0 {
        return;
    }
    // SAFETY: the caller guarantees the range. A failure (the kernel's table of mappings is full)
    // leaks it, which is sound.
    let _ = unsafe { munmap(base.as_ptr().cast(), page_multiple(len_bytes)) };
}

/// The system's page size.
pub(super) fn page_bytes() -> usize {
    rustix::param::page_size()
}

/// Whether [`release`] has an effect.
pub(super) const CAN_RELEASE: bool = cfg!(target_os = "linux");

/// Returns the memory of the whole pages in a range to the system. The range stays mapped and reads
/// as zeros. `false`: the system has no such call, or refused (pages that are locked in memory
/// stay).
///
/// # Safety
/// The range was mapped by this module, and nothing refers to its bytes.
pub(super) unsafe fn release(start: *mut u8, len_bytes: usize) -> bool {
    #[cfg(target_os = "linux")]
    // SAFETY: the caller guarantees the range and that nothing refers to its bytes.
    return unsafe { advise_whole_pages(start, len_bytes, Advice::LinuxDontNeed) };
    #[cfg(not(target_os = "linux"))]
    {
        let _ = (start, len_bytes);
        false
    }
}

/// Faults in the whole pages in a range.
///
/// # Safety
/// The range was mapped by this module.
pub(super) unsafe fn populate(start: *mut u8, len_bytes: usize) {
    #[cfg(target_os = "linux")]
    // SAFETY: the caller guarantees the range; the call faults pages in and changes no bytes.
    unsafe {
        advise_whole_pages(start, len_bytes, Advice::LinuxPopulateWrite);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (start, len_bytes);
}

/// Advises the system about the whole pages in a range. `false`: it refused.
///
/// # Safety
/// The range was mapped by this module, and whatever the advice does to its bytes is allowed.
#[cfg(target_os = "linux")]
unsafe fn advise_whole_pages(start: *mut u8, len_bytes: usize, advice: Advice) -> bool {
    let page_bytes = rustix::param::page_size();
    let before_bytes = start.align_offset(page_bytes);
    let inner_bytes = len_bytes.saturating_sub(before_bytes);
    let inner_bytes = inner_bytes - inner_bytes % page_bytes;
    // SAFETY: only whole pages inside the range are advised, and the caller guarantees the range.
    inner_bytes == 0
        || unsafe { rustix::mm::madvise(start.add(before_bytes).cast(), inner_bytes, advice) }
            .is_ok()
}

fn page_multiple(len_bytes: usize) -> usize {
    len_bytes.next_multiple_of(rustix::param::page_size())
}
