//! S3-FIFO (Yang, Zhang, Qiu, Yue and Rashmi, SOSP 2023), with blocks in its queues instead of
//! items.
//!
//! ```text
//!   set ─▶ small ▶ ▶ ▶ ─┬─ was read ─▶ main ▶ ▶ ▶ ─┬─ was read again ─▶ main, frequency - 1
//!    │       10 %       └─ was not ─▶ ghosts  90 % └─ was not ─▶ evicted
//!    └─ key is a ghost ─────────────▶ main
//! ```
//!
//! An earlier design merged neighbouring blocks by frequency, as Segcache does. On the traces that
//! we measured, S3-FIFO keeps frequently read items longer.

use super::ghosts::Ghosts;
use super::{EvictionDecision, Queue};
use forerun_core::{Pages, RegionError};

/// One byte in this many of the memory limit stores fingerprints of evicted keys.
const GHOSTS_SHARE: usize = 128;

/// S3-FIFO and its ghost queue.
#[derive(Debug)]
pub(crate) struct S3Fifo {
    ghosts: Ghosts,
}

impl S3Fifo {
    /// For a cache with this memory limit, with its memory in such pages.
    pub(crate) fn new(limit_bytes: usize, pages: Pages) -> Result<S3Fifo, RegionError> {
        Ok(S3Fifo {
            ghosts: Ghosts::new(limit_bytes / GHOSTS_SHARE, limit_bytes, pages)?,
        })
    }

    /// The queue that a new item joins. Asked once per store.
    pub(crate) fn admit(&self, hash: u64) -> Queue {
        if self.ghosts.take(hash) {
            Queue::Main
        } else {
            Queue::Small
        }
    }

    /// The queues to take the next items from, preferred first, given how many bytes each holds:
    /// the small queue while it holds more than a tenth of all bytes, otherwise the main queue.
    pub(crate) fn eviction_order(&self, [small, main]: [usize; 2]) -> [Queue; 2] {
        if small * 10 > small + main {
            [Queue::Small, Queue::Main]
        } else {
            [Queue::Main, Queue::Small]
        }
    }

    /// Decides the fate of a live item in a block that is evicted, given how often it was read.
    pub(crate) fn decision(&self, queue: Queue, frequency: u8) -> EvictionDecision {
        if frequency == 0 {
            return EvictionDecision::Evict;
        }
        EvictionDecision::Move {
            queue: Queue::Main,
            frequency: match queue {
                Queue::Small => 0,
                Queue::Main => frequency - 1,
            },
        }
    }

    /// Called after an item of this queue and of this many bytes was evicted.
    pub(crate) fn on_evict(&self, queue: Queue, hash: u64, bytes: usize) {
        if queue == Queue::Small {
            self.ghosts.insert(hash, bytes);
        }
    }

    /// Bytes that it holds for as long as the cache exists.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.ghosts.memory_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> S3Fifo {
        S3Fifo::new(1 << 20, Pages::Small).unwrap()
    }

    #[test]
    fn a_read_item_moves_to_main_and_loses_one_count_each_time_around() {
        let policy = policy();
        let to_main = |frequency| EvictionDecision::Move {
            queue: Queue::Main,
            frequency,
        };
        assert_eq!(policy.decision(Queue::Small, 3), to_main(0));
        assert_eq!(policy.decision(Queue::Main, 3), to_main(2));
        assert_eq!(policy.decision(Queue::Small, 0), EvictionDecision::Evict);
        assert_eq!(policy.decision(Queue::Main, 0), EvictionDecision::Evict);
    }

    #[test]
    fn only_a_key_that_left_the_small_queue_is_a_ghost() {
        let policy = policy();
        policy.on_evict(Queue::Small, 1 << 40 | 7, 100);
        policy.on_evict(Queue::Main, 1 << 41 | 8, 100);
        assert_eq!(policy.admit(1 << 40 | 7), Queue::Main);
        assert_eq!(policy.admit(1 << 41 | 8), Queue::Small);
    }

    #[test]
    fn the_small_queue_is_evicted_first_while_it_exceeds_a_tenth() {
        let policy = policy();
        assert_eq!(policy.eviction_order([11, 89])[0], Queue::Small);
        assert_eq!(policy.eviction_order([10, 90])[0], Queue::Main);
    }
}
