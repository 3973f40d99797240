//! The clocks. Simulated time starts at zero in each simulation. The zero of its `Instant`s is one
//! fixed instant of this process.

use std::panic::Location;
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::outcome::Operation;
use super::scheduler::Here;

/// Start of the simulated wall clock: 2024-01-01 00:00:00 UTC.
const WALL_START: Duration = Duration::from_secs(1_704_067_200);

/// Returns the time of the monotonic clock.
#[inline]
#[track_caller]
pub fn now() -> Instant {
    match Here::get() {
        None => Instant::now(),
        Some(here) => {
            here.point(Operation::Clock, Location::caller());
            static ZERO: OnceLock<Instant> = OnceLock::new();
            let now_ns = here.with(|state| state.now_ns);
            *ZERO.get_or_init(Instant::now) + Duration::from_nanos(now_ns)
        }
    }
}

/// Returns the time since `since`, by the monotonic clock.
#[inline]
#[track_caller]
pub fn elapsed(since: Instant) -> Duration {
    now().saturating_duration_since(since)
}

/// Returns the time of the wall clock.
#[inline]
#[track_caller]
pub fn system_now() -> SystemTime {
    match Here::get() {
        None => SystemTime::now(),
        Some(here) => {
            here.point(Operation::Clock, Location::caller());
            let (now_ns, offset_ns) = here.with(|state| (state.now_ns, state.wall_offset_ns));
            let start_ns = WALL_START.as_nanos() as u64;
            let wall_ns = (start_ns + now_ns).saturating_add_signed(offset_ns);
            UNIX_EPOCH + Duration::from_nanos(wall_ns)
        }
    }
}
