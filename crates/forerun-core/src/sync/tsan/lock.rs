//! parking_lot's locks with the standard library's interface, including poisoning.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{LockResult, PoisonError, TryLockError, TryLockResult};
use std::thread::panicking;
use std::time::Duration;

/// Whether a thread has panicked while it held the lock.
#[derive(Debug, Default)]
struct Poison(AtomicBool);

impl Poison {
    const fn new() -> Poison {
        Poison(AtomicBool::new(false))
    }

    fn check<G>(&self, guard: G) -> LockResult<G> {
        if self.0.load(Relaxed) {
            Err(PoisonError::new(guard))
        } else {
            Ok(guard)
        }
    }

    fn check_try<G>(&self, guard: Option<G>) -> TryLockResult<G> {
        let guard = guard.ok_or(TryLockError::WouldBlock)?;
        Ok(self.check(guard)?)
    }
}

/// Poisons the lock if it is dropped during a panic that began while the lock was held.
#[derive(Debug)]
struct Watch<'a> {
    poison: &'a Poison,
    was_panicking: bool,
}

impl<'a> Watch<'a> {
    fn new(poison: &'a Poison) -> Watch<'a> {
        Watch {
            poison,
            was_panicking: panicking(),
        }
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if !self.was_panicking && panicking() {
            self.poison.0.store(true, Relaxed);
        }
    }
}

macro_rules! lock {
    ($lock:ident, $guard:ident) => {
        impl<T> $lock<T> {
            /// Creates a lock that guards `value`.
            pub const fn new(value: T) -> $lock<T> {
                $lock {
                    poison: Poison::new(),
                    inner: parking_lot::$lock::new(value),
                }
            }

            /// Returns the value and consumes the lock.
            pub fn into_inner(self) -> LockResult<T> {
                self.poison.check(self.inner.into_inner())
            }
        }

        impl<T: ?Sized> $lock<T> {
            /// Returns a mutable reference to the value. An exclusive borrow needs no lock.
            pub fn get_mut(&mut self) -> LockResult<&mut T> {
                self.poison.check(self.inner.get_mut())
            }

            /// Whether a thread has panicked while it held the lock.
            pub fn is_poisoned(&self) -> bool {
                self.poison.0.load(Relaxed)
            }

            /// Clears the poison flag.
            pub fn clear_poison(&self) {
                self.poison.0.store(false, Relaxed);
            }
        }

        impl<T: Default> Default for $lock<T> {
            fn default() -> $lock<T> {
                $lock::new(T::default())
            }
        }

        impl<T> From<T> for $lock<T> {
            fn from(value: T) -> $lock<T> {
                $lock::new(value)
            }
        }

        // As in the standard library: the poison flag marks data that a panic left half changed.
        impl<T: ?Sized> std::panic::UnwindSafe for $lock<T> {}
        impl<T: ?Sized> std::panic::RefUnwindSafe for $lock<T> {}

        guard!($guard);

        impl<T: ?Sized> DerefMut for $guard<'_, T> {
            fn deref_mut(&mut self) -> &mut T {
                &mut self.inner
            }
        }
    };
}

macro_rules! guard {
    ($guard:ident) => {
        impl<T: ?Sized> Deref for $guard<'_, T> {
            type Target = T;

            fn deref(&self) -> &T {
                &self.inner
            }
        }

        impl<T: ?Sized + fmt::Debug> fmt::Debug for $guard<'_, T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                (**self).fmt(f)
            }
        }

        impl<T: ?Sized + fmt::Display> fmt::Display for $guard<'_, T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                (**self).fmt(f)
            }
        }
    };
}

/// A lock that one thread holds at a time.
#[derive(Debug)]
pub struct Mutex<T: ?Sized> {
    poison: Poison,
    inner: parking_lot::Mutex<T>,
}

/// A locked [`Mutex`].
#[must_use]
pub struct MutexGuard<'a, T: ?Sized> {
    // Dropped first: the lock is poisoned before it is released.
    watch: Watch<'a>,
    inner: parking_lot::MutexGuard<'a, T>,
}

lock!(Mutex, MutexGuard);

impl<T: ?Sized> Mutex<T> {
    fn guard<'a>(&'a self, inner: parking_lot::MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        let watch = Watch::new(&self.poison);
        MutexGuard { watch, inner }
    }

    /// Waits for the lock and takes it.
    pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        self.poison.check(self.guard(self.inner.lock()))
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
        let guard = self.inner.try_lock().map(|inner| self.guard(inner));
        self.poison.check_try(guard)
    }
}

/// A lock that one writer or many readers hold at a time.
#[derive(Debug)]
pub struct RwLock<T: ?Sized> {
    poison: Poison,
    inner: parking_lot::RwLock<T>,
}

/// A [`RwLock`] locked for reading.
#[must_use]
pub struct RwLockReadGuard<'a, T: ?Sized> {
    inner: parking_lot::RwLockReadGuard<'a, T>,
}

/// A [`RwLock`] locked for writing.
#[must_use]
pub struct RwLockWriteGuard<'a, T: ?Sized> {
    // Dropped first: the lock is poisoned before it is released.
    #[expect(dead_code, reason = "only its drop matters")]
    watch: Watch<'a>,
    inner: parking_lot::RwLockWriteGuard<'a, T>,
}

lock!(RwLock, RwLockWriteGuard);
guard!(RwLockReadGuard);

impl<T: ?Sized> RwLock<T> {
    fn write_guard<'a>(
        &'a self,
        inner: parking_lot::RwLockWriteGuard<'a, T>,
    ) -> RwLockWriteGuard<'a, T> {
        let watch = Watch::new(&self.poison);
        RwLockWriteGuard { watch, inner }
    }

    /// Waits until no writer holds the lock and locks it for reading.
    pub fn read(&self) -> LockResult<RwLockReadGuard<'_, T>> {
        let inner = self.inner.read();
        self.poison.check(RwLockReadGuard { inner })
    }

    /// Waits until the lock is free and locks it for writing.
    pub fn write(&self) -> LockResult<RwLockWriteGuard<'_, T>> {
        self.poison.check(self.write_guard(self.inner.write()))
    }

    /// Locks for reading if no writer holds the lock.
    pub fn try_read(&self) -> TryLockResult<RwLockReadGuard<'_, T>> {
        let inner = self.inner.try_read();
        self.poison
            .check_try(inner.map(|inner| RwLockReadGuard { inner }))
    }

    /// Locks for writing if the lock is free.
    pub fn try_write(&self) -> TryLockResult<RwLockWriteGuard<'_, T>> {
        let inner = self.inner.try_write();
        self.poison
            .check_try(inner.map(|inner| self.write_guard(inner)))
    }
}

/// A condition variable for data behind a [`Mutex`].
#[derive(Debug, Default)]
pub struct Condvar(parking_lot::Condvar);

/// The result of a wait with a timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    /// Whether the wait timed out.
    pub fn timed_out(&self) -> bool {
        self.0
    }
}

impl Condvar {
    /// Creates a condition variable without waiting threads.
    pub const fn new() -> Condvar {
        Condvar(parking_lot::Condvar::new())
    }

    /// Unlocks, waits for a notification, and locks again.
    pub fn wait<'a, T>(&self, mut guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        self.0.wait(&mut guard.inner);
        guard.watch.poison.check(guard)
    }

    /// Waits while `waits` holds.
    pub fn wait_while<'a, T>(
        &self,
        mut guard: MutexGuard<'a, T>,
        mut waits: impl FnMut(&mut T) -> bool,
    ) -> LockResult<MutexGuard<'a, T>> {
        while waits(&mut guard) {
            guard = self.wait(guard)?;
        }
        Ok(guard)
    }

    /// Waits for a notification for at most this long.
    pub fn wait_timeout<'a, T>(
        &self,
        mut guard: MutexGuard<'a, T>,
        time: Duration,
    ) -> LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)> {
        let result = self.0.wait_for(&mut guard.inner, time);
        let poison = guard.watch.poison;
        poison.check((guard, WaitTimeoutResult(result.timed_out())))
    }

    /// Waits while `waits` holds, for at most this long.
    pub fn wait_timeout_while<'a, T>(
        &self,
        mut guard: MutexGuard<'a, T>,
        time: Duration,
        mut waits: impl FnMut(&mut T) -> bool,
    ) -> LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)> {
        let start = super::time::now();
        while waits(&mut guard) {
            let Some(left) = time.checked_sub(super::time::elapsed(start)) else {
                return Ok((guard, WaitTimeoutResult(true)));
            };
            guard = self.wait_timeout(guard, left)?.0;
        }
        Ok((guard, WaitTimeoutResult(false)))
    }

    /// Wakes one waiting thread.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all waiting threads.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// A barrier, which threads leave together.
#[derive(Debug)]
pub struct Barrier {
    threads: usize,
    state: Mutex<Arrived>,
    left: Condvar,
}

#[derive(Debug, Default)]
struct Arrived {
    threads: usize,
    round: u64,
}

/// The result of a wait at a [`Barrier`].
#[derive(Debug)]
pub struct BarrierWaitResult(bool);

impl BarrierWaitResult {
    /// Whether this thread was the last one to arrive.
    pub fn is_leader(&self) -> bool {
        self.0
    }
}

impl Barrier {
    /// Creates a barrier for this many threads.
    pub const fn new(threads: usize) -> Barrier {
        let arrived = Arrived {
            threads: 0,
            round: 0,
        };
        Barrier {
            threads,
            state: Mutex::new(arrived),
            left: Condvar::new(),
        }
    }

    /// Waits until all threads have arrived.
    pub fn wait(&self) -> BarrierWaitResult {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.threads += 1;
        if state.threads >= self.threads {
            state.threads = 0;
            state.round += 1;
            self.left.notify_all();
            return BarrierWaitResult(true);
        }
        let round = state.round;
        let state = self.left.wait_while(state, |state| state.round == round);
        drop(state.unwrap_or_else(PoisonError::into_inner));
        BarrierWaitResult(false)
    }
}
