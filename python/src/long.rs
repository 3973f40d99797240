//! Calls that may take long: Ctrl-C interrupts the wait for them, and a terminal shows that they
//! are running.
//!
//! ```text
//!   caller's thread     wait 50 ms ─ signals? ─ wait 50 ms ─ signals? ─ …      the result, or KeyboardInterrupt
//!   the call's thread   work ───────────────────────────────────────────> done
//! ```
//!
//! Python handles signals between two of its own instructions, so a call that waits inside the
//! engine would delay Ctrl-C. Interrupted work is not undone: it continues in its thread, and
//! closing the store ends it.

use std::io::IsTerminal;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use pyo3::prelude::*;

use crate::errors::exception;

/// How often to check for signals.
const SIGNALS_EVERY: Duration = Duration::from_millis(50);
/// How long a call runs before a terminal shows it.
pub(crate) const SHOWN_AFTER: Duration = Duration::from_secs(1);

/// Batches up to this size are written in the caller's thread.
const SMALL_BATCH_BYTES: usize = 256 << 10;

/// Runs `work` in a separate thread and returns its result, unless a signal handler raises first.
/// `what` describes the work for a terminal.
pub(crate) fn run_long<T: Send + 'static>(
    py: Python<'_>,
    what: &'static str,
    work: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    let (sender, mut receiver) = channel();
    let thread = std::thread::Builder::new()
        .name("forerun-call".into())
        .spawn(move || {
            // After an interrupt nobody receives the result, and it is dropped here.
            drop(sender.send(work()));
        })?;
    let begin = Instant::now();
    let mut shown = None;
    loop {
        let waiting = &mut receiver;
        let received = py.detach(move || waiting.recv_timeout(SIGNALS_EVERY));
        match received {
            Ok(result) => return Ok(result),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => match thread.join() {
                // The panic continues as it would without the thread: pyo3 turns it into an
                // exception.
                Err(panic) => std::panic::resume_unwind(panic),
                Ok(()) => unreachable!("the thread sends before it ends"),
            },
        }
        py.check_signals()?;
        if shown.is_none() && begin.elapsed() >= SHOWN_AFTER {
            shown = Some(Spinner::new(what));
        }
    }
}

/// Writes a batch. A small one is written in this thread: it takes some microseconds, less than
/// another thread would cost.
pub(crate) fn write_batch(
    py: Python<'_>,
    db: forerun::Db,
    batch: forerun::WriteBatch,
    durability: forerun::Durability,
) -> PyResult<()> {
    let is_small = batch.encoded().len() <= SMALL_BATCH_BYTES;
    let write = move || db.write(&batch, durability);
    let written = match is_small {
        true => py.detach(write),
        false => run_long(py, "writing a batch", write)?,
    };
    written.map(drop).map_err(exception)
}

/// Calls `step` with each piece of a long job, and checks for signals after each.
pub(crate) fn run_in_pieces<T>(
    py: Python<'_>,
    pieces: impl Iterator<Item = T>,
    mut step: impl FnMut(T) -> PyResult<()>,
) -> PyResult<()> {
    for piece in pieces {
        step(piece)?;
        py.check_signals()?;
    }
    Ok(())
}

/// A line on standard error if that is a terminal. It vanishes when dropped.
pub(crate) struct Spinner(Option<ProgressBar>);

impl Spinner {
    /// Shows what is being done.
    pub(crate) fn new(what: &'static str) -> Spinner {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
                bar.set_style(style);
            }
            bar.set_message(what);
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        Spinner(bar)
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}
