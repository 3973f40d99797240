//! Handles Python's signals during a long call of the engine, and shows the call on a terminal.
//!
//! ```text
//!   engine ──asks──> 50 ms since the last time? ──> Python's signal handlers run ──raised?──> the call ends
//!                                                                                     └──> kept for the caller
//! ```
//!
//! Python runs handlers only in its main thread. Calls in other threads are never interrupted and
//! show nothing.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::intern;
use pyo3::prelude::*;

use crate::python_calls::call_method;
use crate::spinner::{SHOWN_AFTER, Spinner};

/// How often handlers may run: each time takes the interpreter's lock.
pub(crate) const EVERY: Duration = Duration::from_millis(50);

thread_local! {
    static ASKED: Cell<Option<Instant>> = const { Cell::new(None) };
    /// Whether this thread's current call must not be ended.
    static IS_HELD: Cell<bool> = const { Cell::new(false) };
    static IS_MAIN: Cell<Option<bool>> = const { Cell::new(None) };
    /// A description of the call, for display on a terminal.
    static DOING: Cell<Option<&'static str>> = const { Cell::new(None) };
    /// When the engine first asked in this call.
    static BEGAN: Cell<Option<Instant>> = const { Cell::new(None) };
    static SHOWN: RefCell<Option<Spinner>> = const { RefCell::new(None) };
    /// The exception that a handler raised, until the call that it ends has returned.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Runs a call of the engine while other Python threads run. If it takes long, a terminal shows
/// what it is doing.
pub(crate) fn detach<T: Send>(
    py: Python<'_>,
    doing: &'static str,
    call: impl FnOnce() -> T + Send,
) -> T {
    /// Ends the display, also if the call panics.
    struct Call;
    impl Drop for Call {
        fn drop(&mut self) {
            DOING.set(None);
            if BEGAN.take().is_some() {
                SHOWN.take();
            }
        }
    }
    DOING.set(Some(doing));
    let _call = Call;
    py.detach(call)
}

fn show(now: Instant) {
    let Some(doing) = DOING.get() else { return };
    let began = BEGAN.get().unwrap_or(now);
    BEGAN.set(Some(began));
    if now - began >= SHOWN_AFTER {
        SHOWN.with_borrow_mut(|shown| {
            shown.get_or_insert_with(|| Spinner::new(doing));
        });
    }
}

/// Makes a call of the engine that no signal ends. It must be short.
pub(crate) fn hold<T>(call: impl FnOnce() -> T) -> T {
    /// Ends the hold, also if the call panics.
    struct Held;
    impl Drop for Held {
        fn drop(&mut self) {
            IS_HELD.set(false);
        }
    }
    IS_HELD.set(true);
    let _held = Held;
    call()
}

/// Whether this thread's current call must end.
pub(crate) fn is_raised() -> bool {
    if IS_HELD.get() {
        return false;
    }
    let now = Instant::now();
    let is_due = ASKED.get().is_none_or(|asked| now - asked >= EVERY);
    if !is_due || IS_MAIN.get() == Some(false) {
        return false;
    }
    ASKED.set(Some(now));
    show(now);
    let raised = Python::try_attach(|py| {
        py.check_signals()?;
        if IS_MAIN.get().is_none() {
            // This runs Python code, in which a handler may raise.
            IS_MAIN.set(Some(is_main(py)?));
        }
        PyResult::Ok(())
    });
    match raised {
        Some(Err(error)) => {
            RAISED.set(Some(error));
            true
        }
        Some(Ok(())) | None => false,
    }
}

fn is_main(py: Python<'_>) -> PyResult<bool> {
    let threading = py.import(intern!(py, "threading"))?;
    let current = call_method(&threading, intern!(py, "current_thread"), ())?;
    let main = call_method(&threading, intern!(py, "main_thread"), ())?;
    Ok(current.is(main))
}

/// The exception that ended a call.
pub(crate) fn raised() -> PyErr {
    RAISED
        .take()
        .unwrap_or_else(|| PyKeyboardInterrupt::new_err(()))
}
