//! Vectors of `u16`: no instruction set multiplies or gathers them, so each is widened to a lane of
//! 32 bits.
//!
//! ```text
//!   u16 words in memory      │ k0 │ k1 │ k2 │ k3 │
//!   a vector                 │ 0 k0 │ 0 k1 │ 0 k2 │ 0 k3 │      arithmetic has 32 bits, a store drops the upper ones
//! ```

use super::lookup::by_lane::LANES_MAX;
use forerun_core::arch::{Lanes, Mask, Simd};

/// A vector of `u16` in the lanes of `u32`.
///
/// Lanes have 32 bits until they are stored, as hashes need.
#[derive(Clone, Copy, Debug)]
pub struct NarrowLanes<S: Simd> {
    pub(super) simd: S,
    pub(super) wide: S::U32s,
}

impl<S: Simd> NarrowLanes<S> {
    #[inline(always)]
    fn with(self, wide: S::U32s) -> Self {
        NarrowLanes { wide, ..self }
    }
}

impl<S: Simd> Lanes<S> for NarrowLanes<S> {
    type Word = u16;
    type Mask = <S::U32s as Lanes<S>>::Mask;
    const LEN: usize = <S::U32s as Lanes<S>>::LEN;

    #[inline(always)]
    fn splat(simd: S, word: u16) -> Self {
        let wide = S::U32s::splat(simd, u32::from(word));
        NarrowLanes { simd, wide }
    }

    #[inline(always)]
    fn load(simd: S, words: &[u16]) -> Self {
        let mut wide = [0; LANES_MAX];
        for (wide, &word) in wide.iter_mut().zip(&words[..Self::LEN]) {
            *wide = u32::from(word);
        }
        let wide = S::U32s::load(simd, &wide);
        NarrowLanes { simd, wide }
    }

    #[inline(always)]
    fn store(self, words: &mut [u16]) {
        let mut wide = [0; LANES_MAX];
        self.wide.store(&mut wide);
        for (word, &wide) in words[..Self::LEN].iter_mut().zip(&wide) {
            *word = wide as u16;
        }
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.with(self.wide.add(other.wide))
    }

    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        self.with(self.wide.xor(other.wide))
    }

    #[inline(always)]
    fn shr<const BITS: i32>(self) -> Self {
        self.with(self.wide.shr::<BITS>())
    }

    #[inline(always)]
    fn shl<const BITS: i32>(self) -> Self {
        self.with(self.wide.shl::<BITS>())
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        self.with(self.wide.mul(other.wide))
    }

    #[inline(always)]
    fn scale(self, len: Self) -> Self {
        self.with(self.wide.scale(len.wide))
    }

    #[inline(always)]
    fn eq(self, other: Self) -> Self::Mask {
        self.wide.eq(other.wide)
    }

    #[inline(always)]
    fn select(self, other: Self, mask: Self::Mask) -> Self {
        self.with(self.wide.select(other.wide, mask))
    }

    #[inline(always)]
    unsafe fn gather<const STRIDE_BYTES: usize>(
        base: *const u16,
        index: Self,
        mask: Self::Mask,
        otherwise: Self,
    ) -> Self {
        let (mut indices, mut words) = ([0; LANES_MAX], [0; LANES_MAX]);
        index.wide.store(&mut indices);
        otherwise.wide.store(&mut words);
        let mut set = mask.bits();
        while set != 0 {
            let lane = set.trailing_zeros() as usize;
            set &= set - 1;
            let offset_bytes = indices[lane] as usize * STRIDE_BYTES;
            // SAFETY: the lane is set, so the caller guarantees a readable word at this offset.
            words[lane] = u32::from(unsafe { *base.byte_add(offset_bytes) });
        }
        index.with(S::U32s::load(index.simd, &words))
    }
}
