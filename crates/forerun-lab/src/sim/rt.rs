//! Threads and time of a simulation: the scheduler of [`forerun_core::sync`].

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use forerun_core::sync::sim::{self, Config, End};
use forerun_core::sync::{thread, time};

pub use forerun_core::sync::sim::point;

/// Steps of the scheduler after which a simulation is aborted. The longest programs take a tenth of
/// that.
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

/// The same, as of the last time that somebody read it. Reading this does not change the schedule.
pub fn last_elapsed() -> Duration {
    Duration::from_nanos(LAST_NS.load(Relaxed))
}

/// Forgets the time of the previous simulation: the next history begins at zero.
pub fn begin_history() {
    LAST_NS.store(0, Relaxed);
}

/// Lets time pass.
pub fn sleep(time: Duration) {
    thread::sleep(time);
}

/// Runs a body as the first thread of a simulation.
///
/// # Errors
/// Why it did not complete.
pub fn simulate(seed: u64, body: impl FnOnce() + Send + 'static) -> Result<(), String> {
    let config = Config {
        steps_max: STEPS_MAX,
        ..Config::new(seed)
    };
    let outcome = sim::run(config, move || {
        let now = time::now();
        *STARTED.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
        body();
    });
    match outcome.end {
        End::Finished => Ok(()),
        end => Err(end.to_string()),
    }
}
