//! Slows writes down while level 0 of their keyspaces is deep.
//!
//! ```text
//!   rate  16 MiB/s ──┐           ┌──   one rate for all writers: a flush that makes level 0 deeper
//!                    └──┐     ┌──┘     lowers it, a compaction that makes it less deep raises it
//!                       └─────┘
//! ```

use forerun_core::sync::atomic::AtomicBool;
use std::time::Duration;

use forerun_core::sync::{Mutex, PoisonError, time};

use crate::Result;
use crate::tree::limiter::{IoClass, RateLimiter};

/// The write rate at which slowing down begins, and the lowest one, in bytes per second.
const RATE_MAX: u64 = 16 << 20;
const RATE_MIN: u64 = 1 << 20;

/// By how much, in percent, the rate changes when level 0 gets deeper, when it then has room for
/// few runs only, when it gets less deep, and when no keyspace is slowed down any more.
const DEEPER_PERCENT: u64 = 80;
const NEARLY_FULL_PERCENT: u64 = 60;
const LESS_DEEP_PERCENT: u64 = 125;
const RECOVERED_PERCENT: u64 = 140;

/// Level 0 is nearly full if writes stop after this many more runs.
const NEARLY_FULL_RUNS: usize = 2;

/// The rate of all writes that are slowed down.
#[derive(Debug)]
pub(super) struct WriteController {
    limiter: RateLimiter,
    pace: Mutex<Pace>,
}

#[derive(Debug)]
struct Pace {
    bytes_per_second: u64,
    /// How many more runs over a key stop the writes to some keyspace, of those that are slowed
    /// down.
    runs_left: Option<usize>,
}

impl WriteController {
    pub(super) fn new() -> WriteController {
        WriteController {
            limiter: RateLimiter::new(Some(RATE_MAX)),
            pace: Mutex::new(Pace {
                bytes_per_second: RATE_MAX,
                runs_left: None,
            }),
        }
    }

    /// Adapts the rate after the runs have changed.
    pub(super) fn adapt(&self, runs_left: Option<usize>) {
        // Nothing panics while the lock is held, so a poisoned lock is still consistent.
        let mut pace = self.pace.lock().unwrap_or_else(PoisonError::into_inner);
        let percent = match (pace.runs_left, runs_left) {
            (Some(before), Some(now)) if now < before && now <= NEARLY_FULL_RUNS => {
                NEARLY_FULL_PERCENT
            }
            (Some(before), Some(now)) if now < before => DEEPER_PERCENT,
            (Some(before), Some(now)) if now > before => LESS_DEEP_PERCENT,
            (Some(_), None) => RECOVERED_PERCENT,
            _ => 100,
        };
        pace.runs_left = runs_left;
        pace.bytes_per_second = (pace.bytes_per_second * percent / 100).clamp(RATE_MIN, RATE_MAX);
        match runs_left {
            Some(_) => self.limiter.set_rate(pace.bytes_per_second),
            // Nobody is slowed down any more, so writes do not sleep off what they owe.
            None => self.limiter.set(Some(pace.bytes_per_second)),
        }
    }

    /// Waits until a write of `bytes` keeps to the rate. Returns for how long.
    ///
    /// # Errors
    /// [`Error::Closed`](crate::Error::Closed) as soon as `stop` is set.
    pub(super) fn pause(&self, bytes: usize, stop: &AtomicBool) -> Result<Duration> {
        let begun = time::now();
        // All writes are of one class.
        self.limiter.take(bytes as u64, IoClass::Flush, stop)?;
        Ok(time::elapsed(begun))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_follows_the_depth_of_level_0() {
        let controller = WriteController::new();
        let rate_at = |runs_left| {
            controller.adapt(runs_left);
            controller.pace.lock().unwrap().bytes_per_second
        };
        assert_eq!(rate_at(Some(8)), RATE_MAX);
        let deeper = rate_at(Some(7));
        assert_eq!(deeper, RATE_MAX * 80 / 100);
        assert_eq!(
            rate_at(Some(7)),
            deeper,
            "the runs of another keyspace have changed"
        );
        assert_eq!(rate_at(Some(2)), deeper * 60 / 100);
        let less_deep = rate_at(Some(6));
        assert_eq!(less_deep, deeper * 60 / 100 * 125 / 100);
        assert_eq!(rate_at(None), less_deep * 140 / 100);
        for runs_left in (0..100).rev() {
            rate_at(Some(runs_left));
        }
        assert_eq!(rate_at(Some(0)), RATE_MIN);
    }

    #[test]
    fn all_writers_share_one_rate() {
        let controller = WriteController::new();
        let stop = AtomicBool::new(false);
        let begun = time::now();
        forerun_core::sync::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| controller.pause(1 << 20, &stop).unwrap());
            }
        });
        // 4 MiB at 16 MiB/s, less a burst.
        assert!(time::elapsed(begun) >= Duration::from_millis(200));
    }
}
