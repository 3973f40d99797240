//! The hash function. All designs share it, so that they differ only in layout. Each step has a
//! vector form.
//!
//! ```text
//!   u64:  key + a0 -- fold -- * m0 -- fold -- * m1 -- fold -->  first (top 32 bits), step (low 32 bits)
//!   u32:  key + a0 -- fold -- * m0 -- fold -- * m1 -- fold -->  first
//!         key + a1 -- fold -- * m2 -- fold -- * m3 -- fold -->  step
//!   fold: h ^ (h >> half its width)
//! ```
//!
//! The candidates of a key are first, first + step and first + 2 step, modulo 2^32, each scaled to
//! the table's length. This is double hashing, with which cuckoo tables reach the same load as with
//! independent choices (Mitzenmacher and Thaler, "Peeling Arguments and Double Hashing", 2012). Two
//! keys never have both words in common, because each form is a permutation (for `u32`, each word
//! alone is one). Multiply-shift alone would be cheaper, but cuckoo tables of dense keys fail with
//! it (Dietzfelbinger and Schellbach, "On Risks of Using Cuckoo Hashing with Simple Universal Hash
//! Classes", 2009).

use forerun_core::arch::{Lanes, Simd};

/// The hash of a key: two words of 32 bits, which determine all its candidates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hash {
    /// The first candidate, before scaling.
    pub first: u32,
    /// The distance between candidates. Its low bits also serve as the tag.
    pub step: u32,
}

/// The secret constants of a table's hash.
#[derive(Clone, Copy, Debug)]
pub struct Constants {
    add: [u64; 2],
    /// They are odd, and both of their halves are large.
    multiply: [u64; 4],
}

impl Constants {
    /// The constants of a seed.
    pub fn from_seed(seed: u64) -> Constants {
        let mut state = seed;
        let mut next = || {
            // SplitMix64 (Steele, Lea and Flood, 2014).
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        };
        let add = [next(), next()];
        // A small multiplier would leave the high bits of a small key's product empty.
        let multiply = [(); 4].map(|()| next() | 1 | 1 << 31 | 1 << 63);
        Constants { add, multiply }
    }

    #[inline(always)]
    pub(super) fn hash_u64(&self, key: u64) -> Hash {
        let mut h = key.wrapping_add(self.add[0]);
        h = (h ^ (h >> 32)).wrapping_mul(self.multiply[0]);
        h = (h ^ (h >> 32)).wrapping_mul(self.multiply[1]);
        h ^= h >> 32;
        Hash {
            first: (h >> 32) as u32,
            step: h as u32,
        }
    }

    #[inline(always)]
    pub(super) fn hash_u32(&self, key: u32) -> Hash {
        let mix = |add: u64, multiply: [u64; 2]| {
            let mut h = key.wrapping_add(add as u32);
            h = (h ^ (h >> 16)).wrapping_mul(multiply[0] as u32);
            h = (h ^ (h >> 16)).wrapping_mul(multiply[1] as u32);
            h ^ (h >> 16)
        };
        let [a, b, c, d] = self.multiply;
        Hash {
            first: mix(self.add[0], [a, b]),
            step: mix(self.add[1], [c, d]),
        }
    }

    /// Like [`Constants::hash_u64`], with both words in the top halves of their lanes, for scaling.
    #[inline(always)]
    pub(super) fn hash_u64s<S: Simd>(&self, simd: S, keys: S::U64s) -> (S::U64s, S::U64s) {
        let splat = |word| S::U64s::splat(simd, word);
        let mut h = keys.add(splat(self.add[0]));
        h = h.xor(h.shr::<32>()).mul(splat(self.multiply[0]));
        h = h.xor(h.shr::<32>()).mul(splat(self.multiply[1]));
        h = h.xor(h.shr::<32>());
        (h, h.shl::<32>())
    }

    /// Like [`Constants::hash_u32`].
    #[inline(always)]
    pub(super) fn hash_u32s<S: Simd>(&self, simd: S, keys: S::U32s) -> (S::U32s, S::U32s) {
        let splat = |word: u64| S::U32s::splat(simd, word as u32);
        let mix = |add, multiply: [u64; 2]| {
            let mut h = keys.add(splat(add));
            h = h.xor(h.shr::<16>()).mul(splat(multiply[0]));
            h = h.xor(h.shr::<16>()).mul(splat(multiply[1]));
            h.xor(h.shr::<16>())
        };
        let [a, b, c, d] = self.multiply;
        (mix(self.add[0], [a, b]), mix(self.add[1], [c, d]))
    }
}

/// `hash` scaled to `0..len` (Lemire, "Fast Random Integer Generation in an Interval", 2019).
#[inline(always)]
pub(super) fn scale(hash: u32, len: u32) -> u32 {
    ((u64::from(hash) * u64::from(len)) >> 32) as u32
}
