//! What is done to the tree of runs: memtables are added to it, runs are merged, and both are made durable.
//!
//! ```text
//!   flush      memtables ──> runs in level 0 ┐
//!   compact    runs ───────> fewer runs      ├─> manifest, durably ──> states ──> memtables, old runs, old log segments go
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
use super::generation::{Frozen, Generation};
use super::snapshots::Moment;
use super::space::Space;
use super::state::Table;
use super::stats::TreeWork;
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
    /// Those of this generation, the oldest, are in runs.
    Flushed(&'a Frozen),
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
    pub(super) fn write_table(&self, space: &Space, table: &Table) -> Result<Edit> {
        // Not the state, which holds memtables: their memory counts as long as they are held.
        let state = space.state.load();
        let (levels, ranges) = (Arc::clone(&state.levels), Arc::clone(&state.ranges));
        drop(state);
        let (snapshots, expired_sequence) = self.list_readers(space);
        let mut retain =
            Retain::new(space.order().clone(), snapshots).with_expired(expired_sequence);
        if !table.ranges.is_empty() {
            let known = vec![ranges, Arc::clone(&table.ranges)];
            retain = retain.with_ranges(known);
        }
        // Generations are flushed in order, so what is older is in runs.
        let below = |key: &[u8]| levels.may_hold_from(0, key);
        let runs = self.with_build(space, u64::MAX, |build| {
            write_runs(&mut table.memtable.versions(), &mut retain, below, build)
        })?;
        let mut edit = Edit {
            added: runs.into_iter().map(|run| (0, run)).collect(),
            expired_sequence,
            ..Edit::default()
        };
        if let Err(error) = self.write_ranges(space, table, &mut edit) {
            let written = edit.all_added();
            written.for_each(|run| run.remove_when_dropped(&self.trash));
            return Err(error);
        }
        Ok(edit)
    }

    /// Writes the deletions of ranges beside a memtable to a run of their own, those that cover anything in runs.
    fn write_ranges(&self, space: &Space, table: &Table, edit: &mut Edit) -> Result<()> {
        if table.ranges.is_empty() {
            return Ok(());
        }
        // Not the state, as above.
        let state = space.state.load();
        let (levels, known) = (state.levels.edit(edit), state.ranges.list());
        drop(state);
        let (needs, added) = (levels.needs(), table.ranges.list());
        let mut tombstones: Vec<_> = added.iter().filter(|range| needs.holds(*range)).collect();
        edit.ranges = tombstones
            .iter()
            .map(|of| RangeRef::to_owned(*of))
            .collect();
        if tombstones.is_empty() {
            return Ok(());
        }
        let before = self.tree.catalog().runs_of(space.id()).cloned();
        let before = before.map_or(Vec::new(), |runs| runs.range_runs);
        if before.len() >= MOST_RANGE_RUNS {
            tombstones.extend(known.iter());
            edit.removed = before.iter().map(|run| run.number()).collect();
        }
        let run = self.with_build(space, u64::MAX, |build| write_range_run(tombstones, build))?;
        edit.range_runs.extend(run);
        Ok(())
    }

    /// Puts the runs of a generation, the oldest there is, in its place.
    pub(super) fn install_flush(
        &self,
        guard: &DirGuard<'_>,
        edits: &[(u32, Edit)],
        flushed: &Frozen,
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
        let spaces = self.spaces.load_full();
        let now = time::now();
        // What failed a short time ago waits, and others have their turn.
        let may_be_tried = |space: &&Arc<Space>| {
            let wait = space.compaction_wait(now);
            wait.is_none_or(|wait| wait.is_zero())
        };
        let mut due: Vec<(f64, &Arc<Space>)> = spaces
            .iter()
            .filter(may_be_tried)
            .map(|space| (self.urgency_of(space), space))
            .filter(|(urgency, _)| *urgency >= 1.0)
            .collect();
        due.sort_by(|a, b| b.0.total_cmp(&a.0));
        let picked = due.into_iter().find_map(|(_, space)| {
            let levels = Arc::clone(&space.state.load().levels);
            let tree = space.options.load().tree;
            pick(&levels, &tree, &BTreeSet::new()).map(|compaction| (space, compaction))
        });
        match picked {
            None => Ok(false),
            Some((space, compaction)) => {
                match self.run_compaction(&guard, space, &compaction) {
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
    pub(super) fn urgency_of(&self, space: &Space) -> f64 {
        urgency(&space.state.load().levels, &space.options.load().tree)
    }

    /// Whether any keyspace's levels are over what they should have. What is being compacted is still in them.
    pub(super) fn is_compaction_due(&self) -> bool {
        let spaces = self.spaces.load();
        spaces.iter().any(|space| self.urgency_of(space) >= 1.0)
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
            let spaces = self.spaces.load();
            let failed = |space: &Arc<Space>| space.compaction_failure_since(asked);
            // A keyspace that fails has had its turn: what counts are the others.
            let is_left =
                |space: &Arc<Space>| self.urgency_of(space) >= 1.0 && failed(space).is_none();
            let is_done = is_flushed && !spaces.iter().any(is_left);
            if !self.or_fails(is_done, Task::Compact, patience)? {
                return Ok(false);
            }
            spaces.iter().find_map(failed).map_or(Ok(true), Err)
        })?;
        // Who did the last of it holds what it replaced until it is through.
        drop(self.flushing.lock());
        drop(self.lock_compacting());
        self.wait_until(|| Ok(self.trash.is_empty()))
    }

    /// Has all that fails tried again at once. Returns the moment from which on a failure is a new one.
    fn retry_compactions(&self) -> Instant {
        let now = time::now();
        for space in self.spaces.load().iter() {
            space.retry_compaction(now);
        }
        // Wakes the workers, who find the keyspaces to be tried by now.
        self.work.retry(now);
        now
    }

    /// How soon a compaction that failed is tried again, if one did.
    pub(super) fn compaction_retry(&self) -> Option<Duration> {
        let now = time::now();
        let spaces = self.spaces.load();
        let failing = spaces.iter().filter(|space| self.urgency_of(space) >= 1.0);
        let waits = failing.filter_map(|space| space.compaction_wait(now));
        waits.min().map(|wait| wait.max(SHORTEST_WAIT))
    }

    /// Removes the runs of which nothing is left: it has expired, or was deleted with ranges. `false`: there are none.
    fn remove_covered_runs(&self, guard: &DirGuard<'_>) -> Result<bool> {
        let mut edits = Vec::new();
        for space in self.spaces.load().iter() {
            let state = space.state.load_full();
            if state.ranges.is_empty() && space.expiry.is_none() {
                continue;
            }
            let (snapshots, expired_sequence) = self.list_readers(space);
            let levels = &state.levels;
            let removed = levels.covered(&state.ranges, expired_sequence, &snapshots);
            if !removed.is_empty() {
                let edit = Edit {
                    removed,
                    expired_sequence,
                    ..Edit::default()
                };
                edits.push((space.id(), edit));
            }
        }
        match edits.is_empty() {
            true => Ok(false),
            false => self.install(guard, &edits, Memtables::Same).map(|()| true),
        }
    }

    /// The sequence numbers that readers of a keyspace go by, and up to which everything in it has expired for all of them.
    /// What is to be written was chosen before: all of it is visible.
    fn list_readers(&self, space: &Space) -> (Vec<u64>, u64) {
        self.snapshots.list(space.id(), || {
            let sequence = self.visible.last();
            Moment {
                sequence,
                expired_sequence: space.expired_sequence(&self.clock, sequence),
            }
        })
    }

    /// Flushes, and compacts everything there is in some keyspaces down to the last level.
    pub(super) fn compact_all(&self, spaces: &[Arc<Space>]) -> Result<()> {
        self.flush_all()?;
        self.guard("compacting", || self.merge_all(spaces))?;
        self.load_filters();
        Ok(())
    }

    /// Brings filters into memory for which there was no room when their runs were opened, those of the newest runs first.
    pub(super) fn load_filters(&self) {
        for space in self.spaces.load().iter() {
            let levels = Arc::clone(&space.state.load().levels);
            for (_, run) in levels.runs() {
                if let Err(error) = run.load_filter() {
                    tracing::warn!(%error, "a run stays without its filter");
                }
            }
        }
    }

    /// Merges the runs of some keyspaces into their last levels.
    fn merge_all(&self, spaces: &[Arc<Space>]) -> Result<()> {
        let limit = self.tree.catalog().numbers().next();
        let mut failure = None;
        for space in spaces {
            match self.merge(space, limit) {
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
    fn merge(&self, space: &Space, limit: u64) -> Result<()> {
        loop {
            let guard = self.directory.enter()?;
            let _one_at_a_time = self.lock_compacting();
            self.remove_covered_runs(&guard)?;
            let state = space.state.load();
            let picked = pick_full(&state.levels, limit, &state.ranges);
            drop(state);
            let Some(compaction) = picked else { break };
            self.run_compaction(&guard, space, &compaction)?;
        }
        Ok(())
    }

    /// Does a compaction. That it cannot read or write runs is the keyspace's concern, which the error then names.
    fn run_compaction(
        &self,
        guard: &DirGuard<'_>,
        space: &Space,
        compaction: &Compaction,
    ) -> Result<()> {
        self.tree.catalog().write_again()?;
        let run_bytes = space.options.load().tree.run_bytes;
        // Not the state, which holds memtables, for as long as this takes.
        let ranges = Arc::clone(&space.state.load().ranges);
        let (snapshots, expired_sequence) = self.list_readers(space);
        let retain = Retain::new(space.order().clone(), snapshots)
            .with_ranges(vec![ranges])
            .with_expired(expired_sequence);
        let done = self.with_build(space, run_bytes, |build| compact(compaction, retain, build));
        let mut done = match done {
            Ok(done) => done,
            Err(Error::Closed) => return Err(Error::Closed),
            Err(error) => {
                let failed = space.note_compaction(Err(error));
                self.note_pressure();
                self.work.nudge();
                return failed;
            }
        };
        space.note_compaction(Ok(()))?;
        done.edit.expired_sequence = expired_sequence;
        self.install(guard, &[(space.id(), done.edit)], Memtables::Same)?;
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
        space: &Arc<Space>,
        runs: Vec<Arc<Run>>,
        sequence: u64,
        active: &mut Generation,
    ) -> Result<()> {
        // Who still reads the state before must not find in its memtable what is written from now on, and not the
        // ingestion, which comes before that.
        let table = space.new_table(&self.options, active.limit_bytes)?;
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
        self.install(guard, &[(space.id(), edit)], memtables)?;
        active.replace(space, table);
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
        let spaces = self.spaces.load();
        for (id, _) in edits {
            let (Some(space), Some(runs)) = (spaces.by_id(*id), catalog.runs_of(*id)) else {
                continue;
            };
            match &memtables {
                Memtables::Same => space.show_runs(runs),
                Memtables::Flushed(flushed) => {
                    space.show_flushed(runs, flushed.generation.table(*id));
                }
                Memtables::Ingested { table, .. } if planted::is(Defect::IngestionShownEarly) => {
                    space.show_ingested(runs, table);
                }
                // Visible first, for readers without a lock: one that sees the runs goes by a number that sees what is in
                // them, and one that does not see them has the state before, in which nothing has the number.
                Memtables::Ingested { sequence, table } => self.snapshots.hold_off(|| {
                    // Behind a hole no number is given: the log refuses an ingestion then.
                    if self.visible.publish(*sequence, *sequence).is_ok() {
                        space.show_ingested(runs, table);
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
        space: &Space,
        run_bytes: u64,
        f: impl FnOnce(&Build<'_>) -> Result<T>,
    ) -> Result<T> {
        let numbers = Arc::clone(self.tree.catalog().numbers());
        f(&Build {
            io: &*self.io,
            dir: &self.path,
            order: space.order(),
            comparator: space.comparator().name(),
            keyspace: (space.id(), space.name()),
            cache: &self.cache,
            options: space.options.load().run,
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
