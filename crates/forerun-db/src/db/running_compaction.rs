//! What a thread holds while it compacts, and while it waits until others have.

use std::sync::Arc;
use std::time::Instant;

use forerun_core::sync::time;

use super::Inner;
use super::keyspace_data::KeyspaceData;
use crate::events::CompactionReason;
use crate::tree::catalog::Catalog;
use crate::tree::pick::{Compaction, OlderKeys};
use crate::tree::subcompactions;
use crate::{Background, Result};

/// A compaction in progress. When this is dropped, others may take its runs.
pub(super) struct RunningCompaction<'a> {
    inner: &'a Inner,
    id: u64,
    pub(super) keyspace: Arc<KeyspaceData>,
    pub(super) reason: CompactionReason,
    pub(super) begun: Instant,
    pub(super) older: OlderKeys,
    /// How many threads may work on it.
    pub(super) threads: usize,
    compaction: Option<Compaction>,
}

/// While this lives, background threads compact nothing but level 0 of a keyspace.
pub(super) struct Turn<'a> {
    inner: &'a Inner,
    keyspace: u32,
}

impl<'a> RunningCompaction<'a> {
    /// Takes the runs of a compaction, picked under this lock; `None` if the keyspace is gone.
    pub(super) fn begin(
        inner: &'a Inner,
        catalog: &mut Catalog,
        keyspace: &Arc<KeyspaceData>,
        (compaction, reason): (Compaction, CompactionReason),
        is_background: bool,
    ) -> Option<RunningCompaction<'a>> {
        let begun = time::now();
        let callers = usize::from(!is_background);
        let threads = match inner.options.background {
            // The same calls in the same order each time.
            Background::Caller => 1,
            Background::Threads => {
                let all = inner.options.background_threads;
                // The caller's and the idle ones. A background thread begins one also if none is
                // left, as a long compaction may have all and level 0 must not wait for it.
                let most = callers + all.saturating_sub(catalog.running().threads());
                let run_bytes = compaction.run_bytes(&keyspace.options.load().tree);
                subcompactions::threads_max(&compaction, run_bytes).min(most.max(1))
            }
        };
        let (id, older) = catalog.begin(
            keyspace.id(),
            &compaction,
            is_background,
            threads - callers,
            begun,
        )?;
        Some(RunningCompaction {
            inner,
            id,
            keyspace: Arc::clone(keyspace),
            reason,
            begun,
            older,
            threads,
            compaction: Some(compaction),
        })
    }

    pub(super) fn compaction(&self) -> Option<&Compaction> {
        self.compaction.as_ref()
    }
}

impl Drop for RunningCompaction<'_> {
    fn drop(&mut self) {
        // Release the runs first: who waits for its end expects that they can be removed.
        drop(self.compaction.take());
        self.inner.tree.catalog().running_mut().end(self.id);
        self.inner.work.notify();
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut catalog = self.inner.tree.catalog();
        catalog.running_mut().set_waiting(self.keyspace, false);
        drop(catalog);
        self.inner.work.notify();
    }
}

impl Inner {
    /// Keeps background threads from compacting anything but level 0 of a keyspace.
    pub(super) fn take_turn(&self, keyspace: u32) -> Turn<'_> {
        let mut catalog = self.tree.catalog();
        catalog.running_mut().set_waiting(keyspace, true);
        drop(catalog);
        Turn {
            inner: self,
            keyspace,
        }
    }

    /// Waits until the compactions of a keyspace that run now have ended.
    pub(super) fn wait_for_running(&self, keyspace: u32) -> Result<()> {
        let ids = self.tree.catalog().running().ids_in(keyspace);
        self.wait_until(|| Ok(self.tree.catalog().running().count_of(&ids) == 0))
    }

    /// Waits until one of these compactions has ended.
    pub(super) fn wait_for_any(&self, ids: &[u64]) -> Result<()> {
        self.wait_until(|| Ok(self.tree.catalog().running().count_of(ids) < ids.len().max(1)))
    }

    /// Whether any thread compacts.
    pub(super) fn is_compacting(&self) -> bool {
        !self.tree.catalog().running().is_empty()
    }
}

#[cfg(test)]
#[path = "running_compaction_tests.rs"]
mod tests;
