//! Computes where the entry of a hash belongs, and recovers the hash from a bucket and a remainder.
//!
//! ```text
//!   hash   63      56                  40                                    0
//!         | top 8   |                   | selector -->                         |
//!           scaled to 0..len: the home bucket
//!                   | remainder: the low 56 bits, kept                         |
//!
//!   second bucket = (scale(remainder * ODD) - home) mod len        each bucket follows from the other
//! ```
//!
//! The selector, which excludes the top bits of the hash, chooses the segment. The number of
//! buckets need not be a power of two: the hash is scaled to it, so buckets are in the order of the
//! hashes. The bucket must imply the 8 bits that slots do not keep, which requires `len >= 256`.

use super::bucket::{Identity, REMAINDER_BITS, Side};
use forerun_core::hashing::scale;

/// The fraction of the golden ratio: an odd number whose products spread consecutive remainders.
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

/// The inverse of [`ODD`].
#[cfg(all(test, not(loom)))]
pub(super) const ODD_INVERSE: u64 = 0xf1de_83e1_9937_733d;

/// The selector starts at bit 39 of a hash. The bits above it distinguish up to 2^24 buckets, which
/// are 1 GiB.
pub(super) const SELECTOR_BITS: u32 = 40;

const SELECTOR_SHIFT: u32 = 64 - SELECTOR_BITS;

/// The bits of a hash that choose the segment, from the top on.
#[inline(always)]
pub(super) fn selector(hash: u64) -> u64 {
    hash << SELECTOR_SHIFT
}

/// A hash with this selector.
pub(super) fn selector_hash(selector: u64) -> u64 {
    selector >> SELECTOR_SHIFT
}

/// Places hashes in a segment, given the number of its buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Geometry {
    pub(super) len: u64,
}

impl Geometry {
    /// Minimum number of buckets from which hashes can be recovered.
    #[cfg(not(loom))]
    pub(super) const LEN_MIN: u64 = 1 << (64 - REMAINDER_BITS);
    /// Loom models look entries up and never recover their hashes.
    #[cfg(loom)]
    pub(super) const LEN_MIN: u64 = 2;

    /// The home bucket of a hash.
    #[inline(always)]
    pub(super) fn home(self, hash: u64) -> usize {
        scale(hash, self.len) as usize
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

    /// The home bucket of an entry that is in `bucket`.
    pub(super) fn home_of(self, bucket: usize, entry: Identity) -> usize {
        match entry.side() {
            Side::Home => bucket,
            Side::Second => self.other(bucket, entry.remainder()),
        }
    }

    /// The hash of an entry that is in `bucket`.
    pub(super) fn hash_of(self, bucket: usize, entry: Identity) -> u64 {
        let home = self.home_of(bucket, entry) as u128;
        // The least hash of the home bucket. All its hashes lie within 2^56 of it, and only one of
        // them ends in the remainder.
        let least = (home << 64).div_ceil(u128::from(self.len)) as u64;
        let further = entry.remainder().wrapping_sub(least) & ((1 << REMAINDER_BITS) - 1);
        least.wrapping_add(further)
    }
}

#[cfg(test)]
mod tests {
    use super::super::bucket::OverflowCounter;
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_hash_comes_back_from_either_of_its_buckets(hash: u64, spare in 0u64..100_000) {
            let geometry = Geometry { len: Geometry::LEN_MIN + spare };
            let home = geometry.home(hash);
            let entry = Identity::home(hash);
            prop_assert!((home as u64) < geometry.len);
            prop_assert_eq!(geometry.hash_of(home, entry), hash);

            let other = geometry.other(home, entry.remainder());
            prop_assert!((other as u64) < geometry.len);
            prop_assert_eq!(geometry.other(other, entry.remainder()), home);
            prop_assert_eq!(geometry.hash_of(other, entry.on(Side::Second)), hash);
        }
    }

    #[test]
    fn the_first_and_last_hash_of_every_bucket_come_back() {
        for len in [256, 257, 999, 65_535, 1 << 20] {
            let geometry = Geometry { len };
            for bucket in 0..len {
                let first = (u128::from(bucket) << 64).div_ceil(u128::from(len)) as u64;
                let last = ((u128::from(bucket + 1) << 64).div_ceil(u128::from(len)) - 1) as u64;
                for hash in [first, last] {
                    assert_eq!(geometry.home(hash), bucket as usize);
                    let back = geometry.hash_of(bucket as usize, Identity::home(hash));
                    assert_eq!(back, hash, "{len} buckets, bucket {bucket}");
                }
            }
        }
    }

    #[test]
    fn second_buckets_and_counters_spread_evenly() {
        let geometry = Geometry { len: 1000 };
        let mut buckets = vec![0u32; 1000];
        let mut cells = std::collections::HashMap::new();
        for hash in (0..1_000_000u64).map(|n| n.wrapping_mul(0xd134_2543_de82_ef95)) {
            let home = geometry.home(hash);
            buckets[geometry.other(home, Identity::home(hash).remainder())] += 1;
            let cell = OverflowCounter::new(Identity::home(hash).remainder());
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
