//! A condition variable. In a simulation it wakes any of the waiting threads, and its deadlines are
//! in simulated time. With some seeds it occasionally wakes a thread spuriously.

use std::panic::Location;
use std::sync::{LockResult, PoisonError};
use std::time::Duration;

use super::mutex::MutexGuard;
use super::outcome::{Operation, WaitsFor};
use super::scheduler::Here;
use super::state::{At, Wake};

/// [`std::sync::Condvar`], or its model in a simulation.
#[derive(Debug, Default)]
pub struct Condvar {
    inner: std::sync::Condvar,
}

/// [`std::sync::WaitTimeoutResult`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    /// Whether the wait ended without a notification.
    pub fn timed_out(&self) -> bool {
        self.0
    }
}

impl Condvar {
    /// Creates a condition variable without waiting threads.
    #[inline]
    pub const fn new() -> Condvar {
        Condvar {
            inner: std::sync::Condvar::new(),
        }
    }

    /// Unlocks, waits for a notification, and locks again.
    #[track_caller]
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        let at = Location::caller();
        let waited = match Here::get() {
            Some(here) => self.wait_in(here, guard, None, at),
            None => guard.wait_outside(|inner| {
                super::mutex::wrap(self.inner.wait(inner), |inner| (inner, Wake::Notified))
            }),
        };
        super::mutex::wrap(waited, |(guard, _)| guard)
    }

    /// Waits while `condition` holds.
    #[track_caller]
    pub fn wait_while<'a, T>(
        &self,
        mut guard: MutexGuard<'a, T>,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> LockResult<MutexGuard<'a, T>> {
        while condition(&mut guard) {
            guard = self.wait(guard)?;
        }
        Ok(guard)
    }

    /// Like [`Condvar::wait`], but for at most `timeout`.
    #[track_caller]
    pub fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: Duration,
    ) -> LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)> {
        let at = Location::caller();
        let Some(here) = Here::get() else {
            return guard.wait_outside(|inner| {
                super::mutex::wrap(
                    self.inner.wait_timeout(inner, timeout),
                    |(inner, result)| (inner, WaitTimeoutResult(result.timed_out())),
                )
            });
        };
        let waited = self.wait_in(here, guard, Some(timeout), at);
        super::mutex::wrap(waited, |(guard, wake)| {
            (guard, WaitTimeoutResult(wake == Wake::TimedOut))
        })
    }

    /// Waits while `condition` holds, but for at most `timeout`.
    #[track_caller]
    pub fn wait_timeout_while<'a, T>(
        &self,
        mut guard: MutexGuard<'a, T>,
        timeout: Duration,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)> {
        let begun = super::time::now();
        loop {
            if !condition(&mut guard) {
                return Ok((guard, WaitTimeoutResult(false)));
            }
            let left = timeout.saturating_sub(super::time::elapsed(begun));
            if left.is_zero() {
                return Ok((guard, WaitTimeoutResult(true)));
            }
            guard = match self.wait_timeout(guard, left) {
                Ok((guard, _)) => guard,
                Err(poisoned) => return Err(PoisonError::new(poisoned.into_inner())),
            };
        }
    }

    /// Wakes one waiting thread.
    #[inline]
    #[track_caller]
    pub fn notify_one(&self) {
        match Here::get() {
            None => self.inner.notify_one(),
            Some(here) => {
                here.point(Operation::Notify, Location::caller());
                here.with(|state| state.wake_one(WaitsFor::Notification, self.key()));
            }
        }
    }

    /// Wakes all waiting threads.
    #[inline]
    #[track_caller]
    pub fn notify_all(&self) {
        match Here::get() {
            None => self.inner.notify_all(),
            Some(here) => {
                here.point(Operation::Notify, Location::caller());
                here.with(|state| state.wake_all(&[WaitsFor::Notification], self.key()));
            }
        }
    }

    fn wait_in<'a, T>(
        &self,
        here: Here,
        guard: MutexGuard<'a, T>,
        timeout: Option<Duration>,
        at: At,
    ) -> LockResult<(MutexGuard<'a, T>, Wake)> {
        here.point(Operation::Wait, at);
        // No other thread runs between the unlock and the wait.
        let lock = guard.unlock_to_wait(here);
        let deadline_ns = timeout.map(|timeout| here.with(|state| state.deadline_after(timeout)));
        let wake = here.block(WaitsFor::Notification, self.key(), deadline_ns, at);
        super::mutex::wrap(MutexGuard::lock_again(lock, here, at), |guard| {
            (guard, wake)
        })
    }

    fn key(&self) -> usize {
        (&raw const self.inner).addr()
    }
}
