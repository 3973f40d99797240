//! Group commit: writers queue, and one of them writes for all.
//!
//! ```text
//!   writer a ─┐                     ┌─ leads: one write, one sync if anyone asked ─┐
//!   writer b ─┼─> pending records ──┤                                              ├─> each links its own entries
//!   writer c ─┘   (one buffer)      └─ follow: wait for the group's result ────────┘
//! ```
//!
//! A writer copies its record to the end of the pending buffer, under a lock that it holds only for
//! the copy. If no one is writing, it takes the buffer and the log and writes. Records that arrive
//! during the write collect in a second buffer, the next group. The leader assigns the sequence
//! numbers, so a group that fails uses none. A lone writer takes the lock twice, briefly, and makes
//! one system call.

use forerun_core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use forerun_core::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError, hint, thread, time};

use crate::panics;
use crate::wal::open_segment::Failure;
use crate::wal::record;
use crate::wal::unsynced_segments::UnsyncedSegments;
use crate::wal::writer::{LogWriter, Segments};
use crate::{Error, Result};

/// How long a follower spins before it sleeps: a write takes one microsecond, a wake-up takes
/// several.
const SPINS: usize = 200;
const YIELDS: usize = 10;

/// A shorter wait of a write is one for the write before it and not for a sync.
pub(super) const SHORTEST_STALL: Duration = Duration::from_millis(1);

/// A larger buffer is freed after its group.
const KEPT_BUFFER_BYTES: usize = 1 << 20;

/// The queue in front of the log.
#[derive(Debug)]
pub(super) struct Commit {
    segments: Arc<Segments>,
    unsynced: Arc<UnsyncedSegments>,
    queue: Mutex<Queue>,
    wake: Condvar,
    /// Whether a leader is writing. A hint for followers; the lock decides.
    is_busy: AtomicBool,
    /// Whether the log was closed or poisoned. A hint for new writers; the lock decides.
    is_stopped: AtomicBool,
}

struct Queue {
    pending: Group,
    /// The log; `None` while a leader writes.
    log: Option<Box<LogWriter>>,
    spare: Vec<u8>,
    sleepers: usize,
    poison: Option<Arc<Error>>,
    is_closed: bool,
    counts: LogCounts,
}

/// Records that are written together.
#[derive(Default)]
struct Group {
    records: Vec<u8>,
    ops: u64,
    batches: u64,
    sync: bool,
    /// Where the leader leaves the result, if anyone follows.
    result: Option<Arc<OnceLock<Result<u64>>>>,
}

/// The log's counters since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LogCounts {
    pub(super) batches: u64,
    pub(super) groups: u64,
    pub(super) written_bytes: u64,
    pub(super) syncs: u64,
    /// Buffered writes that waited for a sync, and the sum of their waits.
    pub(super) stalls: u64,
    pub(super) stalled: Duration,
}

impl LogCounts {
    fn note_stall(&mut self, waited: Duration) {
        if waited >= SHORTEST_STALL {
            self.stalls += 1;
            self.stalled += waited;
        }
    }
}

enum CommitRole<'a> {
    Done(Result<u64>),
    Lead(MutexGuard<'a, Queue>),
}

impl Commit {
    pub(super) fn new(log: LogWriter) -> Commit {
        let segments = log.segments();
        let unsynced = Arc::clone(log.unsynced());
        let queue = Queue {
            pending: Group::default(),
            log: Some(Box::new(log)),
            spare: Vec::new(),
            sleepers: 0,
            poison: None,
            is_closed: false,
            counts: LogCounts::default(),
        };
        Commit {
            segments,
            unsynced,
            queue: Mutex::new(queue),
            wake: Condvar::new(),
            is_busy: AtomicBool::new(false),
            is_stopped: AtomicBool::new(false),
        }
    }

    /// Logs a batch, encoded as `payload`, and returns the sequence number of its first operation.
    /// With `sync`, the log is then on stable storage. With no operations, it only syncs.
    pub(super) fn log(&self, payload: &[u8], ops: u32, sync: bool) -> Result<u64> {
        // The long part of the checksum needs no lock.
        let payload_checksum = crc32c::crc32c(payload);
        self.append(ops, sync, |records| {
            let needed_bytes = record::HEADER_BYTES + payload.len();
            records
                .try_reserve(needed_bytes)
                .map_err(|error| Error::OutOfMemory {
                    needed_bytes,
                    reason: error.to_string(),
                })?;
            record::begin(records, payload, payload_checksum, ops);
            Ok(())
        })
    }

    /// Takes a sequence number for an ingestion and makes it durable in the log.
    pub(super) fn log_ingestion(&self) -> Result<u64> {
        self.append(1, true, |records| {
            record::begin_ingestion(records);
            Ok(())
        })
    }

    /// Adds a record that takes `numbers` sequence numbers, possibly 0. Returns the first of them
    /// once the record is written.
    fn append(
        &self,
        numbers: u32,
        sync: bool,
        begin: impl FnOnce(&mut Vec<u8>) -> Result<()>,
    ) -> Result<u64> {
        let mut queue = self.lock();
        queue.check()?;
        let ahead = queue.pending.ops;
        if numbers > 0 {
            begin(&mut queue.pending.records)?;
            queue.pending.batches += 1;
        }
        queue.pending.ops += u64::from(numbers);
        queue.pending.sync |= sync;
        let result = if queue.log.is_some() {
            self.lead(queue, sync)
        } else {
            match self.follow(queue, sync) {
                CommitRole::Done(result) => result,
                CommitRole::Lead(queue) => self.lead(queue, sync),
            }
        };
        result.map(|first_sequence| first_sequence + ahead)
    }

    /// Waits until the pending group is written, or until it needs a leader. `sync`: the caller
    /// asked for a sync.
    fn follow<'a>(&'a self, mut queue: MutexGuard<'a, Queue>, sync: bool) -> CommitRole<'a> {
        let result = Arc::clone(queue.pending.result.get_or_insert_default());
        drop(queue);
        for spin in 0..SPINS + YIELDS {
            // Relaxed: a hint, checked again under the lock.
            if result.get().is_some() || !self.is_busy.load(Ordering::Relaxed) {
                break;
            }
            if spin < SPINS {
                hint::spin_loop();
            } else {
                thread::yield_now();
            }
        }
        let mut queue = self.lock();
        let mut slept_since = None;
        // If no group is being written, ours is not written yet, so it is the pending one.
        while result.get().is_none() && queue.log.is_none() {
            slept_since.get_or_insert_with(time::now);
            queue = self.sleep(queue);
        }
        if let (false, Some(since)) = (sync, slept_since) {
            queue.counts.note_stall(time::now() - since);
        }
        match result.get() {
            Some(result) => CommitRole::Done(result.clone()),
            None => CommitRole::Lead(queue),
        }
    }

    /// Writes the pending group and wakes its followers. `sync`: the caller asked for a sync.
    fn lead<'a>(&'a self, mut queue: MutexGuard<'a, Queue>, sync: bool) -> Result<u64> {
        let Some(mut log) = queue.log.take() else {
            return Err(Error::Closed);
        };
        let next = Group {
            records: std::mem::take(&mut queue.spare),
            ..Group::default()
        };
        let mut group = std::mem::replace(&mut queue.pending, next);
        let result = match &queue.poison {
            Some(cause) => Err(Error::Poisoned {
                cause: Arc::clone(cause),
            }),
            None => {
                self.is_busy.store(true, Ordering::Relaxed);
                drop(queue);
                let begun = (group.sync && !sync).then(time::now);
                let written = panics::catch("writing the log", || {
                    Ok(log.append(&mut group.records, group.sync))
                });
                // After a panic the contents of the log are unknown.
                let written = written.unwrap_or_else(|panicked| Err(Failure::Unknown(panicked)));
                let stalled = log.take_stalled();
                let waited = begun.map_or(stalled, |begun| time::now() - begun);
                queue = self.lock();
                self.is_busy.store(false, Ordering::Relaxed);
                if !sync {
                    queue.counts.note_stall(waited);
                }
                written.map_err(|failure| self.note(&mut queue, failure))
            }
        };
        if result.is_ok() {
            queue.counts.batches += group.batches;
            queue.counts.groups += u64::from(group.batches > 0);
            queue.counts.written_bytes = log.written_bytes();
            queue.counts.syncs = log.syncs();
        }
        queue.log = Some(log);
        group.records.clear();
        if group.records.capacity() <= KEPT_BUFFER_BYTES {
            queue.spare = group.records;
        }
        if let Some(slot) = group.result {
            // A group has one leader, so nothing else sets the result.
            let _ = slot.set(result.clone());
        }
        if queue.sleepers > 0 {
            self.wake.notify_all();
        }
        result
    }

    /// Stops taking writes, waits for those in progress, and marks the end of the log. A second
    /// call does nothing.
    pub(super) fn close(&self) -> Result<()> {
        let mut queue = self.lock();
        if std::mem::replace(&mut queue.is_closed, true) {
            return Ok(());
        }
        self.is_stopped.store(true, Ordering::Relaxed);
        loop {
            if queue.pending.result.is_none()
                && let Some(mut log) = queue.log.take()
            {
                let closed = match &queue.poison {
                    Some(cause) => Err(Error::Poisoned {
                        cause: Arc::clone(cause),
                    }),
                    None => panics::catch("closing the log", || log.close()),
                };
                queue.log = Some(log);
                return closed;
            }
            queue = self.sleep(queue);
        }
    }

    /// The log's segments.
    pub(super) fn segments(&self) -> &Segments {
        &self.segments
    }

    /// The segments that wait for a sync.
    pub(super) fn unsynced(&self) -> &Arc<UnsyncedSegments> {
        &self.unsynced
    }

    /// Returns the first segment still needed once everything up to a sequence number is in runs,
    /// or `None` if there is no segment. If that is everything that was logged, begins a new
    /// segment, so that the old ones can be removed.
    pub(super) fn first_needed(&self, flushed_sequence: u64) -> Option<u64> {
        let mut queue = self.lock();
        let mut log = loop {
            match queue.log.take() {
                Some(log) => break log,
                None => queue = self.sleep(queue),
            }
        };
        if queue.check().is_ok() {
            self.is_busy.store(true, Ordering::Relaxed);
            drop(queue);
            let left = log.leave_flushed(flushed_sequence);
            // No write has waited for it.
            log.take_stalled();
            queue = self.lock();
            self.is_busy.store(false, Ordering::Relaxed);
            if let Err(failure) = left {
                // The last segment stays until the next flush.
                let error = self.note(&mut queue, failure);
                tracing::warn!(%error, "cannot begin a segment of the log");
            }
        }
        queue.counts.syncs = log.syncs();
        queue.log = Some(log);
        if queue.sleepers > 0 {
            self.wake.notify_all();
        }
        drop(queue);
        self.segments.holding(flushed_sequence + 1)
    }

    /// Returns where the log ends when no group is being written: the number and length of its last
    /// segment, if there is one, and the last sequence number.
    pub(super) fn end(&self) -> (Option<(u64, u64)>, u64) {
        let mut queue = self.lock();
        loop {
            if let Some(log) = &queue.log {
                return log.end();
            }
            queue = self.sleep(queue);
        }
    }

    pub(super) fn counts(&self) -> LogCounts {
        let mut counts = self.lock().counts;
        counts.syncs += self.unsynced.syncs();
        counts
    }

    /// Returns why the store accepts no more writes, or `None` if it still does.
    pub(super) fn poison(&self) -> Option<Arc<Error>> {
        self.lock().poison.clone()
    }

    /// Whether a write can be accepted. This is cheap: it locks only to find out why not.
    pub(super) fn check_takes_writes(&self) -> Result<()> {
        // Relaxed: `log` refuses a write that slips through.
        if self.is_stopped.load(Ordering::Relaxed) {
            self.lock().check()
        } else {
            Ok(())
        }
    }

    fn note(&self, queue: &mut Queue, failure: Failure) -> Error {
        match failure {
            Failure::NotWritten(error) => error,
            Failure::Unknown(error) => {
                self.stop(queue, error.clone());
                error
            }
        }
    }

    /// Stops taking writes, for this reason.
    pub(super) fn stop_for(&self, cause: Error) {
        self.stop(&mut self.lock(), cause);
    }

    fn stop(&self, queue: &mut Queue, cause: Error) {
        tracing::error!(%cause, "the store takes no more writes");
        // The first failure caused the later ones, so it is the one to keep.
        queue.poison.get_or_insert_with(|| Arc::new(cause));
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    fn sleep<'a>(&self, mut queue: MutexGuard<'a, Queue>) -> MutexGuard<'a, Queue> {
        queue.sleepers += 1;
        queue = self
            .wake
            .wait(queue)
            .unwrap_or_else(PoisonError::into_inner);
        queue.sleepers -= 1;
        queue
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        // Nothing panics while the lock is held, so a poisoned lock is still consistent.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    fn check(&self) -> Result<()> {
        if self.is_closed {
            return Err(Error::Closed);
        }
        match &self.poison {
            Some(cause) => Err(Error::Poisoned {
                cause: Arc::clone(cause),
            }),
            None => Ok(()),
        }
    }
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue")
            .field("pending_ops", &self.pending.ops)
            .field("poison", &self.poison)
            .field("is_closed", &self.is_closed)
            .field("counts", &self.counts)
            .finish_non_exhaustive()
    }
}
