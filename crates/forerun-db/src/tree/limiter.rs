//! Limits how fast flushes and compactions write, so that reads get their share of the disk.
//!
//! ```text
//!   debt  ╱│  ╱│  ╱│      each piece written adds its bytes; time pays them off at the rate
//!        ╱ │ ╱ │ ╱ │      a writer with more than a slice of debt sleeps until it is down to one
//! ```
//!
//! Writes wait for flushes and for compactions of level 0, so these wait for each other only. The
//! rest waits for all, and so pays for them too, except that a quarter of the rate is its own.

use forerun_core::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forerun_core::sync::{Mutex, MutexGuard, PoisonError, thread, time};

use crate::{Error, Result};

/// Debt allowed without sleeping, as time at the full rate.
const BURST: Duration = Duration::from_millis(20);

/// The longest sleep between checks of the stop flag.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// A limit in bytes per second, shared by all writers of runs.
#[derive(Debug)]
pub(crate) struct RateLimiter {
    state: Mutex<LimiterState>,
}

#[derive(Debug)]
struct LimiterState {
    bytes_per_second: Option<u64>,
    /// When everything written so far will have been paid for.
    paid_at: Instant,
    /// The same for what is urgent. Never later.
    urgent_paid_at: Instant,
    /// What the rest may still write as if it were urgent.
    owed: Duration,
}

impl LimiterState {
    /// Records what is written at this moment, as time at the full rate. Returns when it will have
    /// been paid for.
    fn charge(&mut self, now: Instant, cost: Duration, is_urgent: bool) -> Instant {
        // Unused time does not accumulate; otherwise an idle hour would allow a burst.
        if self.paid_at <= now {
            (self.paid_at, self.owed) = (now, Duration::ZERO);
        }
        self.paid_at += cost;
        let as_urgent = if is_urgent {
            self.owed += cost / 3;
            cost
        } else {
            let own = cost.min(self.owed);
            self.owed -= own;
            own
        };
        self.urgent_paid_at = self.urgent_paid_at.max(now) + as_urgent;
        if as_urgent == cost {
            self.urgent_paid_at
        } else {
            self.paid_at
        }
    }
}

impl RateLimiter {
    /// At most this many bytes per second; `None` for no limit.
    pub(crate) fn new(bytes_per_second: Option<u64>) -> RateLimiter {
        let now = time::now();
        RateLimiter {
            state: Mutex::new(LimiterState {
                bytes_per_second: bytes_per_second.map(|rate| rate.max(1)),
                paid_at: now,
                urgent_paid_at: now,
                owed: Duration::ZERO,
            }),
        }
    }

    /// Changes the limit for what is written from now on.
    pub(crate) fn set_rate(&self, bytes_per_second: u64) {
        self.lock().bytes_per_second = Some(bytes_per_second.max(1));
    }

    /// Changes the limit and forgives the debt. Sleeping writers notice when they wake.
    pub(crate) fn set(&self, bytes_per_second: Option<u64>) {
        let mut state = self.lock();
        state.bytes_per_second = bytes_per_second.map(|rate| rate.max(1));
        state.paid_at = time::now();
        state.urgent_paid_at = state.paid_at;
        state.owed = Duration::ZERO;
    }

    /// Records written bytes, and sleeps as long as the limit requires. What is urgent does not
    /// wait for the rest.
    ///
    /// # Errors
    /// [`Error::Closed`] as soon as `stop` is set.
    pub(crate) fn take(&self, bytes: u64, is_urgent: bool, stop: &AtomicBool) -> Result<()> {
        check(stop)?;
        let own_paid_at = {
            let mut state = self.lock();
            let Some(rate) = state.bytes_per_second else {
                return Ok(());
            };
            let cost = Duration::from_secs_f64(bytes as f64 / rate as f64);
            state.charge(time::now(), cost, is_urgent)
        };
        loop {
            // Those that come later wait for this one, and not the other way round.
            let paid_at = self.lock().paid_at.min(own_paid_at);
            let debt = paid_at.saturating_duration_since(time::now());
            if debt <= BURST {
                return Ok(());
            }
            thread::sleep((debt - BURST).min(STOP_CHECK_INTERVAL));
            check(stop)?;
        }
    }

    fn lock(&self) -> MutexGuard<'_, LimiterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Fails if the store is closing.
pub(crate) fn check(stop: &AtomicBool) -> Result<()> {
    // Relaxed: no other data depends on the flag; it only has to be seen soon.
    if stop.load(Ordering::Relaxed) {
        Err(Error::Closed)
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn writes_respect_the_rate_limit() {
        let limiter = RateLimiter::new(Some(1 << 20));
        let stop = AtomicBool::new(false);
        let start = Instant::now();
        for is_urgent in [true, false].repeat(4) {
            limiter.take(32 << 10, is_urgent, &stop).unwrap();
        }
        let expected = Duration::from_millis(250) - BURST;
        assert!(start.elapsed() >= expected, "{:?}", start.elapsed());
        limiter.set(None);
        let start = Instant::now();
        limiter.take(1 << 40, false, &stop).unwrap();
        assert!(start.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn what_is_urgent_does_not_wait_for_the_rest() {
        let limiter = Arc::new(RateLimiter::new(Some(1 << 10)));
        let stop = Arc::new(AtomicBool::new(false));
        let (sleeper, flag) = (Arc::clone(&limiter), Arc::clone(&stop));
        let thread = std::thread::spawn(move || sleeper.take(1 << 20, false, &flag));
        while limiter.lock().paid_at < Instant::now() + Duration::from_secs(100) {
            std::thread::yield_now();
        }
        let start = Instant::now();
        limiter.take(64, true, &stop).unwrap();
        assert!(start.elapsed() < Duration::from_secs(60));
        stop.store(true, Ordering::Relaxed);
        assert!(matches!(thread.join().unwrap(), Err(Error::Closed)));
    }

    #[test]
    fn the_rest_keeps_a_quarter_of_the_rate_beside_what_is_urgent() {
        let limiter = RateLimiter::new(Some(1));
        let mut state = limiter.lock();
        let cost = Duration::from_millis(6);
        let begun = state.paid_at;
        // When each of two writers comes again, and how much it has written.
        let (mut urgent, mut rest) = ((begun, 0), (begun, 0));
        while urgent.0 < begun + Duration::from_secs(600) {
            let is_urgent = urgent.0 <= rest.0;
            let writer = if is_urgent { &mut urgent } else { &mut rest };
            let paid_at = state.charge(writer.0, cost, is_urgent);
            let wait = paid_at.saturating_duration_since(writer.0 + BURST);
            *writer = (writer.0 + wait, writer.1 + 1);
        }
        let written = urgent.1 + rest.1;
        assert!((95_000..=101_000).contains(&written), "{written}");
        assert!(rest.1 * 5 > written, "{} of {written}", rest.1);
    }

    #[test]
    fn a_sleeper_wakes_when_it_is_to_stop() {
        let limiter = Arc::new(RateLimiter::new(Some(1)));
        let stop = Arc::new(AtomicBool::new(false));
        let (sleeper, flag) = (Arc::clone(&limiter), Arc::clone(&stop));
        let thread = std::thread::spawn(move || sleeper.take(1 << 30, false, &flag));
        stop.store(true, Ordering::Relaxed);
        assert!(matches!(thread.join().unwrap(), Err(Error::Closed)));
    }
}
