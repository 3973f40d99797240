//! The scalar implementation for any target. It defines the meaning of every operation. A vector
//! has one lane.

use super::{Lanes, Mask, Simd, WithSimd, sealed};
use crate::arch::Isa;

/// The token of portable Rust, which every machine has.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scalar(());

impl Scalar {
    /// The token.
    #[inline(always)]
    pub fn new() -> Scalar {
        Scalar(())
    }

    /// Runs the work.
    #[inline(always)]
    pub fn run<W: WithSimd>(self, work: W) -> W::Output {
        work.with(self)
    }
}

/// Compares slot by slot. The compiler may use the vectors that the target always has.
#[inline(always)]
pub(super) fn eq<T: Copy + PartialEq, const N: usize>(slots: &[T; N], needle: T) -> u32 {
    let mut equal = 0;
    for (i, &slot) in slots.iter().enumerate() {
        equal |= u32::from(slot == needle) << i;
    }
    equal
}

impl sealed::Sealed for Scalar {}

impl Simd for Scalar {
    const ISA: Isa = Isa::Scalar;
    type U32s = OneLane<u32>;
    type U64s = OneLane<u64>;

    #[inline(always)]
    fn eq_u8<const N: usize>(self, slots: &[u8; N], needle: u8) -> u32 {
        eq(slots, needle)
    }

    #[inline(always)]
    fn eq_u16<const N: usize>(self, slots: &[u16; N], needle: u16) -> u32 {
        eq(slots, needle)
    }

    #[inline(always)]
    fn eq_u32<const N: usize>(self, slots: &[u32; N], needle: u32) -> u32 {
        eq(slots, needle)
    }

    #[inline(always)]
    fn eq_u64<const N: usize>(self, slots: &[u64; N], needle: u64) -> u32 {
        eq(slots, needle)
    }
}

/// A vector of one lane.
#[derive(Clone, Copy, Debug)]
pub struct OneLane<W>(W);

impl Mask for bool {
    #[inline(always)]
    fn and(self, other: bool) -> bool {
        self & other
    }

    #[inline(always)]
    fn or(self, other: bool) -> bool {
        self | other
    }

    #[inline(always)]
    fn and_not(self, other: bool) -> bool {
        self & !other
    }

    #[inline(always)]
    fn bits(self) -> u32 {
        u32::from(self)
    }
}

/// The lane for a word type; `$top` returns a word's top 32 bits.
macro_rules! one_lane {
    ($word:ty, $top:expr) => {
        impl Lanes<Scalar> for OneLane<$word> {
            type Word = $word;
            type Mask = bool;
            const LEN: usize = 1;

            #[inline(always)]
            fn splat(_: Scalar, word: $word) -> Self {
                OneLane(word)
            }

            #[inline(always)]
            fn load(_: Scalar, words: &[$word]) -> Self {
                OneLane(words[0])
            }

            #[inline(always)]
            fn store(self, words: &mut [$word]) {
                words[0] = self.0;
            }

            #[inline(always)]
            fn add(self, other: Self) -> Self {
                OneLane(self.0.wrapping_add(other.0))
            }

            #[inline(always)]
            fn xor(self, other: Self) -> Self {
                OneLane(self.0 ^ other.0)
            }

            #[inline(always)]
            fn shr<const BITS: i32>(self) -> Self {
                OneLane(self.0 >> BITS)
            }

            #[inline(always)]
            fn shl<const BITS: i32>(self) -> Self {
                OneLane(self.0 << BITS)
            }

            #[inline(always)]
            fn mul(self, other: Self) -> Self {
                OneLane(self.0.wrapping_mul(other.0))
            }

            #[inline(always)]
            fn scale(self, len: Self) -> Self {
                let top: fn($word) -> u64 = $top;
                OneLane((top(self.0) * u64::from(len.0 as u32) >> 32) as $word)
            }

            #[inline(always)]
            fn eq(self, other: Self) -> bool {
                self.0 == other.0
            }

            #[inline(always)]
            fn select(self, other: Self, mask: bool) -> Self {
                if mask { self } else { other }
            }

            #[inline(always)]
            unsafe fn gather<const STRIDE_BYTES: usize>(
                base: *const $word,
                index: Self,
                mask: bool,
                otherwise: Self,
            ) -> Self {
                if !mask {
                    return otherwise;
                }
                // SAFETY: the mask is set, so the caller guarantees a readable word at this offset.
                OneLane(unsafe { *base.byte_add(index.0 as usize * STRIDE_BYTES) })
            }
        }
    };
}

one_lane!(u32, |word| u64::from(word));
one_lane!(u64, |word| word >> 32);
