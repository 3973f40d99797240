//! CPU-specific code: prefetch, the cache line size, and the instruction set in use.
//!
//! Only this module and its children contain `core::arch` intrinsics or inline assembly. Other code
//! calls an operation by its meaning (`prefetch_read`) and gets the instruction if there is one.
//!
//! | target  | `prefetch_read`        | line | instruction sets      |
//! |---------|------------------------|------|-----------------------|
//! | x86_64  | `prefetcht0`           | 64 B | scalar, sse4.2, avx2, avx512 |
//! | aarch64 | `prfm pldl1keep`       | 128 B on Apple, else 64 B | scalar, neon |
//! | other   | nothing                | 64 B | scalar                |

mod delimiters;
mod isa;
mod prefetch;
mod simd;
mod word_search;

pub use delimiters::{DELIMITER_BLOCK_BYTES, delimiters};
pub use isa::{Isa, IsaChoice, IsaRequest, UnknownIsa, isa, isa_choice};
pub use prefetch::{prefetch_bytes, prefetch_read, prefetch_read_l2};
pub use simd::{Lanes, Mask, OneLane, Scalar, Simd, WithSimd, dispatch};
pub use word_search::{WORD_BLOCK_BYTES, WORD_LINE_BYTES, word_bounds, words_below};

#[cfg(target_arch = "x86_64")]
pub use simd::{Avx2, Avx512, Sse42};

#[cfg(target_arch = "aarch64")]
pub use simd::Neon;

/// The cache line size of the target, in bytes.
///
/// Layouts are aligned to it, but correctness does not depend on it: a wrong value only costs
/// speed.
pub const CACHE_LINE_BYTES: usize = if cfg!(all(target_arch = "aarch64", target_vendor = "apple")) {
    128
} else {
    64
};
