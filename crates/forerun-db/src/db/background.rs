//! The threads that flush and compact, and the same work done by the caller.

use std::sync::Arc;
use std::time::Duration;

use forerun_core::sync::thread::{self, JoinHandle};

use super::Inner;
use super::background_work::Task;
use crate::{Access, Background, Error, Result};

/// How soon to evict pages beyond the cache's budget again if readers still held some.
const EVICT_AGAIN: Duration = Duration::from_secs(1);

/// The background threads of an open store. They end when it is closed.
#[derive(Debug, Default)]
pub(super) struct Workers(Vec<JoinHandle<()>>);

impl Workers {
    /// Starts them, if the options ask for threads.
    pub(super) fn start(inner: &Arc<Inner>) -> Result<Workers> {
        let is_read_only = inner.options.access == Access::ReadOnly;
        if is_read_only || inner.options.background == Background::Caller {
            return Ok(Workers::default());
        }
        let store = Arc::downgrade(inner);
        inner.tree.obsolete_files.defer(Arc::new(move || {
            if let Some(inner) = store.upgrade() {
                inner.work.notify();
            }
        }));
        let mut workers = Workers::default();
        for (name, task) in [
            ("forerun-flush", Task::Flush),
            ("forerun-compact", Task::Compact),
        ] {
            let worker = Arc::clone(inner);
            let started = thread::Builder::new()
                .name(name.into())
                .spawn(move || worker.run_worker(name, task));
            match started {
                Ok(thread) => workers.0.push(thread),
                Err(error) => {
                    inner.work.stop();
                    workers.join();
                    return Err(Error::io("start a thread for", &inner.path, error));
                }
            }
        }
        Ok(workers)
    }

    /// Waits for them to end. The caller has already asked them to.
    pub(super) fn join(&mut self) {
        for thread in self.0.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the store panicked");
            }
        }
    }
}

impl Inner {
    /// Does one kind of work whenever there is any, until the store is closed.
    fn run_worker(&self, name: &str, task: Task) {
        while let Some(events) = self.work.event_count() {
            let worked = self.guard("working in the background", || {
                self.tree.obsolete_files.purge();
                let has_worked = match task {
                    Task::Flush => self.flush_one()?,
                    Task::Compact => self.compact_one()?,
                };
                if has_worked {
                    self.keyspaces.load().load_filters();
                }
                Ok(has_worked)
            });
            match worked {
                Ok(true) => self.work.note_done(task),
                Ok(false) => {
                    self.work.clear(task);
                    // These become due as time passes, without an event.
                    let timeout = match task {
                        Task::Flush => None,
                        Task::Compact => {
                            let is_within_budget = self.tree.cache.evict_to_budget();
                            let keyspaces = self.keyspaces.load();
                            [
                                keyspaces.expiry_check_interval(),
                                keyspaces.compaction_retry(),
                                (!is_within_budget).then_some(EVICT_AGAIN),
                            ]
                            .into_iter()
                            .flatten()
                            .min()
                        }
                    };
                    self.work.sleep(task, events, timeout);
                }
                Err(Error::Closed) => break,
                Err(error @ Error::Poisoned { .. }) => {
                    // The work panicked and would panic again.
                    tracing::error!(%error, path = %self.path.display(), "{name} ends");
                    self.work.note_panicked(error);
                    break;
                }
                Err(error) => {
                    tracing::error!(%error, path = %self.path.display(), "{name} failed, and will \
                        try again");
                    self.work.note_failed(task, error);
                    self.work.sleep(task, events, None);
                }
            }
        }
    }

    /// Does all pending work in this thread.
    pub(super) fn run_all_work(&self) -> Result<()> {
        self.guard("flushing and compacting", || {
            let mut has_worked = false;
            while self.flush_one()? || self.compact_one()? {
                has_worked = true;
            }
            if has_worked {
                self.keyspaces.load().load_filters();
            }
            Ok(())
        })?;
        self.work.note_done(Task::Flush);
        self.work.note_done(Task::Compact);
        Ok(())
    }
}
