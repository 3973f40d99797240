//! The items that servers are loaded with, their keys, and how requests choose among them.
//!
//! ```text
//!  key      key:000000001234                   16 bytes, the item's number
//!  value    iamkdbfpiamkdbfpiamkdbfp…          letters that depend only on the item's number, without line ends
//! ```
//!
//! A value never changes, so a set may be repeated at any time, and every reply is known to the
//! byte.

use crate::skew::Skew;
use crate::workload::mix;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, Zipf};
use std::io::Write;

/// Bytes of a key.
pub const KEY_BYTES: usize = 16;

/// The items in a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Items {
    /// The number of items, numbered from 0; at least one.
    pub count: u64,
    /// Bytes of a value.
    pub value_bytes: usize,
}

impl Items {
    /// Appends the key of item `number`.
    pub fn push_key(&self, number: u64, out: &mut Vec<u8>) {
        // Writing to a Vec cannot fail.
        let _ = write!(out, "key:{number:012}");
    }

    /// Appends the value of item `number`.
    pub fn push_value(&self, number: u64, out: &mut Vec<u8>) {
        let letters = mix(number).to_le_bytes().map(|byte| b'a' + byte % 16);
        let end = out.len() + self.value_bytes;
        while out.len() < end {
            let rest = end - out.len();
            out.extend_from_slice(&letters[..rest.min(letters.len())]);
        }
    }

    /// Draws `count` item numbers. With Zipf's law, the popular items are scattered among all.
    pub fn draw(&self, skew: Skew, count: usize, seed: u64) -> Vec<u64> {
        let mut rng = SmallRng::seed_from_u64(seed);
        let zipf = match skew {
            Skew::Uniform => None,
            // A skew's exponent is in its bounds, and there is at least one item.
            Skew::Zipf(exponent) => Zipf::new(self.count as f64, exponent).ok(),
        };
        let numbers = (0..count).map(|_| match &zipf {
            None => rng.random_range(0..self.count),
            Some(zipf) => mix(zipf.sample(&mut rng) as u64) % self.count,
        });
        numbers.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_values_have_their_lengths_and_no_line_ends() {
        for value_bytes in [0, 1, 8, 61] {
            let items = Items {
                count: 1000,
                value_bytes,
            };
            let (mut key, mut value) = (Vec::new(), Vec::new());
            items.push_key(999, &mut key);
            items.push_value(999, &mut value);
            assert_eq!(key, b"key:000000000999");
            assert_eq!((key.len(), value.len()), (KEY_BYTES, value_bytes));
            assert!(value.iter().all(u8::is_ascii_lowercase));
        }
    }

    #[test]
    fn values_identify_items() {
        let items = Items {
            count: 2,
            value_bytes: 64,
        };
        let value = |number| {
            let mut value = Vec::new();
            items.push_value(number, &mut value);
            value
        };
        assert_ne!(value(0), value(1));
    }

    #[test]
    fn a_skew_repeats_items_and_stays_in_range() {
        let items = Items {
            count: 10_000,
            value_bytes: 0,
        };
        let distinct = |skew| {
            let mut drawn = items.draw(skew, 10_000, 7);
            assert!(drawn.iter().all(|number| *number < items.count));
            drawn.sort_unstable();
            drawn.dedup();
            drawn.len()
        };
        let (uniform, zipf) = (distinct(Skew::Uniform), distinct(Skew::Zipf(0.99)));
        assert!(
            (5500..7000).contains(&uniform) && zipf < uniform * 3 / 4,
            "{uniform} {zipf}"
        );
    }
}
