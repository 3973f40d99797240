//! Cells that are set once, over parking_lot's Once.

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

// SAFETY: the value is written by the one thread that runs `once`, and read when that is done.
unsafe impl<T: Send + Sync> Sync for OnceLock<T> {}
// SAFETY: it owns its value.
unsafe impl<T: Send> Send for OnceLock<T> {}
impl<T: std::panic::RefUnwindSafe + std::panic::UnwindSafe> std::panic::RefUnwindSafe
    for OnceLock<T>
{
}

impl<T> OnceLock<T> {
    /// An empty cell.
    pub const fn new() -> OnceLock<T> {
        OnceLock {
            once: Once::new(),
            value: UnsafeCell::new(None),
        }
    }

    /// The value, if there is one.
    pub fn get(&self) -> Option<&T> {
        match self.once.state() {
            // SAFETY: nobody writes it any more.
            OnceState::Done => unsafe { (*self.value.get()).as_ref() },
            _ => None,
        }
    }

    /// The value, if there is one, to be changed.
    pub fn get_mut(&mut self) -> Option<&mut T> {
        self.value.get_mut().as_mut()
    }

    /// Sets it, or gives `value` back where there is one already.
    pub fn set(&self, value: T) -> Result<(), T> {
        let mut value = Some(value);
        self.get_or_init(|| value.take().expect("it is taken once"));
        value.map_or(Ok(()), Err)
    }

    /// The value; the first caller makes it.
    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        // Forced: a panic of an earlier maker leaves the cell empty, and the next one tries.
        self.once.call_once_force(|_| {
            let made = make();
            // SAFETY: `once` runs one thread at a time, and none after the first that comes here.
            unsafe { *self.value.get() = Some(made) };
        });
        self.get().expect("it was made")
    }

    /// The value, out of the cell.
    pub fn into_inner(self) -> Option<T> {
        self.value.into_inner()
    }

    /// Takes the value out, and leaves an empty cell.
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

/// A value that its first reader makes.
pub struct LazyLock<T, F = fn() -> T> {
    cell: OnceLock<T>,
    make: Cell<Option<F>>,
}

// SAFETY: `make` is taken by the one thread that fills the cell.
unsafe impl<T: Send + Sync, F: Send> Sync for LazyLock<T, F> {}

impl<T, F: FnOnce() -> T> LazyLock<T, F> {
    /// A value that `make` will make.
    pub const fn new(make: F) -> LazyLock<T, F> {
        LazyLock {
            cell: OnceLock::new(),
            make: Cell::new(Some(make)),
        }
    }

    /// The value.
    pub fn force(this: &LazyLock<T, F>) -> &T {
        this.cell.get_or_init(|| {
            let make = this.make.take();
            make.expect("an earlier reader panicked while it made the value")()
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
