//! What is done to the tree of runs: memtables are added to it, runs are merged, and both are made durable.
//!
//! ```text
//!   flush      memtables ──> runs in level 0 ┐
//!   compact    runs ───────> fewer runs      ├─> manifest, durably ──> super versions ──> memtables, old runs, old log segments go
//! ```
//!
//! A change is durable before readers see it, and what it replaces goes after. So a crash, or a manifest that cannot be
//! written, leaves a store that has everything, in memory and log or in the runs before.

use forerun_core::sync::atomic::{AtomicU64, Ordering};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forerun_core::sync::{Mutex, MutexGuard, PoisonError, time};

use super::Inner;
use super::directory::DirGuard;
use super::keyspace_data::KeyspaceData;
use super::memtable_set::{FrozenMemTables, MemTableSet};
use super::snapshots::Moment;
use super::stats::TreeWork;
use super::super_version::Table;
use super::work::{Patience, Task};
use super::write::Writer;
use crate::planted::{self, Defect};
use crate::ranges::RangeRef;
use crate::run::Run;
use crate::tree::build::{Build, write_runs};
use crate::tree::catalog::{Catalog, Logged};
use crate::tree::compact::compact;
use crate::tree::levels::Edit;
use crate::tree::pick::{Compaction, pick, pick_full, urgency};
use crate::tree::range_run::{MOST_RANGE_RUNS, write_range_run};
use crate::tree::retain::Retain;
use crate::wal::segment;
use crate::{Error, Result};

/// The tree of runs and what changes it.
pub(super) struct Tree {
    catalog: Mutex<Catalog>,
    /// Held by whoever compacts.
    compacting: Mutex<()>,
    counts: Counts,
}

/// A worker that waits for a compaction to be tried again waits so long at least.
const SHORTEST_WAIT: Duration = Duration::from_millis(50);

/// What becomes of memtables when the runs change.
enum Memtables<'a> {
    Same,
    /// Those of this memtable set, the oldest, are in runs.
    Flushed(&'a FrozenMemTables),
    /// There is nothing in them: everything up to a sequence number is in runs. This one takes the place of the keyspace's.
    Ingested {
        sequence: u64,
        table: &'a Arc<Table>,
    },
}

/// Relaxed throughout: counts order nothing.
#[derive(Debug, Default)]
struct Counts {
    flushes: AtomicU64,
    flushed_bytes: AtomicU64,
    ingestions: AtomicU64,
    ingested_bytes: AtomicU64,
    compactions: AtomicU64,
    compaction_read_bytes: AtomicU64,
    compaction_written_bytes: AtomicU64,
    dropped_entries: AtomicU64,
    dropped_deletions: AtomicU64,
}

impl Tree {
    pub(super) fn new(catalog: Catalog) -> Tree {
        Tree {
            catalog: Mutex::new(catalog),
            compacting: Mutex::new(()),
            counts: Counts::default(),
        }
    }

    pub(super) fn catalog(&self) -> MutexGuard<'_, Catalog> {
        // Nothing under the lock panics half-way through a change.
        self.catalog.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Writes a memtable that takes no more writes to a run, to none if nothing of it is of use any more, and tells the
    /// change that this makes.
    pub(super) fn write_table(&self, keyspace: &KeyspaceData, table: &Table) -> Result<Edit> {
        // Not the super version, which holds memtables: their memory counts as long as they are held.
        let version = keyspace.version.load();
        let (levels, ranges) = (Arc::clone(&version.levels), Arc::clone(&version.ranges));
        drop(version);
        let (snapshots, expired_sequence) = self.list_readers(keyspace);
        let mut retain =
            Retain::new(keyspace.order().clone(), snapshots).with_expired(expired_sequence);
        if !table.ranges.is_empty() {
            let known = vec![ranges, Arc::clone(&table.ranges)];
            retain = retain.with_ranges(known);
        }
        // Memtable sets are flushed in order, so what is older is in runs.
        let below = |key: &[u8]| levels.may_hold_from(0, key);
        let runs = self.with_build(keyspace, u64::MAX, |build| {
            write_runs(&mut table.memtable.versions(), &mut retain, below, build)
        })?;
        let mut edit = Edit {
            added: runs.into_iter().map(|run| (0, run)).collect(),
            expired_sequence,
            ..Edit::default()
        };
        if let Err(error) = self.write_ranges(keyspace, table, &mut edit) {
            let written = edit.all_added();
            written.for_each(|run| run.remove_when_dropped(&self.obsolete_files));
            return Err(error);
        }
        Ok(edit)
    }

    /// Writes the deletions of ranges beside a memtable to a run of their own, those that cover anything in runs.
    fn write_ranges(&self, keyspace: &KeyspaceData, table: &Table, edit: &mut Edit) -> Result<()> {
        if table.ranges.is_empty() {
            return Ok(());
        }
        // Not the super version, as above.
        let version = keyspace.version.load();
        let (levels, known) = (version.levels.edit(edit), version.ranges.list());
        drop(version);
        let (needs, added) = (levels.needs(), table.ranges.list());
        let mut tombstones: Vec<_> = added.iter().filter(|range| needs.holds(*range)).collect();
        edit.ranges = tombstones
            .iter()
            .map(|of| RangeRef::to_owned(*of))
            .collect();
        if tombstones.is_empty() {
            return Ok(());
        }
        let before = self.tree.catalog().runs_of(keyspace.id()).cloned();
        let before = before.map_or(Vec::new(), |runs| runs.range_runs);
        if before.len() >= MOST_RANGE_RUNS {
            tombstones.extend(known.iter());
            edit.removed = before.iter().map(|run| run.number()).collect();
        }
        let run = self.with_build(keyspace, u64::MAX, |build| {
            write_range_run(tombstones, build)
        })?;
        edit.range_runs.extend(run);
        Ok(())
    }

    /// Puts the runs of a memtable set, the oldest there is, in its place.
    pub(super) fn install_flush(
        &self,
        guard: &DirGuard<'_>,
        edits: &[(u32, Edit)],
        flushed: &FrozenMemTables,
    ) -> Result<()> {
        let counts = &self.tree.counts;
        let runs = edits.iter().flat_map(|(_, edit)| edit.all_added());
        let bytes: u64 = runs.map(|run| run.meta().file_bytes).sum();
        self.install(guard, edits, Memtables::Flushed(flushed))?;
        counts.flushes.fetch_add(1, Ordering::Relaxed);
        counts.flushed_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// What is in runs when everything up to a sequence number is.
    fn logged_after(&self, catalog: &Catalog, flushed_sequence: u64) -> Logged {
        let first_segment = match &self.writer {
            Writer::Logged(commit) => commit.first_needed(flushed_sequence),
            Writer::Unlogged { .. } => None,
        };
        Logged {
            flushed_sequence,
            first_segment: first_segment.unwrap_or(catalog.first_segment()),
            marks: self.clock.marks_up_to(flushed_sequence),
        }
    }

    /// Removes the log's segments before this one. The manifest does not need them.
    fn remove_segments(&self, first_segment: u64) {
        let Writer::Logged(commit) = &self.writer else {
            return;
        };
        let segments = commit.segments();
        for number in segments.before(first_segment) {
            let path = segment::path(&self.path, number);
            match self.io.remove(&path) {
                Ok(()) => segments.forget(number),
                // It is tried again after the next flush, and when the store is opened.
                Err(error) => {
                    let path = path.display();
                    tracing::warn!(%path, %error, "cannot remove a segment of the log that is in runs");
                }
            }
        }
    }

    /// Does the most urgent compaction, of whatever keyspace. `false`: none is due.
    pub(super) fn compact_one(&self) -> Result<bool> {
        let guard = self.directory.enter()?;
        let _one_at_a_time = self.lock_compacting();
        if self.remove_covered_runs(&guard)? {
            return Ok(true);
        }
        let keyspaces = self.keyspaces.load_full();
        let now = time::now();
        // What failed a short time ago waits, and others have their turn.
        let may_be_tried = |keyspace: &&Arc<KeyspaceData>| {
            let wait = keyspace.compaction_wait(now);
            wait.is_none_or(|wait| wait.is_zero())
        };
        let mut due: Vec<(f64, &Arc<KeyspaceData>)> = keyspaces
            .iter()
            .filter(may_be_tried)
            .map(|keyspace| (self.urgency_of(keyspace), keyspace))
            .filter(|(urgency, _)| *urgency >= 1.0)
            .collect();
        due.sort_by(|a, b| b.0.total_cmp(&a.0));
        let picked = due.into_iter().find_map(|(_, keyspace)| {
            let levels = Arc::clone(&keyspace.version.load().levels);
            let tree = keyspace.options.load().tree;
            pick(&levels, &tree, &BTreeSet::new()).map(|compaction| (keyspace, compaction))
        });
        match picked {
            None => Ok(false),
            Some((keyspace, compaction)) => {
                match self.run_compaction(&guard, keyspace, &compaction) {
                    // It concerns one keyspace, and there may be others.
                    Err(error @ Error::CompactionFailed { .. })
                        if !planted::is(Defect::BadPageStopsAll) =>
                    {
                        let path = self.path.display();
                        tracing::error!(%error, %path, "a compaction failed, and will be tried again");
                        Ok(true)
                    }
                    result => result.map(|()| true),
                }
            }
        }
    }

    /// How far a keyspace's levels are over what they should have; from 1 on a compaction is due.
    pub(super) fn urgency_of(&self, keyspace: &KeyspaceData) -> f64 {
        urgency(
            &keyspace.version.load().levels,
            &keyspace.options.load().tree,
        )
    }

    /// Whether any keyspace's levels are over what they should have. What is being compacted is still in them.
    pub(super) fn is_compaction_due(&self) -> bool {
        let keyspaces = self.keyspaces.load();
        keyspaces
            .iter()
            .any(|keyspace| self.urgency_of(keyspace) >= 1.0)
    }

    /// Waits until there is nothing to flush or to compact, and what is of no use any more is off the disk.
    pub(super) fn wait_idle(&self) -> Result<()> {
        if self.check_access().is_err() {
            // Nothing is ever under way.
            return Ok(());
        }
        let asked = self.retry_compactions();
        let patience = Patience::Since(asked);
        self.wait_until(|| {
            let is_flushed = self.frozen().is_empty();
            self.or_fails(is_flushed, Task::Flush, patience)?;
            let keyspaces = self.keyspaces.load();
            let failed = |keyspace: &Arc<KeyspaceData>| keyspace.compaction_failure_since(asked);
            // A keyspace that fails has had its turn: what counts are the others.
            let is_left = |keyspace: &Arc<KeyspaceData>| {
                self.urgency_of(keyspace) >= 1.0 && failed(keyspace).is_none()
            };
            let is_done = is_flushed && !keyspaces.iter().any(is_left);
            if !self.or_fails(is_done, Task::Compact, patience)? {
                return Ok(false);
            }
            keyspaces.iter().find_map(failed).map_or(Ok(true), Err)
        })?;
        // Who did the last of it holds what it replaced until it is through.
        drop(self.flushing.lock());
        drop(self.lock_compacting());
        self.wait_until(|| Ok(self.obsolete_files.is_empty()))
    }

    /// Has all that fails tried again at once. Returns the moment from which on a failure is a new one.
    fn retry_compactions(&self) -> Instant {
        let now = time::now();
        for keyspace in self.keyspaces.load().iter() {
            keyspace.retry_compaction(now);
        }
        // Wakes the workers, who find the keyspaces to be tried by now.
        self.work.retry(now);
        now
    }

    /// How soon a compaction that failed is tried again, if one did.
    pub(super) fn compaction_retry(&self) -> Option<Duration> {
        let now = time::now();
        let keyspaces = self.keyspaces.load();
        let failing = keyspaces
            .iter()
            .filter(|keyspace| self.urgency_of(keyspace) >= 1.0);
        let waits = failing.filter_map(|keyspace| keyspace.compaction_wait(now));
        waits.min().map(|wait| wait.max(SHORTEST_WAIT))
    }

    /// Removes the runs of which nothing is left: it has expired, or was deleted with ranges. `false`: there are none.
    fn remove_covered_runs(&self, guard: &DirGuard<'_>) -> Result<bool> {
        let mut edits = Vec::new();
        for keyspace in self.keyspaces.load().iter() {
            let version = keyspace.version.load_full();
            if version.ranges.is_empty() && keyspace.expiry.is_none() {
                continue;
            }
            let (snapshots, expired_sequence) = self.list_readers(keyspace);
            let levels = &version.levels;
            let removed = levels.covered(&version.ranges, expired_sequence, &snapshots);
            if !removed.is_empty() {
                let edit = Edit {
                    removed,
                    expired_sequence,
                    ..Edit::default()
                };
                edits.push((keyspace.id(), edit));
            }
        }
        match edits.is_empty() {
            true => Ok(false),
            false => self.install(guard, &edits, Memtables::Same).map(|()| true),
        }
    }

    /// The sequence numbers that readers of a keyspace go by, and up to which everything in it has expired for all of them.
    /// What is to be written was chosen before: all of it is visible.
    fn list_readers(&self, keyspace: &KeyspaceData) -> (Vec<u64>, u64) {
        self.snapshots.list(keyspace.id(), || {
            let sequence = self.published.last();
            Moment {
                sequence,
                expired_sequence: keyspace.expired_sequence(&self.clock, sequence),
            }
        })
    }

    /// Flushes, and compacts everything there is in some keyspaces down to the last level.
    pub(super) fn compact_all(&self, keyspaces: &[Arc<KeyspaceData>]) -> Result<()> {
        self.flush_all()?;
        self.guard("compacting", || self.merge_all(keyspaces))?;
        self.load_filters();
        Ok(())
    }

    /// Brings filters into memory for which there was no room when their runs were opened, those of the newest runs first.
    pub(super) fn load_filters(&self) {
        for keyspace in self.keyspaces.load().iter() {
            let levels = Arc::clone(&keyspace.version.load().levels);
            for (_, run) in levels.runs() {
                if let Err(error) = run.load_filter() {
                    tracing::warn!(%error, "a run stays without its filter");
                }
            }
        }
    }

    /// Merges the runs of some keyspaces into their last levels.
    fn merge_all(&self, keyspaces: &[Arc<KeyspaceData>]) -> Result<()> {
        let limit = self.tree.catalog().numbers().next();
        let mut failure = None;
        for keyspace in keyspaces {
            match self.merge(keyspace, limit) {
                // It concerns one keyspace, and the others can be compacted all the same.
                Err(error @ Error::CompactionFailed { .. }) => {
                    failure.get_or_insert(error);
                }
                result => result?,
            }
        }
        failure.map_or(Ok(()), Err)
    }

    /// Merges the runs of a keyspace with numbers below `limit` into its last level.
    fn merge(&self, keyspace: &KeyspaceData, limit: u64) -> Result<()> {
        loop {
            let guard = self.directory.enter()?;
            let _one_at_a_time = self.lock_compacting();
            self.remove_covered_runs(&guard)?;
            let version = keyspace.version.load();
            let picked = pick_full(&version.levels, limit, &version.ranges);
            drop(version);
            let Some(compaction) = picked else { break };
            self.run_compaction(&guard, keyspace, &compaction)?;
        }
        Ok(())
    }

    /// Does a compaction. That it cannot read or write runs is the keyspace's concern, which the error then names.
    fn run_compaction(
        &self,
        guard: &DirGuard<'_>,
        keyspace: &KeyspaceData,
        compaction: &Compaction,
    ) -> Result<()> {
        self.tree.catalog().write_again()?;
        let run_bytes = keyspace.options.load().tree.run_bytes;
        // Not the super version, which holds memtables, for as long as this takes.
        let ranges = Arc::clone(&keyspace.version.load().ranges);
        let (snapshots, expired_sequence) = self.list_readers(keyspace);
        let retain = Retain::new(keyspace.order().clone(), snapshots)
            .with_ranges(vec![ranges])
            .with_expired(expired_sequence);
        let done = self.with_build(keyspace, run_bytes, |build| {
            compact(compaction, retain, build)
        });
        let mut done = match done {
            Ok(done) => done,
            Err(Error::Closed) => return Err(Error::Closed),
            Err(error) => {
                let failed = keyspace.note_compaction(Err(error));
                self.note_pressure();
                self.work.nudge();
                return failed;
            }
        };
        keyspace.note_compaction(Ok(()))?;
        done.edit.expired_sequence = expired_sequence;
        self.install(guard, &[(keyspace.id(), done.edit)], Memtables::Same)?;
        let counts = &self.tree.counts;
        counts.compactions.fetch_add(1, Ordering::Relaxed);
        for (count, more) in [
            (&counts.compaction_read_bytes, done.read_bytes),
            (&counts.compaction_written_bytes, done.written_bytes),
            (&counts.dropped_entries, done.dropped),
            (&counts.dropped_deletions, done.dropped_deletions),
        ] {
            count.fetch_add(more, Ordering::Relaxed);
        }
        self.work.nudge();
        Ok(())
    }

    /// Puts runs that are newer than all else, and have all versions of this sequence number, into the tree of a keyspace.
    /// There is nothing in memtables, and `active` is held for writing.
    pub(super) fn install_ingestion(
        &self,
        guard: &DirGuard<'_>,
        keyspace: &Arc<KeyspaceData>,
        runs: Vec<Arc<Run>>,
        sequence: u64,
        active: &mut MemTableSet,
    ) -> Result<()> {
        // Who still reads the super version before must not find in its memtable what is written from now on, and not the
        // ingestion, which comes before that.
        let table = keyspace.new_table(&self.options, active.limit_bytes)?;
        let counts = &self.tree.counts;
        let bytes: u64 = runs.iter().map(|run| run.meta().file_bytes).sum();
        let edit = Edit {
            ingested: runs,
            ..Edit::default()
        };
        let memtables = Memtables::Ingested {
            sequence,
            table: &table,
        };
        self.install(guard, &[(keyspace.id(), edit)], memtables)?;
        active.replace(keyspace, table);
        counts.ingestions.fetch_add(1, Ordering::Relaxed);
        counts.ingested_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Makes changes of the runs durable, and shows them to readers. What of the log is in runs with it goes.
    /// The guard shows that the directory is still ours.
    fn install(
        &self,
        _guard: &DirGuard<'_>,
        edits: &[(u32, Edit)],
        memtables: Memtables<'_>,
    ) -> Result<()> {
        let mut catalog = self.tree.catalog();
        let flushed_sequence = match &memtables {
            Memtables::Same => None,
            Memtables::Flushed(flushed) => Some(flushed.last_sequence),
            Memtables::Ingested { sequence, .. } => Some(*sequence),
        };
        let logged = flushed_sequence.map(|sequence| self.logged_after(&catalog, sequence));
        if let Some(logged) = &logged
            && planted::is(Defect::SegmentRemovedEarly)
        {
            self.remove_segments(logged.first_segment);
        }
        catalog.install(edits, logged.as_ref())?;
        let keyspaces = self.keyspaces.load();
        for (id, _) in edits {
            let (Some(keyspace), Some(runs)) = (keyspaces.by_id(*id), catalog.runs_of(*id)) else {
                continue;
            };
            match &memtables {
                Memtables::Same => keyspace.show_runs(runs),
                Memtables::Flushed(flushed) => {
                    keyspace.show_flushed(runs, flushed.memtables.table(*id));
                }
                Memtables::Ingested { table, .. } if planted::is(Defect::IngestionShownEarly) => {
                    keyspace.show_ingested(runs, table);
                }
                // Visible first, for readers without a lock: one that sees the runs goes by a number that sees what is in
                // them, and one that does not see them has the super version before, in which nothing has the number.
                Memtables::Ingested { sequence, table } => self.snapshots.hold_off(|| {
                    // Behind a hole no number is given: the log refuses an ingestion then.
                    if self.published.publish(*sequence, *sequence).is_ok() {
                        keyspace.show_ingested(runs, table);
                    }
                }),
            }
        }
        drop(catalog);
        if planted::is(Defect::IngestionShownEarly) {
            self.work.nudge();
            planted::dawdle();
        }
        self.note_pressure();
        if let Some(logged) = logged {
            self.remove_segments(logged.first_segment);
        }
        Ok(())
    }

    pub(super) fn with_build<T>(
        &self,
        keyspace: &KeyspaceData,
        run_bytes: u64,
        f: impl FnOnce(&Build<'_>) -> Result<T>,
    ) -> Result<T> {
        let numbers = Arc::clone(self.tree.catalog().numbers());
        f(&Build {
            io: &*self.io,
            dir: &self.path,
            order: keyspace.order(),
            comparator: keyspace.comparator().name(),
            keyspace: (keyspace.id(), keyspace.name()),
            cache: &self.cache,
            options: keyspace.options.load().run,
            run_bytes,
            numbers: &numbers,
            limiter: &self.limiter,
            stop: self.work.stop_flag(),
        })
    }

    pub(super) fn tree_work(&self) -> TreeWork {
        let counts = &self.tree.counts;
        let now = |count: &AtomicU64| count.load(Ordering::Relaxed);
        TreeWork {
            flushes: now(&counts.flushes),
            flushed_bytes: now(&counts.flushed_bytes),
            ingestions: now(&counts.ingestions),
            ingested_bytes: now(&counts.ingested_bytes),
            compactions: now(&counts.compactions),
            compaction_read_bytes: now(&counts.compaction_read_bytes),
            compaction_written_bytes: now(&counts.compaction_written_bytes),
            dropped_entries: now(&counts.dropped_entries),
            dropped_deletions: now(&counts.dropped_deletions),
        }
    }

    pub(super) fn lock_compacting(&self) -> MutexGuard<'_, ()> {
        // It guards no data that could be left half-changed.
        self.tree
            .compacting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
