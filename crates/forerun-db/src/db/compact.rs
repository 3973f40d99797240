//! What is done to the tree of runs: memtables are added to it, runs are merged, and both are made durable.
//!
//! ```text
//!   flush      memtable ──> run in level 0 ┐
//!   compact    runs ──────> fewer runs     ├─> manifest, durably ──> state ──> memtable, old runs, old log segments go
//! ```
//!
//! A change is durable before readers see it, and what it replaces goes after. So a crash, or a manifest that cannot be
//! written, leaves a store that has everything, in memory and log or in the runs before.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use super::Inner;
use super::open::new_table;
use super::state::{State, Table};
use super::stats::TreeWork;
use super::write::Writer;
use crate::Result;
use crate::run::Run;
use crate::tree::build::{Build, write_runs};
use crate::tree::catalog::{Catalog, Logged};
use crate::tree::compact::compact;
use crate::tree::levels::Edit;
use crate::tree::pick::{Compaction, pick, pick_full};
use crate::tree::retain::Retain;
use crate::wal::segment;

/// The tree of runs and what changes it.
pub(super) struct Tree {
    catalog: Mutex<Catalog>,
    /// Held by whoever compacts.
    compacting: Mutex<()>,
    counts: Counts,
}

/// What becomes of memtables when the runs change.
enum Memtables<'a> {
    Same,
    /// This one, the oldest, is in runs.
    Flushed(&'a Arc<Table>),
    /// The only one there is, which is empty, makes way for another: everything up to a sequence number is in runs.
    Ingested {
        sequence: u64,
        before: &'a Arc<Table>,
        after: &'a Arc<Table>,
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
    /// Writes a memtable that takes no more writes to a run; to none if nothing of it is of use any more.
    pub(super) fn write_table(&self, table: &Table) -> Result<Vec<Arc<Run>>> {
        let levels = Arc::clone(&self.state.load().levels);
        // What has just been written has not expired.
        let (snapshots, _) = self.snapshots.list(0);
        let mut retain = Retain::new(self.order.clone(), snapshots);
        if let Some(ranges) = table.ranges() {
            let known = self.state.load().ranges.with(ranges.tombstones());
            retain = retain.with_ranges(Arc::new(known));
        }
        // Memtables are flushed in order, so what is older is in runs.
        let below = |key: &[u8]| levels.may_hold_from(0, key);
        self.with_build(u64::MAX, |build| {
            write_runs(&mut table.memtable.versions(), &mut retain, below, build)
        })
    }

    /// Puts the runs of a memtable, the oldest there is, in its place.
    pub(super) fn install_flush(&self, runs: Vec<Arc<Run>>, table: &Arc<Table>) -> Result<()> {
        let counts = &self.tree.counts;
        let bytes: u64 = runs.iter().map(|run| run.meta().file_bytes).sum();
        let edit = Edit {
            added: runs.into_iter().map(|run| (0, run)).collect(),
            ranges: table
                .ranges()
                .map_or(Vec::new(), |ranges| ranges.tombstones().to_vec()),
            ..Edit::default()
        };
        self.install(&edit, Memtables::Flushed(table))?;
        counts.flushes.fetch_add(1, Ordering::Relaxed);
        counts.flushed_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// What is in runs when everything up to a sequence number is.
    fn logged_after(&self, catalog: &Catalog, flushed_sequence: u64) -> Logged {
        let first_segment = match &self.writer {
            Writer::Logged(commit) => commit.segments().holding(flushed_sequence + 1),
            Writer::Unlogged { .. } => None,
        };
        Logged {
            flushed_sequence,
            first_segment: first_segment.unwrap_or(catalog.logged().first_segment),
            written_by: self.options.ttl.map(|_| now_unix()),
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

    /// Does the most urgent compaction. `false`: none is due.
    pub(super) fn compact_one(&self) -> Result<bool> {
        let _one_at_a_time = self.lock_compacting();
        self.expire()?;
        if self.remove_covered_runs()? {
            return Ok(true);
        }
        let levels = Arc::clone(&self.state.load().levels);
        match pick(&levels, &self.options.tree, &BTreeSet::new()) {
            None => Ok(false),
            Some(compaction) => self.run_compaction(&compaction).map(|()| true),
        }
    }

    /// Lets what is older than the time to live expire, if there is one, and anything is.
    fn expire(&self) -> Result<()> {
        let Some(ttl) = self.options.ttl else {
            return Ok(());
        };
        let expired_sequence = {
            let catalog = self.tree.catalog();
            let expired = catalog.written_by(now_unix().saturating_sub(ttl.as_secs()));
            if expired <= catalog.expired_sequence() {
                return Ok(());
            }
            expired
        };
        let edit = Edit {
            expired_sequence,
            ..Edit::default()
        };
        self.install(&edit, Memtables::Same)
    }

    /// Removes the runs of which nothing is left: it has expired, or was deleted with ranges. `false`: there are none.
    fn remove_covered_runs(&self) -> Result<bool> {
        let state = self.state.load_full();
        if state.ranges.is_empty() && state.expired_sequence == 0 {
            return Ok(false);
        }
        let (snapshots, expired) = self.snapshots.list(state.expired_sequence);
        let removed = state.levels.covered(&state.ranges, expired, &snapshots);
        if removed.is_empty() {
            return Ok(false);
        }
        let edit = Edit {
            removed,
            ..Edit::default()
        };
        self.install(&edit, Memtables::Same).map(|()| true)
    }

    /// Flushes, and compacts everything there is down to the last level.
    pub(super) fn compact_all(&self) -> Result<()> {
        self.flush_all()?;
        let limit = self.tree.catalog().numbers().next();
        loop {
            let _one_at_a_time = self.lock_compacting();
            self.expire()?;
            self.remove_covered_runs()?;
            let state = self.state.load_full();
            let Some(compaction) = pick_full(&state.levels, limit, &state.ranges) else {
                return Ok(());
            };
            self.run_compaction(&compaction)?;
        }
    }

    fn run_compaction(&self, compaction: &Compaction) -> Result<()> {
        let run_bytes = self.options.tree.run_bytes;
        let state = self.state.load_full();
        let (snapshots, expired) = self.snapshots.list(state.expired_sequence);
        let retain = Retain::new(self.order.clone(), snapshots)
            .with_ranges(Arc::clone(&state.ranges))
            .with_expired(expired);
        let done = self.with_build(run_bytes, |build| compact(compaction, retain, build))?;
        self.install(&done.edit, Memtables::Same)?;
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

    /// Puts runs that are newer than all else, and have all versions of this sequence number, into the tree. There is
    /// nothing in memtables; `active`, which is held for writing, becomes another.
    pub(super) fn install_ingestion(
        &self,
        runs: Vec<Arc<Run>>,
        sequence: u64,
        active: &mut Arc<Table>,
    ) -> Result<()> {
        let table = Arc::new(new_table(&self.options, self.options.memtable_bytes)?);
        let counts = &self.tree.counts;
        let bytes: u64 = runs.iter().map(|run| run.meta().file_bytes).sum();
        let edit = Edit {
            ingested: runs,
            ..Edit::default()
        };
        let memtables = Memtables::Ingested {
            sequence,
            before: active,
            after: &table,
        };
        self.install(&edit, memtables)?;
        *active = table;
        counts.ingestions.fetch_add(1, Ordering::Relaxed);
        counts.ingested_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Makes a change of the runs durable, and shows it to readers. What of the log is in runs with it goes.
    fn install(&self, edit: &Edit, memtables: Memtables<'_>) -> Result<()> {
        let mut catalog = self.tree.catalog();
        let flushed_sequence = match &memtables {
            Memtables::Same => None,
            Memtables::Flushed(table) => Some(table.last_sequence()),
            Memtables::Ingested { sequence, .. } => Some(*sequence),
        };
        let logged = flushed_sequence.map(|sequence| self.logged_after(&catalog, sequence));
        let levels = catalog.install(edit, logged)?;
        if let Memtables::Ingested { before, .. } = &memtables {
            // Who still reads the state before must not go by a number that has the ingestion in it, or what is after.
            before.freeze(self.visible.last());
        }
        self.state.rcu(|state| {
            let mut state = State::clone(state);
            state.levels = Arc::clone(&levels);
            state.ranges = Arc::clone(catalog.ranges());
            state.expired_sequence = catalog.expired_sequence();
            match &memtables {
                Memtables::Same => {}
                Memtables::Flushed(flushed) => {
                    state.tables.retain(|table| !Arc::ptr_eq(flushed, table));
                }
                Memtables::Ingested { after, .. } => state.tables = vec![Arc::clone(after)],
            }
            state
        });
        drop(catalog);
        self.note_pressure();
        if let Some(logged) = logged {
            self.remove_segments(logged.first_segment);
        }
        Ok(())
    }

    pub(super) fn with_build<T>(
        &self,
        run_bytes: u64,
        f: impl FnOnce(&Build<'_>) -> Result<T>,
    ) -> Result<T> {
        let numbers = Arc::clone(self.tree.catalog().numbers());
        f(&Build {
            io: &*self.io,
            dir: &self.path,
            order: &self.order,
            comparator: self.options.comparator.name(),
            cache: &self.cache,
            options: self.options.run,
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

/// Now, in seconds since 1970; 0 for a clock that stands before.
pub(super) fn now_unix() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}
