//! What the generators of all protocols draw from: random numbers, and numbered values.

use std::ops::RangeInclusive;

use rand::rngs::SmallRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, SeedableRng};

/// A source of random choices.
pub(super) struct Draw {
    random: SmallRng,
    /// Numbers the values, so that each one is unique.
    values: u32,
}

impl Draw {
    pub(super) fn new(seed: u64) -> Draw {
        Draw {
            random: SmallRng::seed_from_u64(seed),
            values: 0,
        }
    }

    pub(super) fn chance(&mut self, probability: f64) -> bool {
        self.random.random_bool(probability)
    }

    pub(super) fn below(&mut self, end: usize) -> usize {
        self.random.random_range(0..end)
    }

    pub(super) fn within<N>(&mut self, range: RangeInclusive<N>) -> N
    where
        N: rand::distr::uniform::SampleUniform + PartialOrd,
    {
        self.random.random_range(range)
    }

    pub(super) fn pick<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        // Pools are never empty.
        from.choose(&mut self.random).copied().unwrap_or(from[0])
    }

    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        items.shuffle(&mut self.random);
    }

    /// Where a pipeline is split into packets of the network, if it is, in thousandths of its
    /// bytes.
    pub(super) fn cuts(&mut self) -> Vec<u16> {
        if !self.chance(0.3) {
            return Vec::new();
        }
        let count = 1 + self.below(5);
        let mut cuts: Vec<u16> = (0..count)
            .map(|_| self.random.random_range(0..1000))
            .collect();
        cuts.sort_unstable();
        cuts
    }

    /// The number of the next value, which no other one has.
    pub(super) fn next_value(&mut self) -> u32 {
        self.values += 1;
        self.values
    }

    /// A value of this length with its number in it.
    pub(super) fn long_value(&self, len: usize) -> Vec<u8> {
        let pattern = format!("{}.", self.values);
        pattern.bytes().cycle().take(len).collect()
    }
}
