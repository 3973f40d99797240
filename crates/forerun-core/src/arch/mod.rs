//! What depends on the processor: prefetch, the cache line's size, and the instruction set in use.
//!
//! This module and its children are the only place with `core::arch` intrinsics or inline assembly.
//! Code outside asks for a thing by its meaning (`prefetch_read`) and gets the instruction where
//! there is one.
//!
//! | target  | `prefetch_read`        | line | instruction sets      |
//! |---------|------------------------|------|-----------------------|
//! | x86_64  | `prefetcht0`           | 64 B | scalar, avx2, avx512  |
//! | aarch64 | `prfm pldl1keep`       | 128 B on Apple, else 64 B | scalar, neon |
//! | other   | nothing                | 64 B | scalar                |

mod delimiters;
mod isa;
mod prefetch;
mod simd;
mod words;

pub use delimiters::{DELIMITER_BLOCK_BYTES, delimiters};
pub use isa::{Isa, IsaChoice, ParseIsaError, Request, isa, isa_choice};
pub use prefetch::{prefetch_read, prefetch_read_l2};
pub use simd::{Lanes, Mask, OneLane, Scalar, Simd, WithSimd, dispatch};
pub use words::{WORD_BLOCK_BYTES, WORD_LINE_BYTES, word_bounds, words_below};

#[cfg(target_arch = "x86_64")]
pub use simd::{Avx2, Avx512};

#[cfg(target_arch = "aarch64")]
pub use simd::Neon;

/// Bytes the processor moves between memory and its caches at a time.
///
/// It is what layouts are aligned to, not what correctness rests on: a wrong guess costs speed
/// only.
pub const CACHE_LINE_BYTES: usize = if cfg!(all(target_arch = "aarch64", target_vendor = "apple")) {
    128
} else {
    64
};
