//! The way of a write.
//!
//! Memory first: entries are drafted in the memtable before anything is logged, so that a write
//! that does not fit leaves nothing in the log. Then the log, which gives sequence numbers; then
//! the entries are linked under them; then they become visible. A memtable that is full makes way for another first.
//!
//! The operations of a batch are numbered as they stand, whatever their keyspaces, and become visible together.

use forerun_core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::cell::RefCell;
use std::iter;
use std::sync::Arc;

use forerun_core::sync::{OnceLock, PoisonError};

use super::batch_parts::{Fits, Part, prepare};
use super::keyspace_data::KeyspaceData;
use super::memtable_set::{MemTableSet, Needed};
use super::published_sequence::Hole;
use super::{Commit, Inner};
use crate::panics;
use crate::planted::{self, Defect};
use crate::{Access, Durability, Error, Op, Result, WriteBatch};

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
        /// Why no more writes are taken, if so.
        poison: OnceLock<Arc<Error>>,
    },
}

impl Writer {
    pub(super) fn unlogged(next_sequence: u64) -> Writer {
        Writer::Unlogged {
            next_sequence: AtomicU64::new(next_sequence),
            is_closed: AtomicBool::new(false),
            poison: OnceLock::new(),
        }
    }

    /// Why no more writes are taken, if so.
    pub(super) fn poison(&self) -> Option<Arc<Error>> {
        match self {
            Writer::Logged(commit) => commit.poison(),
            Writer::Unlogged { poison, .. } => poison.get().cloned(),
        }
    }

    /// Takes no more writes from now on, and says why.
    fn stop_for(&self, cause: Error) {
        match self {
            Writer::Logged(commit) => commit.stop_for(cause),
            Writer::Unlogged { poison, .. } => {
                tracing::error!(%cause, "the store takes no more writes");
                // What came first is what led to the rest.
                let _ = poison.set(Arc::new(cause));
            }
        }
    }

    /// Takes no more writes, and marks the log's end.
    pub(super) fn close(&self) -> Result<()> {
        match self {
            Writer::Logged(commit) => commit.close(),
            Writer::Unlogged {
                is_closed, poison, ..
            } => {
                is_closed.store(true, Ordering::Relaxed);
                poison.get().map_or(Ok(()), |cause| Err(poisoned(cause)))
            }
        }
    }
}

impl Inner {
    pub(super) fn write_one(
        &self,
        keyspace: &Arc<KeyspaceData>,
        op: Op<'_>,
        durability: Durability,
    ) -> Result<()> {
        // Encoded into memory that the thread keeps: a single write allocates nothing but its
        // entry.
        thread_local!(static SCRATCH: RefCell<WriteBatch> = const { RefCell::new(WriteBatch::new()) });
        match &self.writer {
            Writer::Unlogged { .. } => {
                let part = Part {
                    keyspace,
                    ops: iter::once((0, op)),
                };
                self.apply(part, 1, &[], false, durability).map(drop)
            }
            Writer::Logged(_) => SCRATCH.with_borrow_mut(|scratch| {
                scratch.clear();
                scratch.push_in(keyspace.id(), op)?;
                let part = Part {
                    keyspace,
                    ops: iter::once((0, op)),
                };
                let written = self.apply(part, 1, scratch.encoded(), false, durability);
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
            return Ok(self.published.last());
        }
        batch.check_store(self.number)?;
        match batch.keyspaces() {
            [] => self.write_to(&self.own, batch, durability),
            ids => match &self.keyspaces_of(ids)?[..] {
                [keyspace] => self.write_to(keyspace, batch, durability),
                several => self.apply_across(batch, several, durability),
            },
        }
    }

    /// [`write`](Self::write) for a batch that is of one keyspace.
    pub(super) fn write_to(
        &self,
        keyspace: &Arc<KeyspaceData>,
        batch: &WriteBatch,
        durability: Durability,
    ) -> Result<u64> {
        let (count, encoded, has_ranges) = (batch.len(), batch.encoded(), batch.has_ranges());
        let part = Part {
            keyspace,
            ops: (0..).zip(batch.ops()),
        };
        self.apply(part, count, encoded, has_ranges, durability)
    }

    fn keyspaces_of(&self, ids: &[u32]) -> Result<Vec<Arc<KeyspaceData>>> {
        let keyspaces = self.keyspaces.load();
        let by_id = |id: &u32| {
            keyspaces.by_id(*id).cloned().ok_or(Error::KeyspaceDropped {
                name: format!("number {id}"),
            })
        };
        ids.iter().map(by_id).collect()
    }

    /// Applies a batch of one keyspace.
    fn apply<'op>(
        &self,
        part: Part<'_, impl Iterator<Item = (u64, Op<'op>)> + Clone>,
        count: usize,
        encoded: &[u8],
        has_ranges: bool,
        durability: Durability,
    ) -> Result<u64> {
        self.check_takes_writes(durability)?;
        let ranges_bytes = match has_ranges {
            true => {
                let may_panic = part.keyspace.order().may_panic();
                panics::catch_if(may_panic, "checking a range", || part.check_ranges())?
            }
            false => 0,
        };
        self.slow_down(encoded.len());
        self.write_to_active(|active| {
            let Some(table) = active.table(part.keyspace.id()) else {
                return Ok(Attempt::NoTable(part.keyspace));
            };
            part.keyspace.check_takes_writes()?;
            let prepared = match table.memtable.prepare(part.entries().map(|(_, op)| op)) {
                Ok(prepared) => prepared,
                Err(Error::MemoryLimit { needed_bytes, .. }) => {
                    let needed_bytes = needed_bytes + ranges_bytes;
                    return Ok(Attempt::MemTableFull { needed_bytes });
                }
                Err(error) => return Err(error),
            };
            let needed = Needed {
                entries_bytes: prepared.bytes(),
                ranges_bytes,
            };
            if !active.take(needed) {
                let needed_bytes = needed.bytes();
                return Ok(Attempt::MemTableFull { needed_bytes });
            }
            let logged = self.log(encoded, count, durability);
            let first_sequence = logged.inspect_err(|_| active.give_back(needed))?;
            let last_sequence = first_sequence + count as u64 - 1;
            self.make_visible(first_sequence, last_sequence, || match has_ranges {
                true => part.publish(prepared, table, first_sequence),
                false => prepared.publish(first_sequence),
            })?;
            Ok(Attempt::Done(last_sequence))
        })
    }

    /// Applies a batch of several keyspaces.
    fn apply_across(
        &self,
        batch: &WriteBatch,
        keyspaces: &[Arc<KeyspaceData>],
        durability: Durability,
    ) -> Result<u64> {
        self.check_takes_writes(durability)?;
        let parts: Vec<_> = keyspaces
            .iter()
            .map(|keyspace| Part::of(batch, keyspace))
            .collect();
        let ranges_bytes = match batch.has_ranges() {
            true => panics::catch("checking a range", || {
                parts.iter().map(Part::check_ranges).sum::<Result<_>>()
            })?,
            false => 0,
        };
        self.slow_down(batch.encoded().len());
        self.write_to_active(|active| {
            for Part { keyspace, .. } in &parts {
                if active.table(keyspace.id()).is_none() {
                    return Ok(Attempt::NoTable(keyspace));
                }
                keyspace.check_takes_writes()?;
            }
            let entries = match prepare(active, &parts, ranges_bytes)? {
                Fits::Yes(entries) => entries,
                Fits::No { needed_bytes } => return Ok(Attempt::MemTableFull { needed_bytes }),
            };
            let logged = self.log(batch.encoded(), batch.len(), durability);
            let first_sequence = logged.inspect_err(|_| active.give_back(entries.needed))?;
            let last_sequence = first_sequence + batch.len() as u64 - 1;
            // Visible only when all are linked, and at once.
            self.make_visible(first_sequence, last_sequence, || {
                entries.publish(first_sequence);
            })?;
            Ok(Attempt::Done(last_sequence))
        })
    }

    /// Links the entries of operations that are in the log, and makes them visible.
    ///
    /// If that panics, these numbers stay a hole, which no later write may become visible behind: the store takes no more.
    fn make_visible(&self, first: u64, last: u64, link: impl FnOnce()) -> Result<()> {
        let linked = panics::catch("applying a batch", || {
            link();
            Ok(())
        });
        if let Err(panicked) = linked {
            if planted::is(Defect::PanicLeavesHole) {
                return Err(panicked);
            }
            // First no more writes, so that none comes that waits behind the hole and has nobody to tell it.
            let error = self.poison(panicked);
            self.published.leave_hole(first);
            return Err(error);
        }
        let mut first = first;
        if planted::is(Defect::BatchInTwoSteps) && first < last {
            let half = self.published.publish(first, first);
            half.map_err(|Hole| self.poisoned())?;
            self.work.nudge();
            first += 1;
        }
        let published = self.published.publish(first, last);
        published.map_err(|Hole| self.poisoned())
    }

    /// Runs what changes the store. If it panics, no more writes are taken: nobody can say what it has left half done.
    pub(super) fn guard<T>(
        &self,
        doing: &'static str,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        panics::catch(doing, work).map_err(|error| match error {
            Error::Panicked { .. } => self.poison(error),
            error => error,
        })
    }

    /// Takes no more writes from now on. Returns what they get.
    pub(super) fn poison(&self, cause: Error) -> Error {
        self.writer.stop_for(cause);
        self.work.nudge();
        self.poisoned()
    }

    /// What writes get where no more are taken.
    pub(super) fn poisoned(&self) -> Error {
        match self.writer.poison() {
            Some(cause) => poisoned(&cause),
            None => Error::Closed,
        }
    }

    /// Tries to write to the memtable set that takes writes, and makes room until that succeeds.
    fn write_to_active<'a>(
        &self,
        attempt: impl Fn(&MemTableSet) -> Result<Attempt<'a>>,
    ) -> Result<u64> {
        loop {
            // Held until the write is visible: a memtable set is frozen when no write to it is under way.
            let active = self.active.read().unwrap_or_else(PoisonError::into_inner);
            match attempt(&active)? {
                Attempt::Done(last_sequence) => return Ok(last_sequence),
                Attempt::NoTable(keyspace) => {
                    drop(active);
                    self.add_table(keyspace)?;
                }
                Attempt::MemTableFull { needed_bytes } => {
                    let full = active.number;
                    drop(active);
                    self.make_room_for_write(full, needed_bytes)?;
                }
            }
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
                let take = || next_sequence.fetch_add(count as u64, Ordering::Relaxed);
                Ok(self.clock.number(take))
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
                let take = || next_sequence.fetch_add(1, Ordering::Relaxed);
                Ok(self.clock.number(take))
            }
        }
    }

    pub(super) fn flush_wal(&self) -> Result<()> {
        self.check_takes_writes(Durability::Synced)?;
        match &self.writer {
            Writer::Logged(commit) => commit.log(&[], 0, true).map(drop),
            Writer::Unlogged { .. } => Ok(()),
        }
    }

    /// Refuses to change a store that was opened for reading only.
    pub(super) fn check_access(&self) -> Result<()> {
        match self.options.access {
            Access::ReadWrite => Ok(()),
            Access::ReadOnly => Err(Error::ReadOnly {
                path: self.path.clone(),
            }),
        }
    }

    /// Refuses what will fail anyway, before memory is taken for it.
    fn check_takes_writes(&self, durability: Durability) -> Result<()> {
        self.check_access()?;
        match &self.writer {
            Writer::Logged(commit) => commit.check_takes_writes(),
            Writer::Unlogged { .. } if durability == Durability::Synced => Err(Error::LogOff),
            // Relaxed: whether a write that races with closing is still taken does not matter,
            // since all of them are forgotten.
            Writer::Unlogged { is_closed, .. } if is_closed.load(Ordering::Relaxed) => {
                Err(Error::Closed)
            }
            Writer::Unlogged { poison, .. } => {
                poison.get().map_or(Ok(()), |cause| Err(poisoned(cause)))
            }
        }
    }
}

fn poisoned(cause: &Arc<Error>) -> Error {
    Error::Poisoned {
        cause: Arc::clone(cause),
    }
}

/// How an attempt to write to a memtable set ended.
enum Attempt<'a> {
    /// With this sequence number, the last.
    Done(u64),
    /// The keyspace has no memtable in it yet.
    NoTable(&'a Arc<KeyspaceData>),
    MemTableFull {
        needed_bytes: usize,
    },
}
