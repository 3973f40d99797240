//! What vectors of keys can do: the *vertical* half of the vocabulary, one key a lane.
//!
//! ```text
//!   lanes   k0 k1 k2 k3        hash: add, xor, shr, mul      all lanes at once
//!            │  │  │  │
//!            ▼  ▼  ▼  ▼        scale: a place in the table   all lanes at once
//!   table  ──●──●─────●──●──   gather: a load a lane
//!            =  =  =  =        eq: a Mask, a bit a lane
//! ```

use super::Simd;
use std::fmt::Debug;

/// A vector of unsigned words, made with a token of instruction set `S`.
///
/// Arithmetic wraps. A lane never looks at another.
pub trait Lanes<S: Simd>: Copy + Debug {
    /// A lane's type.
    type Word: Copy;
    /// A bit a lane.
    type Mask: Mask;
    /// How many lanes there are: at most 16.
    const LEN: usize;

    /// The same word in every lane.
    fn splat(simd: S, word: Self::Word) -> Self;

    /// The first `LEN` words, in order.
    ///
    /// # Panics
    /// When there are fewer.
    fn load(simd: S, words: &[Self::Word]) -> Self;

    /// Writes the lanes to the first `LEN` words, in order.
    ///
    /// # Panics
    /// When there are fewer.
    fn store(self, words: &mut [Self::Word]);

    /// The sums.
    fn add(self, other: Self) -> Self;

    /// The exclusive ors.
    fn xor(self, other: Self) -> Self;

    /// Shifts right by `BITS`, less than a word's, and fills with zeros.
    fn shr<const BITS: i32>(self) -> Self;

    /// Shifts left by `BITS`, less than a word's, and fills with zeros.
    fn shl<const BITS: i32>(self) -> Self;

    /// The low halves of the products.
    fn mul(self, other: Self) -> Self;

    /// Each lane's top 32 bits scaled to `0..len`, as by (top 32 bits × `len`) >> 32. Every lane of `len` must be
    /// below 2^32.
    fn scale(self, len: Self) -> Self;

    /// Where the lanes are equal.
    fn eq(self, other: Self) -> Self::Mask;

    /// Lane by lane, `self` where the mask is set and `other` where it is not.
    fn select(self, other: Self, mask: Self::Mask) -> Self;

    /// Reads a word a lane, at `base` + lane × `STRIDE_BYTES`, where the mask is set; elsewhere nothing is read and
    /// the lane is that of `otherwise`. `STRIDE_BYTES` is 4, 8 or 16.
    ///
    /// # Safety
    /// For every lane `i` that is set in the mask:
    /// - `i` is below 2^30;
    /// - a `Word` at `base` + `i` × `STRIDE_BYTES` bytes can be read: it is inside one live allocation with `base`,
    ///   aligned, initialised, and nobody writes it meanwhile.
    unsafe fn gather<const STRIDE_BYTES: usize>(
        base: *const Self::Word,
        index: Self,
        mask: Self::Mask,
        otherwise: Self,
    ) -> Self;
}

/// A bit a lane.
pub trait Mask: Copy + Debug {
    /// Set where both are.
    fn and(self, other: Self) -> Self;

    /// Set where either is.
    fn or(self, other: Self) -> Self;

    /// Set where `self` is and `other` is not.
    fn and_not(self, other: Self) -> Self;

    /// Bit `i` is lane `i`'s; the bits beyond the last lane are zero.
    fn bits(self) -> u32;
}
