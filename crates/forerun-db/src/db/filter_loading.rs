//! Loads the indexes and filters of runs, newest level first.
//!
//! ```text
//!   open, or runs have changed ──> due ──> loader: level 0 of all keyspaces, level 1, … ──> idle
//!                                            one run after the other, as far as the budget goes
//! ```
//!
//! Runs are opened without index and filter. The loader is a thread of the store. A store without
//! one, for lack of background threads or because it is only read, loads in the calls that open it
//! or change its runs, before they return. What could not be read then is tried again by a lookup:
//! by one of those that are timed, since they know what time it is.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use forerun_core::sync::atomic::{AtomicBool, Ordering};
use forerun_core::sync::{Mutex, MutexGuard, PoisonError, time};

use super::Inner;
use super::keyspaces::KeyspaceSet;
use crate::run::Run;
use crate::{Access, Background, Error, Result};

/// Whether anything is to be loaded, and who is at it.
#[derive(Debug)]
pub(super) struct FilterLoading {
    state: Mutex<State>,
    /// Held while any are loaded.
    loading: Mutex<()>,
    /// Whether there is a [`State::retry_at`]. Relaxed throughout: a hint.
    has_retry: AtomicBool,
}

#[derive(Debug)]
struct State {
    /// Whether there may be something for the loader: at first, and after runs have changed.
    is_due: bool,
    /// Whether what failed a moment ago is to be tried again.
    retries_now: bool,
    /// Whether the loader is at it. It holds a run meanwhile.
    is_running: bool,
    /// When to try again what could not be read, if anything.
    retry_at: Option<Instant>,
}

impl Default for FilterLoading {
    fn default() -> Self {
        FilterLoading {
            state: Mutex::new(State {
                is_due: true,
                retries_now: false,
                is_running: false,
                retry_at: None,
            }),
            loading: Mutex::new(()),
            has_retry: AtomicBool::new(false),
        }
    }
}

impl FilterLoading {
    /// Notes that runs have changed, so that there may be space for more. The caller then
    /// increments the event count.
    pub(super) fn note_due(&self) {
        self.state().is_due = true;
    }

    /// [`note_due`](Self::note_due), and tries again what failed a moment ago.
    fn note_asked(&self) {
        let mut state = self.state();
        state.is_due = true;
        state.retries_now = true;
    }

    /// Whether the loader has nothing to do.
    fn is_idle(&self) -> bool {
        let state = self.state();
        !state.is_due && !state.is_running
    }

    /// Begins what is due, if anything is.
    fn begin(&self) -> Option<Turn<'_>> {
        let mut state = self.state();
        if !state.is_due {
            return None;
        }
        state.is_due = false;
        state.is_running = true;
        Some(Turn {
            of: self,
            retries_now: std::mem::take(&mut state.retries_now),
        })
    }

    /// Notes when to try again what could not be read.
    fn note_retry(&self, at: Option<Instant>) {
        let mut state = self.state();
        state.retry_at = at;
        self.has_retry.store(at.is_some(), Ordering::Relaxed);
    }

    /// Whether something is to be tried again now. Only one caller is told so.
    fn take_retry(&self, now: Instant) -> bool {
        if !self.has_retry.load(Ordering::Relaxed) {
            return false;
        }
        let mut state = self.state();
        let is_due = state.retry_at.take_if(|at| *at <= now).is_some();
        if is_due {
            self.has_retry.store(false, Ordering::Relaxed);
        }
        is_due
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while the lock is held, so a poisoned lock is still consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The loader is at work until this is dropped.
struct Turn<'a> {
    of: &'a FilterLoading,
    retries_now: bool,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.of.state().is_running = false;
    }
}

impl Inner {
    /// Whether a thread loads indexes and filters.
    fn has_loader(&self) -> bool {
        self.options.background == Background::Threads && self.options.access == Access::ReadWrite
    }

    /// Loads what is due, until the store is closed.
    pub(super) fn run_loader(&self) {
        let mut retry_at: Option<Instant> = None;
        while let Some(events) = self.work.event_count() {
            let Some(turn) = self.tree.filters.begin() else {
                let left = retry_at.map(|at| at.saturating_duration_since(time::now()));
                match left {
                    None => self.work.wait(events),
                    Some(Duration::ZERO) => self.tree.filters.note_due(),
                    Some(left) => self.work.wait_timeout(events, left),
                }
                continue;
            };
            let loaded = self.guard(
                "loading filters",
                || Ok(self.load_filters(turn.retries_now)),
            );
            drop(turn);
            match loaded {
                Ok(failed_until) => {
                    retry_at = failed_until;
                    // Someone may wait until this is done.
                    self.work.notify();
                }
                Err(Error::Closed) => break,
                Err(error) => {
                    // It panicked and would panic again.
                    tracing::error!(%error, path = %self.path.display(), "forerun-load ends");
                    self.work.note_panicked(error);
                    break;
                }
            }
        }
    }

    /// Loads what there is space for when the store has been opened, unless the loader will.
    pub(super) fn load_filters_at_opening(&self) {
        if !self.has_loader() {
            self.load_filters(false);
        }
    }

    /// Loads what there is space for now that runs have changed, or leaves that to the loader.
    pub(super) fn load_filters_after_change(&self) {
        if self.has_loader() {
            self.tree.filters.note_due();
            self.work.notify();
        } else {
            self.load_filters(false);
        }
    }

    /// For a store without a loader: tries again what could not be read some time ago, if it is
    /// time.
    pub(super) fn retry_filters(&self, now: Instant) {
        if !self.has_loader() && self.tree.filters.take_retry(now) {
            self.load_filters(false);
        }
    }

    /// Loads what there is space for, and tries again what failed a moment ago. Returns once this
    /// is done, and no other thread is at it.
    pub(super) fn load_filters_and_wait(&self) -> Result<()> {
        if self.has_loader() {
            self.tree.filters.note_asked();
            self.work.notify();
            self.wait_until(|| Ok(self.tree.filters.is_idle()))
        } else {
            self.guard("loading filters", || {
                self.load_filters(true);
                Ok(())
            })
        }
    }

    /// Loads the index or the filter of each run that has neither in memory, if it fits. Returns
    /// when to try again, if any cannot be read.
    fn load_filters(&self, retries_now: bool) -> Option<Instant> {
        // The lock guards no data.
        let loading = self.tree.filters.loading.lock();
        let _one_at_a_time = loading.unwrap_or_else(PoisonError::into_inner);
        let mut retry_at = None;
        let runs = unloaded(&self.keyspaces.load());
        for run in runs {
            // Relaxed: it only has to be seen soon.
            if self.work.stop_flag().load(Ordering::Relaxed) {
                break;
            }
            // It may be gone by now. Only one is held at a time, so that the files of obsolete runs
            // do not wait for all.
            if let Some(run) = run.upgrade() {
                let at = run.load_filter_if_due(retries_now);
                retry_at = retry_at.into_iter().chain(at).min();
            }
        }
        self.tree.filters.note_retry(retry_at);
        retry_at
    }
}

/// The runs whose index is not in memory, newest level first.
fn unloaded(keyspaces: &KeyspaceSet) -> Vec<Weak<Run>> {
    let mut unloaded = Vec::new();
    for keyspace in keyspaces.iter() {
        let levels = Arc::clone(&keyspace.version.load().levels);
        let runs = levels.runs().filter(|(_, run)| run.may_load());
        unloaded.extend(runs.map(|(level, run)| (level, Arc::downgrade(run))));
    }
    // Stable: level 0 begins with its newest run.
    unloaded.sort_by_key(|(level, _)| *level);
    unloaded.into_iter().map(|(_, run)| run).collect()
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn nobody_waits_for_a_loader_that_has_panicked() {
        let filters = FilterLoading::default();
        assert!(!filters.is_idle());
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let turn = filters.begin();
            assert!(turn.is_none(), "it is due");
        }));
        assert!(panicked.is_err() && filters.is_idle());
        assert!(filters.begin().is_none());
        filters.note_asked();
        assert!(filters.begin().is_some_and(|turn| turn.retries_now));
    }

    #[test]
    fn one_lookup_tries_again_once_it_is_time() {
        let (filters, now) = (FilterLoading::default(), Instant::now());
        assert!(!filters.take_retry(now));
        filters.note_retry(Some(now));
        assert!(!filters.take_retry(now - Duration::from_millis(1)));
        assert!(filters.take_retry(now) && !filters.take_retry(now));
        filters.note_retry(Some(now));
        filters.note_retry(None);
        assert!(!filters.take_retry(now));
    }
}
