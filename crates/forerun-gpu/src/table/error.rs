//! What can go wrong with a table.

use super::options::Policy;
use crate::GpuError;
use std::path::PathBuf;

/// Why something was not done with a table. Nothing was changed then, unless the device failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// No slots, or too many.
    #[error("a table of {capacity} slots: there must be 1 to {max}")]
    Capacity {
        /// Asked for.
        capacity: u64,
        /// The most.
        max: u64,
    },
    /// A reserve beyond what the table was made for.
    #[error("{capacity} slots are more than the {max} that this table may grow to")]
    BeyondMax {
        /// Asked for.
        capacity: u64,
        /// The options' `max_capacity`.
        max: u64,
    },
    /// Rows beyond the longest.
    #[error("rows of {row_bytes} bytes: the longest have {max}")]
    RowTooLong {
        /// Asked for.
        row_bytes: u64,
        /// The most.
        max: u64,
    },
    /// Times and epochs do not fit 4 bytes.
    #[error("scores of 4 bytes do for counts and given scores, not for {policy:?}")]
    NarrowScores {
        /// The policy.
        policy: Policy,
    },
    /// An array of a batch that is not as long as the others.
    #[error("{what}: {found} {unit} for {keys} keys, {expected} expected")]
    Length {
        /// Which array.
        what: &'static str,
        /// Of what.
        unit: &'static str,
        /// Its length.
        found: u64,
        /// The length it must have.
        expected: u64,
        /// Keys of the batch.
        keys: u64,
    },
    /// An array that the operation cannot do without.
    #[error("{operation} takes {what}")]
    Missing {
        /// The operation.
        operation: &'static str,
        /// The array.
        what: &'static str,
    },
    /// Rows that are not made of whole elements.
    #[error("rows of {row_bytes} bytes are not made of elements of {element_bytes}")]
    NotElements {
        /// Of the table.
        row_bytes: u64,
        /// Of an element.
        element_bytes: u64,
    },
    /// An epoch that does not fit the upper half of a score.
    #[error("epoch {epoch} is beyond 2^32 - 1")]
    Epoch {
        /// The epoch.
        epoch: u64,
    },
    /// A lookup that this table's buckets are not made for.
    #[error("the pipelined lookup takes buckets of 128 slots, and these have {width}")]
    Lookup {
        /// Slots of a bucket.
        width: u32,
    },
    /// What lookups ask for, of a table that is not the CPU's.
    #[error("what lookups ask for is counted in a table of the CPU")]
    NotCounted,
    /// No room.
    #[error("no room for {bytes} bytes of {what}")]
    OutOfMemory {
        /// Bytes asked for.
        bytes: u64,
        /// For what.
        what: &'static str,
    },
    /// A slot beyond the last one.
    #[error("slot {slot} of a table of {capacity}")]
    NoSuchSlot {
        /// The slot.
        slot: u64,
        /// Slots of the table.
        capacity: u64,
    },
    /// A saved table that cannot be read.
    #[error("{}, byte {offset}: {problem}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Where in it.
        offset: u64,
        /// What is wrong there.
        problem: String,
    },
    /// The system's refusal to read or write a file.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's word.
        source: std::io::Error,
    },
    /// The device's.
    #[error(transparent)]
    Gpu(#[from] GpuError),
}
