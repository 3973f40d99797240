//! Chooses the thread that runs next.
//!
//! A *random walk* switches with a fixed probability at each scheduling point, to any thread that
//! can run. It finds defects that need a few switches anywhere, and defects that need many.
//!
//! *Probabilistic concurrency testing* (Burckhardt, Kothari, Musuvathi and Nagarakatte, "A
//! Randomized Scheduler with Probabilistic Guarantees of Finding Bugs", ASPLOS 2010) gives each
//! thread a random priority and always runs the one with the highest. At a few random steps the
//! running thread falls below all others. This finds defects that need one thread to be held back
//! for long while the others do much. A thread that has run for a long time also falls below the
//! others, so that a thread that polls cannot block them forever.

use super::outcome::Operation;
use super::random::Random;
use super::state::{State, Status};

/// How the scheduler chooses a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// The seed selects one of the other two policies and its parameters.
    Seeded,
    /// At each point, switch with probability 1 / `switch_every`.
    RandomWalk {
        /// The mean number of points between two switches, at least 1.
        switch_every: u64,
    },
    /// Priorities, with `changes` change points in the first `steps` steps.
    Priorities {
        /// How often the running thread falls below all others. A defect with `d` ordering
        /// constraints needs `d - 1`.
        changes: u64,
        /// Approximate number of steps of the simulation.
        steps: u64,
    },
}

/// The state of a policy.
pub(super) enum Chooser {
    Walk {
        switch_every: u64,
    },
    Priorities {
        /// Steps at which the running thread is demoted. The next one is last.
        changes: Vec<u64>,
        /// The priority of the next thread to be demoted. It is below all others.
        lowest: u64,
        /// Whether a thread became able to run, or a priority changed, since the last choice.
        is_stale: bool,
    },
}

/// This many atomic operations count as one scheduling point of another kind.
const ATOMICS_PER_POINT: u64 = 8;

/// A thread with the highest priority runs for at most this many steps.
const RUN_STEPS_MAX: u64 = 2000;

/// New threads have priorities above this, demoted ones below.
const DEMOTED: u64 = 1 << 32;

impl Chooser {
    pub(super) fn new(policy: Policy, random: &mut Random) -> Chooser {
        match policy {
            Policy::Seeded if random.once_in(3) => {
                let changes = 1 + random.below(8);
                let steps = 1 << (6 + random.below(11));
                Chooser::new(Policy::Priorities { changes, steps }, random)
            }
            Policy::Seeded => {
                let switch_every = 2 << random.below(8);
                Chooser::new(Policy::RandomWalk { switch_every }, random)
            }
            Policy::RandomWalk { switch_every } => Chooser::Walk {
                switch_every: switch_every.max(1),
            },
            Policy::Priorities { changes, steps } => {
                // Half of them come early, when a short simulation is not over yet.
                let mut changes: Vec<u64> = (0..changes)
                    .map(|change| match change % 2 {
                        0 => random.below(steps.max(1)),
                        _ => {
                            let early = steps >> (1 + random.below(8));
                            random.below(early.max(1))
                        }
                    })
                    .collect();
                changes.sort_unstable_by(|a, b| b.cmp(a));
                Chooser::Priorities {
                    changes,
                    lowest: DEMOTED,
                    is_stale: true,
                }
            }
        }
    }

    pub(super) fn new_priority(random: &mut Random) -> u64 {
        random.next() | DEMOTED
    }

    /// Records that another thread can run now.
    pub(super) fn more_can_run(&mut self) {
        if let Chooser::Priorities { is_stale, .. } = self {
            *is_stale = true;
        }
    }
}

impl State {
    /// Chooses the thread that runs after a point at which `me` can continue.
    #[inline]
    pub(super) fn choose(&mut self, me: usize, operation: Operation) -> usize {
        if operation != Operation::Atomic
            && self.time_every > 0
            && self.schedule.once_in(self.time_every)
        {
            self.pass_time();
        }
        match &mut self.chooser {
            Chooser::Walk { switch_every } => {
                let every = match operation {
                    Operation::Atomic => switch_every.saturating_mul(ATOMICS_PER_POINT),
                    _ => *switch_every,
                };
                match self.schedule.once_in(every) {
                    true => self.choose_other(me),
                    false => me,
                }
            }
            Chooser::Priorities {
                changes,
                lowest,
                is_stale,
            } => {
                let is_change = changes.pop_if(|step| *step <= self.steps).is_some();
                if is_change || self.steps - self.running_since >= RUN_STEPS_MAX {
                    self.running_since = self.steps;
                    *lowest -= 1;
                    self.threads[me].priority = *lowest;
                    *is_stale = true;
                }
                match std::mem::take(is_stale) {
                    true => self.choose_any().unwrap_or(me),
                    false => me,
                }
            }
        }
    }

    /// Chooses the thread that runs after `me` has yielded: another one, if any can run.
    pub(super) fn choose_after_yield(&mut self, me: usize) -> usize {
        self.threads[me].has_yielded = true;
        if let Chooser::Priorities { lowest, .. } = &mut self.chooser {
            *lowest -= 1;
            self.threads[me].priority = *lowest;
        }
        let all = self.live.iter().map(|thread| &self.threads[*thread]);
        if all
            .filter(|thread| thread.can_run())
            .all(|thread| thread.has_yielded)
        {
            // All threads that can run wait for threads that cannot, perhaps until a deadline, so
            // time may pass.
            self.live
                .iter()
                .for_each(|thread| self.threads[*thread].has_yielded = false);
            if self.schedule.once_in(4) {
                self.pass_time();
            }
            self.threads[me].has_yielded = true;
        }
        self.choose_any().unwrap_or(me)
    }

    /// Chooses any thread that can run, if there is one.
    pub(super) fn choose_any(&mut self) -> Option<usize> {
        if let Chooser::Priorities { .. } = self.chooser {
            let running = self.live.iter().copied();
            return running
                .filter(|thread| self.threads[*thread].can_run())
                .max_by_key(|thread| self.threads[*thread].priority);
        }
        self.pick(|thread| thread.can_run() && !thread.has_yielded)
            .or_else(|| self.pick(|thread| thread.can_run()))
    }

    /// Chooses the target of a random walk's switch from `me`.
    fn choose_other(&mut self, me: usize) -> usize {
        // A thread that yielded is not held back forever by threads that do not.
        if self.schedule.once_in(2) {
            let live = self.live.iter();
            live.for_each(|thread| self.threads[*thread].has_yielded = false);
        }
        self.pick(|thread| thread.can_run() && !thread.has_yielded && thread.index != me)
            .unwrap_or(me)
    }

    /// Picks one of the threads for which `is_wanted` holds, all with the same probability.
    pub(super) fn pick(
        &mut self,
        is_wanted: impl Fn(&super::state::Thread) -> bool,
    ) -> Option<usize> {
        let all = || self.live.iter().map(|thread| &self.threads[*thread]);
        let wanted = all().filter(|thread| is_wanted(thread)).count();
        if wanted == 0 {
            return None;
        }
        let chosen = match wanted {
            1 => 0,
            _ => self.schedule.below(wanted as u64) as usize,
        };
        let mut wanted = self
            .live
            .iter()
            .filter(|thread| is_wanted(&self.threads[**thread]));
        wanted.nth(chosen).copied()
    }

    /// Wakes a thread that waits on a condition variable without a notification, as real ones may.
    pub(super) fn wake_spuriously(&mut self) {
        let waiting = self.pick(
            |thread| matches!(&thread.status, Status::Blocked(wait) if wait.may_wake_spuriously()),
        );
        if let Some(thread) = waiting {
            self.make_runnable(thread, super::state::Wake::Notified);
        }
    }
}
