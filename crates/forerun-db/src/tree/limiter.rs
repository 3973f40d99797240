//! Limits how fast a store writes runs and copies, so that reads get their share of the disk.
//!
//! ```text
//!   debt  ╱│  ╱│  ╱│      each piece written adds its bytes; time pays them off at the rate
//!        ╱ │ ╱ │ ╱ │      a writer with more than a slice of debt sleeps until it is down to one
//!
//!   Flush       waits for flushes
//!   Compaction  waits for flushes and compactions, and keeps 1/4 beside flushes
//!   Copy        waits for both, and keeps 1/4 beside compactions, 1/10 beside flushes
//!   Scrub       waits for all, and keeps 1/4 beside copies, 1/10 beside compactions, …
//! ```
//!
//! A class keeps its share through credit: what a class above pays earns it a third as much, and
//! each class further below a third of that. A writer whose credit suffices for its piece, at once
//! or while it sleeps, goes on, and the piece becomes a debt of those above too.

use std::time::{Duration, Instant};

use forerun_core::sync::atomic::{AtomicBool, Ordering};
use forerun_core::sync::{Mutex, MutexGuard, PoisonError, thread, time};

use crate::{Error, Result};

/// Debt allowed without sleeping, as time at the full rate.
const BURST: Duration = Duration::from_millis(20);

/// The longest sleep between checks of whether to stop.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// The most credit of a class whose pieces are small: so little that a class that has written
/// nothing for an hour does not catch up at the expense of the others.
const CREDIT_MAX: Duration = Duration::from_millis(200);

/// How many times less a class earns than the one above.
const SHARE: u32 = 3;

/// What is written, the most urgent class first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IoClass {
    /// Flushes, and compactions of level 0. Writes may wait for them.
    Flush,
    /// All other compactions.
    Compaction,
    /// What a user asked for: backups, checkpoints, and the runs of ingestions.
    Copy,
    /// What no one waits for: scrubs, which read.
    Scrub,
}

impl IoClass {
    const COUNT: usize = 4;

    /// The class of a flush, or of a compaction from this level.
    pub(crate) fn of_level(level: usize) -> IoClass {
        if level == 0 {
            IoClass::Flush
        } else {
            IoClass::Compaction
        }
    }
}

/// A limit in bytes per second, shared by all classes.
#[derive(Debug)]
pub(crate) struct RateLimiter {
    state: Mutex<LimiterState<{ IoClass::COUNT }>>,
}

#[derive(Debug)]
struct LimiterState<const N: usize> {
    bytes_per_second: Option<u64>,
    /// When everything will have been paid for that each class waits for: what it and the classes
    /// above wrote, and what those below wrote with credit. Never later than for the class below.
    paid_at: [Instant; N],
    /// What each class may write before those above.
    credit: [Duration; N],
    /// The largest piece of each class lately. Its credit must be able to pay for another one.
    largest_cost: [Duration; N],
    /// How often debts were forgiven.
    epoch: u64,
}

impl<const N: usize> LimiterState<N> {
    fn new(bytes_per_second: Option<u64>) -> LimiterState<N> {
        LimiterState {
            bytes_per_second: limit(bytes_per_second),
            paid_at: [time::now(); N],
            credit: [Duration::ZERO; N],
            largest_cost: [Duration::ZERO; N],
            epoch: 0,
        }
    }

    /// Records what a class writes at this moment, as time at the full rate. Returns when it will
    /// have been paid for.
    fn charge(&mut self, now: Instant, cost: Duration, class: usize) -> Instant {
        // Unused time does not accumulate; otherwise an idle hour would allow a burst.
        if self.paid_at[N - 1] <= now {
            self.credit = [Duration::ZERO; N];
            self.largest_cost = [Duration::ZERO; N];
        }
        self.largest_cost[class] = self.largest_cost[class].max(cost);
        for (of, paid_at) in self.paid_at.iter_mut().enumerate() {
            let own = if of < class { Duration::ZERO } else { cost };
            *paid_at = (*paid_at).max(now) + own;
        }
        if self.pay_with_credit(now, cost, class) {
            return now;
        }
        let mut earned = cost;
        for below in class + 1..N {
            earned /= SHARE;
            let most = CREDIT_MAX.max(2 * self.largest_cost[below]);
            self.credit[below] = (self.credit[below] + earned).min(most);
        }
        self.paid_at[class]
    }

    /// Makes a piece a debt of the classes above too, if the credit suffices.
    fn pay_with_credit(&mut self, now: Instant, cost: Duration, class: usize) -> bool {
        let Some(left) = self.credit[class].checked_sub(cost) else {
            return false;
        };
        self.credit[class] = left;
        let all = self.paid_at[class];
        for paid_at in &mut self.paid_at[..class] {
            *paid_at = ((*paid_at).max(now) + cost).min(all);
        }
        true
    }

    fn forgive(&mut self, now: Instant) {
        self.paid_at = [now; N];
        self.credit = [Duration::ZERO; N];
        self.epoch += 1;
    }
}

/// A rate of 0 is no limit.
fn limit(bytes_per_second: Option<u64>) -> Option<u64> {
    bytes_per_second.filter(|rate| *rate > 0)
}

impl RateLimiter {
    /// At most this many bytes per second; `None` or 0 for no limit.
    pub(crate) fn new(bytes_per_second: Option<u64>) -> RateLimiter {
        RateLimiter {
            state: Mutex::new(LimiterState::new(bytes_per_second)),
        }
    }

    /// Changes the limit for what is written from now on.
    pub(crate) fn set_rate(&self, bytes_per_second: u64) {
        self.lock().bytes_per_second = limit(Some(bytes_per_second));
    }

    /// Changes the limit and forgives the debt. Sleeping writers notice when they wake.
    pub(crate) fn set(&self, bytes_per_second: Option<u64>) {
        let mut state = self.lock();
        state.bytes_per_second = limit(bytes_per_second);
        state.forgive(time::now());
    }

    /// Records written bytes, and sleeps as long as the limit requires. A class does not wait for
    /// those below, except for the share that they keep.
    ///
    /// # Errors
    /// [`Error::Closed`] as soon as `stop` is set.
    pub(crate) fn take(&self, bytes: u64, class: IoClass, stop: &AtomicBool) -> Result<()> {
        check(stop)?;
        self.take_while(bytes, class, || check(stop))
    }

    /// [`take`](Self::take) that asks `check` after each sleep whether to go on.
    ///
    /// # Errors
    /// The first error of `check`.
    pub(crate) fn take_while(
        &self,
        bytes: u64,
        class: IoClass,
        mut check: impl FnMut() -> Result<()>,
    ) -> Result<()> {
        let (cost, paid_at, epoch) = {
            let mut state = self.lock();
            let Some(rate) = state.bytes_per_second else {
                return Ok(());
            };
            let cost = Duration::from_secs_f64(bytes as f64 / rate as f64);
            let paid_at = state.charge(time::now(), cost, class as usize);
            (cost, paid_at, state.epoch)
        };
        loop {
            // Those that come later wait for this one, and not the other way round.
            let debt = paid_at.saturating_duration_since(time::now());
            if debt <= BURST {
                return Ok(());
            }
            thread::sleep((debt - BURST).min(STOP_CHECK_INTERVAL));
            check()?;
            let mut state = self.lock();
            let now = time::now();
            if state.epoch != epoch || state.pay_with_credit(now, cost, class as usize) {
                return Ok(());
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, LimiterState<{ IoClass::COUNT }>> {
        // Nothing panics while the lock is held, so a poisoned lock is still consistent.
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
#[path = "limiter_tests.rs"]
mod tests;
