//! Threads and time of a simulation: the scheduler of [`forerun_core::sync`].

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use forerun_core::sync::sim::{self, Config, End};
use forerun_core::sync::{thread, time};

pub use forerun_core::sync::sim::point;

/// Steps of the scheduler after which a simulation is given up. The longest programs take a tenth
/// of it.
const STEPS_MAX: u64 = 5_000_000;

/// When the simulation began. One runs at a time.
static STARTED: Mutex<Option<Instant>> = Mutex::new(None);

/// The time that was asked for last, in nanoseconds.
static LAST_NS: AtomicU64 = AtomicU64::new(0);

/// Time since the simulation began.
pub fn elapsed() -> Duration {
    let now = time::now();
    let started = *STARTED.lock().unwrap_or_else(PoisonError::into_inner);
    let elapsed = started.map_or(Duration::ZERO, |started| now.duration_since(started));
    LAST_NS.store(elapsed.as_nanos() as u64, Relaxed);
    elapsed
}

/// The same, as of when somebody asked last. To ask for this changes no schedule.
pub fn last_elapsed() -> Duration {
    Duration::from_nanos(LAST_NS.load(Relaxed))
}

/// Forgets the time of the simulation before: the history of the next one begins at zero.
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
/// Why it did not come to its end.
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
