//! From memory to disk: an empty memtable set replaces a full one, whose entries become runs.
//!
//! ```text
//!   writer   memtable set full -> memory for another? -> freeze it, add a new one -> write on
//!                                   │ no: wait
//!   flush    oldest frozen set -> a run per keyspace in level 0 -> manifest
//!                              -> drop the memtables, remove old log segments
//! ```
//!
//! The memory limit also pushes back. A writer waits while the memtables, together with the one it
//! needs, would exceed [`Options::memory_limit_bytes`](crate::Options::memory_limit_bytes), and
//! while level 0 has so many runs that reads would suffer. Before that point, writes are slowed
//! down to a rate that compaction can sustain.

use std::sync::Arc;

use forerun_core::sync::{thread, time};

use super::Inner;
use super::background_work::{FailOn, Task};
use super::keyspace_data::KeyspaceData;
use super::memory::Size;
use super::memtable_set::{FrozenMemTables, MemTableSet};
use super::super_version::Table;
use crate::ranges::RangeRef;
use crate::tree::build::write_runs;
use crate::tree::levels::Edit;
use crate::tree::pending_edits::PendingEdits;
use crate::tree::range_run::{RANGE_RUNS_MAX, write_range_run};
use crate::tree::retain::Retain;
use crate::{Background, Error, Result, TreeOptions};

impl Inner {
    /// Adds a memtable for a keyspace to the active set, unless another thread has done so.
    pub(super) fn add_table(&self, keyspace: &Arc<KeyspaceData>) -> Result<()> {
        let mut active = self.memtables.write_active();
        keyspace.check_takes_writes()?;
        if active.table(keyspace.id()).is_none() {
            let table =
                keyspace.new_table(&self.options, active.limit_bytes, &self.memtables.regions)?;
            // Show it to readers first, so that they find what becomes visible.
            keyspace.show_table(&table);
            active.add(keyspace, table);
            active.trim(&self.memtables.regions, self.bytes_beside_held());
            self.memtables.show_active(active.shared_tables());
        }
        Ok(())
    }

    /// Freezes the active memtable set and puts a new one of this size in its place. The caller
    /// holds `active` for writing and has the reservation.
    pub(super) fn freeze(&self, active: &mut MemTableSet, limit_bytes: usize) -> Result<()> {
        if self.write_path.published.has_hole() {
            // Some entries in it will never become visible. Only replaying the log can decide which
            // ones are kept.
            return Err(self.poisoned());
        }
        let table =
            self.keyspaces
                .own
                .new_table(&self.options, limit_bytes, &self.memtables.regions)?;
        let next = MemTableSet::new(
            active.number + 1,
            limit_bytes,
            &self.keyspaces.own,
            Arc::clone(&table),
        );
        next.trim(&self.memtables.regions, self.free_bytes(active));
        // First, so that statistics never count a memtable both as active and as held.
        self.memtables.show_active(next.shared_tables());
        // From now on, the memtables count at their actual size, until the last reference is
        // dropped.
        active.hold(&self.memtables.held);
        self.keyspaces.own.show_table(&table);
        let frozen = FrozenMemTables {
            memtables: std::mem::replace(active, next),
            // No write is in progress, so all earlier ones are visible, and are in this memtable
            // set or an older one.
            last_sequence: self.write_path.published.last(),
        };
        self.memtables.frozen().push(Arc::new(frozen));
        self.work.notify();
        Ok(())
    }

    /// Flushes everything while `active` is held for writing, so that no new write comes in.
    /// Afterwards the memtables are empty.
    pub(super) fn flush_under_lock(&self, active: &mut MemTableSet) -> Result<()> {
        let fail_on = self.retry_flush();
        let is_done = || {
            let is_done = self.memtables.frozen().is_empty();
            self.or_fails(is_done, Task::Flush, fail_on)
        };
        self.wait_until(is_done)?;
        if !active.is_empty() {
            self.freeze(active, self.bytes_if_flushed(active))?;
            self.wait_until(is_done)?;
        }
        Ok(())
    }

    /// Whether writes wait until runs in level 0 are merged.
    pub(super) fn is_level0_full(&self) -> bool {
        self.any_level0(|options| options.level0_stop_runs)
    }

    /// Whether level 0 of any keyspace has reached the limit in its options. A keyspace that cannot
    /// be compacted does not count: it must not stop the writes to other keyspaces. Once full, it
    /// refuses its own.
    fn any_level0(&self, limit: fn(&TreeOptions) -> usize) -> bool {
        let keyspaces = self.keyspaces.load();
        let reaches = |keyspace: &Arc<KeyspaceData>| {
            let runs = keyspace.version.load().levels.level(0).runs().len();
            runs >= limit(&keyspace.options.load().tree) && keyspace.compaction_failure().is_none()
        };
        keyspaces.iter().any(reaches)
    }

    /// Retries a failed flush at once, for a caller that waits for it.
    fn retry_flush(&self) -> FailOn {
        let now = time::now();
        self.work.retry(now);
        FailOn::Since(now)
    }

    /// For waiting callers: whether the work is done, or an error if it fails.
    pub(super) fn or_fails(&self, is_done: bool, task: Task, fail_on: FailOn) -> Result<bool> {
        if is_done {
            Ok(true)
        } else {
            self.work.check(task, fail_on).map(|()| false)
        }
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
                Background::Caller => self.run_all_work()?,
                Background::Threads => self.work.wait(events),
            }
        }
    }

    /// Delays a write of `bytes` while level 0 is long.
    pub(super) fn slow_down(&self, bytes: usize) {
        if let Some(pause) = self.write_controller.pause(bytes) {
            self.counters.count_slowed(pause);
            thread::sleep(pause);
        }
    }

    /// Decides whether to slow down or stop writes, after the runs have changed.
    pub(super) fn note_pressure(&self) {
        let is_slow = self.any_level0(|options| options.level0_slow_runs);
        self.write_controller.set_slow(is_slow);
        self.keyspaces
            .load()
            .iter()
            .for_each(|keyspace| keyspace.note_level0());
    }

    /// Flushes the oldest full memtable set. Returns `false` if there is none.
    pub(super) fn flush_one(&self) -> Result<bool> {
        let guard = self.directory.enter()?;
        let _one_at_a_time = self.tree.lock_flushing();
        let Some(oldest) = self.memtables.frozen().first().cloned() else {
            return Ok(false);
        };
        self.tree.catalog().write_again()?;
        let mut edits = PendingEdits::new(&self.tree.obsolete_files);
        for (keyspace, table) in oldest.memtables.tables() {
            if !keyspace.version.load().is_dropped {
                self.write_table(keyspace, table, edits.edit_mut(keyspace.id()))?;
            }
        }
        self.install_flush(&guard, edits, &oldest)?;
        // Release it only now, when only readers still hold it: a writer that waits for memory
        // waits for readers only briefly.
        drop(oldest);
        let flushed = self.memtables.frozen().remove(0);
        drop(flushed);
        Ok(true)
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
        let runs = self.with_build(keyspace, u64::MAX, |build| {
            write_runs(&mut table.memtable.versions(), &mut retain, below, build)
        })?;
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
        let run = self.with_build(keyspace, u64::MAX, |build| {
            write_range_run(tombstones, build)
        })?;
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
            self.switch_memtables(number, Size::any(self.options.memtable_bytes), fail_on)?;
        }
        self.wait_until(|| {
            let is_older = |of: &Arc<FrozenMemTables>| of.memtables.number <= number;
            let is_done = !self.memtables.frozen().iter().any(is_older);
            self.or_fails(is_done, Task::Flush, fail_on)
        })
    }
}
