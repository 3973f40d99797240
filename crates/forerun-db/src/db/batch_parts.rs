//! The parts of a batch: which of its operations belong to which keyspace, and the memory that they
//! take before they become visible.

use std::sync::Arc;

use super::keyspace_data::KeyspaceData;
use super::memtable_set::{EMPTY_TABLE_BYTES, MemTableSet, Needed, empty_table_bytes};
use super::super_version::Table;
use crate::memtable::Prepared;
use crate::ranges::RangeRef;
use crate::{Error, Op, Ops, Result, WriteBatch};

/// The operations of a batch that belong to one keyspace, with their positions in the batch.
pub(super) struct Part<'a, I> {
    pub(super) keyspace: &'a Arc<KeyspaceData>,
    pub(super) ops: I,
}

impl<'a> Part<'a, ()> {
    pub(super) fn of(
        batch: &'a WriteBatch,
        keyspace: &'a Arc<KeyspaceData>,
    ) -> Part<'a, impl Iterator<Item = (u64, Op<'a>)> + Clone> {
        Part::of_ops(batch.ops(), keyspace)
    }

    /// The operations among these that belong to a keyspace.
    pub(super) fn of_ops<'op: 'a>(
        ops: Ops<'op>,
        keyspace: &'a Arc<KeyspaceData>,
    ) -> Part<'a, impl Iterator<Item = (u64, Op<'op>)> + Clone> {
        let id = keyspace.id();
        let ops = (0..).zip(ops.with_keyspaces());
        let ops = ops.filter_map(move |(index, (of, op))| (of == id).then_some((index, op)));
        Part { keyspace, ops }
    }
}

impl<'op, I: Iterator<Item = (u64, Op<'op>)> + Clone> Part<'_, I> {
    /// The operations that become entries of the memtable, with their positions in the batch: all
    /// but range deletions.
    pub(super) fn entries(&self) -> impl Iterator<Item = (u64, Op<'op>)> + Clone {
        let is_entry = |(_, op): &(u64, Op<'_>)| !matches!(op, Op::DeleteRange { .. });
        self.ops.clone().filter(is_entry)
    }

    /// The range deletions. `first_sequence` is the sequence number of the batch's first operation.
    fn tombstones(&self, first_sequence: u64) -> impl Iterator<Item = RangeRef<'op>> {
        self.ops.clone().filter_map(move |(index, op)| match op {
            Op::DeleteRange { start, end } => Some(RangeRef {
                start,
                end,
                sequence: first_sequence + index,
            }),
            Op::Put { .. } | Op::Delete { .. } => None,
        })
    }

    /// Refuses empty ranges and ranges that end before they start. Returns the memory that the
    /// ranges take, in bytes.
    pub(super) fn check_ranges(&self) -> Result<usize> {
        let order = self.keyspace.order();
        self.tombstones(0)
            .map(|range| {
                let (start, end) = (range.start, range.end);
                if order.compare(start, end).is_lt() {
                    Ok(range.used_bytes())
                } else {
                    Err(Error::EmptyRange {
                        start: start.to_vec(),
                        end: end.to_vec(),
                    })
                }
            })
            .sum()
    }

    /// The memory that its range deletions take, in bytes.
    pub(super) fn ranges_bytes(&self) -> usize {
        self.tombstones(0).map(|range| range.used_bytes()).sum()
    }

    /// Revokes what scans skip, where its entries, which are linked and not yet visible, put keys.
    pub(super) fn revoke_dead_ranges(&self, table: &Table) {
        let puts = self.ops.clone().filter_map(|(_, op)| match op {
            Op::Put { key, .. } => Some(key),
            Op::Delete { .. } | Op::DeleteRange { .. } => None,
        });
        table.dead_ranges.revoke(self.keyspace.order(), puts);
    }

    /// Links its entries and adds its range deletions to a memtable. `first_sequence` is the
    /// sequence number of the batch's first operation.
    pub(super) fn publish(&self, prepared: Prepared<'_>, table: &Table, first_sequence: u64) {
        let sequences = self.entries().map(|(index, _)| first_sequence + index);
        prepared.publish_as(sequences);
        let mut tombstones = self.tombstones(first_sequence).peekable();
        if tombstones.peek().is_some() {
            table.ranges.add(tombstones);
        }
    }
}

/// The parts of a batch, in memory and not yet visible.
pub(super) struct Entries<'a, I> {
    memtables: &'a MemTableSet,
    parts: Vec<(&'a Part<'a, I>, &'a Table, Prepared<'a>)>,
    /// The memory reserved in the memtable set.
    pub(super) needed: Needed,
}

/// Whether the parts of a batch fit into a memtable set.
pub(super) enum Fits<'a, I> {
    Yes(Entries<'a, I>),
    No { needed_bytes: usize },
}

/// Reserves memory for the parts of a batch in existing memtables, for all of them or for none.
/// Their range deletions take `ranges_bytes`.
pub(super) fn prepare<'a, 'op, I: Iterator<Item = (u64, Op<'op>)> + Clone>(
    memtables: &'a MemTableSet,
    parts: &'a [Part<'a, I>],
    ranges_bytes: usize,
) -> Result<Fits<'a, I>> {
    let (mut prepared, mut fits) = (Vec::with_capacity(parts.len()), true);
    let mut needed = Needed {
        entries_bytes: 0,
        ranges_bytes,
    };
    for part in parts {
        let Some(table) = memtables.table(part.keyspace.id()) else {
            continue;
        };
        let ops = part.entries().map(|(_, op)| op);
        match table.memtable.prepare_entries(ops) {
            Ok(entries) => {
                needed.entries_bytes += entries.bytes();
                prepared.push((part, &**table, entries));
            }
            // Try the others too: the memory needed is the sum over all parts.
            Err(Error::MemoryLimit { needed_bytes, .. }) => {
                needed.entries_bytes += needed_bytes;
                fits = false;
            }
            Err(error) => return Err(error),
        }
    }
    if !fits || !memtables.reserve(needed) {
        for (_, _, entries) in prepared {
            memtables.give_back(entries);
        }
        let at_least = needed.bytes() + parts.len() * EMPTY_TABLE_BYTES;
        let empty_bytes = parts.len() * empty_table_bytes(memtables.limit_bytes.max(at_least));
        return Ok(Fits::No {
            needed_bytes: needed.bytes() + empty_bytes,
        });
    }
    // Last, so that an index never takes memory that the entries need.
    for (_, _, entries) in &prepared {
        memtables.grow_index(entries);
    }
    Ok(Fits::Yes(Entries {
        memtables,
        parts: prepared,
        needed,
    }))
}

impl<'op, I: Iterator<Item = (u64, Op<'op>)> + Clone> Entries<'_, I> {
    /// Gives their memory back, for entries that could not be logged.
    pub(super) fn give_back(self) {
        for (_, _, entries) in self.parts {
            self.memtables.give_back(entries);
        }
        self.memtables.release(self.needed);
    }

    /// Links the entries. `first_sequence` is the sequence number of the batch's first operation.
    pub(super) fn publish(self, first_sequence: u64) {
        let has_ranges = self.needed.ranges_bytes > 0;
        for (part, table, entries) in self.parts {
            if has_ranges {
                part.publish(entries, table, first_sequence)
            } else {
                let sequences = part.ops.clone().map(|(index, _)| first_sequence + index);
                entries.publish_as(sequences);
            }
            part.revoke_dead_ranges(table);
        }
    }
}
