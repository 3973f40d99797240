//! Compaction: which runs are merged next, and how callers wait for it.

use std::sync::Arc;

use forerun_core::sync::time;

use super::Inner;
use super::background_work::{FailOn, Task};
use super::directory::DirGuard;
use super::install::MemTableChange;
use super::keyspace_data::KeyspaceData;
use super::tree::Tree;
use crate::events::{BackgroundTask, CompactionReason};
use crate::tree::build::Build;
use crate::tree::compact::{Compacted, compact};
use crate::tree::levels::Edit;
use crate::tree::pick::{
    Compaction, Existing, Obsolete, compaction_score, pick, pick_for_ranges, pick_full,
};
use crate::tree::retain::Retain;
use crate::{Error, Result};

/// Notes that a compaction has ended when this is dropped.
struct RunningCompaction<'a>(&'a Tree);

impl Drop for RunningCompaction<'_> {
    fn drop(&mut self) {
        self.0.catalog().end_compaction();
    }
}

impl Inner {
    /// Runs the most urgent compaction of all keyspaces. Returns `false` if none is due.
    pub(super) fn compact_one(&self) -> Result<bool> {
        let guard = self.directory.enter()?;
        let _one_at_a_time = self.tree.lock_compacting();
        self.compact_most_urgent(&guard)
    }

    /// [`compact_one`](Self::compact_one) for a caller that holds the lock.
    fn compact_most_urgent(&self, guard: &DirGuard<'_>) -> Result<bool> {
        if self.remove_covered_runs(guard)? {
            return Ok(true);
        }
        let keyspaces = self.keyspaces.load_full();
        let now = time::now();
        // A keyspace whose compaction failed recently waits, and others get their turn.
        let may_be_tried = |keyspace: &&Arc<KeyspaceData>| {
            let wait = keyspace.compaction_wait(now);
            wait.is_none_or(|wait| wait.is_zero())
        };
        let mut due: Vec<(f64, &Arc<KeyspaceData>)> = keyspaces
            .iter()
            .filter(may_be_tried)
            .map(|keyspace| (self.compaction_score_of(keyspace), keyspace))
            .filter(|(compaction_score, _)| *compaction_score >= 1.0)
            .collect();
        due.sort_by(|a, b| b.0.total_cmp(&a.0));
        let picked = due.into_iter().find_map(|(_, keyspace)| {
            let levels = Arc::clone(&keyspace.version.load().levels);
            let tree = keyspace.options.load().tree;
            let for_ranges = || {
                Some((
                    self.pick_for_ranges(keyspace)?,
                    CompactionReason::RangeDeletions,
                ))
            };
            pick(&levels, &tree, self.oldest_reader())
                .map(|compaction| (compaction, CompactionReason::Level))
                .or_else(for_ranges)
                .map(|(compaction, reason)| (keyspace, compaction, reason))
        });
        match picked {
            None => Ok(false),
            Some((keyspace, compaction, reason)) => {
                match self.run_compaction(guard, keyspace, &compaction, reason) {
                    // The failure concerns this keyspace only; others may have work.
                    Err(error @ Error::CompactionFailed { .. }) => {
                        self.notify_of_error(BackgroundTask::Compaction, &error);
                        let path = self.path.display();
                        tracing::error!(%error, %path, "a compaction failed, and will be tried \
                            again");
                        Ok(true)
                    }
                    result => result.map(|()| true),
                }
            }
        }
    }

    /// How far a keyspace's levels exceed their targets. A compaction is due at 1 or more, and if
    /// range deletions take too much memory.
    pub(super) fn compaction_score_of(&self, keyspace: &KeyspaceData) -> f64 {
        let version = keyspace.version.load();
        let tree = keyspace.options.load().tree;
        let score = compaction_score(&version.levels, &tree, || self.oldest_reader());
        if score < 1.0 && self.pick_for_ranges(keyspace).is_some() {
            1.0
        } else {
            score
        }
    }

    /// A compaction that gets rid of range deletions, if they take too much memory.
    fn pick_for_ranges(&self, keyspace: &KeyspaceData) -> Option<Compaction> {
        let version = keyspace.version.load();
        if version.ranges.is_empty() {
            return None;
        }
        let limit_bytes = self.memtables.flushed_ranges_due_bytes();
        let tree = keyspace.options.load().tree;
        let picked = pick_for_ranges(&version.levels, &tree, &version.ranges, limit_bytes)?;
        // Versions that an older snapshot sees stay, and so do the range deletions.
        let largest = version.ranges.largest_sequence();
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
            .any(|keyspace| self.compaction_score_of(keyspace) >= 1.0)
    }

    /// Waits until there is nothing to flush or compact and obsolete files are deleted. Writes the
    /// manifest again if that failed, and evicts cached pages beyond their budget, unless readers
    /// hold them.
    pub(super) fn wait_idle(&self) -> Result<()> {
        if self.check_access().is_err() {
            // A read-only store never has work in progress.
            return Ok(());
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
            // A keyspace whose compaction has failed has had its turn. Wait for the others.
            let is_left = |keyspace: &Arc<KeyspaceData>| {
                self.compaction_score_of(keyspace) >= 1.0 && failed(keyspace).is_none()
            };
            let is_done = is_flushed && !keyspaces.iter().any(is_left);
            if !self.work.done_or_fails(is_done, Task::Compact, fail_on)? {
                return Ok(false);
            }
            keyspaces.iter().find_map(failed).map_or(Ok(true), Err)
        })?;
        // The thread that did the last piece of work holds what it replaced until that work ends.
        drop(self.tree.lock_flushing());
        drop(self.tree.lock_compacting());
        // Runs that only a failed manifest names are kept until a manifest is written.
        let guard = self.directory.enter()?;
        self.tree.catalog().write_again()?;
        drop(guard);
        self.wait_until(|| Ok(self.tree.obsolete_files.is_empty()))?;
        self.tree.cache.evict_to_budget();
        Ok(())
    }

    /// Removes runs in which everything has expired or was deleted by range. Returns `false` if
    /// there are none.
    fn remove_covered_runs(&self, guard: &DirGuard<'_>) -> Result<bool> {
        let mut edits = self.tree.edits();
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
                *edits.edit_mut(keyspace.id()) = edit;
            }
        }
        if edits.is_empty() {
            Ok(false)
        } else {
            self.install(guard, edits, MemTableChange::Same)
                .map(|()| true)
        }
    }

    /// Returns the sequence numbers at which readers read a keyspace, and the sequence number up to
    /// which everything in it has expired for all of them. The caller has already chosen what to
    /// write, so all of that is visible.
    pub(super) fn list_readers(&self, keyspace: &KeyspaceData) -> (Vec<u64>, u64) {
        let now = || self.write_path.read_point(keyspace);
        self.snapshots.list(keyspace.id(), now)
    }

    /// The sequence number at which the oldest reader reads. It never decreases.
    fn oldest_reader(&self) -> u64 {
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

    /// Flushes, then compacts everything in some keyspaces down to the last level.
    pub(super) fn compact_all(&self, keyspaces: &[Arc<KeyspaceData>]) -> Result<()> {
        self.flush_all()?;
        self.guard("compacting", || self.merge_all(keyspaces))?;
        self.keyspaces.load().load_filters();
        Ok(())
    }

    /// Merges the runs of some keyspaces into their last levels.
    fn merge_all(&self, keyspaces: &[Arc<KeyspaceData>]) -> Result<()> {
        // A compaction in progress may not know of what was deleted last.
        let none_runs = self.tree.lock_compacting();
        let existing = self.tree.catalog().existing();
        drop(none_runs);
        let mut failure = None;
        for keyspace in keyspaces {
            match self.merge(keyspace, existing) {
                // The failure concerns this keyspace only; the others can still be compacted.
                Err(error @ Error::CompactionFailed { .. }) => {
                    failure.get_or_insert(error);
                }
                result => result?,
            }
        }
        failure.map_or(Ok(()), Err)
    }

    /// Merges what existed in a keyspace into its last level.
    fn merge(&self, keyspace: &KeyspaceData, existing: Existing) -> Result<()> {
        loop {
            let guard = self.directory.enter()?;
            let _one_at_a_time = self.tree.lock_compacting();
            // The lock is not fair: the background thread, which waits for it too, may never get
            // it. So its work is done here, in turns, and writers do not wait for the last step.
            if self.compact_most_urgent(&guard)? {
                self.work.notify();
            }
            let version = keyspace.version.load();
            let tree = keyspace.options.load().tree;
            let (_, expired_sequence) = self.list_readers(keyspace);
            let obsolete = Obsolete {
                ranges: &version.ranges,
                expired_sequence,
            };
            let picked = pick_full(&version.levels, &tree, existing, obsolete);
            drop(version);
            let Some(compaction) = picked else { break };
            self.run_compaction(&guard, keyspace, &compaction, CompactionReason::Requested)?;
        }
        Ok(())
    }

    /// Runs a compaction. If runs cannot be read or written, the error names the keyspace, the only
    /// one affected.
    fn run_compaction(
        &self,
        guard: &DirGuard<'_>,
        keyspace: &KeyspaceData,
        compaction: &Compaction,
        reason: CompactionReason,
    ) -> Result<()> {
        let mut catalog = self.tree.catalog();
        catalog.write_again()?;
        if !catalog.begin_compaction(keyspace.id(), compaction) {
            // The caller picks again.
            return Ok(());
        }
        drop(catalog);
        let _running = RunningCompaction(&self.tree);
        self.notify_of_compaction(keyspace, reason, compaction, || {
            self.merge_runs(guard, keyspace, compaction)
        })
    }

    /// [`run_compaction`](Self::run_compaction), once it is certain that the runs are there.
    fn merge_runs(
        &self,
        guard: &DirGuard<'_>,
        keyspace: &KeyspaceData,
        compaction: &Compaction,
    ) -> Result<Compacted> {
        let run_bytes = compaction.run_bytes(&keyspace.options.load().tree);
        // Do not hold the super version that long: it holds memtables.
        let ranges = Arc::clone(&keyspace.version.load().ranges);
        let (snapshots, expired_sequence) = self.list_readers(keyspace);
        let retain = Retain::new(keyspace.order().clone(), snapshots)
            .with_ranges(vec![ranges])
            .with_expired(expired_sequence);
        let build = self.build(keyspace, compaction.into, run_bytes);
        let mut done = match compact(compaction, retain, &build) {
            Ok(done) => done,
            Err(Error::Closed) => return Err(Error::Closed),
            Err(error) => {
                let failed = keyspace.note_compaction(Err(error));
                self.note_pressure();
                self.work.notify();
                return failed.map(|()| Compacted::default());
            }
        };
        done.edit.expired_sequence = expired_sequence;
        let edit = std::mem::take(&mut done.edit);
        let edits = self.tree.edits().with(keyspace.id(), edit);
        keyspace.note_compaction(Ok(()))?;
        self.install(guard, edits, MemTableChange::Same)?;
        self.tree.count(|counts| {
            counts.compactions += 1;
            counts.compaction_read_bytes += done.read_bytes;
            counts.compaction_written_bytes += done.written_bytes;
            counts.dropped_entries += done.dropped;
            counts.dropped_deletions += done.dropped_deletions;
        });
        self.work.notify();
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
