//! What happens in an open store, for a listener of the user.

use std::sync::Arc;
use std::time::Duration;

use forerun_core::sync::atomic::{AtomicBool, Ordering};
use forerun_core::sync::{Mutex, MutexGuard, PoisonError};

use crate::{Error, panics};

/// Receives the events of an open store: see [`Options::event_listener`].
///
/// A function that takes an [`DbEvent`] is a listener:
///
/// ```
/// use forerun_db::{Db, DbEvent, Options};
/// use std::sync::Arc;
/// use std::sync::mpsc::channel;
///
/// # let directory = tempfile::tempdir().unwrap();
/// # let path = directory.path().join("store");
/// let (events, received) = channel();
/// let send = move |event: &DbEvent| drop(events.send(event.clone()));
/// let db = Db::open(path, Options::default().event_listener(Arc::new(send)))?;
/// db.put("paris", "48.85,2.35")?;
/// db.flush()?;
/// assert!(matches!(received.recv(), Ok(DbEvent::FlushBegun { .. })));
/// match received.recv() {
///     Ok(DbEvent::FlushEnded { written_bytes, .. }) => assert!(written_bytes > 0),
///     other => panic!("{other:?}"),
/// }
/// # Ok::<(), forerun_db::Error>(())
/// ```
///
/// [`Options::event_listener`]: crate::Options::event_listener
pub trait EventListener: Send + Sync + 'static {
    /// Receives an event, in the thread in which it happens, possibly in several threads at once.
    ///
    /// The thread goes on when this returns, so do not block in it: hand the event to another
    /// thread. The store may be read and [`Db::stats`](crate::Db::stats) called. Every other call
    /// may wait for the thread that is calling the listener, and then never returns: do not write,
    /// flush, compact, ingest, back up or close the store here.
    ///
    /// The store keeps the listener until it is closed. So a listener that keeps a
    /// [`Db`](crate::Db) of this store keeps it open, whatever other handles are dropped, until
    /// [`Db::close`](crate::Db::close), which then drops the listener.
    ///
    /// If it panics, the store logs that once, works on, and calls the listener no more.
    fn on_event(&self, event: &DbEvent);
}

impl<F: Fn(&DbEvent) + Send + Sync + 'static> EventListener for F {
    fn on_event(&self, event: &DbEvent) {
        self(event);
    }
}

/// Something that happens in an open store.
///
/// Each event that begins something is followed by the one that ends it, in the same thread, with
/// an error if it failed. The name of the store's own keyspace is empty.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum DbEvent {
    /// Full memtables are about to be written to runs.
    #[non_exhaustive]
    FlushBegun {
        /// The keyspaces whose memtables they are.
        keyspaces: Vec<String>,
        /// The memory that they take, in bytes.
        memtable_bytes: usize,
    },
    /// The memtables are in runs, or could not be written.
    #[non_exhaustive]
    FlushEnded {
        /// The keyspaces whose memtables they are.
        keyspaces: Vec<String>,
        /// Bytes of the runs written.
        written_bytes: u64,
        /// The time since it began.
        duration: Duration,
        /// Why it failed, if it did. It will be tried again.
        error: Option<Error>,
    },
    /// Runs are about to be merged into the next level, or moved there as they are.
    #[non_exhaustive]
    CompactionBegun {
        /// The keyspace.
        keyspace: String,
        /// Why it is due.
        reason: CompactionReason,
        /// The level that it takes runs from.
        from_level: usize,
        /// The level that the result goes to.
        into_level: usize,
        /// Runs that it takes, of both levels.
        runs: usize,
        /// Bytes of these runs.
        run_bytes: u64,
    },
    /// The compaction is done or has failed.
    #[non_exhaustive]
    CompactionEnded {
        /// The keyspace.
        keyspace: String,
        /// Why it was due.
        reason: CompactionReason,
        /// The level that it took runs from.
        from_level: usize,
        /// The level that the result went to.
        into_level: usize,
        /// Bytes of the runs read; 0 if they were moved.
        read_bytes: u64,
        /// Bytes of the runs written; 0 if they were moved.
        written_bytes: u64,
        /// Entries dropped: overwritten, deleted or expired.
        dropped_entries: u64,
        /// The time since it began.
        duration: Duration,
        /// Why it failed, if it did.
        error: Option<Error>,
    },
    /// A write begins to wait. Each write that waits has its own events. A listener that wrote here
    /// would wait too, and be called again.
    #[non_exhaustive]
    WriteStallBegun {
        /// What it waits for.
        reason: WriteStallReason,
    },
    /// The write has waited.
    #[non_exhaustive]
    WriteStallEnded {
        /// What it waited for.
        reason: WriteStallReason,
        /// How long it waited.
        duration: Duration,
    },
    /// A scrub has found damage in a run: see
    /// [`Options::scrub_rate_bytes`](crate::Options::scrub_rate_bytes). Each damaged page has its
    /// own event in each round.
    #[non_exhaustive]
    DamageFound {
        /// What is wrong and where: [`Error::CorruptFile`], or [`Error::Io`] for what cannot be
        /// read.
        error: Error,
    },
    /// A scrub has read all runs that there were when it began.
    #[non_exhaustive]
    ScrubEnded {
        /// Bytes of these runs.
        read_bytes: u64,
        /// How many damaged pages it found.
        damaged_pages: u64,
        /// The time since it began.
        duration: Duration,
    },
    /// Work in the background failed.
    #[non_exhaustive]
    BackgroundError {
        /// The work.
        task: BackgroundTask,
        /// Why. With [`Error::Poisoned`], the store takes no more writes.
        error: Error,
    },
}

/// Why a compaction is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CompactionReason {
    /// A level exceeds its target, or has much that no reader sees any more.
    Level,
    /// A run has many deletions, or old ones: see
    /// [`TreeOptions::deletion_max_age`](crate::TreeOptions::deletion_max_age).
    Deletions,
    /// Range deletions take too much memory.
    RangeDeletions,
    /// [`Db::compact`](crate::Db::compact) or [`Keyspace::compact`](crate::Keyspace::compact).
    Requested,
}

/// What a write waits for. [`WriteStalls`](crate::WriteStalls) counts each of them, and waits for
/// the log and for other writes, which have no events.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WriteStallReason {
    /// For memory: memtables have reached
    /// [`Options::memory_limit_bytes`](crate::Options::memory_limit_bytes).
    Memory,
    /// For a compaction: level 0 of a keyspace is full.
    Level0 {
        /// The keyspace.
        keyspace: String,
    },
    /// For an ingestion that is being committed.
    Ingestion,
    /// For a backup that has begun: it flushes what is in memtables.
    Backup,
}

/// Work that no call waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BackgroundTask {
    /// Writing memtables to runs.
    Flush,
    /// Merging runs.
    Compaction,
    /// Syncing segments of the log.
    LogSync,
    /// Reading all runs to find damage. Some could not be read: the next scrub tries it again.
    Scrub,
}

/// A reference to the listener. The last one drops it: the user's code, which may panic, in any
/// thread of the store or of its users.
#[derive(Clone)]
pub(crate) struct Listener(Option<Arc<dyn EventListener>>);

impl Drop for Listener {
    fn drop(&mut self) {
        let listener = self.0.take();
        let dropped = panics::catch("dropping the event listener", || {
            drop(listener);
            Ok(())
        });
        if let Err(error) = dropped {
            tracing::error!(%error, "the event listener is gone");
        }
    }
}

/// Passes events to the listener, if there is one.
pub(crate) struct EventSender {
    /// Whether there is one until the store is closed.
    is_on: bool,
    listener: Mutex<Option<Listener>>,
    has_panicked: AtomicBool,
}

impl EventSender {
    pub(crate) fn new(listener: Option<Arc<dyn EventListener>>) -> EventSender {
        EventSender {
            is_on: listener.is_some(),
            listener: Mutex::new(listener.map(|of| Listener(Some(of)))),
            has_panicked: AtomicBool::new(false),
        }
    }

    /// Whether anyone listens.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on
    }

    /// The listener, for an event that may come after the store has been closed.
    pub(crate) fn listener(&self) -> Option<Listener> {
        // Most stores have none, and take no lock.
        self.is_on.then(|| self.lock().clone()).flatten()
    }

    /// Lets go of the listener.
    pub(crate) fn close(&self) {
        // Its drop may drop a handle of the store: not under the lock.
        let listener = self.lock().take();
        drop(listener);
    }

    /// Makes an event and passes it on. The caller holds no lock that reads, writes or statistics
    /// take.
    pub(crate) fn send(&self, event: impl FnOnce() -> DbEvent) {
        self.send_to(self.listener().as_ref(), event);
    }

    /// [`send`](Self::send) to the [`listener`](Self::listener) that there was.
    pub(crate) fn send_to(&self, listener: Option<&Listener>, event: impl FnOnce() -> DbEvent) {
        let Some(Listener(Some(listener))) = listener else {
            return;
        };
        // Relaxed: a call in another thread may still begin.
        if self.has_panicked.load(Ordering::Relaxed) {
            return;
        }
        let received = panics::catch("telling the event listener", || {
            listener.on_event(&event());
            Ok(())
        });
        if let Err(error) = received
            && !self.has_panicked.swap(true, Ordering::Relaxed)
        {
            tracing::error!(%error, "the event listener is called no more");
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Listener>> {
        // Nothing panics while the lock is held.
        self.listener.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
