//! Compaction: which runs are merged next, and how callers wait for it.

use forerun_core::sync::atomic::Ordering;
use std::sync::Arc;

use std::time::{Duration, Instant};

use forerun_core::sync::time;

use super::Inner;
use super::background_work::{FailOn, Task};
use super::directory::DirGuard;
use super::install::MemTableChange;
use super::keyspace_data::KeyspaceData;
use super::snapshots::ReadPoint;
use super::tree::Tree;
use crate::tree::build::Build;
use crate::tree::compact::compact;
use crate::tree::levels::Edit;
use crate::tree::pending_edits::PendingEdits;
use crate::tree::pick::{Compaction, Existing, compaction_score, pick, pick_full};
use crate::tree::range_compaction::pick_for_ranges;
use crate::tree::retain::Retain;
use crate::{Error, Result};

/// A worker that waits to retry a compaction sleeps at least this long.
const WAIT_MIN: Duration = Duration::from_millis(50);

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
            pick(&levels, &tree, self.oldest_reader())
                .or_else(|| self.pick_for_ranges(keyspace))
                .map(|compaction| (keyspace, compaction))
        });
        match picked {
            None => Ok(false),
            Some((keyspace, compaction)) => {
                match self.run_compaction(guard, keyspace, &compaction) {
                    // The failure concerns this keyspace only; others may have work.
                    Err(error @ Error::CompactionFailed { .. }) => {
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
        let limit_bytes = self.flushed_ranges_limit_bytes() / 2;
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
        let asked = self.retry_compactions();
        let fail_on = FailOn::Since(asked);
        self.wait_until(|| {
            let is_flushed = self.memtables.frozen().is_empty();
            self.or_fails(is_flushed, Task::Flush, fail_on)?;
            let keyspaces = self.keyspaces.load();
            let failed = |keyspace: &Arc<KeyspaceData>| keyspace.compaction_failure_since(asked);
            // A keyspace whose compaction has failed has had its turn. Wait for the others.
            let is_left = |keyspace: &Arc<KeyspaceData>| {
                self.compaction_score_of(keyspace) >= 1.0 && failed(keyspace).is_none()
            };
            let is_done = is_flushed && !keyspaces.iter().any(is_left);
            if !self.or_fails(is_done, Task::Compact, fail_on)? {
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

    /// Retries all failed work at once. Returns the current time: a failure after it is a new one.
    fn retry_compactions(&self) -> Instant {
        let now = time::now();
        for keyspace in self.keyspaces.load().iter() {
            keyspace.retry_compaction(now);
        }
        // Wakes the workers, which then see the keyspaces to retry.
        self.work.retry(now);
        now
    }

    /// How soon a failed compaction is to be retried, if one failed.
    pub(super) fn compaction_retry(&self) -> Option<Duration> {
        let now = time::now();
        let keyspaces = self.keyspaces.load();
        let failing = keyspaces
            .iter()
            .filter(|keyspace| self.compaction_score_of(keyspace) >= 1.0);
        let waits = failing.filter_map(|keyspace| keyspace.compaction_wait(now));
        waits.min().map(|wait| wait.max(WAIT_MIN))
    }

    /// Removes runs in which everything has expired or was deleted by range. Returns `false` if
    /// there are none.
    fn remove_covered_runs(&self, guard: &DirGuard<'_>) -> Result<bool> {
        let mut edits = PendingEdits::new(&self.tree.obsolete_files);
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
        self.snapshots.list(keyspace.id(), || {
            let sequence = self.write_path.published.last();
            ReadPoint {
                sequence,
                expired_sequence: keyspace.expired_sequence(&self.write_path.clock, sequence),
            }
        })
    }

    /// The sequence number at which the oldest reader reads. It never decreases.
    fn oldest_reader(&self) -> u64 {
        let newest = || self.write_path.published.last();
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
        self.load_filters();
        Ok(())
    }

    /// Loads filters that did not fit into memory when their runs were opened, newest runs first.
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
        let existing = self.tree.catalog().existing();
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
            self.compact_most_urgent(&guard)?;
            let version = keyspace.version.load();
            let tree = keyspace.options.load().tree;
            let picked = pick_full(&version.levels, &tree, existing, &version.ranges);
            drop(version);
            let Some(compaction) = picked else { break };
            self.run_compaction(&guard, keyspace, &compaction)?;
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
    ) -> Result<()> {
        let mut catalog = self.tree.catalog();
        catalog.write_again()?;
        if !catalog.begin_compaction(keyspace.id(), compaction) {
            // The caller picks again.
            return Ok(());
        }
        drop(catalog);
        let _running = RunningCompaction(&self.tree);
        let run_bytes = compaction.run_bytes(&keyspace.options.load().tree);
        // Do not hold the super version that long: it holds memtables.
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
                self.work.notify();
                return failed;
            }
        };
        done.edit.expired_sequence = expired_sequence;
        let edits = PendingEdits::new(&self.tree.obsolete_files).with(keyspace.id(), done.edit);
        keyspace.note_compaction(Ok(()))?;
        self.install(guard, edits, MemTableChange::Same)?;
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
        self.work.notify();
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
            comparator: keyspace.comparator_name(),
            keyspace: (keyspace.id(), keyspace.name()),
            cache: &self.tree.cache,
            options: keyspace.options.load().run,
            run_bytes,
            numbers: &numbers,
            limiter: &self.tree.limiter,
            stop: self.work.stop_flag(),
        })
    }
}
