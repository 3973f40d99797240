//! The thread that moves rows in the background, and what waits for it.
//!
//! ```text
//!   lookups ──> rows to bring up ─┐
//!   prefetch ──> keys ────────────┼──> jobs, bounded ──> one thread
//!   writes ──> "trim" ────────────┘
//! ```
//!
//! What does not fit is not moved: a row that is in demand is found in the store once more, and asked for again.

use crate::inner::Inner;
use crate::moves::Rising;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Bytes of rows that wait, at most.
const WAITING_BYTES: usize = 16 << 20;

/// Keys of prefetches that wait, at most.
const WAITING_KEYS: usize = 1 << 20;

#[derive(Debug)]
enum Job {
    Rise(Rising),
    Prefetch(Vec<u64>),
}

/// What is to be moved.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    wake: Condvar,
    idle: Condvar,
}

#[derive(Debug, Default)]
struct State {
    jobs: VecDeque<Job>,
    rows: usize,
    keys: usize,
    trim: bool,
    is_busy: bool,
    stops: bool,
}

impl State {
    fn is_idle(&self) -> bool {
        self.jobs.is_empty() && !self.trim && !self.is_busy
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Each change of the state is one statement or two that cannot panic in between.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, job: Job, has_room: impl FnOnce(&mut State) -> bool) -> bool {
        let mut state = self.lock();
        let pushed = !state.stops && has_room(&mut state);
        if pushed {
            state.jobs.push_back(job);
            self.wake.notify_one();
        }
        pushed
    }

    fn trim(&self) {
        let mut state = self.lock();
        if !state.stops && !state.trim {
            state.trim = true;
            self.wake.notify_one();
        }
    }

    /// Waits until all that waits now is moved.
    pub(crate) fn settle(&self) {
        let mut state = self.lock();
        while !state.is_idle() {
            state = self
                .idle
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Forgets what waits; the thread ends.
    pub(crate) fn stop(&self) {
        let mut state = self.lock();
        state.stops = true;
        state.jobs.clear();
        state.trim = false;
        self.wake.notify_all();
    }

    /// The next job, or none to trim; `None` to end.
    fn next(&self) -> Option<Option<Job>> {
        let mut state = self.lock();
        state.is_busy = false;
        loop {
            if state.stops {
                self.idle.notify_all();
                return None;
            }
            // Room first: what comes up needs it.
            if std::mem::take(&mut state.trim) {
                state.is_busy = true;
                return Some(None);
            }
            if let Some(job) = state.jobs.pop_front() {
                match &job {
                    Job::Rise(rising) => state.rows -= rising.len(),
                    Job::Prefetch(keys) => state.keys -= keys.len(),
                }
                state.is_busy = true;
                return Some(Some(job));
            }
            self.idle.notify_all();
            state = self
                .wake
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Inner {
    /// Lets rows come up in the background, unless too many wait.
    pub(crate) fn queue_rising(&self, rising: Rising) {
        let (rows, limit) = (rising.len(), WAITING_BYTES / self.row.bytes());
        let pushed = self.queue.push(Job::Rise(rising), |state| {
            // One batch may always wait, however large its rows.
            let fits = state.rows == 0 || state.rows + rows <= limit;
            state.rows += if fits { rows } else { 0 };
            fits
        });
        if !pushed {
            self.counters.unpromoted_rows.add(rows);
        }
    }

    /// Lets keys be prefetched in the background, unless too many wait.
    pub(crate) fn queue_prefetch(&self, keys: &[u64]) {
        let pushed = self.queue.push(Job::Prefetch(keys.to_vec()), |state| {
            let fits = state.keys == 0 || state.keys + keys.len() <= WAITING_KEYS;
            state.keys += if fits { keys.len() } else { 0 };
            fits
        });
        if !pushed {
            self.counters.unpromoted_rows.add(keys.len());
        }
    }

    /// Lets what is beyond the capacity leave in the background.
    pub(crate) fn queue_trim(&self) {
        self.queue.trim();
    }
}

/// Starts the thread.
pub(crate) fn start(inner: &Arc<Inner>) -> std::io::Result<JoinHandle<()>> {
    let inner = Arc::clone(inner);
    let thread = std::thread::Builder::new().name("forerun-table".to_owned());
    thread.spawn(move || {
        // However this thread ends, nobody may wait for it.
        let _stop = Stop(&inner.queue);
        while let Some(job) = inner.queue.next() {
            match job {
                None => inner.trim(),
                Some(Job::Rise(rising)) => inner.rise(rising),
                Some(Job::Prefetch(keys)) => inner.prefetch_now(&keys),
            }
        }
    })
}

struct Stop<'q>(&'q Queue);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.stop();
        self.0.lock().is_busy = false;
        self.0.idle.notify_all();
    }
}
