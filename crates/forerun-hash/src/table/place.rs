//! Where the entries of a hash belong, and how a place and a remainder give the hash back.
//!
//! ```text
//!   hash    | prefix | . . . . . . . . . . . . . . . . . . |       64 bits
//!             depth     scaled to 0..len: the home bucket
//!                |  remainder: the low 56 bits, kept  . . . |
//!
//!   second bucket = (scale(remainder * ODD) - home) mod len        from either bucket the other one follows
//! ```
//!
//! A segment holds the hashes of one prefix. Its buckets need not be a power of two: the hash without
//! its prefix is scaled to their number, so buckets are in the order of the hashes. That `depth` bits
//! of prefix and `len` buckets leave at most 56 bits to keep asks for `len >= 2^(8 - depth)`.

use super::bucket::{Cell, Identity, REMAINDER_BITS, Side};
use forerun_core::hashing::scale;

/// The golden ratio's fraction: an odd number whose products spread consecutive remainders.
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

/// What is needed to place a hash in a segment: the bits that all its hashes begin with, and the
/// number of its buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Geometry {
    /// Bits of the prefix: below 64.
    pub(super) depth: u32,
    /// Buckets.
    pub(super) len: u64,
}

impl Geometry {
    /// The fewest buckets from which a hash can be had back.
    pub(super) fn min_len(depth: u32) -> u64 {
        1 << (64 - REMAINDER_BITS).saturating_sub(depth)
    }

    /// The home bucket of a hash.
    #[inline(always)]
    pub(super) fn home(self, hash: u64) -> usize {
        scale(hash << self.depth, self.len) as usize
    }

    /// The other bucket of an entry that is in `bucket`.
    #[inline(always)]
    pub(super) fn other(self, bucket: usize, remainder: u64) -> usize {
        let sum = scale(remainder.wrapping_mul(ODD), self.len);
        let bucket = bucket as u64;
        let other = sum.wrapping_sub(bucket);
        (if sum >= bucket {
            other
        } else {
            other.wrapping_add(self.len)
        }) as usize
    }

    /// The counter of an entry in its home bucket.
    #[inline(always)]
    pub(super) fn cell(remainder: u64) -> Cell {
        // Bits that the second bucket hardly depends on.
        Cell::new(remainder.wrapping_mul(ODD) >> 29)
    }

    /// The home bucket of an entry that is in `bucket`.
    pub(super) fn home_of(self, bucket: usize, entry: Identity) -> usize {
        match entry.side() {
            Side::Home => bucket,
            Side::Away => self.other(bucket, entry.remainder()),
        }
    }

    /// The hash of an entry that is in `bucket`, in a segment of this prefix (the top `depth` bits of
    /// all its hashes, the others zero).
    pub(super) fn hash_of(self, prefix: u64, bucket: usize, entry: Identity) -> u64 {
        let home = self.home_of(bucket, entry) as u128;
        // The bits below the prefix of the least hash that belongs here...
        let least = (home << 64).div_ceil(u128::from(self.len)) as u64;
        // ...and of this one, as far as they were kept: `kept` bits from the top on are not known.
        let kept = REMAINDER_BITS + self.depth;
        let low = entry.remainder() << self.depth;
        let below = if kept >= 64 {
            low
        } else {
            // The only number from `least` on, less than 2^kept further, that ends in these bits.
            let mask = (1u64 << kept) - 1;
            least.wrapping_add(low.wrapping_sub(least) & mask)
        };
        prefix | (below >> self.depth)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_hash_comes_back_from_either_of_its_buckets(
            hash: u64,
            depth in 0u32..24,
            spare in 0u64..100_000,
        ) {
            let geometry = Geometry { depth, len: Geometry::min_len(depth) + spare };
            let prefix = if depth == 0 { 0 } else { hash >> (64 - depth) << (64 - depth) };
            let home = geometry.home(hash);
            let entry = Identity::home(hash);
            prop_assert!((home as u64) < geometry.len);
            prop_assert_eq!(geometry.hash_of(prefix, home, entry), hash);

            let other = geometry.other(home, entry.remainder());
            prop_assert!((other as u64) < geometry.len);
            prop_assert_eq!(geometry.other(other, entry.remainder()), home);
            prop_assert_eq!(geometry.hash_of(prefix, other, entry.on(Side::Away)), hash);
        }
    }

    #[test]
    fn the_first_and_the_last_hash_of_every_bucket_come_back() {
        for depth in [0, 1, 7, 8, 9] {
            for len in [
                Geometry::min_len(depth),
                Geometry::min_len(depth) + 1,
                257,
                999,
            ] {
                let geometry = Geometry { depth, len };
                for bucket in 0..len {
                    let first = (u128::from(bucket) << 64).div_ceil(u128::from(len)) as u64;
                    let end = (u128::from(bucket + 1) << 64).div_ceil(u128::from(len));
                    // Rounded to what a prefix of zeroes can have.
                    let first = first.div_ceil(1 << depth);
                    let last = ((end - 1) >> depth) as u64;
                    for hash in [first, last] {
                        assert_eq!(geometry.home(hash), bucket as usize);
                        let back = geometry.hash_of(0, bucket as usize, Identity::home(hash));
                        assert_eq!(back, hash, "depth {depth}, {len} buckets, bucket {bucket}");
                    }
                }
            }
        }
    }

    #[test]
    fn second_buckets_and_counters_spread_evenly() {
        let geometry = Geometry {
            depth: 0,
            len: 1000,
        };
        let mut buckets = vec![0u32; 1000];
        let mut cells = std::collections::HashMap::new();
        for hash in (0..1_000_000u64).map(|n| n.wrapping_mul(0xd134_2543_de82_ef95)) {
            let home = geometry.home(hash);
            buckets[geometry.other(home, Identity::home(hash).remainder())] += 1;
            let cell = Geometry::cell(Identity::home(hash).remainder());
            *cells.entry((home % 4, format!("{cell:?}"))).or_insert(0u32) += 1;
        }
        assert!(
            buckets.iter().all(|&n| (800..1200).contains(&n)),
            "{buckets:?}"
        );
        assert_eq!(cells.len(), 32);
        assert!(
            cells.values().all(|&n| (29_000..34_000).contains(&n)),
            "{cells:?}"
        );
    }
}
