//! Counters of reads and writes, and how long operations take.
//!
//! ```text
//!   get, multi_get, buffered write   1 of 1024 is timed, or all: StatsLevel
//!   the rest                         takes far longer than reading the clock: always timed
//! ```

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forerun_core::LatencyHistogram;
use forerun_core::sync::{thread_number, time};

use super::commit::LogCounts;
use super::write_stalls::{StallCounts, WriteStalls};
use crate::events::WriteStallReason;
use crate::{Durability, StatsLevel};

/// Sets of counters. Threads are spread over them, so they seldom share a cache line.
const SHARDS: usize = 16;

/// One of so many short operations is timed.
const SAMPLED_OF: u64 = 1024;

/// Counters of reads and writes, each updated once per batch.
pub(super) struct Counters {
    shards: [Shard; SHARDS],
    stalls: StallCounts,
    pub(super) get: LatencyHistogram,
    pub(super) multi_get: LatencyHistogram,
    /// Buffered writes, of which a part is timed. Synced ones, all of them, are apart.
    pub(super) write: LatencyHistogram,
    pub(super) synced_write: LatencyHistogram,
    pub(super) flush: LatencyHistogram,
    pub(super) compaction: LatencyHistogram,
    pub(super) write_stall: LatencyHistogram,
}

/// Two cache lines apart, because CPUs fetch lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard {
    /// Lookups of one key.
    single_lookups: AtomicU64,
    /// The other batches, and their keys.
    lookup_batches: AtomicU64,
    lookup_keys: AtomicU64,
    /// See [`is_sampled`](Shard::is_sampled). Here, because a lookup has this line anyway.
    sampled_max: u64,
    write_batches: AtomicU64,
    /// About how many writes began.
    writes_begun: AtomicU64,
    slowed_us: AtomicU64,
}

impl Shard {
    /// Whether to time the operation that follows so many others of its kind.
    ///
    /// The multiples of this odd number fill the words evenly. So the timed operations are spread
    /// evenly too, but not in step with any pattern that a program repeats.
    #[inline(always)]
    fn is_sampled(&self, earlier: u64) -> bool {
        earlier.wrapping_mul(0x9e37_79b9_7f4a_7c15) <= self.sampled_max
    }
}

impl Counters {
    pub(super) fn new(level: StatsLevel) -> Counters {
        let sampled_max = match level {
            StatsLevel::Sampled => u64::MAX / SAMPLED_OF,
            StatsLevel::All => u64::MAX,
        };
        Counters {
            shards: std::array::from_fn(|_| Shard {
                sampled_max,
                ..Shard::default()
            }),
            stalls: StallCounts::default(),
            get: LatencyHistogram::default(),
            multi_get: LatencyHistogram::default(),
            write: LatencyHistogram::default(),
            synced_write: LatencyHistogram::default(),
            flush: LatencyHistogram::default(),
            compaction: LatencyHistogram::default(),
            write_stall: LatencyHistogram::default(),
        }
    }

    /// Counts a lookup of one key. Returns whether to time it.
    #[inline]
    pub(super) fn count_lookup(&self) -> bool {
        let shard = self.shard();
        // Relaxed, here and below: a count orders nothing.
        let earlier = shard.single_lookups.fetch_add(1, Ordering::Relaxed);
        shard.is_sampled(earlier)
    }

    /// Counts a batch of lookups. Returns whether to time it.
    #[inline]
    pub(super) fn count_lookups(&self, keys: usize) -> bool {
        let shard = self.shard();
        let earlier = shard.lookup_batches.fetch_add(1, Ordering::Relaxed);
        shard.lookup_keys.fetch_add(keys as u64, Ordering::Relaxed);
        shard.is_sampled(earlier)
    }

    /// Counts a batch of writes.
    pub(super) fn count_write(&self) {
        self.shard().write_batches.fetch_add(1, Ordering::Relaxed);
    }

    /// When a write begins, if it is to be timed.
    #[inline]
    pub(super) fn begin_write(&self, durability: Durability) -> Option<Instant> {
        let shard = self.shard();
        // Not an atomic addition, which is slower: if threads share the shard, a few are not
        // counted, and only the sample changes.
        let earlier = shard.writes_begun.load(Ordering::Relaxed);
        shard
            .writes_begun
            .store(earlier.wrapping_add(1), Ordering::Relaxed);
        let is_timed = durability == Durability::Synced || shard.is_sampled(earlier);
        is_timed.then(time::now)
    }

    /// Records the duration of a write that was made.
    #[inline]
    pub(super) fn end_write(&self, begun: Option<Instant>, durability: Durability) {
        if let Some(begun) = begun {
            let histogram = match durability {
                Durability::Buffered => &self.write,
                Durability::Synced => &self.synced_write,
            };
            histogram.record(time::elapsed(begun));
        }
    }

    /// Counts a write that had to wait.
    pub(super) fn count_stall(&self, reason: &WriteStallReason, waited: Duration) {
        self.stalls.count(reason, waited);
        self.write_stall.record(waited);
    }

    /// Counts a write that has waited for memtables, if it has waited long.
    pub(super) fn count_switch(&self, waited: Duration) {
        self.stalls.count_switch(waited);
    }

    /// Counts a pause that slowed writes down.
    pub(super) fn count_slowed(&self, pause: Duration) {
        let pause_us = pause.as_micros() as u64;
        self.shard()
            .slowed_us
            .fetch_add(pause_us, Ordering::Relaxed);
    }

    pub(super) fn write_stalls(&self, log: &LogCounts) -> WriteStalls {
        self.stalls.stats(self.sum(|shard| &shard.slowed_us), log)
    }

    fn sum(&self, counter: impl Fn(&Shard) -> &AtomicU64) -> u64 {
        self.shards
            .iter()
            .map(|shard| counter(shard).load(Ordering::Relaxed))
            .sum()
    }

    pub(super) fn lookup_batches(&self) -> u64 {
        self.sum(|shard| &shard.single_lookups) + self.sum(|shard| &shard.lookup_batches)
    }

    pub(super) fn lookup_keys(&self) -> u64 {
        self.sum(|shard| &shard.single_lookups) + self.sum(|shard| &shard.lookup_keys)
    }

    pub(super) fn write_batches(&self) -> u64 {
        self.sum(|shard| &shard.write_batches)
    }

    fn shard(&self) -> &Shard {
        &self.shards[thread_number() % SHARDS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_many_threads_add_up() {
        let counters = Counters::new(StatsLevel::Sampled);
        forerun_core::sync::thread::scope(|scope| {
            for _ in 0..20 {
                scope.spawn(|| {
                    for _ in 0..10 {
                        counters.count_lookups(64);
                        counters.count_lookup();
                        counters.count_write();
                    }
                });
            }
        });
        assert_eq!(
            (counters.lookup_batches(), counters.lookup_keys()),
            (400, 13_000)
        );
        assert_eq!(counters.write_batches(), 200);
    }

    #[test]
    fn the_sample_is_even_and_out_of_step_with_any_period() {
        let counters = Counters::new(StatsLevel::Sampled);
        let sampled: Vec<u64> = (0..1 << 20).filter(|_| counters.count_lookup()).collect();
        assert!((1_000..1_050).contains(&sampled.len()), "{}", sampled.len());
        let mut gaps = sampled.windows(2).map(|pair| pair[1] - pair[0]);
        assert!(gaps.all(|gap| gap < 2 * SAMPLED_OF), "{sampled:?}");
        for period in [2, 3, 4, 8, 10, 16] {
            for phase in 0..period {
                let hits = sampled.iter().filter(|at| **at % period == phase).count();
                let expected = sampled.len() / period as usize;
                assert!(
                    hits.abs_diff(expected) <= expected / 2,
                    "{hits} in phase {phase} of {period}"
                );
            }
        }
    }

    #[test]
    fn every_operation_is_timed_on_request() {
        let counters = Counters::new(StatsLevel::All);
        assert!((0..10_000).all(|_| counters.count_lookup() && counters.count_lookups(2)));
        for _ in 0..10_000 {
            counters.end_write(
                counters.begin_write(Durability::Buffered),
                Durability::Buffered,
            );
        }
        assert_eq!(counters.write.latency().calls, 10_000);
        let counters = Counters::new(StatsLevel::Sampled);
        assert!((0..100).all(|_| counters.begin_write(Durability::Synced).is_some()));
    }
}
