//! Keys and values as numbers, and the streams of keys to look up.
//!
//! ```text
//!  index    0 ......... stable | stable .... entries | entries .............. | ABSENT ...............
//!           looked up as hits  | removed and put back| inserted by churn       | looked up as misses
//!                              |    by churn         |                        |
//!  key      a seeded permutation of the index: uniform random numbers, all different
//!  value    a hash of the index; its lowest bit is free for updates to flip
//! ```
//!
//! A stream is drawn before the timing starts and is several times larger than the last-level
//! cache. It is read once from end to end, in *steps* of a few thousand keys. It stores how many
//! keys of each step are present and the sum of their values.

use crate::workload::{Shuffle, mix};
use anyhow::{Result, ensure};
use forerun_core::hashing::Permutation;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, Zipf};

pub use crate::skew::Skew;
pub use forerun_studies::designs::Word;

/// Numbers from here on give keys that no table ever holds.
const ABSENT: u64 = 1 << 31;

/// The same for keys of two bytes, which are half of all such keys.
const ABSENT_U16: u64 = 1 << 15;

/// The numbers of present keys, churn's included, and of absent ones.
pub(super) fn numbers<K: Word>() -> u64 {
    if K::BYTES == 2 { ABSENT_U16 } else { ABSENT }
}

/// The keys and values of a table with a given number of entries.
#[derive(Clone, Copy, Debug)]
pub struct Keys {
    entries: u64,
    wide: Permutation,
    narrow: [u32; 3],
}

impl Keys {
    /// The keys of `entries` entries of type `K`; each seed gives different ones.
    ///
    /// # Errors
    /// If there are none, or so many that absent keys would run out.
    pub fn new<K: Word>(entries: u64, seed: u64) -> Result<Keys> {
        ensure!(entries > 0, "a table needs at least one entry");
        // Churn inserts up to an eighth more.
        let max = numbers::<K>() / 9 * 8;
        ensure!(
            entries <= max,
            "{entries} entries are more than the {max} keys of {} bytes of this bench",
            K::BYTES
        );
        let draw = |n: u64| mix(seed.wrapping_add(n.wrapping_mul(0x9e37_79b9_7f4a_7c15))) as u32;
        Ok(Keys {
            entries,
            wide: Permutation::from_seed(!seed),
            narrow: [draw(1), draw(2) | 1 | 1 << 31, draw(3) | 1 | 1 << 31],
        })
    }

    /// The number of entries.
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// The number of entries that no churn touches; only these are looked up.
    pub fn stable(&self) -> u64 {
        self.entries - self.entries / 8
    }

    /// The key of an index.
    #[inline]
    pub fn key<K: Word>(&self, index: u64) -> K {
        if K::BYTES == 8 {
            return K::from_u64(self.wide.hash(index));
        }
        // The same construction as the 64-bit permutation, with half the width or less.
        let [add, first, second] = self.narrow;
        if K::BYTES == 2 {
            let mut x = (index as u16).wrapping_add(add as u16);
            x = (x ^ (x >> 8)).wrapping_mul(first as u16);
            x = (x ^ (x >> 7)).wrapping_mul(second as u16);
            return K::from_u64(u64::from(x ^ (x >> 8)));
        }
        let mut x = (index as u32).wrapping_add(add);
        x = (x ^ (x >> 16)).wrapping_mul(first);
        x = (x ^ (x >> 15)).wrapping_mul(second);
        K::from_u64(u64::from(x ^ (x >> 16)))
    }

    /// The key of an absent entry, different for each number below 2^31, or 2^15 for keys of two
    /// bytes.
    #[inline]
    pub fn absent<K: Word>(&self, number: u64) -> K {
        let numbers = numbers::<K>();
        self.key(numbers | (number % numbers))
    }

    /// The value of an index; its lowest bit is 0.
    #[inline]
    pub fn value<V: Word>(&self, index: u64) -> V {
        V::from_u64(mix(index) & !1)
    }
}

/// The expected result of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Expected {
    found: usize,
    /// The sum of the values found, with their lowest bits cleared.
    sum: u64,
}

/// Keys to look up, in steps.
pub struct Stream<K> {
    keys: Vec<K>,
    step: usize,
    expected: Vec<Expected>,
}

impl<K: Word> Stream<K> {
    /// Draws about `count` keys, rounded up to whole steps of `step` keys. Each key is present with
    /// the probability of the hit rate.
    ///
    /// # Errors
    /// Never: the exponents that `Skew` accepts are valid.
    pub fn new<V: Word>(
        keys: &Keys,
        hit_rate: f64,
        skew: Skew,
        step: usize,
        count: usize,
        seed: u64,
    ) -> Result<Stream<K>> {
        let count = count.next_multiple_of(step);
        let stable = keys.stable();
        let mut rng = SmallRng::seed_from_u64(seed);
        let scatter = Shuffle::new(stable);
        let zipf = match skew {
            Skew::Uniform => None,
            Skew::Zipf(exponent) => Some(Zipf::new(stable as f64, exponent)?),
        };
        let draw = |rng: &mut SmallRng| match &zipf {
            None => rng.random_range(0..stable),
            // Ranks start at 1. The rank of an entry must not depend on when it was inserted. The
            // shuffle leaves 0 in place, so the first rank is moved away from there.
            Some(zipf) => scatter.at((zipf.sample(rng) as u64 + stable / 3) % stable),
        };
        let mut stream = Stream {
            keys: Vec::with_capacity(count),
            step,
            expected: Vec::with_capacity(count / step),
        };
        for _ in 0..count / step {
            let mut expected = Expected::default();
            for _ in 0..step {
                // random() is below 1, so a hit rate of 1 always hits and a hit rate of 0 never
                // does.
                if rng.random::<f64>() < hit_rate {
                    let index = draw(&mut rng);
                    stream.keys.push(keys.key(index));
                    expected.found += 1;
                    let value = keys.value::<V>(index).to_u64();
                    expected.sum = expected.sum.wrapping_add(value);
                } else {
                    stream
                        .keys
                        .push(keys.absent(rng.random_range(0..numbers::<K>())));
                }
            }
            stream.expected.push(expected);
        }
        Ok(stream)
    }

    /// The number of steps.
    pub fn steps(&self) -> usize {
        self.expected.len()
    }

    /// Keys per step.
    pub fn step_len(&self) -> usize {
        self.step
    }

    /// The keys of a step.
    pub fn step(&self, at: usize) -> &[K] {
        &self.keys[at * self.step..][..self.step]
    }

    /// Checks the answers to a step: how many keys were reported as found, which ones, and the sum
    /// of their values.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn check<V: Word>(
        &self,
        at: usize,
        found_count: usize,
        values: &[V],
        found: &[bool],
    ) -> Result<()> {
        let mut answers = Expected::default();
        for (value, found) in values.iter().zip(found) {
            answers.found += usize::from(*found);
            // Without a branch, because a hit rate of one half would mispredict every other time.
            let mask = 0u64.wrapping_sub(u64::from(*found));
            answers.sum = answers.sum.wrapping_add(value.to_u64() & !1 & mask);
        }
        let expected = self.expected[at];
        ensure!(
            found_count == answers.found,
            "{found_count} of {} keys were reported as found, but {} are marked as found",
            self.step,
            answers.found
        );
        ensure!(
            answers.found == expected.found,
            "{} of {} keys were found instead of {}",
            answers.found,
            self.step,
            expected.found
        );
        ensure!(
            answers.sum == expected.sum,
            "the values of {} keys add up to {} instead of {}",
            self.step,
            answers.sum,
            expected.sum
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{HashMap, HashSet};

    fn distinct<K: Word>(keys: &Keys) -> usize {
        let present = (0..keys.entries()).map(|index| keys.key::<K>(index));
        let absent = (0..keys.entries()).map(|number| keys.absent::<K>(number));
        present.chain(absent).collect::<HashSet<K>>().len()
    }

    #[test]
    fn present_and_absent_keys_are_all_different_in_every_width() {
        let keys = Keys::new::<u16>(10_000, 7).unwrap();
        assert_eq!(distinct::<u64>(&keys), 20_000);
        assert_eq!(distinct::<u32>(&keys), 20_000);
        assert_eq!(distinct::<u16>(&keys), 20_000);
        let other = Keys::new::<u16>(10_000, 8).unwrap();
        assert_ne!(keys.key::<u16>(0), other.key::<u16>(0));
        assert_ne!(keys.key::<u32>(0), other.key::<u32>(0));
        assert_ne!(keys.key::<u64>(0), other.key::<u64>(0));
    }

    #[test]
    fn invalid_entry_counts_are_refused() {
        assert!(Keys::new::<u64>(0, 1).is_err());
        let error = Keys::new::<u64>(u64::MAX, 1).unwrap_err().to_string();
        assert!(error.contains("18446744073709551615"), "{error}");
        let error = Keys::new::<u16>(30_000, 1).unwrap_err().to_string();
        assert!(error.contains("keys of 2 bytes"), "{error}");
    }

    /// A stream's answers from a map, to check the stream's own sums.
    fn answer<K, V>(keys: &Keys, stream: &Stream<K>, at: usize) -> (Vec<V>, Vec<bool>)
    where
        K: Word,
        V: Word,
    {
        let map: HashMap<K, V> = (0..keys.entries())
            .map(|index| (keys.key(index), keys.value(index)))
            .collect();
        let answers = stream.step(at).iter().map(|key| map.get(key));
        answers
            .map(|value| (value.copied().unwrap_or_default(), value.is_some()))
            .unzip()
    }

    fn stream_holds<K: Word, V: Word>(hit_rate: f64, skew: Skew) {
        let keys = Keys::new::<K>(1000, 3).unwrap();
        let stream = Stream::<K>::new::<V>(&keys, hit_rate, skew, 256, 1000, 5).unwrap();
        assert_eq!((stream.steps(), stream.step_len()), (4, 256));
        let mut hits = 0;
        for at in 0..stream.steps() {
            let (mut values, mut found) = answer::<K, V>(&keys, &stream, at);
            let found_count = found.iter().filter(|found| **found).count();
            hits += found_count;
            stream.check(at, found_count, &values, &found).unwrap();
            assert!(stream.check(at, found_count + 1, &values, &found).is_err());
            if let Some(hit) = found.iter().position(|found| *found) {
                values[hit] = V::from_u64(values[hit].to_u64() ^ 1);
                stream.check(at, found_count, &values, &found).unwrap();
                values[hit] = V::from_u64(values[hit].to_u64() ^ 2);
                assert!(stream.check(at, found_count, &values, &found).is_err());
                found[hit] = false;
                assert!(stream.check(at, found_count - 1, &values, &found).is_err());
            }
        }
        assert!((hits as f64 / 1024.0 - hit_rate).abs() < 0.06);
    }

    #[test]
    fn a_stream_knows_its_answers_and_refuses_others() {
        for hit_rate in [0.0, 0.5, 1.0] {
            stream_holds::<u64, u64>(hit_rate, Skew::Uniform);
            stream_holds::<u32, u64>(hit_rate, Skew::Zipf(0.99));
            stream_holds::<u64, u32>(hit_rate, Skew::Zipf(1.2));
            stream_holds::<u32, u32>(hit_rate, Skew::Uniform);
            stream_holds::<u16, u32>(hit_rate, Skew::Uniform);
        }
    }

    /// The share of the most popular key.
    fn top_share(skew: Skew) -> f64 {
        let keys = Keys::new::<u64>(10_000, 3).unwrap();
        let stream = Stream::<u64>::new::<u64>(&keys, 1.0, skew, 1000, 50_000, 5).unwrap();
        let mut counts: HashMap<u64, u32> = HashMap::new();
        for key in &stream.keys {
            *counts.entry(*key).or_default() += 1;
        }
        f64::from(counts.into_values().max().unwrap()) / 50_000.0
    }

    #[test]
    fn skewed_streams_request_few_keys_often() {
        assert!(top_share(Skew::Uniform) < 0.001);
        let share = top_share(Skew::Zipf(0.99));
        // One over the sum of r^-0.99 over 8,750 keys: 0.103.
        assert!((0.09..0.12).contains(&share), "{share}");
        assert!(top_share(Skew::Zipf(1.2)) > share);
    }

    #[test]
    fn skews_round_trip_as_text() {
        for skew in [Skew::Uniform, Skew::Zipf(0.99), Skew::Zipf(1.2)] {
            assert_eq!(skew.to_string().parse(), Ok(skew));
        }
        for text in ["zipf", "zipf:-1", "zipf:NaN", "normal", "uniform:1"] {
            assert!(text.parse::<Skew>().unwrap_err().contains(text));
        }
    }
}
