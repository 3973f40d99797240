//! A wrapper around the standard library's reader-writer lock, built like the mutex. As on Linux, a
//! reader does not overtake a waiting writer, so a thread that takes two read locks may wait for
//! itself.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::panic::Location;
use std::sync::{LockResult, PoisonError, TryLockError, TryLockResult};

use super::mutex::wrap;
use super::outcome::{Operation, WaitsFor};
use super::scheduler::Here;
use super::state::At;

/// [`std::sync::RwLock`], or its model in a simulation.
#[derive(Default)]
pub struct RwLock<T: ?Sized> {
    inner: std::sync::RwLock<T>,
}

/// [`std::sync::RwLockReadGuard`].
pub struct RwLockReadGuard<'a, T: ?Sized> {
    /// Taken out when the guard is dropped.
    inner: Option<std::sync::RwLockReadGuard<'a, T>>,
    held: Held,
}

/// [`std::sync::RwLockWriteGuard`].
pub struct RwLockWriteGuard<'a, T: ?Sized> {
    /// Taken out when the guard is dropped.
    inner: Option<std::sync::RwLockWriteGuard<'a, T>>,
    held: Held,
}

/// The lock that a guard holds, and where it was taken.
#[derive(Clone, Copy)]
struct Held {
    key: usize,
    at: At,
}

impl Held {
    fn acquired(self, here: Here) {
        here.with(|state| state.add_holder(self.key, here.thread, self.at));
    }

    fn released(self) {
        if let Some(here) = Here::get() {
            here.point_after(Operation::Unlock, self.at, |state| {
                state.remove_holder(self.key, here.thread);
                state.wake_all(&[WaitsFor::Read, WaitsFor::Write], self.key);
            });
        }
    }
}

impl<T> RwLock<T> {
    /// Creates an unlocked lock.
    #[inline]
    pub const fn new(value: T) -> RwLock<T> {
        RwLock {
            inner: std::sync::RwLock::new(value),
        }
    }

    /// Returns the value and consumes the lock.
    pub fn into_inner(self) -> LockResult<T> {
        self.inner.into_inner()
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Waits until no thread writes, and locks for reading.
    #[inline]
    #[track_caller]
    pub fn read(&self) -> LockResult<RwLockReadGuard<'_, T>> {
        let held = self.held(Location::caller());
        let Some(here) = Here::get() else {
            return wrap(self.inner.read(), |inner| read_guard(inner, held));
        };
        here.point(Operation::Read, held.at);
        loop {
            match self.try_read_in(here, held) {
                Ok(guard) => return Ok(guard),
                Err(TryLockError::Poisoned(poisoned)) => return Err(poisoned),
                Err(TryLockError::WouldBlock) => {
                    here.block(WaitsFor::Read, held.key, None, held.at);
                }
            }
        }
    }

    /// Waits until no thread reads or writes, and locks for writing.
    #[inline]
    #[track_caller]
    pub fn write(&self) -> LockResult<RwLockWriteGuard<'_, T>> {
        let held = self.held(Location::caller());
        let Some(here) = Here::get() else {
            return wrap(self.inner.write(), |inner| write_guard(inner, held));
        };
        here.point(Operation::Write, held.at);
        loop {
            match self.try_write_in(Some(here), held) {
                Ok(guard) => return Ok(guard),
                Err(TryLockError::Poisoned(poisoned)) => return Err(poisoned),
                Err(TryLockError::WouldBlock) => {
                    here.block(WaitsFor::Write, held.key, None, held.at);
                }
            }
        }
    }

    /// Locks for reading if no thread writes or waits to write.
    #[inline]
    #[track_caller]
    pub fn try_read(&self) -> TryLockResult<RwLockReadGuard<'_, T>> {
        let held = self.held(Location::caller());
        let Some(here) = Here::get() else {
            return wrap_try(self.inner.try_read(), |inner| read_guard(inner, held));
        };
        here.point(Operation::TryLock, held.at);
        let locked = self.try_read_in(here, held);
        if matches!(locked, Err(TryLockError::WouldBlock)) {
            here.point(Operation::Yield, held.at);
        }
        locked
    }

    /// Locks for writing if no thread reads or writes.
    #[inline]
    #[track_caller]
    pub fn try_write(&self) -> TryLockResult<RwLockWriteGuard<'_, T>> {
        let held = self.held(Location::caller());
        let here = Here::get();
        if let Some(here) = here {
            here.point(Operation::TryLock, held.at);
        }
        let locked = self.try_write_in(here, held);
        if let (Err(TryLockError::WouldBlock), Some(here)) = (&locked, here) {
            here.point(Operation::Yield, held.at);
        }
        locked
    }

    /// Whether a thread panicked while it held the write lock.
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

    fn try_read_in(&self, here: Here, held: Held) -> TryLockResult<RwLockReadGuard<'_, T>> {
        // A writer waits only while another thread holds the lock. That thread wakes all waiting
        // threads when it releases the lock.
        if here.with(|state| state.has_waiting(WaitsFor::Write, held.key)) {
            return Err(TryLockError::WouldBlock);
        }
        let locked = wrap_try(self.inner.try_read(), |inner| read_guard(inner, held));
        if !matches!(locked, Err(TryLockError::WouldBlock)) {
            held.acquired(here);
        }
        locked
    }

    fn try_write_in(
        &self,
        here: Option<Here>,
        held: Held,
    ) -> TryLockResult<RwLockWriteGuard<'_, T>> {
        let locked = wrap_try(self.inner.try_write(), |inner| write_guard(inner, held));
        if let (Some(here), false) = (here, matches!(locked, Err(TryLockError::WouldBlock))) {
            held.acquired(here);
        }
        locked
    }

    fn held(&self, at: At) -> Held {
        Held {
            key: (&raw const self.inner).addr(),
            at,
        }
    }
}

fn read_guard<T: ?Sized>(
    inner: std::sync::RwLockReadGuard<'_, T>,
    held: Held,
) -> RwLockReadGuard<'_, T> {
    RwLockReadGuard {
        inner: Some(inner),
        held,
    }
}

fn write_guard<T: ?Sized>(
    inner: std::sync::RwLockWriteGuard<'_, T>,
    held: Held,
) -> RwLockWriteGuard<'_, T> {
    RwLockWriteGuard {
        inner: Some(inner),
        held,
    }
}

fn wrap_try<A, B>(result: TryLockResult<A>, f: impl FnOnce(A) -> B) -> TryLockResult<B> {
    match result {
        Ok(inner) => Ok(f(inner)),
        Err(TryLockError::WouldBlock) => Err(TryLockError::WouldBlock),
        Err(TryLockError::Poisoned(poisoned)) => Err(TryLockError::Poisoned(PoisonError::new(f(
            poisoned.into_inner(),
        )))),
    }
}

const HELD: &str = "a guard holds its lock until it is dropped";

impl<T: ?Sized> Deref for RwLockReadGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.inner.as_ref().expect(HELD)
    }
}

impl<T: ?Sized> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.inner.as_ref().expect(HELD)
    }
}

impl<T: ?Sized> DerefMut for RwLockWriteGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        self.inner.as_mut().expect(HELD)
    }
}

impl<T: ?Sized> Drop for RwLockReadGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.inner = None;
        self.held.released();
    }
}

impl<T: ?Sized> Drop for RwLockWriteGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.inner = None;
        self.held.released();
    }
}

impl<T> From<T> for RwLock<T> {
    fn from(value: T) -> RwLock<T> {
        RwLock::new(value)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLockReadGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLockWriteGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
