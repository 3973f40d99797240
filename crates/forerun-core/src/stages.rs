//! The turns of a loop that takes the items of a batch through stages.
//!
//! Where every item takes the same few steps, and each step waits for memory that the one before
//! has prefetched, all steps run in one loop. There is no barrier between two stages at which
//! nothing is in flight.
//!
//! ```text
//!   turn      0   1   2  …  12  13  …  24  25
//!   stage 0   k0  k1  k2    k12 k13    k24 k25
//!   stage 1                 k0  k1     k12 k13
//!   stage 2                            k0  k1       12 items apart, so their misses overlap
//! ```

use std::ops::Range;

/// The turns of a batch, in which each stage is a number of items behind the one before.
///
/// ```
/// use forerun_core::Stages;
///
/// let stages = Stages::new(3, 2, 2);
/// let mut steps = Vec::new();
/// for turn in stages.turns() {
///     for stage in 0..2 {
///         steps.extend(stages.item(turn, stage).map(|item| (stage, item)));
///     }
/// }
/// assert_eq!(steps, [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Stages {
    items: usize,
    turns: usize,
    behind: usize,
}

impl Stages {
    /// The turns in which `items` items go through `stages` stages, each `behind` items behind the
    /// one before.
    #[inline(always)]
    pub fn new(items: usize, stages: usize, behind: usize) -> Stages {
        Stages {
            items,
            turns: items + behind * stages.saturating_sub(1),
            behind,
        }
    }

    /// The turns.
    #[inline(always)]
    pub fn turns(&self) -> Range<usize> {
        0..self.turns
    }

    /// The item whose turn it is in a stage, if there is one.
    #[inline(always)]
    pub fn item(&self, turn: usize, stage: usize) -> Option<usize> {
        // Before the first item, this wraps to a number beyond the last.
        let item = turn.wrapping_sub(stage * self.behind);
        (item < self.items).then_some(item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_goes_through_every_stage_in_order_and_at_the_distance() {
        for (items, stages, behind) in [(0, 3, 4), (1, 1, 9), (5, 3, 4), (40, 4, 12), (7, 2, 0)] {
            let all = Stages::new(items, stages, behind);
            let mut next = vec![0; stages];
            for turn in all.turns() {
                for (stage, next) in next.iter_mut().enumerate() {
                    if let Some(item) = all.item(turn, stage) {
                        assert_eq!(item, *next, "in order");
                        assert_eq!(turn, item + stage * behind);
                        *next += 1;
                    }
                }
            }
            assert_eq!(next, vec![items; stages]);
        }
    }
}
