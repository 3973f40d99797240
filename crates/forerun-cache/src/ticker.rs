//! A thread that sets a clock at the beginning of each second. It ends with its cache.

use forerun_core::sync::{thread, time};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The clock that began at 1 at a moment, now.
pub(crate) fn second_since(started: Instant) -> u32 {
    u32::try_from(time::elapsed(started).as_secs() + 1).unwrap_or(u32::MAX)
}

/// The thread.
#[derive(Debug)]
pub(crate) struct Ticker {
    is_over: Arc<AtomicBool>,
    /// `None` only while the ticker is being dropped.
    thread: Option<thread::JoinHandle<()>>,
}

impl Ticker {
    /// Starts a thread that sets `now` to the time since `started`.
    ///
    /// # Errors
    /// The system's error if it starts no thread.
    pub(crate) fn start(now: Arc<AtomicU32>, started: Instant) -> io::Result<Ticker> {
        let is_over = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&is_over);
        let tick = move || {
            // Relaxed, here and below: each word stands alone, and the end of the thread is joined.
            while !stopped.load(Relaxed) {
                // A caller may have advanced the clock further.
                now.fetch_max(second_since(started), Relaxed);
                let nanos = u64::from(time::elapsed(started).subsec_nanos());
                thread::park_timeout(Duration::from_nanos(1_000_000_000 - nanos));
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
