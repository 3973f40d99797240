//! The order of writes: each gets its sequence numbers here, and becomes visible here.
//!
//! ```text
//!   writer assigns ──> clock notes when ──> entries are linked ──> published: readers see them
//! ```

use forerun_core::sync::OnceLock;
use forerun_core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;

use super::commit::{Commit, LogCounts};
use super::keyspace_data::KeyspaceData;
use super::operation_counters::Counters;
use super::published_sequence::{Hole, PublishedSequence};
use super::snapshots::ReadPoint;
use crate::clock::Clock;
use crate::tree::catalog::{Catalog, Logged};
use crate::{Durability, Error, Result};

pub(super) struct WritePath {
    writer: Writer,
    clock: Arc<Clock>,
    /// The newest sequence number that readers see.
    published: PublishedSequence,
}

/// Where sequence numbers come from.
enum Writer {
    /// From the log.
    Logged(Commit),
    /// From a counter.
    Unlogged {
        /// The next one.
        next_sequence: AtomicU64,
        /// Whether [`Db::close`](crate::Db::close) was called.
        is_closed: AtomicBool,
        /// Why the store takes no more writes, if it does not.
        poison: OnceLock<Arc<Error>>,
    },
}

impl WritePath {
    /// Continues after the last sequence number; without a log if `commit` is `None`.
    pub(super) fn new(commit: Option<Commit>, clock: Arc<Clock>, last_sequence: u64) -> WritePath {
        let unlogged = || Writer::Unlogged {
            next_sequence: AtomicU64::new(last_sequence + 1),
            is_closed: AtomicBool::new(false),
            poison: OnceLock::new(),
        };
        WritePath {
            writer: commit.map_or_else(unlogged, Writer::Logged),
            clock,
            published: PublishedSequence::new(last_sequence),
        }
    }

    /// The queue in front of the log, if there is a log.
    #[inline]
    pub(super) fn commit(&self) -> Option<&Commit> {
        match &self.writer {
            Writer::Logged(commit) => Some(commit),
            Writer::Unlogged { .. } => None,
        }
    }

    /// The counters of the log.
    pub(super) fn log_counts(&self) -> LogCounts {
        self.commit().map(Commit::counts).unwrap_or_default()
    }

    /// Logs a batch, if there is a log, and returns the sequence number of its first operation.
    pub(super) fn log(
        &self,
        encoded: &[u8],
        count: usize,
        durability: Durability,
        counters: &Counters,
    ) -> Result<u64> {
        match &self.writer {
            // A batch has fewer than 2^32 bytes, and an operation has at least two, so the count
            // fits.
            Writer::Logged(commit) => {
                commit.log(encoded, count as u32, durability == Durability::Synced)
            }
            Writer::Unlogged { next_sequence, .. } => {
                counters.count_write();
                Ok(self.take_unlogged(next_sequence, count as u64))
            }
        }
    }

    /// Takes a sequence number for an ingestion. If there is a log, the number is durable in it.
    pub(super) fn log_ingestion(&self) -> Result<u64> {
        self.check_takes_writes(Durability::Buffered)?;
        match &self.writer {
            Writer::Logged(commit) => commit.log_ingestion(),
            Writer::Unlogged { next_sequence, .. } => Ok(self.take_unlogged(next_sequence, 1)),
        }
    }

    fn take_unlogged(&self, next_sequence: &AtomicU64, count: u64) -> u64 {
        // Relaxed: this only hands out numbers; `published` orders the writes made under them.
        let take = || next_sequence.fetch_add(count, Ordering::Relaxed);
        self.clock.number(take)
    }

    /// Makes the log durable.
    pub(super) fn flush_wal(&self) -> Result<()> {
        self.check_takes_writes(Durability::Synced)?;
        match &self.writer {
            Writer::Logged(commit) => commit.log(&[], 0, true).map(drop),
            Writer::Unlogged { .. } => Ok(()),
        }
    }

    /// Refuses writes that would fail anyway, before memory is reserved for them.
    #[inline]
    pub(super) fn check_takes_writes(&self, durability: Durability) -> Result<()> {
        match &self.writer {
            Writer::Logged(commit) => commit.check_takes_writes(),
            Writer::Unlogged { .. } if durability == Durability::Synced => Err(Error::LogOff),
            // Relaxed: a write that races with closing may be taken or not; without a log, both are
            // forgotten.
            Writer::Unlogged { is_closed, .. } if is_closed.load(Ordering::Relaxed) => {
                Err(Error::Closed)
            }
            Writer::Unlogged { poison, .. } => {
                poison.get().map_or(Ok(()), |cause| Err(poisoned(cause)))
            }
        }
    }

    /// Stops taking writes, for this reason.
    pub(super) fn stop_for(&self, cause: Error) {
        match &self.writer {
            Writer::Logged(commit) => commit.stop_for(cause),
            Writer::Unlogged { poison, .. } => {
                tracing::error!(%cause, "the store takes no more writes");
                // The first failure caused the later ones, so it is the one to keep.
                let _ = poison.set(Arc::new(cause));
            }
        }
    }

    /// Returns why the store takes no more writes, or `None` if it still does.
    pub(super) fn poison(&self) -> Option<Arc<Error>> {
        match &self.writer {
            Writer::Logged(commit) => commit.poison(),
            Writer::Unlogged { poison, .. } => poison.get().cloned(),
        }
    }

    /// The error that writes get when no more are taken.
    pub(super) fn poisoned(&self) -> Error {
        match self.poison() {
            Some(cause) => poisoned(&cause),
            None => Error::Closed,
        }
    }

    /// Stops taking writes and marks the end of the log.
    pub(super) fn close(&self) -> Result<()> {
        match &self.writer {
            Writer::Logged(commit) => commit.close(),
            Writer::Unlogged {
                is_closed, poison, ..
            } => {
                is_closed.store(true, Ordering::Relaxed);
                poison.get().map_or(Ok(()), |cause| Err(poisoned(cause)))
            }
        }
    }

    /// Makes operations visible whose entries are linked, once all before them are.
    ///
    /// # Errors
    /// They never will be: an earlier write left a hole.
    #[inline]
    pub(super) fn publish(&self, first: u64, last: u64) -> Result<()> {
        let published = self.published.publish(first, last);
        published.map_err(|Hole| self.poisoned())
    }

    /// Records that the operations from `first` on have no entries and never will.
    pub(super) fn leave_hole(&self, first: u64) {
        self.published.leave_hole(first);
    }

    /// Whether there is a permanent hole. The caller blocks all writers.
    pub(super) fn has_hole(&self) -> bool {
        self.published.has_hole()
    }

    /// Prefetches what [`visible_sequence`](Self::visible_sequence) reads.
    #[inline]
    pub(super) fn prefetch(&self) {
        self.published.prefetch();
    }

    /// The newest sequence number that readers see.
    #[inline]
    pub(super) fn visible_sequence(&self) -> u64 {
        self.published.last()
    }

    /// Where a read of a keyspace that starts now reads.
    #[inline]
    pub(super) fn read_point(&self, keyspace: &KeyspaceData) -> ReadPoint {
        let sequence = self.visible_sequence();
        ReadPoint {
            sequence,
            expired_sequence: keyspace.expired_sequence(&self.clock, sequence),
        }
    }

    /// What a snapshot taken now sees: the newest visible sequence number, and the watermark of
    /// each of these keyspaces whose entries expire.
    pub(super) fn snapshot_point<'a>(
        &self,
        keyspaces: impl Iterator<Item = &'a Arc<KeyspaceData>>,
    ) -> (u64, Vec<(u32, u64)>) {
        let sequence = self.visible_sequence();
        if !self.clock.is_on() {
            return (sequence, Vec::new());
        }
        let expiring = keyspaces.filter(|keyspace| keyspace.expiry.is_some());
        let of = |keyspace: &Arc<KeyspaceData>| {
            let expired = keyspace.expired_sequence(&self.clock, sequence);
            (keyspace.id(), expired)
        };
        (sequence, expiring.map(of).collect())
    }

    /// Records times from now on, for a keyspace with this time to live in seconds.
    pub(super) fn expect_ttl(&self, ttl: u64) {
        self.clock.expect(ttl);
    }

    /// The state of the log that the manifest records once everything up to a sequence number is in
    /// runs.
    pub(super) fn logged_after(&self, catalog: &Catalog, flushed_sequence: u64) -> Logged {
        let commit = self.commit();
        let first_segment = commit.and_then(|commit| commit.first_needed(flushed_sequence));
        Logged {
            flushed_sequence,
            first_segment: first_segment.unwrap_or(catalog.first_segment()),
            marks: self.clock.marks_up_to(flushed_sequence),
        }
    }
}

fn poisoned(cause: &Arc<Error>) -> Error {
    Error::Poisoned {
        cause: Arc::clone(cause),
    }
}
