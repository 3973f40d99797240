//! AVX-512 (F, BW, DQ, VL): 512-bit vectors of x86_64, sixteen `u32` or eight `u64` lanes, and mask
//! registers.
//!
//! Every `unsafe` block in this file that calls an intrinsic rests on one fact: an [`Avx512`]
//! token, or a vector made with one, exists only if the CPU has these sets (`Avx512::new` checked
//! it). Blocks that access memory also say why the access is valid.

use super::{Avx2, Lanes, Mask, Simd, WithSimd, scalar, sealed};
use crate::arch::Isa;
use core::arch::x86_64::*;
use std::sync::atomic::AtomicU64;

/// The token of AVX-512 F, BW, DQ and VL, and everything in [`Avx2`].
#[derive(Clone, Copy, Debug)]
pub struct Avx512(());

impl Avx512 {
    /// The token, if the CPU has the sets.
    #[inline(always)]
    pub fn new() -> Option<Avx512> {
        Isa::Avx512.is_available().then_some(Avx512(()))
    }

    /// The token of the smaller set.
    #[inline(always)]
    fn avx2(self) -> Avx2 {
        // SAFETY: `Avx512::new` checked for AVX2 too.
        unsafe { Avx2::new_unchecked() }
    }

    /// Runs the work in a function that is compiled for the sets.
    #[inline(always)]
    pub fn run<W: WithSimd>(self, work: W) -> W::Output {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi1,bmi2,popcnt")]
        fn inner<W: WithSimd>(simd: Avx512, work: W) -> W::Output {
            work.with(simd)
        }
        // SAFETY: the token exists, so the CPU has the features that `inner` is compiled
        // with.
        unsafe { inner(self, work) }
    }
}

impl sealed::Sealed for Avx512 {}

impl Simd for Avx512 {
    const ISA: Isa = Isa::Avx512;
    type U32s = Avx512U32s;
    type U64s = Avx512U64s;

    #[inline(always)]
    fn eq_u8<const N: usize>(self, slots: &[u8; N], needle: u8) -> u32 {
        // At most 32 bytes: AVX2 needs the same number of instructions.
        self.avx2().eq_u8(slots, needle)
    }

    #[inline(always)]
    fn eq_u16<const N: usize>(self, slots: &[u16; N], needle: u16) -> u32 {
        let base = slots.as_ptr();
        // SAFETY: the token proves AVX-512, and each arm reads exactly the 2 N bytes of `slots`,
        // unaligned.
        unsafe {
            let needles = _mm512_set1_epi16(needle as i16);
            match N {
                8 => {
                    let tags = _mm_loadu_si128(base.cast());
                    u32::from(_mm_cmpeq_epi16_mask(tags, _mm512_castsi512_si128(needles)))
                }
                16 => {
                    let tags = _mm256_loadu_si256(base.cast());
                    u32::from(_mm256_cmpeq_epi16_mask(
                        tags,
                        _mm512_castsi512_si256(needles),
                    ))
                }
                32 => _mm512_cmpeq_epi16_mask(_mm512_loadu_si512(base.cast()), needles),
                _ => self.avx2().eq_u16(slots, needle),
            }
        }
    }

    #[inline(always)]
    fn eq_u32<const N: usize>(self, slots: &[u32; N], needle: u32) -> u32 {
        let base = slots.as_ptr();
        // SAFETY: the token proves AVX-512, and each arm reads exactly the 4 N bytes of `slots`,
        // unaligned.
        unsafe {
            let needles = _mm512_set1_epi32(needle as i32);
            match N {
                4 => {
                    let keys = _mm_loadu_si128(base.cast());
                    u32::from(_mm_cmpeq_epi32_mask(keys, _mm512_castsi512_si128(needles)))
                }
                8 => {
                    let keys = _mm256_loadu_si256(base.cast());
                    u32::from(_mm256_cmpeq_epi32_mask(
                        keys,
                        _mm512_castsi512_si256(needles),
                    ))
                }
                16 => {
                    let keys = _mm512_loadu_si512(base.cast());
                    u32::from(_mm512_cmpeq_epi32_mask(keys, needles))
                }
                2 => self.avx2().eq_u32(slots, needle),
                _ => scalar::eq(slots, needle),
            }
        }
    }

    #[inline(always)]
    fn eq_u64<const N: usize>(self, slots: &[u64; N], needle: u64) -> u32 {
        let base = slots.as_ptr();
        // SAFETY: the token proves AVX-512, and each arm reads exactly the 8 N bytes of `slots`,
        // unaligned.
        unsafe {
            let needles = _mm512_set1_epi64(needle as i64);
            match N {
                2 => {
                    let keys = _mm_loadu_si128(base.cast());
                    u32::from(_mm_cmpeq_epi64_mask(keys, _mm512_castsi512_si128(needles)))
                }
                4 => {
                    let keys = _mm256_loadu_si256(base.cast());
                    u32::from(_mm256_cmpeq_epi64_mask(
                        keys,
                        _mm512_castsi512_si256(needles),
                    ))
                }
                8 => {
                    let keys = _mm512_loadu_si512(base.cast());
                    u32::from(_mm512_cmpeq_epi64_mask(keys, needles))
                }
                _ => scalar::eq(slots, needle),
            }
        }
    }

    #[inline(always)]
    fn eq_shared_u64<const N: usize>(self, words: &[AtomicU64; N], mask: u64, needle: u64) -> u32 {
        self.avx2().eq_shared_u64(words, mask, needle)
    }
}

/// Sixteen `u32` lanes.
#[derive(Clone, Copy, Debug)]
pub struct Avx512U32s(__m512i);

/// Eight `u64` lanes.
#[derive(Clone, Copy, Debug)]
pub struct Avx512U64s(__m512i);

/// The mask registers of both widths: plain integers with one bit per lane.
macro_rules! mask {
    ($mask:ty) => {
        impl Mask for $mask {
            #[inline(always)]
            fn and(self, other: Self) -> Self {
                self & other
            }

            #[inline(always)]
            fn or(self, other: Self) -> Self {
                self | other
            }

            #[inline(always)]
            fn and_not(self, other: Self) -> Self {
                self & !other
            }

            #[inline(always)]
            fn bits(self) -> u32 {
                u32::from(self)
            }
        }
    };
}

mask!(__mmask16);
mask!(__mmask8);

impl Lanes<Avx512> for Avx512U32s {
    type Word = u32;
    type Mask = __mmask16;
    const LEN: usize = 16;

    #[inline(always)]
    fn splat(_: Avx512, word: u32) -> Self {
        // SAFETY: the token proves AVX-512.
        Avx512U32s(unsafe { _mm512_set1_epi32(word as i32) })
    }

    #[inline(always)]
    fn load(_: Avx512, words: &[u32]) -> Self {
        let words = &words[..Self::LEN];
        // SAFETY: the token proves AVX-512; `words` is 64 bytes long.
        Avx512U32s(unsafe { _mm512_loadu_si512(words.as_ptr().cast()) })
    }

    #[inline(always)]
    fn store(self, words: &mut [u32]) {
        let words = &mut words[..Self::LEN];
        // SAFETY: the vector was made with a token, which proves AVX-512; `words` is 64 bytes long.
        unsafe { _mm512_storeu_si512(words.as_mut_ptr().cast(), self.0) }
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: the vectors were made with a token, which proves AVX-512.
        Avx512U32s(unsafe { _mm512_add_epi32(self.0, other.0) })
    }

    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        // SAFETY: the vectors were made with a token, which proves AVX-512.
        Avx512U32s(unsafe { _mm512_xor_si512(self.0, other.0) })
    }

    #[inline(always)]
    fn shr<const BITS: i32>(self) -> Self {
        // SAFETY: the vector was made with a token, which proves AVX-512.
        Avx512U32s(unsafe { _mm512_srl_epi32(self.0, _mm_cvtsi32_si128(BITS)) })
    }

    #[inline(always)]
    fn shl<const BITS: i32>(self) -> Self {
        // SAFETY: the vector was made with a token, which proves AVX-512.
        Avx512U32s(unsafe { _mm512_sll_epi32(self.0, _mm_cvtsi32_si128(BITS)) })
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        // SAFETY: the vectors were made with a token, which proves AVX-512.
        Avx512U32s(unsafe { _mm512_mullo_epi32(self.0, other.0) })
    }

    #[inline(always)]
    fn scale(self, len: Self) -> Self {
        // SAFETY: the vectors were made with a token, which proves AVX-512.
        Avx512U32s(unsafe {
            // The instruction multiplies every other lane to 64 bits, of which we want the upper
            // half. For the even lanes it is shifted down into place; for the odd lanes it is in
            // place already.
            let even = _mm512_mul_epu32(self.0, len.0);
            let odd = _mm512_mul_epu32(
                _mm512_srli_epi64::<32>(self.0),
                _mm512_srli_epi64::<32>(len.0),
            );
            _mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64::<32>(even), odd)
        })
    }

    #[inline(always)]
    fn eq(self, other: Self) -> __mmask16 {
        // SAFETY: the vectors were made with a token, which proves AVX-512.
        unsafe { _mm512_cmpeq_epi32_mask(self.0, other.0) }
    }

    #[inline(always)]
    fn select(self, other: Self, mask: __mmask16) -> Self {
        // SAFETY: the vectors were made with a token, which proves AVX-512.
        Avx512U32s(unsafe { _mm512_mask_blend_epi32(mask, other.0, self.0) })
    }

    #[inline(always)]
    unsafe fn gather<const STRIDE_BYTES: usize>(
        base: *const u32,
        index: Self,
        mask: __mmask16,
        otherwise: Self,
    ) -> Self {
        const { assert!(matches!(STRIDE_BYTES, 4 | 8 | 16)) };
        let (base, old) = (base.cast(), otherwise.0);
        // SAFETY: the vectors were made with a token, which proves AVX-512. Lanes that are not set
        // read nothing; for those that are, the caller guarantees a word at index x STRIDE_BYTES.
        // The instruction takes signed 32-bit indices; the caller's are below 2^30 and stay
        // positive even if doubled.
        Avx512U32s(unsafe {
            match STRIDE_BYTES {
                4 => _mm512_mask_i32gather_epi32::<4>(old, mask, index.0, base),
                8 => _mm512_mask_i32gather_epi32::<8>(old, mask, index.0, base),
                16 => {
                    let doubled = _mm512_slli_epi32::<1>(index.0);
                    _mm512_mask_i32gather_epi32::<8>(old, mask, doubled, base)
                }
                _ => unreachable!("checked above"),
            }
        })
    }
}

impl Lanes<Avx512> for Avx512U64s {
    type Word = u64;
    type Mask = __mmask8;
    const LEN: usize = 8;

    #[inline(always)]
    fn splat(_: Avx512, word: u64) -> Self {
        // SAFETY: the token proves AVX-512.
        Avx512U64s(unsafe { _mm512_set1_epi64(word as i64) })
    }

    #[inline(always)]
    fn load(_: Avx512, words: &[u64]) -> Self {
        let words = &words[..Self::LEN];
        // SAFETY: the token proves AVX-512; `words` is 64 bytes long.
        Avx512U64s(unsafe { _mm512_loadu_si512(words.as_ptr().cast()) })
    }

    #[inline(always)]
    fn store(self, words: &mut [u64]) {
        let words = &mut words[..Self::LEN];
        // SAFETY: the vector was made with a token, which proves AVX-512; `words` is 64 bytes long.
        unsafe { _mm512_storeu_si512(words.as_mut_ptr().cast(), self.0) }
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: the vectors were made with a token, which proves AVX-512.
        Avx512U64s(unsafe { _mm512_add_epi64(self.0, other.0) })
    }

    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        // SAFETY: the vectors were made with a token, which proves AVX-512.
        Avx512U64s(unsafe { _mm512_xor_si512(self.0, other.0) })
    }

    #[inline(always)]
    fn shr<const BITS: i32>(self) -> Self {
        // SAFETY: the vector was made with a token, which proves AVX-512.
        Avx512U64s(unsafe { _mm512_srl_epi64(self.0, _mm_cvtsi32_si128(BITS)) })
    }

    #[inline(always)]
    fn shl<const BITS: i32>(self) -> Self {
        // SAFETY: the vector was made with a token, which proves AVX-512.
        Avx512U64s(unsafe { _mm512_sll_epi64(self.0, _mm_cvtsi32_si128(BITS)) })
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        // SAFETY: the vectors were made with a token, which proves AVX-512.
        Avx512U64s(unsafe { _mm512_mullo_epi64(self.0, other.0) })
    }

    #[inline(always)]
    fn scale(self, len: Self) -> Self {
        // SAFETY: the vectors were made with a token, which proves AVX-512.
        Avx512U64s(unsafe {
            _mm512_srli_epi64::<32>(_mm512_mul_epu32(_mm512_srli_epi64::<32>(self.0), len.0))
        })
    }

    #[inline(always)]
    fn eq(self, other: Self) -> __mmask8 {
        // SAFETY: the vectors were made with a token, which proves AVX-512.
        unsafe { _mm512_cmpeq_epi64_mask(self.0, other.0) }
    }

    #[inline(always)]
    fn select(self, other: Self, mask: __mmask8) -> Self {
        // SAFETY: the vectors were made with a token, which proves AVX-512.
        Avx512U64s(unsafe { _mm512_mask_blend_epi64(mask, other.0, self.0) })
    }

    #[inline(always)]
    unsafe fn gather<const STRIDE_BYTES: usize>(
        base: *const u64,
        index: Self,
        mask: __mmask8,
        otherwise: Self,
    ) -> Self {
        const { assert!(matches!(STRIDE_BYTES, 4 | 8 | 16)) };
        let (base, old) = (base.cast(), otherwise.0);
        // SAFETY: the vectors were made with a token, which proves AVX-512. Lanes that are not set
        // read nothing; for those that are, the caller guarantees a word at index x STRIDE_BYTES,
        // an offset that 64 bits hold.
        Avx512U64s(unsafe {
            match STRIDE_BYTES {
                4 => _mm512_mask_i64gather_epi64::<4>(old, mask, index.0, base),
                8 => _mm512_mask_i64gather_epi64::<8>(old, mask, index.0, base),
                16 => {
                    let doubled = _mm512_slli_epi64::<1>(index.0);
                    _mm512_mask_i64gather_epi64::<8>(old, mask, doubled, base)
                }
                _ => unreachable!("checked above"),
            }
        })
    }
}
