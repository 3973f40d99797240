//! The types of keys and values: `u16`, `u32` and `u64`, with their vectors and atomics.

use super::hasher::{Constants, Hash};
use super::narrow_lanes::NarrowLanes;
use super::sync::{AtomicU16, AtomicU32, AtomicU64, AtomicWord};
use forerun_core::arch::{Lanes, Simd};
use std::fmt::Debug;

/// Maximum number of slots: gathers take signed 32-bit indices of entries of up to 16 bytes.
pub const SLOTS_MAX: usize = 1 << 30;

mod sealed {
    /// Prevents other implementations: tables rely on every bit pattern being a valid word.
    pub trait Sealed {}
    impl Sealed for u16 {}
    impl Sealed for u32 {}
    impl Sealed for u64 {}
}

/// A key or a value: `u16`, `u32` or `u64`. Every number is a legal key and a legal value.
pub trait Word:
    sealed::Sealed + Copy + Eq + Ord + std::hash::Hash + Debug + Default + Send + Sync + 'static
{
    /// A vector of such words, one per lane.
    type Lanes<S: Simd>: Lanes<S, Word = Self>;

    /// The word's atomic form, for readers that run concurrently with a writer.
    #[doc(hidden)]
    #[allow(
        private_bounds,
        reason = "what an atomic word can do is no one else's concern"
    )]
    type Atomic: AtomicWord + Debug;

    /// A word that holds a key's hash: its own type, or `u32` for a narrower one.
    #[doc(hidden)]
    type HashWord: Word;

    /// The most slots of a table whose keys these are: every slot's number must be such a word.
    const SLOTS_MAX: usize = SLOTS_MAX;
    /// Size in memory.
    const BYTES: usize = size_of::<Self>();
    /// The smallest word.
    const ZERO: Self;
    /// The largest word.
    const MAX: Self;

    /// The word as 64 bits.
    fn to_u64(self) -> u64;

    /// The low bits of 64.
    fn from_u64(bits: u64) -> Self;

    /// Which of the slots equal `needle`, as one bit per slot.
    fn eq_slots<S: Simd, const N: usize>(simd: S, slots: &[Self; N], needle: Self) -> u32;

    /// The hash of a key.
    #[doc(hidden)]
    fn hash(self, constants: &Constants) -> Hash;

    /// The hashes of a vector of keys, as (first, step). The candidates of a lane are first, first
    /// + step, first + 2 step and so on, before scaling.
    #[doc(hidden)]
    fn hash_lanes<S: Simd>(
        simd: S,
        keys: Self::Lanes<S>,
        constants: &Constants,
    ) -> (Self::Lanes<S>, Self::Lanes<S>);
}

impl Word for u16 {
    type Lanes<S: Simd> = NarrowLanes<S>;
    type Atomic = AtomicU16;
    type HashWord = u32;
    const SLOTS_MAX: usize = u16::MAX as usize;
    const ZERO: u16 = 0;
    const MAX: u16 = u16::MAX;

    #[inline(always)]
    fn to_u64(self) -> u64 {
        u64::from(self)
    }

    #[inline(always)]
    fn from_u64(bits: u64) -> u16 {
        bits as u16
    }

    #[inline(always)]
    fn eq_slots<S: Simd, const N: usize>(simd: S, slots: &[u16; N], needle: u16) -> u32 {
        simd.eq_u16(slots, needle)
    }

    #[inline(always)]
    fn hash(self, constants: &Constants) -> Hash {
        constants.hash_u32(u32::from(self))
    }

    #[inline(always)]
    fn hash_lanes<S: Simd>(
        simd: S,
        keys: NarrowLanes<S>,
        constants: &Constants,
    ) -> (NarrowLanes<S>, NarrowLanes<S>) {
        let (first, step) = constants.hash_u32s(simd, keys.wide);
        let narrow = |wide| NarrowLanes { simd, wide };
        (narrow(first), narrow(step))
    }
}

impl Word for u32 {
    type Lanes<S: Simd> = S::U32s;
    type Atomic = AtomicU32;
    type HashWord = u32;
    const ZERO: u32 = 0;
    const MAX: u32 = u32::MAX;

    #[inline(always)]
    fn to_u64(self) -> u64 {
        u64::from(self)
    }

    #[inline(always)]
    fn from_u64(bits: u64) -> u32 {
        bits as u32
    }

    #[inline(always)]
    fn eq_slots<S: Simd, const N: usize>(simd: S, slots: &[u32; N], needle: u32) -> u32 {
        simd.eq_u32(slots, needle)
    }

    #[inline(always)]
    fn hash(self, constants: &Constants) -> Hash {
        constants.hash_u32(self)
    }

    #[inline(always)]
    fn hash_lanes<S: Simd>(simd: S, keys: S::U32s, constants: &Constants) -> (S::U32s, S::U32s) {
        constants.hash_u32s(simd, keys)
    }
}

impl Word for u64 {
    type Lanes<S: Simd> = S::U64s;
    type Atomic = AtomicU64;
    type HashWord = u64;
    const ZERO: u64 = 0;
    const MAX: u64 = u64::MAX;

    #[inline(always)]
    fn to_u64(self) -> u64 {
        self
    }

    #[inline(always)]
    fn from_u64(bits: u64) -> u64 {
        bits
    }

    #[inline(always)]
    fn eq_slots<S: Simd, const N: usize>(simd: S, slots: &[u64; N], needle: u64) -> u32 {
        simd.eq_u64(slots, needle)
    }

    #[inline(always)]
    fn hash(self, constants: &Constants) -> Hash {
        constants.hash_u64(self)
    }

    #[inline(always)]
    fn hash_lanes<S: Simd>(simd: S, keys: S::U64s, constants: &Constants) -> (S::U64s, S::U64s) {
        constants.hash_u64s(simd, keys)
    }
}
