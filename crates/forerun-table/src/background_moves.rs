//! The background thread that moves rows, and its queue.
//!
//! ```text
//!   lookups ──> rows to promote to the host tier ┐
//!           ──> keys to promote to the device ───┤
//!           ──> keys that hit on the device ─────┼──> jobs, bounded ──> one thread
//!   prefetch ──> keys ───────────────────────────┤
//!   writes ──> "trim" ───────────────────────────┘
//! ```
//!
//! A job that does not fit into the queue is dropped. A later lookup finds its rows in the lower
//! tier again and queues their promotion again.

use crate::Result;
use crate::host_moves::{Origin, PromotionBatch};
use crate::inner::Inner;
use crate::options::Moves;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use forerun_core::sync::{
    Condvar, Mutex, MutexGuard, PoisonError,
    thread::{self, JoinHandle},
};

/// Maximum bytes of queued rows.
const WAITING_BYTES: usize = 16 << 20;

/// Maximum number of queued keys of other jobs.
const WAITING_KEYS: usize = 1 << 20;

/// Bytes of rows that a lookup collects before it queues them.
const PIECE_BYTES: usize = 1 << 20;

/// Maximum number of keys in a job of a lookup or a prefetch.
pub(crate) const PIECE_KEYS: usize = 1 << 16;

/// The moves that a lookup asks for.
#[derive(Debug, Default)]
pub(crate) struct PendingMoves {
    /// Rows of the store, for the host tier.
    pub(crate) promotions: Option<PromotionBatch>,
    /// Keys of the host tier's rows, for the device.
    pub(crate) to_device: Vec<u64>,
    /// Keys that hit on the device.
    pub(crate) touched: Vec<u64>,
}

#[derive(Debug)]
enum Job {
    PromoteToHost(PromotionBatch),
    PromoteToDevice(Vec<u64>),
    Touch(Vec<u64>),
    Prefetch(Vec<u64>),
}

impl Job {
    /// The rows and keys that it holds.
    fn weight(&self) -> (usize, usize) {
        match self {
            Job::PromoteToHost(promotions) => (promotions.len(), 0),
            Job::PromoteToDevice(keys) | Job::Touch(keys) | Job::Prefetch(keys) => (0, keys.len()),
        }
    }
}

/// The queue of jobs.
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
        // No change of the state can panic half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the job back if the queue is full. One job of each kind always fits, and no job is
    /// larger than a piece.
    fn push(&self, job: Job, rows_max: usize) -> Result<(), Job> {
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

    fn trim(&self) {
        let mut state = self.lock();
        if !state.stops && !state.trim {
            state.trim = true;
            self.wake.notify_one();
        }
    }

    /// Waits until the queue is idle, or until the timeout. Returns whether it is idle.
    pub(crate) fn wait_idle(&self, timeout: Duration) -> bool {
        let waits = |state: &mut State| !state.is_idle();
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

    /// The next job, `Some(None)` to trim, or `None` to end.
    fn next(&self) -> Option<Option<Job>> {
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
                return Some(None);
            }
            if let Some(job) = state.jobs.pop_front() {
                let (rows, keys) = job.weight();
                state.rows -= rows;
                state.keys -= keys;
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
    /// Queues the moves of a lookup, or makes them at once with [`Moves::Caller`].
    pub(crate) fn queue_moves(&self, moves: PendingMoves) {
        let promotions = moves.promotions.filter(|promotions| !promotions.is_empty());
        let promotions = promotions.map(Job::PromoteToHost);
        let to_device =
            (!moves.to_device.is_empty()).then_some(Job::PromoteToDevice(moves.to_device));
        let touched = (!moves.touched.is_empty()).then_some(Job::Touch(moves.touched));
        for job in [promotions, to_device, touched].into_iter().flatten() {
            self.queue_job(job);
        }
    }

    /// Queues a lookup's promotions so far if they fill a piece, and leaves an empty batch. So a
    /// lookup of any size holds at most one piece.
    pub(crate) fn queue_promotions(&self, promotions: &mut PromotionBatch) {
        if promotions.len() * self.row.bytes() >= PIECE_BYTES {
            let empty = PromotionBatch::of(promotions.origin());
            self.queue_job(Job::PromoteToHost(std::mem::replace(promotions, empty)));
        }
    }

    /// Queues keys to be prefetched, or prefetches them at once with [`Moves::Caller`].
    ///
    /// # Errors
    /// [`Error::Interrupted`](crate::Error::Interrupted).
    pub(crate) fn queue_prefetch(&self, keys: &[u64]) -> Result<()> {
        for keys in keys.chunks(PIECE_KEYS) {
            self.interrupt.check()?;
            self.queue_job(Job::Prefetch(keys.to_vec()));
        }
        Ok(())
    }

    fn queue_job(&self, job: Job) {
        if self.policies.moves == Moves::Caller {
            return self.run(job);
        }
        match self.queue.push(job, WAITING_BYTES / self.row.bytes()) {
            Ok(()) | Err(Job::Touch(_)) => {}
            Err(Job::PromoteToHost(promotions)) => {
                self.counters.unpromoted_rows.add(promotions.len())
            }
            Err(Job::Prefetch(keys)) => self.counters.unpromoted_rows.add(keys.len()),
            Err(Job::PromoteToDevice(keys)) => self.counters.device_unpromoted_rows.add(keys.len()),
        }
    }

    fn run(&self, job: Job) {
        match job {
            Job::PromoteToHost(promotions) => self.promote_to_host(promotions),
            Job::PromoteToDevice(keys) => self.promote_to_device(&keys, Origin::Found),
            Job::Touch(keys) => {
                if let Some(device) = self.device() {
                    device.touch(&keys);
                }
            }
            Job::Prefetch(keys) => self.prefetch_now(&keys),
        }
    }

    /// Queues the eviction of rows beyond the capacity.
    pub(crate) fn queue_trim(&self) {
        self.queue.trim();
    }
}

/// Starts the background thread.
pub(crate) fn start(inner: &Arc<Inner>) -> std::io::Result<JoinHandle<()>> {
    let inner = Arc::clone(inner);
    let thread = thread::Builder::new().name("forerun-table".to_owned());
    thread.spawn(move || {
        // Even if this thread panics, nobody may wait for it.
        let _stop = Stop(&inner.queue);
        while let Some(job) = inner.queue.next() {
            match job {
                None => inner.trim(),
                Some(job) => inner.run(job),
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
