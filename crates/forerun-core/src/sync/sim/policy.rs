//! The policies by which the scheduler chooses the thread that runs next.
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

use super::random::Random;

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
