//! SSE4.2: 128-bit vectors of x86_64, four `u32` or two `u64` lanes.
//!
//! Every `unsafe` block in this file that calls an intrinsic rests on one fact: an [`Sse42`] token,
//! or a vector made with one, exists only if the CPU has SSE4.2 (`Sse42::new` checked it). Blocks
//! that access memory also say why the access is valid.
//!
//! The set has no gather: lanes are loaded one after the other, and only compared together.

use super::{Lanes, Mask, Simd, WithSimd, scalar, sealed};
use crate::arch::Isa;
use core::arch::x86_64::*;

/// The token of SSE4.2, with POPCNT.
#[derive(Clone, Copy, Debug)]
pub struct Sse42(());

impl Sse42 {
    /// The token, if the CPU has the set.
    #[inline(always)]
    pub fn new() -> Option<Sse42> {
        Isa::Sse42.is_available().then_some(Sse42(()))
    }

    /// Runs the work in a function that is compiled for the set.
    #[inline(always)]
    pub fn run<W: WithSimd>(self, work: W) -> W::Output {
        #[target_feature(enable = "sse4.2,popcnt")]
        fn inner<W: WithSimd>(simd: Sse42, work: W) -> W::Output {
            work.with(simd)
        }
        // SAFETY: the token exists, so the CPU has the features that `inner` is compiled
        // with.
        unsafe { inner(self, work) }
    }
}

impl sealed::Sealed for Sse42 {}

/// Compares the slots `W` at a time with `eq`, which returns a bit for each of them.
#[inline(always)]
fn eq_parts<T, const N: usize, const W: usize>(
    slots: &[T; N],
    eq: impl Fn(&[T; W]) -> u32,
) -> Option<u32> {
    let (parts, rest) = slots.as_chunks::<W>();
    let equal = parts.iter().enumerate();
    let equal = equal.fold(0, |equal, (at, part)| equal | eq(part) << (W * at));
    rest.is_empty().then_some(equal)
}

impl Simd for Sse42 {
    const ISA: Isa = Isa::Sse42;
    type U32s = Sse42U32s;
    type U64s = Sse42U64s;

    #[inline(always)]
    fn eq_u8<const N: usize>(self, slots: &[u8; N], needle: u8) -> u32 {
        let base = slots.as_ptr();
        // SAFETY: the token proves SSE4.2, and each arm reads exactly the N bytes of `slots`,
        // unaligned.
        unsafe {
            let needles = _mm_set1_epi8(needle as i8);
            let equal = |tags| _mm_movemask_epi8(_mm_cmpeq_epi8(tags, needles)) as u32;
            match N {
                4 => equal(_mm_cvtsi32_si128(base.cast::<i32>().read_unaligned())) & 0xf,
                8 => equal(_mm_loadl_epi64(base.cast())) & 0xff,
                16 => equal(_mm_loadu_si128(base.cast())),
                32 => {
                    let low = equal(_mm_loadu_si128(base.cast()));
                    low | equal(_mm_loadu_si128(base.add(16).cast())) << 16
                }
                _ => scalar::eq(slots, needle),
            }
        }
    }

    #[inline(always)]
    fn eq_u16<const N: usize>(self, slots: &[u16; N], needle: u16) -> u32 {
        // SAFETY: the token proves SSE4.2.
        let needles = unsafe { _mm_set1_epi16(needle as i16) };
        if N == 4 {
            // SAFETY: the token proves SSE4.2; four slots are the 8 bytes that are read.
            return unsafe {
                let equal = _mm_cmpeq_epi16(_mm_loadl_epi64(slots.as_ptr().cast()), needles);
                _mm_movemask_epi8(_mm_packs_epi16(equal, equal)) as u32 & 0xf
            };
        }
        let equal = eq_parts::<u16, N, 8>(slots, |part| {
            // SAFETY: the token proves SSE4.2; a part is the 16 bytes that are read. Each
            // comparison gives 0 or -1, which packing keeps as bytes, one per slot, in order.
            unsafe {
                let equal = _mm_cmpeq_epi16(_mm_loadu_si128(part.as_ptr().cast()), needles);
                _mm_movemask_epi8(_mm_packs_epi16(equal, equal)) as u32 & 0xff
            }
        });
        equal.unwrap_or_else(|| scalar::eq(slots, needle))
    }

    #[inline(always)]
    fn eq_u32<const N: usize>(self, slots: &[u32; N], needle: u32) -> u32 {
        // SAFETY: the token proves SSE4.2.
        let needles = unsafe { _mm_set1_epi32(needle as i32) };
        if N == 2 {
            // SAFETY: the token proves SSE4.2; two slots are the 8 bytes that are read.
            return unsafe {
                let equal = _mm_cmpeq_epi32(_mm_loadl_epi64(slots.as_ptr().cast()), needles);
                _mm_movemask_ps(_mm_castsi128_ps(equal)) as u32 & 0x3
            };
        }
        let equal = eq_parts::<u32, N, 4>(slots, |part| {
            // SAFETY: the token proves SSE4.2; a part is the 16 bytes that are read.
            unsafe {
                let equal = _mm_cmpeq_epi32(_mm_loadu_si128(part.as_ptr().cast()), needles);
                _mm_movemask_ps(_mm_castsi128_ps(equal)) as u32
            }
        });
        equal.unwrap_or_else(|| scalar::eq(slots, needle))
    }

    #[inline(always)]
    fn eq_u64<const N: usize>(self, slots: &[u64; N], needle: u64) -> u32 {
        // SAFETY: the token proves SSE4.2.
        let needles = unsafe { _mm_set1_epi64x(needle as i64) };
        let equal = eq_parts::<u64, N, 2>(slots, |part| {
            // SAFETY: the token proves SSE4.2; a part is the 16 bytes that are read.
            unsafe {
                let equal = _mm_cmpeq_epi64(_mm_loadu_si128(part.as_ptr().cast()), needles);
                _mm_movemask_pd(_mm_castsi128_pd(equal)) as u32
            }
        });
        equal.unwrap_or_else(|| scalar::eq(slots, needle))
    }
}

/// Four `u32` lanes.
#[derive(Clone, Copy, Debug)]
pub struct Sse42U32s(__m128i);

/// Two `u64` lanes.
#[derive(Clone, Copy, Debug)]
pub struct Sse42U64s(__m128i);

/// A bit for each of four lanes: all bits of the lane, or none.
#[derive(Clone, Copy, Debug)]
pub struct Sse42Mask4(__m128i);

/// A bit for each of two lanes: all bits of the lane, or none.
#[derive(Clone, Copy, Debug)]
pub struct Sse42Mask2(__m128i);

/// The operations that masks of both widths share.
macro_rules! mask {
    ($mask:ident, $bits:expr) => {
        impl Mask for $mask {
            #[inline(always)]
            fn and(self, other: Self) -> Self {
                // SAFETY: the mask was made with a token, which proves SSE4.2.
                $mask(unsafe { _mm_and_si128(self.0, other.0) })
            }

            #[inline(always)]
            fn or(self, other: Self) -> Self {
                // SAFETY: the mask was made with a token, which proves SSE4.2.
                $mask(unsafe { _mm_or_si128(self.0, other.0) })
            }

            #[inline(always)]
            fn and_not(self, other: Self) -> Self {
                // SAFETY: the mask was made with a token, which proves SSE4.2.
                $mask(unsafe { _mm_andnot_si128(other.0, self.0) })
            }

            #[inline(always)]
            fn bits(self) -> u32 {
                let bits: fn(__m128i) -> i32 = $bits;
                bits(self.0) as u32
            }
        }
    };
}

mask!(Sse42Mask4, |mask| {
    // SAFETY: the mask was made with a token, which proves SSE4.2.
    unsafe { _mm_movemask_ps(_mm_castsi128_ps(mask)) }
});
mask!(Sse42Mask2, |mask| {
    // SAFETY: the mask was made with a token, which proves SSE4.2.
    unsafe { _mm_movemask_pd(_mm_castsi128_pd(mask)) }
});

/// The operations that lanes of both widths share, with the instructions of each.
macro_rules! lanes {
    (
        $lanes:ident, $word:ty, $signed:ty, $mask:ident, $len:literal,
        $set:ident, $add:ident, $shr:ident, $shl:ident, $eq:ident, $mul:ident, $scale:ident
    ) => {
        impl Lanes<Sse42> for $lanes {
            type Word = $word;
            type Mask = $mask;
            const LEN: usize = $len;

            #[inline(always)]
            fn splat(_: Sse42, word: $word) -> Self {
                // SAFETY: the token proves SSE4.2.
                $lanes(unsafe { $set(word as $signed) })
            }

            #[inline(always)]
            fn load(_: Sse42, words: &[$word]) -> Self {
                let words = &words[..Self::LEN];
                // SAFETY: the token proves SSE4.2; `words` is 16 bytes long.
                $lanes(unsafe { _mm_loadu_si128(words.as_ptr().cast()) })
            }

            #[inline(always)]
            fn store(self, words: &mut [$word]) {
                let words = &mut words[..Self::LEN];
                // SAFETY: the vector was made with a token, which proves SSE4.2; `words` is 16
                // bytes long.
                unsafe { _mm_storeu_si128(words.as_mut_ptr().cast(), self.0) }
            }

            #[inline(always)]
            fn add(self, other: Self) -> Self {
                // SAFETY: the vectors were made with a token, which proves SSE4.2.
                $lanes(unsafe { $add(self.0, other.0) })
            }

            #[inline(always)]
            fn xor(self, other: Self) -> Self {
                // SAFETY: the vectors were made with a token, which proves SSE4.2.
                $lanes(unsafe { _mm_xor_si128(self.0, other.0) })
            }

            #[inline(always)]
            fn shr<const BITS: i32>(self) -> Self {
                // SAFETY: the vector was made with a token, which proves SSE4.2.
                $lanes(unsafe { $shr::<BITS>(self.0) })
            }

            #[inline(always)]
            fn shl<const BITS: i32>(self) -> Self {
                // SAFETY: the vector was made with a token, which proves SSE4.2.
                $lanes(unsafe { $shl::<BITS>(self.0) })
            }

            #[inline(always)]
            fn mul(self, other: Self) -> Self {
                // SAFETY: the vectors were made with a token, which proves SSE4.2.
                $lanes(unsafe { $mul(self.0, other.0) })
            }

            #[inline(always)]
            fn scale(self, len: Self) -> Self {
                // SAFETY: the vectors were made with a token, which proves SSE4.2.
                $lanes(unsafe { $scale(self.0, len.0) })
            }

            #[inline(always)]
            fn eq(self, other: Self) -> $mask {
                // SAFETY: the vectors were made with a token, which proves SSE4.2.
                $mask(unsafe { $eq(self.0, other.0) })
            }

            #[inline(always)]
            fn select(self, other: Self, mask: $mask) -> Self {
                // SAFETY: the vectors were made with a token, which proves SSE4.2.
                $lanes(unsafe { _mm_blendv_epi8(other.0, self.0, mask.0) })
            }

            #[inline(always)]
            unsafe fn gather<const STRIDE_BYTES: usize>(
                base: *const $word,
                index: Self,
                mask: $mask,
                otherwise: Self,
            ) -> Self {
                const { assert!(matches!(STRIDE_BYTES, 4 | 8 | 16)) };
                let (mut words, mut indices) = ([0; $len], [0; $len]);
                otherwise.store(&mut words);
                index.store(&mut indices);
                let bits = mask.bits();
                for (lane, (word, index)) in words.iter_mut().zip(indices).enumerate() {
                    if bits >> lane & 1 == 1 {
                        // SAFETY: the lane is set, so the caller guarantees a word at this offset.
                        *word = unsafe { *base.byte_add(index as usize * STRIDE_BYTES) };
                    }
                }
                // SAFETY: the mask was made with a token, which proves SSE4.2; `words` is 16 bytes
                // long.
                $lanes(unsafe { _mm_loadu_si128(words.as_ptr().cast()) })
            }
        }
    };
}

/// Scales four lanes.
///
/// # Safety
/// The CPU has SSE4.2.
#[inline(always)]
unsafe fn scale_u32s(words: __m128i, len: __m128i) -> __m128i {
    // SAFETY: the caller guarantees SSE4.2.
    unsafe {
        // The instruction multiplies every other lane to 64 bits, of which we want the upper half.
        // For the even lanes it is shifted down into place; for the odd lanes it is in place
        // already.
        let even = _mm_mul_epu32(words, len);
        let odd = _mm_mul_epu32(_mm_srli_epi64::<32>(words), _mm_srli_epi64::<32>(len));
        _mm_blend_epi16::<0b1100_1100>(_mm_srli_epi64::<32>(even), odd)
    }
}

/// The low halves of the products of two lanes.
///
/// # Safety
/// The CPU has SSE4.2.
#[inline(always)]
unsafe fn mul_u64s(a: __m128i, b: __m128i) -> __m128i {
    // SAFETY: the caller guarantees SSE4.2.
    unsafe {
        // There is only a multiplication 32 x 32 -> 64. With a = a1 2^32 + a0 and likewise b, a b
        // is a0 b0 + (a1 b0 + a0 b1) 2^32; the remaining term exceeds 64 bits.
        let cross_1 = _mm_mul_epu32(_mm_srli_epi64::<32>(a), b);
        let cross_2 = _mm_mul_epu32(a, _mm_srli_epi64::<32>(b));
        let cross = _mm_slli_epi64::<32>(_mm_add_epi64(cross_1, cross_2));
        _mm_add_epi64(_mm_mul_epu32(a, b), cross)
    }
}

/// Scales two lanes.
///
/// # Safety
/// The CPU has SSE4.2.
#[inline(always)]
unsafe fn scale_u64s(words: __m128i, len: __m128i) -> __m128i {
    // SAFETY: the caller guarantees SSE4.2.
    unsafe { _mm_srli_epi64::<32>(_mm_mul_epu32(_mm_srli_epi64::<32>(words), len)) }
}

lanes!(
    Sse42U32s,
    u32,
    i32,
    Sse42Mask4,
    4,
    _mm_set1_epi32,
    _mm_add_epi32,
    _mm_srli_epi32,
    _mm_slli_epi32,
    _mm_cmpeq_epi32,
    _mm_mullo_epi32,
    scale_u32s
);

lanes!(
    Sse42U64s,
    u64,
    i64,
    Sse42Mask2,
    2,
    _mm_set1_epi64x,
    _mm_add_epi64,
    _mm_srli_epi64,
    _mm_slli_epi64,
    _mm_cmpeq_epi64,
    mul_u64s,
    scale_u64s
);
