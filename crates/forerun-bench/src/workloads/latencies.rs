//! The latencies of one class of operations, such as the puts to the hot keyspace.

use super::over_time::{OverTime, Point};
use anyhow::Result;
use hdrhistogram::Histogram;
use std::time::{Duration, Instant};

/// What the operations of a class do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// They read.
    Read,
    /// They write. A long call is a stall.
    Write,
    /// They write in bulk. A long call is none.
    Load,
}

/// One call of the store.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    /// When it should have begun: when it was due if its client is paced, otherwise when it began.
    pub intended: Instant,
    pub began: Instant,
    pub ended: Instant,
}

/// The latencies of a class, each from the intended start of a call to its end.
#[derive(Clone, Debug)]
pub(super) struct Latencies {
    pub kind: Kind,
    /// The start of the plot over time.
    origin: Instant,
    /// Nanoseconds of all calls.
    whole: Histogram<u64>,
    over_time: OverTime,
    /// The longest call, from its real start.
    pub longest_call: Duration,
    /// How many clients made them at once.
    pub clients: u64,
    /// Keys that were read or written.
    pub keys: u64,
    /// Bytes of keys and values that were written.
    pub put_bytes: u64,
    /// Calls that were due but had not begun at the end. They count with the time for which they
    /// had waited.
    pub unbegun: u64,
    /// How long the class ran.
    pub elapsed: Duration,
}

impl Latencies {
    pub(super) fn new(kind: Kind, origin: Instant) -> Result<Latencies> {
        Ok(Latencies {
            kind,
            origin,
            whole: Histogram::new(3)?,
            over_time: OverTime::new(),
            longest_call: Duration::ZERO,
            clients: 1,
            keys: 0,
            put_bytes: 0,
            unbegun: 0,
            elapsed: Duration::ZERO,
        })
    }

    /// Counts a call.
    pub(super) fn record(&mut self, call: Call) -> Result<()> {
        let took = call.ended.saturating_duration_since(call.began);
        self.longest_call = self.longest_call.max(took);
        self.count(call.intended, call.ended)
    }

    /// Counts a call that was due but has not begun by `end`.
    pub(super) fn record_unbegun(&mut self, intended: Instant, end: Instant) -> Result<()> {
        self.unbegun += 1;
        self.count(intended, end)
    }

    fn count(&mut self, intended: Instant, ended: Instant) -> Result<()> {
        let latency = ended.saturating_duration_since(intended);
        let latency_ns = u64::try_from(latency.as_nanos())?;
        self.whole.record(latency_ns)?;
        let at = intended.saturating_duration_since(self.origin);
        self.over_time.record(at, latency_ns)
    }

    /// Adds the calls of other clients of the same class, or of another round.
    pub(super) fn add(&mut self, other: &Latencies) -> Result<()> {
        self.whole.add(&other.whole)?;
        self.over_time.add(&other.over_time)?;
        self.longest_call = self.longest_call.max(other.longest_call);
        self.keys += other.keys;
        self.put_bytes += other.put_bytes;
        self.unbegun += other.unbegun;
        self.elapsed = self.elapsed.max(other.elapsed);
        Ok(())
    }

    /// The number of calls.
    pub(super) fn calls(&self) -> u64 {
        self.whole.len()
    }

    /// A percentile, in microseconds.
    pub(super) fn quantile_us(&self, share: f64) -> f64 {
        self.whole.value_at_quantile(share) as f64 / 1000.0
    }

    /// The highest latency, in microseconds.
    pub(super) fn max_us(&self) -> f64 {
        self.whole.max() as f64 / 1000.0
    }

    /// The latencies over time.
    pub(super) fn points(&self) -> Vec<Point> {
        self.over_time.points()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_began_late_counts_from_when_it_was_due() {
        let origin = Instant::now();
        let at = |millis| origin + Duration::from_millis(millis);
        let mut latencies = Latencies::new(Kind::Write, origin).unwrap();
        // One call a second is due; the second takes 2.5 s, and the third waits for it.
        for (due, began, ended) in [(0, 0, 1), (1000, 1000, 3500), (2000, 3500, 3501)] {
            let call = Call {
                intended: at(due),
                began: at(began),
                ended: at(ended),
            };
            latencies.record(call).unwrap();
        }
        latencies.record_unbegun(at(3000), at(3600)).unwrap();
        assert_eq!((latencies.calls(), latencies.unbegun), (4, 1));
        assert_eq!(latencies.longest_call, Duration::from_millis(2500));
        let max: Vec<f64> = latencies.points().iter().map(|p| p.max_us).collect();
        for (max, expected) in max.into_iter().zip([1e3, 2.5e6, 1.501e6, 6e5]) {
            assert!((max / expected - 1.0).abs() < 0.01, "{max} {expected}");
        }
        assert!((latencies.max_us() / 2.5e6 - 1.0).abs() < 0.001);
        assert!((latencies.quantile_us(0.5) / 6e5 - 1.0).abs() < 0.001);
    }

    #[test]
    fn the_clients_of_a_class_are_added_up() {
        let origin = Instant::now();
        let call = |millis| Call {
            intended: origin,
            began: origin,
            ended: origin + Duration::from_millis(millis),
        };
        let mut one = Latencies::new(Kind::Read, origin).unwrap();
        let mut other = one.clone();
        one.record(call(3)).unwrap();
        one.keys = 64;
        other.record(call(5)).unwrap();
        other.keys = 1;
        other.elapsed = Duration::from_secs(2);
        one.add(&other).unwrap();
        assert_eq!((one.calls(), one.keys), (2, 65));
        assert_eq!(one.longest_call, Duration::from_millis(5));
        assert_eq!(one.elapsed, Duration::from_secs(2));
        assert_eq!(one.points()[0].operations, 2);
    }
}
