//! Numbers that look random, and are the same in every run.

use forerun_core::split_mix64;

/// SplitMix64, from a seed.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// A number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        split_mix64(&mut self.0) % end
    }

    /// The same for positions.
    pub(crate) fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }
}
