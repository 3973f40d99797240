//! The prefetch hint, with one implementation per architecture.

use super::CACHE_LINE_BYTES;

/// Asks the CPU to bring the cache line at `ptr` into the nearest cache, and returns at once.
///
/// This is a hint and safe for any address: a prefetch has no visible effect and never faults, even
/// if `ptr` is null, dangling or unmapped. On a target without the instruction it does nothing.
///
/// It fetches only the line that holds the first byte of `*ptr`. An object that spans several lines
/// needs one call per line.
///
/// ```
/// use forerun_core::arch::prefetch_read;
///
/// let row = [0u8; 64];
/// prefetch_read(&raw const row);
/// prefetch_read(std::ptr::null::<u8>()); // harmless
/// ```
#[inline(always)]
pub fn prefetch_read<T>(ptr: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: PREFETCHT0 belongs to SSE, which every x86_64 target has; the architecture
        // defines it as a hint that raises no fault for any address, and the pointer is not
        // dereferenced.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(ptr.cast()) };
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    {
        // SAFETY: PRFM is a hint that raises no synchronous fault for any address; it writes no
        // register, no flag and no memory, and does not use the stack, as the options say.
        unsafe {
            core::arch::asm!(
                "prfm pldl1keep, [{0}]",
                in(reg) ptr,
                options(readonly, nostack, preserves_flags)
            );
        }
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    let _ = ptr;
}

/// Like [`prefetch_read`], but into the L2 cache. Use it for many lines at once, each a few dozen
/// lookups before it is read.
///
/// L2 can wait for more lines at a time than L1, which has few miss buffers and would hold one for
/// the whole latency of memory. The later read costs an L2 hit, which out-of-order execution hides.
/// If lines come from a nearer cache, or are read soon, use [`prefetch_read`].
///
/// ```
/// use forerun_core::arch::prefetch_read_l2;
///
/// let row = [0u8; 64];
/// prefetch_read_l2(&raw const row);
/// prefetch_read_l2(std::ptr::null::<u8>()); // harmless
/// ```
#[inline(always)]
pub fn prefetch_read_l2<T>(ptr: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use core::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: PREFETCHT1 belongs to SSE, which every x86_64 target has; the architecture
        // defines it as a hint that raises no fault for any address, and the pointer is not
        // dereferenced.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(ptr.cast()) };
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    {
        // SAFETY: PRFM is a hint that raises no synchronous fault for any address; it writes no
        // register, no flag and no memory, and does not use the stack, as the options say.
        unsafe {
            core::arch::asm!(
                "prfm pldl2keep, [{0}]",
                in(reg) ptr,
                options(readonly, nostack, preserves_flags)
            );
        }
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    let _ = ptr;
}

/// Prefetches the lines of the first `max_bytes` of `bytes` into the nearest cache.
///
/// ```
/// use forerun_core::arch::prefetch_bytes;
///
/// prefetch_bytes(&[7; 1000], 512);
/// ```
#[inline(always)]
pub fn prefetch_bytes(bytes: &[u8], max_bytes: usize) {
    let bytes = &bytes[..bytes.len().min(max_bytes)];
    for line in bytes.chunks(CACHE_LINE_BYTES) {
        prefetch_read(line.as_ptr());
    }
    // If the bytes do not start at the beginning of a line, they end in one more line.
    if let Some(last) = bytes.last() {
        prefetch_read(last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_address_is_harmless() {
        prefetch_read(std::ptr::null::<u64>());
        prefetch_read(usize::MAX as *const u8);
        prefetch_read(0xdead_beef_0000_usize as *const [u8; 300]);
        prefetch_read_l2(std::ptr::null::<u64>());
        prefetch_read_l2(0xdead_beef_0000_usize as *const [u8; 300]);
        let value = 7u32;
        prefetch_read(&raw const value);
        prefetch_read_l2(&raw const value);
        for len in [0, 1, 64, 65, 1000] {
            prefetch_bytes(&[7; 1000][..len], 512);
        }
        assert_eq!(value, 7);
    }
}
