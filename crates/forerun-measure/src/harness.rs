//! Measures cases in alternating rounds: the cases take turns, over and over, so that a slow minute
//! of the machine affects all of them.
//!
//! ```text
//!  round 0   group 0: a b c   group 1: d e f
//!  round 1   group 0: b c a   group 1: e f d        every round runs every case once; within a group the order rotates
//!  round 2   group 0: c a b   group 1: f d e
//! ```
//!
//! The result of a case is the median of its rounds, with the slowest and the fastest. The ratio of
//! two cases in a group is the median of the ratios of all rounds; each round compares two
//! consecutive turns.

use crate::progress::{Bar, Progress};
use anyhow::{Context, Result};
use std::time::{Duration, Instant};

/// How to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Number of rounds, at least one. Use five or more for a meaningful median.
    pub rounds: usize,
    /// Time that a case is measured per round.
    pub duration: Duration,
    /// Warm-up time before that, not measured.
    pub warm_up: Duration,
}

impl Plan {
    /// `rounds` rounds with `duration` per case, and an eighth of that to warm up.
    pub fn new(rounds: usize, duration: Duration) -> Plan {
        Plan {
            rounds: rounds.max(1),
            duration,
            warm_up: duration / 8,
        }
    }
}

/// One turn of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The round, from 0.
    pub round: usize,
    /// A seed that differs in every turn.
    pub seed: u64,
    /// Time to measure.
    pub duration: Duration,
    /// Warm-up time before that.
    pub warm_up: Duration,
}

/// The result of a turn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Operations per second, all threads together.
    pub per_second: f64,
    /// The rate of other work at the same time, such as a writer's inserts.
    pub beside_per_second: Option<f64>,
}

impl Sample {
    /// A sample of `operations` in `elapsed`.
    pub fn new(operations: u64, elapsed: Duration) -> Sample {
        Sample {
            per_second: operations as f64 / elapsed.as_secs_f64().max(1e-9),
            beside_per_second: None,
        }
    }

    /// Runs `step` for the turn's warm-up, then measures it for the turn's duration. A step returns
    /// the number of its operations. The clock is read after each step, so a step should have a few
    /// hundred operations.
    ///
    /// # Errors
    /// The first error of a step.
    pub fn repeat(turn: &Turn, mut step: impl FnMut() -> Result<u64>) -> Result<Sample> {
        warm_up(turn, || step().map(drop))?;
        let start = Instant::now();
        let mut operations = 0;
        loop {
            operations += step()?;
            let elapsed = start.elapsed();
            if elapsed >= turn.duration {
                return Ok(Sample::new(operations, elapsed));
            }
        }
    }

    /// Like [`Sample::repeat`], for steps that read the clock themselves. A step returns the number
    /// of operations and the time that they took. Other work of a step, such as checking answers,
    /// is not measured.
    ///
    /// # Errors
    /// The first error of a step.
    pub fn repeat_timed(
        turn: &Turn,
        mut step: impl FnMut() -> Result<(u64, Duration)>,
    ) -> Result<Sample> {
        warm_up(turn, || step().map(drop))?;
        let (mut operations, mut elapsed) = (0, Duration::ZERO);
        loop {
            let (made, took) = step()?;
            operations += made;
            elapsed += took;
            if elapsed >= turn.duration {
                return Ok(Sample::new(operations, elapsed));
            }
        }
    }
}

/// Runs `step` for the turn's warm-up.
fn warm_up(turn: &Turn, mut step: impl FnMut() -> Result<()>) -> Result<()> {
    let start = Instant::now();
    while start.elapsed() < turn.warm_up {
        step()?;
    }
    Ok(())
}

/// The closure that runs a turn of a case.
type Run<'a> = Box<dyn FnMut(&Turn) -> Result<Sample> + 'a>;

/// Something to measure: a name and a closure that runs one turn.
pub struct Case<'a> {
    group: usize,
    name: String,
    run: Run<'a>,
}

impl<'a> Case<'a> {
    /// Creates a case of a group. The cases of a group are compared with each other and should be
    /// adjacent in the list.
    pub fn new(
        group: usize,
        name: impl Into<String>,
        run: impl FnMut(&Turn) -> Result<Sample> + 'a,
    ) -> Case<'a> {
        Case {
            group,
            name: name.into(),
            run: Box::new(run),
        }
    }
}

/// A case's results.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The case's group.
    pub group: usize,
    /// The case's name.
    pub name: String,
    /// One sample per round, in order.
    pub samples: Vec<Sample>,
}

impl Outcome {
    /// Operations per second: the median.
    pub fn per_second(&self) -> f64 {
        median(self.samples.iter().map(|sample| sample.per_second))
    }

    /// Operations per second in the slowest round.
    pub fn per_second_min(&self) -> f64 {
        let rates = self.samples.iter().map(|sample| sample.per_second);
        rates.fold(f64::INFINITY, f64::min)
    }

    /// Operations per second in the fastest round.
    pub fn per_second_max(&self) -> f64 {
        let rates = self.samples.iter().map(|sample| sample.per_second);
        rates.fold(0.0, f64::max)
    }

    /// The median rate of the other work during the case, if there was any.
    pub fn beside_per_second(&self) -> Option<f64> {
        let rates = self.samples.iter().filter_map(|s| s.beside_per_second);
        Some(median(rates)).filter(|rate| rate.is_finite())
    }

    /// The speed relative to `other`: the median of the ratios of all rounds.
    pub fn ratio_to(&self, other: &Outcome) -> f64 {
        let pairs = self.samples.iter().zip(&other.samples);
        median(pairs.map(|(ours, theirs)| ours.per_second / theirs.per_second))
    }
}

/// The middle value, or the mean of the two middle values. NaN if there are none.
pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        len if len % 2 == 1 => values[len / 2],
        len => (values[len / 2 - 1] + values[len / 2]) / 2.0,
    }
}

/// Runs all cases in alternating rounds and returns their outcomes in the order of the list.
///
/// ```
/// use forerun_measure::harness::{Case, Plan, Sample, measure};
/// use forerun_measure::progress::Progress;
/// use std::time::Duration;
///
/// let words: Vec<String> = (0..1000).map(|n| n.to_string()).collect();
/// let sum = |turn: &_| Sample::repeat(turn, || {
///     Ok(std::hint::black_box(&words).iter().map(|word| word.len() as u64).sum())
/// });
/// let cases = vec![Case::new(0, "sum of lengths", sum)];
/// let outcomes = measure(cases, &Plan::new(5, Duration::from_micros(100)), &Progress::hidden())?;
/// assert!(outcomes[0].per_second_min() <= outcomes[0].per_second());
/// # Ok::<(), anyhow::Error>(())
/// ```
///
/// # Errors
/// The first error of a case, with its name.
pub fn measure(cases: Vec<Case<'_>>, plan: &Plan, progress: &Progress) -> Result<Vec<Outcome>> {
    let bar = progress.steps("measuring", (plan.rounds * cases.len()) as u64);
    measure_on(cases, plan, &bar)
}

/// Like [`measure`], with a bar that may count the rounds of other cases too.
///
/// # Errors
/// See [`measure`].
pub fn measure_on(mut cases: Vec<Case<'_>>, plan: &Plan, bar: &Bar) -> Result<Vec<Outcome>> {
    let mut samples = vec![Vec::with_capacity(plan.rounds); cases.len()];
    let groups: Vec<usize> = cases.iter().map(|case| case.group).collect();
    for round in 0..plan.rounds {
        for at in order(&groups, round) {
            let case = &mut cases[at];
            let turn = Turn {
                round,
                seed: ((round as u64) << 32) + at as u64 + 1,
                duration: plan.duration,
                warm_up: plan.warm_up,
            };
            bar.set_status(&case.name);
            let sample = (case.run)(&turn).with_context(|| case.name.clone())?;
            samples[at].push(sample);
            bar.step();
        }
    }
    let outcomes = cases.into_iter().zip(samples);
    Ok(outcomes
        .map(|(case, samples)| Outcome {
            group: case.group,
            name: case.name,
            samples,
        })
        .collect())
}

/// The positions of the cases in the order of one round: group after group, each rotated by the
/// round's number.
fn order(groups: &[usize], round: usize) -> Vec<usize> {
    let mut order = Vec::with_capacity(groups.len());
    let mut start = 0;
    for group in groups.chunk_by(|a, b| a == b) {
        let len = group.len();
        order.extend((0..len).map(|turn| start + (turn + round) % len));
        start += len;
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn every_round_runs_every_case_once_and_groups_turn() {
        let log = RefCell::new(String::new());
        let case = |group, name: &'static str| {
            let log = &log;
            Case::new(group, name, move |turn: &Turn| {
                log.borrow_mut().push_str(name);
                Ok(Sample::new(turn.round as u64 + 1, Duration::from_secs(1)))
            })
        };
        let cases = vec![case(0, "a"), case(0, "b"), case(0, "c"), case(7, "d")];
        let plan = Plan::new(4, Duration::ZERO);
        let outcomes = measure(cases, &plan, &Progress::hidden()).unwrap();
        assert_eq!(*log.borrow(), "abcdbcadcabdabcd");
        for outcome in &outcomes {
            assert_eq!(outcome.per_second(), 2.5);
            assert_eq!(outcome.per_second_min(), 1.0);
            assert_eq!(outcome.per_second_max(), 4.0);
            assert_eq!(outcome.beside_per_second(), None);
        }
    }

    #[test]
    fn no_two_turns_share_a_seed() {
        let seeds = RefCell::new(Vec::new());
        let case = || {
            Case::new(0, "case", |turn: &Turn| {
                seeds.borrow_mut().push(turn.seed);
                Ok(Sample::new(1, Duration::from_secs(1)))
            })
        };
        let plan = Plan::new(5, Duration::ZERO);
        measure(vec![case(), case(), case()], &plan, &Progress::hidden()).unwrap();
        let mut seeds = seeds.into_inner();
        seeds.sort_unstable();
        seeds.dedup();
        assert_eq!(seeds.len(), 15);
    }

    #[test]
    fn a_ratio_is_the_median_of_the_rounds_ratios() {
        let outcome = |rates: &[f64]| Outcome {
            group: 0,
            name: String::new(),
            samples: rates
                .iter()
                .map(|&per_second| Sample {
                    per_second,
                    beside_per_second: Some(per_second),
                })
                .collect(),
        };
        // The machine slows down tenfold from round to round; this does not affect the ratio.
        let (ours, theirs) = (outcome(&[400.0, 40.0, 5.0]), outcome(&[100.0, 10.0, 1.0]));
        assert_eq!(ours.ratio_to(&theirs), 4.0);
        assert_eq!(ours.beside_per_second(), Some(40.0));
    }

    #[test]
    fn an_error_stops_the_run_and_names_its_case() {
        let cases = vec![Case::new(0, "the broken one", |_: &Turn| {
            anyhow::bail!("no luck")
        })];
        let plan = Plan::new(1, Duration::ZERO);
        let error = measure(cases, &plan, &Progress::hidden()).unwrap_err();
        assert_eq!(format!("{error:#}"), "the broken one: no luck");
    }

    #[test]
    fn untimed_work_of_a_step_does_not_count() {
        let turn = Turn {
            round: 0,
            seed: 1,
            duration: Duration::from_millis(5),
            warm_up: Duration::ZERO,
        };
        let mut steps = 0u64;
        let sample = Sample::repeat_timed(&turn, || {
            steps += 1;
            Ok((100, Duration::from_millis(1)))
        });
        assert_eq!(steps, 5);
        assert_eq!(sample.unwrap().per_second, 100_000.0);
    }

    #[test]
    fn repeat_counts_only_what_ran_on_the_clock() {
        let turn = Turn {
            round: 0,
            seed: 1,
            duration: Duration::ZERO,
            warm_up: Duration::from_millis(2),
        };
        let mut steps = 0u64;
        let sample = Sample::repeat(&turn, || {
            steps += 1;
            std::thread::sleep(Duration::from_millis(1));
            Ok(10)
        });
        assert!(steps >= 2, "warm-up steps and one more: {steps}");
        assert!(
            sample.unwrap().per_second <= 10_000.0,
            "one step of 10 in at least 1 ms"
        );
    }
}
