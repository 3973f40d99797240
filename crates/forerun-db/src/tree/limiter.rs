//! Limits how fast a store writes runs and copies, so that reads get their share of the disk.
//!
//! ```text
//!   debt  ╱│  ╱│  ╱│      each piece written adds its bytes; time pays them off at the rate
//!        ╱ │ ╱ │ ╱ │      who comes when there is more than a slice of debt waits until it is down to one
//!
//!   waiting   Flush       ■ ■       goes first
//!             Compaction  ■ ■ ■     keeps 1/4 beside flushes
//!             Copy        ■         keeps 1/4 beside compactions, 1/10 beside flushes
//! ```
//!
//! A class keeps its share through credit: what a class above pays earns it a third as much, and
//! a class further below a ninth. A class that has the credit for its next piece goes before those
//! above, and uses it up.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use forerun_core::sync::atomic::{AtomicBool, Ordering};
use forerun_core::sync::{Condvar, Mutex, MutexGuard, PoisonError, time};

use crate::{Error, Result};

/// Debt at which a writer need not wait, as time at the full rate.
const BURST: Duration = Duration::from_millis(20);

/// The longest wait between checks of whether to stop.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// The most that is paid for at once, as time at the full rate. The rest of a longer write waits
/// its turn again.
const PIECE: Duration = Duration::from_millis(100);

/// The most credit of a class: enough for any piece, and so little that a class that has written
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
}

impl IoClass {
    const COUNT: usize = 3;

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
    /// Notified when a waiter has gone.
    changed: Condvar,
}

#[derive(Debug)]
struct LimiterState<const N: usize> {
    bytes_per_second: Option<u64>,
    /// When everything written so far will have been paid for.
    paid_at: Instant,
    /// What each class may write before those above.
    credit: [Duration; N],
    /// Who waits in each class, in the order in which they came.
    waiting: [VecDeque<Waiter>; N],
    tickets: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Waiter {
    ticket: u64,
    /// What it has written, as time at the full rate.
    cost: Duration,
}

impl<const N: usize> LimiterState<N> {
    fn new(bytes_per_second: Option<u64>) -> LimiterState<N> {
        LimiterState {
            bytes_per_second: bytes_per_second.map(|rate| rate.max(1)),
            paid_at: time::now(),
            credit: [Duration::ZERO; N],
            waiting: std::array::from_fn(|_| VecDeque::new()),
            tickets: 0,
        }
    }

    fn join(&mut self, class: usize, cost: Duration) -> Waiter {
        self.tickets += 1;
        let waiter = Waiter {
            ticket: self.tickets,
            cost,
        };
        self.waiting[class].push_back(waiter);
        waiter
    }

    fn leave(&mut self, class: usize, waiter: Waiter) {
        self.waiting[class].retain(|of| *of != waiter);
    }

    /// Pays for a waiter if it is its turn. If not, returns how long nothing can change unless
    /// another one goes.
    fn pay(&mut self, now: Instant, class: usize, waiter: Waiter) -> Option<Duration> {
        let debt = self.paid_at.saturating_duration_since(now);
        if debt > BURST {
            return Some(debt - BURST);
        }
        let mut heads = (0..N).filter_map(|of| Some((of, *self.waiting[of].front()?)));
        let first = heads.next();
        let mut by_credit = heads.filter(|(of, head)| self.credit[*of] >= head.cost);
        if by_credit.next_back().or(first) != Some((class, waiter)) {
            return Some(STOP_CHECK_INTERVAL);
        }
        self.waiting[class].pop_front();
        // Unused time does not accumulate; otherwise an idle hour would allow a burst.
        self.paid_at = self.paid_at.max(now) + waiter.cost;
        if first != Some((class, waiter)) {
            self.credit[class] -= waiter.cost;
            return None;
        }
        let mut earned = waiter.cost;
        for credit in &mut self.credit[class + 1..] {
            earned /= SHARE;
            *credit = (*credit + earned).min(CREDIT_MAX);
        }
        None
    }
}

impl RateLimiter {
    /// At most this many bytes per second; `None` for no limit.
    pub(crate) fn new(bytes_per_second: Option<u64>) -> RateLimiter {
        RateLimiter {
            state: Mutex::new(LimiterState::new(bytes_per_second)),
            changed: Condvar::new(),
        }
    }

    /// Changes the limit for what is written from now on.
    pub(crate) fn set_rate(&self, bytes_per_second: u64) {
        self.lock().bytes_per_second = Some(bytes_per_second.max(1));
    }

    /// Changes the limit and forgives the debt.
    pub(crate) fn set(&self, bytes_per_second: Option<u64>) {
        let mut state = self.lock();
        state.bytes_per_second = bytes_per_second.map(|rate| rate.max(1));
        state.paid_at = time::now();
        drop(state);
        self.changed.notify_all();
    }

    /// Records written bytes, and sleeps as long as the limit requires. A class does not wait for
    /// those below, except for the share that they keep.
    ///
    /// # Errors
    /// [`Error::Closed`] as soon as `stop` is set.
    pub(crate) fn take(&self, bytes: u64, class: IoClass, stop: &AtomicBool) -> Result<()> {
        self.take_while(bytes, class, || check(stop))
    }

    /// [`take`](Self::take) that asks `check`, also while it waits, whether to go on.
    ///
    /// # Errors
    /// The first error of `check`.
    pub(crate) fn take_while(
        &self,
        bytes: u64,
        class: IoClass,
        mut check: impl FnMut() -> Result<()>,
    ) -> Result<()> {
        let mut left = bytes;
        while left > 0 {
            check()?;
            match self.take_piece(left, class) {
                Some(taken) => left -= taken,
                None => return Ok(()),
            }
        }
        Ok(())
    }

    /// Pays for a part of these bytes, and returns how many that were: none if they wait for their
    /// turn for long. `None`: there is no limit.
    fn take_piece(&self, bytes: u64, class: IoClass) -> Option<u64> {
        let mut state = self.lock();
        let rate = state.bytes_per_second? as f64;
        let piece = ((rate * PIECE.as_secs_f64()) as u64).clamp(1, bytes);
        let cost = Duration::from_secs_f64(piece as f64 / rate);
        let class = class as usize;
        let waiter = state.join(class, cost);
        let begun = time::now();
        let taken = loop {
            let now = time::now();
            let Some(wait) = state.pay(now, class, waiter) else {
                break Some(piece);
            };
            let left = STOP_CHECK_INTERVAL.saturating_sub(now - begun);
            // No one must wait for this one's turn while it looks whether to stop.
            if left.is_zero() || state.bytes_per_second.is_none() {
                state.leave(class, waiter);
                break state.bytes_per_second.map(|_| 0);
            }
            let woken = self.changed.wait_timeout(state, wait.min(left));
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        };
        drop(state);
        self.changed.notify_all();
        taken
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
