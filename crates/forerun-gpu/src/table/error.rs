//! Errors of a table.

use super::evict_strategy::GpuEvictStrategy;
use crate::GpuError;
use forerun_core::pooling::PoolingError;
use forerun_core::size::counted;
use std::path::PathBuf;

/// Why a table operation failed. Nothing was changed, unless the device failed or a file was being
/// [loaded](super::GpuTable::load) or saved.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// The capacity is zero or too large.
    #[error("a table cannot have {capacity} slots, only 1 to {max}")]
    Capacity {
        /// The requested number of slots.
        capacity: u64,
        /// The maximum.
        max: u64,
    },
    /// The requested capacity exceeds the table's maximum.
    #[error("{capacity} slots are more than this table's maximum of {max}")]
    BeyondMax {
        /// The requested number of slots.
        capacity: u64,
        /// The option `max_capacity`.
        max: u64,
    },
    /// The buckets of a table of this capacity cannot hold all entries that are pinned.
    #[error(
        "a table of {capacity} slots has no room for all pinned entries in their buckets; unlock \
         some, or raise the maximum capacity"
    )]
    Pinned {
        /// The capacity, which is the table's maximum.
        capacity: u64,
    },
    /// The rows are too long.
    #[error("rows of {row_bytes} bytes are longer than the maximum of {max}")]
    RowTooLong {
        /// The requested row size.
        row_bytes: u64,
        /// The maximum row size.
        max: u64,
    },
    /// Times and epochs do not fit 4 bytes.
    #[error("scores of 4 bytes hold counts and given scores, but not those of {evict_strategy:?}")]
    NarrowScores {
        /// The eviction strategy.
        evict_strategy: GpuEvictStrategy,
    },
    /// An array of a batch has the wrong length.
    #[error("{what}: {found} {unit} for {}, {expected} expected", counted(.keys, "key"))]
    Length {
        /// The array.
        what: &'static str,
        /// The unit of its length.
        unit: &'static str,
        /// Its length.
        found: u64,
        /// The length it must have.
        expected: u64,
        /// Number of keys in the batch.
        keys: u64,
    },
    /// The operation needs an array that is missing.
    #[error("{operation} needs {what}")]
    Missing {
        /// The operation.
        operation: &'static str,
        /// The array.
        what: &'static str,
    },
    /// Rows do not consist of whole elements.
    #[error(
        "rows of {} do not consist of elements of {element_bytes} bytes",
        counted(.row_bytes, "byte")
    )]
    NotElements {
        /// The table's row size.
        row_bytes: u64,
        /// The size of an element.
        element_bytes: u64,
    },
    /// The epoch does not fit the upper half of a score.
    #[error("epoch {epoch} exceeds 2^32 - 1")]
    Epoch {
        /// The epoch.
        epoch: u64,
    },
    /// The lookup does not work with this table's buckets.
    #[cfg(feature = "study")]
    #[error("the pipelined lookup needs buckets of 128 slots, but these have {width}")]
    Lookup {
        /// Slots per bucket.
        width: u32,
    },
    /// The lookup must not run concurrently with writers, because its copies are not ordered with
    /// their stores.
    #[cfg(feature = "study")]
    #[error(
        "the lookup {lookup:?} must not run beside operations that change entries; choose another \
         one"
    )]
    BesideWriters {
        /// The name of the lookup.
        lookup: &'static str,
    },
    /// The table is on the CPU or can grow, so it cannot be changed while other threads use it.
    #[error(
        "a table on the CPU, or one that can grow, is not changed while other threads look up keys"
    )]
    NeedsExclusiveAccess,
    /// The table is not on the CPU, so memory requests are not counted.
    #[error("the memory requests of lookups are counted only in a table on the CPU")]
    NotCounted,
    /// The bags of a pooled lookup, its options or the lengths of its arrays are wrong.
    #[error(transparent)]
    Pooling(#[from] PoolingError),
    /// Out of memory.
    #[error("cannot allocate {bytes} bytes for {what}")]
    OutOfMemory {
        /// The requested bytes.
        bytes: u64,
        /// Their purpose.
        what: &'static str,
    },
    /// The slot is beyond the last one.
    #[error("slot {slot} does not exist: the table has {}", counted(.capacity, "slot"))]
    NoSuchSlot {
        /// The slot.
        slot: u64,
        /// Number of slots in the table.
        capacity: u64,
    },
    /// A saved table cannot be read.
    #[error("{}, byte {offset}: {problem}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The offset in the file.
        offset: u64,
        /// The problem.
        problem: String,
    },
    /// The system failed to read or write a file.
    #[error("{}: {cause}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        cause: std::io::Error,
    },
    /// The device's error.
    #[error(transparent)]
    Gpu(#[from] GpuError),
}

impl TableError {
    /// Whether memory was lacking, of the device or of the host.
    pub(super) fn is_out_of_memory(&self) -> bool {
        matches!(
            self,
            TableError::OutOfMemory { .. } | TableError::Gpu(GpuError::OutOfMemory { .. })
        )
    }
}
