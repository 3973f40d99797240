//! What a thread holds while it compacts, and while it waits until others have.

use std::sync::Arc;

use super::Inner;
use super::keyspace_data::KeyspaceData;
use crate::Result;
use crate::events::CompactionReason;
use crate::tree::catalog::Catalog;
use crate::tree::pick::Compaction;

/// A compaction in progress. When this is dropped, others may take its runs.
pub(super) struct RunningCompaction<'a> {
    inner: &'a Inner,
    id: u64,
    pub(super) keyspace: Arc<KeyspaceData>,
    pub(super) reason: CompactionReason,
    compaction: Option<Compaction>,
}

/// While this lives, background threads begin no compaction of a keyspace.
pub(super) struct Turn<'a> {
    inner: &'a Inner,
    keyspace: u32,
}

impl<'a> RunningCompaction<'a> {
    /// Takes the runs of a compaction, picked under this lock.
    pub(super) fn begin(
        inner: &'a Inner,
        catalog: &mut Catalog,
        (keyspace, reason): (&Arc<KeyspaceData>, CompactionReason),
        compaction: Compaction,
        is_background: bool,
    ) -> RunningCompaction<'a> {
        let running = catalog.running_mut();
        RunningCompaction {
            inner,
            id: running.begin(keyspace.id(), &compaction, is_background),
            keyspace: Arc::clone(keyspace),
            reason,
            compaction: Some(compaction),
        }
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
    /// Keeps background threads from beginning a compaction of a keyspace.
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
        self.wait_until(|| Ok(!self.tree.catalog().running().is_any_of(&ids)))
    }

    /// Whether any thread compacts.
    pub(super) fn is_compacting(&self) -> bool {
        !self.tree.catalog().running().is_empty()
    }
}
