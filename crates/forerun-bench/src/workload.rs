//! Keys, values and lookups, in the style of db_bench.
//!
//! ```text
//!  key    |k k .. k| number, big-endian | 0 0 .. 0 |      prefix_bytes, then up to 8 bytes, then '0' up to key_bytes
//!  value  a pseudo-random stream seeded by the number, so that a reader can check its answer
//! ```
//!
//! Of `keys` entries, the i-th has the number `2 i`. An odd number is an absent key and lies
//! between two present ones (except the last), so an unsuccessful lookup walks as far as a
//! successful one. Entries are loaded in a fixed random order: neighbours in key order are
//! neighbours neither in time nor in memory. Lookups are drawn uniformly or by Zipf's law, with
//! popular keys scattered among all, and each is for a present key with the probability of the hit
//! rate.

use crate::skew::Skew;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, Zipf};
use std::ops::Range;

/// The shape of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dataset {
    keys: u64,
    key_bytes: usize,
    prefix_bytes: usize,
    value_bytes: usize,
}

/// The reason why such data cannot exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatasetError(String);

impl std::fmt::Display for DatasetError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for DatasetError {}

impl Dataset {
    /// Data of `keys` entries; the first `prefix_bytes` of all keys are equal.
    ///
    /// ```
    /// use forerun_bench::workload::Dataset;
    ///
    /// let data = Dataset::new(1000, 16, 0, 100)?;
    /// assert_eq!(data.present(3), b"\0\0\0\0\0\0\0\x0600000000");
    /// # Ok::<(), forerun_bench::workload::DatasetError>(())
    /// ```
    ///
    /// # Errors
    /// [`DatasetError`] if there are no keys, or if keys are too short for that many numbers.
    pub fn new(
        keys: u64,
        key_bytes: usize,
        prefix_bytes: usize,
        value_bytes: usize,
    ) -> Result<Dataset, DatasetError> {
        let number_bytes = key_bytes.saturating_sub(prefix_bytes).min(8);
        let numbers = 1u128 << (8 * number_bytes);
        if keys == 0 {
            return Err(DatasetError("a benchmark needs at least one key".into()));
        }
        if 2 * u128::from(keys) > numbers {
            return Err(DatasetError(format!(
                "{keys} present and as many absent keys do not fit into keys of {key_bytes} bytes \
                 of which {prefix_bytes} are a common prefix"
            )));
        }
        Ok(Dataset {
            keys,
            key_bytes,
            prefix_bytes,
            value_bytes,
        })
    }

    /// The number of entries.
    pub fn keys(&self) -> u64 {
        self.keys
    }

    /// Bytes per key.
    pub fn key_bytes(&self) -> usize {
        self.key_bytes
    }

    /// Bytes that all keys begin with.
    pub fn prefix_bytes(&self) -> usize {
        self.prefix_bytes
    }

    /// Bytes per value.
    pub fn value_bytes(&self) -> usize {
        self.value_bytes
    }

    /// The key of the `index`-th entry in key order.
    pub fn present(&self, index: u64) -> Vec<u8> {
        let mut key = Vec::new();
        self.push_key(2 * index, &mut key);
        key
    }

    /// The position in key order of the entry with this key.
    ///
    /// # Errors
    /// [`DatasetError`] if no entry has it.
    pub fn index_of(&self, key: &[u8]) -> Result<u64, DatasetError> {
        let number_bytes = (self.key_bytes - self.prefix_bytes).min(8);
        let number = key.iter().skip(self.prefix_bytes).take(number_bytes);
        let number = number.fold(0, |number, byte| number << 8 | u64::from(*byte));
        let index = number / 2;
        if index < self.keys && self.present(index) == key {
            Ok(index)
        } else {
            Err(DatasetError(format!("no entry has the key {key:02x?}")))
        }
    }

    /// A key that no entry has: the one right after the `index`-th entry's.
    pub fn absent(&self, index: u64) -> Vec<u8> {
        let mut key = Vec::new();
        self.push_key(2 * index + 1, &mut key);
        key
    }

    /// Appends the key of a number to `out`.
    fn push_key(&self, number: u64, out: &mut Vec<u8>) {
        let start = out.len();
        let number_bytes = (self.key_bytes - self.prefix_bytes).min(8);
        out.resize(start + self.prefix_bytes, b'k');
        out.extend_from_slice(&number.to_be_bytes()[8 - number_bytes..]);
        out.resize(start + self.key_bytes, b'0');
    }

    /// Overwrites `out` with the key and value of the `index`-th entry in key order.
    pub fn entry(&self, index: u64, out: &mut EntryBuffer) {
        out.key.clear();
        self.push_key(2 * index, &mut out.key);
        self.value(index, &mut out.value);
    }

    /// Overwrites `out` with the value of the `index`-th entry in key order.
    pub fn value(&self, index: u64, out: &mut Vec<u8>) {
        out.clear();
        let mut word = index;
        while out.len() < self.value_bytes {
            word = mix(word.wrapping_add(0x9e37_79b9_7f4a_7c15));
            let bytes = word.to_le_bytes();
            let wanted = bytes.len().min(self.value_bytes - out.len());
            out.extend_from_slice(&bytes[..wanted]);
        }
    }

    /// The indices of the entries in load order: all of them if `turns` is `0..keys`, otherwise the
    /// part of one of several loading threads.
    pub fn load_order(&self, turns: Range<u64>) -> impl Iterator<Item = u64> {
        let order = Shuffle::new(self.keys);
        turns.map(move |turn| order.at(turn))
    }
}

/// A key and a value, reused from entry to entry so that no new memory is allocated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EntryBuffer {
    /// The key's bytes.
    pub key: Vec<u8>,
    /// The value's bytes.
    pub value: Vec<u8>,
}

/// The finaliser of SplitMix64: a bijection of 64-bit words in which every output bit depends on
/// every input bit.
pub(crate) fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// A fixed random order of `0..count` that needs no table: a bijection of the next power of two,
/// applied repeatedly while the result is out of range (at most half of the numbers are).
pub(crate) struct Shuffle {
    count: u64,
    bits: u32,
}

impl Shuffle {
    pub(crate) fn new(count: u64) -> Shuffle {
        let bits = u64::BITS - (count.max(2) - 1).leading_zeros();
        Shuffle { count, bits }
    }

    pub(crate) fn at(&self, turn: u64) -> u64 {
        let mask = u64::MAX >> (u64::BITS - self.bits);
        let half = self.bits.div_ceil(2);
        let mut at = turn;
        loop {
            for odd in [0x9e37_79b9_7f4a_7c15_u64, 0xd1b5_4a32_d192_ed03] {
                at = at.wrapping_mul(odd) & mask;
                at ^= at >> half;
            }
            if at < self.count {
                return at;
            }
        }
    }
}

/// A stream of keys to look up, drawn before timing starts, and which of them must be found.
///
/// The keys are concatenated in one buffer, like a caller's own batch; reading them costs a lookup
/// almost nothing. A stream that runs out starts again; it is long enough that its first lines have
/// left the caches by then.
pub struct Queries {
    bytes: Vec<u8>,
    key_bytes: usize,
    /// How many of the first i keys are present; it has one more entry than there are keys.
    hits: Vec<u32>,
}

impl Queries {
    /// The maximum number of keys that [`Queries::sized`] draws.
    pub const KEYS_MAX: usize = 1 << 19;

    /// Draws `count` keys.
    pub fn new(data: &Dataset, hit_rate: f64, skew: Skew, count: usize, seed: u64) -> Queries {
        let mut rng = SmallRng::seed_from_u64(seed);
        let scatter = Shuffle::new(data.keys);
        let zipf = match skew {
            Skew::Uniform => None,
            // A skew's exponent is in its bounds, and there is at least one key.
            Skew::Zipf(exponent) => Zipf::new(data.keys as f64, exponent).ok(),
        };
        let draw = |rng: &mut SmallRng| match &zipf {
            None => rng.random_range(0..data.keys),
            // Ranks start at 1. The shuffle leaves 0 in place, so the first rank is moved away from
            // there.
            Some(zipf) => scatter.at((zipf.sample(rng) as u64 + data.keys / 3) % data.keys),
        };
        let mut bytes = Vec::with_capacity(count * data.key_bytes);
        let mut hits = Vec::with_capacity(count + 1);
        let mut present = 0;
        hits.push(0);
        for _ in 0..count {
            let index = draw(&mut rng);
            // random() is below 1, so a hit rate of 1 always hits and a hit rate of 0 never does.
            let hit = rng.random::<f64>() < hit_rate;
            data.push_key(2 * index + u64::from(!hit), &mut bytes);
            present += u32::from(hit);
            hits.push(present);
        }
        Queries {
            bytes,
            key_bytes: data.key_bytes,
            hits,
        }
    }

    /// Draws a stream of whole batches whose length suits the data: a quarter of the entries,
    /// within limits.
    pub fn sized(data: &Dataset, hit_rate: f64, skew: Skew, batch: usize, seed: u64) -> Queries {
        let count = (data.keys / 4).clamp(1024, Queries::KEYS_MAX as u64) as usize;
        let count = count.next_multiple_of(batch.max(1));
        Queries::new(data, hit_rate, skew, count, seed)
    }

    /// The keys, in order.
    pub fn keys(&self) -> Vec<&[u8]> {
        // Empty keys cannot be split apart, but there is at most one such key.
        if self.key_bytes == 0 {
            return vec![&[]; self.hits.len() - 1];
        }
        self.bytes.chunks_exact(self.key_bytes).collect()
    }

    /// How many of the first `count` keys are present, if the stream starts again whenever it runs
    /// out.
    pub fn hits_among(&self, count: u64) -> u64 {
        let len = (self.hits.len() - 1) as u64;
        let all = u64::from(self.hits[len as usize]);
        (count / len) * all + u64::from(self.hits[(count % len) as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn present_and_absent_keys_are_distinct_ordered_and_alternate() {
        for (key_bytes, prefix_bytes) in [(16, 0), (2, 0), (24, 9), (10, 8)] {
            let data = Dataset::new(500, key_bytes, prefix_bytes, 10).unwrap();
            let keys: Vec<Vec<u8>> = (0..500)
                .flat_map(|index| [data.present(index), data.absent(index)])
                .collect();
            assert!(keys.iter().all(|key| key.len() == key_bytes));
            assert!(keys.is_sorted_by(|a, b| a < b));
            let indexes = keys.iter().map(|key| data.index_of(key).ok());
            assert!(indexes.eq((0..500).flat_map(|index| [Some(index), None])));
        }
    }

    #[test]
    fn keys_too_short_for_their_numbers_are_refused() {
        for (keys, key_bytes, prefix_bytes) in [(129, 1, 0), (32_769, 18, 16), (1, 0, 0), (1, 4, 9)]
        {
            let error = Dataset::new(keys, key_bytes, prefix_bytes, 0).unwrap_err();
            let expected = format!("keys of {key_bytes} bytes");
            assert!(error.to_string().contains(&expected), "{error}");
        }
        assert!(Dataset::new(128, 1, 0, 0).is_ok());
        assert!(Dataset::new(0, 16, 0, 0).is_err());
        assert!(Dataset::new(u64::MAX / 2, 16, 0, 0).is_ok());
    }

    #[test]
    fn the_load_order_takes_every_entry_once_and_is_not_the_key_order() {
        for keys in [1, 2, 3, 100, 1000, 1025] {
            let data = Dataset::new(keys, 16, 0, 0).unwrap();
            let order: Vec<u64> = data.load_order(0..keys).collect();
            let distinct: BTreeSet<u64> = order.iter().copied().collect();
            assert_eq!(distinct, (0..keys).collect());
            let ascents = order.windows(2).filter(|pair| pair[0] < pair[1]).count() as u64;
            assert!(
                keys < 100 || (keys / 3..keys * 2 / 3).contains(&ascents),
                "{keys}: {ascents}"
            );
            let halves = data
                .load_order(0..keys / 2)
                .chain(data.load_order(keys / 2..keys));
            assert!(halves.eq(order));
        }
    }

    #[test]
    fn values_have_their_length_and_identify_entries() {
        for value_bytes in [0, 1, 8, 100] {
            let data = Dataset::new(10, 16, 0, value_bytes).unwrap();
            let mut entry = EntryBuffer::default();
            let mut seen = BTreeSet::new();
            for index in 0..10 {
                data.entry(index, &mut entry);
                assert_eq!(entry.key, data.present(index));
                assert_eq!(entry.value.len(), value_bytes);
                seen.insert(entry.value.clone());
            }
            assert!(seen.len() == 10 || value_bytes < 8);
        }
    }

    #[test]
    fn queries_have_the_requested_hit_rate() {
        let data = Dataset::new(50, 16, 0, 0).unwrap();
        let present: BTreeSet<Vec<u8>> = (0..50).map(|index| data.present(index)).collect();
        for hit_rate in [0.0, 0.5, 1.0] {
            let queries = Queries::new(&data, hit_rate, Skew::Uniform, 2000, 7);
            let keys = queries.keys();
            assert_eq!(keys.len(), 2000);
            let mut hits = 0;
            for (at, key) in keys.iter().enumerate() {
                assert_eq!(queries.hits_among(at as u64), hits);
                hits += u64::from(present.contains(*key));
            }
            assert_eq!(queries.hits_among(2000), hits);
            assert_eq!(queries.hits_among(4001), 2 * hits + queries.hits_among(1));
            assert!((hits as f64 / 2000.0 - hit_rate).abs() < 0.05);
        }
        assert_eq!(
            Queries::sized(&data, 1.0, Skew::Uniform, 7, 1).keys().len() % 7,
            0
        );
    }

    #[test]
    fn a_skewed_stream_requests_few_keys_often() {
        let data = Dataset::new(1000, 16, 0, 0).unwrap();
        let distinct = |skew| {
            let queries = Queries::new(&data, 1.0, skew, 1000, 3);
            let keys = queries.keys();
            assert!(queries.hits_among(1000) == 1000);
            keys.into_iter().collect::<BTreeSet<_>>().len()
        };
        let (uniform, zipf) = (distinct(Skew::Uniform), distinct(Skew::Zipf(1.2)));
        assert!(uniform > 500 && zipf < 300, "{uniform} {zipf}");
    }
}
