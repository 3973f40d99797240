//! The way of a write.
//!
//! Memory first: entries are drafted in the memtable before anything is logged, so that a write
//! that does not fit leaves nothing in the log. Then the log, which gives sequence numbers; then
//! the entries are linked under them; then they become visible. A memtable that is full makes way for another first.

use std::cell::RefCell;
use std::iter;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};

use super::{Commit, Inner};
use crate::ranges::RangeTombstone;
use crate::{Durability, Error, Op, Result, WriteBatch};

/// Capacity that a thread keeps for encoding single writes.
const KEPT_SCRATCH_BYTES: usize = 64 << 10;

/// Where sequence numbers come from.
pub(super) enum Writer {
    /// From the log.
    Logged(Commit),
    /// From a counter.
    Unlogged {
        /// The next one.
        next_sequence: AtomicU64,
        /// Whether [`Db::close`](crate::Db::close) was called.
        is_closed: AtomicBool,
    },
}

impl Writer {
    pub(super) fn unlogged(next_sequence: u64) -> Writer {
        Writer::Unlogged {
            next_sequence: AtomicU64::new(next_sequence),
            is_closed: AtomicBool::new(false),
        }
    }

    /// Takes no more writes, and marks the log's end.
    pub(super) fn close(&self) -> Result<()> {
        match self {
            Writer::Logged(commit) => commit.close(),
            Writer::Unlogged { is_closed, .. } => {
                is_closed.store(true, Ordering::Relaxed);
                Ok(())
            }
        }
    }
}

impl Inner {
    pub(super) fn write_one(&self, op: Op<'_>, durability: Durability) -> Result<()> {
        // Encoded into memory that the thread keeps: a single write allocates nothing but its
        // entry.
        thread_local!(static SCRATCH: RefCell<WriteBatch> = const { RefCell::new(WriteBatch::new()) });
        match &self.writer {
            Writer::Unlogged { .. } => self
                .apply(iter::once(op), 1, &[], false, durability)
                .map(drop),
            Writer::Logged(_) => SCRATCH.with_borrow_mut(|scratch| {
                scratch.clear();
                scratch.push(op)?;
                let written = self.apply(iter::once(op), 1, scratch.encoded(), false, durability);
                if scratch.encoded().len() > KEPT_SCRATCH_BYTES {
                    scratch.clear();
                    scratch.shrink_to(KEPT_SCRATCH_BYTES);
                }
                written.map(drop)
            }),
        }
    }

    pub(super) fn write(&self, batch: &WriteBatch, durability: Durability) -> Result<u64> {
        if batch.is_empty() {
            if durability == Durability::Synced {
                self.flush_wal()?;
            }
            return Ok(self.visible.last());
        }
        let (encoded, has_ranges) = (batch.encoded(), batch.has_ranges());
        self.apply(batch.ops(), batch.len(), encoded, has_ranges, durability)
    }

    fn apply<'op>(
        &self,
        ops: impl Iterator<Item = Op<'op>> + Clone,
        count: usize,
        encoded: &[u8],
        has_ranges: bool,
        durability: Durability,
    ) -> Result<u64> {
        self.check_takes_writes(durability)?;
        if has_ranges {
            self.check_ranges(&tombstones(ops.clone(), 0))?;
        }
        self.slow_down(encoded.len());
        loop {
            // Held until the write is visible: a memtable is frozen when no write to it is under way.
            let active = self.active.read().unwrap_or_else(PoisonError::into_inner);
            let needed_bytes = match active.memtable.prepare(ops.clone()) {
                Ok(prepared) => {
                    let first_sequence = self.log(encoded, count, durability)?;
                    let last_sequence = first_sequence + count as u64 - 1;
                    prepared.publish(first_sequence);
                    if has_ranges {
                        let deleted = tombstones(ops.clone(), first_sequence);
                        active.delete_ranges(&self.order, &deleted);
                    }
                    self.visible.publish(first_sequence, last_sequence);
                    return Ok(last_sequence);
                }
                Err(Error::MemoryLimit { needed_bytes, .. }) => needed_bytes,
                Err(error) => return Err(error),
            };
            let full = Arc::clone(&active);
            drop(active);
            self.make_room(&full, needed_bytes)?;
        }
    }

    /// Logs a batch, if there is a log, and returns the sequence number of its first operation.
    fn log(&self, encoded: &[u8], count: usize, durability: Durability) -> Result<u64> {
        match &self.writer {
            // A batch has fewer bytes than fit 32 bits, and an operation has at least two.
            Writer::Logged(commit) => {
                commit.log(encoded, count as u32, durability == Durability::Synced)
            }
            Writer::Unlogged { next_sequence, .. } => {
                self.counters.count_write();
                // Relaxed: it hands out numbers; `visible` orders what is done under them.
                Ok(next_sequence.fetch_add(count as u64, Ordering::Relaxed))
            }
        }
    }

    /// Takes a sequence number for an ingestion; it is in the log, if there is one, durably.
    pub(super) fn log_ingestion(&self) -> Result<u64> {
        self.check_takes_writes(Durability::Buffered)?;
        match &self.writer {
            Writer::Logged(commit) => commit.log_ingestion(),
            // Relaxed: as in `log`.
            Writer::Unlogged { next_sequence, .. } => {
                Ok(next_sequence.fetch_add(1, Ordering::Relaxed))
            }
        }
    }

    /// Refuses ranges that end before they start, or are empty.
    fn check_ranges(&self, deleted: &[RangeTombstone]) -> Result<()> {
        let is_bad = |range: &&RangeTombstone| self.order.compare(&range.start, &range.end).is_ge();
        match deleted.iter().find(is_bad) {
            None => Ok(()),
            Some(range) => Err(Error::EmptyRange {
                start: range.start.clone(),
                end: range.end.clone(),
            }),
        }
    }

    pub(super) fn flush_wal(&self) -> Result<()> {
        self.check_takes_writes(Durability::Synced)?;
        match &self.writer {
            Writer::Logged(commit) => commit.log(&[], 0, true).map(drop),
            Writer::Unlogged { .. } => Ok(()),
        }
    }

    /// Refuses what will fail anyway, before memory is taken for it.
    fn check_takes_writes(&self, durability: Durability) -> Result<()> {
        match &self.writer {
            Writer::Logged(commit) => commit.check_takes_writes(),
            Writer::Unlogged { .. } if durability == Durability::Synced => Err(Error::LogOff),
            // Relaxed: whether a write that races with closing is still taken does not matter,
            // since all of them are forgotten.
            Writer::Unlogged { is_closed, .. } if is_closed.load(Ordering::Relaxed) => {
                Err(Error::Closed)
            }
            Writer::Unlogged { .. } => Ok(()),
        }
    }
}

/// The deletions of ranges among operations, the first of which has this sequence number.
pub(super) fn tombstones<'op>(
    ops: impl Iterator<Item = Op<'op>>,
    first_sequence: u64,
) -> Vec<RangeTombstone> {
    let numbered = (first_sequence..).zip(ops);
    let deleted = numbered.filter_map(|(sequence, op)| match op {
        Op::DeleteRange { start, end } => Some(RangeTombstone {
            start: start.to_vec(),
            end: end.to_vec(),
            sequence,
        }),
        Op::Put { .. } | Op::Delete { .. } => None,
    });
    deleted.collect()
}
