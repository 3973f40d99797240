//! The random generator behind all choices of a simulation.

use crate::split_mix64;

/// SplitMix64, in streams.
pub(super) struct Random(u64);

impl Random {
    /// Creates the stream for one purpose. Streams of one seed with different purposes are
    /// independent.
    pub(super) fn new(seed: u64, purpose: u64) -> Random {
        let mut random = Random(seed ^ purpose.wrapping_mul(0xD6E8_FEB8_6659_FD93));
        random.0 = random.next();
        random
    }

    #[inline]
    pub(super) fn next(&mut self) -> u64 {
        split_mix64(&mut self.0)
    }

    /// Returns a number below `below`, which is not zero. The bias is below 2^-32 for every bound
    /// below 2^32.
    #[inline]
    pub(super) fn below(&mut self, below: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(below)) >> 64) as u64
    }

    /// Returns true once in `every` times on average.
    #[inline]
    pub(super) fn once_in(&mut self, every: u64) -> bool {
        self.below(every) == 0
    }
}
