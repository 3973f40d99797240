//! Latencies over time: a histogram for each second of a run.
//!
//! ```text
//!  second       0      1      2      3      ...   599
//!  histogram    [  ]   [  ]   [  ]   [  ]         [  ]     an operation counts in the second of its intended start
//!
//!  a longer run:  neighbours become one, so that each covers 2 s, then 4 s, ...
//! ```

use anyhow::Result;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The most intervals. A run that takes longer gets intervals of twice the length.
const INTERVALS_MAX: usize = 600;

/// Significant digits of an interval's latencies. A histogram takes about 13 KB.
const DIGITS: u8 = 2;

/// Latencies by the time at which the operations were to start.
#[derive(Clone, Debug)]
pub(super) struct OverTime {
    interval: Duration,
    /// Nanoseconds, for each interval from the start.
    intervals: Vec<Histogram<u32>>,
}

/// The latencies of one interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// When it begins, in seconds since the start.
    pub second: f64,
    /// The number of operations.
    pub operations: u64,
    /// The median of their latencies, in microseconds.
    pub p50_us: f64,
    /// The 99th percentile.
    pub p99_us: f64,
    /// The 99.9th percentile: the maximum if there are fewer than 1,000 operations.
    pub p999_us: f64,
    /// The highest latency.
    pub max_us: f64,
}

impl OverTime {
    pub(super) fn new() -> OverTime {
        OverTime {
            interval: Duration::from_secs(1),
            intervals: Vec::new(),
        }
    }

    /// Counts an operation that was to start this long after the start.
    pub(super) fn record(&mut self, at: Duration, latency_ns: u64) -> Result<()> {
        let number = self.number_of(at)?;
        self.grow(number + 1)?;
        self.intervals[number].record(latency_ns)?;
        Ok(())
    }

    /// Adds the operations of another client.
    pub(super) fn add(&mut self, other: &OverTime) -> Result<()> {
        let mut other = other.clone();
        while self.interval < other.interval {
            self.coarsen()?;
        }
        while other.interval < self.interval {
            other.coarsen()?;
        }
        self.grow(other.intervals.len())?;
        for (mine, its) in self.intervals.iter_mut().zip(&other.intervals) {
            mine.add(its)?;
        }
        Ok(())
    }

    /// The intervals in which an operation was to start.
    pub(super) fn points(&self) -> Vec<Point> {
        let micros = |nanoseconds: u64| nanoseconds as f64 / 1000.0;
        let quantile =
            |latencies: &Histogram<u32>, share| micros(latencies.value_at_quantile(share));
        let intervals = self.intervals.iter().enumerate();
        let made = intervals.filter(|(_, latencies)| !latencies.is_empty());
        made.map(|(number, latencies)| Point {
            second: number as f64 * self.interval.as_secs_f64(),
            operations: latencies.len(),
            p50_us: quantile(latencies, 0.5),
            p99_us: quantile(latencies, 0.99),
            p999_us: quantile(latencies, 0.999),
            max_us: micros(latencies.max()),
        })
        .collect()
    }

    /// The interval of a time. Makes the intervals longer until there is one.
    fn number_of(&mut self, at: Duration) -> Result<usize> {
        loop {
            let number = at.as_nanos() / self.interval.as_nanos();
            if number < INTERVALS_MAX as u128 {
                return Ok(number as usize);
            }
            self.coarsen()?;
        }
    }

    fn grow(&mut self, intervals: usize) -> Result<()> {
        while self.intervals.len() < intervals {
            self.intervals.push(Histogram::new(DIGITS)?);
        }
        Ok(())
    }

    /// Makes two intervals one.
    fn coarsen(&mut self) -> Result<()> {
        self.interval *= 2;
        let mut halves = std::mem::take(&mut self.intervals).into_iter();
        while let Some(mut first) = halves.next() {
            if let Some(second) = halves.next() {
                first.add(second)?;
            }
            self.intervals.push(first);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(second: f64) -> Duration {
        Duration::from_secs_f64(second)
    }

    #[test]
    fn each_second_has_its_own_percentiles() {
        let mut latencies = OverTime::new();
        for operation in 1..=1000 {
            latencies.record(seconds(0.5), operation * 1000).unwrap();
        }
        latencies.record(seconds(2.999), 7_000_000).unwrap();
        let points = latencies.points();
        // Nothing was to start in the second that begins at 1.
        let at: Vec<f64> = points.iter().map(|point| point.second).collect();
        assert_eq!(at, [0.0, 2.0]);
        assert_eq!((points[0].operations, points[1].operations), (1000, 1));
        for (found, expected) in [
            (points[0].p50_us, 500.0),
            (points[0].p99_us, 990.0),
            (points[0].p999_us, 999.0),
            (points[0].max_us, 1000.0),
            (points[1].p50_us, 7000.0),
            (points[1].p999_us, 7000.0),
        ] {
            assert!(
                (found / expected - 1.0_f64).abs() < 0.01,
                "{found} {expected}"
            );
        }
    }

    #[test]
    fn a_long_run_gets_longer_intervals_and_loses_nothing() {
        let mut latencies = OverTime::new();
        for second in 0..2000_u32 {
            latencies
                .record(seconds(f64::from(second)), u64::from(second) + 1)
                .unwrap();
        }
        let points = latencies.points();
        assert_eq!(points.len(), 500);
        assert!(points.iter().all(|point| point.operations == 4));
        assert_eq!((points[1].second, points[499].second), (4.0, 1996.0));
    }

    #[test]
    fn clients_with_different_intervals_are_added_up() {
        let mut short = OverTime::new();
        short.record(seconds(1.0), 1000).unwrap();
        short.record(seconds(5.0), 3000).unwrap();
        let mut long = OverTime::new();
        long.record(seconds(1.0), 2000).unwrap();
        long.record(seconds(700.0), 9000).unwrap();
        for (one, other) in [(&short, &long), (&long, &short)] {
            let mut all = one.clone();
            all.add(other).unwrap();
            let points: Vec<(f64, u64)> = all
                .points()
                .iter()
                .map(|point| (point.second, point.operations))
                .collect();
            assert_eq!(points, [(0.0, 2), (4.0, 1), (700.0, 1)]);
        }
    }
}
