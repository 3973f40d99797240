//! NEON: 128-bit vectors of aarch64, four `u32` or two `u64` lanes.
//!
//! Every `unsafe` block in this file that calls an intrinsic rests on one fact: a [`Neon`] token,
//! or a vector made with one, exists only if the CPU has NEON (`Neon::new` checked it). Blocks that
//! access memory also say why the access is valid.
//!
//! NEON has no instruction that collects one bit per lane. Masks become bits by keeping a different
//! bit in each lane and adding up the lanes. It also lacks a gather and a multiplication of 64-bit
//! lanes; both go lane by lane.

use super::{Lanes, Mask, Simd, WithSimd, scalar, sealed};
use crate::arch::Isa;
use core::arch::aarch64::*;

/// The token of NEON.
#[derive(Clone, Copy, Debug)]
pub struct Neon(());

impl Neon {
    /// The token, if the CPU has the set.
    #[inline(always)]
    pub fn new() -> Option<Neon> {
        Isa::Neon.is_available().then_some(Neon(()))
    }

    /// Runs the work in a function that is compiled for the set.
    #[inline(always)]
    pub fn run<W: WithSimd>(self, work: W) -> W::Output {
        #[target_feature(enable = "neon")]
        fn inner<W: WithSimd>(simd: Neon, work: W) -> W::Output {
            work.with(simd)
        }
        // SAFETY: the token exists, so the CPU has the feature that `inner` is compiled with.
        unsafe { inner(self, work) }
    }
}

impl sealed::Sealed for Neon {}

/// One bit for each of 8 byte lanes.
const BITS_U8: [u8; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
/// One bit for each of 8 lanes of 16 bits.
const BITS_U16: [u16; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
/// One bit for each of 4 lanes of 32 bits.
const BITS_U32: [u32; 4] = [1, 2, 4, 8];

impl Simd for Neon {
    const ISA: Isa = Isa::Neon;
    type U32s = NeonU32s;
    type U64s = NeonU64s;

    #[inline(always)]
    fn eq_u8<const N: usize>(self, slots: &[u8; N], needle: u8) -> u32 {
        if !matches!(N, 8 | 16 | 32) {
            return scalar::eq(slots, needle);
        }
        let mut equal = 0;
        for (group, slots) in slots.chunks_exact(8).enumerate() {
            // SAFETY: the token proves NEON; a chunk is 8 bytes long, and so is BITS_U8.
            let bits = unsafe {
                let same = vceq_u8(vld1_u8(slots.as_ptr()), vdup_n_u8(needle));
                vaddv_u8(vand_u8(same, vld1_u8(BITS_U8.as_ptr())))
            };
            equal |= u32::from(bits) << (8 * group);
        }
        equal
    }

    #[inline(always)]
    fn eq_u16<const N: usize>(self, slots: &[u16; N], needle: u16) -> u32 {
        if !matches!(N, 8 | 16 | 32) {
            return scalar::eq(slots, needle);
        }
        let mut equal = 0;
        for (group, slots) in slots.chunks_exact(8).enumerate() {
            // SAFETY: the token proves NEON; a chunk is 8 words of 16 bits, and so is BITS_U16.
            let bits = unsafe {
                let same = vceqq_u16(vld1q_u16(slots.as_ptr()), vdupq_n_u16(needle));
                vaddvq_u16(vandq_u16(same, vld1q_u16(BITS_U16.as_ptr())))
            };
            equal |= u32::from(bits) << (8 * group);
        }
        equal
    }

    #[inline(always)]
    fn eq_u32<const N: usize>(self, slots: &[u32; N], needle: u32) -> u32 {
        if !matches!(N, 4 | 8 | 16) {
            return scalar::eq(slots, needle);
        }
        let mut equal = 0;
        for (group, slots) in slots.chunks_exact(4).enumerate() {
            // SAFETY: the token proves NEON; a chunk is 4 words of 32 bits, and so is BITS_U32.
            let bits = unsafe {
                let same = vceqq_u32(vld1q_u32(slots.as_ptr()), vdupq_n_u32(needle));
                vaddvq_u32(vandq_u32(same, vld1q_u32(BITS_U32.as_ptr())))
            };
            equal |= bits << (4 * group);
        }
        equal
    }

    #[inline(always)]
    fn eq_u64<const N: usize>(self, slots: &[u64; N], needle: u64) -> u32 {
        if !matches!(N, 2 | 4 | 8) {
            return scalar::eq(slots, needle);
        }
        let mut equal = 0;
        for (group, slots) in slots.chunks_exact(2).enumerate() {
            // SAFETY: the token proves NEON; a chunk is 2 words of 64 bits.
            let same = unsafe { vceqq_u64(vld1q_u64(slots.as_ptr()), vdupq_n_u64(needle)) };
            equal |= bits_u64(same) << (2 * group);
        }
        equal
    }
}

/// The two lanes of a mask as two bits. `mask` was made with a token.
#[inline(always)]
fn bits_u64(mask: uint64x2_t) -> u32 {
    // SAFETY: the mask was made with a token, which proves NEON.
    unsafe { (vgetq_lane_u64::<0>(mask) & 1 | vgetq_lane_u64::<1>(mask) & 2) as u32 }
}

/// Four `u32` lanes.
#[derive(Clone, Copy, Debug)]
pub struct NeonU32s(uint32x4_t);

/// Two `u64` lanes.
#[derive(Clone, Copy, Debug)]
pub struct NeonU64s(uint64x2_t);

/// A mask of four lanes. All bits of a lane are set, or none.
#[derive(Clone, Copy, Debug)]
pub struct Mask4(uint32x4_t);

/// A mask of two lanes. All bits of a lane are set, or none.
#[derive(Clone, Copy, Debug)]
pub struct Mask2(uint64x2_t);

impl Mask for Mask4 {
    #[inline(always)]
    fn and(self, other: Self) -> Self {
        // SAFETY: the masks were made with a token, which proves NEON.
        Mask4(unsafe { vandq_u32(self.0, other.0) })
    }

    #[inline(always)]
    fn or(self, other: Self) -> Self {
        // SAFETY: the masks were made with a token, which proves NEON.
        Mask4(unsafe { vorrq_u32(self.0, other.0) })
    }

    #[inline(always)]
    fn and_not(self, other: Self) -> Self {
        // SAFETY: the masks were made with a token, which proves NEON.
        Mask4(unsafe { vbicq_u32(self.0, other.0) })
    }

    #[inline(always)]
    fn bits(self) -> u32 {
        // SAFETY: the mask was made with a token, which proves NEON; BITS_U32 is 4 words of 32
        // bits.
        unsafe { vaddvq_u32(vandq_u32(self.0, vld1q_u32(BITS_U32.as_ptr()))) }
    }
}

impl Mask for Mask2 {
    #[inline(always)]
    fn and(self, other: Self) -> Self {
        // SAFETY: the masks were made with a token, which proves NEON.
        Mask2(unsafe { vandq_u64(self.0, other.0) })
    }

    #[inline(always)]
    fn or(self, other: Self) -> Self {
        // SAFETY: the masks were made with a token, which proves NEON.
        Mask2(unsafe { vorrq_u64(self.0, other.0) })
    }

    #[inline(always)]
    fn and_not(self, other: Self) -> Self {
        // SAFETY: the masks were made with a token, which proves NEON.
        Mask2(unsafe { vbicq_u64(self.0, other.0) })
    }

    #[inline(always)]
    fn bits(self) -> u32 {
        bits_u64(self.0)
    }
}

impl Lanes<Neon> for NeonU32s {
    type Word = u32;
    type Mask = Mask4;
    const LEN: usize = 4;

    #[inline(always)]
    fn splat(_: Neon, word: u32) -> Self {
        // SAFETY: the token proves NEON.
        NeonU32s(unsafe { vdupq_n_u32(word) })
    }

    #[inline(always)]
    fn load(_: Neon, words: &[u32]) -> Self {
        let words = &words[..Self::LEN];
        // SAFETY: the token proves NEON; `words` is 16 bytes long.
        NeonU32s(unsafe { vld1q_u32(words.as_ptr()) })
    }

    #[inline(always)]
    fn store(self, words: &mut [u32]) {
        let words = &mut words[..Self::LEN];
        // SAFETY: the vector was made with a token, which proves NEON; `words` is 16 bytes long.
        unsafe { vst1q_u32(words.as_mut_ptr(), self.0) }
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: the vectors were made with a token, which proves NEON.
        NeonU32s(unsafe { vaddq_u32(self.0, other.0) })
    }

    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        // SAFETY: the vectors were made with a token, which proves NEON.
        NeonU32s(unsafe { veorq_u32(self.0, other.0) })
    }

    #[inline(always)]
    fn shr<const BITS: i32>(self) -> Self {
        // SAFETY: the vector was made with a token, which proves NEON. A shift by a negative number
        // shifts right.
        NeonU32s(unsafe { vshlq_u32(self.0, vdupq_n_s32(-BITS)) })
    }

    #[inline(always)]
    fn shl<const BITS: i32>(self) -> Self {
        // SAFETY: the vector was made with a token, which proves NEON.
        NeonU32s(unsafe { vshlq_u32(self.0, vdupq_n_s32(BITS)) })
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        // SAFETY: the vectors were made with a token, which proves NEON.
        NeonU32s(unsafe { vmulq_u32(self.0, other.0) })
    }

    #[inline(always)]
    fn scale(self, len: Self) -> Self {
        // SAFETY: the vectors were made with a token, which proves NEON.
        NeonU32s(unsafe {
            let low = vmull_u32(vget_low_u32(self.0), vget_low_u32(len.0));
            let high = vmull_u32(vget_high_u32(self.0), vget_high_u32(len.0));
            vcombine_u32(vshrn_n_u64::<32>(low), vshrn_n_u64::<32>(high))
        })
    }

    #[inline(always)]
    fn eq(self, other: Self) -> Mask4 {
        // SAFETY: the vectors were made with a token, which proves NEON.
        Mask4(unsafe { vceqq_u32(self.0, other.0) })
    }

    #[inline(always)]
    fn select(self, other: Self, mask: Mask4) -> Self {
        // SAFETY: the vectors were made with a token, which proves NEON.
        NeonU32s(unsafe { vbslq_u32(mask.0, self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn gather<const STRIDE_BYTES: usize>(
        base: *const u32,
        index: Self,
        mask: Mask4,
        otherwise: Self,
    ) -> Self {
        let (mut lanes, mut indices) = ([0; 4], [0; 4]);
        otherwise.store(&mut lanes);
        index.store(&mut indices);
        let set = mask.bits();
        for (i, lane) in lanes.iter_mut().enumerate() {
            if set >> i & 1 == 1 {
                // SAFETY: the mask is set, so the caller guarantees a readable word at this offset.
                *lane = unsafe { *base.byte_add(indices[i] as usize * STRIDE_BYTES) };
            }
        }
        // SAFETY: the vectors were made with a token, which proves NEON; `lanes` is 16 bytes long.
        NeonU32s(unsafe { vld1q_u32(lanes.as_ptr()) })
    }
}

impl Lanes<Neon> for NeonU64s {
    type Word = u64;
    type Mask = Mask2;
    const LEN: usize = 2;

    #[inline(always)]
    fn splat(_: Neon, word: u64) -> Self {
        // SAFETY: the token proves NEON.
        NeonU64s(unsafe { vdupq_n_u64(word) })
    }

    #[inline(always)]
    fn load(_: Neon, words: &[u64]) -> Self {
        let words = &words[..Self::LEN];
        // SAFETY: the token proves NEON; `words` is 16 bytes long.
        NeonU64s(unsafe { vld1q_u64(words.as_ptr()) })
    }

    #[inline(always)]
    fn store(self, words: &mut [u64]) {
        let words = &mut words[..Self::LEN];
        // SAFETY: the vector was made with a token, which proves NEON; `words` is 16 bytes long.
        unsafe { vst1q_u64(words.as_mut_ptr(), self.0) }
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: the vectors were made with a token, which proves NEON.
        NeonU64s(unsafe { vaddq_u64(self.0, other.0) })
    }

    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        // SAFETY: the vectors were made with a token, which proves NEON.
        NeonU64s(unsafe { veorq_u64(self.0, other.0) })
    }

    #[inline(always)]
    fn shr<const BITS: i32>(self) -> Self {
        // SAFETY: the vector was made with a token, which proves NEON. A shift by a negative number
        // shifts right.
        NeonU64s(unsafe { vshlq_u64(self.0, vdupq_n_s64(-i64::from(BITS))) })
    }

    #[inline(always)]
    fn shl<const BITS: i32>(self) -> Self {
        // SAFETY: the vector was made with a token, which proves NEON.
        NeonU64s(unsafe { vshlq_u64(self.0, vdupq_n_s64(i64::from(BITS))) })
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        let (mut left, mut right) = ([0; 2], [0; 2]);
        self.store(&mut left);
        other.store(&mut right);
        let products = [
            left[0].wrapping_mul(right[0]),
            left[1].wrapping_mul(right[1]),
        ];
        // SAFETY: the vectors were made with a token, which proves NEON; `products` is 16 bytes
        // long.
        NeonU64s(unsafe { vld1q_u64(products.as_ptr()) })
    }

    #[inline(always)]
    fn scale(self, len: Self) -> Self {
        // SAFETY: the vectors were made with a token, which proves NEON.
        NeonU64s(unsafe {
            let top = vshrn_n_u64::<32>(self.0);
            vshrq_n_u64::<32>(vmull_u32(top, vmovn_u64(len.0)))
        })
    }

    #[inline(always)]
    fn eq(self, other: Self) -> Mask2 {
        // SAFETY: the vectors were made with a token, which proves NEON.
        Mask2(unsafe { vceqq_u64(self.0, other.0) })
    }

    #[inline(always)]
    fn select(self, other: Self, mask: Mask2) -> Self {
        // SAFETY: the vectors were made with a token, which proves NEON.
        NeonU64s(unsafe { vbslq_u64(mask.0, self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn gather<const STRIDE_BYTES: usize>(
        base: *const u64,
        index: Self,
        mask: Mask2,
        otherwise: Self,
    ) -> Self {
        let (mut lanes, mut indices) = ([0; 2], [0; 2]);
        otherwise.store(&mut lanes);
        index.store(&mut indices);
        let set = mask.bits();
        for (i, lane) in lanes.iter_mut().enumerate() {
            if set >> i & 1 == 1 {
                // SAFETY: the mask is set, so the caller guarantees a readable word at this offset.
                *lane = unsafe { *base.byte_add(indices[i] as usize * STRIDE_BYTES) };
            }
        }
        // SAFETY: the vectors were made with a token, which proves NEON; `lanes` is 16 bytes long.
        NeonU64s(unsafe { vld1q_u64(lanes.as_ptr()) })
    }
}
