//! Histograms of the time that requests take in the server, one per kind of request.
//!
//! ```text
//!   poll returns ──> turns of other connections ──> read, answer, write ──> Latencies::record
//!   └──────────── measured once per turn that answers ────────────┘
//! ```

use std::time::Duration;

use forerun_core::{Latency, LatencyHistogram};

use crate::counters::Counters;

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

/// A histogram per kind of request.
#[derive(Debug, Default)]
pub(crate) struct Latencies([LatencyHistogram; Requests::ALL.len()]);

impl Latencies {
    /// Counts a turn.
    pub(crate) fn record(&self, requests: Requests, took: Duration) {
        self.0[requests as usize].record(took);
    }

    /// The turns that answered this kind of request.
    pub(crate) fn of(&self, requests: Requests) -> Latency {
        self.0[requests as usize].latency()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
