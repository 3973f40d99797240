//! Python's signals, heard in the middle of a long call of the engine.
//!
//! ```text
//!   engine ──asks──> 50 ms since the last time? ──> Python's signal handlers run ──raised?──> the call ends
//!                                                                                     └──> kept, for who called
//! ```
//!
//! Python runs handlers in its main thread only; other threads are never interrupted.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;

/// How often handlers may run: each time takes the interpreter's lock.
pub(crate) const EVERY: Duration = Duration::from_millis(50);

thread_local! {
    static ASKED: Cell<Option<Instant>> = const { Cell::new(None) };
    static IS_MAIN: Cell<Option<bool>> = const { Cell::new(None) };
    /// What a handler raised, until the call that it ends has returned.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Whether the call that this thread is in is to end.
pub(crate) fn is_raised() -> bool {
    let now = Instant::now();
    let is_due = ASKED.get().is_none_or(|asked| now - asked >= EVERY);
    if !is_due || IS_MAIN.get() == Some(false) {
        return false;
    }
    ASKED.set(Some(now));
    let raised = Python::try_attach(|py| {
        if IS_MAIN.get().is_none() {
            IS_MAIN.set(is_main(py).ok());
        }
        py.check_signals()
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
    let threading = py.import("threading")?;
    let current = threading.call_method0("current_thread")?;
    Ok(current.is(threading.call_method0("main_thread")?))
}

/// What ended a call.
pub(crate) fn raised() -> PyErr {
    RAISED
        .take()
        .unwrap_or_else(|| PyKeyboardInterrupt::new_err(()))
}
