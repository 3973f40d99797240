//! The queue of moves between the tiers, which the background thread makes.

use std::collections::VecDeque;
use std::time::Duration;

use forerun_core::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::promotion_batch::PromotionBatch;

/// Maximum number of queued keys in jobs that hold keys, not rows.
const WAITING_KEYS: usize = 1 << 20;

/// Maximum number of keys in a job of a lookup or a prefetch.
pub(crate) const PIECE_KEYS: usize = 1 << 16;

/// The moves that a lookup requests.
#[derive(Debug, Default)]
pub(crate) struct PendingMoves {
    /// Rows of the store, for the host tier.
    pub(crate) promotions: Option<PromotionBatch>,
    /// Keys of the host tier's rows, for the device.
    pub(crate) to_device: Vec<u64>,
    /// Keys that hit on the device.
    pub(crate) touched: Vec<u64>,
}

/// Work for the background thread.
#[derive(Debug)]
pub(crate) enum Job {
    PromoteToHost(PromotionBatch),
    PromoteToDevice(Vec<u64>),
    Touch(Vec<u64>),
    Prefetch(Vec<u64>),
    /// Evicts rows beyond the capacity.
    Trim,
}

impl Job {
    /// The rows and keys that it holds.
    fn weight(&self) -> (usize, usize) {
        match self {
            Job::PromoteToHost(promotions) => (promotions.len(), 0),
            Job::PromoteToDevice(keys) | Job::Touch(keys) | Job::Prefetch(keys) => (0, keys.len()),
            Job::Trim => (0, 0),
        }
    }
}

/// The queue of jobs.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    state: Mutex<QueueState>,
    wake: Condvar,
    idle: Condvar,
}

#[derive(Debug, Default)]
struct QueueState {
    jobs: VecDeque<Job>,
    rows: usize,
    keys: usize,
    trim: bool,
    is_busy: bool,
    stops: bool,
}

impl QueueState {
    fn is_idle(&self) -> bool {
        self.jobs.is_empty() && !self.trim && !self.is_busy
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        // No change of the state can panic half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the job back if the queue is full. One job of each kind always fits, and no job is
    /// larger than a piece.
    pub(crate) fn push(&self, job: Job, rows_max: usize) -> Result<(), Job> {
        let mut state = self.lock();
        let (rows, keys) = job.weight();
        let fits = (rows == 0 || state.rows == 0 || state.rows + rows <= rows_max)
            && (keys == 0 || state.keys == 0 || state.keys + keys <= WAITING_KEYS);
        if state.stops || !fits {
            return Err(job);
        }
        state.rows += rows;
        state.keys += keys;
        state.jobs.push_back(job);
        self.wake.notify_one();
        Ok(())
    }

    pub(crate) fn trim(&self) {
        let mut state = self.lock();
        if !state.stops && !state.trim {
            state.trim = true;
            self.wake.notify_one();
        }
    }

    /// Waits until the queue is idle, or until the timeout. Returns whether it is idle.
    pub(crate) fn wait_idle(&self, timeout: Duration) -> bool {
        let waits = |state: &mut QueueState| !state.is_idle();
        let waited = self.idle.wait_timeout_while(self.lock(), timeout, waits);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.is_idle()
    }

    /// Drops all jobs and ends the thread.
    pub(crate) fn stop(&self) {
        let mut state = self.lock();
        state.stops = true;
        state.jobs.clear();
        state.trim = false;
        self.wake.notify_all();
    }

    /// Drops all jobs and wakes all waiting threads, because the thread has ended or panicked.
    pub(crate) fn end(&self) {
        self.stop();
        self.lock().is_busy = false;
        self.idle.notify_all();
    }

    /// Waits for the next job. `None`: the thread must end.
    pub(crate) fn next(&self) -> Option<Job> {
        let mut state = self.lock();
        state.is_busy = false;
        loop {
            if state.stops {
                self.idle.notify_all();
                return None;
            }
            // Trim first: promotions need the free slots.
            if std::mem::take(&mut state.trim) {
                state.is_busy = true;
                return Some(Job::Trim);
            }
            if let Some(job) = state.jobs.pop_front() {
                let (rows, keys) = job.weight();
                state.rows -= rows;
                state.keys -= keys;
                state.is_busy = true;
                return Some(job);
            }
            self.idle.notify_all();
            state = self
                .wake
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}
