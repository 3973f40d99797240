//! Compaction: which runs are merged next, and how callers wait for it.
//!
//! ```text
//!   lock picking, catalog ── pick, begin: its runs are taken ── unlock
//!     ── read runs, write runs, beside other compactions ── install ── end: its runs are free
//! ```

use std::collections::HashSet;
use std::sync::Arc;

use forerun_core::sync::time;

use super::Inner;
use super::background_work::{FailOn, Task};
use super::directory::DirGuard;
use super::install::MemTableChange;
use super::keyspace_data::KeyspaceData;
use super::keyspaces::KeyspaceSet;
use super::running_compaction::RunningCompaction;
use crate::events::{BackgroundTask, CompactionReason};
use crate::ranges::Ranges;
use crate::tree::build::Build;
use crate::tree::catalog::{Catalog, KeyspaceRuns};
use crate::tree::compact::{Compacted, compact};
use crate::tree::levels::{Edit, Levels};
use crate::tree::limiter::IoClass;
use crate::tree::pick::{
    Compaction, Running, compaction_score, pick, pick_for_ranges, ranges_score,
};
use crate::tree::retain::Retain;
use crate::{Background, Error, Result, TreeOptions, panics};

/// What a thread was doing when a comparator panicked.
const CHOOSING: &str = "choosing a compaction";

impl Inner {
    /// Runs the most urgent compaction of all keyspaces that may begin beside those that run.
    /// Returns `false` if there is none.
    pub(super) fn compact_one(&self) -> Result<bool> {
        let guard = self.directory.enter()?;
        let picking = self.tree.lock_picking();
        if self.remove_covered_runs(&guard)? {
            return Ok(true);
        }
        let keyspaces = self.keyspaces.load_full();
        self.forget_failures(&keyspaces);
        let due = self.begin_most_urgent(keyspaces.iter(), true)?;
        drop((picking, keyspaces));
        match due {
            Some(due) => self.run_due(&guard, due).map(|()| true),
            None => Ok(false),
        }
    }

    /// Forgets failures of runs that are gone, and of keyspaces in which there is nothing left to
    /// retry. The caller holds the lock for picking, so no compaction begins meanwhile.
    fn forget_failures(&self, keyspaces: &KeyspaceSet) {
        let is_idle = |of: &Arc<KeyspaceData>| {
            let ids = self.tree.catalog().running().ids_in(of.id());
            ids.is_empty() && self.compaction_score_of(of) < 1.0
        };
        let failing = keyspaces.iter().filter(|of| of.is_compaction_failing());
        let forgotten = failing.filter(|of| of.forget_failures(is_idle(of)));
        if forgotten.count() > 0 {
            self.note_pressure();
        }
    }

    /// Begins the most urgent compaction that a full compaction of a keyspace may delay: of that
    /// keyspace, and of all others if no background threads compact them.
    pub(super) fn begin_due_beside(
        &self,
        keyspace: &KeyspaceData,
    ) -> Result<Option<RunningCompaction<'_>>> {
        let _picking = self.tree.lock_picking();
        let keyspaces = self.keyspaces.load_full();
        let may_be_delayed = |of: &&Arc<KeyspaceData>| {
            of.id() == keyspace.id() || self.options.background == Background::Caller
        };
        self.begin_most_urgent(keyspaces.iter().filter(may_be_delayed), false)
    }

    /// Begins the most urgent compaction of these keyspaces. The caller holds the lock for picking.
    fn begin_most_urgent<'k>(
        &self,
        keyspaces: impl Iterator<Item = &'k Arc<KeyspaceData>>,
        is_background: bool,
    ) -> Result<Option<RunningCompaction<'_>>> {
        let now = time::now();
        let is_due = |keyspace: &&Arc<KeyspaceData>| self.compaction_score_of(keyspace) >= 1.0;
        let due: Vec<_> = keyspaces.filter(is_due).collect();
        if due.is_empty() {
            return Ok(None);
        }
        // Under this lock the runs stay as they are.
        let mut catalog = self.tree.catalog();
        let running = catalog.running();
        // One thread is left for level 0, for which writers may wait.
        let is_level0_only =
            is_background && running.deeper_in_background() >= self.deeper_compactions_max();
        let running_in = |of: &KeyspaceData| {
            // While a full compaction waits, what it waits for does not become more.
            let has_no_turn = is_background && running.is_waiting(of.id());
            let beside = running.in_keyspace(of.id());
            beside
                .level0_only(is_level0_only || has_no_turn)
                .without(of.unreadable_runs_waiting(now))
        };
        // After a failure that no single run explains, a keyspace waits, and others get their turn.
        // Then a single compaction shows whether it fails again.
        let may_be_tried = |of: &&Arc<KeyspaceData>| {
            let is_tried = |at| running.in_keyspace(of.id()).has_begun_since(at);
            let retry_at = of.compaction_retry_at();
            retry_at.is_none_or(|at| at <= now && !is_tried(at))
        };
        let mut scored: Vec<_> = due
            .into_iter()
            .filter(may_be_tried)
            .filter_map(|of| Some((of, catalog.runs_of(of.id())?, running_in(of))))
            .map(|(of, runs, beside)| {
                let score = self.score(of, &runs.levels, &runs.ranges, &beside);
                (score, of, runs, beside)
            })
            .filter(|(score, ..)| *score >= 1.0)
            .collect();
        scored.sort_by(|a, b| b.0.total_cmp(&a.0));
        let picked = scored
            .into_iter()
            .find_map(|(_, of, runs, beside)| Some((of, self.pick_in(of, runs, &beside)?)));
        let Some((keyspace, picked)) = picked else {
            return Ok(None);
        };
        catalog.write_again()?;
        let begun = RunningCompaction::begin(self, &mut catalog, keyspace, picked, is_background);
        Ok(begun)
    }

    /// The most urgent compaction of a keyspace that may begin beside those that run.
    fn pick_in(
        &self,
        keyspace: &KeyspaceData,
        runs: &KeyspaceRuns,
        running: &Running<'_>,
    ) -> Option<(Compaction, CompactionReason)> {
        let (levels, ranges) = (&runs.levels, &runs.ranges);
        let tree = keyspace.options.load().tree;
        let for_levels = || {
            let picked = pick(levels, &tree, self.oldest_reader(), running)?;
            Some((picked, CompactionReason::Level))
        };
        let for_ranges = || {
            let picked = self.pick_for_ranges(keyspace, levels, ranges, running)?;
            Some((picked, CompactionReason::RangeDeletions))
        };
        let for_deletions = || {
            let picked = self.pick_for_deletions(keyspace, levels, running)?;
            Some((picked, CompactionReason::Deletions))
        };
        let of_levels = compaction_score(levels, &tree, running, || self.oldest_reader());
        let picked = if self.ranges_score(&tree, levels, ranges) > of_levels {
            for_ranges().or_else(for_levels)
        } else {
            for_levels().or_else(for_ranges)
        };
        picked.or_else(for_deletions)
    }

    /// Whether a compaction is due in a keyspace that takes none of the runs that could not be
    /// read.
    fn may_compact_others(&self, keyspace: &KeyspaceData) -> Result<bool> {
        if keyspace.compaction_retry_at().is_some() {
            return Ok(false);
        }
        let catalog = self.tree.catalog();
        let running = catalog.running().in_keyspace(keyspace.id());
        let running = running.without(keyspace.unreadable_runs());
        panics::catch_if(keyspace.order().may_panic(), CHOOSING, || {
            let runs = catalog.runs_of(keyspace.id());
            Ok(runs.is_some_and(|runs| self.pick_in(keyspace, runs, &running).is_some()))
        })
    }

    /// How many background threads may compact levels below level 0 at a time.
    fn deeper_compactions_max(&self) -> usize {
        match self.options.background {
            Background::Threads => self.options.background_threads.saturating_sub(1).max(1),
            Background::Caller => usize::MAX,
        }
    }

    /// Runs a compaction that was due. A failure that concerns its keyspace only is not the
    /// caller's.
    pub(super) fn run_due(&self, guard: &DirGuard<'_>, due: RunningCompaction<'_>) -> Result<()> {
        let result = self.run_compaction(guard, &due);
        drop(due);
        match result {
            // The failure concerns this keyspace only; others may have work.
            Err(error @ Error::CompactionFailed { .. }) => {
                self.notify_of_error(BackgroundTask::Compaction, &error);
                let path = self.path.display();
                tracing::error!(%error, %path, "a compaction failed, and will be tried again");
                Ok(())
            }
            result => result,
        }
    }

    /// How urgent a compaction of a keyspace is, with the runs that are being compacted: how far
    /// its levels exceed their targets, or range deletions their memory. One is due at 1 or more.
    pub(super) fn compaction_score_of(&self, keyspace: &KeyspaceData) -> f64 {
        let version = keyspace.version.load();
        self.score(
            keyspace,
            &version.levels,
            &version.ranges,
            &Running::default(),
        )
    }

    /// How urgent a compaction of a keyspace is beside those that run.
    fn score(
        &self,
        keyspace: &KeyspaceData,
        levels: &Levels,
        ranges: &Ranges,
        running: &Running<'_>,
    ) -> f64 {
        let tree = keyspace.options.load().tree;
        let score = compaction_score(levels, &tree, running, || self.oldest_reader());
        let of_ranges = self.ranges_score(&tree, levels, ranges);
        let for_ranges = || self.pick_for_ranges(keyspace, levels, ranges, running);
        if of_ranges > score && for_ranges().is_some() {
            return of_ranges;
        }
        if score < 1.0 && self.has_due_deletions(keyspace, levels, running) {
            1.0
        } else {
            score
        }
    }

    /// How far the range deletions of a keyspace exceed the memory that they may take.
    fn ranges_score(&self, tree: &TreeOptions, levels: &Levels, ranges: &Ranges) -> f64 {
        if ranges.is_empty() {
            return 0.0;
        }
        ranges_score(levels, tree, ranges, self.memtables.flushed_ranges_score())
    }

    /// A compaction that gets rid of range deletions, if they take too much memory.
    fn pick_for_ranges(
        &self,
        keyspace: &KeyspaceData,
        levels: &Levels,
        ranges: &Ranges,
        running: &Running<'_>,
    ) -> Option<Compaction> {
        let tree = keyspace.options.load().tree;
        if running.is_level0_only() || self.ranges_score(&tree, levels, ranges) < 1.0 {
            return None;
        }
        let picked = pick_for_ranges(levels, &tree, ranges, running)?;
        // Versions that an older snapshot sees stay, and so do the range deletions.
        let largest = ranges.largest_sequence();
        let (snapshots, _) = self.list_readers(keyspace);
        let all_see_them = snapshots.iter().all(|snapshot| *snapshot >= largest);
        all_see_them.then_some(picked)
    }

    /// Whether any keyspace's levels exceed their targets. Runs that are being compacted still
    /// count.
    pub(super) fn is_compaction_due(&self) -> bool {
        let keyspaces = self.keyspaces.load();
        keyspaces
            .iter()
            .any(|keyspace| self.is_due_in(keyspace).unwrap_or(true))
    }

    /// Whether a keyspace's levels exceed their targets, for callers that may not panic.
    fn is_due_in(&self, keyspace: &KeyspaceData) -> Result<bool> {
        panics::catch_if(keyspace.order().may_panic(), CHOOSING, || {
            Ok(self.compaction_score_of(keyspace) >= 1.0)
        })
    }

    /// Waits until there is nothing to flush, compact or load and obsolete files are deleted.
    /// Removes runs in which nothing is left, writes the manifest again if that failed, and evicts
    /// cached pages beyond their budget, unless readers hold them.
    pub(super) fn wait_idle(&self) -> Result<()> {
        if self.check_access().is_err() {
            // A read-only store never has other work.
            return self.load_filters_and_wait();
        }
        let asked = time::now();
        for keyspace in self.keyspaces.load().iter() {
            keyspace.retry_compaction(asked);
        }
        // Wakes the workers, which then see the keyspaces to retry.
        self.work.retry(asked);
        let fail_on = FailOn::Since(asked);
        self.wait_until(|| {
            let is_flushed = self.memtables.is_flushed();
            self.work.done_or_fails(is_flushed, Task::Flush, fail_on)?;
            let keyspaces = self.keyspaces.load();
            let failed = |keyspace: &Arc<KeyspaceData>| keyspace.compaction_failure_since(asked);
            // A compaction that has failed has had its turn. Wait for the others.
            let is_left = |keyspace: &Arc<KeyspaceData>| {
                Ok(self.is_due_in(keyspace)?
                    && (failed(keyspace).is_none() || self.may_compact_others(keyspace)?))
            };
            let guard = self.directory.enter()?;
            // No compaction begins between the two.
            let picking = self.tree.lock_picking();
            let left: Result<Vec<bool>> = keyspaces.iter().map(is_left).collect();
            let is_done = is_flushed && !self.is_compacting() && !left?.contains(&true);
            // Workers look for them once they are woken. No compaction holds any now.
            let remove = || self.remove_covered_runs(&guard);
            if is_done && self.guard("removing covered runs", remove)? {
                // What is left may be due, or covered, too.
                self.work.notify();
                return Ok(false);
            }
            drop((picking, guard));
            if !self.work.done_or_fails(is_done, Task::Compact, fail_on)? {
                return Ok(false);
            }
            keyspaces.iter().find_map(failed).map_or(Ok(true), Err)
        })?;
        // A thread that flushes, looks for work or loads filters holds what was replaced until it
        // is done.
        drop(self.tree.lock_flushing());
        drop(self.tree.lock_picking());
        self.load_filters_and_wait()?;
        // Runs that only a failed manifest names are kept until a manifest is written.
        let guard = self.directory.enter()?;
        self.tree.catalog().write_again()?;
        drop(guard);
        // The caller waits, so the removals are not spread over time.
        let _hurry = self.tree.obsolete_files.hurry();
        self.wait_until(|| {
            let _guard = self.directory.enter()?;
            // Until the store is being closed, which waits for the guard.
            self.tree.obsolete_files.remove_all();
            Ok(self.tree.obsolete_files.is_empty())
        })?;
        self.tree.cache.evict_to_budget();
        Ok(())
    }

    /// Removes runs in which everything has expired or was deleted by range. Returns `false` if
    /// there are none.
    fn remove_covered_runs(&self, guard: &DirGuard<'_>) -> Result<bool> {
        let mut covered: Vec<(u32, Edit)> = Vec::new();
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
                covered.push((keyspace.id(), edit));
            }
        }
        if covered.is_empty() {
            return Ok(false);
        }
        let catalog = self.tree.catalog();
        let mut edits = self.tree.edits();
        for (id, mut edit) in covered {
            leave_taken(&catalog, id, &mut edit);
            if !edit.removed.is_empty() {
                *edits.edit_mut(id) = edit;
            }
        }
        if edits.is_empty() {
            return Ok(false);
        }
        self.install_in(catalog, guard, edits, MemTableChange::Same)
            .map(|()| true)
    }

    /// Returns the sequence numbers at which readers read a keyspace, and the sequence number up to
    /// which everything in it has expired for all of them. The caller has already chosen what to
    /// write, so all of that is visible.
    pub(super) fn list_readers(&self, keyspace: &KeyspaceData) -> (Vec<u64>, u64) {
        let now = || self.write_path.read_point(keyspace);
        self.snapshots.list(keyspace.id(), now)
    }

    /// The sequence number at which the oldest reader reads. It never decreases.
    pub(super) fn oldest_reader(&self) -> u64 {
        let newest = || self.write_path.visible_sequence();
        self.snapshots.oldest(newest)
    }

    /// After a snapshot is gone: wakes the compaction thread if no one else saw some versions.
    pub(super) fn note_snapshot_gone(&self) {
        let obsolete_from = self.tree.obsolete_from();
        if obsolete_from < u64::MAX && obsolete_from <= self.oldest_reader() {
            self.work.notify();
        }
    }

    /// Runs a compaction. If runs cannot be read or written, the error names the keyspace, the only
    /// one affected.
    pub(super) fn run_compaction(
        &self,
        guard: &DirGuard<'_>,
        running: &RunningCompaction<'_>,
    ) -> Result<()> {
        let keyspace = &running.keyspace;
        let Some(compaction) = running.compaction() else {
            return Ok(());
        };
        self.notify_of_compaction(keyspace, running.reason, compaction, || {
            self.merge_runs(guard, running, compaction)
        })
    }

    /// Merges the runs of a compaction and installs the result.
    fn merge_runs(
        &self,
        guard: &DirGuard<'_>,
        running: &RunningCompaction<'_>,
        compaction: &Compaction,
    ) -> Result<Compacted> {
        let keyspace = &running.keyspace;
        let run_bytes = compaction.run_bytes(&keyspace.options.load().tree);
        // Do not hold the super version that long: it holds memtables.
        let ranges = Arc::clone(&keyspace.version.load().ranges);
        let (snapshots, expired_sequence) = self.list_readers(keyspace);
        let retain = Retain::new(keyspace.order().clone(), snapshots)
            .with_ranges(vec![ranges])
            .with_expired(expired_sequence);
        let mut build = self.build(keyspace, compaction.into, run_bytes);
        build.class = IoClass::of_level(compaction.from);
        let mut done = match compact(compaction, &running.older, &retain, &build, running.threads) {
            Ok(done) => done,
            Err(error @ (Error::Closed | Error::Panicked { .. })) => return Err(error),
            Err(error) => {
                let run = compaction.unreadable_run(&error);
                let failed = keyspace.note_compaction_failed(run, error, running.begun);
                self.note_pressure();
                return Err(failed);
            }
        };
        done.edit.expired_sequence = expired_sequence;
        let edit = std::mem::take(&mut done.edit);
        let edits = self.tree.edits().with(keyspace.id(), edit);
        // A run that only moved is as unreadable as before.
        let read = compaction.numbers().filter(|_| !done.is_move());
        keyspace.note_compacted(read, running.begun);
        self.install(guard, edits, MemTableChange::Same)?;
        self.tree.count(|counts| {
            counts.compactions += 1;
            counts.compaction_read_bytes += done.read_bytes;
            counts.compaction_written_bytes += done.written_bytes;
            counts.dropped_entries += done.dropped;
            counts.dropped_deletions += done.dropped_deletions;
        });
        Ok(done)
    }

    /// Where and how to write a keyspace's runs for a level, each of about this size.
    pub(super) fn build<'a>(
        &'a self,
        keyspace: &'a KeyspaceData,
        level: usize,
        run_bytes: u64,
    ) -> Build<'a> {
        let stop = self.work.stop_flag();
        self.tree.build(keyspace, level, run_bytes, stop)
    }
}

/// Leaves those runs that a compaction has taken, or that are gone. A compaction writes what it
/// keeps of a run once more; if the run were removed meanwhile, the range deletions that cover what
/// it holds might be forgotten.
fn leave_taken(catalog: &Catalog, keyspace: u32, edit: &mut Edit) {
    let Some(runs) = catalog.runs_of(keyspace) else {
        edit.removed.clear();
        return;
    };
    let running = catalog.running().in_keyspace(keyspace);
    let free = runs.levels.runs().map(|(_, run)| run);
    let free = free.filter(|run| !running.takes(run));
    let free: HashSet<u64> = free.map(|run| run.number()).collect();
    edit.removed.retain(|number| free.contains(number));
}

#[cfg(test)]
#[path = "compaction_tests.rs"]
mod tests;
