//! The standard library's [`Arc`](std::sync::Arc) drops a reference by a subtraction with Release
//! ordering. The owner of the last reference runs an Acquire fence and destroys the value.
//! ThreadSanitizer does not support fences. When the standard library is compiled for the
//! sanitizer, it uses a load instead of the fence, but the compiled library that comes with Rust
//! does not.
//!
//! So the linker redirects every 64-bit subtraction that the sanitizer sees to this function
//! (`--wrap`, in `.ci/lib/tsan`), and subtractions with Release ordering also acquire. Only
//! reference counts are decremented with that ordering. If Forerun had a subtraction of its own
//! whose missing Acquire this would hide, it must not be 64 bits wide.

#![allow(unsafe_code, reason = "the linker's --wrap takes C functions")]

use std::ffi::c_int;

/// The sanitizer's values of memory orderings (`tsan_interface_atomic.h`).
const RELEASE: c_int = 3;
const ACQUIRE_AND_RELEASE: c_int = 4;

unsafe extern "C" {
    fn __real___tsan_atomic64_fetch_sub(word: *mut u64, less: u64, order: c_int) -> u64;
}

// SAFETY: the linker gives this name to nothing else.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap___tsan_atomic64_fetch_sub(
    word: *mut u64,
    less: u64,
    order: c_int,
) -> u64 {
    let order = match order {
        RELEASE => ACQUIRE_AND_RELEASE,
        order => order,
    };
    // SAFETY: the caller's guarantees apply unchanged.
    unsafe { __real___tsan_atomic64_fetch_sub(word, less, order) }
}
