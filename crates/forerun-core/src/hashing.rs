//! Hashing of 64-bit keys with a seeded permutation: no two keys share a hash, and a key can be
//! recovered from its hash.
//!
//! ```text
//!   key -- + a -- ^ >> 32 -- * m1 -- ^ >> 32 -- * m2 --> hash      a, m1 and m2 are secret; m1 and m2 are odd
//! ```
//!
//! Every step is invertible. A table may therefore store only the part of a hash that the position
//! of an entry does not imply, and no key (quotienting; Knuth, The Art of Computer Programming 3,
//! exercise 6.4-13, and Cleary 1984). The top bits depend on every bit of the key: compute indexes
//! from them. The middle bits are as good; the lowest ones depend on fewer bits of the key. The
//! function is MurmurHash3's finalizer without its last step. The first step, the addition, is
//! needed: without it, keys that differ only in their top bits spread unevenly.
//!
//! Each table draws its multipliers at random, so keys that collide in one table do not collide in
//! another. This is not a cryptographic function: an attacker who can time a table for long enough
//! may learn its seed.

use crate::split_mix64;
use crate::sync::random_seed;

/// A random permutation of the 64-bit numbers.
///
/// ```
/// use forerun_core::hashing::Permutation;
///
/// let permutation = Permutation::from_seed(7);
/// let hash = permutation.hash(42);
/// assert_eq!(permutation.key(hash), 42);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permutation {
    add: u64,
    multiply: [u64; 2],
    /// The inverses of `multiply`, modulo 2^64.
    divide: [u64; 2],
}

impl Permutation {
    /// A permutation that cannot be predicted from outside this process.
    pub fn random() -> Permutation {
        Permutation::from_seed(random_seed())
    }

    /// The permutation of a seed. It is the same on every machine.
    pub fn from_seed(seed: u64) -> Permutation {
        let mut state = seed;
        // Spreads the seed over the constants.
        let mut next = || split_mix64(&mut state);
        let add = next();
        // Odd, so that the multiplication is invertible. With the top bit set, because a small
        // multiplier would leave the high half of a small key's product empty.
        let multiply = [next() | 1 | 1 << 63, next() | 1 | 1 << 63];
        Permutation {
            add,
            multiply,
            divide: multiply.map(inverse),
        }
    }

    /// The hash of a key.
    #[inline(always)]
    pub fn hash(&self, key: u64) -> u64 {
        let mut h = key.wrapping_add(self.add);
        h = (h ^ (h >> 32)).wrapping_mul(self.multiply[0]);
        h ^= h >> 32;
        h.wrapping_mul(self.multiply[1])
    }

    /// The key of a hash: the inverse of [`Permutation::hash`].
    #[inline]
    pub fn key(&self, hash: u64) -> u64 {
        let mut h = hash.wrapping_mul(self.divide[1]);
        h ^= h >> 32;
        h = h.wrapping_mul(self.divide[0]);
        (h ^ (h >> 32)).wrapping_sub(self.add)
    }
}

/// The inverse of an odd number, modulo 2^64.
fn inverse(odd: u64) -> u64 {
    // Each Newton step doubles the number of correct low bits. An odd number is its own inverse in
    // the lowest three.
    let mut x = odd;
    for _ in 0..5 {
        x = x.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(x)));
    }
    x
}

/// Scales `hash` to `0..len` by its top bits, without a division (Lemire, 2019).
///
/// ```
/// use forerun_core::hashing::scale;
///
/// assert_eq!(scale(u64::MAX, 10), 9);
/// assert_eq!(scale(0, 10), 0);
/// ```
#[inline(always)]
pub fn scale(hash: u64, len: u64) -> u64 {
    ((u128::from(hash) * u128::from(len)) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_hash_can_be_inverted(seed: u64, key: u64) {
            let permutation = Permutation::from_seed(seed);
            prop_assert_eq!(permutation.key(permutation.hash(key)), key);
        }
    }

    #[test]
    fn the_hashes_of_the_smallest_and_largest_keys_can_be_inverted() {
        for seed in 0..100 {
            let permutation = Permutation::from_seed(seed);
            for key in [0, 1, u64::MAX, u64::MAX - 1, 1 << 63, 1 << 32] {
                assert_eq!(permutation.key(permutation.hash(key)), key);
            }
        }
    }

    /// How unevenly the keys are distributed over `places`: chi-square divided by its degrees of
    /// freedom. It is near 1 for a random function.
    fn unevenness(
        keys: impl Iterator<Item = u64>,
        places: usize,
        place: impl Fn(u64) -> u64,
    ) -> f64 {
        let mut counts = vec![0u32; places];
        let mut total = 0.0;
        for key in keys {
            counts[place(key) as usize] += 1;
            total += 1.0;
        }
        let expected = total / places as f64;
        let squares = counts
            .iter()
            .map(|&n| (f64::from(n) - expected).powi(2) / expected);
        squares.sum::<f64>() / (places - 1) as f64
    }

    #[test]
    fn consecutive_keys_and_keys_with_equal_low_bits_spread_evenly() {
        const KEYS: u64 = 100_000;
        for seed in 0..20 {
            let permutation = Permutation::from_seed(seed);
            for shift in [0, 1, 3, 8, 16, 32, 40, 46] {
                let hashes = || (0..KEYS).map(|n| permutation.hash(n << shift));
                let top = unevenness(hashes(), 1024, |hash| hash >> 54);
                let middle = unevenness(hashes(), 1024, |hash| (hash >> 30) & 1023);
                let low = unevenness(hashes(), 8, |hash| hash & 7);
                assert!(top < 1.3, "seed {seed}, shift {shift}: {top}");
                assert!(middle < 1.3, "seed {seed}, shift {shift}: {middle}");
                assert!(low < 4.0, "seed {seed}, shift {shift}: {low}");
            }
        }
    }
}
