//! Operations on vectors of keys: *vertical* vectorization, one key per lane.
//!
//! ```text
//!   lanes   k0 k1 k2 k3        hash: add, xor, shr, mul      all lanes at once
//!            │  │  │  │
//!            ▼  ▼  ▼  ▼        scale: a position in the table   all lanes at once
//!   table  ──●──●─────●──●──   gather: one load per lane
//!            =  =  =  =        eq: a Mask, one bit per lane
//! ```

use super::Simd;
use std::fmt::Debug;

/// A vector of unsigned words, made with a token of instruction set `S`.
///
/// Arithmetic wraps. Lanes do not affect each other.
pub trait Lanes<S: Simd>: Copy + Debug {
    /// The type of a lane.
    type Word: Copy;
    /// One bit per lane.
    type Mask: Mask;
    /// The number of lanes, at most 16.
    const LEN: usize;

    /// The same word in every lane.
    fn splat(simd: S, word: Self::Word) -> Self;

    /// Loads the first `LEN` words, in order.
    ///
    /// # Panics
    /// If there are fewer.
    fn load(simd: S, words: &[Self::Word]) -> Self;

    /// Writes the lanes to the first `LEN` words, in order.
    ///
    /// # Panics
    /// If there are fewer.
    fn store(self, words: &mut [Self::Word]);

    /// The sums.
    fn add(self, other: Self) -> Self;

    /// The exclusive ors.
    fn xor(self, other: Self) -> Self;

    /// Shifts right by `BITS`, fewer than a word has, and fills with zeros.
    fn shr<const BITS: i32>(self) -> Self;

    /// Shifts left by `BITS`, fewer than a word has, and fills with zeros.
    fn shl<const BITS: i32>(self) -> Self;

    /// The low halves of the products.
    fn mul(self, other: Self) -> Self;

    /// Scales each lane's top 32 bits to `0..len`: (top 32 bits × `len`) >> 32. Every lane of `len`
    /// must be below 2^32.
    fn scale(self, len: Self) -> Self;

    /// The lanes that are equal.
    fn eq(self, other: Self) -> Self::Mask;

    /// Lane by lane, `self` if the mask is set and `other` if it is not.
    fn select(self, other: Self, mask: Self::Mask) -> Self;

    /// Reads one word per lane that is set in the mask, at `base` + index × `STRIDE_BYTES`. The
    /// other lanes read nothing and take their value from `otherwise`. `STRIDE_BYTES` is 4, 8 or
    /// 16.
    ///
    /// # Safety
    /// For the index `i` of every lane that is set in the mask:
    /// - `i` is below 2^30;
    /// - a `Word` at `base` + `i` × `STRIDE_BYTES` bytes is readable: it is in the same live
    ///   allocation as `base`, aligned and initialised, and no thread writes it during the call.
    unsafe fn gather<const STRIDE_BYTES: usize>(
        base: *const Self::Word,
        index: Self,
        mask: Self::Mask,
        otherwise: Self,
    ) -> Self;
}

/// One bit per lane.
pub trait Mask: Copy + Debug {
    /// Set where both are set.
    fn and(self, other: Self) -> Self;

    /// Set where either is set.
    fn or(self, other: Self) -> Self;

    /// Set where `self` is set and `other` is not.
    fn and_not(self, other: Self) -> Self;

    /// Bit `i` belongs to lane `i`. The bits beyond the last lane are zero.
    fn bits(self) -> u32;
}
