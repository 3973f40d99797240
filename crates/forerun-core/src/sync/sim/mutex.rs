//! A wrapper around the standard library's mutex. In a simulation no thread waits in the inner
//! lock: a thread that cannot take it at once waits in the scheduler, and retries after another
//! thread has unlocked it. The inner lock holds the data and the poison flag.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::panic::Location;
use std::sync::{LockResult, MutexGuard as StdGuard, PoisonError, TryLockError, TryLockResult};

use super::outcome::{Operation, WaitsFor};
use super::scheduler::Here;
use super::state::At;

/// [`std::sync::Mutex`], or its model in a simulation.
#[derive(Default)]
pub struct Mutex<T: ?Sized> {
    inner: std::sync::Mutex<T>,
}

/// [`std::sync::MutexGuard`].
pub struct MutexGuard<'a, T: ?Sized> {
    lock: &'a Mutex<T>,
    /// Taken out by a condition variable's wait, and when the guard is dropped.
    inner: Option<StdGuard<'a, T>>,
    at: At,
}

impl<T> Mutex<T> {
    /// Creates an unlocked mutex.
    #[inline]
    pub const fn new(value: T) -> Mutex<T> {
        Mutex {
            inner: std::sync::Mutex::new(value),
        }
    }

    /// Returns the value and consumes the mutex.
    pub fn into_inner(self) -> LockResult<T> {
        self.inner.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits until the mutex is free, and locks it.
    #[inline]
    #[track_caller]
    pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        let at = Location::caller();
        match Here::get() {
            None => wrap(self.inner.lock(), |inner| self.guard(inner, at)),
            Some(here) => {
                here.point(Operation::Lock, at);
                self.lock_in(here, at)
            }
        }
    }

    /// Locks the mutex if it is free.
    #[inline]
    #[track_caller]
    pub fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
        let at = Location::caller();
        let here = Here::get();
        if let Some(here) = here {
            here.point(Operation::TryLock, at);
        }
        let locked = match self.inner.try_lock() {
            Ok(inner) => Ok(self.guard(inner, at)),
            Err(TryLockError::Poisoned(poisoned)) => Err(TryLockError::Poisoned(PoisonError::new(
                self.guard(poisoned.into_inner(), at),
            ))),
            Err(TryLockError::WouldBlock) => Err(TryLockError::WouldBlock),
        };
        match (&locked, here) {
            (Err(TryLockError::WouldBlock), Some(here)) => here.point(Operation::Yield, at),
            (_, Some(here)) => here.with(|state| state.add_holder(self.key(), here.thread, at)),
            (_, None) => {}
        }
        locked
    }

    /// Whether a thread panicked while it held the mutex.
    pub fn is_poisoned(&self) -> bool {
        self.inner.is_poisoned()
    }

    /// Clears the poison flag.
    pub fn clear_poison(&self) {
        self.inner.clear_poison();
    }

    /// Returns a mutable reference to the value.
    pub fn get_mut(&mut self) -> LockResult<&mut T> {
        self.inner.get_mut()
    }

    /// Locks the mutex without a scheduling point before it.
    fn lock_in(&self, here: Here, at: At) -> LockResult<MutexGuard<'_, T>> {
        loop {
            let locked = match self.inner.try_lock() {
                Ok(inner) => Ok(self.guard(inner, at)),
                Err(TryLockError::Poisoned(poisoned)) => {
                    Err(PoisonError::new(self.guard(poisoned.into_inner(), at)))
                }
                Err(TryLockError::WouldBlock) => {
                    here.block(WaitsFor::Lock, self.key(), None, at);
                    continue;
                }
            };
            here.with(|state| state.add_holder(self.key(), here.thread, at));
            return locked;
        }
    }

    fn guard<'a>(&'a self, inner: StdGuard<'a, T>, at: At) -> MutexGuard<'a, T> {
        MutexGuard {
            lock: self,
            inner: Some(inner),
            at,
        }
    }

    /// The scheduler's identifier of the mutex.
    fn key(&self) -> usize {
        (&raw const self.inner).addr()
    }
}

/// The same result with another guard.
#[inline]
pub(super) fn wrap<A, B>(result: LockResult<A>, f: impl FnOnce(A) -> B) -> LockResult<B> {
    match result {
        Ok(inner) => Ok(f(inner)),
        Err(poisoned) => Err(PoisonError::new(f(poisoned.into_inner()))),
    }
}

impl<'a, T: ?Sized> MutexGuard<'a, T> {
    /// Unlocks without a scheduling point, for a condition variable's wait.
    pub(super) fn unlock_to_wait(mut self, here: Here) -> &'a Mutex<T> {
        self.inner = None;
        here.with(|state| {
            state.remove_holder(self.lock.key(), here.thread);
            state.wake_all(&[WaitsFor::Lock], self.lock.key());
        });
        self.lock
    }

    /// Locks again after a wait.
    pub(super) fn lock_again(lock: &'a Mutex<T>, here: Here, at: At) -> LockResult<Self> {
        lock.lock_in(here, at)
    }

    /// Waits with `f` in the standard library.
    pub(super) fn wait_outside<R>(
        mut self,
        f: impl FnOnce(StdGuard<'a, T>) -> LockResult<(StdGuard<'a, T>, R)>,
    ) -> LockResult<(Self, R)> {
        let (lock, at) = (self.lock, self.at);
        let inner = self.inner.take().expect(HELD);
        wrap(f(inner), |(inner, result)| (lock.guard(inner, at), result))
    }
}

const HELD: &str = "a guard holds its lock until it is dropped";

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.inner.as_ref().expect(HELD)
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        self.inner.as_mut().expect(HELD)
    }
}

impl<T: ?Sized> Drop for MutexGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        let Some(inner) = self.inner.take() else {
            return;
        };
        drop(inner);
        if let Some(here) = Here::get() {
            let key = self.lock.key();
            here.point_after(Operation::Unlock, self.at, |state| {
                state.remove_holder(key, here.thread);
                state.wake_all(&[WaitsFor::Lock], key);
            });
        }
    }
}

impl<T> From<T> for Mutex<T> {
    fn from(value: T) -> Mutex<T> {
        Mutex::new(value)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized + fmt::Display> fmt::Display for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
