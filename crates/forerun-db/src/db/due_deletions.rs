//! When deletions are due for a compaction that frees the space of what they hide.

use std::time::{Duration, Instant};

use forerun_core::sync::time;

use super::Inner;
use super::keyspace_data::KeyspaceData;
use crate::tree::levels::Levels;
use crate::tree::pick::{Compaction, DueAt, Running, has_due_deletions, pick_for_deletions};

/// How often to look whether the reader is gone for which old deletions wait. A snapshot that is
/// dropped wakes the threads only for what it alone has kept.
const HELD_CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// The system clock may be set forward, and counts while the machine sleeps.
const CHECK_INTERVAL_MAX: Duration = Duration::from_secs(3_600);

impl Inner {
    /// Whether a run of a keyspace is due because of its deletions.
    pub(super) fn has_due_deletions(
        &self,
        keyspace: &KeyspaceData,
        levels: &Levels,
        running: &Running<'_>,
    ) -> bool {
        let tree = keyspace.options.load().tree;
        has_due_deletions(levels, &tree, running, || self.deletions_due_at())
    }

    /// A compaction of a run that is due because of its deletions.
    pub(super) fn pick_for_deletions(
        &self,
        keyspace: &KeyspaceData,
        levels: &Levels,
        running: &Running<'_>,
    ) -> Option<Compaction> {
        let tree = keyspace.options.load().tree;
        pick_for_deletions(levels, &tree, self.deletions_due_at(), running)
    }

    /// By the clock that dates runs. One that never goes back would show too late a time after the
    /// system clock was set back, and every new run would be old.
    fn deletions_due_at(&self) -> DueAt {
        DueAt {
            oldest_reader: self.oldest_reader(),
            unix_s: self.io.unix_time_s(),
        }
    }

    /// How soon to look for deletions that have become old, if there may be any, after a thread
    /// that `looked` for work found none.
    pub(super) fn deletions_check_interval(&self, looked: Instant) -> Option<Duration> {
        let keyspaces = self.keyspaces.load();
        let old_at = keyspaces.iter().filter_map(|keyspace| {
            let max_age = keyspace.options.load().tree.deletion_max_age?;
            let oldest_unix = keyspace.version.load().levels.deletions().oldest_unix()?;
            Some(oldest_unix.saturating_add(max_age.as_secs()))
        });
        let now = self.io.unix_time_s();
        // Both times are exact to a second.
        let looked_at = now.saturating_sub(time::elapsed(looked).as_secs() + 1);
        let intervals = old_at.map(|old_at| {
            if old_at < looked_at {
                // A reader keeps them, or another thread is at it.
                HELD_CHECK_INTERVAL
            } else {
                let left_s = old_at.saturating_sub(now).max(1);
                Duration::from_secs(left_s).min(CHECK_INTERVAL_MAX)
            }
        });
        intervals.min()
    }
}
