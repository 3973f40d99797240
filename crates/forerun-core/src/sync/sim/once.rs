//! Cells that are set once. In a simulation a thread that finds a cell being initialised by another
//! thread waits in the scheduler. If the initialisation needs the cell itself, it waits forever,
//! and the simulation reports that.

use std::fmt;
use std::ops::Deref;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, Ordering};

use super::outcome::{Operation, WaitsFor};
use super::scheduler::Here;
use super::state::At;

/// [`std::sync::OnceLock`], or its model in a simulation.
pub struct OnceLock<T> {
    inner: std::sync::OnceLock<T>,
    /// Set while a simulated thread initialises the cell. Only simulated threads use this, one at a
    /// time.
    is_busy: AtomicBool,
}

impl<T> OnceLock<T> {
    /// Creates an empty cell.
    #[inline]
    pub const fn new() -> OnceLock<T> {
        OnceLock {
            inner: std::sync::OnceLock::new(),
            is_busy: AtomicBool::new(false),
        }
    }

    /// Returns the value if the cell is set.
    #[inline]
    pub fn get(&self) -> Option<&T> {
        self.inner.get()
    }

    /// Returns a mutable reference to the value if the cell is set.
    pub fn get_mut(&mut self) -> Option<&mut T> {
        self.inner.get_mut()
    }

    /// Sets the cell, or returns the value if the cell is already set.
    #[track_caller]
    pub fn set(&self, value: T) -> Result<(), T> {
        let mut value = Some(value);
        self.get_or_init(|| value.take().expect("a cell is initialised once"));
        value.map_or(Ok(()), Err)
    }

    /// Returns the value. Sets an empty cell to the result of `f`.
    #[inline]
    #[track_caller]
    pub fn get_or_init(&self, f: impl FnOnce() -> T) -> &T {
        match (self.inner.get(), Here::get()) {
            (Some(value), _) => value,
            (None, None) => self.inner.get_or_init(f),
            (None, Some(here)) => self.init_in(here, Location::caller(), f),
        }
    }

    /// Returns the value and consumes the cell.
    pub fn into_inner(self) -> Option<T> {
        self.inner.into_inner()
    }

    /// Takes the value and leaves the cell empty.
    pub fn take(&mut self) -> Option<T> {
        self.inner.take()
    }

    fn init_in(&self, here: Here, at: At, f: impl FnOnce() -> T) -> &T {
        struct NotBusy<'a> {
            is_busy: &'a AtomicBool,
            here: Here,
            at: At,
        }
        impl Drop for NotBusy<'_> {
            fn drop(&mut self) {
                self.is_busy.store(false, Ordering::Relaxed);
                let key = std::ptr::from_ref(self.is_busy).addr();
                self.here
                    .point_after(Operation::Initialise, self.at, |state| {
                        state.wake_all(&[WaitsFor::Initialisation], key);
                    });
            }
        }
        here.point(Operation::Initialise, at);
        loop {
            if let Some(value) = self.inner.get() {
                return value;
            }
            // Relaxed: the threads of a simulation run one at a time, and the hand-over orders
            // them.
            if !self.is_busy.swap(true, Ordering::Relaxed) {
                let _not_busy = NotBusy {
                    is_busy: &self.is_busy,
                    here,
                    at,
                };
                // A thread outside the simulation may be initialising the cell; wait for it.
                return self.inner.get_or_init(f);
            }
            let key = (&raw const self.is_busy).addr();
            here.block(WaitsFor::Initialisation, key, None, at);
        }
    }
}

impl<T> Default for OnceLock<T> {
    fn default() -> OnceLock<T> {
        OnceLock::new()
    }
}

impl<T> From<T> for OnceLock<T> {
    fn from(value: T) -> OnceLock<T> {
        OnceLock {
            inner: value.into(),
            is_busy: AtomicBool::new(false),
        }
    }
}

impl<T: Clone> Clone for OnceLock<T> {
    fn clone(&self) -> OnceLock<T> {
        match self.get() {
            Some(value) => value.clone().into(),
            None => OnceLock::new(),
        }
    }
}

impl<T: PartialEq> PartialEq for OnceLock<T> {
    fn eq(&self, other: &OnceLock<T>) -> bool {
        self.get() == other.get()
    }
}

impl<T: Eq> Eq for OnceLock<T> {}

impl<T: fmt::Debug> fmt::Debug for OnceLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// [`std::sync::Once`], or its model in a simulation. It is never poisoned: a call that panicked is
/// repeated.
#[derive(Debug, Default)]
pub struct Once(OnceLock<()>);

impl Once {
    /// Creates a `Once` that has not run.
    pub const fn new() -> Once {
        Once(OnceLock::new())
    }

    /// Calls `f`, unless an earlier call has returned.
    #[track_caller]
    pub fn call_once(&self, f: impl FnOnce()) {
        self.0.get_or_init(f);
    }

    /// Whether a call has returned.
    pub fn is_completed(&self) -> bool {
        self.0.get().is_some()
    }
}

/// [`std::sync::LazyLock`]. A static keeps its value over many simulations, and the first
/// simulation must not differ from the others. So the initialisation is not part of any simulation:
/// it runs at once, without scheduling points.
#[derive(Debug)]
pub struct LazyLock<T, F = fn() -> T>(std::sync::LazyLock<T, F>);

impl<T, F: FnOnce() -> T> LazyLock<T, F> {
    /// Creates a value that `f` computes on first use.
    pub const fn new(f: F) -> LazyLock<T, F> {
        LazyLock(std::sync::LazyLock::new(f))
    }

    /// Returns the value.
    pub fn force(this: &LazyLock<T, F>) -> &T {
        match Here::get() {
            None => std::sync::LazyLock::force(&this.0),
            Some(here) => here.outside(|| std::sync::LazyLock::force(&this.0)),
        }
    }
}

impl<T, F: FnOnce() -> T> Deref for LazyLock<T, F> {
    type Target = T;

    fn deref(&self) -> &T {
        LazyLock::force(self)
    }
}
