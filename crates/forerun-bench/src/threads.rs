//! Threads that start together, each on its own core if the system allows it.

use anyhow::{Result, anyhow};
use core_affinity::CoreId;
use std::sync::Barrier;

/// The cores that threads are pinned to, in order; more threads than cores share them.
#[derive(Clone, Debug)]
pub struct Cores(Vec<CoreId>);

impl Cores {
    /// The cores that this process may use. Call this on a thread that is not pinned: a pinned one
    /// sees only its own core.
    pub fn available() -> Cores {
        Cores(core_affinity::get_core_ids().unwrap_or_default())
    }

    /// No cores: threads run wherever the system puts them.
    pub fn any() -> Cores {
        Cores(Vec::new())
    }

    /// The number of cores; 1 if the system does not report it.
    pub fn count(&self) -> usize {
        self.0.len().max(1)
    }

    /// Pins the current thread to the core of thread number `thread`. If the system refuses, it
    /// runs anywhere.
    pub fn pin(&self, thread: usize) {
        if let Some(core) = self.0.get(thread % self.count()) {
            core_affinity::set_for_current(*core);
        }
    }

    /// Runs `body(thread, barrier)` on `threads` pinned threads and returns their results, in
    /// order. Each body must wait at the barrier exactly once, when it is ready to be timed: use
    /// [`Ready`], which does so even if the body fails first.
    ///
    /// # Errors
    /// The first thread's error, in order of threads; a panic counts as an error.
    pub fn run<T: Send>(
        &self,
        threads: usize,
        body: impl Fn(usize, Ready<'_>) -> Result<T> + Sync,
    ) -> Result<Vec<T>> {
        let barrier = Barrier::new(threads);
        std::thread::scope(|scope| {
            let handles: Vec<_> = (0..threads)
                .map(|thread| {
                    let (body, barrier) = (&body, &barrier);
                    scope.spawn(move || {
                        self.pin(thread);
                        body(thread, Ready(Some(barrier)))
                    })
                })
                .collect();
            // Join all before examining any, so that no thread outlives the first error.
            let results: Vec<_> = handles.into_iter().map(|handle| handle.join()).collect();
            results
                .into_iter()
                .map(|result| result.map_err(|_| anyhow!("a benchmark thread panicked"))?)
                .collect()
        })
    }
}

/// A thread's ticket for the barrier.
pub struct Ready<'a>(Option<&'a Barrier>);

impl Ready<'_> {
    /// Waits until all threads are ready.
    pub fn wait(mut self) {
        if let Some(barrier) = self.0.take() {
            barrier.wait();
        }
    }
}

impl Drop for Ready<'_> {
    /// A thread that fails before the start must not keep the others waiting.
    fn drop(&mut self) {
        if let Some(barrier) = self.0.take() {
            barrier.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn threads_start_together_and_answer_in_order() {
        let ready = AtomicUsize::new(0);
        let answers = Cores::available().run(4, |thread, start| {
            ready.fetch_add(1, Ordering::SeqCst);
            start.wait();
            Ok((thread, ready.load(Ordering::SeqCst)))
        });
        assert_eq!(answers.unwrap(), [(0, 4), (1, 4), (2, 4), (3, 4)]);
    }

    #[test]
    fn a_thread_that_fails_or_panics_early_stops_nobody() {
        let failed = Cores::available().run(3, |thread, start| {
            anyhow::ensure!(thread != 1, "thread 1 could not open its reader");
            start.wait();
            Ok(())
        });
        assert!(failed.unwrap_err().to_string().contains("thread 1"));
        let panicked = Cores::available().run(2, |thread, start| {
            assert!(thread == 0, "this panic is meant");
            start.wait();
            Ok(())
        });
        assert!(panicked.unwrap_err().to_string().contains("panicked"));
    }
}
