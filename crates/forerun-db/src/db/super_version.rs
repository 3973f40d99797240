//! What a read looks at: memtables and runs of a keyspace, as they were at one moment.
//!
//! ```text
//!   tables   [ takes writes ][ full ][ full ]      newest first      sequence numbers 91..   61..90   31..60
//!   levels   the runs below                                                            ..30
//! ```
//!
//! A super version never changes; another takes its place. It is replaced when a memtable is full, before the next one takes
//! writes, and when a flush or a compaction has put runs in the place of what they were made of. So whoever holds one
//! sees everything that was written before it was replaced, and holds the files and the memory that this takes. What came
//! later went elsewhere: a read that loads the super version first and the sequence number that it goes by second sees all up to
//! that number, or up to where the super version was replaced, and nothing in between.

use std::sync::Arc;

use forerun_core::arch::prefetch_read;
use forerun_core::sync::OnceLock;

use super::memory::{HeldBytes, HeldMemory};
use crate::Result;
use crate::comparator::KeyOrder;
use crate::memtable::{MemTable, MemTableConfig};
use crate::ranges::Ranges;
use crate::run::cursor::RunCursor;
use crate::run::level_cursor::LevelCursor;
use crate::run::lookup::ReadContext;
use crate::tree::catalog::KeyspaceRuns;
use crate::tree::levels::Levels;
use crate::tree::manifest::LEVELS;
use crate::tree::merge::Merge;
use crate::versions::VersionCursor;

/// Memtables and runs.
#[derive(Clone)]
pub(super) struct SuperVersion {
    /// Newest first; in the store's own keyspace there is at least one. The first takes writes, if any does.
    pub(super) tables: Vec<Arc<Table>>,
    pub(super) levels: Arc<Levels>,
    /// Deletions of ranges that cover something in the runs.
    pub(super) ranges: Arc<Ranges>,
    /// Everything up to this sequence number has expired, and is left out of runs: readers must not see what is older.
    pub(super) expired_sequence: u64,
    /// What lookups in runs go through.
    pub(super) reading: ReadContext,
    /// Whether the keyspace was dropped.
    pub(super) is_dropped: bool,
}

/// A memtable, and the deletions of ranges beside it.
pub(super) struct Table {
    pub(super) memtable: MemTable,
    /// Deletions of ranges that were written with it.
    pub(super) ranges: Arc<Ranges>,
    /// Its memory, once it takes no more writes. The last field: it is given back when the memory is.
    held: OnceLock<HeldBytes>,
}

impl Table {
    pub(super) fn new(config: MemTableConfig) -> Result<Table> {
        let order = KeyOrder::new(Arc::clone(&config.comparator));
        Ok(Table {
            memtable: MemTable::new(config)?,
            ranges: Arc::new(Ranges::new(order)),
            held: OnceLock::new(),
        })
    }

    /// Bytes of memory in use.
    pub(super) fn used_bytes(&self) -> usize {
        self.memtable.stats().used_bytes + self.ranges.used_bytes()
    }

    /// Counts its memory, which grows no more, until it is dropped.
    pub(super) fn hold(&self, memory: &Arc<HeldMemory>) {
        self.held.get_or_init(|| memory.hold(self.used_bytes()));
    }

    /// Whether nothing was written to it.
    pub(super) fn is_empty(&self) -> bool {
        self.memtable.stats().entries == 0 && self.ranges.is_empty()
    }
}

impl SuperVersion {
    /// Asks for what a lookup reads of it first, all at once: else each would wait for the one before.
    #[inline]
    pub(super) fn prefetch(&self) {
        if let Some(table) = self.tables.first() {
            prefetch_read(Arc::as_ptr(table));
        }
        prefetch_read(Arc::as_ptr(&self.levels));
        prefetch_read(Arc::as_ptr(&self.ranges));
    }

    /// Has other runs.
    pub(super) fn take_runs(&mut self, runs: &KeyspaceRuns) {
        self.levels = Arc::clone(&runs.levels);
        self.ranges = Arc::clone(&runs.ranges);
        self.expired_sequence = runs.expired_sequence;
    }

    /// Whether any range of keys was deleted that may matter.
    pub(super) fn has_ranges(&self) -> bool {
        self.all_ranges().next().is_some()
    }

    /// The newest deletion of a range that covers `key` and is not newer than `snapshot`: what is older of the key is
    /// deleted. 0: there is none.
    pub(super) fn cover(&self, key: &[u8], snapshot: u64) -> u64 {
        let covers = self.all_ranges().map(|ranges| ranges.cover(key, snapshot));
        covers.max().unwrap_or(0)
    }

    fn all_ranges(&self) -> impl Iterator<Item = &Ranges> {
        let in_tables = self.tables.iter().map(|table| &*table.ranges);
        in_tables
            .chain([&*self.ranges])
            .filter(|ranges| !ranges.is_empty())
    }

    /// All versions, merged.
    pub(super) fn versions<'a>(&'a self, order: &KeyOrder) -> Merge<'a> {
        let mut cursors: Vec<Box<dyn VersionCursor + 'a>> = Vec::new();
        for table in &self.tables {
            cursors.push(Box::new(table.memtable.versions()));
        }
        for run in self.levels.level(0).runs() {
            cursors.push(Box::new(RunCursor::new(run)));
        }
        for level in 1..LEVELS {
            let runs = self.levels.level(level).runs();
            if !runs.is_empty() {
                cursors.push(Box::new(LevelCursor::new(runs)));
            }
        }
        Merge::new(order.clone(), cursors)
    }
}
