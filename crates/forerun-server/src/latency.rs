//! Histograms of the time that requests take in the server, one per kind of request.
//!
//! ```text
//!   poll returns ──> turns of other connections ──> read, answer, write ──> Latencies::record
//!   └──────────── measured once per turn that answers ────────────┘
//! ```
//!
//! Each worker has its own histograms, and no other thread writes them. A scrape sums them.

use std::time::Duration;

use crate::counters::{Counter, Counters};

/// Upper bounds of the buckets in nanoseconds. The last bucket has no bound.
pub(crate) const BOUNDS_NS: [u64; 16] = [
    10_000,
    20_000,
    50_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    20_000_000,
    50_000_000,
    100_000_000,
    200_000_000,
    500_000_000,
    1_000_000_000,
];

/// The requests that a connection's turn answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Requests {
    /// Only lookups.
    Reads,
    /// Only commands that change items.
    Writes,
    /// Both, pipelined.
    Mixed,
    /// Neither, for example `stats`.
    Other,
}

impl Requests {
    pub(crate) const ALL: [Requests; 4] = [
        Requests::Reads,
        Requests::Writes,
        Requests::Mixed,
        Requests::Other,
    ];

    /// The value of the label.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Requests::Reads => "reads",
            Requests::Writes => "writes",
            Requests::Mixed => "mixed",
            Requests::Other => "other",
        }
    }
}

/// The values of a thread's counters at the start of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    reads: u64,
    writes: u64,
    touches: u64,
    sent_bytes: u64,
}

impl Progress {
    pub(crate) fn of(counters: &Counters) -> Progress {
        let writes = [
            &counters.cmd_set,
            &counters.delete_hits,
            &counters.delete_misses,
            &counters.incr_hits,
            &counters.incr_misses,
            &counters.decr_hits,
            &counters.decr_misses,
        ];
        Progress {
            reads: counters.batches.get(),
            writes: writes.iter().map(|counter| counter.get()).sum(),
            touches: counters.cmd_touch.get(),
            sent_bytes: counters.bytes_written.get(),
        }
    }

    /// The kind of requests answered since then. `None` if there were none: a turn that reads only
    /// part of a command says nothing about latency.
    pub(crate) fn answered_since(self, then: Progress) -> Option<Requests> {
        let has_written = self.writes != then.writes;
        match (self.reads != then.reads, has_written) {
            (true, true) => Some(Requests::Mixed),
            (true, false) => Some(Requests::Reads),
            (false, true) => Some(Requests::Writes),
            (false, false) if self.touches != then.touches => Some(Requests::Writes),
            (false, false) => (self.sent_bytes != then.sent_bytes).then_some(Requests::Other),
        }
    }
}

/// The histograms of one thread.
#[derive(Debug, Default)]
pub(crate) struct Latencies([Histogram; Requests::ALL.len()]);

/// Counts per bucket. Only one thread writes them.
#[derive(Debug, Default)]
struct Histogram {
    counts: [Counter; BOUNDS_NS.len() + 1],
    sum_ns: Counter,
}

impl Latencies {
    /// Counts a turn.
    pub(crate) fn record(&self, requests: Requests, took: Duration) {
        let took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let histogram = &self.0[requests as usize];
        let bucket = BOUNDS_NS.partition_point(|&bound_ns| bound_ns < took_ns);
        histogram.counts[bucket].add(1);
        histogram.sum_ns.add(took_ns);
    }
}

/// The sum of all threads' histograms for one kind of request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LatencySum {
    /// Counts per bucket, not cumulative.
    pub(crate) counts: [u64; BOUNDS_NS.len() + 1],
    pub(crate) sum_ns: u64,
}

impl LatencySum {
    pub(crate) fn of<'a>(
        threads: impl Iterator<Item = &'a Latencies>,
        requests: Requests,
    ) -> LatencySum {
        let mut sum = LatencySum::default();
        for Latencies(histograms) in threads {
            let histogram = &histograms[requests as usize];
            for (count, counter) in sum.counts.iter_mut().zip(&histogram.counts) {
                *count += counter.get();
            }
            sum.sum_ns = sum.sum_ns.wrapping_add(histogram.sum_ns.get());
        }
        sum
    }

    /// Number of turns.
    pub(crate) fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_counts_in_the_first_bucket_that_it_does_not_exceed() {
        let latencies = [Latencies::default(), Latencies::default()];
        let durations_ns = [0, 10_000, 10_001, 999_999_999, 1_000_000_000, 1_000_000_001];
        for (at, took_ns) in durations_ns.into_iter().enumerate() {
            latencies[at % 2].record(Requests::Writes, Duration::from_nanos(took_ns));
        }
        let sum = LatencySum::of(latencies.iter(), Requests::Writes);
        let mut expected = [0; BOUNDS_NS.len() + 1];
        for took_ns in durations_ns {
            let bucket = BOUNDS_NS.iter().position(|&bound_ns| took_ns <= bound_ns);
            expected[bucket.unwrap_or(BOUNDS_NS.len())] += 1;
        }
        assert_eq!(sum.counts, expected);
        assert_eq!(sum.sum_ns, durations_ns.iter().sum::<u64>());
        assert_eq!(sum.count(), 6);
        let others = LatencySum::of(latencies.iter(), Requests::Reads);
        assert_eq!(others, LatencySum::default());
    }

    #[test]
    fn a_turn_is_of_the_kind_of_what_it_answered() {
        let counters = Counters::default();
        let mut then = Progress::of(&counters);
        let mut since = |change: &dyn Fn(&Counters)| {
            change(&counters);
            let now = Progress::of(&counters);
            let requests = now.answered_since(then);
            then = now;
            requests
        };
        assert_eq!(since(&|_| {}), None);
        assert_eq!(since(&|counters| counters.bytes_read.add(9)), None);
        assert_eq!(
            since(&|counters| counters.batches.add(1)),
            Some(Requests::Reads)
        );
        assert_eq!(
            since(&|counters| counters.delete_misses.add(1)),
            Some(Requests::Writes)
        );
        assert_eq!(
            since(&|counters| counters.cmd_touch.add(1)),
            Some(Requests::Writes)
        );
        let gat = |counters: &Counters| {
            counters.batches.add(1);
            counters.cmd_touch.add(1);
        };
        assert_eq!(since(&gat), Some(Requests::Reads));
        let both = |counters: &Counters| {
            counters.batches.add(1);
            counters.cmd_set.add(1);
        };
        assert_eq!(since(&both), Some(Requests::Mixed));
        assert_eq!(
            since(&|counters| counters.bytes_written.add(1)),
            Some(Requests::Other)
        );
    }
}
