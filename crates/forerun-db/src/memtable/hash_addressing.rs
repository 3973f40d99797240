//! Which bucket of the hash index a key has, where that bucket is, and what its slots hold.
//!
//! ```text
//!   entry in a slot  │ kept bits of the key's hash │ offset of the node in the arena │
//!                        what the offset leaves      in units of 8 bytes
//! ```
//!
//! A bucket of level k has the entries whose hashes share its k low bits; when it is split, bit k
//! decides where an entry goes. The kept bits hold that bit and those of the next levels. So most
//! splits read no nodes: only when the kept bits are used up, the keys are hashed again for the
//! next ones. Readers use neither level nor kept bits.

use std::hash::Hasher;

use foldhash::SharedSeed;
use foldhash::quality::FoldHasher;
use forerun_core::sync::SIMULATED;

use super::hash_bucket::TAG_MIN;
use super::node::ALIGN_BYTES;

/// Buckets that are split together, so that the misses of their entries overlap; also the buckets
/// of an empty index. A model has few keys, and so has a store in a simulation, where the ninth
/// key splits the first bucket.
pub(super) const GROUP: usize = if cfg!(loom) || SIMULATED { 1 } else { 8 };

/// The least number of bits for an offset. A model keeps one bit of the hash beside it, so that
/// every split uses it up, and a simulation three.
const OFFSET_BITS_MIN: u32 = if cfg!(loom) {
    31
} else if SIMULATED {
    29
} else {
    1
};

/// The buckets of the smallest chunks.
const CHUNK_BUCKETS: usize = 8;

/// Splitting begins when a bucket that is not yet split has this many entries on average, and has
/// reached all buckets at the other number. Then one bucket in 20 has more entries than slots.
pub(super) const SPLIT_FROM: usize = 6;
pub(super) const SPLIT_TO: usize = 9;

/// Where a bucket is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BucketAddress {
    pub(super) chunk: usize,
    /// The line within the chunk.
    pub(super) line: usize,
    /// The buckets of the chunk.
    pub(super) chunk_buckets: usize,
}

impl BucketAddress {
    /// The first eight chunks have eight buckets each, and so have the next eight. From there on,
    /// eight chunks double the index.
    #[inline(always)]
    pub(super) fn of(bucket: usize) -> BucketAddress {
        const SHIFT: u32 = CHUNK_BUCKETS.ilog2();
        let shift = (bucket | (CHUNK_BUCKETS * CHUNK_BUCKETS)).ilog2() - SHIFT;
        BucketAddress {
            chunk: (bucket >> shift) + (shift - SHIFT) as usize * CHUNK_BUCKETS,
            line: bucket & ((1 << shift) - 1),
            chunk_buckets: 1 << shift,
        }
    }
}

/// The bucket of a hash when there are `buckets`: the low bits of the hash, one bit fewer where the
/// bucket has not been split off yet.
#[inline(always)]
pub(super) fn bucket_of(hash: u64, buckets: usize) -> usize {
    let mask = (2 << buckets.ilog2()) - 1;
    let bucket = hash as usize & mask;
    if bucket < buckets {
        bucket
    } else {
        bucket & mask >> 1
    }
}

/// The level of a bucket when there are `buckets` buckets.
#[inline(always)]
pub(super) fn level_of(bucket: usize, buckets: usize) -> u32 {
    let level = buckets.ilog2();
    let unsplit = 1 << level;
    level + u32::from((bucket & (unsplit - 1)) < buckets - unsplit)
}

/// Levels of buckets. There are never 2^32 buckets, for an arena has fewer places.
const LEVELS: usize = 33;

/// The size of a rather small entry with its slot. If entries are not smaller, the kept bits are
/// filled for the last time long before the arena is full.
const SMALL_ENTRY_BYTES: usize = 80;

/// How the 32 bits of an entry are divided.
pub(super) struct EntryBits {
    offset_bits: u32,
    /// For each level, the number of the first bit of the hash that is kept.
    kept_from: [u8; LEVELS],
}

impl EntryBits {
    /// For an arena of this size. There is none if an offset takes all bits.
    pub(super) fn new(limit_bytes: usize) -> Option<EntryBits> {
        let units = limit_bytes / ALIGN_BYTES;
        let offset_bits = usize::BITS - units.saturating_sub(1).leading_zeros();
        let offset_bits = offset_bits.max(OFFSET_BITS_MIN);
        let kept_bits = u32::BITS
            .checked_sub(offset_bits)
            .filter(|&bits| bits > 0)?;
        let last_level = (limit_bytes / (SMALL_ENTRY_BYTES * SPLIT_TO) + 1).ilog2() + 1;
        let first = last_level % kept_bits;
        let kept_from = |level: u32| match level.checked_sub(first) {
            None => 0,
            Some(above) => first + above / kept_bits * kept_bits,
        };
        Some(EntryBits {
            offset_bits,
            kept_from: std::array::from_fn(|level| kept_from(level as u32) as u8),
        })
    }

    /// What a slot of a bucket of this level holds of an entry.
    #[inline(always)]
    pub(super) fn encode(&self, offset: usize, hash: u64, level: u32) -> u32 {
        let kept = (hash >> self.kept_from[level as usize]) as u32;
        (offset / ALIGN_BYTES) as u32 | kept << self.offset_bits
    }

    /// The offset of the node.
    #[inline(always)]
    pub(super) fn offset(&self, entry: u32) -> usize {
        (entry & ((1 << self.offset_bits) - 1)) as usize * ALIGN_BYTES
    }

    /// The bit that says whether an entry moves to the new bucket when its bucket of this level is
    /// split.
    #[inline(always)]
    pub(super) fn moving_bit(&self, level: u32) -> u32 {
        level - u32::from(self.kept_from[level as usize]) + self.offset_bits
    }

    /// Whether the kept bits of an entry in a bucket of this level do for the next level too.
    pub(super) fn keeps_past(&self, level: u32) -> bool {
        let kept_from = |level: u32| self.kept_from[level as usize];
        kept_from(level) == kept_from(level + 1)
    }
}

/// The number of buckets for a number of keys.
pub(super) fn buckets_for(keys: usize) -> usize {
    let unsplit = (keys / SPLIT_TO + 1).next_power_of_two().max(GROUP);
    unsplit + keys.saturating_sub(unsplit * SPLIT_FROM) / (SPLIT_TO - SPLIT_FROM)
}

/// The part of a hash that a slot holds.
#[inline(always)]
pub(super) fn tag(hash: u64) -> u16 {
    ((hash >> 48) as u16).max(TAG_MIN)
}

/// The hash function of keys. It is seeded, so that nobody can choose keys that collide.
pub(super) struct KeyHasher {
    seed: u64,
    shared: SharedSeed,
}

impl KeyHasher {
    pub(super) fn new(seed: u64) -> KeyHasher {
        KeyHasher {
            seed,
            shared: SharedSeed::from_u64(seed),
        }
    }

    #[inline(always)]
    pub(super) fn hash(&self, key: &[u8]) -> u64 {
        let mut hasher = FoldHasher::with_seed(self.seed, &self.shared);
        hasher.write(key);
        hasher.finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn chunks_hold_every_bucket_once() {
        let (mut bucket, mut chunk) = (0, 0);
        while bucket < 100_000 {
            let first = BucketAddress::of(bucket);
            assert_eq!((first.chunk, first.line), (chunk, 0));
            for line in 0..first.chunk_buckets {
                let place = BucketAddress::of(bucket + line);
                assert_eq!(place, BucketAddress { line, ..first });
            }
            bucket += first.chunk_buckets;
            chunk += 1;
        }
    }

    #[test]
    fn adding_a_bucket_moves_only_hashes_of_the_bucket_that_is_split() {
        let hasher = KeyHasher::new(1);
        for buckets in 1_usize..200 {
            let split = buckets - (1 << buckets.ilog2());
            for key in 0_u32..500 {
                let hash = hasher.hash(&key.to_le_bytes());
                let (before, after) = (bucket_of(hash, buckets), bucket_of(hash, buckets + 1));
                assert!(before < buckets);
                assert!(after == before || (before == split && after == buckets));
            }
        }
    }

    #[test]
    fn the_level_of_a_bucket_is_the_number_of_bits_that_its_hashes_share() {
        let hasher = KeyHasher::new(1);
        for buckets in 1_usize..200 {
            for key in 0_u32..500 {
                let hash = hasher.hash(&key.to_le_bytes());
                let bucket = bucket_of(hash, buckets);
                let level = level_of(bucket, buckets);
                let low = |bits: u32| hash as usize & ((1 << bits) - 1);
                assert_eq!(low(level), bucket, "{buckets}");
                // No bucket of the next level has been split off it.
                assert!(bucket + (1 << level) >= buckets);
            }
        }
    }

    #[test]
    fn kept_bits_decide_every_split_as_the_hash_does() {
        let hash = 0x9e37_79b9_7f4a_7c15_u64;
        for limit_bytes in [4 << 10, 64 << 20, 1 << 30, 3 << 30, 16 << 30] {
            let bits = EntryBits::new(limit_bytes).unwrap();
            let offset = limit_bytes / 16 * 8;
            let mut entry = bits.encode(offset, hash, 0);
            let mut refilled = Vec::new();
            for level in 0..31 {
                assert_eq!(bits.offset(entry), offset);
                let moves = entry >> bits.moving_bit(level) & 1;
                assert_eq!(u64::from(moves), hash >> level & 1, "{level}");
                if !bits.keeps_past(level) {
                    entry = bits.encode(offset, hash, level + 1);
                    refilled.push(level);
                }
            }
            if limit_bytes == 64 << 20 && !SIMULATED {
                assert_eq!(refilled, [7, 16, 25]);
            }
        }
        assert!(EntryBits::new((16 << 30) + ALIGN_BYTES).is_none());
    }

    #[test]
    fn the_number_of_buckets_grows_with_the_keys_and_never_by_leaps() {
        let mut last = buckets_for(0);
        for keys in 1..100_000 {
            let buckets = buckets_for(keys);
            assert!(buckets >= last && buckets - last <= 2, "{keys}");
            assert!(
                buckets <= GROUP || (buckets * 4..buckets * 8).contains(&keys),
                "{keys}"
            );
            last = buckets;
        }
    }
}
