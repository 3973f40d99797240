//! From memory to disk: an empty memtable set replaces a full one, whose entries become runs.
//!
//! ```text
//!   writer   memtable set full -> memory for another? -> freeze it, add a new one -> write on
//!                                   │ no: wait
//!   flush    oldest frozen set -> a run per keyspace in level 0, by several threads -> manifest
//!                              -> drop the memtables, remove old log segments
//! ```
//!
//! The memory limit also pushes back. A writer waits while the memtables, together with the one it
//! needs, would exceed [`Options::memory_limit_bytes`](crate::Options::memory_limit_bytes), and
//! while level 0 of its keyspace is so deep that reads would suffer. Before that point, such writes
//! are slowed down to a rate that compaction can sustain.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use forerun_core::sync::{SIMULATED, time};

use super::Inner;
use super::background_work::{FailOn, Task};
use super::keyspace_data::KeyspaceData;
use super::memtable_set::MemTableSet;
use super::memtables::Size;
use super::notify::{For, WriteStall};
use super::super_version::Table;
use crate::events::WriteStallReason;
use crate::ranges::RangeRef;
use crate::tree::build::write_runs;
use crate::tree::levels::Edit;
use crate::tree::parallel::{Threads, in_order};
use crate::tree::pending_edits::PendingEdits;
use crate::tree::range_run::{RANGE_RUNS_MAX, write_range_run};
use crate::tree::retain::Retain;
use crate::{Background, Error, Result};

/// How long a caller without background threads waits until it looks for work again.
const OTHERS_WAIT_MAX: Duration = Duration::from_millis(10);

/// Memory of memtables that is worth a thread: it takes tens of milliseconds to write.
const FLUSH_BYTES_PER_THREAD: usize = 4 << 20;

impl Inner {
    /// Adds a memtable for a keyspace to the active set, unless another thread has done so.
    pub(super) fn add_table(&self, keyspace: &Arc<KeyspaceData>) -> Result<()> {
        let mut stall = None;
        let mut active = self
            .memtables
            .try_write_active()
            .unwrap_or_else(|held_for| {
                let lock = || self.memtables.write_active();
                self.wait_for_held(For::Write, held_for, &mut stall, lock)
            });
        stall.iter_mut().for_each(WriteStall::stop_clock);
        keyspace.check_takes_writes()?;
        if active.table(keyspace.id()).is_none() {
            let limit_bytes = active.limit_bytes;
            let table = self
                .memtables
                .new_table(keyspace, &self.options, limit_bytes)?;
            // Show it to readers first, so that they find what becomes visible.
            keyspace.show_table(&table);
            self.memtables.add_table(&mut active, keyspace, table);
        }
        Ok(())
    }

    /// Freezes the active memtable set and puts a new one of this size in its place. The caller
    /// holds `active` for writing and has the reservation.
    pub(super) fn freeze(&self, active: &mut MemTableSet, limit_bytes: usize) -> Result<()> {
        if self.write_path.has_hole() {
            // Some entries in it will never become visible. Only replaying the log can decide which
            // ones are kept.
            return Err(self.write_path.poisoned());
        }
        let own = &self.keyspaces.own;
        let table = self.memtables.new_table(own, &self.options, limit_bytes)?;
        let next = MemTableSet::new(active.number + 1, limit_bytes, own, table);
        // No write is in progress, so all earlier ones are visible, and are in this memtable set or
        // an older one.
        let last_sequence = self.write_path.visible_sequence();
        self.memtables.freeze(active, next, last_sequence);
        self.work.notify();
        Ok(())
    }

    /// Flushes everything while `active` is held for writing, so that no new write comes in.
    /// Afterwards the memtables are empty.
    pub(super) fn flush_under_lock(&self, active: &mut MemTableSet) -> Result<()> {
        let fail_on = self.retry_flush();
        let is_done = || {
            let is_done = self.memtables.is_flushed();
            self.work.done_or_fails(is_done, Task::Flush, fail_on)
        };
        self.wait_until(is_done)?;
        if !active.is_empty() {
            self.freeze(active, self.memtables.bytes_if_flushed(active))?;
            self.wait_until(is_done)?;
        }
        Ok(())
    }

    /// Retries a failed flush at once, for a caller that waits for it.
    fn retry_flush(&self) -> FailOn {
        let now = time::now();
        self.work.retry(now);
        FailOn::Since(now)
    }

    /// Waits for flushes and compactions, or runs them, until `is_done` is satisfied or fails.
    pub(super) fn wait_until(&self, mut is_done: impl FnMut() -> Result<bool>) -> Result<()> {
        loop {
            let events = self.work.event_count().ok_or(Error::Closed)?;
            if is_done()? {
                return Ok(());
            }
            if let Some(panicked) = self.work.panicked() {
                return Err(panicked);
            }
            match self.options.background {
                Background::Caller => {
                    // What the caller waits for may be in the hands of another thread.
                    if !self.run_all_work()? {
                        self.work.wait_timeout(events, OTHERS_WAIT_MAX);
                    }
                }
                Background::Threads => self.work.wait(events),
            }
        }
    }

    /// Delays a write of `bytes` to keyspaces of which one has a deep level 0, and stops it while
    /// one is full. Writes to other keyspaces go on.
    #[inline]
    pub(super) fn wait_for_level0<'k>(
        &self,
        keyspaces: impl Iterator<Item = &'k KeyspaceData> + Clone,
        bytes: usize,
    ) -> Result<()> {
        if keyspaces.clone().any(KeyspaceData::is_slow) {
            let pause = self.write_controller.pause(bytes, self.work.stop_flag())?;
            self.counters.count_slowed(pause);
        }
        for full in keyspaces.filter(|keyspace| keyspace.is_full()) {
            self.wait_for_compaction_of(full)?;
        }
        Ok(())
    }

    #[cold]
    fn wait_for_compaction_of(&self, full: &KeyspaceData) -> Result<()> {
        let _stall = self.begin_stall(WriteStallReason::Level0 {
            keyspace: full.name().to_owned(),
        });
        self.wait_until(|| {
            // As in `note_pressure`: whoever notes last has seen the newest runs.
            let one_at_a_time = self.tree.lock_pressure();
            full.note_level0();
            drop(one_at_a_time);
            self.work
                .done_or_fails(!full.is_full(), Task::Compact, FailOn::Repeated)
        })
    }

    /// Decides whether to slow down or stop writes, and which snapshots keep obsolete versions,
    /// after the runs have changed.
    pub(super) fn note_pressure(&self) {
        // Whoever notes last has seen the newest runs.
        let _one_at_a_time = self.tree.lock_pressure();
        let keyspaces = self.keyspaces.load();
        let runs_left = keyspaces.iter().filter_map(|of| of.note_level0());
        self.write_controller.adapt(runs_left.min());
        let obsolete_from = keyspaces.iter().filter_map(|of| {
            let version = of.version.load();
            // Readers of all of them see what they cover no more.
            let of_ranges = version.ranges.largest_sequence();
            let of_ranges = (!version.ranges.is_empty()).then_some(of_ranges);
            version
                .levels
                .obsolete_from()
                .into_iter()
                .chain(of_ranges)
                .chain(version.levels.deletions().dense_from())
                .min()
        });
        let obsolete_from = obsolete_from.min().unwrap_or(u64::MAX);
        self.tree.set_obsolete_from(obsolete_from);
        let ranges = |of: &Arc<KeyspaceData>| of.version.load().ranges.used_bytes();
        self.memtables
            .note_flushed_ranges(keyspaces.iter().map(ranges).sum());
    }

    /// Flushes the oldest full memtable set. Returns `false` if there is none.
    pub(super) fn flush_one(&self) -> Result<bool> {
        let guard = self.directory.enter()?;
        let _one_at_a_time = self.tree.lock_flushing();
        let Some(oldest) = self.memtables.oldest_frozen() else {
            return Ok(false);
        };
        self.tree.catalog().write_again()?;
        self.notify_of_flush(oldest, |oldest, begun| {
            let edits = self.write_tables(&oldest.memtables)?;
            let written_bytes = self.install_flush(&guard, edits, &oldest)?;
            // Before it is gone: who waits for that then finds the flush in the statistics.
            self.counters.flush.record(time::elapsed(begun));
            // Release it only now, when only readers still hold it: a writer that waits for memory
            // waits for readers only briefly.
            drop(oldest);
            self.memtables.remove_oldest_frozen();
            Ok(written_bytes)
        })?;
        Ok(true)
    }

    /// Writes the memtables of a frozen set to runs.
    fn write_tables(&self, set: &MemTableSet) -> Result<PendingEdits> {
        let is_there =
            |(keyspace, _): &&(Arc<KeyspaceData>, Arc<Table>)| !keyspace.version.load().is_dropped;
        let mut tables: Vec<_> = set.tables().iter().filter(is_there).collect();
        // The largest first, so that at the end no thread waits long for another one.
        tables.sort_by_key(|(_, table)| Reverse(table.used_bytes()));
        let write = |at: usize| {
            let (keyspace, table) = tables[at];
            let mut edits = self.tree.edits();
            self.write_table(keyspace, table, edits.edit_mut(keyspace.id()))?;
            Ok(edits)
        };
        let threads = Threads {
            count: self.flushing_threads(tables.len(), set.tables_bytes()),
            name: "forerun-flush",
            doing: "flushing",
        };
        let mut written = Vec::new();
        in_order(0..tables.len(), threads, write, &mut written)?;
        let mut edits = self.tree.edits();
        written.into_iter().for_each(|others| edits.add(others));
        Ok(edits)
    }

    /// How many threads write so many memtables of a set.
    fn flushing_threads(&self, tables: usize, bytes: usize) -> usize {
        // The same calls in the same order each time.
        if self.options.background == Background::Caller || SIMULATED {
            return 1;
        }
        let worthwhile = tables.min(bytes / FLUSH_BYTES_PER_THREAD);
        worthwhile.clamp(1, self.options.background_threads)
    }

    /// Writes a frozen memtable to a run and adds it to `edit`. If nothing in it is needed any
    /// more, no run is written.
    fn write_table(&self, keyspace: &KeyspaceData, table: &Table, edit: &mut Edit) -> Result<()> {
        // Do not hold the super version: it holds memtables, whose memory counts as long as they
        // are held.
        let version = keyspace.version.load();
        let (levels, ranges) = (Arc::clone(&version.levels), Arc::clone(&version.ranges));
        drop(version);
        let (mut snapshots, expired_sequence) = self.list_readers(keyspace);
        snapshots.sort_unstable();
        let mut retain =
            Retain::new(keyspace.order().clone(), snapshots.clone()).with_expired(expired_sequence);
        if !table.ranges.is_empty() {
            let known = vec![ranges, Arc::clone(&table.ranges)];
            retain = retain.with_ranges(known);
        }
        // Memtable sets are flushed in order, so everything older is in runs.
        let below = |key: &[u8]| levels.may_hold_from(0, key);
        let build = self.build(keyspace, 0, u64::MAX);
        let mut versions = table.memtable.versions();
        let runs = write_runs(&mut versions, &mut retain, below, &build)?;
        edit.added = runs.into_iter().map(|run| (0, run)).collect();
        edit.expired_sequence = expired_sequence;
        self.write_ranges(keyspace, table, &snapshots, edit)
    }

    /// Writes a memtable's range deletions to a run of their own, except those that cover nothing
    /// in runs and those within newer ones. The sequence numbers of snapshots ascend.
    fn write_ranges(
        &self,
        keyspace: &KeyspaceData,
        table: &Table,
        snapshots: &[u64],
        edit: &mut Edit,
    ) -> Result<()> {
        if table.ranges.is_empty() {
            return Ok(());
        }
        // Do not hold the super version, as above.
        let version = keyspace.version.load();
        let (levels, known) = (version.levels.edit(edit), version.ranges.list());
        drop(version);
        let (needs, added) = (levels.needed_ranges(), table.ranges.list());
        let is_needed = |range: &RangeRef<'_>| {
            // The oldest snapshot that sees it must also see the newer ones.
            let first_to_see = snapshots.partition_point(|of| *of < range.sequence);
            let as_of = snapshots.get(first_to_see).copied().unwrap_or(u64::MAX);
            needs.holds(*range) && !table.ranges.hide(*range, as_of)
        };
        let mut tombstones: Vec<_> = added.iter().filter(is_needed).collect();
        if tombstones.is_empty() {
            return Ok(());
        }
        let before = self.tree.catalog().runs_of(keyspace.id()).cloned();
        let before = before.map_or(Vec::new(), |runs| runs.range_runs);
        if before.len() >= RANGE_RUNS_MAX {
            tombstones = known.iter().filter(is_needed).chain(tombstones).collect();
            edit.removed = before.iter().map(|run| run.number()).collect();
            edit.replaces_ranges = true;
        }
        let owned = tombstones.iter().map(|of| RangeRef::to_owned(*of));
        edit.ranges = owned.collect();
        let run = write_range_run(tombstones, &self.build(keyspace, 0, u64::MAX))?;
        edit.range_runs.extend(run);
        Ok(())
    }

    /// Freezes the active memtable set, unless it is empty, and waits until everything written
    /// before is in runs.
    pub(super) fn flush_all(&self) -> Result<()> {
        self.check_access()?;
        let active = self.memtables.read_active();
        let (number, is_empty) = (active.number, active.is_empty());
        drop(active);
        let fail_on = self.retry_flush();
        if !is_empty {
            let size = Size::any(self.options.memtable_bytes);
            self.switch_memtables(number, size, fail_on, For::Flush)?;
        }
        self.wait_until(|| {
            let is_done = self.memtables.is_flushed_to(number);
            self.work.done_or_fails(is_done, Task::Flush, fail_on)
        })
    }
}

#[cfg(test)]
#[path = "flush_tests.rs"]
mod tests;
