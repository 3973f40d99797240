//! The events of a store, for a function of the program.
//!
//! ```text
//!   the store's threads   flush ─ note ─ go on ─ compact ─ note ─ go on ─ …
//!                                  │ at most 1,024 wait; more are counted and dropped
//!   forerun-events                 └──> event_listener(event) ─ event_listener(event) ─ …
//! ```
//!
//! The store's threads never wait for the interpreter's lock: a thread of the program may hold it
//! while it waits for them. So another thread calls the function, with one event after the other.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use forerun::DbError;
use forerun::events::{BackgroundTask, CompactionReason, DbEvent, EventListener, WriteStallReason};
use forerun::process::ProcessBound;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::exception;
use crate::python_calls;

/// How many events may wait for the function.
const WAITING_MAX: usize = 1024;

enum Message {
    Event(DbEvent),
    /// No more events are passed on.
    End,
}

/// The thread that calls a listener. A fork does not have it: a handle there must neither wait for
/// it nor let go of it.
pub(crate) struct Events(ProcessBound<Listening>);

struct Listening {
    sender: SyncSender<Message>,
    /// `None` once it is joined.
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What the thread works on.
struct Listener {
    function: Py<PyAny>,
    received: Receiver<Message>,
    /// Events that were dropped since the last one that was passed on. Relaxed throughout: a count.
    lost: Arc<AtomicU64>,
}

impl Events {
    /// Starts the thread. Also returns what the store tells of its events.
    pub(crate) fn listen(
        function: &Bound<'_, PyAny>,
    ) -> PyResult<(Arc<Events>, Arc<dyn EventListener>)> {
        python_calls::check_callable(function, "event_listener", "a dict")?;
        let (sender, received) = sync_channel(WAITING_MAX);
        let lost = Arc::new(AtomicU64::new(0));
        let listener = Listener {
            function: function.clone().unbind(),
            received,
            lost: Arc::clone(&lost),
        };
        let thread = std::thread::Builder::new()
            .name("forerun-events".into())
            .spawn(move || listener.run())?;
        let noted = sender.clone();
        let note = move |event: &DbEvent| {
            // An event after the listener has ended is counted too, and its count never reported.
            if noted.try_send(Message::Event(event.clone())).is_err() {
                lost.fetch_add(1, Ordering::Relaxed);
            }
        };
        let listening = Listening {
            sender,
            thread: Mutex::new(Some(thread)),
        };
        let events = Events(ProcessBound::new(listening));
        Ok((Arc::new(events), Arc::new(note)))
    }

    /// Returns once the function has been called with all events so far; no more follow. Does not
    /// wait for the function if `is_listener`: then it is what calls this. In a fork, does nothing.
    pub(crate) fn end(&self, is_listener: bool) {
        let Ok(Listening { sender, thread }) = self.0.get() else {
            return;
        };
        let thread = thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if is_listener {
            // If there is no room, the thread ends when the store's handles are gone.
            drop(sender.try_send(Message::End));
        } else if let Some(thread) = thread {
            // If it has panicked, it has said so.
            drop((sender.send(Message::End), thread.join()));
        }
    }

    /// Whether this thread is the one that calls the function.
    pub(crate) fn is_listener(&self) -> bool {
        let Ok(Listening { thread, .. }) = self.0.get() else {
            return false;
        };
        let thread = thread.lock().unwrap_or_else(PoisonError::into_inner);
        let id = thread.as_ref().map(|thread| thread.thread().id());
        id == Some(std::thread::current().id())
    }
}

impl Listener {
    fn run(self) {
        let Listener {
            function,
            received,
            lost,
        } = self;
        while let Ok(Message::Event(event)) = received.recv() {
            let told = Python::try_attach(|py| {
                let function = function.bind(py);
                let told =
                    tell(function, &event).and_then(|()| match lost.swap(0, Ordering::Relaxed) {
                        0 => Ok(()),
                        lost => tell_lost(function, lost),
                    });
                if let Err(error) = told {
                    // As Python reports an exception of a callback that has no caller.
                    python_calls::write_unraisable(error, function);
                }
            });
            if told.is_none() {
                // The interpreter ends.
                break;
            }
        }
        let mut function = Some(function);
        Python::try_attach(|_| drop(function.take()));
    }
}

fn tell(function: &Bound<'_, PyAny>, event: &DbEvent) -> PyResult<()> {
    match dict(function.py(), event)? {
        Some(dict) => python_calls::call(function, (dict,), None).map(drop),
        None => Ok(()),
    }
}

fn tell_lost(function: &Bound<'_, PyAny>, lost: u64) -> PyResult<()> {
    let dict = PyDict::new(function.py());
    dict.set_item("event", "events_lost")?;
    dict.set_item("count", lost)?;
    python_calls::call(function, (dict,), None).map(drop)
}

/// An event as a dict; `None` for one that this release does not know.
fn dict<'py>(py: Python<'py>, event: &DbEvent) -> PyResult<Option<Bound<'py, PyDict>>> {
    let dict = PyDict::new(py);
    let name = match event {
        DbEvent::FlushBegun {
            keyspaces,
            memtable_bytes,
            ..
        } => {
            dict.set_item("keyspaces", keyspaces)?;
            dict.set_item("memtable_bytes", memtable_bytes)?;
            "flush_begun"
        }
        DbEvent::FlushEnded {
            keyspaces,
            written_bytes,
            duration,
            error,
            ..
        } => {
            dict.set_item("keyspaces", keyspaces)?;
            dict.set_item("written_bytes", written_bytes)?;
            set_end(&dict, *duration, error.as_ref())?;
            "flush_ended"
        }
        DbEvent::CompactionBegun {
            keyspace,
            reason,
            from_level,
            into_level,
            runs,
            run_bytes,
            ..
        } => {
            set_compaction(&dict, keyspace, *reason, *from_level, *into_level)?;
            dict.set_item("runs", runs)?;
            dict.set_item("run_bytes", run_bytes)?;
            "compaction_begun"
        }
        DbEvent::CompactionEnded {
            keyspace,
            reason,
            from_level,
            into_level,
            read_bytes,
            written_bytes,
            dropped_entries,
            duration,
            error,
            ..
        } => {
            set_compaction(&dict, keyspace, *reason, *from_level, *into_level)?;
            dict.set_item("read_bytes", read_bytes)?;
            dict.set_item("written_bytes", written_bytes)?;
            dict.set_item("dropped_entries", dropped_entries)?;
            set_end(&dict, *duration, error.as_ref())?;
            "compaction_ended"
        }
        DbEvent::WriteStallBegun { reason, .. } => {
            set_stall(&dict, reason)?;
            "write_stall_begun"
        }
        DbEvent::WriteStallEnded {
            reason, duration, ..
        } => {
            set_stall(&dict, reason)?;
            dict.set_item("seconds", duration.as_secs_f64())?;
            "write_stall_ended"
        }
        DbEvent::DamageFound { error, .. } => {
            set_error(&dict, Some(error))?;
            "damage_found"
        }
        DbEvent::ScrubEnded {
            read_bytes,
            damaged_pages,
            duration,
            ..
        } => {
            dict.set_item("read_bytes", read_bytes)?;
            dict.set_item("damaged_pages", damaged_pages)?;
            dict.set_item("seconds", duration.as_secs_f64())?;
            "scrub_ended"
        }
        DbEvent::BackgroundError { task, error, .. } => {
            dict.set_item("task", name_of_task(*task))?;
            set_error(&dict, Some(error))?;
            "background_error"
        }
        _ => return Ok(None),
    };
    dict.set_item("event", name)?;
    Ok(Some(dict))
}

fn set_end(dict: &Bound<'_, PyDict>, duration: Duration, error: Option<&DbError>) -> PyResult<()> {
    dict.set_item("seconds", duration.as_secs_f64())?;
    set_error(dict, error)
}

fn set_error(dict: &Bound<'_, PyDict>, error: Option<&DbError>) -> PyResult<()> {
    let py = dict.py();
    let error = error.map(|error| exception(error.clone()).into_value(py));
    dict.set_item("error", error)
}

fn set_compaction(
    dict: &Bound<'_, PyDict>,
    keyspace: &str,
    reason: CompactionReason,
    from_level: usize,
    into_level: usize,
) -> PyResult<()> {
    let reason = match reason {
        CompactionReason::Level => "level",
        CompactionReason::Deletions => "deletions",
        CompactionReason::RangeDeletions => "range_deletions",
        CompactionReason::Requested => "requested",
        _ => "other",
    };
    dict.set_item("keyspace", keyspace)?;
    dict.set_item("reason", reason)?;
    dict.set_item("from_level", from_level)?;
    dict.set_item("into_level", into_level)
}

fn set_stall(dict: &Bound<'_, PyDict>, reason: &WriteStallReason) -> PyResult<()> {
    let name = match reason {
        WriteStallReason::Memory => "memory",
        WriteStallReason::Level0 { keyspace } => {
            dict.set_item("keyspace", keyspace)?;
            "level0"
        }
        WriteStallReason::Ingestion => "ingestion",
        WriteStallReason::Backup => "backup",
        _ => "other",
    };
    dict.set_item("reason", name)
}

fn name_of_task(task: BackgroundTask) -> &'static str {
    match task {
        BackgroundTask::Flush => "flush",
        BackgroundTask::Compaction => "compaction",
        BackgroundTask::LogSync => "log_sync",
        BackgroundTask::Scrub => "scrub",
        _ => "other",
    }
}
