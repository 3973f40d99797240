//! The configuration of a simulation.

use std::time::Duration;

use super::policy::Policy;

/// The configuration of a simulation. Equal configurations give equal simulations.
#[derive(Debug, Clone)]
pub struct Config {
    /// The seed of all choices.
    pub seed: u64,
    /// The simulation is aborted after this many steps.
    pub steps_max: u64,
    /// How the scheduler chooses threads.
    pub policy: Policy,
    /// The simulated time that each step takes.
    pub step_ns: u64,
    /// The simulation is aborted if no thread reaches a scheduling point for this long, in real
    /// time.
    pub silence_max: Duration,
    /// Number of recent events that the outcome keeps.
    pub events_max: usize,
}

impl Config {
    /// The default configuration for `seed`.
    pub fn new(seed: u64) -> Config {
        Config {
            seed,
            steps_max: 1_000_000,
            policy: Policy::Seeded,
            step_ns: 500,
            silence_max: Duration::from_secs(60),
            events_max: 0,
        }
    }
}
