//! Compaction of everything, on request, in the thread of the caller.

use std::sync::Arc;
use std::time::Instant;

use forerun_core::sync::time;

use super::Inner;
use super::keyspace_data::KeyspaceData;
use super::running_compaction::RunningCompaction;
use crate::events::CompactionReason;
use crate::tree::pick::{Existing, Obsolete, Pick, pick_full};
use crate::{Error, Result};

/// The next step of a full compaction.
enum Step<'a> {
    /// Also why a background thread's compaction has failed meanwhile, if its runs were left out.
    Done(Option<Error>),
    /// It gets in the way of one of these, which run.
    Waits(Vec<u64>),
    Begun(RunningCompaction<'a>),
}

/// The runs that a full compaction could not read and leaves out. The keyspace's own record is not
/// enough: between two steps a background thread may find nothing due, and forget the failure.
#[derive(Default)]
struct LeftOut {
    /// Numbers of the runs.
    runs: Vec<u64>,
    /// The first failure.
    error: Option<Error>,
}

impl LeftOut {
    /// The numbers of these runs and others, ascending.
    fn and(&self, mut others: Vec<u64>) -> Vec<u64> {
        others.extend(&self.runs);
        others.sort_unstable();
        others
    }
}

impl Inner {
    /// Flushes, then compacts everything in some keyspaces down to the last level.
    pub(super) fn compact_all(&self, keyspaces: &[Arc<KeyspaceData>]) -> Result<()> {
        self.flush_all()?;
        self.guard("compacting", || self.merge_all(keyspaces))?;
        self.load_filters_after_change();
        Ok(())
    }

    /// Merges the runs of some keyspaces into their last levels.
    fn merge_all(&self, keyspaces: &[Arc<KeyspaceData>]) -> Result<()> {
        // A compaction in progress may not know of what was deleted last.
        for keyspace in keyspaces {
            self.wait_for_running(keyspace.id())?;
        }
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

    /// Merges what existed in a keyspace into its last level. If a run cannot be read, the rest is
    /// merged all the same.
    fn merge(&self, keyspace: &Arc<KeyspaceData>, existing: Existing) -> Result<()> {
        // It was asked for, so it does not wait after a failure.
        let asked = time::now();
        keyspace.retry_compaction(asked);
        let mut turn = None;
        let mut left_out = LeftOut::default();
        loop {
            let guard = self.directory.enter()?;
            // Level 0 must not wait for the last step, and background threads may never be first to
            // take its runs, so this thread compacts it too, in turns.
            if let Some(due) = self.begin_due_beside(keyspace)? {
                self.run_due(&guard, due)?;
            }
            match self.begin_step(keyspace, existing, asked, &left_out)? {
                Step::Done(error) => return left_out.error.or(error).map_or(Ok(()), Err),
                Step::Begun(running) => {
                    turn = None;
                    let result = self.run_compaction(&guard, &running);
                    let unreadable = match &result {
                        // If the system cannot read two, all fails.
                        Err(Error::CompactionFailed { cause, .. })
                            if keyspace.compaction_retry_at().is_none_or(|at| at <= asked) =>
                        {
                            let compaction = running.compaction();
                            compaction.and_then(|of| of.unreadable_run(cause))
                        }
                        _ => None,
                    };
                    drop(running);
                    match (result, unreadable) {
                        // The next step does not take it.
                        (Err(error), Some(run)) => {
                            left_out.runs.push(run);
                            left_out.error.get_or_insert(error);
                        }
                        (result, _) => result?,
                    }
                }
                Step::Waits(ids) => {
                    // Closing waits for the guard, and this thread for others.
                    drop(guard);
                    turn.get_or_insert_with(|| self.take_turn(keyspace.id()));
                    self.wait_for_any(&ids)?;
                }
            }
        }
    }

    fn begin_step(
        &self,
        keyspace: &Arc<KeyspaceData>,
        existing: Existing,
        asked: Instant,
        left_out: &LeftOut,
    ) -> Result<Step<'_>> {
        let _picking = self.tree.lock_picking();
        let mut catalog = self.tree.catalog();
        let Some(runs) = catalog.runs_of(keyspace.id()) else {
            return Ok(Step::Done(None));
        };
        let tree = keyspace.options.load().tree;
        let (_, expired_sequence) = self.list_readers(keyspace);
        let obsolete = Obsolete {
            ranges: &runs.ranges,
            expired_sequence,
        };
        let running = catalog.running().in_keyspace(keyspace.id());
        let running = running.without(left_out.and(keyspace.unreadable_runs_waiting(asked)));
        match pick_full(&runs.levels, &tree, existing, obsolete, &running) {
            // Nothing is forgotten under the lock for picking.
            Pick::Nothing => Ok(Step::Done(keyspace.unreadable_since(asked))),
            Pick::Waits => Ok(Step::Waits(catalog.running().ids_in(keyspace.id()))),
            Pick::Begins(compaction) => {
                catalog.write_again()?;
                let picked = (compaction, CompactionReason::Requested);
                let begun = RunningCompaction::begin(self, &mut catalog, keyspace, picked, false);
                Ok(begun.map_or(Step::Done(None), Step::Begun))
            }
        }
    }
}
