//! Chooses between a few candidates that do the same work, by timing them while they are in use.
//!
//! ```text
//!   batches of a class ────────────────────────────────────────────────────────────────────►
//!     the default    │ trial │ the cheapest so far          │ trial │ the cheapest so far  │ …
//!     256 n          │       │ 2,048 n                      │       │ 2,048 n to 32,768 n  │
//!                      └ 16 samples of each candidate, of n timed batches each, in turn
//! ```
//!
//! Batches are divided into classes, and each class has its own choice. The shorter the batches of
//! a class, the more of them make a sample. Outside of trials no clock is read: a batch loads two
//! words that hardly ever change, and increments a counter of its thread. All threads take part in
//! a trial, and the one that delivers the last sample decides.
//!
//! - **Bounds.** Between the beginnings of two trials are at least 2,048 n batches, so trials use
//!   each candidate other than the chosen one in less than 1% of the batches. If such a candidate
//!   is much slower, the next trial comes later, so that trials lose 1/256 of the time, but after
//!   32,768 n batches at the latest. So the choice follows a change of the work within 32,768 n
//!   batches and one trial, or 2,048 n if the costs were similar before. A choice that has just
//!   been made or changed is tried again after 2,048 n. Threads that end after few batches may
//!   leave half of them uncounted, which doubles these distances.
//! - **Outliers.** The cost of a candidate is the mean of the middle half of its samples. A thread
//!   that loses the CPU in the middle of a batch makes a sample that does not count, and so does a
//!   clock that steps back. If the clock is too coarse to tell the candidates apart, the choice
//!   stays what it was, at first the default.
//! - **Orderings.** Whatever a thread reads here, its batch gets the same answers. A stale or lost
//!   value makes a trial a little longer or shorter, or a choice worse until the next trial.
//!
//! A simulated build reads no clock. It draws a candidate for each batch, so that simulations run
//! all of them and depend on nothing but their seed.

use std::cell::Cell;
use std::time::{Duration, Instant};

use forerun_core::CachePadded;
use forerun_core::sync::modelled::atomic::{AtomicU32, Ordering};
use forerun_core::sync::{SIMULATED, time};

/// How many classes of batches there are.
pub(super) const CLASSES: usize = 5;

/// The most candidates.
pub(super) const CANDIDATES_MAX: usize = 3;

/// Samples of each candidate in a trial.
const SAMPLES: usize = 16;

/// Batches of a class before its first trial, for each batch of a sample.
const PERIOD_FIRST: u32 = 256;

/// Batches of a class from one trial to the next, for each batch of a sample.
const PERIOD_MIN: u32 = 2048;
const PERIOD_MAX: u32 = 32_768;

/// The greatest cost of a batch. Those of a sample are added.
const COST_MAX: u32 = 1 << 27;

/// The most batches in a sample.
const SAMPLE_BATCHES_MAX: u32 = 16;
const _: () = assert!(COST_MAX.checked_mul(SAMPLE_BATCHES_MAX).is_some());

/// Trials may lose one in this many units of time, if the period allows it.
const TIME_PER_LOSS: u64 = 256;

/// Another candidate is chosen only if it is cheaper by one part in this many.
const MARGIN: u64 = 32;

/// The choice of a class that has not been measured.
const UNMEASURED: u32 = u32::MAX;

/// What is known of a batch before it runs.
#[derive(Clone, Copy)]
pub(super) struct Work {
    /// The class of batches that it belongs to, below [`CLASSES`].
    pub(super) class: usize,
    /// How many candidates its class has, at most [`CANDIDATES_MAX`].
    pub(super) candidates: usize,
    /// How many batches of its class make a sample, at most 16.
    pub(super) sample_batches: u32,
    /// How much it is: costs are compared per unit.
    pub(super) units: usize,
}

impl Work {
    /// The number of turns in a trial.
    fn turns(self) -> u32 {
        self.candidates as u32 * SAMPLES as u32 * self.sample_batches
    }

    /// The sample to which a turn of a trial belongs.
    fn sample(self, turn: u32) -> usize {
        let group = turn / self.candidates as u32 / self.sample_batches;
        group as usize * self.candidates + candidate_of(turn, self.candidates)
    }
}

/// The choices of all classes.
pub(super) struct MeasuredChoice {
    /// What every batch reads. It is written during trials only.
    current: CachePadded<[Current; CLASSES]>,
    trials: [Trial; CLASSES],
    /// In a simulated build, how many candidates were drawn.
    drawn: AtomicU32,
}

struct Current {
    /// The candidate to use, or [`UNMEASURED`].
    chosen: AtomicU32,
    /// The next turn of the trial. The trial has none left if this is not below their number.
    turn: AtomicU32,
}

struct Trial {
    /// Batches since the last trial began, as far as threads have counted them.
    batches: AtomicU32,
    /// The number of batches at which the next one begins, for each batch of a sample.
    period: AtomicU32,
    /// How many turns of this trial have ended.
    delivered: AtomicU32,
    /// The costs of the turns of each candidate in turn, added up by samples.
    samples: [AtomicU32; CANDIDATES_MAX * SAMPLES],
}

impl MeasuredChoice {
    pub(super) fn new() -> MeasuredChoice {
        MeasuredChoice {
            current: CachePadded::new(std::array::from_fn(|_| Current {
                chosen: AtomicU32::new(UNMEASURED),
                turn: AtomicU32::new(u32::MAX),
            })),
            trials: std::array::from_fn(|_| Trial {
                batches: AtomicU32::new(0),
                period: AtomicU32::new(PERIOD_FIRST),
                delivered: AtomicU32::new(0),
                samples: std::array::from_fn(|_| AtomicU32::new(0)),
            }),
            drawn: AtomicU32::new(0),
        }
    }

    /// Runs a batch with the candidate that is the cheapest for its class, or the next one of a
    /// trial. `default` is the candidate to use as long as nothing was measured.
    #[inline]
    pub(super) fn run<T>(
        &self,
        work: Work,
        default: impl Fn() -> usize,
        batch: impl FnOnce(usize) -> T,
    ) -> T {
        if SIMULATED {
            batch(self.draw(work))
        } else {
            self.run_measured(work, count_batch(), default, time::now, batch)
        }
    }

    /// [`run`](Self::run) with a clock. `counted` are the batches of this thread that were not
    /// counted yet.
    #[inline]
    fn run_measured<T>(
        &self,
        work: Work,
        counted: u32,
        default: impl Fn() -> usize,
        now: impl Fn() -> Instant,
        batch: impl FnOnce(usize) -> T,
    ) -> T {
        if counted != 0 {
            self.count(work, counted);
        }
        let current = &self.current[work.class];
        // Relaxed, both: see the module's documentation.
        let turn = if current.turn.load(Ordering::Relaxed) < work.turns() {
            self.take_turn(work)
        } else {
            None
        };
        let candidate = match (turn, current.chosen.load(Ordering::Relaxed)) {
            (Some(turn), _) => candidate_of(turn, work.candidates),
            (None, UNMEASURED) => default(),
            (None, chosen) => chosen as usize,
        };
        let begin = turn.map(|_| now());
        let result = batch(candidate);
        if let (Some(turn), Some(begin)) = (turn, begin) {
            let elapsed = now().saturating_duration_since(begin);
            self.deliver(work, turn, cost(elapsed, work.units), default);
        }
        result
    }

    /// Counts batches of a class, and begins a trial when one is due. The batches since the last
    /// one may belong to other classes and tables too. They count for the class in which a thread
    /// happens to tell their number, so each class gets its share.
    #[cold]
    fn count(&self, work: Work, counted: u32) {
        let trial = &self.trials[work.class];
        // Relaxed: it decides only when the next trial begins.
        let batches = trial.batches.fetch_add(counted, Ordering::Relaxed) + counted;
        if batches < trial.period.load(Ordering::Relaxed) * work.sample_batches {
            return;
        }
        // Relaxed: only the thread that was the last to count resets it, and begins a trial. If the
        // last trial never ended, because a batch panicked in it, this one replaces it.
        let exchange =
            trial
                .batches
                .compare_exchange(batches, 0, Ordering::Relaxed, Ordering::Relaxed);
        if exchange.is_ok() {
            trial.delivered.store(0, Ordering::Relaxed);
            for sample in &trial.samples {
                sample.store(0, Ordering::Relaxed);
            }
            // Release: a thread that takes a turn delivers its sample after these were erased.
            self.current[work.class].turn.store(0, Ordering::Release);
        }
    }

    /// The next turn of a trial.
    #[cold]
    fn take_turn(&self, work: Work) -> Option<u32> {
        // Acquire: see `count`.
        let turn = self.current[work.class]
            .turn
            .fetch_add(1, Ordering::Acquire);
        (turn < work.turns()).then_some(turn)
    }

    /// Adds the cost of a turn. The last one of a trial decides.
    #[cold]
    fn deliver(&self, work: Work, turn: u32, cost: u32, default: impl Fn() -> usize) {
        let trial = &self.trials[work.class];
        // Relaxed: ordered by the next line.
        trial.samples[work.sample(turn)].fetch_add(cost, Ordering::Relaxed);
        // Release and acquire: the last one sees the costs of the others.
        let delivered = trial.delivered.fetch_add(1, Ordering::AcqRel) + 1;
        if delivered == work.turns() {
            self.decide(work, default);
        }
    }

    fn decide(&self, work: Work, default: impl Fn() -> usize) {
        let trial = &self.trials[work.class];
        let costs: [u64; CANDIDATES_MAX] = std::array::from_fn(|candidate| {
            let samples = trial
                .samples
                .iter()
                .skip(candidate)
                .step_by(work.candidates);
            // Relaxed: `deliver` has acquired them. A trial that was replaced may have added to
            // them, which makes an outlier.
            let samples = samples.map(|sample| sample.load(Ordering::Relaxed));
            middle_mean(samples.take(SAMPLES))
        });
        let costs = &costs[..work.candidates];
        let current = &self.current[work.class];
        // Relaxed, here and below: each is a value of its own.
        let (chosen, period) = match current.chosen.load(Ordering::Relaxed) {
            UNMEASURED => (judge(costs, default()).0, PERIOD_MIN),
            before => judge(costs, before as usize),
        };
        current.chosen.store(chosen as u32, Ordering::Relaxed);
        trial.period.store(period, Ordering::Relaxed);
    }

    /// How many classes have been measured.
    #[cfg(all(test, not(loom)))]
    pub(super) fn measured(&self) -> usize {
        let chosen = self
            .current
            .iter()
            .map(|current| current.chosen.load(Ordering::Relaxed));
        chosen.filter(|&chosen| chosen != UNMEASURED).count()
    }

    /// A candidate that depends only on how many were drawn before, and on the batch.
    fn draw(&self, work: Work) -> usize {
        // Relaxed: in a simulation, only one thread runs at a time.
        let drawn = self.drawn.fetch_add(1, Ordering::Relaxed);
        let mut bits = u64::from(drawn) << 32 | work.units as u64;
        bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (bits >> 32) as usize % work.candidates
    }
}

/// Whose turn it is. Each group of turns has every candidate once, and the groups have different
/// orders, those of the Thue-Morse sequence. So a period in the work, or costs that rise or fall
/// during the trial, favour none.
fn candidate_of(mut turn: u32, candidates: usize) -> usize {
    let candidates = candidates as u32;
    let mut digits = 0;
    while turn > 0 {
        digits += turn % candidates;
        turn /= candidates;
    }
    (digits % candidates) as usize
}

/// The cost of a batch per unit, in sixteenths of a nanosecond.
fn cost(elapsed: Duration, units: usize) -> u32 {
    let cost = elapsed.as_nanos().saturating_mul(16) / units.max(1) as u128;
    cost.min(COST_MAX.into()) as u32
}

/// The mean of the middle half of the samples.
fn middle_mean(samples: impl Iterator<Item = u32>) -> u64 {
    let mut sorted = [0; SAMPLES];
    for (slot, sample) in sorted.iter_mut().zip(samples) {
        *slot = sample;
    }
    sorted.sort_unstable();
    let middle = &sorted[SAMPLES / 4..SAMPLES - SAMPLES / 4];
    middle.iter().map(|&sample| u64::from(sample)).sum::<u64>() / middle.len() as u64
}

/// The candidate to use from now on, and the period until the next trial.
fn judge(costs: &[u64], before: usize) -> (usize, u32) {
    let mut chosen = 0;
    for candidate in 1..costs.len() {
        if costs[candidate] < costs[chosen] {
            chosen = candidate;
        }
    }
    if costs[before] * (MARGIN - 1) > costs[chosen] * MARGIN {
        return (chosen, PERIOD_MIN);
    }
    chosen = before;
    let lost = |cost: &u64| cost.saturating_sub(costs[chosen]) * SAMPLES as u64;
    let lost: u64 = costs.iter().map(lost).sum();
    let period = lost * TIME_PER_LOSS / costs[chosen].max(1);
    let period = period.clamp(PERIOD_MIN.into(), PERIOD_MAX.into());
    (chosen, period as u32)
}

/// Counts a batch of this thread. Mostly returns 0, and each 33rd to 96th time how many batches
/// there were since.
///
/// A counter that threads share would be a cache line that each batch takes away from the other
/// threads. The distances vary, so that no pattern in the calls hides a table or a class. They
/// begin at 1 and double at first, so that a thread has reported at least half of its batches
/// whenever it ends.
#[inline]
fn count_batch() -> u32 {
    thread_local!(static BATCHES: BatchCounter = const { BatchCounter::new() });
    BATCHES.with(BatchCounter::count)
}

struct BatchCounter {
    left: Cell<u32>,
    distance: Cell<u32>,
    random: Cell<u32>,
}

impl BatchCounter {
    const fn new() -> BatchCounter {
        BatchCounter {
            left: Cell::new(1),
            distance: Cell::new(1),
            random: Cell::new(0x9e37_79b9),
        }
    }

    #[inline]
    fn count(&self) -> u32 {
        let left = self.left.get() - 1;
        self.left.set(left);
        if left > 0 {
            return 0;
        }
        let counted = self.distance.get();
        let distance = match counted {
            ..33 => 2 * counted,
            _ => {
                // Marsaglia's xorshift generator.
                let mut random = self.random.get();
                random ^= random << 13;
                random ^= random >> 17;
                random ^= random << 5;
                self.random.set(random);
                33 + random % 64
            }
        };
        self.distance.set(distance);
        self.left.set(distance);
        counted
    }
}

#[cfg(all(test, not(loom)))]
#[path = "measured_choice_tests.rs"]
mod tests;
