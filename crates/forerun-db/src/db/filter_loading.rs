//! Loads the indexes and filters of runs, newest level first, in a thread of the store.
//!
//! ```text
//!   open, or runs have changed ──> due ──> loader: level 0 of all keyspaces, level 1, … ──> idle
//!                                            one run after the other, as far as the budget goes
//! ```
//!
//! Runs are opened without index and filter. Lookups that need one before the loader comes to it
//! load it themselves (`run/index_and_filter.rs`). Without background threads, only they do, and
//! [`Db::wait_idle`](crate::Db::wait_idle).

use std::sync::{Arc, Weak};

use forerun_core::sync::atomic::Ordering;
use forerun_core::sync::{Mutex, MutexGuard, PoisonError};

use super::Inner;
use super::keyspaces::KeyspaceSet;
use crate::panics;
use crate::run::Run;

/// Whether the loader has work.
#[derive(Debug)]
pub(super) struct FilterLoading(Mutex<State>);

#[derive(Debug)]
struct State {
    /// Whether there may be something to load: at first, and after runs have changed.
    is_due: bool,
    /// Whether the loader is at it. It holds a run meanwhile.
    is_running: bool,
}

impl Default for FilterLoading {
    fn default() -> Self {
        FilterLoading(Mutex::new(State {
            is_due: true,
            is_running: false,
        }))
    }
}

impl FilterLoading {
    /// Notes that runs have changed, so that there may be space for more. The caller then
    /// increments the event count.
    pub(super) fn note_due(&self) {
        self.lock().is_due = true;
    }

    /// Whether the loader has nothing to do.
    pub(super) fn is_idle(&self) -> bool {
        let state = self.lock();
        !state.is_due && !state.is_running
    }

    /// Begins what is due. Returns `false` if nothing is.
    fn begin(&self) -> bool {
        let mut state = self.lock();
        state.is_running = std::mem::replace(&mut state.is_due, false);
        state.is_running
    }

    fn end(&self) {
        self.lock().is_running = false;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while the lock is held, so a poisoned lock is still consistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Loads what is due, until the store is closed.
    pub(super) fn run_loader(&self) {
        while let Some(events) = self.work.event_count() {
            if self.tree.filters.begin() {
                self.load_filters();
                self.tree.filters.end();
                // Someone may wait until this is done.
                self.work.notify();
            } else {
                self.work.wait(events);
            }
        }
    }

    /// Loads the index or the filter of each run that has neither in memory, if it fits.
    pub(super) fn load_filters(&self) {
        let runs = unloaded(&self.keyspaces.load());
        for run in runs {
            // Relaxed: it only has to be seen soon.
            if self.work.stop_flag().load(Ordering::Relaxed) {
                return;
            }
            // It may be gone by now. Only one is held at a time, so that the files of obsolete runs
            // do not wait for all.
            let Some(run) = run.upgrade() else {
                continue;
            };
            let loaded = panics::catch("loading a filter", || run.load_filter());
            if let Err(error) = loaded {
                tracing::warn!(%error, "a run stays without its filter");
            }
        }
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
