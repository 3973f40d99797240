//! An [`Arc`](std::sync::Arc) of the standard library gives up a share by a subtraction in Release
//! order; who gives up the last one runs an Acquire fence and destroys what was shared.
//! ThreadSanitizer knows no fences. The standard library has a load in place of the fence when it
//! is compiled for the sanitizer; the one that comes with Rust is not.
//!
//! So the linker sends every subtraction of 64 bits that the sanitizer is told of through here
//! (`--wrap`, in `.ci/tsan`), and one in Release order is made to acquire as well. Only reference
//! counts are counted down in that order: a subtraction of Forerun's own whose missing Acquire this
//! would hide may not be 64 bits wide.

#![allow(unsafe_code, reason = "the linker's --wrap takes C functions")]

use std::ffi::c_int;

/// The sanitizer's numbers of memory orderings (`tsan_interface_atomic.h`).
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
    // SAFETY: as the caller has it.
    unsafe { __real___tsan_atomic64_fetch_sub(word, less, order) }
}
