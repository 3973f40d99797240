//! Call durations: a histogram that any number of threads update.
//!
//! ```text
//!   buckets   0 1 2 ... 7 | 8 .. 15 by 1 | 16 .. 31 by 2 | 32 .. 63 by 4 | ...      nanoseconds; eight to a power of two
//! ```
//!
//! A quantile is exact to within an eighth. This is HdrHistogram's scheme with a fixed precision.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forerun_core::metrics;

const SUB_BITS: u32 = 3;
const BUCKETS: usize = (65 - SUB_BITS as usize) << SUB_BITS;

/// The counts.
#[derive(Debug)]
pub(crate) struct Latencies {
    buckets: Box<[AtomicU64]>,
    sum_ns: AtomicU64,
}

impl Default for Latencies {
    fn default() -> Latencies {
        Latencies {
            buckets: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
            sum_ns: AtomicU64::new(0),
        }
    }
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
        /// Half of the calls took at most this long, in nanoseconds. This and the following
        /// quantiles are exact to within an eighth.
        gauge p50_ns: u64,
        /// 90% of the calls took at most this long.
        gauge p90_ns: u64,
        /// 99% of the calls took at most this long.
        gauge p99_ns: u64,
        /// 99.9% of the calls took at most this long.
        gauge p999_ns: u64,
        /// All calls took at most this long.
        gauge max_ns: u64,
    }
}

impl Latencies {
    pub(crate) fn count(&self, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        // Relaxed: the counts order nothing.
        self.buckets[bucket(ns)].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
    }

    pub(crate) fn latency(&self) -> Latency {
        let counts: Vec<u64> = self
            .buckets
            .iter()
            .map(|count| count.load(Ordering::Relaxed))
            .collect();
        let calls: u64 = counts.iter().sum();
        let quantile = |per_mille: u64| {
            let rank = (calls * per_mille).div_ceil(1000);
            let mut below = 0;
            let reached = counts.iter().position(|count| {
                below += count;
                below >= rank
            });
            if calls == 0 {
                0
            } else {
                reached.map_or(0, upper_ns)
            }
        };
        Latency {
            calls,
            sum_ns: self.sum_ns.load(Ordering::Relaxed),
            p50_ns: quantile(500),
            p90_ns: quantile(900),
            p99_ns: quantile(990),
            p999_ns: quantile(999),
            max_ns: quantile(1000),
        }
    }
}

/// The bucket of a time.
fn bucket(ns: u64) -> usize {
    let power = ns.checked_ilog2().unwrap_or(0);
    if power < SUB_BITS {
        return ns as usize;
    }
    let shift = power - SUB_BITS;
    // The top bit selects the power of two, and the SUB_BITS below it the eighth.
    ((shift as usize + 1) << SUB_BITS) + ((ns >> shift) as usize & ((1 << SUB_BITS) - 1))
}

/// The longest duration of a bucket.
fn upper_ns(bucket: usize) -> u64 {
    let (power, eighth) = (bucket >> SUB_BITS, bucket & ((1 << SUB_BITS) - 1));
    if power == 0 {
        return eighth as u64;
    }
    let first = (1u64 << SUB_BITS | eighth as u64) << (power - 1);
    first + ((1 << (power - 1)) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_latency_bucket_is_at_most_an_eighth_wide(ns: u64) {
            let upper = upper_ns(bucket(ns));
            prop_assert!(upper >= ns && upper - ns <= ns / 8, "{ns} is reported as {upper}");
            prop_assert!(bucket(ns) < BUCKETS);
        }
    }

    #[test]
    fn quantiles_are_those_of_the_calls() {
        let latencies = Latencies::default();
        assert_eq!(latencies.latency(), Latency::default());
        for us in 1..=1000 {
            latencies.count(Duration::from_micros(us));
        }
        let latency = latencies.latency();
        assert_eq!((latency.calls, latency.sum_ns), (1000, 500_500_000));
        for (reported, is) in [
            (latency.p50_ns, 500_000),
            (latency.p90_ns, 900_000),
            (latency.p999_ns, 999_000),
            (latency.max_ns, 1_000_000),
        ] {
            assert!(
                (is..=is + is / 8).contains(&reported),
                "{reported} for {is}"
            );
        }
    }
}
