//! A queue of blocks from which any block can be taken in constant time.
//!
//! ```text
//!   oldest │ 7 │ taken │ 3 │ taken │ 9 │ youngest      places of blocks that were taken are skipped, and dropped in time
//! ```

use std::collections::VecDeque;

/// The place of a block that was taken.
const TAKEN: u32 = u32::MAX;

/// Places that may be empty although few blocks are left.
const EMPTY_MIN: usize = 64;

/// Block numbers, oldest first.
#[derive(Debug, Default)]
pub(super) struct BlockQueue {
    places: VecDeque<u32>,
    blocks: usize,
}

impl BlockQueue {
    /// The number of blocks.
    pub(super) fn len(&self) -> usize {
        self.blocks
    }

    pub(super) fn is_empty(&self) -> bool {
        self.blocks == 0
    }

    /// The number of places, some of them empty.
    pub(super) fn places(&self) -> usize {
        self.places.len()
    }

    /// The block at a place, unless it was taken.
    pub(super) fn get(&self, place: usize) -> Option<u32> {
        self.places
            .get(place)
            .copied()
            .filter(|&block| block != TAKEN)
    }

    pub(super) fn push_back(&mut self, block: u32) {
        self.places.push_back(block);
        self.blocks += 1;
    }

    pub(super) fn push_front(&mut self, block: u32) {
        self.places.push_front(block);
        self.blocks += 1;
    }

    /// Takes the block at a place. Other blocks may change places.
    pub(super) fn take(&mut self, place: usize) -> Option<u32> {
        let block = self.get(place)?;
        self.places[place] = TAKEN;
        self.blocks -= 1;
        while self.places.pop_front_if(|block| *block == TAKEN).is_some() {}
        if self.places.len() > 2 * self.blocks + EMPTY_MIN {
            self.places.retain(|&block| block != TAKEN);
        }
        Some(block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    #[test]
    fn blocks_keep_their_order_whichever_are_taken() {
        let mut queue = BlockQueue::default();
        let mut model = VecDeque::new();
        let mut rng = SmallRng::seed_from_u64(9);
        for block in 0..20_000 {
            match rng.random_range(0..8) {
                0 => {
                    queue.push_front(block);
                    model.push_front(block);
                }
                1..4 => {
                    queue.push_back(block);
                    model.push_back(block);
                }
                _ => {
                    let place = rng.random_range(0..=queue.places());
                    if let Some(block) = queue.take(place) {
                        model.retain(|&other| other != block);
                    }
                }
            }
            assert!(queue.places() <= 2 * queue.len() + EMPTY_MIN + 1);
            if block % 100 == 0 {
                let blocks = (0..queue.places()).filter_map(|place| queue.get(place));
                assert!(blocks.eq(model.iter().copied()));
                assert_eq!(
                    (queue.len(), queue.is_empty()),
                    (model.len(), model.is_empty())
                );
            }
        }
    }
}
