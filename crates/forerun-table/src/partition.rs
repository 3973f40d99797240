//! The shards of a table: which shard has a key, and how a batch is split and put together again.
//!
//! ```text
//!   key ──permutation of a seed──> hash ──top 10 bits──> bucket, 0..1024 ──map──> shard
//!
//!   keys        k0 k1 k2 k3 k4 k5           a batch, of shards 1 0 1 2 0 1
//!   split       k1 k4 | k0 k2 k5 | k3       by shard, each run in batch order
//!   positions    1  4 |  0  2  5 |  3       where each key was
//!   starts      0       2          5   6
//! ```
//!
//! A bucket never changes: it is a function of the key and the seed, the same on every machine and
//! in every release. Only the map from buckets to shards does. The function is
//! [`Permutation`]: SplitMix64 draws its three constants from the seed, and it ends like
//! MurmurHash3 without the last step.

use forerun_core::RegionError;
use forerun_core::hashing::Permutation;
use std::fmt;

/// The number of buckets.
pub const BUCKETS: usize = 1024;

/// A bucket is the top bits of a hash.
const SHIFT: u32 = u64::BITS - BUCKETS.trailing_zeros();

/// The buckets of keys.
#[derive(Clone, Copy, Debug)]
pub struct Buckets(Permutation);

/// A batch cannot be split: a map of buckets to shards is not usable, or memory is short.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// It does not name a shard for each bucket.
    #[error("a map has a shard for each of {BUCKETS} buckets, not for {0}")]
    Length(usize),
    /// It names a shard that does not exist.
    #[error("bucket {bucket} is mapped to shard {shard}, but there are {shards}")]
    Shard {
        /// The bucket.
        bucket: usize,
        /// The shard.
        shard: u16,
        /// The number of shards.
        shards: usize,
    },
    /// The system refused memory for the keys and positions of the batch.
    #[error("cannot allocate memory to split a batch: {0}")]
    Memory(RegionError),
}

/// A batch of keys, split by shard.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Split {
    /// The keys of shard 0 in batch order, then those of shard 1, and so on.
    pub keys: Vec<u64>,
    /// The position of each of them in the batch.
    pub positions: Vec<u64>,
    /// Where each shard's keys begin; at the end, the number of keys.
    pub starts: Vec<u64>,
}

impl Buckets {
    /// The buckets for a seed.
    ///
    /// ```
    /// use forerun_table::partition::Buckets;
    ///
    /// let buckets = Buckets::from_seed(1);
    /// assert_eq!([0, 1, 2, u64::MAX].map(|key| buckets.of(key)), [6, 236, 195, 634]);
    /// ```
    pub fn from_seed(seed: u64) -> Buckets {
        Buckets(Permutation::from_seed(seed))
    }

    /// The bucket of a key.
    #[inline]
    pub fn of(&self, key: u64) -> u16 {
        // Ten bits.
        (self.0.hash(key) >> SHIFT) as u16
    }

    /// Splits a batch by a map of buckets to shards, with a counting sort. It takes the keys at
    /// some positions of the batch, or all of them.
    ///
    /// # Errors
    /// [`MapError`]: the map does not fit the number of shards, or there is no memory.
    ///
    /// # Panics
    /// If a position is outside the batch.
    pub fn split(
        &self,
        keys: &[u64],
        positions: Option<&[u64]>,
        map: &[u16],
        shards: usize,
    ) -> Result<Split, MapError> {
        check_map(map, shards)?;
        match positions {
            None => self.sort((0..keys.len()).map(|at| (at as u64, keys[at])), map, shards),
            Some(some) => {
                let some = some.iter().map(|&at| (at, keys[at as usize]));
                self.sort(some, map, shards)
            }
        }
    }

    fn sort(
        &self,
        keys: impl ExactSizeIterator<Item = (u64, u64)> + Clone,
        map: &[u16],
        shards: usize,
    ) -> Result<Split, MapError> {
        let owner = |key| usize::from(map[usize::from(self.of(key))]);
        let mut starts = zeroes(shards.saturating_add(1))?;
        // The hash costs less than memory for the owners would.
        for (_, key) in keys.clone() {
            starts[owner(key) + 1] += 1;
        }
        for shard in 0..shards {
            starts[shard + 1] += starts[shard];
        }
        let mut next = zeroes(starts.len())?;
        next.copy_from_slice(&starts);
        let mut split = Split {
            keys: zeroes(keys.len())?,
            positions: zeroes(keys.len())?,
            starts,
        };
        for (at, key) in keys {
            let to = &mut next[owner(key)];
            split.keys[*to as usize] = key;
            split.positions[*to as usize] = at;
            *to += 1;
        }
        Ok(split)
    }
}

/// A vector of zeroes, whose length callers determine.
fn zeroes(len: usize) -> Result<Vec<u64>, MapError> {
    let mut vector = Vec::new();
    let reserved = vector.try_reserve_exact(len);
    reserved.map_err(|_| {
        let len_bytes = len.saturating_mul(size_of::<u64>());
        MapError::Memory(RegionError::OutOfMemory { len_bytes })
    })?;
    vector.resize(len, 0);
    Ok(vector)
}

impl fmt::Debug for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Split")
            .field("keys", &self.keys.len())
            .field("starts", &self.starts)
            .finish_non_exhaustive()
    }
}

fn check_map(map: &[u16], shards: usize) -> Result<(), MapError> {
    if map.len() != BUCKETS {
        return Err(MapError::Length(map.len()));
    }
    match map.iter().position(|&shard| usize::from(shard) >= shards) {
        None => Ok(()),
        Some(bucket) => Err(MapError::Shard {
            bucket,
            shard: map[bucket],
            shards,
        }),
    }
}

/// Copies a shard's answers to their positions in the caller's rows and flags. The rows of keys
/// that were not found are left as they are.
///
/// # Panics
/// If lengths do not match, or a position is outside the caller's memory.
pub fn scatter(
    positions: &[u64],
    answered: &[u8],
    answers: &[u8],
    row_bytes: usize,
    rows: &mut [u8],
    found: &mut [bool],
) {
    assert_eq!(positions.len(), answered.len());
    assert_eq!(positions.len() * row_bytes, answers.len());
    let answers = answers.chunks_exact(row_bytes.max(1));
    for ((&at, &answer), row) in positions.iter().zip(answered).zip(answers) {
        let at = at as usize;
        found[at] = answer != 0;
        if found[at] {
            rows[at * row_bytes..][..row_bytes].copy_from_slice(row);
        }
    }
}

/// Copies rows from their positions in a batch, one after the other.
///
/// # Panics
/// If lengths do not match, or a position is outside the batch.
pub fn gather(positions: &[u64], rows: &[u8], row_bytes: usize, into: &mut [u8]) {
    assert_eq!(positions.len() * row_bytes, into.len());
    for (&at, into) in positions.iter().zip(into.chunks_exact_mut(row_bytes)) {
        into.copy_from_slice(&rows[at as usize * row_bytes..][..row_bytes]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    const ROW: usize = 5;

    fn rows_of(keys: &[u64]) -> Vec<u8> {
        let row = |key: &u64| key.to_le_bytes()[..ROW].to_vec();
        keys.iter().flat_map(row).collect()
    }

    #[test]
    fn every_bucket_gets_its_share_of_keys_of_any_pattern() {
        let patterns: [fn(u64) -> u64; 4] = [|n| n, |n| n << 40, |n| n << 54, |n| !(n * 4096)];
        for (seed, pattern) in (0..8).flat_map(|seed| patterns.map(|pattern| (seed, pattern))) {
            let buckets = Buckets::from_seed(seed);
            let mut counts = [0u32; BUCKETS];
            // Of the third pattern there are 1,024 keys.
            let keys = if pattern(1) == 1 << 54 {
                1 << 10
            } else {
                1 << 17
            };
            (0..keys).for_each(|n| counts[usize::from(buckets.of(pattern(n)))] += 1);
            let mean = keys as f64 / BUCKETS as f64;
            let max = f64::from(counts.into_iter().max().unwrap());
            assert!(
                max <= mean + 8.0 * mean.sqrt() + 2.0,
                "{seed}: {max} of {mean}"
            );
        }
    }

    #[test]
    fn a_map_that_does_not_fit_is_refused() {
        let buckets = Buckets::from_seed(1);
        let split = |map: &[u16], shards| buckets.split(&[1, 2], None, map, shards);
        assert_eq!(split(&[0; 7], 1), Err(MapError::Length(7)));
        let mut map = [0; BUCKETS];
        map[9] = 4;
        let refused = split(&map, 4).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "bucket 9 is mapped to shard 4, but there are 4"
        );
        assert!(split(&map, 5).is_ok());
    }

    proptest! {
        #[test]
        fn a_split_is_a_stable_partition_by_owner(
            keys in vec(prop_oneof![0..50u64, any::<u64>()], 0..300),
            seed: u64,
            shards in 1..9usize,
            owners in vec(any::<u16>(), BUCKETS),
            takes in vec(any::<bool>(), 300),
        ) {
            let buckets = Buckets::from_seed(seed);
            let map: Vec<u16> = owners.iter().map(|owner| owner % shards as u16).collect();
            let some: Vec<u64> = (0..keys.len() as u64).filter(|&at| takes[at as usize]).collect();
            let all: Vec<u64> = (0..keys.len() as u64).collect();
            for (positions, given) in [(&all, None), (&some, Some(&some[..]))] {
                let split = buckets.split(&keys, given, &map, shards).unwrap();
                let mut expected = (Vec::new(), Vec::new(), vec![0]);
                for shard in 0..shards {
                    for &at in positions {
                        let key = keys[at as usize];
                        if usize::from(map[usize::from(buckets.of(key))]) == shard {
                            expected.0.push(key);
                            expected.1.push(at);
                        }
                    }
                    expected.2.push(expected.0.len() as u64);
                }
                prop_assert_eq!((split.keys, split.positions, split.starts), expected);
            }
        }

        #[test]
        fn what_is_gathered_and_scattered_returns_to_its_place(
            keys in vec(any::<u64>(), 0..200), seed: u64, hits in vec(any::<bool>(), 200),
        ) {
            let map: Vec<u16> = (0..BUCKETS as u16).map(|bucket| bucket % 3).collect();
            let split = Buckets::from_seed(seed).split(&keys, None, &map, 3).unwrap();
            let rows = rows_of(&keys);
            let mut back = vec![0xee; rows.len()];
            let mut found = vec![false; keys.len()];
            for shard in 0..3 {
                let run = split.starts[shard] as usize..split.starts[shard + 1] as usize;
                let positions = &split.positions[run.clone()];
                let mut part = vec![0; positions.len() * ROW];
                gather(positions, &rows, ROW, &mut part);
                prop_assert_eq!(&part, &rows_of(&split.keys[run]));
                let answered: Vec<u8> =
                    positions.iter().map(|&at| u8::from(hits[at as usize])).collect();
                scatter(positions, &answered, &part, ROW, &mut back, &mut found);
            }
            for at in 0..keys.len() {
                prop_assert_eq!(found[at], hits[at]);
                let row = &back[at * ROW..][..ROW];
                let kept = &[0xee; ROW][..];
                prop_assert_eq!(row, if hits[at] { &rows[at * ROW..][..ROW] } else { kept });
            }
        }
    }
}
