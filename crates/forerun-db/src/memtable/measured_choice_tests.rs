//! The choice with clocks and costs that the tests make up.

use std::panic::{AssertUnwindSafe, catch_unwind};

use forerun_core::sync::thread;

use super::*;

const UNITS: usize = 64;

/// Work of which so many batches make a sample.
fn work_of(class: usize, candidates: usize, sample_batches: u32) -> Work {
    Work {
        class,
        candidates,
        sample_batches,
        units: UNITS,
    }
}

fn work(class: usize, candidates: usize) -> Work {
    work_of(class, candidates, 1)
}

/// The most batches until a trial has ended: those of a period, those that a thread keeps to
/// itself, and the trial.
fn within(period: u32, work: Work) -> usize {
    (period * work.sample_batches + 96 + work.turns()) as usize
}

/// Numbers that look random.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A cost that is up to three tenths more or less.
    fn noisy(&mut self, cost_ns: u64) -> u64 {
        cost_ns * (70 + self.next() % 61) / 100
    }
}

/// A thread that runs batches, and its clock.
struct Batches<'c> {
    choice: &'c MeasuredChoice,
    default: usize,
    counter: BatchCounter,
    base: Instant,
    now: Cell<Duration>,
}

impl<'c> Batches<'c> {
    fn new(choice: &'c MeasuredChoice) -> Batches<'c> {
        Batches {
            choice,
            default: 0,
            counter: BatchCounter::new(),
            base: Instant::now(),
            now: Cell::new(Duration::from_secs(1)),
        }
    }

    /// Runs a batch and returns the candidate that it used. `cost_ns` is what each would take.
    fn run(&self, work: Work, cost_ns: impl FnOnce(usize) -> u64) -> usize {
        self.choice.run_measured(
            work,
            self.counter.count(),
            || self.default,
            || self.base + self.now.get(),
            |candidate| {
                let cost = Duration::from_nanos(cost_ns(candidate));
                self.now.set(self.now.get() + cost);
                candidate
            },
        )
    }

    /// Runs batches whose costs per unit are constant. Returns how many ran with each candidate.
    fn run_many(&self, work: Work, batches: usize, costs_ns: &[u64]) -> [usize; CANDIDATES_MAX] {
        let mut used = [0; CANDIDATES_MAX];
        for _ in 0..batches {
            used[self.run(work, |candidate| costs_ns[candidate] * UNITS as u64)] += 1;
        }
        used
    }
}

fn chosen(choice: &MeasuredChoice, class: usize) -> Option<usize> {
    let chosen = choice.current[class].chosen.load(Ordering::Relaxed);
    (chosen != UNMEASURED).then_some(chosen as usize)
}

#[test]
fn every_class_chooses_its_cheapest_candidate() {
    let choice = MeasuredChoice::new();
    let mut random = Random(7);
    for class in 0..CLASSES {
        let batches = Batches::new(&choice);
        let candidates = 2 + usize::from(class == CLASSES - 1);
        let cheapest = class % candidates;
        let sample_batches = 1 << class;
        let work = work_of(class, candidates, sample_batches);
        let mut cost_ns = |candidate: usize| {
            random.noisy(UNITS as u64 * if candidate == cheapest { 140 } else { 175 })
        };
        let first = PERIOD_FIRST * sample_batches;
        for _ in 1..first {
            assert_eq!(batches.run(work, &mut cost_ns), 0, "the default");
        }
        for _ in first as usize..=within(PERIOD_FIRST, work) {
            batches.run(work, &mut cost_ns);
        }
        assert_eq!(chosen(&choice, class), Some(cheapest), "class {class}");
        let used = (0..50_000).filter(|_| batches.run(work, &mut cost_ns) == cheapest);
        let used = used.count();
        assert!(used > 49_000, "class {class}: {used} of 50000");
    }
}

#[test]
fn classes_are_measured_apart() {
    let choice = MeasuredChoice::new();
    let batches = Batches::new(&choice);
    for _ in 0..20_000 {
        batches.run(work(0, 2), |candidate| [1000, 2000][candidate]);
        batches.run(work(3, 2), |candidate| [2000, 1000][candidate]);
    }
    assert_eq!(chosen(&choice, 0), Some(0));
    assert_eq!(chosen(&choice, 3), Some(1));
    assert_eq!(chosen(&choice, 1), None, "there were no batches");
}

#[test]
fn a_change_of_the_work_is_followed_within_the_bound() {
    let cases = [
        // (before, after, the most batches until the next trial)
        ([140, 175], [1500, 250], PERIOD_MIN),
        ([1500, 250], [140, 175], PERIOD_MAX),
        ([100, 100_000], [100, 50], PERIOD_MAX),
        ([200, 201], [201, 100], PERIOD_MIN),
    ];
    for (before, after, period) in cases {
        for phase in 0..20 {
            let choice = MeasuredChoice::new();
            let batches = Batches::new(&choice);
            let work = work(2, 2);
            batches.run_many(work, 100_000 + 1777 * phase, &before);
            let best = usize::from(after[1] < after[0]);
            assert_ne!(chosen(&choice, 2), Some(best));
            batches.run_many(work, within(period, work), &after);
            // A trial that was under way at the change may have compared old costs with new ones.
            let followed = chosen(&choice, 2) == Some(best);
            assert!(followed, "{before:?} to {after:?}, phase {phase}");
            let used = batches.run_many(work, 10_000, &after);
            assert!(used[best] > 9_900, "{used:?}");
        }
    }
}

#[test]
fn trials_use_few_batches_and_lose_little_time() {
    // (costs, the cheapest, the most batches that use another, the most time they lose in percent)
    let cases: [(&[u64], usize, usize, f64); 4] = [
        (&[100, 100], 0, 128, 0.0),
        (&[140, 175], 0, 128, 0.25),
        (&[1500, 250], 1, 128, 0.6),
        (&[1500, 250, 2000], 1, 64, 0.8),
    ];
    for (costs, cheapest, batches_per_other, lost_max) in cases {
        let choice = MeasuredChoice::new();
        let batches = Batches::new(&choice);
        let work = work(4, costs.len());
        batches.run_many(work, 3000, costs);
        let total = 400_000;
        let used = batches.run_many(work, total, costs);
        let others = total - used[cheapest];
        assert!(others * batches_per_other <= total, "{costs:?}: {used:?}");
        let time: u64 = used
            .iter()
            .zip(costs)
            .map(|(&n, cost)| n as u64 * cost)
            .sum();
        let best = total as u64 * costs[cheapest];
        let lost = (time - best) as f64 / best as f64 * 100.0;
        assert!(lost <= lost_max, "{costs:?}: {lost}% lost");
    }
}

#[test]
fn batches_that_lose_the_cpu_do_not_mislead() {
    let mut random = Random(99);
    let mut used = [0; 2];
    for _ in 0..50 {
        let choice = MeasuredChoice::new();
        let batches = Batches::new(&choice);
        for batch in 0..30_000 {
            let candidate = batches.run(work(1, 2), |candidate| {
                // One in ten takes three milliseconds longer.
                let lost = if random.next().is_multiple_of(10) {
                    3_000_000
                } else {
                    0
                };
                lost + random.noisy([8000, 6400][candidate])
            });
            if batch >= within(PERIOD_FIRST, work(1, 2)) {
                used[candidate] += 1;
            }
        }
    }
    assert!(used[1] > 15 * used[0], "{used:?}");
}

#[test]
fn a_clock_that_jumps_or_goes_backward_is_no_harm() {
    let choice = MeasuredChoice::new();
    let batches = Batches::new(&choice);
    let year = Duration::from_secs(365 * 86_400);
    let base = batches.base + year;
    let mut random = Random(3);
    for units in [0, 1, 64, usize::MAX] {
        for _ in 0..5000 {
            let shift = Duration::from_secs(random.next() % year.as_secs());
            let now = || match shift.as_secs() % 2 {
                0 => base + batches.now.replace(shift),
                _ => base - batches.now.replace(shift),
            };
            let work = Work {
                units,
                ..work(0, 3)
            };
            let used = choice.run_measured(work, 7, || 2, now, |candidate| candidate);
            assert!(used < 3);
        }
    }
    // A clock that stands still compares nothing.
    batches.run_many(work(1, 2), 10_000, &[0, 0]);
    // Once the clock is right again, so is the choice.
    let work = work(0, 3);
    batches.run_many(work, 2 * within(PERIOD_MAX, work), &[300, 200, 300]);
    assert_eq!(chosen(&choice, 0), Some(1));
}

#[test]
fn a_batch_that_panics_in_a_trial_only_delays_the_choice() {
    let choice = MeasuredChoice::new();
    let batches = Batches::new(&choice);
    let work = work(0, 2);
    let in_trial = || choice.current[0].turn.load(Ordering::Relaxed) < work.turns();
    while !in_trial() {
        batches.run_many(work, 1, &[200, 100]);
    }
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        batches.run(work, |_| panic!("no answer"))
    }));
    assert!(panicked.is_err());
    batches.run_many(work, 2 * work.turns() as usize, &[200, 100]);
    assert_eq!(chosen(&choice, 0), None, "a sample is missing");
    batches.run_many(work, within(PERIOD_FIRST, work), &[200, 100]);
    assert_eq!(chosen(&choice, 0), Some(1));
}

#[test]
fn threads_measure_together_and_run_each_batch_once() {
    let choice = MeasuredChoice::new();
    thread::scope(|scope| {
        for seed in 1..=4 {
            let choice = &choice;
            scope.spawn(move || {
                let batches = Batches::new(choice);
                let mut random = Random(seed);
                let mut ran = 0;
                for _ in 0..20_000 {
                    let used = batches.run(work(4, 3), |candidate| {
                        ran += 1;
                        random.noisy([30_000, 40_000, 20_000][candidate])
                    });
                    assert!(used < 3);
                }
                assert_eq!(ran, 20_000);
            });
        }
    });
    assert_eq!(chosen(&choice, 4), Some(2));
}

#[test]
fn each_candidate_has_as_many_turns_as_the_others_and_no_fixed_place() {
    for candidates in 2..=CANDIDATES_MAX {
        let order: Vec<_> = (0..(candidates * SAMPLES) as u32)
            .map(|turn| candidate_of(turn, candidates))
            .collect();
        for candidate in 0..candidates {
            let turns = |of: &[usize]| of.iter().filter(|&&other| other == candidate).count();
            assert_eq!(turns(&order), SAMPLES);
            assert!(order.chunks(candidates).all(|group| turns(group) == 1));
            // Work that repeats after two, three or four batches meets each candidate in every
            // phase.
            for period in 2..5 {
                for phase in 0..period {
                    let met = order.iter().skip(phase).step_by(period);
                    assert!(met.filter(|&&other| other == candidate).count() > 0);
                }
            }
        }
    }
}

#[test]
fn a_sample_has_its_number_of_turns_all_of_one_candidate() {
    for (candidates, sample_batches) in [(2, 1), (2, 16), (3, 2), (3, 5)] {
        let work = work_of(0, candidates, sample_batches);
        let mut turns = vec![0; candidates * SAMPLES];
        for turn in 0..work.turns() {
            let sample = work.sample(turn);
            assert_eq!(sample % candidates, candidate_of(turn, candidates));
            turns[sample] += 1;
        }
        assert!(
            turns.iter().all(|&turns| turns == sample_batches),
            "{turns:?}"
        );
    }
}

#[test]
fn the_greatest_costs_do_not_overflow() {
    let choice = MeasuredChoice::new();
    let batches = Batches::new(&choice);
    let work = work_of(0, 3, SAMPLE_BATCHES_MAX);
    for _ in 0..within(PERIOD_FIRST, work) {
        batches.run(work, |candidate| {
            [1 << 62, 1 << 40, 1 << 20][candidate] >> 10
        });
    }
    assert_eq!(chosen(&choice, 0), Some(2));
}

#[test]
fn a_thread_has_reported_half_of_its_batches_whenever_it_ends() {
    let counter = BatchCounter::new();
    let mut reported = 0;
    for ran in 1..10_000 {
        reported += counter.count();
        assert!(
            reported <= ran && ran <= 2 * reported,
            "{reported} of {ran}"
        );
    }
}

#[test]
fn classes_of_threads_that_run_few_batches_are_measured() {
    let choice = MeasuredChoice::new();
    let rare = work(3, 2);
    // Each thread runs a batch of another class first.
    for _ in 0..PERIOD_FIRST {
        let batches = Batches::new(&choice);
        batches.run_many(work(0, 2), 1, &[100, 100]);
        batches.run_many(rare, 7, &[200, 100]);
    }
    assert_eq!(chosen(&choice, 3), Some(1));
}

#[test]
fn candidates_that_cost_the_same_leave_the_default() {
    // The clock is too coarse for any of them, or the default is hardly slower than the others.
    for cost_ns in [0, 1000] {
        let choice = MeasuredChoice::new();
        for default in 0..3 {
            let work = work(default, 3);
            let mut costs_ns = [cost_ns; 3];
            costs_ns[default] += cost_ns / 50;
            let batches = Batches {
                default,
                ..Batches::new(&choice)
            };
            batches.run_many(work, within(PERIOD_FIRST, work), &costs_ns);
            assert_eq!(chosen(&choice, default), Some(default), "{costs_ns:?}");
            batches.run_many(work, within(PERIOD_MAX, work), &costs_ns);
            assert_eq!(chosen(&choice, default), Some(default), "{costs_ns:?}");
        }
    }
}

#[test]
fn a_thread_counts_all_its_batches_at_varying_distances() {
    let counter = BatchCounter::new();
    let counts: Vec<_> = (0..100_000).map(|_| counter.count()).collect();
    let total: u32 = counts.iter().sum();
    assert!((100_000 - 96..=100_000).contains(&total));
    let counts: Vec<_> = counts.into_iter().filter(|&count| count > 0).collect();
    assert_eq!(counts[..7], [1, 2, 4, 8, 16, 32, 64]);
    let distances = &counts[6..];
    assert!(
        distances
            .iter()
            .all(|distance| (33..=96).contains(distance))
    );
    assert!((33..=96).all(|distance| distances.contains(&distance)));
}

#[test]
fn a_simulated_build_draws_every_candidate_and_the_same_ones_again() {
    let draws = || {
        let choice = MeasuredChoice::new();
        let draw = |n: usize| {
            choice.draw(Work {
                units: n % 5,
                ..work(0, 3)
            })
        };
        (0..300).map(draw).collect::<Vec<_>>()
    };
    let drawn = draws();
    assert_eq!(drawn, draws());
    for candidate in 0..3 {
        let times = drawn.iter().filter(|&&other| other == candidate).count();
        assert!(times > 70, "candidate {candidate}: {times} of 300");
    }
}
