//! AVX2: 256-bit vectors of x86_64, eight `u32` or four `u64` lanes.
//!
//! Every `unsafe` block in this file that calls an intrinsic rests on one fact: an [`Avx2`] token,
//! or a vector made with one, exists only if the CPU has AVX2 (`Avx2::new` or the caller of
//! `Avx2::new_unchecked` checked it). Blocks that access memory also say why the access is valid.

use super::{Lanes, Mask, Simd, WithSimd, scalar, sealed};
use crate::arch::Isa;
use core::arch::x86_64::*;
#[cfg(not(miri))]
use std::sync::atomic::{AtomicU64, Ordering};

/// The token of AVX2, with BMI1, BMI2 and POPCNT.
#[derive(Clone, Copy, Debug)]
pub struct Avx2(());

impl Avx2 {
    /// The token, if the CPU has the set.
    #[inline(always)]
    pub fn new() -> Option<Avx2> {
        Isa::Avx2.is_available().then_some(Avx2(()))
    }

    /// The token, without a check.
    ///
    /// # Safety
    /// The CPU has the set.
    #[inline(always)]
    pub(super) unsafe fn new_unchecked() -> Avx2 {
        Avx2(())
    }

    /// Runs the work in a function that is compiled for the set.
    #[inline(always)]
    pub fn run<W: WithSimd>(self, work: W) -> W::Output {
        #[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
        fn inner<W: WithSimd>(simd: Avx2, work: W) -> W::Output {
            work.with(simd)
        }
        // SAFETY: the token exists, so the CPU has the features that `inner` is compiled
        // with.
        unsafe { inner(self, work) }
    }
}

impl sealed::Sealed for Avx2 {}

impl Simd for Avx2 {
    const ISA: Isa = Isa::Avx2;
    type U32s = Avx2U32s;
    type U64s = Avx2U64s;

    #[inline(always)]
    fn eq_u8<const N: usize>(self, slots: &[u8; N], needle: u8) -> u32 {
        let base = slots.as_ptr();
        // SAFETY: the token proves AVX2, and each arm reads exactly the N bytes of `slots`,
        // unaligned.
        unsafe {
            let needles = _mm256_set1_epi8(needle as i8);
            let low = _mm256_castsi256_si128(needles);
            match N {
                4 => {
                    let tags = _mm_cvtsi32_si128(base.cast::<i32>().read_unaligned());
                    _mm_movemask_epi8(_mm_cmpeq_epi8(tags, low)) as u32 & 0xf
                }
                8 => {
                    let tags = _mm_loadl_epi64(base.cast());
                    _mm_movemask_epi8(_mm_cmpeq_epi8(tags, low)) as u32 & 0xff
                }
                16 => {
                    let tags = _mm_loadu_si128(base.cast());
                    _mm_movemask_epi8(_mm_cmpeq_epi8(tags, low)) as u32
                }
                32 => {
                    let tags = _mm256_loadu_si256(base.cast());
                    _mm256_movemask_epi8(_mm256_cmpeq_epi8(tags, needles)) as u32
                }
                _ => scalar::eq(slots, needle),
            }
        }
    }

    #[inline(always)]
    fn eq_u16<const N: usize>(self, slots: &[u16; N], needle: u16) -> u32 {
        let base = slots.as_ptr();
        // SAFETY: the token proves AVX2, and each arm reads exactly the 2 N bytes of `slots`,
        // unaligned.
        unsafe {
            let needles = _mm256_set1_epi16(needle as i16);
            let low = _mm256_castsi256_si128(needles);
            // Each comparison gives 0 or -1. Packing keeps these as bytes, one per slot, in order.
            match N {
                4 => {
                    let equal = _mm_cmpeq_epi16(_mm_loadl_epi64(base.cast()), low);
                    _mm_movemask_epi8(_mm_packs_epi16(equal, equal)) as u32 & 0xf
                }
                8 => {
                    let equal = _mm_cmpeq_epi16(_mm_loadu_si128(base.cast()), low);
                    _mm_movemask_epi8(_mm_packs_epi16(equal, equal)) as u32 & 0xff
                }
                16 => eq_16_u16(base, low),
                32 => eq_16_u16(base, low) | eq_16_u16(base.add(16), low) << 16,
                _ => scalar::eq(slots, needle),
            }
        }
    }

    #[inline(always)]
    fn eq_u32<const N: usize>(self, slots: &[u32; N], needle: u32) -> u32 {
        let base = slots.as_ptr();
        // SAFETY: the token proves AVX2, and each arm reads exactly the 4 N bytes of `slots`,
        // unaligned.
        unsafe {
            let needles = _mm256_set1_epi32(needle as i32);
            let low = _mm256_castsi256_si128(needles);
            match N {
                2 => {
                    let equal = _mm_cmpeq_epi32(_mm_loadl_epi64(base.cast()), low);
                    _mm_movemask_ps(_mm_castsi128_ps(equal)) as u32 & 0x3
                }
                4 => {
                    let equal = _mm_cmpeq_epi32(_mm_loadu_si128(base.cast()), low);
                    _mm_movemask_ps(_mm_castsi128_ps(equal)) as u32
                }
                8 => eq_8_u32(base, needles),
                16 => eq_8_u32(base, needles) | eq_8_u32(base.add(8), needles) << 8,
                _ => scalar::eq(slots, needle),
            }
        }
    }

    #[inline(always)]
    fn eq_u64<const N: usize>(self, slots: &[u64; N], needle: u64) -> u32 {
        let base = slots.as_ptr();
        // SAFETY: the token proves AVX2, and each arm reads exactly the 8 N bytes of `slots`,
        // unaligned.
        unsafe {
            let needles = _mm256_set1_epi64x(needle as i64);
            match N {
                2 => {
                    let low = _mm256_castsi256_si128(needles);
                    let equal = _mm_cmpeq_epi64(_mm_loadu_si128(base.cast()), low);
                    _mm_movemask_pd(_mm_castsi128_pd(equal)) as u32
                }
                4 => eq_4_u64(base, needles),
                8 => eq_4_u64(base, needles) | eq_4_u64(base.add(4), needles) << 4,
                _ => scalar::eq(slots, needle),
            }
        }
    }

    #[cfg(not(miri))]
    #[inline(always)]
    fn eq_shared_u64<const N: usize>(self, words: &[AtomicU64; N], mask: u64, needle: u64) -> u32 {
        let (fours, others) = words.as_chunks::<4>();
        let in_fours = fours.iter().enumerate().fold(0, |bits, (at, four)| {
            // SAFETY: the token proves AVX2.
            let equal = unsafe {
                let read = read_shared(four);
                let masked = _mm256_and_si256(read, _mm256_set1_epi64x(mask as i64));
                let equal = _mm256_cmpeq_epi64(masked, _mm256_set1_epi64x(needle as i64));
                _mm256_movemask_pd(_mm256_castsi256_pd(equal)) as u32
            };
            bits | equal << (4 * at)
        });
        let first = N - others.len();
        others
            .iter()
            .enumerate()
            .fold(in_fours, |bits, (at, word)| {
                let equal = word.load(Ordering::Acquire) & mask == needle;
                bits | u32::from(equal) << (first + at)
            })
    }
}

/// Reads four words that other threads may be writing, each with acquire ordering.
#[cfg(not(miri))]
#[target_feature(enable = "avx2")]
#[inline]
fn read_shared(words: &[AtomicU64; 4]) -> __m256i {
    let read;
    // SAFETY:
    // - the 32 bytes of `words` can be read, and the function has the feature;
    // - an atomic program could perform the same access with four atomic loads: on x86_64 a vector
    //   load reads each aligned quadword in one piece, as CPUs do and as models of them assume, and
    //   no load is reordered with another load, which makes it an acquire;
    // - no option declares that the code leaves memory alone, so the compiler moves no access
    //   across it.
    unsafe {
        core::arch::asm!(
            "vmovdqu {read}, ymmword ptr [{words}]",
            words = in(reg) words.as_ptr(),
            read = lateout(ymm_reg) read,
            options(nostack, preserves_flags)
        );
    }
    read
}

/// Compares 16 slots.
///
/// # Safety
/// The CPU has AVX2; 32 bytes at `base` can be read.
#[inline(always)]
unsafe fn eq_16_u16(base: *const u16, needles: __m128i) -> u32 {
    // SAFETY: the caller guarantees AVX2 and two readable 16-byte halves.
    unsafe {
        let low = _mm_cmpeq_epi16(_mm_loadu_si128(base.cast()), needles);
        let high = _mm_cmpeq_epi16(_mm_loadu_si128(base.add(8).cast()), needles);
        _mm_movemask_epi8(_mm_packs_epi16(low, high)) as u32
    }
}

/// Compares eight slots.
///
/// # Safety
/// The CPU has AVX2; 32 bytes at `base` can be read.
#[inline(always)]
unsafe fn eq_8_u32(base: *const u32, needles: __m256i) -> u32 {
    // SAFETY: the caller guarantees AVX2 and 32 readable bytes.
    unsafe {
        let equal = _mm256_cmpeq_epi32(_mm256_loadu_si256(base.cast()), needles);
        _mm256_movemask_ps(_mm256_castsi256_ps(equal)) as u32
    }
}

/// Compares four slots.
///
/// # Safety
/// The CPU has AVX2; 32 bytes at `base` can be read.
#[inline(always)]
unsafe fn eq_4_u64(base: *const u64, needles: __m256i) -> u32 {
    // SAFETY: the caller guarantees AVX2 and 32 readable bytes.
    unsafe {
        let equal = _mm256_cmpeq_epi64(_mm256_loadu_si256(base.cast()), needles);
        _mm256_movemask_pd(_mm256_castsi256_pd(equal)) as u32
    }
}

/// Eight `u32` lanes.
#[derive(Clone, Copy, Debug)]
pub struct Avx2U32s(__m256i);

/// Four `u64` lanes.
#[derive(Clone, Copy, Debug)]
pub struct Avx2U64s(__m256i);

/// A bit for each of eight lanes: all bits of the lane, or none.
#[derive(Clone, Copy, Debug)]
pub struct Mask8(__m256i);

/// A bit for each of four lanes: all bits of the lane, or none.
#[derive(Clone, Copy, Debug)]
pub struct Mask4(__m256i);

/// The operations that masks of both widths share.
macro_rules! mask {
    ($mask:ident, $bits:expr) => {
        impl Mask for $mask {
            #[inline(always)]
            fn and(self, other: Self) -> Self {
                // SAFETY: the mask was made with a token, which proves AVX2.
                $mask(unsafe { _mm256_and_si256(self.0, other.0) })
            }

            #[inline(always)]
            fn or(self, other: Self) -> Self {
                // SAFETY: the mask was made with a token, which proves AVX2.
                $mask(unsafe { _mm256_or_si256(self.0, other.0) })
            }

            #[inline(always)]
            fn and_not(self, other: Self) -> Self {
                // SAFETY: the mask was made with a token, which proves AVX2.
                $mask(unsafe { _mm256_andnot_si256(other.0, self.0) })
            }

            #[inline(always)]
            fn bits(self) -> u32 {
                let bits: fn(__m256i) -> i32 = $bits;
                bits(self.0) as u32
            }
        }
    };
}

mask!(Mask8, |mask| {
    // SAFETY: the mask was made with a token, which proves AVX2.
    unsafe { _mm256_movemask_ps(_mm256_castsi256_ps(mask)) }
});
mask!(Mask4, |mask| {
    // SAFETY: the mask was made with a token, which proves AVX2.
    unsafe { _mm256_movemask_pd(_mm256_castsi256_pd(mask)) }
});

impl Lanes<Avx2> for Avx2U32s {
    type Word = u32;
    type Mask = Mask8;
    const LEN: usize = 8;

    #[inline(always)]
    fn splat(_: Avx2, word: u32) -> Self {
        // SAFETY: the token proves AVX2.
        Avx2U32s(unsafe { _mm256_set1_epi32(word as i32) })
    }

    #[inline(always)]
    fn load(_: Avx2, words: &[u32]) -> Self {
        let words = &words[..Self::LEN];
        // SAFETY: the token proves AVX2; `words` is 32 bytes long.
        Avx2U32s(unsafe { _mm256_loadu_si256(words.as_ptr().cast()) })
    }

    #[inline(always)]
    fn store(self, words: &mut [u32]) {
        let words = &mut words[..Self::LEN];
        // SAFETY: the vector was made with a token, which proves AVX2; `words` is 32 bytes long.
        unsafe { _mm256_storeu_si256(words.as_mut_ptr().cast(), self.0) }
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: the vector was made with a token, which proves AVX2.
        Avx2U32s(unsafe { _mm256_add_epi32(self.0, other.0) })
    }

    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        // SAFETY: the vector was made with a token, which proves AVX2.
        Avx2U32s(unsafe { _mm256_xor_si256(self.0, other.0) })
    }

    #[inline(always)]
    fn shr<const BITS: i32>(self) -> Self {
        // SAFETY: the vector was made with a token, which proves AVX2.
        Avx2U32s(unsafe { _mm256_srli_epi32::<BITS>(self.0) })
    }

    #[inline(always)]
    fn shl<const BITS: i32>(self) -> Self {
        // SAFETY: the vector was made with a token, which proves AVX2.
        Avx2U32s(unsafe { _mm256_slli_epi32::<BITS>(self.0) })
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        // SAFETY: the vector was made with a token, which proves AVX2.
        Avx2U32s(unsafe { _mm256_mullo_epi32(self.0, other.0) })
    }

    #[inline(always)]
    fn scale(self, len: Self) -> Self {
        // SAFETY: the vectors were made with a token, which proves AVX2.
        Avx2U32s(unsafe {
            // The instruction multiplies every other lane to 64 bits, of which we want the upper
            // half. For the even lanes it is shifted down into place; for the odd lanes it is in
            // place already.
            let even = _mm256_mul_epu32(self.0, len.0);
            let odd = _mm256_mul_epu32(
                _mm256_srli_epi64::<32>(self.0),
                _mm256_srli_epi64::<32>(len.0),
            );
            _mm256_blend_epi32::<0b1010_1010>(_mm256_srli_epi64::<32>(even), odd)
        })
    }

    #[inline(always)]
    fn eq(self, other: Self) -> Mask8 {
        // SAFETY: the vectors were made with a token, which proves AVX2.
        Mask8(unsafe { _mm256_cmpeq_epi32(self.0, other.0) })
    }

    #[inline(always)]
    fn select(self, other: Self, mask: Mask8) -> Self {
        // SAFETY: the vectors were made with a token, which proves AVX2.
        Avx2U32s(unsafe { _mm256_blendv_epi8(other.0, self.0, mask.0) })
    }

    #[inline(always)]
    unsafe fn gather<const STRIDE_BYTES: usize>(
        base: *const u32,
        index: Self,
        mask: Mask8,
        otherwise: Self,
    ) -> Self {
        const { assert!(matches!(STRIDE_BYTES, 4 | 8 | 16)) };
        let (base, old, mask) = (base.cast::<i32>(), otherwise.0, mask.0);
        // SAFETY: the vectors were made with a token, which proves AVX2. Lanes that are not set
        // read nothing; for those that are, the caller guarantees a word at index x STRIDE_BYTES.
        // The instruction takes signed 32-bit indices; the caller's are below 2^30 and stay
        // positive even if doubled.
        Avx2U32s(unsafe {
            match STRIDE_BYTES {
                4 => _mm256_mask_i32gather_epi32::<4>(old, base, index.0, mask),
                8 => _mm256_mask_i32gather_epi32::<8>(old, base, index.0, mask),
                16 => {
                    let doubled = _mm256_slli_epi32::<1>(index.0);
                    _mm256_mask_i32gather_epi32::<8>(old, base, doubled, mask)
                }
                _ => unreachable!("checked above"),
            }
        })
    }
}

impl Lanes<Avx2> for Avx2U64s {
    type Word = u64;
    type Mask = Mask4;
    const LEN: usize = 4;

    #[inline(always)]
    fn splat(_: Avx2, word: u64) -> Self {
        // SAFETY: the token proves AVX2.
        Avx2U64s(unsafe { _mm256_set1_epi64x(word as i64) })
    }

    #[inline(always)]
    fn load(_: Avx2, words: &[u64]) -> Self {
        let words = &words[..Self::LEN];
        // SAFETY: the token proves AVX2; `words` is 32 bytes long.
        Avx2U64s(unsafe { _mm256_loadu_si256(words.as_ptr().cast()) })
    }

    #[inline(always)]
    fn store(self, words: &mut [u64]) {
        let words = &mut words[..Self::LEN];
        // SAFETY: the vector was made with a token, which proves AVX2; `words` is 32 bytes long.
        unsafe { _mm256_storeu_si256(words.as_mut_ptr().cast(), self.0) }
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: the vector was made with a token, which proves AVX2.
        Avx2U64s(unsafe { _mm256_add_epi64(self.0, other.0) })
    }

    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        // SAFETY: the vector was made with a token, which proves AVX2.
        Avx2U64s(unsafe { _mm256_xor_si256(self.0, other.0) })
    }

    #[inline(always)]
    fn shr<const BITS: i32>(self) -> Self {
        // SAFETY: the vector was made with a token, which proves AVX2.
        Avx2U64s(unsafe { _mm256_srli_epi64::<BITS>(self.0) })
    }

    #[inline(always)]
    fn shl<const BITS: i32>(self) -> Self {
        // SAFETY: the vector was made with a token, which proves AVX2.
        Avx2U64s(unsafe { _mm256_slli_epi64::<BITS>(self.0) })
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        // SAFETY: the vectors were made with a token, which proves AVX2.
        Avx2U64s(unsafe {
            // There is only a multiplication 32 x 32 -> 64. With a = a1 2^32 + a0 and likewise b, a
            // b is a0 b0 + (a1 b0 + a0 b1) 2^32; the remaining term exceeds 64 bits.
            let cross_1 = _mm256_mul_epu32(_mm256_srli_epi64::<32>(self.0), other.0);
            let cross_2 = _mm256_mul_epu32(self.0, _mm256_srli_epi64::<32>(other.0));
            let cross = _mm256_slli_epi64::<32>(_mm256_add_epi64(cross_1, cross_2));
            _mm256_add_epi64(_mm256_mul_epu32(self.0, other.0), cross)
        })
    }

    #[inline(always)]
    fn scale(self, len: Self) -> Self {
        // SAFETY: the vectors were made with a token, which proves AVX2.
        Avx2U64s(unsafe {
            _mm256_srli_epi64::<32>(_mm256_mul_epu32(_mm256_srli_epi64::<32>(self.0), len.0))
        })
    }

    #[inline(always)]
    fn eq(self, other: Self) -> Mask4 {
        // SAFETY: the vectors were made with a token, which proves AVX2.
        Mask4(unsafe { _mm256_cmpeq_epi64(self.0, other.0) })
    }

    #[inline(always)]
    fn select(self, other: Self, mask: Mask4) -> Self {
        // SAFETY: the vectors were made with a token, which proves AVX2.
        Avx2U64s(unsafe { _mm256_blendv_epi8(other.0, self.0, mask.0) })
    }

    #[inline(always)]
    unsafe fn gather<const STRIDE_BYTES: usize>(
        base: *const u64,
        index: Self,
        mask: Mask4,
        otherwise: Self,
    ) -> Self {
        const { assert!(matches!(STRIDE_BYTES, 4 | 8 | 16)) };
        let (base, old, mask) = (base.cast::<i64>(), otherwise.0, mask.0);
        // SAFETY: the vectors were made with a token, which proves AVX2. Lanes that are not set
        // read nothing; for those that are, the caller guarantees a word at index x STRIDE_BYTES,
        // an offset that 64 bits hold.
        Avx2U64s(unsafe {
            match STRIDE_BYTES {
                4 => _mm256_mask_i64gather_epi64::<4>(old, base, index.0, mask),
                8 => _mm256_mask_i64gather_epi64::<8>(old, base, index.0, mask),
                16 => {
                    let doubled = _mm256_slli_epi64::<1>(index.0);
                    _mm256_mask_i64gather_epi64::<8>(old, base, doubled, mask)
                }
                _ => unreachable!("checked above"),
            }
        })
    }
}
