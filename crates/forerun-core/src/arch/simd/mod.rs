//! A small vector vocabulary: one algorithm, written once over [`Simd`], runs with every instruction set.
//!
//! ```text
//!   dispatch(isa, work) ─┬─ Avx512 ─ #[target_feature] fn ─┐
//!                        ├─ Avx2   ─ #[target_feature] fn ─┤
//!                        ├─ Neon   ─ #[target_feature] fn ─┼─ work.with(token), inlined into that function
//!                        └─ Scalar ────────────────────────┘
//! ```
//!
//! A *token* ([`Scalar`], `Avx2`, `Avx512`, `Neon`) is a value that exists only where the processor has its
//! instruction set: it is made by [`dispatch`] or by `new`, which asks the processor. That is the whole safety
//! argument of the intrinsics here: whoever holds a token, or a vector that was made with one, may run the set's
//! instructions. So every operation is safe to call, but for the gathers, which read through a raw pointer.
//!
//! A caller gets the speed only if everything between [`WithSimd::with`] and the operations is inlined into the
//! function with the target feature: mark it `#[inline(always)]` and make it generic over `S: Simd`. (The pattern is
//! known from the crate `pulp`.)
//!
//! There are two kinds of operations:
//! - *groups*, on the token: one needle against the few slots of a bucket, giving a bit a slot ([`Simd::eq_u64`] …);
//! - *lanes*, on vectors: one key a lane, each lane its own address ([`Lanes`], [`Mask`]).
//!
//! One file an instruction set: `scalar.rs`, `avx2.rs`, `avx512.rs`, `neon.rs`. What a loop over lanes in plain Rust
//! would do is what they all do; `tests.rs` holds them to it.

mod lanes;
mod scalar;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
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

use super::Isa;
use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};

mod sealed {
    /// Keeps the set of tokens closed: the safety of the operations rests on how tokens are made.
    pub trait Sealed {}
}

/// An instruction set that the machine is proven to have, and what can be done with it.
///
/// The group operations compare every slot with one needle; bit `i` of the result is set where slot `i` is equal.
/// `N` is at most 32. Those that are a single instruction or few: 4, 8, 16 and 32 slots of `u8` and of `u16`, 2, 4, 8
/// and 16 of `u32`, 2, 4 and 8 of `u64`; others are right, but partly one slot at a time.
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
    /// Which set this is.
    const ISA: Isa;
    /// A vector of `u32` keys, one a lane.
    type U32s: Lanes<Self, Word = u32>;
    /// A vector of `u64` keys, one a lane.
    type U64s: Lanes<Self, Word = u64>;

    /// Which of the slots equal `needle`.
    fn eq_u8<const N: usize>(self, slots: &[u8; N], needle: u8) -> u32;
    /// Which of the slots equal `needle`.
    fn eq_u16<const N: usize>(self, slots: &[u16; N], needle: u16) -> u32;
    /// Which of the slots equal `needle`.
    fn eq_u32<const N: usize>(self, slots: &[u32; N], needle: u32) -> u32;
    /// Which of the slots equal `needle`.
    fn eq_u64<const N: usize>(self, slots: &[u64; N], needle: u64) -> u32;

    /// Which of the words, that other threads may be writing, equal `needle` in the bits of `care`;
    /// the other bits of `needle` are zero.
    ///
    /// Each word is read once, with acquire ordering, and the words in no particular order. A few instructions for 4 and 8
    /// words.
    #[inline(always)]
    fn eq_shared_u64<const N: usize>(self, words: &[AtomicU64; N], care: u64, needle: u64) -> u32 {
        let words = words.iter().enumerate();
        words.fold(0, |mask, (at, word)| {
            mask | u32::from(word.load(Ordering::Acquire) & care == needle) << at
        })
    }
}

/// Work that is written once over all instruction sets.
pub trait WithSimd {
    /// What the work gives.
    type Output;

    /// Does the work. Implementors mark it `#[inline(always)]`, and all that it calls with the token.
    fn with<S: Simd>(self, simd: S) -> Self::Output;
}

/// Does the work with instruction set `isa`, or with the best one below it that this machine has.
///
/// It costs a look at the processor's cached features and a call that is not inlined: enter once a batch, not once a
/// key.
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
