//! Reads through a pool of threads, for systems that refuse io_uring.
//!
//! ```text
//!   batch A ─┐            ┌─ thread ─┐        ┌─> finished reads of A
//!            ├─ one queue ┼─ thread ─┼─ pread ┤
//!   batch B ─┘            └─ …       ┘        └─> finished reads of B
//! ```
//!
//! A process has one pool; a child process has none of its threads and starts another. Threads
//! start when reads wait and none is idle, up to a limit, and end after some time without work. A
//! thread spends most of its time waiting for the disk, so the number of threads follows the number
//! of concurrent reads, not the number of cores.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use forerun_core::sync::{Condvar, Mutex, MutexGuard, PoisonError, thread};
use forerun_core::{PerProcess, Wait};

use super::{Done, Engine, Progress};

/// The maximum number of threads, and so of reads in flight.
const THREADS_MAX: usize = 32;

/// How long a thread waits for work before it ends.
const IDLE: Duration = Duration::from_secs(10);

/// The stack of a thread: it calls `pread` and little else.
const STACK_BYTES: usize = 128 << 10;

/// The pool of this process.
fn pool() -> &'static Pool {
    static POOL: PerProcess<Pool> = PerProcess::new();
    POOL.get_or_init(Pool::default)
}

#[derive(Default)]
struct Pool {
    state: Mutex<PoolState>,
    /// Signalled when jobs arrive.
    work: Condvar,
}

#[derive(Default)]
struct PoolState {
    jobs: VecDeque<Job>,
    /// Threads that wait for work.
    idle: usize,
    threads: usize,
}

/// A read, and where its result goes.
struct Job {
    read: Progress,
    to: Arc<FinishedReads>,
}

/// The finished reads of one batch.
#[derive(Default)]
struct FinishedReads {
    done: Mutex<Vec<Done>>,
    arrived: Condvar,
}

/// A lock that a panic cannot poison: nothing under these locks is left in the middle of a change.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    /// Queues jobs and ensures that a thread handles them.
    fn begin(&'static self, jobs: impl Iterator<Item = Job>) {
        let mut state = lock(&self.state);
        state.jobs.extend(jobs);
        let wanted = state.jobs.len();
        for _ in 0..wanted.min(state.idle) {
            self.work.notify_one();
        }
        for _ in state.idle..wanted {
            if state.threads == THREADS_MAX || !self.start_thread() {
                break;
            }
            state.threads += 1;
        }
        if state.threads == 0 {
            // The system refuses to start a thread, so this one does the work.
            let jobs = std::mem::take(&mut state.jobs);
            drop(state);
            jobs.into_iter().for_each(Job::run);
        }
    }

    fn start_thread(&'static self) -> bool {
        thread::Builder::new()
            .name("forerun-read".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(|| self.serve())
            .is_ok()
    }

    /// The main loop of a thread.
    fn serve(&self) {
        let mut state = lock(&self.state);
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                job.run();
                state = lock(&self.state);
                continue;
            }
            state.idle += 1;
            let (next, timeout) = self
                .work
                .wait_timeout(state, IDLE)
                .unwrap_or_else(PoisonError::into_inner);
            state = next;
            state.idle -= 1;
            if timeout.timed_out() && state.jobs.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}

impl Job {
    fn run(self) {
        let done = self.read.finish();
        lock(&self.to.done).push(done);
        self.to.arrived.notify_one();
    }
}

/// The reads of one batch through the pool. If it is dropped with reads in flight, it leaves them
/// to the pool, which owns their buffers and files.
#[derive(Default)]
pub(super) struct PoolReads {
    finished: Arc<FinishedReads>,
    in_flight: usize,
}

impl Engine for PoolReads {
    fn turn(&mut self, reads: &mut Vec<Progress>, wait: Wait, done: &mut Vec<Done>) {
        if !reads.is_empty() {
            self.in_flight += reads.len();
            pool().begin(reads.drain(..).map(|read| Job {
                read,
                to: Arc::clone(&self.finished),
            }));
        }
        let mut arrived = lock(&self.finished.done);
        if wait == Wait::ForOne && self.in_flight > 0 {
            while arrived.is_empty() {
                arrived = self
                    .finished
                    .arrived
                    .wait(arrived)
                    .unwrap_or_else(PoisonError::into_inner);
            }
        }
        self.in_flight -= arrived.len();
        done.append(&mut arrived);
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }
}
