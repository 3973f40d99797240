//! The memtables and runs of a keyspace at one moment, as a read uses them. RocksDB uses the same
//! name.
//!
//! ```text
//!   tables   [ active ][ full ][ full ]      newest first     sequence numbers 91.. 61..90 31..60
//!   levels   the runs below                                                    ..30
//! ```
//!
//! A super version never changes. A new one replaces it when a memtable is full, before the next
//! memtable takes writes, and when a flush or compaction has replaced memtables or runs. A reader
//! that holds a super version sees everything written before it was replaced. It also keeps the
//! files and the memory of the super version alive. Later writes go to other memtables. So a read
//! that loads the super version first and the sequence number second sees everything up to that
//! number, or up to where the super version was replaced, without gaps.

use std::sync::Arc;

use forerun_core::arch::prefetch_read;
use forerun_core::sync::OnceLock;

use super::dead_ranges::DeadRanges;
use super::held_memory::{HeldBytes, HeldMemory};
use super::source_cursor::SourceCursor;
use crate::Result;
use crate::comparator::KeyOrder;
use crate::memtable::{MemTable, MemTableConfig, RegionSource};
use crate::ranges::{RangeRef, Ranges};
use crate::run::Run;
use crate::run::cursor::RunCursor;
use crate::run::level_cursor::LevelCursor;
use crate::run::lookup::ReadContext;
use crate::tree::catalog::KeyspaceRuns;
use crate::tree::levels::{Level, Levels};
use crate::tree::manifest::LEVELS;
use crate::tree::merge::Merge;

/// Memtables and runs.
#[derive(Clone)]
pub(super) struct SuperVersion {
    /// Newest first. The store's own keyspace always has at least one. If the keyspace takes
    /// writes, the first one does.
    pub(super) tables: Vec<Arc<Table>>,
    pub(super) levels: Arc<Levels>,
    /// Range deletions that cover something in the runs.
    pub(super) ranges: Arc<Ranges>,
    /// What scans need not step over: that of the newest memtable, even if it is in runs now.
    pub(super) dead_ranges: Arc<DeadRanges>,
    /// Everything up to this sequence number has expired and may be missing from runs, so readers
    /// must not see anything older.
    pub(super) expired_sequence: u64,
    /// The cache and options for lookups in runs.
    pub(super) reading: ReadContext,
    /// Whether the keyspace was dropped.
    pub(super) is_dropped: bool,
}

/// A memtable and its range deletions.
pub(super) struct Table {
    pub(super) memtable: MemTable,
    /// Range deletions written with it.
    pub(super) ranges: Arc<Ranges>,
    /// What scans need not step over, here and in everything older.
    pub(super) dead_ranges: Arc<DeadRanges>,
    /// Its share of the held memory, once it takes no more writes. The last field, so that the
    /// memory is freed before the share is returned.
    held: OnceLock<HeldBytes>,
}

impl Table {
    pub(super) fn new(config: MemTableConfig, source: RegionSource) -> Result<Table> {
        let order = KeyOrder::new(Arc::clone(&config.comparator));
        Ok(Table {
            memtable: MemTable::from_source(config, Some(source))?,
            ranges: Arc::new(Ranges::new(order)),
            dead_ranges: Arc::default(),
            held: OnceLock::new(),
        })
    }

    /// Bytes of memory in use.
    pub(super) fn used_bytes(&self) -> usize {
        self.memtable.stats().used_bytes + self.ranges.used_bytes()
    }

    /// Counts its memory, which no longer grows, until it is dropped.
    pub(super) fn hold(&self, memory: &Arc<HeldMemory>) {
        self.memtable.close();
        self.held.get_or_init(|| memory.hold(self.used_bytes()));
    }

    /// Whether it holds no entries and no range deletions.
    pub(super) fn is_empty(&self) -> bool {
        self.memtable.stats().entries == 0 && self.ranges.is_empty()
    }
}

impl SuperVersion {
    /// Prefetches together everything that a lookup reads first. Otherwise each miss would wait for
    /// the previous one.
    #[inline]
    pub(super) fn prefetch(&self) {
        if let Some(table) = self.tables.first() {
            prefetch_read(Arc::as_ptr(table));
        }
        prefetch_read(Arc::as_ptr(&self.levels));
        prefetch_read(Arc::as_ptr(&self.ranges));
    }

    /// Replaces the runs.
    pub(super) fn take_runs(&mut self, runs: &KeyspaceRuns) {
        self.levels = Arc::clone(&runs.levels);
        self.ranges = Arc::clone(&runs.ranges);
        self.expired_sequence = runs.expired_sequence;
    }

    /// Whether any range deletion may matter.
    pub(super) fn has_ranges(&self) -> bool {
        self.all_ranges().next().is_some()
    }

    /// The sequence number of the newest range deletion that covers `key` and is not newer than
    /// `snapshot`; older versions of the key are deleted. 0 if there is none.
    pub(super) fn cover(&self, key: &[u8], snapshot: u64) -> u64 {
        let covers = self.all_ranges().map(|ranges| ranges.cover(key, snapshot));
        covers.max().unwrap_or(0)
    }

    /// Passes the newest of the range deletions that [`cover`](Self::cover) considers to `take`.
    pub(super) fn newest_range_over<T>(
        &self,
        key: &[u8],
        snapshot: u64,
        take: impl FnOnce(RangeRef<'_>) -> T,
    ) -> Option<T> {
        let newest = self
            .all_ranges()
            .max_by_key(|ranges| ranges.cover(key, snapshot))?;
        newest.newest_over(key, snapshot, take)
    }

    /// The range deletions, by where they are.
    pub(super) fn all_ranges(&self) -> impl Iterator<Item = &Ranges> {
        let in_tables = self.tables.iter().map(|table| &*table.ranges);
        in_tables
            .chain([&*self.ranges])
            .filter(|ranges| !ranges.is_empty())
    }

    /// All versions, merged.
    pub(super) fn versions<'a>(&'a self, order: &KeyOrder) -> Merge<SourceCursor<'a>> {
        let levels = (1..LEVELS).map(|level| self.levels.level(level));
        let filled = levels.filter(|level| !level.runs().is_empty());
        let runs = self.levels.level(0).runs();
        self.merge(order, runs, filled.map(Level::cursor))
    }

    /// All versions, merged, but for runs that `keep` leaves out. It is given each level with its
    /// runs.
    pub(super) fn versions_but<'a>(
        &'a self,
        order: &KeyOrder,
        keep: impl Fn(usize, &'a [Arc<Run>]) -> &'a [Arc<Run>],
    ) -> Merge<SourceCursor<'a>> {
        let levels = (1..LEVELS).map(|level| keep(level, self.levels.level(level).runs()));
        let filled = levels.filter(|runs| !runs.is_empty());
        let runs = keep(0, self.levels.level(0).runs());
        self.merge(order, runs, filled.map(LevelCursor::new))
    }

    /// Merges all memtables, these runs, and these levels.
    fn merge<'a>(
        &'a self,
        order: &KeyOrder,
        runs: &'a [Arc<Run>],
        levels: impl Iterator<Item = LevelCursor<'a>>,
    ) -> Merge<SourceCursor<'a>> {
        let tables = self.tables.iter().map(|table| table.memtable.versions());
        let runs = runs.iter().map(|run| RunCursor::new(run));
        let cursors = (tables.map(SourceCursor::Table))
            .chain(runs.map(SourceCursor::Run))
            .chain(levels.map(SourceCursor::Level));
        Merge::new(order.clone(), cursors.collect()).interleaved(&self.reading.cache)
    }
}
