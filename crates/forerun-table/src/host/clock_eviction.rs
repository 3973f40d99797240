//! Eviction from the host tier: a clock over the slots.
//!
//! ```text
//!   slots    . . . | 3  0  7  1  0  2  .  5 | . . .       window: WINDOW linked slots for each row to evict
//!                    1  ^  3  0  ^  1     2               the lowest are evicted; the others age and stay for a turn
//!                    hand ──>
//! ```
//!
//! A batch of evictions takes one lock and one pass over adjacent bytes; a list would take a lock
//! and a cache miss on every hit. CLOCK (Corbató, 1968) evicts the first row without a mark.
//! Choosing the lowest of a window, as Redis's sampling does, works with every kind of score. A row
//! admitted by [`Admission::SecondTouch`](crate::Admission) was seen twice, which is what the small
//! queue of a two-queue policy filters for.

use super::{Host, LINKED};
use std::sync::atomic::Ordering;

use forerun_core::sync::PoisonError;

/// Slots examined for each row to evict.
const WINDOW: usize = 4;

/// Generations of [`EvictStrategy::Lru`] per turnover of the tier.
const GENERATIONS: u64 = 16;

/// A candidate for eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Victim {
    pub(crate) slot: u32,
    /// The slot's key when it was examined.
    pub(crate) key: u64,
    /// The lowest rank is evicted first.
    pub(crate) rank: u64,
}

impl Host {
    /// The next rows to evict, at most `wanted`, the lowest-ranked first. Other threads may evict
    /// them first.
    pub(crate) fn choose(&self, wanted: usize) -> Vec<Victim> {
        let now = self.generation();
        let slots = self.slab.used_slots();
        let mut seen = Vec::with_capacity(wanted * WINDOW);
        // A thread that panicked here left the hand at a valid slot.
        let mut hand = self.hand.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..slots {
            if seen.len() == wanted * WINDOW {
                break;
            }
            let slot = *hand % slots;
            *hand = slot + 1;
            if self.state[slot].load(Ordering::Relaxed) & LINKED != 0 {
                seen.push(Victim {
                    slot: slot as u32,
                    key: self.keys[slot].load(Ordering::Relaxed),
                    rank: self.rank(slot, now),
                });
            }
        }
        drop(hand);
        seen.sort_unstable_by_key(|victim| victim.rank);
        for passed in seen.iter().skip(wanted) {
            self.age(passed.slot as usize, now);
        }
        seen.truncate(wanted);
        seen
    }

    fn rank(&self, slot: usize, now: u8) -> u64 {
        let mark = self.marks[slot].load(Ordering::Relaxed);
        self.strategy.host_rank(mark, now, self.score(slot as u32))
    }

    fn age(&self, slot: usize, now: u8) {
        let mark = &self.marks[slot];
        let before = mark.load(Ordering::Relaxed);
        let after = self.strategy.aged_mark(before, now);
        if after != before {
            mark.store(after, Ordering::Relaxed);
        }
    }

    /// The current generation: it advances as rows are linked.
    pub(super) fn generation(&self) -> u8 {
        let a_generation = (self.capacity as u64 / GENERATIONS).max(1);
        (self.links.load(Ordering::Relaxed) / a_generation) as u8
    }
}

#[cfg(test)]
mod tests {
    use super::super::{RowMeta, Slots};
    use super::*;
    use crate::evict_strategy::EvictStrategy;
    use crate::options::HostCapacity;
    use forerun_core::Pages;

    fn host(rows: usize, strategy: EvictStrategy) -> Host {
        Host::new(8, HostCapacity::Rows(rows), 0, strategy, Pages::Small).unwrap()
    }

    fn put(host: &Host, key: u64, score: u64) {
        let mut reservation = host.reserve(1).unwrap();
        let meta = RowMeta {
            score,
            ..RowMeta::default()
        };
        host.link(key, &key.to_le_bytes(), meta, &mut reservation)
            .unwrap();
    }

    fn touch(host: &Host, keys: &[u64]) {
        let (mut rows, mut found) = (vec![0; keys.len() * 8], vec![false; keys.len()]);
        let hits = host.find(keys, &mut rows, |at| at, &mut found, &mut Slots::default());
        assert_eq!(hits, keys.len());
    }

    fn keys(victims: &[Victim]) -> Vec<u64> {
        let mut keys: Vec<u64> = victims.iter().map(|victim| victim.key).collect();
        keys.sort_unstable();
        keys
    }

    #[test]
    fn the_least_used_rows_are_evicted_first_and_counts_age() {
        let host = host(8, EvictStrategy::Lfu);
        (0..8).for_each(|key| put(&host, key, 0));
        for _ in 0..3 {
            touch(&host, &[0, 1, 2, 3, 4, 5]);
        }
        assert_eq!(keys(&host.choose(2)), [6, 7]);
        // The hand halved their three uses as it passed, so one more use outranks the others.
        touch(&host, &[1, 6, 6, 6, 7, 7, 7]);
        let rest = keys(&host.choose(2));
        assert!(
            rest.iter().all(|key| [0, 2, 3, 4, 5].contains(key)),
            "{rest:?}"
        );
    }

    #[test]
    fn the_least_recently_used_rows_are_evicted_first() {
        let host = host(16, EvictStrategy::Lru);
        (0..16).for_each(|key| put(&host, key, 0));
        touch(&host, &[0, 1, 2, 3]);
        assert_eq!(keys(&host.choose(4)), [4, 5, 6, 7]);
    }

    #[test]
    fn rows_with_the_lowest_custom_scores_are_evicted_first() {
        let host = host(8, EvictStrategy::Customized);
        (0..8).for_each(|key| put(&host, key, 100 - key));
        touch(&host, &[7, 7, 7]);
        assert_eq!(keys(&host.choose(2)), [6, 7]);
    }

    #[test]
    fn choosing_more_than_there_are_returns_every_linked_slot() {
        let host = host(300, EvictStrategy::Lfu);
        (0..5).for_each(|key| put(&host, key, 0));
        assert!(host.unlink(3, &mut host.reserve_none().unwrap()));
        assert_eq!(keys(&host.choose(100)), [0, 1, 2, 4]);
        assert_eq!(host.choose(0), []);
    }
}
