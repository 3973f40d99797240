//! Cells that are set once, based on parking_lot's Once.

#![allow(unsafe_code, reason = "a cell is filled through a shared reference")]

use std::cell::{Cell, UnsafeCell};
use std::fmt;
use std::ops::Deref;

use parking_lot::{Once, OnceState};

/// A cell that is set once.
pub struct OnceLock<T> {
    once: Once,
    value: UnsafeCell<Option<T>>,
}

// SAFETY: only the thread that runs `once` writes the value, and it is read only afterwards.
unsafe impl<T: Send + Sync> Sync for OnceLock<T> {}
// SAFETY: it owns its value.
unsafe impl<T: Send> Send for OnceLock<T> {}
impl<T: std::panic::RefUnwindSafe + std::panic::UnwindSafe> std::panic::RefUnwindSafe
    for OnceLock<T>
{
}

impl<T> OnceLock<T> {
    /// Creates an empty cell.
    pub const fn new() -> OnceLock<T> {
        OnceLock {
            once: Once::new(),
            value: UnsafeCell::new(None),
        }
    }

    /// Returns the value if the cell is set.
    pub fn get(&self) -> Option<&T> {
        match self.once.state() {
            // SAFETY: no thread writes the value any more.
            OnceState::Done => unsafe { (*self.value.get()).as_ref() },
            _ => None,
        }
    }

    /// Returns a mutable reference to the value if the cell is set.
    pub fn get_mut(&mut self) -> Option<&mut T> {
        self.value.get_mut().as_mut()
    }

    /// Sets the cell, or returns `value` if the cell is already set.
    pub fn set(&self, value: T) -> Result<(), T> {
        let mut value = Some(value);
        self.get_or_init(|| value.take().expect("`make` runs once"));
        value.map_or(Ok(()), Err)
    }

    /// Returns the value. The first caller creates it.
    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        // Forced: if an earlier caller panicked, the cell is still empty, and the next caller tries
        // again.
        self.once.call_once_force(|_| {
            let made = make();
            // SAFETY: `once` runs one thread at a time, and none after the first that gets here.
            unsafe { *self.value.get() = Some(made) };
        });
        self.get().expect("the cell is set")
    }

    /// Returns the value and consumes the cell.
    pub fn into_inner(self) -> Option<T> {
        self.value.into_inner()
    }

    /// Takes the value and leaves the cell empty.
    pub fn take(&mut self) -> Option<T> {
        std::mem::take(self).into_inner()
    }
}

impl<T> Default for OnceLock<T> {
    fn default() -> OnceLock<T> {
        OnceLock::new()
    }
}

impl<T> From<T> for OnceLock<T> {
    fn from(value: T) -> OnceLock<T> {
        let cell = OnceLock::new();
        cell.get_or_init(|| value);
        cell
    }
}

impl<T: Clone> Clone for OnceLock<T> {
    fn clone(&self) -> OnceLock<T> {
        self.get().cloned().map_or_else(OnceLock::new, Into::into)
    }
}

impl<T: fmt::Debug> fmt::Debug for OnceLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OnceLock").field(&self.get()).finish()
    }
}

/// A value that its first reader creates.
pub struct LazyLock<T, F = fn() -> T> {
    cell: OnceLock<T>,
    make: Cell<Option<F>>,
}

// SAFETY: only the thread that fills the cell takes `make`.
unsafe impl<T: Send + Sync, F: Send> Sync for LazyLock<T, F> {}

impl<T, F: FnOnce() -> T> LazyLock<T, F> {
    /// Creates a value that `make` computes on first use.
    pub const fn new(make: F) -> LazyLock<T, F> {
        LazyLock {
            cell: OnceLock::new(),
            make: Cell::new(Some(make)),
        }
    }

    /// Returns the value.
    pub fn force(this: &LazyLock<T, F>) -> &T {
        this.cell.get_or_init(|| {
            let make = this.make.take();
            make.expect("an earlier reader panicked while it created the value")()
        })
    }
}

impl<T, F: FnOnce() -> T> Deref for LazyLock<T, F> {
    type Target = T;

    fn deref(&self) -> &T {
        LazyLock::force(self)
    }
}

impl<T: fmt::Debug, F> fmt::Debug for LazyLock<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LazyLock").field(&self.cell.get()).finish()
    }
}
