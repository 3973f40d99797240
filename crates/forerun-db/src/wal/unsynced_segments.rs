//! Segments that the writer has left and that are not on stable storage yet. They are synced in
//! their order.
//!
//! ```text
//!   writer: segment 8 is full ──> 7, 8 ──> background thread, or a synced write: sync 7, sync 8
//!           continues in 9 at once
//! ```
//!
//! A buffered write was not promised to be on stable storage, so it does not wait for these syncs,
//! except if more than a few segments wait for one: then the disk is slower than the writers.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forerun_core::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::io::{Io, IoFile, read_pieces, write_all_at};
use crate::{Error, Result};

/// An open segment of the log.
#[derive(Debug)]
pub(crate) struct OpenSegment {
    pub(crate) number: u64,
    pub(crate) path: PathBuf,
    pub(crate) file: Box<dyn IoFile>,
    pub(crate) salt: u32,
    /// Where the next record goes.
    pub(crate) len: u64,
    /// The length known to be on stable storage.
    pub(crate) synced_len: u64,
    /// Whether its name is known to be on stable storage.
    pub(crate) is_named: bool,
    /// Whether an earlier process wrote it. Then a sync proves nothing until the bytes are written
    /// again: if a sync failed in that process, the system may have dropped the record that they
    /// are not on the disk yet.
    pub(crate) is_recovered: bool,
}

impl OpenSegment {
    /// Whether all of it is on stable storage.
    pub(crate) fn is_durable(&self) -> bool {
        self.synced_len == self.len && self.is_named
    }

    /// Overwrites the segment with its own bytes, so an interrupted write leaves it as it is.
    pub(crate) fn rewrite(&self) -> Result<()> {
        let unread = |error| Error::io("read", &self.path, error);
        read_pieces(&*self.file, self.len, unread, |bytes, offset| {
            write_all_at(&*self.file, bytes, offset)
                .map_err(|error| Error::io("write", &self.path, error))
        })
    }
}

/// The segments that wait for a sync, oldest first.
#[derive(Debug)]
pub(crate) struct UnsyncedSegments {
    io: Arc<dyn Io>,
    dir: PathBuf,
    /// A writer waits while more segments than this are unsynced.
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
        self.lock().segments.push_back(Arc::new(segment));
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
    pub(crate) fn sync_to_limit(&self) -> Result<()> {
        self.sync_to(self.max)
    }

    /// Makes all segments durable.
    pub(crate) fn sync(&self) -> Result<()> {
        self.sync_to(0)
    }

    fn sync_to(&self, max: usize) -> Result<()> {
        let _in_order = self.syncing.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let mut queue = self.lock();
            if let Some(failure) = &queue.failure {
                return Err(failure.clone());
            }
            let oldest = match queue.segments.front() {
                Some(oldest) if queue.segments.len() > max => Arc::clone(oldest),
                _ => return Ok(()),
            };
            drop(queue);
            let synced = self.sync_one(&oldest);
            queue = self.lock();
            if let Err(error) = synced {
                queue.failure = Some(error.clone());
                return Err(error);
            }
            queue.syncs += 1;
            queue.segments.retain(|of| !Arc::ptr_eq(of, &oldest));
        }
    }

    fn sync_one(&self, segment: &OpenSegment) -> Result<()> {
        if segment.synced_len < segment.len {
            if segment.is_recovered {
                segment.rewrite()?;
            }
            let synced = segment.file.sync();
            synced.map_err(|error| Error::io("sync", &segment.path, error))?;
        }
        if !segment.is_named {
            let synced = self.io.sync_dir(&self.dir);
            synced.map_err(|error| Error::io("sync", &self.dir, error))?;
        }
        Ok(())
    }

    /// Forgets a segment that was removed because it is in runs.
    pub(crate) fn forget(&self, number: u64) {
        self.lock().segments.retain(|of| of.number != number);
    }

    /// Makes segments durable as they are added, until [`stop`](Self::stop) or a sync fails.
    pub(crate) fn sync_in_background(&self) -> Result<()> {
        while self.wait() {
            self.sync()?;
        }
        Ok(())
    }

    /// Waits for a segment. `false`: the thread is to end.
    fn wait(&self) -> bool {
        let mut queue = self.lock();
        while queue.segments.is_empty() && !queue.is_stopped {
            let woken = self.changed.wait(queue);
            queue = woken.unwrap_or_else(PoisonError::into_inner);
        }
        !queue.is_stopped
    }

    /// Ends [`sync_in_background`](Self::sync_in_background).
    pub(crate) fn stop(&self) {
        self.lock().is_stopped = true;
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
