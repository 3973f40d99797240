//! How writers and the background threads wait for each other.
//!
//! ```text
//!   writer: memtable full -> events + 1 -> flush thread:  memtable -> run
//!                                        -> events + 1 -> compaction thread:  runs -> runs -> events + 1
//!           no memory: wait until the event count changes
//! ```
//!
//! The store's state shows which work is due, and it changes without this lock. So a worker reads
//! the event count, looks for work until it finds none, and sleeps until the count changes. A
//! thread that changes the store's state increments the count.
//!
//! A worker whose work fails waits until its retry is due (`backoff.rs`), however many events
//! occur, because progress elsewhere is no reason to retry. An explicit request makes it retry at
//! once.

use forerun_core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forerun_core::sync::{Condvar, Mutex, MutexGuard, PoisonError, time};

use super::backoff::Failing;
use crate::{Error, Result};

/// A worker's task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Task {
    Flush,
    Compact,
}

#[derive(Debug, Default)]
pub(super) struct BackgroundWork {
    state: Mutex<BackgroundState>,
    changed: Condvar,
    /// Whether the store is being closed. Set under the lock, for sleepers; threads in the middle
    /// of long work read it without the lock.
    is_stopping: Arc<AtomicBool>,
}

#[derive(Debug, Default)]
struct BackgroundState {
    /// How often the store's state has changed.
    events: u64,
    /// Why flushes and compactions fail, until one succeeds. A failure that concerns one keyspace
    /// is kept with the keyspace.
    flush: Option<Failing>,
    compact: Option<Failing>,
    /// Why a worker ended early. No one does its work any more.
    panicked: Option<Error>,
}

/// Which failures end a wait.
#[derive(Clone, Copy, Debug)]
pub(super) enum FailOn {
    /// Failures since the work was requested.
    Since(Instant),
    /// Failures that repeat when the work is retried. A single failure does not end the wait.
    Repeated,
}

/// An event count that a thread has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EventCount(u64);

impl FailOn {
    /// Whether this failure ends the wait.
    pub(super) fn ends_wait(self, failing: &Failing) -> bool {
        match self {
            FailOn::Since(asked) => failing.has_failed_since(asked),
            FailOn::Repeated => failing.is_repeated(),
        }
    }
}

impl BackgroundState {
    fn failing(&mut self, task: Task) -> &mut Option<Failing> {
        match task {
            Task::Flush => &mut self.flush,
            Task::Compact => &mut self.compact,
        }
    }
}

impl BackgroundWork {
    /// The event count now; `None` once the store is being closed.
    pub(super) fn event_count(&self) -> Option<EventCount> {
        let state = self.lock();
        (!self.is_stopping()).then_some(EventCount(state.events))
    }

    /// Increments the event count, because the store's state has changed.
    pub(super) fn notify(&self) {
        self.lock().events += 1;
        self.changed.notify_all();
    }

    /// Records that work has succeeded, and increments the event count.
    pub(super) fn note_done(&self, task: Task) {
        let mut state = self.lock();
        state.events += 1;
        *state.failing(task) = None;
        drop(state);
        self.changed.notify_all();
    }

    /// Records that there was no work that could fail when the event count was `seen`, and that no
    /// other thread is doing any. The count may have changed since: another thread has done work,
    /// which may have failed.
    pub(super) fn clear(&self, task: Task, seen: EventCount) {
        let mut state = self.lock();
        if state.events == seen.0 {
            *state.failing(task) = None;
        }
    }

    /// Records that work that began at `begun` has failed, and increments the event count.
    pub(super) fn note_failed(&self, task: Task, error: Error, begun: Instant) {
        let mut state = self.lock();
        state.events += 1;
        let failing = state.failing(task);
        *failing = Some(Failing::again(failing.as_ref(), error, begun, time::now()));
        drop(state);
        self.changed.notify_all();
    }

    /// Records that a worker has panicked and ends.
    pub(super) fn note_panicked(&self, error: Error) {
        let mut state = self.lock();
        state.events += 1;
        state.panicked.get_or_insert(error);
        drop(state);
        self.changed.notify_all();
    }

    /// Why a worker ended early, if one did.
    pub(super) fn panicked(&self) -> Option<Error> {
        self.lock().panicked.clone()
    }

    /// Why flushes or compactions fail, if they do.
    pub(super) fn failure(&self) -> Option<Error> {
        let state = self.lock();
        let failing = state.flush.as_ref().or(state.compact.as_ref());
        let failure = failing.map(|failing| &failing.error);
        state.panicked.as_ref().or(failure).cloned()
    }

    /// Retries failed work at once. A failure later than `now` is a new one.
    pub(super) fn retry(&self, now: Instant) {
        let mut state = self.lock();
        for task in [Task::Flush, Task::Compact] {
            if let Some(failing) = state.failing(task) {
                failing.retry_now(now);
            }
        }
        state.events += 1;
        drop(state);
        self.changed.notify_all();
    }

    /// Fails if the work that the caller waits for fails.
    ///
    /// # Errors
    /// The error of that work.
    pub(super) fn check(&self, task: Task, fail_on: FailOn) -> Result<()> {
        match self.lock().failing(task) {
            Some(failing) if fail_on.ends_wait(failing) => Err(failing.error.clone()),
            _ => Ok(()),
        }
    }

    /// For waiting callers: whether the work is done, or an error if it fails.
    pub(super) fn done_or_fails(&self, is_done: bool, task: Task, fail_on: FailOn) -> Result<bool> {
        if is_done {
            Ok(true)
        } else {
            self.check(task, fail_on).map(|()| false)
        }
    }

    /// Puts a worker to sleep until the event count is no longer `seen`, the store is being closed,
    /// or `timeout` has passed. After a failure, sleeps until the retry is due.
    pub(super) fn sleep(&self, task: Task, seen: EventCount, timeout: Option<Duration>) {
        let begun = time::now();
        let mut state = self.lock();
        while !self.is_stopping() {
            let now = time::now();
            let has_changed = state.events != seen.0;
            let retry_left = state.failing(task).as_ref().map(|of| of.wait_left(now));
            let left = match retry_left.filter(|left| !left.is_zero()) {
                Some(left) => Some(left),
                None if has_changed => return,
                // If a retry is due, another thread is at it.
                None => timeout.map(|limit| limit.saturating_sub(now - begun)),
            };
            state = match left {
                Some(Duration::ZERO) => return,
                Some(left) => {
                    let woken = self.changed.wait_timeout(state, left);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.wait_for_change(state),
            };
        }
    }

    /// Sleeps until the event count is no longer `seen` or the store is being closed.
    pub(super) fn wait(&self, seen: EventCount) {
        let mut state = self.lock();
        while state.events == seen.0 && !self.is_stopping() {
            state = self.wait_for_change(state);
        }
    }

    /// [`wait`](Self::wait) with a timeout.
    pub(super) fn wait_timeout(&self, seen: EventCount, limit: Duration) {
        let state = self.lock();
        let is_same = |state: &mut BackgroundState| state.events == seen.0 && !self.is_stopping();
        let waited = self.changed.wait_timeout_while(state, limit, is_same);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    fn wait_for_change<'a>(
        &self,
        state: MutexGuard<'a, BackgroundState>,
    ) -> MutexGuard<'a, BackgroundState> {
        let woken = self.changed.wait(state);
        woken.unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the workers to end.
    pub(super) fn stop(&self) {
        let state = self.lock();
        // Relaxed: the lock orders it for those who hold it; others only have to see it soon.
        self.is_stopping.store(true, Ordering::Relaxed);
        drop(state);
        self.changed.notify_all();
    }

    /// Under the lock.
    fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Relaxed)
    }

    /// The flag that ends long work.
    pub(super) fn stop_flag(&self) -> &Arc<AtomicBool> {
        &self.is_stopping
    }

    fn lock(&self) -> MutexGuard<'_, BackgroundState> {
        // Nothing panics while the lock is held, so a poisoned lock is still consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_sleeps_until_new_work_or_close() {
        let work = BackgroundWork::default();
        let seen = work.event_count().unwrap();
        work.notify();
        work.sleep(Task::Flush, seen, None);
        work.wait(seen);
        let seen = work.event_count().unwrap();
        forerun_core::sync::thread::scope(|scope| {
            scope.spawn(|| work.sleep(Task::Flush, seen, None));
            scope.spawn(|| work.wait(seen));
            work.stop();
        });
        assert_eq!(work.event_count(), None);
    }

    #[test]
    fn a_worker_that_failed_tries_again_after_a_while_whatever_others_do() {
        let work = BackgroundWork::default();
        let begun = Instant::now();
        work.note_failed(Task::Flush, Error::LogOff, time::now());
        let seen = work.event_count().unwrap();
        work.note_done(Task::Compact);
        work.notify();
        work.sleep(Task::Compact, seen, None);
        assert!(matches!(work.failure(), Some(Error::LogOff)));
        work.sleep(Task::Flush, seen, None);
        assert!(begun.elapsed() >= Duration::from_millis(500));
        work.note_done(Task::Flush);
        assert!(work.failure().is_none());
    }

    #[test]
    fn a_worker_without_work_sleeps_while_another_tries_again() {
        let work = BackgroundWork::default();
        work.note_failed(Task::Compact, Error::LogOff, time::now());
        work.retry(time::now());
        let (begun, limit) = (Instant::now(), Duration::from_millis(20));
        work.sleep(Task::Compact, work.event_count().unwrap(), Some(limit));
        assert!(begun.elapsed() >= limit);
        assert!(work.failure().is_some());
    }

    #[test]
    fn waiters_learn_of_new_and_repeated_failures() {
        let work = BackgroundWork::default();
        work.note_failed(Task::Flush, Error::LogOff, time::now());
        assert!(work.check(Task::Flush, FailOn::Repeated).is_ok());
        let (asked, seen) = (Instant::now(), work.event_count().unwrap());
        work.retry(asked);
        let since = FailOn::Since(asked);
        assert!(work.check(Task::Flush, since).is_ok(), "an old failure");
        work.sleep(Task::Flush, seen, None);
        work.note_failed(Task::Flush, Error::LogOff, time::now());
        assert!(work.check(Task::Compact, since).is_ok());
        assert!(work.check(Task::Flush, since).is_err());
        assert!(work.check(Task::Flush, FailOn::Repeated).is_err());
    }
}
