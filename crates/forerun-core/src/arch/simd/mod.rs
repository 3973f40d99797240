//! Portable vectors: an algorithm that is written once, generic over [`Simd`], runs on every
//! instruction set.
//!
//! ```text
//!   dispatch(isa, work) ─┬─ Avx512 ─ #[target_feature] fn ─┐
//!                        ├─ Avx2   ─ #[target_feature] fn ─┤
//!                        ├─ Sse42  ─ #[target_feature] fn ─┤
//!                        ├─ Neon   ─ #[target_feature] fn ─┼─ work.with(token), inlined into that function
//!                        └─ Scalar ────────────────────────┘
//! ```
//!
//! A *token* ([`Scalar`], `Sse42`, `Avx2`, `Avx512`, `Neon`) is a value that exists only if the CPU
//! has its instruction set: only [`dispatch`] and `new` make tokens, and both check the CPU. The
//! safety of all intrinsics here rests on that: code that holds a token, or a vector made with one,
//! may run the set's instructions. Every operation is therefore safe to call, except the gathers,
//! which read through a raw pointer.
//!
//! The code is fast only if everything between [`WithSimd::with`] and the operations is inlined
//! into the function with the target feature. Mark it `#[inline(always)]` and make it generic over
//! `S: Simd`. (The crate `pulp` uses the same pattern.)
//!
//! There are two kinds of operations:
//! - *groups*, on the token: compare one needle with the few slots of a bucket, one result bit per
//!   slot ([`Simd::eq_u64`] …);
//! - *lanes*, on vectors: one key per lane, each lane with its own address ([`Lanes`], [`Mask`]).
//!
//! Each instruction set has a file: `scalar.rs`, `sse42.rs`, `avx2.rs`, `avx512.rs`, `neon.rs`.
//! They all do what a loop over lanes in plain Rust would do, and `tests.rs` verifies it.

mod lanes;
mod scalar;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod sse42;
#[cfg(test)]
mod tests;

pub use lanes::{Lanes, Mask};
pub use scalar::{OneLane, Scalar};

#[cfg(target_arch = "x86_64")]
pub use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub use avx512::Avx512;
#[cfg(target_arch = "aarch64")]
pub use neon::Neon;
#[cfg(target_arch = "x86_64")]
pub use sse42::Sse42;

use super::Isa;
use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};

mod sealed {
    /// Prevents other crates from adding tokens, because safety rests on how tokens are made.
    pub trait Sealed {}
}

/// An instruction set that the machine is known to have, and its operations.
///
/// The group operations compare every slot with one needle. Bit `i` of the result is set if slot
/// `i` is equal. `N` is at most 32. These sizes take one or a few instructions: 4, 8, 16 and 32
/// slots of `u8` and `u16`; 2, 4, 8 and 16 of `u32`; 2, 4 and 8 of `u64`. Other sizes are correct,
/// but partly processed slot by slot.
///
/// ```
/// use forerun_core::arch::{self, Simd, WithSimd, dispatch};
///
/// struct Position<'a>(&'a [u64; 4], u64);
/// impl WithSimd for Position<'_> {
///     type Output = Option<u32>;
///     #[inline(always)]
///     fn with<S: Simd>(self, simd: S) -> Option<u32> {
///         let equal = simd.eq_u64(self.0, self.1);
///         (equal != 0).then(|| equal.trailing_zeros())
///     }
/// }
///
/// let keys = [70, 71, 72, 73];
/// assert_eq!(dispatch(arch::isa(), Position(&keys, 72)), Some(2));
/// assert_eq!(dispatch(arch::isa(), Position(&keys, 7)), None);
/// ```
pub trait Simd: sealed::Sealed + Copy + Debug + Send + Sync + 'static {
    /// The instruction set.
    const ISA: Isa;
    /// A vector of `u32` keys, one per lane.
    type U32s: Lanes<Self, Word = u32>;
    /// A vector of `u64` keys, one per lane.
    type U64s: Lanes<Self, Word = u64>;

    /// The slots that equal `needle`.
    fn eq_u8<const N: usize>(self, slots: &[u8; N], needle: u8) -> u32;
    /// The slots that equal `needle`.
    fn eq_u16<const N: usize>(self, slots: &[u16; N], needle: u16) -> u32;
    /// The slots that equal `needle`.
    fn eq_u32<const N: usize>(self, slots: &[u32; N], needle: u32) -> u32;
    /// The slots that equal `needle`.
    fn eq_u64<const N: usize>(self, slots: &[u64; N], needle: u64) -> u32;

    /// The words that equal `needle` in the bits of `mask`, while other threads may be writing the
    /// words. The other bits of `needle` must be zero.
    ///
    /// Reads each word once, with acquire ordering, in no particular order. Takes a few
    /// instructions for 4 and 8 words.
    #[inline(always)]
    fn eq_shared_u64<const N: usize>(self, words: &[AtomicU64; N], mask: u64, needle: u64) -> u32 {
        let words = words.iter().enumerate();
        words.fold(0, |equal, (at, word)| {
            equal | u32::from(word.load(Ordering::Acquire) & mask == needle) << at
        })
    }
}

/// Work that is written once for all instruction sets.
pub trait WithSimd {
    /// The result of the work.
    type Output;

    /// Does the work. Mark implementations, and everything that they call with the token,
    /// `#[inline(always)]`.
    fn with<S: Simd>(self, simd: S) -> Self::Output;
}

/// Does the work with instruction set `isa`, or with the best one below it that this machine has.
///
/// This costs a check of the CPU's cached features and a call that is not inlined: call it once per
/// batch, not once per key.
#[inline]
pub fn dispatch<W: WithSimd>(isa: Isa, work: W) -> W::Output {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => match Avx512::new() {
            Some(simd) => simd.run(work),
            None => dispatch(Isa::Avx2, work),
        },
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => match Avx2::new() {
            Some(simd) => simd.run(work),
            None => dispatch(Isa::Sse42, work),
        },
        #[cfg(target_arch = "x86_64")]
        Isa::Sse42 => match Sse42::new() {
            Some(simd) => simd.run(work),
            None => work.with(Scalar::new()),
        },
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => match Neon::new() {
            Some(simd) => simd.run(work),
            None => work.with(Scalar::new()),
        },
        #[allow(
            unreachable_patterns,
            reason = "which arms exist depends on the target"
        )]
        _ => work.with(Scalar::new()),
    }
}
