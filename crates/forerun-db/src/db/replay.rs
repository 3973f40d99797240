//! Replaying the log when a store is opened.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::batch_parts::{Fits, Part, prepare};
use super::keyspaces::KeyspaceSet;
use super::loaded::Loaded;
use super::memtable_set::MemTableSet;
use super::memtables::table_bytes_for;
use crate::ranges::RangeRef;
use crate::tree::build::write_runs;
use crate::tree::pending_edits::PendingEdits;
use crate::tree::range_run::write_range_run;
use crate::tree::retain::Retain;
use crate::wal::record::Record;
use crate::{Access, Error, Op, Options, Result};

/// Replays the log into memtables, and into runs when it holds more than they can take.
pub(super) struct Replay<'a> {
    loaded: &'a Loaded,
    keyspaces: &'a KeyspaceSet,
    options: &'a Options,
    contents: Contents,
}

/// What the log held beyond the runs.
pub(super) struct Contents {
    /// Full memtable sets of a read-only store, which writes no runs.
    pub(super) older: Vec<MemTableSet>,
    pub(super) memtables: MemTableSet,
    /// The edits for the runs written so far, with their range deletions.
    pub(super) edits: PendingEdits,
    /// The last sequence number in runs, these included.
    pub(super) flushed_sequence: u64,
}

impl<'a> Replay<'a> {
    pub(super) fn new(
        loaded: &'a Loaded,
        keyspaces: &'a KeyspaceSet,
        options: &'a Options,
        flushed_sequence: u64,
    ) -> Result<Replay<'a>> {
        let (own, limit_bytes) = (&loaded.keyspaces.own, options.memtable_bytes);
        let table = own.new_table(options, limit_bytes, &loaded.regions)?;
        Ok(Replay {
            loaded,
            keyspaces,
            options,
            contents: Contents {
                older: Vec::new(),
                memtables: MemTableSet::new(0, limit_bytes, own, table),
                edits: loaded.tree.edits(),
                flushed_sequence,
            },
        })
    }

    pub(super) fn finish(self) -> Contents {
        self.contents
    }

    pub(super) fn apply(&mut self, record: &Record<'_>) -> Result<()> {
        self.loaded
            .clock
            .note_recovered(u64::from(record.written), record.first_sequence);
        if let Some(needed_bytes) = self.insert(record)? {
            self.make_room_for_write(record.first_sequence, needed_bytes)?;
            if let Some(needed_bytes) = self.insert(record)? {
                return Err(Error::MemoryLimit {
                    needed_bytes,
                    used_bytes: 0,
                    limit_bytes: self.contents.memtables.limit_bytes,
                });
            }
        }
        Ok(())
    }

    /// Puts a record's operations into memtables. If they do not fit, returns how much memory they
    /// need.
    fn insert(&mut self, record: &Record<'_>) -> Result<Option<usize>> {
        if record.greatest_keyspace == 0 {
            let loaded = self.loaded;
            let part = Part {
                keyspace: &loaded.keyspaces.own,
                ops: (0..).zip(record.ops.clone()),
            };
            return self.insert_parts(record, &[part]);
        }
        let ids: BTreeSet<u32> = record.ops.clone().with_keyspaces().map(|of| of.0).collect();
        // Operations of an unknown keyspace were written before it was dropped.
        let known = self.keyspaces;
        let keyspaces = ids.into_iter().filter_map(|id| known.by_id(id));
        let parts: Vec<_> = keyspaces
            .map(|keyspace| Part::of_ops(record.ops.clone(), keyspace))
            .collect();
        self.insert_parts(record, &parts)
    }

    /// Puts the parts of a record into the memtable set. If they do not fit, returns how much
    /// memory they need.
    fn insert_parts<'op>(
        &mut self,
        record: &Record<'_>,
        parts: &[Part<'_, impl Iterator<Item = (u64, Op<'op>)> + Clone>],
    ) -> Result<Option<usize>> {
        let memtables = &mut self.contents.memtables;
        for Part { keyspace, .. } in parts {
            if memtables.table(keyspace.id()).is_none() {
                let limit_bytes = memtables.limit_bytes;
                let table = keyspace.new_table(self.options, limit_bytes, &self.loaded.regions)?;
                memtables.add(keyspace, table);
                memtables.trim(&self.loaded.regions, self.options.memory_limit_bytes);
            }
        }
        let ranges_bytes = parts.iter().map(Part::ranges_bytes).sum();
        match prepare(memtables, parts, ranges_bytes)? {
            Fits::Yes(entries) => {
                entries.publish(record.first_sequence);
                for Part { keyspace, .. } in parts {
                    memtables.build_index_if_due(keyspace);
                }
                Ok(None)
            }
            Fits::No { needed_bytes } => Ok(Some(needed_bytes)),
        }
    }

    /// Writes the current memtables to runs and starts new ones that can hold a batch of this size.
    fn make_room_for_write(&mut self, next_sequence: u64, needed_bytes: usize) -> Result<()> {
        let limit_bytes = table_bytes_for(needed_bytes).max(self.options.memtable_bytes);
        let (loaded, options) = (self.loaded, self.options);
        let own = &loaded.keyspaces.own;
        let table = own.new_table(options, limit_bytes, &loaded.regions)?;
        let next = MemTableSet::new(0, limit_bytes, own, table);
        let full = std::mem::replace(&mut self.contents.memtables, next);
        if options.access == Access::ReadOnly {
            self.contents.older.push(full);
            let older = self.contents.older.iter().map(|of| of.limit_bytes);
            let used_bytes = older.sum::<usize>();
            let max_bytes = options.memory_limit_bytes;
            return if used_bytes.saturating_add(limit_bytes) <= max_bytes {
                Ok(())
            } else {
                Err(Error::MemoryLimit {
                    needed_bytes: limit_bytes,
                    used_bytes,
                    limit_bytes: max_bytes,
                })
            };
        }
        for (keyspace, table) in full.tables() {
            // There are no snapshots yet. The contents of older runs are not known here, so
            // deletions stay.
            let mut retain = Retain::new(keyspace.order().clone(), Vec::new());
            let edit = self.contents.edits.edit_mut(keyspace.id());
            if !table.ranges.is_empty() {
                retain = retain.with_ranges(vec![Arc::clone(&table.ranges)]);
            }
            let stop = Arc::default();
            let build = loaded.tree.build(keyspace, 0, u64::MAX, &stop);
            let mut versions = table.memtable.versions();
            let runs = write_runs(&mut versions, &mut retain, |_| true, &build)?;
            edit.added.extend(runs.into_iter().map(|run| (0, run)));
            let ranges = table.ranges.list();
            let run = write_range_run(ranges.iter().collect(), &build)?;
            edit.range_runs.extend(run);
            edit.ranges.extend(ranges.iter().map(RangeRef::to_owned));
        }
        self.contents.flushed_sequence = next_sequence - 1;
        drop(full);
        self.contents
            .memtables
            .trim(&loaded.regions, options.memory_limit_bytes);
        Ok(())
    }
}
