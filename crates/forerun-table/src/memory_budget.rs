//! One budget of memory for a table: its division among the parts that use it.
//!
//! ```text
//!   with a store     | host tier: rows, index, metadata, admission filter | pages, a quarter | memtables, an eighth |
//!   without a store  | host tier                                                                                    |
//! ```
//!
//! A store that is opened for reading only keeps its log in memtables. If the log needs more than
//! an eighth, the rows give up space until memtables have a half.
//!
//! Small memtables mean many flushes for the same rows, and each level of the tree rewrites them
//! several times. So the tree has one level below level 0 until the store is ten times as large as
//! the budget, and level 0 gathers a quarter of that level's bytes before it is merged into it.
//!
//! The rows of the device tier are not part of it: they have memory of their own.

use crate::evict_strategy::EvictStrategy;
use crate::host::{bytes_min, chunk_rows_within};
use crate::{Error, Result, RowType};
use forerun_db::{Db, Options, TreeOptions};
use std::path::Path;

/// The store's share for the pages of its runs, and for their filters.
const PAGES_SHARE: usize = 4;
/// Its share for memtables.
const MEMTABLES_SHARE: usize = 8;
/// Its share for memtables that hold a long log, if the store is opened for reading only.
const LOG_SHARE: usize = 2;
/// The maximum for memtables: larger ones do not make writes faster.
const MEMTABLES_BYTES_MAX: usize = 1 << 30;
/// The number of memtables that fit at the same time: one takes writes while another is flushed.
/// Fewer, larger memtables mean fewer runs to merge.
const MEMTABLES: usize = 2;
/// The maximum that a memtable needs for an entry, in addition to the entry's value.
const ENTRY_BYTES: usize = 128;
/// The maximum that memtables need in addition to their entries.
const EMPTY_MEMTABLES_BYTES: usize = 16 << 10;

/// The last level takes level 0 directly up to this many times the budget: ten times its rows, and
/// what a store adds to each. Up to a size that a compaction can rewrite in about half a minute.
const LEVEL1_FACTOR: u64 = 12;
const LEVEL1_BYTES_MAX: u64 = 4 << 30;
/// Runs in level 0 at which they are merged, at which writes are slowed down, and at which they
/// wait: half of the rewriting is that of small runs.
const LEVEL0_RUNS: usize = 10;
const LEVEL0_SLOW_RUNS: usize = 16;
const LEVEL0_STOP_RUNS: usize = 24;
/// The budget's share for a run, and the least: a run's writer remembers each key.
const RUN_SHARE: u64 = 8;
const RUN_BYTES_MIN: u64 = 1 << 20;

/// The parts of a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryBudget {
    /// For the host tier.
    pub(crate) host_bytes: usize,
    /// For the store's page cache; 0 without a store.
    pages_bytes: usize,
    /// For its memtables; 0 without a store.
    memtables_bytes: usize,
    /// The requested bytes: all of these, and those that were taken before.
    asked_bytes: usize,
}

impl MemoryBudget {
    /// Divides the part of a budget that is not taken yet between the host tier and a store.
    ///
    /// # Errors
    /// [`Error::MemoryBudget`]: it is too small.
    pub(crate) fn with_store(
        bytes: usize,
        taken_bytes: usize,
        row: RowType,
        strategy: EvictStrategy,
    ) -> Result<MemoryBudget> {
        let host_min = bytes_min(row.bytes(), strategy);
        let memtables_min = memtables_bytes_min(host_min, row, strategy);
        // The memory left after the pages must hold the other two parts, each with at least its
        // minimum.
        let needed_bytes = (host_min + memtables_min).saturating_mul(2) + taken_bytes;
        if bytes < needed_bytes {
            return Err(Error::MemoryBudget {
                row,
                asked_bytes: bytes,
                needed_bytes,
            });
        }
        let asked_bytes = bytes;
        let bytes = bytes - taken_bytes;
        let pages_bytes = bytes / PAGES_SHARE;
        let memtables_bytes = (bytes / MEMTABLES_SHARE)
            .min(MEMTABLES_BYTES_MAX)
            .max(memtables_bytes_min(bytes - pages_bytes, row, strategy));
        Ok(MemoryBudget {
            host_bytes: bytes - pages_bytes - memtables_bytes,
            pages_bytes,
            memtables_bytes,
            asked_bytes,
        })
    }

    /// Takes space from the rows for a log that a store keeps in its memtables; `None` if it was
    /// taken before, or there is none to take.
    fn for_long_log(self, row: RowType, strategy: EvictStrategy) -> Option<MemoryBudget> {
        let both_bytes = self.host_bytes + self.memtables_bytes;
        // The minimum is an estimate, and does not include the admission filter.
        let max_bytes = both_bytes.saturating_sub(2 * bytes_min(row.bytes(), strategy));
        let memtables_bytes = ((both_bytes + self.pages_bytes) / LOG_SHARE).min(max_bytes);
        (memtables_bytes > self.memtables_bytes).then(|| MemoryBudget {
            host_bytes: both_bytes - memtables_bytes,
            memtables_bytes,
            ..self
        })
    }

    /// Opens a store for reading only, and returns the division that its log leaves.
    ///
    /// # Errors
    /// [`Error::LogMemory`], [`Error::Store`].
    pub(crate) fn open_read_only(
        self,
        path: &Path,
        options: &Options,
        row: RowType,
        strategy: EvictStrategy,
    ) -> Result<(Db, MemoryBudget)> {
        match Db::open(path, self.limit(options.clone())) {
            Ok(db) => Ok((db, self)),
            Err(forerun_db::Error::MemoryLimit { .. }) => match self.for_long_log(row, strategy) {
                Some(parts) => parts.open_read_only(path, options, row, strategy),
                None => Err(Error::LogMemory {
                    path: path.display().to_string(),
                    asked_bytes: self.asked_bytes,
                }),
            },
            Err(error) => Err(error.into()),
        }
    }

    /// Limits the store's memory, and gives its tree the shape for that.
    pub(crate) fn limit(self, options: Options) -> Options {
        let memtable_bytes = options.memtable_bytes.min(self.memtables_bytes / MEMTABLES);
        let tree = self.tree(options.tree);
        options
            .tree(tree)
            .memory_limit_bytes(self.memtables_bytes)
            .memtable_bytes(memtable_bytes)
            .cache_bytes(self.pages_bytes)
    }

    /// The shape of a store's tree. What the caller has changed stays.
    fn tree(self, tree: TreeOptions) -> TreeOptions {
        let default = TreeOptions::default();
        let bytes = self.asked_bytes as u64;
        let mut fitting = tree;
        if tree.level1_bytes == default.level1_bytes {
            let level1_bytes = bytes.saturating_mul(LEVEL1_FACTOR).min(LEVEL1_BYTES_MAX);
            fitting.level1_bytes = level1_bytes.max(default.level1_bytes);
        }
        if tree.run_bytes == default.run_bytes {
            fitting.run_bytes = (bytes / RUN_SHARE).clamp(RUN_BYTES_MIN, default.run_bytes);
        }
        let depths = |of: &TreeOptions| (of.level0_runs, of.level0_slow_runs, of.level0_stop_runs);
        if depths(&tree) == depths(&default) {
            fitting.level0_runs = LEVEL0_RUNS;
            fitting.level0_slow_runs = LEVEL0_SLOW_RUNS;
            fitting.level0_stop_runs = LEVEL0_STOP_RUNS;
        }
        fitting
    }
}

/// The memory that memtables need for the rows of one write, in a table whose host tier has at most
/// this many bytes: rows are written in chunks.
fn memtables_bytes_min(host_bytes: usize, row: RowType, strategy: EvictStrategy) -> usize {
    let rows = chunk_rows_within(host_bytes, row.bytes(), strategy);
    let chunk_bytes = rows * (row.bytes() + ENTRY_BYTES);
    // A memtable takes an eighth for itself.
    chunk_bytes + chunk_bytes / 8 + EMPTY_MEMTABLES_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Dtype;

    #[test]
    fn the_parts_add_up_to_the_budget() {
        for bytes in [4 << 20, 100 << 20, 2 << 30, 1 << 40] {
            let row = RowType::new(Dtype::F32, 16);
            let parts = MemoryBudget::with_store(bytes, 0, row, EvictStrategy::Lfu).unwrap();
            let MemoryBudget {
                host_bytes,
                pages_bytes,
                memtables_bytes,
                asked_bytes,
            } = parts;
            assert_eq!(asked_bytes, bytes);
            assert_eq!(host_bytes + pages_bytes + memtables_bytes, bytes);
            assert!(host_bytes >= bytes / 2, "{parts:?}");
            let options = parts.limit(Options::default());
            assert!(options.memtable_bytes * 2 <= options.memory_limit_bytes);
        }
    }

    #[test]
    fn the_tree_fits_the_budget_unless_the_caller_has_given_it_a_shape() {
        let row = RowType::new(Dtype::F32, 16);
        let tree_of = |bytes, options| {
            let parts = MemoryBudget::with_store(bytes, 0, row, EvictStrategy::Lfu);
            parts.unwrap().limit(options).tree
        };
        let default = TreeOptions::default();
        for bytes in [4 << 20, 100 << 20, 340 << 20, 2 << 30, 1 << 40] {
            let tree = tree_of(bytes, Options::default());
            let ten_times = 10 * bytes as u64;
            assert!(tree.level1_bytes >= ten_times.min(LEVEL1_BYTES_MAX));
            assert!((1 << 20..=default.run_bytes).contains(&tree.run_bytes));
            assert!(tree.run_bytes <= bytes as u64 / 4);
            let given = default
                .level1_bytes(7 << 20)
                .run_bytes(5 << 20)
                .level0_runs(3);
            assert_eq!(tree_of(bytes, Options::default().tree(given)), given);
        }
    }

    #[test]
    fn a_long_log_takes_at_most_half_of_the_row_budget() {
        let row = RowType::new(Dtype::F32, 16);
        for bytes in [4 << 20, 100 << 20, 2 << 30, 1 << 40] {
            let parts = MemoryBudget::with_store(bytes, 0, row, EvictStrategy::Lfu).unwrap();
            let parts = parts.for_long_log(row, EvictStrategy::Lfu).unwrap();
            assert_eq!(parts.memtables_bytes, bytes / 2);
            assert_eq!(parts.host_bytes + parts.pages_bytes, bytes / 2);
            assert_eq!(parts.for_long_log(row, EvictStrategy::Lfu), None);
        }
        let host_min = bytes_min(row.bytes(), EvictStrategy::Lfu);
        let smallest = 2 * (host_min + memtables_bytes_min(host_min, row, EvictStrategy::Lfu));
        let parts = MemoryBudget::with_store(smallest, 0, row, EvictStrategy::Lfu).unwrap();
        if let Some(parts) = parts.for_long_log(row, EvictStrategy::Lfu) {
            assert!(parts.host_bytes >= 2 * host_min);
        }
    }

    #[test]
    fn the_minimum_for_wide_rows_is_that_of_a_small_chunk() {
        let strategy = EvictStrategy::Lfu;
        for dim in [1 << 12, 1 << 16, 1 << 18] {
            let row = RowType::new(Dtype::F32, dim);
            let host_min = bytes_min(row.bytes(), strategy);
            let Err(Error::MemoryBudget { needed_bytes, .. }) =
                MemoryBudget::with_store(1000, 0, row, strategy)
            else {
                panic!("1000 bytes for rows of {row}");
            };
            // 64 rows in memtables, 273 in the host tier, and a quarter for pages.
            assert!(needed_bytes < host_min * 21 / 8, "{row}: {needed_bytes}");
        }
    }

    #[test]
    fn a_budget_too_small_for_a_write_is_refused_with_the_minimum() {
        for dim in [1, 16, 4096, 1 << 18] {
            let row = RowType::new(Dtype::F32, dim);
            let Err(Error::MemoryBudget { needed_bytes, .. }) =
                MemoryBudget::with_store(1000, 0, row, EvictStrategy::Lfu)
            else {
                panic!("1000 bytes for rows of {row}");
            };
            MemoryBudget::with_store(needed_bytes, 0, row, EvictStrategy::Lfu).unwrap();
            MemoryBudget::with_store(needed_bytes - 1, 0, row, EvictStrategy::Lfu).unwrap_err();
        }
    }
}
