//! The prefetch hint, one spelling an architecture.

/// Asks the processor to bring the cache line at `ptr` into the nearest cache, and returns at once.
///
/// It is a hint, hence safe for any address: a prefetch reads nothing that the program can see and
/// never faults, be `ptr` null, dangling or unmapped. On a target without the instruction it does
/// nothing.
///
/// Only the line that holds the first byte of `*ptr` is asked for. An object that spans lines needs
/// one call a line.
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

/// As [`prefetch_read`], but into the second-level cache: for many lines at once, each some dozen lookups before it is read.
///
/// A processor can wait for more lines there than in its first level, whose few miss buffers a prefetch from memory would
/// hold for its whole latency. The later read costs a hit in the second level, which out-of-order execution hides. Where
/// lines come from a nearer cache, or are read soon, [`prefetch_read`] is the one to use.
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
        assert_eq!(value, 7);
    }
}
