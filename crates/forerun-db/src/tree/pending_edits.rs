//! Edits whose runs are on disk and in no manifest yet.
//!
//! ```text
//!   write_runs ──> PendingEdits ──Catalog::install──> manifest: the runs stay
//!                      └──dropped: an error, or a comparator that panics──> their files are removed
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::run::{ObsoleteFiles, Run};
use crate::tree::levels::Edit;

/// Edits to install, by keyspace. If this is dropped before [`installed`](Self::installed), the
/// files of the runs that the edits add are removed.
#[derive(Debug)]
pub(crate) struct PendingEdits {
    edits: BTreeMap<u32, Edit>,
    obsolete_files: Arc<ObsoleteFiles>,
}

impl PendingEdits {
    /// No edits. Files that are not needed are removed through `obsolete_files`.
    pub(crate) fn new(obsolete_files: &Arc<ObsoleteFiles>) -> PendingEdits {
        PendingEdits {
            edits: BTreeMap::new(),
            obsolete_files: Arc::clone(obsolete_files),
        }
    }

    /// These edits with another one, for a keyspace that has none yet.
    pub(crate) fn with(mut self, keyspace: u32, edit: Edit) -> PendingEdits {
        debug_assert!(!self.edits.contains_key(&keyspace));
        self.edits.insert(keyspace, edit);
        self
    }

    /// Adds edits of other keyspaces.
    pub(crate) fn add(&mut self, mut others: PendingEdits) {
        for (keyspace, edit) in std::mem::take(&mut others.edits) {
            let before = self.edits.insert(keyspace, edit);
            debug_assert!(before.is_none());
        }
    }

    /// The edit of a keyspace, empty at first.
    pub(crate) fn edit_mut(&mut self, keyspace: u32) -> &mut Edit {
        self.edits.entry(keyspace).or_default()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.edits.is_empty()
    }

    /// The edits with their keyspaces.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Edit)> {
        self.edits.iter().map(|(keyspace, edit)| (*keyspace, edit))
    }

    /// The keyspaces that have edits.
    pub(crate) fn keyspaces(&self) -> Vec<u32> {
        self.edits.keys().copied().collect()
    }

    /// The added runs that no manifest has named so far. A run that only changes its level is named
    /// already.
    pub(crate) fn new_runs(&self) -> impl Iterator<Item = &Arc<Run>> {
        self.edits.values().flat_map(|edit| {
            let added = edit.all_added();
            added.filter(|run| !edit.removed.contains(&run.number()))
        })
    }

    /// Keeps the files: from now on the catalog decides which ones stay.
    pub(crate) fn installed(mut self) {
        self.edits.clear();
    }
}

impl Drop for PendingEdits {
    fn drop(&mut self) {
        self.new_runs()
            .for_each(|run| run.remove_when_dropped(&self.obsolete_files));
    }
}
