//! How writers and the threads behind them wait for each other.
//!
//! ```text
//!   writer: memtable full ──> turn + 1 ──> flush thread:   memtable -> run, turn + 1 ──> compaction thread: runs -> runs
//!           no room: wait until the turn changes <──────────────────────┴───────────────────────────────────────┘
//! ```
//!
//! What there is to do follows from the store's state, which changes without this lock. So a worker notes the turn,
//! looks for work until it finds none, and sleeps until the turn is another; who changes the state moves the turn on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::Error;

/// How long a worker waits after a failure before it tries again by itself: a full disk may have room by then.
const RETRY: Duration = Duration::from_millis(500);

#[derive(Debug, Default)]
pub(super) struct Work {
    state: Mutex<WorkState>,
    moved: Condvar,
    /// Whether the store is being closed. Set under the lock, for those who sleep; those in the middle of long work look
    /// without it.
    is_stopping: AtomicBool,
}

#[derive(Debug, Default)]
struct WorkState {
    turn: u64,
    /// Why the last flush or compaction failed, and the turn that was then; until one succeeds.
    failure: Option<(Error, Turn)>,
    /// Why a worker has ended before its time: nobody does its work any more.
    panicked: Option<Error>,
}

/// A turn that somebody saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Turn(u64);

impl Work {
    /// The turn now; `None` once the store is being closed.
    pub(super) fn turn(&self) -> Option<Turn> {
        let state = self.lock();
        (!self.is_stopping()).then_some(Turn(state.turn))
    }

    /// Moves the turn on, since the store's state has changed.
    pub(super) fn nudge(&self) {
        self.lock().turn += 1;
        self.moved.notify_all();
    }

    /// Notes how a flush or a compaction went, and moves the turn on.
    pub(super) fn note(&self, failure: Option<Error>) {
        let mut state = self.lock();
        state.turn += 1;
        let turn = Turn(state.turn);
        state.failure = failure.map(|failure| (failure, turn));
        drop(state);
        self.moved.notify_all();
    }

    /// Notes that a worker has panicked, and ends.
    pub(super) fn note_panicked(&self, error: Error) {
        self.lock().panicked.get_or_insert(error.clone());
        self.note(Some(error));
    }

    /// Why a worker has ended before its time, if one has.
    pub(super) fn panicked(&self) -> Option<Error> {
        self.lock().panicked.clone()
    }

    /// Why the last flush or compaction failed, if it did.
    pub(super) fn failure(&self) -> Option<Error> {
        let state = self.lock();
        let failure = state.failure.as_ref().map(|(failure, _)| failure);
        state.panicked.as_ref().or(failure).cloned()
    }

    /// Has what failed before tried again, and returns the turn from which on a failure is a new one.
    pub(super) fn ask(&self) -> Turn {
        let mut state = self.lock();
        if state.failure.is_some() {
            state.turn += 1;
            self.moved.notify_all();
        }
        Turn(state.turn)
    }

    /// The last failure, if it is newer than a turn.
    pub(super) fn failure_since(&self, asked: Turn) -> Option<Error> {
        let state = self.lock();
        let failure = state.failure.as_ref().filter(|(_, turn)| *turn > asked);
        failure.map(|(failure, _)| failure.clone())
    }

    /// Sleeps until the turn is another than `seen`, or the store is being closed, or `at_most` so long. After a failure
    /// not for long in any case.
    pub(super) fn wait(&self, seen: Turn, at_most: Option<Duration>) {
        let mut state = self.lock();
        while state.turn == seen.0 && !self.is_stopping() {
            let retry = state.failure.as_ref().map(|_| RETRY);
            let Some(timeout) = retry.or(at_most) else {
                let woken = self.moved.wait(state);
                state = woken.unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let woken = self.moved.wait_timeout(state, timeout);
            let (after, timeout) = woken.unwrap_or_else(PoisonError::into_inner);
            state = after;
            if timeout.timed_out() {
                return;
            }
        }
    }

    /// Asks the workers to end.
    pub(super) fn stop(&self) {
        let state = self.lock();
        // Relaxed: the lock orders it for those who hold it, and for others that it is seen soon is enough.
        self.is_stopping.store(true, Ordering::Relaxed);
        drop(state);
        self.moved.notify_all();
    }

    /// Under the lock.
    fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Relaxed)
    }

    /// What tells long work to end.
    pub(super) fn stop_flag(&self) -> &AtomicBool {
        &self.is_stopping
    }

    fn lock(&self) -> MutexGuard<'_, WorkState> {
        // Nothing under the lock panics half-way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_sleeps_until_the_turn_moves_on_or_the_store_closes() {
        let work = Work::default();
        let seen = work.turn().unwrap();
        work.nudge();
        work.wait(seen, None);
        let seen = work.turn().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| work.wait(seen, None));
            work.stop();
        });
        assert_eq!(work.turn(), None);
    }

    #[test]
    fn after_a_failure_nobody_sleeps_for_ever() {
        let work = Work::default();
        work.note(Some(Error::Closed));
        work.wait(work.turn().unwrap(), None);
        assert!(matches!(work.failure(), Some(Error::Closed)));
        let asked = work.ask();
        assert!(
            work.failure_since(asked).is_none(),
            "an old failure is no answer"
        );
        work.note(Some(Error::LogOff));
        assert!(matches!(work.failure_since(asked), Some(Error::LogOff)));
        work.note(None);
        assert!(work.failure().is_none());
    }
}
