//! Durations of calls: a histogram that any number of threads update.
//!
//! ```text
//!   thread ──> its shard   1 2 ... 8 | 9 .. 16 by 1 | 17 .. 32 by 2 | ...   nanoseconds; eight buckets to a power of two
//!   all shards, summed ──> Latency   calls, sum, percentiles
//! ```
//!
//! A percentile is exact to within an eighth. This is HdrHistogram's scheme with a fixed precision.
//! A bucket contains its upper bound, as in Prometheus. A shard takes 4 KiB, at the first call of
//! one of its threads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::duration_buckets::DurationBuckets;
use crate::metrics;
use crate::sync::{OnceLock, thread_number};

const SUB_BITS: u32 = 3;
const BUCKETS: usize = (65 - SUB_BITS as usize) << SUB_BITS;

/// Threads are spread over shards, so they seldom share a cache line.
const SHARDS: usize = 16;

/// A histogram of durations.
///
/// ```
/// use forerun_core::LatencyHistogram;
/// use std::time::Duration;
///
/// let histogram = LatencyHistogram::default();
/// for us in [3, 5, 400] {
///     histogram.record(Duration::from_micros(us));
/// }
/// let latency = histogram.latency();
/// assert_eq!((latency.calls, latency.mean_ns()), (3, 136_000));
/// assert_eq!((latency.min_ns, latency.max_ns), (3_000, 400_000));
/// assert!((5_000..=5_625).contains(&latency.p50_ns));
/// ```
#[derive(Debug, Default)]
pub struct LatencyHistogram {
    shards: [OnceLock<Box<Shard>>; SHARDS],
}

/// Aligned so that it shares no cache line with another allocation.
#[derive(Debug)]
#[repr(align(128))]
struct Shard {
    counts: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
    min_ns: AtomicU64,
    max_ns: AtomicU64,
}

metrics! {
    /// Durations of calls.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    #[cfg_attr(feature = "serde", derive(serde::Serialize))]
    #[non_exhaustive]
    pub struct Latency {
        /// Number of calls.
        counter calls: u64,
        /// Sum of all durations, in nanoseconds.
        counter sum_ns: u64,
        /// The shortest duration, in nanoseconds; 0 if there were no calls.
        gauge min_ns: u64,
        /// Half of the calls took at most this long, in nanoseconds. This and the following
        /// percentiles are exact to within an eighth.
        gauge p50_ns: u64,
        /// 90% of the calls took at most this long.
        gauge p90_ns: u64,
        /// 95% of the calls took at most this long.
        gauge p95_ns: u64,
        /// 99% of the calls took at most this long.
        gauge p99_ns: u64,
        /// 99.9% of the calls took at most this long.
        gauge p999_ns: u64,
        /// The longest duration, in nanoseconds.
        gauge max_ns: u64,
        /// How many calls took how long. JSON does not have it.
        #[cfg_attr(feature = "serde", serde(skip))]
        histogram buckets: DurationBuckets,
    }
}

impl Latency {
    /// The average duration, in nanoseconds; 0 if there were no calls.
    pub fn mean_ns(&self) -> u64 {
        self.sum_ns.checked_div(self.calls).unwrap_or(0)
    }
}

impl LatencyHistogram {
    /// Counts a call.
    pub fn record(&self, took: Duration) {
        let shard = &self.shards[thread_number() % SHARDS];
        shard.get_or_init(Shard::new).record(took);
    }

    /// Returns what was counted so far.
    pub fn latency(&self) -> Latency {
        let mut counts = [0; BUCKETS];
        let (mut sum_ns, mut min_ns, mut max_ns) = (0u64, u64::MAX, 0);
        for shard in self.shards.iter().filter_map(OnceLock::get) {
            for (sum, count) in counts.iter_mut().zip(&shard.counts) {
                // Acquire: pairs with the release in `record`.
                *sum += count.load(Ordering::Acquire);
            }
            sum_ns = sum_ns.wrapping_add(shard.sum_ns.load(Ordering::Relaxed));
            min_ns = min_ns.min(shard.min_ns.load(Ordering::Relaxed));
            max_ns = max_ns.max(shard.max_ns.load(Ordering::Relaxed));
        }
        let calls: u64 = counts.iter().sum();
        if calls == 0 {
            return Latency::default();
        }
        let percentile = |per_mille: u64| {
            let rank = (calls * per_mille).div_ceil(1000);
            let mut below = 0;
            let reached = counts.iter().position(|count| {
                below += count;
                below >= rank
            });
            reached.map_or(max_ns, |bucket| upper_ns(bucket).min(max_ns))
        };
        let mut buckets = DurationBuckets::default();
        buckets.set_sum_ns(sum_ns);
        for (bucket, count) in counts.into_iter().enumerate() {
            buckets.add(upper_ns(bucket), count);
        }
        Latency {
            calls,
            sum_ns,
            min_ns,
            p50_ns: percentile(500),
            p90_ns: percentile(900),
            p95_ns: percentile(950),
            p99_ns: percentile(990),
            p999_ns: percentile(999),
            max_ns,
            buckets,
        }
    }
}

impl Shard {
    fn new() -> Box<Shard> {
        Box::new(Shard {
            counts: [const { AtomicU64::new(0) }; BUCKETS],
            sum_ns: AtomicU64::new(0),
            min_ns: AtomicU64::new(u64::MAX),
            max_ns: AtomicU64::new(0),
        })
    }

    fn record(&self, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        // Relaxed, here and for the sum: see below. Most calls are within the extremes so far.
        if ns < self.min_ns.load(Ordering::Relaxed) {
            self.min_ns.fetch_min(ns, Ordering::Relaxed);
        }
        if ns > self.max_ns.load(Ordering::Relaxed) {
            self.max_ns.fetch_max(ns, Ordering::Relaxed);
        }
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
        // Release: who sees this call counted also sees it in the sum and between the extremes.
        self.counts[bucket(ns)].fetch_add(1, Ordering::Release);
    }
}

/// The bucket of a duration.
fn bucket(ns: u64) -> usize {
    let below = ns.saturating_sub(1);
    let power = below.checked_ilog2().unwrap_or(0);
    if power < SUB_BITS {
        return below as usize;
    }
    let shift = power - SUB_BITS;
    // The top bit selects the power of two, and the SUB_BITS below it the eighth.
    ((shift as usize + 1) << SUB_BITS) + ((below >> shift) as usize & ((1 << SUB_BITS) - 1))
}

/// The longest duration of a bucket.
fn upper_ns(bucket: usize) -> u64 {
    let (power, eighth) = (bucket >> SUB_BITS, bucket & ((1 << SUB_BITS) - 1));
    if power == 0 {
        return eighth as u64 + 1;
    }
    let first = (1u64 << SUB_BITS | eighth as u64) << (power - 1);
    first.saturating_add(1 << (power - 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::thread;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_bucket_is_at_most_an_eighth_wide(ns in 1u64..) {
            let upper = upper_ns(bucket(ns));
            prop_assert!(upper >= ns && upper - ns <= ns / 8, "{ns} is reported as {upper}");
            prop_assert!(bucket(ns) < BUCKETS);
            if upper < u64::MAX {
                prop_assert_eq!(bucket(upper) + 1, bucket(upper + 1));
            }
        }

        #[test]
        fn percentiles_are_those_of_the_sorted_durations(
            durations_ns in prop::collection::vec((0..64u32, any::<u64>()), 1..2_000),
        ) {
            // Of all magnitudes alike, but so short that their sum fits.
            let mut sorted: Vec<u64> = durations_ns
                .iter()
                .map(|(shift, bits)| (bits >> 12) >> (shift % 52))
                .collect();
            let histogram = LatencyHistogram::default();
            for ns in &sorted {
                histogram.record(Duration::from_nanos(*ns));
            }
            sorted.sort_unstable();
            let latency = histogram.latency();
            let calls = sorted.len();
            prop_assert_eq!(latency.calls, calls as u64);
            prop_assert_eq!(latency.sum_ns, sorted.iter().sum::<u64>());
            prop_assert_eq!(latency.min_ns, sorted[0]);
            prop_assert_eq!(latency.max_ns, sorted[calls - 1]);
            prop_assert_eq!(latency.mean_ns(), latency.sum_ns / calls as u64);
            for (per_mille, reported) in [
                (500, latency.p50_ns),
                (900, latency.p90_ns),
                (950, latency.p95_ns),
                (990, latency.p99_ns),
                (999, latency.p999_ns),
            ] {
                let exact = sorted[(calls * per_mille).div_ceil(1000) - 1];
                // A duration of no time counts as a nanosecond.
                let most = (exact + exact / 8).max(1);
                prop_assert!((exact..=most).contains(&reported), "{exact}: {reported}");
            }
            let mut below = 0;
            for (bound_ns, count) in latency.buckets.counts() {
                below += count;
                let bound_ns = bound_ns.unwrap_or(u64::MAX);
                let exact = sorted.partition_point(|ns| *ns <= bound_ns);
                prop_assert_eq!(below, exact as u64, "up to {} ns", bound_ns);
            }
            prop_assert_eq!(latency.buckets.sum_ns(), latency.sum_ns);
        }
    }

    #[test]
    fn calls_of_many_threads_are_counted_exactly() {
        let histogram = LatencyHistogram::default();
        assert_eq!(histogram.latency(), Latency::default());
        // More threads than shards.
        thread::scope(|scope| {
            for thread in 1..=20 {
                let histogram = &histogram;
                scope.spawn(move || {
                    for us in 1..=100 {
                        histogram.record(Duration::from_micros(thread * us));
                        let seen = histogram.latency();
                        assert!(seen.min_ns <= seen.p50_ns && seen.p999_ns <= seen.max_ns);
                    }
                });
            }
        });
        let latency = histogram.latency();
        assert_eq!((latency.calls, latency.buckets.count()), (2_000, 2_000));
        assert_eq!(latency.sum_ns, 210 * 5_050 * 1_000);
        assert_eq!((latency.min_ns, latency.max_ns), (1_000, 2_000_000));
    }
}
