//! Installing changes of the tree: durable first, then visible.
//!
//! ```text
//!   flush      memtables -> runs in level 0 ┐
//!   compact    runs -> fewer runs           ├─> manifest, synced -> super versions
//!   ingest     entries -> runs              ┘      -> old memtables, runs and log segments go
//! ```
//!
//! A change is durable before readers see it, and what it replaces is removed afterwards. So after
//! a crash, or if the manifest cannot be written, the store still has everything: in memory and in
//! the log, or in the old runs.

use std::sync::Arc;

use forerun_core::sync::MutexGuard;

use super::Inner;
use super::directory::DirGuard;
use super::keyspace_data::KeyspaceData;
use super::memtable_set::{FrozenMemTables, MemTableSet};
use super::super_version::Table;
use crate::Result;
use crate::tree::catalog::Catalog;
use crate::tree::pending_edits::PendingEdits;
use crate::wal::log_file;

/// The change of memtables that goes with a change of the runs.
pub(super) enum MemTableChange<'a> {
    Same,
    /// The memtables of this set, the oldest, are now in runs.
    Flushed(&'a FrozenMemTables),
    /// The memtables are empty: everything up to a sequence number is in runs. `table` replaces the
    /// keyspace's active memtable.
    Ingested {
        sequence: u64,
        table: &'a Arc<Table>,
    },
}

impl Inner {
    /// Replaces the oldest memtable set by its runs. Returns the bytes of the runs.
    pub(super) fn install_flush(
        &self,
        guard: &DirGuard<'_>,
        edits: PendingEdits,
        flushed: &FrozenMemTables,
    ) -> Result<u64> {
        let runs = edits.new_runs();
        let bytes: u64 = runs.map(|run| run.meta().file_bytes).sum();
        self.install(guard, edits, MemTableChange::Flushed(flushed))?;
        self.tree.count(|counts| {
            counts.flushes += 1;
            counts.flushed_bytes += bytes;
        });
        Ok(bytes)
    }

    /// Removes the log segments before this one, which the manifest no longer needs.
    fn remove_segments(&self, first_segment: u64) {
        let Some(commit) = self.write_path.commit() else {
            return;
        };
        let segments = commit.segments();
        for number in segments.before(first_segment) {
            let path = log_file::path(&self.path, number);
            match self.io.remove(&path) {
                Ok(()) => {
                    segments.forget(number);
                    commit.unsynced().forget(number);
                }
                // Tried again after the next flush and at the next opening.
                Err(error) => {
                    let path = path.display();
                    tracing::warn!(%path, %error, "cannot remove a segment of the log that is in \
                        runs");
                }
            }
        }
    }

    /// Adds runs to a keyspace's tree that are newer than everything else and whose versions all
    /// have this sequence number. The memtables are empty, and `active` is held for writing.
    pub(super) fn install_ingestion(
        &self,
        guard: &DirGuard<'_>,
        keyspace: &Arc<KeyspaceData>,
        edits: PendingEdits,
        sequence: u64,
        active: &mut MemTableSet,
    ) -> Result<()> {
        // A reader of the old super version must not find later writes in its memtable while it
        // misses the ingestion, which comes before them. So later writes get a new memtable.
        let limit_bytes = active.limit_bytes;
        let table = self
            .memtables
            .new_table(keyspace, &self.options, limit_bytes)?;
        let bytes: u64 = edits.new_runs().map(|run| run.meta().file_bytes).sum();
        let memtables = MemTableChange::Ingested {
            sequence,
            table: &table,
        };
        self.install(guard, edits, memtables)?;
        self.memtables.replace_table(active, keyspace, table);
        self.tree.count(|counts| {
            counts.ingestions += 1;
            counts.ingested_bytes += bytes;
        });
        Ok(())
    }

    /// Makes changes of the runs durable, shows them to readers, and removes the log segments that
    /// are now obsolete. The guard proves that the directory is still ours.
    pub(super) fn install(
        &self,
        guard: &DirGuard<'_>,
        edits: PendingEdits,
        memtables: MemTableChange<'_>,
    ) -> Result<()> {
        self.install_in(self.tree.catalog(), guard, edits, memtables)
    }

    /// [`install`](Self::install) for a caller that has locked the catalog.
    pub(super) fn install_in(
        &self,
        mut catalog: MutexGuard<'_, Catalog>,
        _guard: &DirGuard<'_>,
        edits: PendingEdits,
        memtables: MemTableChange<'_>,
    ) -> Result<()> {
        let flushed_sequence = match &memtables {
            MemTableChange::Same => None,
            MemTableChange::Flushed(flushed) => Some(flushed.last_sequence),
            MemTableChange::Ingested { sequence, .. } => Some(*sequence),
        };
        let logged =
            flushed_sequence.map(|sequence| self.write_path.logged_after(&catalog, sequence));
        let changed = edits.keyspaces();
        catalog.install(edits, logged.as_ref())?;
        let keyspaces = self.keyspaces.load();
        for id in changed {
            let (Some(keyspace), Some(runs)) = (keyspaces.by_id(id), catalog.runs_of(id)) else {
                continue;
            };
            match &memtables {
                MemTableChange::Same => keyspace.show_runs(runs),
                MemTableChange::Flushed(flushed) => {
                    keyspace.show_flushed(runs, flushed.memtables.table(id));
                }
                // Advance the sequence number first. Readers take no lock: one that sees the new
                // runs then reads at a number that covers them, and one that does not has the old
                // super version, in which nothing has that number.
                MemTableChange::Ingested { sequence, table } => self.snapshots.while_locked(|| {
                    // Nothing is published after a hole, and then the log refuses an ingestion.
                    if self.write_path.publish(*sequence, *sequence).is_ok() {
                        keyspace.show_ingested(runs, table);
                    }
                }),
            }
        }
        drop(catalog);
        self.note_pressure();
        if let Some(logged) = logged {
            self.remove_segments(logged.first_segment);
        }
        Ok(())
    }
}
