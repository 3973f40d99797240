//! Segments that the writer has left and that are not on stable storage yet. They are synced in
//! their order.
//!
//! ```text
//!   writer: segment 8 is full ──> 7, 8 ──> background thread, or a synced write: sync 7, sync 8
//!           continues in 9 at once
//!           a MiB of 9 is written ──────> background thread: has the system write it out
//! ```
//!
//! A buffered write was not promised to be on stable storage, so it does not wait for these syncs,
//! except if more than a few segments wait for one: then the disk is slower than the writers.
//!
//! The last segment is written out steadily meanwhile (`io/write_out.rs`), so that little is left
//! for its sync. The thread does that too, because even this may wait for a device that has much
//! to do.

use std::collections::VecDeque;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forerun_core::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::open_segment::{Failure, OpenSegment};
use crate::Error;
use crate::io::write_out::start_write_out;
use crate::io::{Io, IoFile};

/// The segments that wait for a sync, oldest first.
#[derive(Debug)]
pub(crate) struct UnsyncedSegments {
    io: Arc<dyn Io>,
    dir: PathBuf,
    /// A writer waits while more segments than this are unsynced; 0 if no thread syncs them.
    max: usize,
    queue: Mutex<Queue>,
    changed: Condvar,
    /// Held during a sync, so that a later segment is never durable before an earlier one.
    syncing: Mutex<()>,
}

#[derive(Debug, Default)]
struct Queue {
    segments: VecDeque<Arc<OpenSegment>>,
    /// Why a sync failed. Afterwards the contents of the disk are unknown, and another sync would
    /// prove nothing.
    failure: Option<Error>,
    /// Whether a segment was added since the thread last looked.
    is_due: bool,
    /// What the thread is to have written out of a segment that takes records.
    write_out: Option<(Arc<dyn IoFile>, Range<u64>)>,
    is_stopped: bool,
    syncs: u64,
}

impl UnsyncedSegments {
    pub(crate) fn new(io: &Arc<dyn Io>, dir: &Path, max: usize) -> UnsyncedSegments {
        UnsyncedSegments {
            io: Arc::clone(io),
            dir: dir.to_owned(),
            max,
            queue: Mutex::default(),
            changed: Condvar::new(),
            syncing: Mutex::new(()),
        }
    }

    /// Adds a segment that takes no more records.
    pub(crate) fn push(&self, segment: OpenSegment) {
        let mut queue = self.lock();
        queue.segments.push_back(Arc::new(segment));
        queue.is_due = true;
        drop(queue);
        self.changed.notify_all();
    }

    /// Whether every segment before the last one is on stable storage.
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().segments.is_empty()
    }

    /// Whether a writer has to wait for [`sync_to_limit`](Self::sync_to_limit).
    pub(crate) fn is_over_limit(&self) -> bool {
        self.lock().segments.len() > self.max
    }

    /// Makes segments durable, the oldest first, until no more are left than may wait.
    pub(crate) fn sync_to_limit(&self) -> Result<(), Failure> {
        self.sync_to(self.max)
    }

    /// Makes all segments durable. Only one that an earlier process wrote can be
    /// [`NotWritten`](Failure::NotWritten): it stays as it is and is tried again.
    pub(crate) fn sync(&self) -> Result<(), Failure> {
        self.sync_to(0)
    }

    fn sync_to(&self, max: usize) -> Result<(), Failure> {
        let _in_order = self.syncing.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let mut queue = self.lock();
            if let Some(failure) = &queue.failure {
                return Err(Failure::Unknown(failure.clone()));
            }
            let oldest = match queue.segments.front() {
                Some(oldest) if queue.segments.len() > max => Arc::clone(oldest),
                _ => return Ok(()),
            };
            drop(queue);
            let synced = self.sync_one(&oldest);
            queue = self.lock();
            if let Err(Failure::Unknown(error)) = &synced {
                queue.failure = Some(error.clone());
            }
            synced?;
            queue.syncs += 1;
            queue.segments.retain(|of| !Arc::ptr_eq(of, &oldest));
        }
    }

    fn sync_one(&self, segment: &OpenSegment) -> Result<(), Failure> {
        if segment.synced_len < segment.len {
            if segment.is_recovered {
                segment.rewrite()?;
            }
            segment.sync()?;
        }
        if !segment.is_named {
            let synced = self.io.sync_dir(&self.dir);
            synced.map_err(|error| Failure::Unknown(Error::io("sync", &self.dir, error)))?;
        }
        Ok(())
    }

    /// Forgets a segment that was removed because it is in runs.
    pub(crate) fn forget(&self, number: u64) {
        self.lock().segments.retain(|of| of.number != number);
    }

    /// Has the thread, if there is one, write out these bytes of a segment that takes records.
    pub(crate) fn write_out(&self, file: &Arc<dyn IoFile>, bytes: Range<u64>) {
        let mut queue = self.lock();
        if self.max == 0 || queue.is_stopped || queue.failure.is_some() {
            return;
        }
        let begin = match &queue.write_out {
            // The thread has not come to it.
            Some((waiting, before)) if Arc::ptr_eq(waiting, file) => before.start,
            _ => bytes.start,
        };
        queue.write_out = Some((Arc::clone(file), begin..bytes.end));
        drop(queue);
        self.changed.notify_all();
    }

    /// Makes segments durable as they are added, and has the last one written out, until
    /// [`stop`](Self::stop) or until the contents of the disk are unknown.
    pub(crate) fn sync_in_background(&self) -> Result<(), Error> {
        let mut queue = self.lock();
        while !queue.is_stopped {
            let (is_due, write_out) = (std::mem::take(&mut queue.is_due), queue.write_out.take());
            if !is_due && write_out.is_none() {
                let woken = self.changed.wait(queue);
                queue = woken.unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            drop(queue);
            // First, because writers may wait for it.
            let synced = if is_due { self.sync() } else { Ok(()) };
            if let Some((file, bytes)) = write_out
                && synced.is_ok()
            {
                start_write_out(&*file, bytes);
            }
            match synced {
                Err(Failure::Unknown(error)) => return Err(error),
                // The next segment and a synced write try it again.
                Err(Failure::NotWritten(error)) => {
                    tracing::warn!(%error, "cannot sync a segment of the log");
                }
                Ok(()) => {}
            }
            queue = self.lock();
        }
        Ok(())
    }

    /// Ends [`sync_in_background`](Self::sync_in_background).
    pub(crate) fn stop(&self) {
        let mut queue = self.lock();
        queue.is_stopped = true;
        queue.write_out = None;
        drop(queue);
        self.changed.notify_all();
    }

    /// The number of syncs.
    pub(crate) fn syncs(&self) -> u64 {
        self.lock().syncs
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        // Nothing panics while the lock is held, so a poisoned lock is still consistent.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
