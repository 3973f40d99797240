//! Which bucket of the hash index a key has, and where that bucket is.

use std::hash::Hasher;

use foldhash::SharedSeed;
use foldhash::quality::FoldHasher;

use super::hash_bucket::TAG_MIN;

/// Buckets that are split together, so that the misses of their entries overlap; also the buckets
/// of an empty index.
pub(super) const GROUP: usize = if cfg!(loom) { 1 } else { 8 };

/// The buckets of the smallest chunks. A chunk has one spare line for so many buckets.
pub(super) const CHUNK_BUCKETS: usize = 8;

/// Splitting begins when a bucket that is not yet split has this many entries on average, and has
/// reached all buckets at the other number.
pub(super) const SPLIT_FROM: usize = 6;
pub(super) const SPLIT_TO: usize = 9;

/// Where a bucket is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) chunk: usize,
    /// The line within the chunk.
    pub(super) line: usize,
    /// The buckets of the chunk. Its spare lines follow them.
    pub(super) chunk_buckets: usize,
}

impl Place {
    /// The first eight chunks have eight buckets each, and so have the next eight. From there on,
    /// eight chunks double the index.
    #[inline(always)]
    pub(super) fn of(bucket: usize) -> Place {
        const SHIFT: u32 = CHUNK_BUCKETS.ilog2();
        let shift = (bucket | (CHUNK_BUCKETS * CHUNK_BUCKETS)).ilog2() - SHIFT;
        Place {
            chunk: (bucket >> shift) + (shift - SHIFT) as usize * CHUNK_BUCKETS,
            line: bucket & ((1 << shift) - 1),
            chunk_buckets: 1 << shift,
        }
    }
}

/// The spare lines of the first chunks: one for every eight buckets.
pub(super) fn spares_in(chunks: usize) -> usize {
    match chunks {
        ..CHUNK_BUCKETS => chunks,
        _ => (CHUNK_BUCKETS + chunks % CHUNK_BUCKETS) << (chunks / CHUNK_BUCKETS - 1),
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

/// How many buckets so many keys should have.
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
    fn chunks_hold_every_bucket_once_and_have_a_spare_line_for_every_eight() {
        let (mut bucket, mut chunk) = (0, 0);
        while bucket < 100_000 {
            let first = Place::of(bucket);
            assert_eq!((first.chunk, first.line), (chunk, 0));
            for line in 0..first.chunk_buckets {
                let place = Place::of(bucket + line);
                assert_eq!(place, Place { line, ..first });
            }
            assert_eq!(spares_in(chunk) * CHUNK_BUCKETS, bucket);
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
