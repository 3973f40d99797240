//! Calls that may take long: Ctrl-C interrupts the wait for them, and a terminal shows that they
//! are running.
//!
//! ```text
//!   caller's thread     wait 50 ms ─ signals? ─ wait 50 ms ─ signals? ─ …      the result, or KeyboardInterrupt
//!   the call's thread   work ───────────────────────────────────────────> done
//! ```
//!
//! Python handles signals only between two of its own instructions, so a call that waits in the
//! engine would delay Ctrl-C. After an interrupt, a call whose work can be stopped stops it and
//! returns when it has ended. A call whose work cannot be stopped returns at once; the work
//! continues in its thread, and closing the store ends it.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use crate::errors::exception;
use crate::spinner::{SHOWN_AFTER, Spinner};

/// How often to check for signals.
const SIGNALS_EVERY: Duration = Duration::from_millis(50);
/// How long an interrupted call waits for stopped work to end.
const STOPS_WITHIN: Duration = Duration::from_secs(1);

/// Batches up to this size are written in the caller's thread.
const SMALL_BATCH_BYTES: usize = 256 << 10;

/// Runs `work` in a separate thread and returns its result, unless a signal handler raises first.
/// `what` describes the work on a terminal.
pub(crate) fn run_long<T: Send + 'static>(
    py: Python<'_>,
    what: &'static str,
    work: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    Call::start(work)?.wait(py, what, &mut |_| Ok(()))
}

/// The same for work that polls a flag and ends soon after it is set. Meanwhile this calls `watch`
/// in the caller's thread, and once more at the end. If that or a signal handler raises, this sets
/// the flag and returns when the work has ended. It does not wait if a handler raises again, or for
/// work that does not end: then the work continues in its thread.
pub(crate) fn run_watched<T: Send + 'static>(
    py: Python<'_>,
    what: &'static str,
    mut watch: impl FnMut(Python<'_>) -> PyResult<()>,
    work: impl FnOnce(Arc<AtomicBool>) -> T + Send + 'static,
) -> PyResult<T> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    let mut call = Call::start(move || work(flag))?;
    let waited = call.wait(py, what, &mut watch);
    let result = waited.inspect_err(|_| {
        // Relaxed: no other data depends on the flag; it only has to be seen soon.
        stop.store(true, Ordering::Relaxed);
        let deadline = Instant::now() + STOPS_WITHIN;
        while !call.has_ended(py) && Instant::now() < deadline && py.check_signals().is_ok() {}
    })?;
    watch(py)?;
    Ok(result)
}

/// Work in a thread of its own.
struct Call<T> {
    /// `None` once it has been joined.
    thread: Option<JoinHandle<()>>,
    result: Receiver<T>,
}

impl<T: Send + 'static> Call<T> {
    fn start(work: impl FnOnce() -> T + Send + 'static) -> PyResult<Call<T>> {
        let (sender, result) = channel();
        let thread = std::thread::Builder::new()
            .name("forerun-call".into())
            .spawn(move || {
                // After an interrupt the result is not received, and it is dropped here.
                drop(sender.send(work()));
            })?;
        Ok(Call {
            thread: Some(thread),
            result,
        })
    }

    /// Waits for the result and checks for signals while it waits.
    fn wait(
        &mut self,
        py: Python<'_>,
        what: &'static str,
        watch: &mut dyn FnMut(Python<'_>) -> PyResult<()>,
    ) -> PyResult<T> {
        let begin = Instant::now();
        let mut shown = None;
        loop {
            match self.poll(py) {
                Ok(result) => return Ok(result),
                Err(RecvTimeoutError::Timeout) => {}
                // The panic continues as it would without the thread: pyo3 turns it into an
                // exception.
                Err(RecvTimeoutError::Disconnected) => std::panic::resume_unwind(self.panic()),
            }
            py.check_signals()?;
            watch(py)?;
            if shown.is_none() && begin.elapsed() >= SHOWN_AFTER {
                shown = Some(Spinner::new(what));
            }
        }
    }

    /// Waits for the result for a short time.
    fn poll(&mut self, py: Python<'_>) -> Result<T, RecvTimeoutError> {
        let result = &mut self.result;
        py.detach(move || result.recv_timeout(SIGNALS_EVERY))
    }

    /// Waits for the end of the work for a short time. The result is dropped.
    fn has_ended(&mut self, py: Python<'_>) -> bool {
        let has_ended = !matches!(self.poll(py), Err(RecvTimeoutError::Timeout));
        if has_ended && let Some(thread) = self.thread.take() {
            // It has sent its result, or it panicked, which the interrupt hides.
            drop(py.detach(|| thread.join()));
        }
        has_ended
    }

    /// The payload of the thread's panic.
    fn panic(&mut self) -> Box<dyn Any + Send> {
        match self.thread.take().map(JoinHandle::join) {
            Some(Err(panic)) => panic,
            _ => unreachable!("the thread sends before it ends"),
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
    let written = if is_small {
        py.detach(write)
    } else {
        run_long(py, "writing a batch", write)?
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
