//! The threads that flush, compact, load filters, sync the log, remove obsolete files and scrub
//! runs, and what of that the caller does without them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forerun_core::sync::thread::{self, JoinHandle};
use forerun_core::sync::time;

use super::Inner;
use super::background_work::{EventCount, Task};
use crate::events::BackgroundTask;
use crate::panics;
use crate::run::ObsoleteFiles;
use crate::wal::unsynced_segments::UnsyncedSegments;
use crate::{Access, Background, Error, Result};

/// How soon to evict pages beyond the cache's budget again if readers still held some.
const EVICT_AGAIN: Duration = Duration::from_secs(1);

/// What a look for work has led to.
enum Worked {
    Done,
    /// There was none. Some becomes due after this time, if any does without an event.
    Nothing {
        timeout: Option<Duration>,
    },
}

/// The background threads of an open store. They end when it is closed.
#[derive(Debug, Default)]
pub(super) struct Workers {
    threads: Vec<JoinHandle<()>>,
    /// What one of them syncs.
    log: Option<Arc<UnsyncedSegments>>,
    /// What one of them removes.
    obsolete: Option<Arc<ObsoleteFiles>>,
}

impl Workers {
    /// Starts them, if the options ask for threads.
    pub(super) fn start(inner: &Arc<Inner>) -> Result<Workers> {
        let is_read_only = inner.options.access == Access::ReadOnly;
        if is_read_only || inner.options.background == Background::Caller {
            return Ok(Workers::default());
        }
        let obsolete = Arc::clone(&inner.tree.obsolete_files);
        let work = Arc::clone(&inner.work);
        let rate_bytes = inner.options.tree.delete_rate_bytes;
        obsolete.defer(rate_bytes, Arc::new(move || work.notify()));
        let mut workers = Workers {
            obsolete: Some(obsolete),
            ..Workers::default()
        };
        let started = workers.start_all(inner);
        if started.is_err() {
            inner.work.stop();
            workers.join();
        }
        started.map(|()| workers)
    }

    fn start_all(&mut self, inner: &Arc<Inner>) -> Result<()> {
        let compact = ("forerun-compact", Task::Compact);
        let compact = std::iter::repeat_n(compact, inner.options.background_threads);
        for (name, task) in compact.chain([("forerun-flush", Task::Flush)]) {
            self.start_one(inner, name, move |worker| worker.run_worker(name, task))?;
        }
        let obsolete = Arc::clone(&inner.tree.obsolete_files);
        self.start_one(inner, "forerun-unlink", move |_| obsolete.remove_paced())?;
        self.start_one(inner, "forerun-load", Inner::run_loader)?;
        if inner.options.scrub_rate_bytes > 0 {
            self.start_one(inner, "forerun-scrub", Inner::run_scrubber)?;
        }
        if let Some(commit) = inner.write_path.commit() {
            let log = Arc::clone(commit.unsynced());
            self.log = Some(Arc::clone(&log));
            self.start_one(inner, "forerun-log", move |worker| worker.sync_log(&log))?;
        }
        Ok(())
    }

    fn start_one(
        &mut self,
        inner: &Arc<Inner>,
        name: &str,
        run: impl FnOnce(&Inner) + Send + 'static,
    ) -> Result<()> {
        let worker = Arc::clone(inner);
        let thread = thread::Builder::new()
            .name(name.into())
            .spawn(move || run(&worker))
            .map_err(|error| Error::io("start a thread for", &inner.path, error))?;
        self.threads.push(thread);
        Ok(())
    }

    /// Waits for them to end. The caller has already asked those that flush and compact to.
    pub(super) fn join(&mut self) {
        if let Some(log) = self.log.take() {
            log.stop();
        }
        if let Some(obsolete) = self.obsolete.take() {
            obsolete.stop();
        }
        for thread in self.threads.drain(..) {
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
            let begun = time::now();
            let worked = self.guard("working in the background", || {
                let has_worked = match task {
                    Task::Flush => self.flush_one()?,
                    Task::Compact => self.compact_one()?,
                };
                if has_worked {
                    self.load_filters_after_change();
                    return Ok(Worked::Done);
                }
                let timeout = match task {
                    Task::Flush => {
                        self.work.clear(task, events);
                        None
                    }
                    Task::Compact => {
                        self.clear_compact(events);
                        self.due_without_event(begun)
                    }
                };
                Ok(Worked::Nothing { timeout })
            });
            match worked {
                Ok(Worked::Done) => self.work.note_done(task),
                Ok(Worked::Nothing { timeout }) => self.work.sleep(task, events, timeout),
                Err(Error::Closed) => break,
                Err(error @ Error::Poisoned { .. }) => {
                    // The work panicked and would panic again.
                    tracing::error!(%error, path = %self.path.display(), "{name} ends");
                    self.notify_of_error(task.into(), &error);
                    self.work.note_panicked(error);
                    break;
                }
                Err(error) => {
                    tracing::error!(%error, path = %self.path.display(), "{name} failed, and will \
                        try again");
                    self.notify_of_error(task.into(), &error);
                    self.work.note_failed(task, error, begun);
                    self.work.sleep(task, events, None);
                }
            }
        }
    }

    /// Notes that nothing was to be compacted when the event count was `seen`.
    fn clear_compact(&self, seen: EventCount) {
        // None begins while this is locked, and another thread's may still fail.
        let catalog = self.tree.catalog();
        if catalog.running().is_empty() {
            self.work.clear(Task::Compact, seen);
        }
    }

    /// How soon to look for what becomes due as time passes, without an event, after a thread that
    /// `looked` for work found none.
    fn due_without_event(&self, looked: Instant) -> Option<Duration> {
        let is_within_budget = self.tree.cache.evict_to_budget();
        let _picking = self.tree.lock_picking();
        let keyspaces = self.keyspaces.load();
        [
            keyspaces.expiry_check_interval(),
            keyspaces.compaction_retry(looked, |of| self.compaction_score_of(of) >= 1.0),
            self.deletions_check_interval(looked),
            (!is_within_budget).then_some(EVICT_AGAIN),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Syncs the log's full segments until the store is closed or a sync fails.
    fn sync_log(&self, log: &UnsyncedSegments) {
        let synced = panics::catch("syncing the log", || log.sync_in_background());
        if let Err(error) = synced {
            let error = self.poison(error);
            self.notify_of_error(BackgroundTask::LogSync, &error);
        }
    }

    /// Does all pending work in this thread, except what other threads are doing. Returns `false`
    /// if there was none.
    pub(super) fn run_all_work(&self) -> Result<bool> {
        let mut has_worked = false;
        while self.run_work()? {
            has_worked = true;
        }
        Ok(has_worked)
    }

    /// Flushes or compacts once in this thread. Returns `false` if there is nothing to do but what
    /// other threads are doing.
    fn run_work(&self) -> Result<bool> {
        let done = self.guard("flushing and compacting", || {
            let done = if self.flush_one()? {
                Task::Flush
            } else if self.compact_one()? {
                Task::Compact
            } else {
                return Ok(None);
            };
            self.load_filters_after_change();
            Ok(Some(done))
        })?;
        if let Some(task) = done {
            self.work.note_done(task);
        }
        Ok(done.is_some())
    }
}
