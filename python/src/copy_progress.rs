//! The progress of a copy, reported to a function of the program.
//!
//! ```text
//!   the copy's thread   copies ─ notes bytes ─ copies ─ notes bytes ─ …
//!   caller's thread     waits 50 ms ─ calls `progress(done, total)` ─ waits 50 ms ─ …     what it raises ends the copy
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use forerun::backup::{CopyProgress, FileCopyOptions};
use pyo3::prelude::*;

use crate::background_call::run_watched;
use crate::python_calls;
use crate::store_options::{Rate, rate_of};

/// Bytes done and bytes in total. Relaxed throughout: they are only shown.
#[derive(Default)]
struct Noted {
    done_bytes: AtomicU64,
    total_bytes: AtomicU64,
}

/// The argument `progress` of a call, and what it was told.
struct Watch {
    function: Option<Py<PyAny>>,
    noted: Arc<Noted>,
    told: (u64, u64),
}

impl Watch {
    fn new(function: Option<Bound<'_, PyAny>>) -> PyResult<Watch> {
        if let Some(function) = &function {
            python_calls::check_callable(function, "progress", "two numbers")?;
        }
        Ok(Watch {
            function: function.map(Bound::unbind),
            noted: Arc::default(),
            told: (0, 0),
        })
    }

    /// Notes the progress, in the thread of the copy.
    fn note(&self) -> impl Fn(CopyProgress) + Send + Sync + 'static {
        let noted = Arc::clone(&self.noted);
        move |progress| {
            let CopyProgress {
                done_bytes,
                total_bytes,
                ..
            } = progress;
            noted.done_bytes.store(done_bytes, Ordering::Relaxed);
            noted.total_bytes.store(total_bytes, Ordering::Relaxed);
        }
    }

    /// Calls the function, if there is something new.
    fn tell(&mut self, py: Python<'_>) -> PyResult<()> {
        let noted = (
            self.noted.done_bytes.load(Ordering::Relaxed),
            self.noted.total_bytes.load(Ordering::Relaxed),
        );
        match &self.function {
            Some(function) if noted != self.told => {
                self.told = noted;
                python_calls::call(function.bind(py), noted, None).map(drop)
            }
            _ => Ok(()),
        }
    }
}

/// Runs a copy with the arguments `rate_bytes` and `progress` of a call. Ctrl-C ends it.
pub(crate) fn run<T: Send + 'static>(
    py: Python<'_>,
    what: &'static str,
    rate_bytes: Option<Rate>,
    progress: Option<Bound<'_, PyAny>>,
    copy: impl FnOnce(&FileCopyOptions) -> T + Send + 'static,
) -> PyResult<T> {
    let mut watch = Watch::new(progress)?;
    let options = FileCopyOptions::default()
        .rate_bytes(rate_of(rate_bytes))
        .on_progress(watch.note());
    let work = move |stop: Arc<AtomicBool>| {
        // Relaxed: the flag only has to be seen soon.
        copy(&options.interrupt_if(move || stop.load(Ordering::Relaxed)))
    };
    run_watched(py, what, |py| watch.tell(py), work)
}
