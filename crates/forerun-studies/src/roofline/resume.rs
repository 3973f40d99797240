//! The cost of a suspension with nothing to wait for: what a lookup pays for each miss that it
//! hides.

use forerun_core::{interleave, touch};
use std::hint::black_box;
use std::time::Instant;

/// Lookups in flight during the measurement.
const IN_FLIGHT: usize = 32;

/// Suspensions per lookup: about as many as in a search of a few million entries.
const STEPS: u64 = 25;

/// The cost of one suspension and resumption, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Resume {
    /// The median of the rounds.
    pub ns: f64,
    /// The fastest round.
    pub ns_min: f64,
    /// The slowest round.
    pub ns_max: f64,
}

/// Measures `touch(..).await` under [`interleave`] with 32 lookups in flight, each of which touches
/// lines that stay in the first-level cache. Takes a few milliseconds per round.
pub fn resume(rounds: usize) -> Resume {
    const LOOKUPS: u64 = 20_000;
    let lines = [[1u64; 8]; IN_FLIGHT];
    let mut samples: Vec<f64> = (0..rounds.max(1))
        .map(|_| {
            let mut total = 0;
            let start = Instant::now();
            let lookups = (0..LOOKUPS).map(|lookup| steps(black_box(&lines), lookup));
            interleave::<IN_FLIGHT, _>(lookups, |_, sum| total += sum);
            let elapsed = start.elapsed();
            assert_eq!(black_box(total), LOOKUPS * STEPS, "every step was taken");
            elapsed.as_nanos() as f64 / (LOOKUPS * STEPS) as f64
        })
        .collect();
    samples.sort_by(f64::total_cmp);
    Resume {
        ns: samples[samples.len() / 2],
        ns_min: samples[0],
        ns_max: samples[samples.len() - 1],
    }
}

/// Touches a line and then reads it, as often as a search would.
async fn steps(lines: &[[u64; 8]; IN_FLIGHT], lookup: u64) -> u64 {
    let mut sum = 0;
    for step in 0..STEPS {
        let line = &lines[((lookup + step) % IN_FLIGHT as u64) as usize];
        touch(line).await;
        sum += line[0];
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suspension_costs_something_and_not_much() {
        let cost = resume(3);
        assert!(cost.ns_min > 0.0);
        assert!(cost.ns_min <= cost.ns && cost.ns <= cost.ns_max);
        assert!(cost.ns < 100_000.0);
    }
}
