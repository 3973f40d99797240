//! What begins and ends is timed, and told to the listener.
//!
//! The listener is called with no lock that reads, writes or statistics take. During flushes, the
//! thread holds the lock that makes them happen one at a time, and so the listener receives them in
//! their order. Compactions run at once, and so do calls about them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forerun_core::sync::time;

use super::Inner;
use super::background_work::Task;
use super::keyspace_data::KeyspaceData;
use super::memtable_set::FrozenMemTables;
use super::memtables::HeldFor;
use crate::events::{BackgroundTask, CompactionReason, DbEvent, Listener, WriteStallReason};
use crate::tree::compact::Compacted;
use crate::tree::pick::Compaction;
use crate::{Error, Result, panics};

/// A write that waits, until this is dropped.
pub(super) struct WriteStall<'a> {
    inner: &'a Inner,
    /// Who heard that it began. The store may be closed meanwhile.
    listener: Option<Listener>,
    reason: WriteStallReason,
    begun: Instant,
    /// How long it has waited, if it waits no more.
    waited: Option<Duration>,
}

/// What waits for memtables.
#[derive(Clone, Copy, Debug)]
pub(super) enum For {
    /// A write, whose waits are counted.
    Write,
    /// A flush on request.
    Flush,
}

impl WriteStall<'_> {
    /// The write waits no more. The listener hears of it when this is dropped.
    pub(super) fn stop_clock(&mut self) {
        self.waited = Some(time::elapsed(self.begun));
    }
}

impl Drop for WriteStall<'_> {
    fn drop(&mut self) {
        let duration = self.waited.unwrap_or_else(|| time::elapsed(self.begun));
        self.inner.counters.count_stall(&self.reason, duration);
        let ended = || DbEvent::WriteStallEnded {
            reason: self.reason.clone(),
            duration,
        };
        self.inner.events.send_to(self.listener.as_ref(), ended);
    }
}

impl Inner {
    /// A write begins to wait.
    pub(super) fn begin_stall(&self, reason: WriteStallReason) -> WriteStall<'_> {
        let listener = self.events.listener();
        let begun = || DbEvent::WriteStallBegun {
            reason: reason.clone(),
        };
        self.events.send_to(listener.as_ref(), begun);
        WriteStall {
            inner: self,
            listener,
            reason,
            begun: time::now(),
            waited: None,
        }
    }

    /// Waits with `lock` for memtables that another thread holds. If that flushes meanwhile, a
    /// write is stalled for the reason why, until `stall` is dropped. If it is stalled already,
    /// that goes on. Otherwise another write replaces or adds memtables, or this one is to: a wait
    /// of about as long as a sync takes is counted. It has no events, like waits for the log.
    pub(super) fn wait_for_held<'a, T>(
        &'a self,
        of: For,
        held_for: Option<HeldFor>,
        stall: &mut Option<WriteStall<'a>>,
        lock: impl FnOnce() -> T,
    ) -> T {
        match (of, held_for) {
            (For::Flush, _) => lock(),
            _ if stall.is_some() => lock(),
            (For::Write, Some(held_for)) => {
                // The listener is called without the lock, so that it delays no other thread.
                *stall = Some(self.begin_stall(held_for.into()));
                lock()
            }
            (For::Write, None) => {
                let begun = time::now();
                let locked = lock();
                self.counters.count_switch(time::elapsed(begun));
                locked
            }
        }
    }

    /// Flushes a memtable set. `flush` gets the moment at which it begins, and returns the bytes of
    /// the runs that it has written.
    pub(super) fn notify_of_flush(
        &self,
        set: Arc<FrozenMemTables>,
        flush: impl FnOnce(Arc<FrozenMemTables>, Instant) -> Result<u64>,
    ) -> Result<()> {
        let mut keyspaces = Vec::new();
        if self.events.is_on() {
            let tables = set.memtables.tables().iter();
            let with_entries = tables.filter(|(_, table)| !table.is_empty());
            keyspaces.extend(with_entries.map(|(keyspace, _)| keyspace.name().to_owned()));
        }
        self.events.send(|| DbEvent::FlushBegun {
            keyspaces: keyspaces.clone(),
            memtable_bytes: set.memtables.tables_bytes(),
        });
        let begun = time::now();
        // Caught here, so that the flush ends for the listener too.
        let flushed = panics::catch("flushing", || flush(set, begun));
        let duration = time::elapsed(begun);
        self.events.send(|| DbEvent::FlushEnded {
            keyspaces,
            written_bytes: *flushed.as_ref().unwrap_or(&0),
            duration,
            error: flushed.as_ref().err().cloned(),
        });
        flushed.map(drop)
    }

    /// Compacts runs of a keyspace.
    pub(super) fn notify_of_compaction(
        &self,
        keyspace: &KeyspaceData,
        reason: CompactionReason,
        compaction: &Compaction,
        compact: impl FnOnce() -> Result<Compacted>,
    ) -> Result<()> {
        let (from_level, into_level) = (compaction.from, compaction.into);
        self.events.send(|| DbEvent::CompactionBegun {
            keyspace: keyspace.name().to_owned(),
            reason,
            from_level,
            into_level,
            runs: compaction.upper.len() + compaction.lower.len(),
            run_bytes: compaction.bytes(),
        });
        let begun = time::now();
        let compacted = panics::catch("compacting", compact);
        let duration = time::elapsed(begun);
        if compacted.as_ref().is_ok_and(|done| !done.is_move()) {
            self.counters.compaction.record(duration);
        }
        self.events.send(|| {
            let done = compacted.as_ref().ok();
            DbEvent::CompactionEnded {
                keyspace: keyspace.name().to_owned(),
                reason,
                from_level,
                into_level,
                read_bytes: done.map_or(0, |done| done.read_bytes),
                written_bytes: done.map_or(0, |done| done.written_bytes),
                dropped_entries: done.map_or(0, |done| done.dropped),
                duration,
                error: compacted.as_ref().err().cloned(),
            }
        });
        compacted.map(drop)
    }

    /// Work in the background has failed.
    pub(super) fn notify_of_error(&self, task: BackgroundTask, error: &Error) {
        self.events.send(|| DbEvent::BackgroundError {
            task,
            error: error.clone(),
        });
    }
}

impl From<Task> for BackgroundTask {
    fn from(task: Task) -> BackgroundTask {
        match task {
            Task::Flush => BackgroundTask::Flush,
            Task::Compact => BackgroundTask::Compaction,
        }
    }
}
