//! The threads and the time of a simulation. The scheduler of [`forerun_core::sync`] controls them.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use forerun_core::sync::sim::{self, Config, End};
use forerun_core::sync::{thread, time};

use super::key_order::PLANNED_PANIC;

pub use forerun_core::sync::sim::point;

/// Steps of the scheduler after which a simulation is aborted. The longest programs take a tenth of
/// this.
const STEPS_MAX: u64 = 5_000_000;

/// When the simulation began. Only one runs at a time.
static STARTED: Mutex<Option<Instant>> = Mutex::new(None);

/// The time that was last read, in nanoseconds.
static LAST_NS: AtomicU64 = AtomicU64::new(0);

/// Time since the simulation began.
pub fn elapsed() -> Duration {
    let now = time::now();
    let started = *STARTED.lock().unwrap_or_else(PoisonError::into_inner);
    let elapsed = started.map_or(Duration::ZERO, |started| now.duration_since(started));
    LAST_NS.store(elapsed.as_nanos() as u64, Relaxed);
    elapsed
}

/// The result of the last call of [`elapsed`]. Reading it does not change the schedule.
pub fn last_elapsed() -> Duration {
    Duration::from_nanos(LAST_NS.load(Relaxed))
}

/// Resets the time of the previous simulation, so that the next history begins at zero.
pub fn begin_history() {
    LAST_NS.store(0, Relaxed);
}

/// Lets time pass.
pub fn sleep(time: Duration) {
    thread::sleep(time);
}

/// How a simulation ended.
#[derive(Debug)]
pub struct SimOutcome {
    /// An unplanned panic.
    pub panic: Option<String>,
    /// Why it did not finish.
    pub stuck: Option<String>,
    /// A hash of the schedule and of the time: every step of every thread.
    pub schedule: u64,
}

/// Runs a body as the first thread of a simulation.
pub fn simulate(seed: u64, body: impl FnOnce() + Send + 'static) -> SimOutcome {
    let config = Config {
        steps_max: STEPS_MAX,
        ..Config::new(seed)
    };
    let outcome = sim::run(config, move || {
        let now = time::now();
        *STARTED.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
        body();
    });
    let mut raised = outcome.raised.iter();
    let unplanned = raised.find(|panicked| !panicked.message.starts_with(PLANNED_PANIC));
    let panic = unplanned.map(|one| format!("{} panicked: {}", one.thread, one.message));
    SimOutcome {
        panic,
        stuck: match &outcome.end {
            End::Finished => None,
            end => Some(end.to_string()),
        },
        schedule: outcome.trace ^ outcome.elapsed.as_nanos() as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::catch_unwind;

    #[test]
    fn unplanned_panics_are_reported_even_if_caught() {
        let planned = simulate(1, || drop(catch_unwind(|| panic!("{PLANNED_PANIC}"))));
        assert_eq!((planned.panic, planned.stuck), (None, None));
        let caught = simulate(1, || drop(catch_unwind(|| panic!("an index"))));
        let finding = caught.panic.expect("an unplanned panic is reported");
        assert!(finding.starts_with("main panicked: an index"), "{finding}");
        let joined = simulate(1, || drop(thread::spawn(|| panic!("a worker")).join()));
        let finding = joined.panic.expect("a thread's panic is reported");
        assert!(finding.contains("panicked: a worker"), "{finding}");
    }
}
