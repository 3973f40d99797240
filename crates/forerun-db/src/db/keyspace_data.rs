//! The keyspaces of an open store.
//!
//! ```text
//!   KeyspaceSet   by number, by name -> KeyspaceData   order, options
//!                                         └-> SuperVersion   memtables and runs at one moment
//! ```
//!
//! All keyspaces share the log, its sequence numbers, the memory for memtables, the page cache and
//! the background threads. Each has its own memtables and its own tree of runs, since its keys
//! order them.

use forerun_core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwap;
use forerun_core::Pages;
use forerun_core::sync::{Mutex, MutexGuard, PoisonError, time};

use super::backoff::Failing;
use super::compaction_failures::CompactionFailures;
use super::cursor_pool::CursorPool;
use super::super_version::{SuperVersion, Table};
use crate::clock::{Clock, Expiry};
use crate::comparator::KeyOrder;
use crate::limits::MEMTABLE_INDEX_BYTES_MIN;
use crate::memtable::{Comparator, MemTableConfig, RegionPool, RegionSource};
use crate::run::lookup::ReadContext;
use crate::tree::catalog::KeyspaceRuns;
use crate::tree::levels::Levels;
use crate::tree::pick::level0_begins_without;
use crate::{Error, KeyspaceOptions, Options, Result, TreeOptions, panics};

/// A memtable uses huge pages if the previous one held at least this much, about four huge pages.
const HUGE_FROM_BYTES: usize = 8 << 20;

/// A keyspace of an open store.
pub(super) struct KeyspaceData {
    /// The number of the open store that it belongs to.
    store: u64,
    id: u32,
    name: Box<str>,
    order: KeyOrder,
    comparator: Arc<dyn Comparator>,
    comparator_name: Box<str>,
    pub(super) options: ArcSwap<KeyspaceOptions>,
    pub(super) version: ArcSwap<SuperVersion>,
    /// The watermark, if the entries have a time to live.
    pub(super) expiry: Option<Expiry>,
    /// Cursors over the super version, kept for reuse.
    pub(super) cursors: CursorPool,
    /// Whether it was dropped or is about to be.
    is_dropped: AtomicBool,
    /// Why its runs cannot be compacted, until a compaction succeeds.
    compaction: Mutex<CompactionFailures>,
    /// Whether its writes are slowed down, or wait, until level 0 is less deep.
    is_slow: AtomicBool,
    is_full: AtomicBool,
    /// Whether it takes no writes because level 0 is full and cannot be compacted.
    is_stopped: AtomicBool,
    /// How many bytes its last memtable held.
    last_used_bytes: AtomicUsize,
}

impl KeyspaceData {
    /// Calls no code of the comparator: it may panic, and a keyspace that was just created is in
    /// the manifest already. So the caller passes the comparator's name.
    pub(super) fn new(
        store: u64,
        id: u32,
        name: &str,
        comparator_name: &str,
        options: KeyspaceOptions,
        runs: &KeyspaceRuns,
        reading: ReadContext,
    ) -> KeyspaceData {
        let comparator = Arc::clone(&options.comparator);
        let expiry = match options.ttl_s() {
            0 => None,
            ttl => Some(Expiry::new(ttl, runs.expired_sequence)),
        };
        let version = SuperVersion {
            tables: Vec::new(),
            levels: Arc::clone(&runs.levels),
            ranges: Arc::clone(&runs.ranges),
            dead_ranges: Arc::default(),
            expired_sequence: runs.expired_sequence,
            reading,
            is_dropped: false,
        };
        KeyspaceData {
            store,
            id,
            name: name.into(),
            order: runs.levels.order().clone(),
            comparator_name: comparator_name.into(),
            comparator,
            options: ArcSwap::from_pointee(options),
            version: ArcSwap::from_pointee(version),
            expiry,
            cursors: CursorPool::default(),
            is_dropped: AtomicBool::new(false),
            compaction: Mutex::default(),
            is_slow: AtomicBool::new(false),
            is_full: AtomicBool::new(false),
            is_stopped: AtomicBool::new(false),
            last_used_bytes: AtomicUsize::new(0),
        }
    }

    pub(super) fn store(&self) -> u64 {
        self.store
    }

    pub(super) fn id(&self) -> u32 {
        self.id
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn order(&self) -> &KeyOrder {
        &self.order
    }

    pub(super) fn comparator_name(&self) -> &str {
        &self.comparator_name
    }

    /// The sequence number up to which everything in it has expired by now. `visible` is the newest
    /// visible one.
    #[inline]
    pub(super) fn expired_sequence(&self, clock: &Clock, visible: u64) -> u64 {
        match &self.expiry {
            None => 0,
            Some(expiry) => expiry.expired_sequence(clock, visible),
        }
    }

    /// Makes an empty memtable for it, not yet active.
    pub(super) fn new_table(
        &self,
        options: &Options,
        limit_bytes: usize,
        pool: &Arc<RegionPool>,
    ) -> Result<Arc<Table>> {
        // Relaxed: a hint.
        let last_used_bytes = self.last_used_bytes.load(Ordering::Relaxed);
        // A small keyspace does not use a huge page.
        let pages = if self.id == 0 || last_used_bytes >= HUGE_FROM_BYTES {
            options.pages
        } else {
            Pages::Small
        };
        let config = MemTableConfig {
            limit_bytes,
            comparator: Arc::clone(&self.comparator),
            checks: options.checks,
            pages,
            hash_index: options.memtable_index && limit_bytes >= MEMTABLE_INDEX_BYTES_MIN,
        };
        let source = RegionSource {
            pool: Arc::clone(pool),
            keyspace: self.id,
        };
        // A memtable asks the comparator for its name.
        panics::catch_if(self.order.may_panic(), "creating a memtable", || {
            Table::new(config, source).map(Arc::new)
        })
    }

    /// Shows readers a memtable that is about to become active. No write is in progress.
    pub(super) fn show_table(&self, table: &Arc<Table>) {
        table
            .dead_ranges
            .take_over(&self.version.load().dead_ranges);
        self.change(|version| {
            version.tables.insert(0, Arc::clone(table));
            version.dead_ranges = Arc::clone(&table.dead_ranges);
        });
    }

    /// Shows readers new runs with the same contents.
    pub(super) fn show_runs(&self, runs: &KeyspaceRuns) {
        self.change(|version| version.take_runs(runs));
    }

    /// Shows readers new runs, which hold what the flushed memtable held, if there was one.
    pub(super) fn show_flushed(&self, runs: &KeyspaceRuns, flushed: Option<&Arc<Table>>) {
        if let Some(table) = flushed {
            let used_bytes = table.memtable.stats().used_bytes;
            self.last_used_bytes.store(used_bytes, Ordering::Relaxed);
        }
        self.change(|version| {
            version.take_runs(runs);
            let is_flushed = |table: &Arc<Table>| flushed.is_some_and(|of| Arc::ptr_eq(of, table));
            version.tables.retain(|table| !is_flushed(table));
        });
    }

    /// Shows readers new runs with additional entries, and replaces the empty active memtable.
    pub(super) fn show_ingested(&self, runs: &KeyspaceRuns, table: &Arc<Table>) {
        self.change(|version| {
            version.take_runs(runs);
            version.tables = vec![Arc::clone(table)];
            // What is in the new runs was not put into it, and revoked nothing.
            version.dead_ranges = Arc::clone(&table.dead_ranges);
        });
    }

    /// Changes its options.
    pub(super) fn set_options(&self, options: KeyspaceOptions) {
        self.options.store(Arc::new(options));
    }

    /// Shows readers that it is gone. They keep what they already hold.
    pub(super) fn show_dropped(&self) {
        self.change(|version| {
            version.tables.clear();
            version.levels = Arc::new(version.levels.without_runs());
            version.is_dropped = true;
        });
        self.cursors.close();
    }

    fn change(&self, change: impl Fn(&mut SuperVersion)) {
        self.version.rcu(|version| {
            let mut version = SuperVersion::clone(version);
            change(&mut version);
            version
        });
        self.cursors.clear();
    }

    /// Stops taking writes. No write is in progress.
    pub(super) fn refuse_writes(&self) {
        // Relaxed: the lock that each write holds orders it.
        self.is_dropped.store(true, Ordering::Relaxed);
    }

    /// Fails if it was dropped or is about to be, or if its level 0 is full for good. Called by
    /// writers, who hold the lock.
    pub(super) fn check_takes_writes(&self) -> Result<()> {
        if self.is_dropped.load(Ordering::Relaxed) {
            return Err(self.dropped());
        }
        // Relaxed: a few writes may overstep this limit.
        if self.is_stopped.load(Ordering::Relaxed) {
            self.stopped()
        } else {
            Ok(())
        }
    }

    #[cold]
    fn stopped(&self) -> Result<()> {
        match self.compaction().iter().next() {
            Some(failing) => Err(Error::KeyspaceStopped {
                keyspace: self.name.to_string(),
                cause: Arc::new(failing.error.clone()),
            }),
            None => Ok(()),
        }
    }

    /// Records the success of a compaction of these runs that began at `begun`. After one that
    /// began before the last failure, the next may still fail.
    pub(super) fn note_compacted(&self, runs: impl Iterator<Item = u64>, begun: Instant) {
        self.compaction().note_success(runs, begun);
    }

    /// Records the failure of a compaction that began at `begun`; if it comes from reading one run,
    /// of that run. Returns the error with the keyspace's name.
    pub(super) fn note_compaction_failed(
        &self,
        run: Option<u64>,
        error: Error,
        begun: Instant,
    ) -> Error {
        let mut compaction = self.compaction();
        let failing = compaction.note(run, error, begun, time::now());
        self.compaction_failed(&failing)
    }

    /// Why its runs cannot be compacted, if the last attempt failed.
    pub(super) fn compaction_failure(&self) -> Option<Error> {
        let compaction = self.compaction();
        let failing = compaction.iter().next()?;
        Some(self.compaction_failed(failing))
    }

    /// [`compaction_failure`](Self::compaction_failure), if it failed after that moment.
    pub(super) fn compaction_failure_since(&self, asked: Instant) -> Option<Error> {
        let compaction = self.compaction();
        let failing = compaction.iter().find(|of| of.has_failed_since(asked))?;
        Some(self.compaction_failed(failing))
    }

    /// When the next compaction is due after a failure that concerns all of them; `None` if there
    /// was none.
    pub(super) fn compaction_retry_at(&self) -> Option<Instant> {
        self.compaction().of_all().map(Failing::retry_at)
    }

    /// When each of its failures is to be retried.
    pub(super) fn compaction_retries(&self) -> Vec<Instant> {
        self.compaction().iter().map(Failing::retry_at).collect()
    }

    /// The numbers of the runs that could not be read, ascending.
    pub(super) fn unreadable_runs(&self) -> Vec<u64> {
        self.compaction().runs()
    }

    /// Those of them that are not to be tried yet at this moment. If they were then
    /// [retried](Self::retry_compaction), those that have failed since.
    pub(super) fn unreadable_runs_waiting(&self, now: Instant) -> Vec<u64> {
        self.compaction().runs_waiting(now)
    }

    /// Why a compaction has failed since that moment, if it was because of a run that could not be
    /// read.
    pub(super) fn unreadable_since(&self, asked: Instant) -> Option<Error> {
        let is_unreadable = !self.unreadable_runs_waiting(asked).is_empty();
        is_unreadable
            .then(|| self.compaction_failure_since(asked))
            .flatten()
    }

    /// Whether a compaction has failed and none has succeeded since.
    pub(super) fn is_compaction_failing(&self) -> bool {
        !self.compaction().is_empty()
    }

    /// Forgets the failures of runs that are gone, and if it is `idle`, those that nothing will
    /// retry, since other compactions have done the work: no compaction is due, and none runs.
    /// Returns whether there were any.
    pub(super) fn forget_failures(&self, is_idle: bool) -> bool {
        let levels = Arc::clone(&self.version.load().levels);
        let is_there = |number| levels.runs().any(|(_, run)| run.number() == number);
        let mut compaction = self.compaction();
        let has_forgotten = compaction.forget_gone(is_there);
        is_idle && compaction.forget_idle(time::now()) || has_forgotten
    }

    /// Retries failed compactions at once.
    pub(super) fn retry_compaction(&self, now: Instant) {
        self.compaction().retry_now(now);
    }

    /// Whether level 0, which is this deep, cannot be compacted.
    fn is_level0_failing(&self, levels: &Levels, tree: &TreeOptions, depth: usize) -> bool {
        let compaction = self.compaction();
        let unreadable = compaction.runs();
        let fails_all = compaction.of_all().is_some();
        // The comparator may do anything.
        drop(compaction);
        // Writers may not be slowed down at all before they wait.
        let noticed_from = tree.level0_slow_runs.min(tree.level0_stop_runs);
        if fails_all || unreadable.is_empty() || depth < noticed_from {
            return fails_all;
        }
        let begins = panics::catch_if(self.order.may_panic(), "picking a compaction", || {
            Ok(level0_begins_without(levels, tree, unreadable))
        });
        let Ok(begins) = begins else {
            return true;
        };
        let blocked_by = begins.err();
        self.compaction().note_level0_blocked(blocked_by.flatten());
        blocked_by.is_some()
    }

    /// Decides whether it takes writes, and how fast, after its runs have changed or a compaction
    /// has failed or succeeded. Returns how many more runs over a key stop its writes, if they are
    /// slowed down. A keyspace whose level 0 cannot be compacted is not slow: once full, it refuses
    /// writes.
    pub(super) fn note_level0(&self) -> Option<usize> {
        let levels = Arc::clone(&self.version.load().levels);
        let depth = levels.level0_depth();
        let tree = self.options.load().tree;
        let is_failing = self.is_level0_failing(&levels, &tree, depth);
        let is_full = depth >= tree.level0_stop_runs;
        let is_slow = (is_full || depth >= tree.level0_slow_runs) && !is_failing;
        // Relaxed, also for those who read them: a few writes may overstep the limits.
        self.is_slow.store(is_slow, Ordering::Relaxed);
        self.is_full
            .store(is_full && !is_failing, Ordering::Relaxed);
        self.is_stopped
            .store(is_full && is_failing, Ordering::Relaxed);
        is_slow.then(|| tree.level0_stop_runs.saturating_sub(depth))
    }

    /// Whether its writes are slowed down.
    #[inline]
    pub(super) fn is_slow(&self) -> bool {
        self.is_slow.load(Ordering::Relaxed)
    }

    /// Whether its writes wait.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Relaxed)
    }

    fn compaction_failed(&self, failing: &Failing) -> Error {
        Error::CompactionFailed {
            keyspace: self.name.to_string(),
            cause: Arc::new(failing.error.clone()),
        }
    }

    fn compaction(&self) -> MutexGuard<'_, CompactionFailures> {
        // Nothing panics while the lock is held, so a poisoned lock is still consistent.
        self.compaction
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn dropped(&self) -> Error {
        Error::KeyspaceDropped {
            name: self.name.to_string(),
        }
    }
}
