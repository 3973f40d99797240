//! The path of a write.
//!
//! Memory comes first: entries are copied into the memtable before anything is logged, so a write
//! that does not fit leaves nothing in the log. Then the log assigns sequence numbers, the entries
//! are linked under them, and they become visible. If a memtable is full, an empty one replaces it
//! first.
//!
//! The operations of a batch are numbered in their order, whatever their keyspaces, and become
//! visible together.

use std::cell::RefCell;
use std::iter;
use std::sync::Arc;

use forerun_core::sync::RwLockReadGuard;

use super::Inner;
use super::batch_parts::{Fits, Part, prepare};
use super::keyspace_data::KeyspaceData;
use super::memtable_set::{MemTableSet, Needed, empty_table_bytes};
use super::memtables::HeldFor;
use super::notify::{For, WriteStall};
use crate::panics;
use crate::{Access, Durability, Error, Op, Result, WriteBatch};

/// The buffer capacity that a thread keeps for encoding single writes.
const KEPT_SCRATCH_BYTES: usize = 64 << 10;

/// The active memtables while a write is applied to them. They are dropped first: the listener is
/// called without the lock.
struct Entered<'a> {
    active: RwLockReadGuard<'a, MemTableSet>,
    /// The write has waited for them.
    _stall: Option<WriteStall<'a>>,
}

impl Inner {
    pub(super) fn write_one(
        &self,
        keyspace: &Arc<KeyspaceData>,
        op: Op<'_>,
        durability: Option<Durability>,
    ) -> Result<()> {
        let durability = durability.unwrap_or(self.options.durability);
        // Encoded into a buffer that the thread keeps, so a single write allocates nothing but its
        // entry.
        thread_local!(static SCRATCH: RefCell<WriteBatch> =
            const { RefCell::new(WriteBatch::new()) });
        if self.write_path.commit().is_none() {
            let part = Part {
                keyspace,
                ops: iter::once((0, op)),
            };
            return self.apply(part, 1, &[], false, durability).map(drop);
        }
        SCRATCH.with_borrow_mut(|scratch| {
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
        })
    }

    pub(super) fn write(&self, batch: &WriteBatch, durability: Durability) -> Result<u64> {
        batch.check()?;
        if batch.is_empty() {
            if durability == Durability::Synced {
                self.flush_wal()?;
            }
            return Ok(self.write_path.visible_sequence());
        }
        batch.check_store(self.keyspaces.store)?;
        match batch.keyspaces() {
            [] => self.write_to(&self.keyspaces.own, batch, durability),
            ids => {
                let keyspaces = self.keyspaces.load().by_ids(ids)?;
                match &keyspaces[..] {
                    [keyspace] => self.write_to(keyspace, batch, durability),
                    several => self.apply_across(batch, several, durability),
                }
            }
        }
    }

    /// [`write`](Self::write) for a batch of one keyspace.
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

    /// Applies a batch of one keyspace.
    fn apply<'op>(
        &self,
        part: Part<'_, impl Iterator<Item = (u64, Op<'op>)> + Clone>,
        count: usize,
        encoded: &[u8],
        has_ranges: bool,
        durability: Durability,
    ) -> Result<u64> {
        let begun = self.counters.begin_write(durability);
        self.check_takes_writes(durability)?;
        let ranges_bytes = if has_ranges {
            let may_panic = part.keyspace.order().may_panic();
            panics::catch_if(may_panic, "checking a range", || part.check_ranges())?
        } else {
            0
        };
        self.wait_for_level0(iter::once(&**part.keyspace), encoded.len())?;
        self.write_to_active(|active| {
            let Some(table) = active.table(part.keyspace.id()) else {
                return Ok(Attempt::NoTable(part.keyspace));
            };
            part.keyspace.check_takes_writes()?;
            let ops = part.entries().map(|(_, op)| op);
            let prepared = match table.memtable.prepare_entries(ops) {
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
            if !active.reserve(needed) {
                active.give_back(prepared);
                let needed_bytes = needed.bytes();
                return Ok(Attempt::MemTableFull { needed_bytes });
            }
            // After the reservation, so that the index never takes memory that the entries need.
            active.grow_index(&prepared);
            let logged = self
                .write_path
                .log(encoded, count, durability, &self.counters);
            let first_sequence = match logged {
                Ok(first_sequence) => first_sequence,
                Err(error) => {
                    active.give_back(prepared);
                    active.release(needed);
                    return Err(error);
                }
            };
            let last_sequence = first_sequence + count as u64 - 1;
            self.make_visible(first_sequence, last_sequence, || {
                if has_ranges {
                    part.publish(prepared, table, first_sequence)
                } else {
                    prepared.publish_as(first_sequence..)
                }
                part.revoke_dead_ranges(table);
            })?;
            // Only now, because later writers wait until the entries are visible.
            active.build_index_if_due(part.keyspace);
            Ok(Attempt::Done(last_sequence))
        })
        .inspect(|_| self.counters.end_write(begun, durability))
    }

    /// Applies a batch of several keyspaces.
    fn apply_across(
        &self,
        batch: &WriteBatch,
        keyspaces: &[Arc<KeyspaceData>],
        durability: Durability,
    ) -> Result<u64> {
        let begun = self.counters.begin_write(durability);
        self.check_takes_writes(durability)?;
        let parts: Vec<_> = keyspaces
            .iter()
            .map(|keyspace| Part::of(batch, keyspace))
            .collect();
        let ranges_bytes = if batch.has_ranges() {
            panics::catch("checking a range", || {
                parts.iter().map(Part::check_ranges).sum::<Result<_>>()
            })?
        } else {
            0
        };
        let written_to = keyspaces.iter().map(|keyspace| &**keyspace);
        self.wait_for_level0(written_to, batch.encoded().len())?;
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
            let (encoded, count) = (batch.encoded(), batch.len());
            let logged = self
                .write_path
                .log(encoded, count, durability, &self.counters);
            let first_sequence = match logged {
                Ok(first_sequence) => first_sequence,
                Err(error) => {
                    entries.give_back();
                    return Err(error);
                }
            };
            let last_sequence = first_sequence + count as u64 - 1;
            // They become visible together, once all are linked.
            self.make_visible(first_sequence, last_sequence, || {
                entries.publish(first_sequence);
            })?;
            for Part { keyspace, .. } in &parts {
                active.build_index_if_due(keyspace);
            }
            Ok(Attempt::Done(last_sequence))
        })
        .inspect(|_| self.counters.end_write(begun, durability))
    }

    /// Links the entries of operations that are already in the log, and makes them visible.
    ///
    /// If that panics, their sequence numbers remain a hole, and no later write may become visible:
    /// the store takes no more writes.
    fn make_visible(&self, first: u64, last: u64, link: impl FnOnce()) -> Result<()> {
        let linked = panics::catch("applying a batch", || {
            link();
            Ok(())
        });
        if let Err(panicked) = linked {
            // Stop writes first, so that none waits behind the hole with no one to wake it.
            let error = self.poison(panicked);
            self.write_path.leave_hole(first);
            return Err(error);
        }
        self.write_path.publish(first, last)
    }

    /// Runs an operation that changes the store. If it panics, the store takes no more writes,
    /// since nothing is known about the state it left.
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

    /// Stops taking writes. Returns the error that they get from now on.
    pub(super) fn poison(&self, cause: Error) -> Error {
        self.write_path.stop_for(cause);
        self.work.notify();
        self.write_path.poisoned()
    }

    /// Tries to write to the active memtable set, and replaces the set when it is full, until the
    /// write succeeds.
    fn write_to_active<'a>(
        &self,
        attempt: impl Fn(&MemTableSet) -> Result<Attempt<'a>>,
    ) -> Result<u64> {
        loop {
            // Held until the write is visible: a memtable set is frozen only when no write to it is
            // in progress. So a synced write holds it while the log is synced. Meanwhile others
            // would only wait for the log instead.
            let entered = match self.memtables.try_read_active() {
                Ok(active) => Entered {
                    active,
                    _stall: None,
                },
                Err(held_for) => self.wait_for_active(held_for),
            };
            let active = &entered.active;
            match attempt(active)? {
                Attempt::Done(last_sequence) => return Ok(last_sequence),
                Attempt::NoTable(keyspace) => {
                    let full = (!active.takes_another_table()).then_some(active.number);
                    let needed_bytes = empty_table_bytes(active.limit_bytes);
                    drop(entered);
                    match full {
                        None => self.add_table(keyspace)?,
                        Some(full) => self.make_room_for_write(full, needed_bytes)?,
                    }
                }
                Attempt::MemTableFull { needed_bytes } => {
                    let full = active.number;
                    drop(entered);
                    self.make_room_for_write(full, needed_bytes)?;
                }
            }
        }
    }

    /// Waits for the active memtables. If their holder flushes, the write is stalled until it has
    /// them. Otherwise another write is to replace or add one.
    #[cold]
    fn wait_for_active(&self, held_for: Option<HeldFor>) -> Entered<'_> {
        let mut stall = None;
        let lock = || self.memtables.read_active();
        let active = self.wait_for_held(For::Write, held_for, &mut stall, lock);
        stall.iter_mut().for_each(WriteStall::stop_clock);
        Entered {
            active,
            _stall: stall,
        }
    }

    /// Makes every write that has already returned durable.
    pub(super) fn flush_wal(&self) -> Result<()> {
        self.check_access()?;
        self.write_path.flush_wal()
    }

    /// Refuses changes to a store that was opened read-only.
    pub(super) fn check_access(&self) -> Result<()> {
        match self.options.access {
            Access::ReadWrite => Ok(()),
            Access::ReadOnly => Err(Error::ReadOnly {
                path: self.path.clone(),
            }),
        }
    }

    /// Refuses writes that would fail anyway, before memory is reserved for them.
    fn check_takes_writes(&self, durability: Durability) -> Result<()> {
        self.check_access()?;
        self.write_path.check_takes_writes(durability)
    }
}

/// The result of an attempt to write to a memtable set.
enum Attempt<'a> {
    /// The batch is written; this is its last sequence number.
    Done(u64),
    /// The keyspace has no memtable in the set yet.
    NoTable(&'a Arc<KeyspaceData>),
    MemTableFull {
        needed_bytes: usize,
    },
}
