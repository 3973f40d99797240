//! A thread that sets a clock at the beginning of each second. It ends with its cache.

use crate::ms_clock::MsClock;
use forerun_core::sync::thread;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// The thread.
#[derive(Debug)]
pub(crate) struct Ticker {
    is_over: Arc<AtomicBool>,
    /// `None` only while the ticker is being dropped.
    thread: Option<thread::JoinHandle<()>>,
}

impl Ticker {
    /// Starts a thread that keeps the clock at the time since its beginning.
    ///
    /// # Errors
    /// The system's error if it starts no thread.
    pub(crate) fn start(clock: Arc<MsClock>) -> io::Result<Ticker> {
        let is_over = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&is_over);
        let tick = move || {
            // Relaxed, here and below: the flag stands alone, and the end of the thread is joined.
            while !stopped.load(Relaxed) {
                // A caller may have advanced the clock further.
                clock.advance_to_elapsed();
                thread::park_timeout(Duration::from_nanos(clock.until_next_second_ns()));
            }
        };
        let builder = thread::Builder::new().name("forerun-clock".into());
        Ok(Ticker {
            is_over,
            thread: Some(builder.spawn(tick)?),
        })
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It cannot panic.
            let _ = thread.join();
        }
    }
}
