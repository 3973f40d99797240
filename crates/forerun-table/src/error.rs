//! The errors.

use crate::RowType;
use forerun_core::RegionError;
use forerun_core::pooling::{PoolingError, RowFormat};
use forerun_core::size::counted;
#[cfg(feature = "gpu")]
use forerun_gpu::GpuError;
use std::fmt;
use std::time::Duration;

/// The result of the crate's operations.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation failed, or which keys of it did.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Some keys of a batch could not be served. All others were served, as if the batch did not
    /// contain these.
    #[error("{0}")]
    Keys(Box<Failures>),
    /// The lengths of keys, rows and flags do not match. Nothing was done.
    #[error("{what} for {}: {len} given, {needed} needed", counted(.keys, "key"))]
    Length {
        /// The kind of input: `"bytes of rows"`, `"flags"`, `"scores"`.
        what: &'static str,
        /// The number given.
        len: usize,
        /// The number of keys in the batch.
        keys: usize,
        /// The number needed.
        needed: usize,
    },
    /// A row has no bytes, or more than a tier accepts.
    #[error(
        "a row of {row} has {} bytes; a table takes rows of 1 to {limit_bytes} bytes",
        .row.bytes()
    )]
    RowSize {
        /// The requested row type.
        row: RowType,
        /// The maximum row size in bytes.
        limit_bytes: usize,
    },
    /// The rows of a pooled lookup are of another type.
    #[error("rows of {row} are not rows of {format}")]
    RowFormat {
        /// The table's rows.
        row: RowType,
        /// The format of the lookup.
        format: RowFormat,
    },
    /// The bags of a pooled lookup, its options or the lengths of its arrays are wrong. Nothing was
    /// looked up.
    #[error(transparent)]
    Pooling(#[from] PoolingError),
    /// The type of a [`TypedTable`](crate::TypedTable)'s rows is not as long as a row.
    #[error(
        "{type_name} has {}; a row of {row} has {}",
        counted(.type_bytes, "byte"),
        .row.bytes()
    )]
    TypeSize {
        /// The table's rows.
        row: RowType,
        /// The type.
        type_name: &'static str,
        /// The size of the type in bytes.
        type_bytes: usize,
    },
    /// The elements of a [`TypedTable`](crate::TypedTable)'s rows are of another type than the
    /// table's.
    #[error("{type_name} is not a row of {row}: its elements are of another type")]
    TypeElements {
        /// The table's rows.
        row: RowType,
        /// The type.
        type_name: &'static str,
    },
    /// The host tier cannot have this size.
    #[error("a host tier of {asked} {unit} is impossible: {reason}")]
    HostCapacity {
        /// The requested size.
        asked: usize,
        /// `"rows"` or `"bytes"`.
        unit: &'static str,
        /// Why not.
        reason: String,
    },
    /// The budget of [`Builder::memory_bytes`](crate::Builder::memory_bytes) is too small.
    #[error(
        "a memory budget of {asked_bytes} bytes is too small: a table of rows of {row} over a \
         store needs at least {needed_bytes}"
    )]
    MemoryBudget {
        /// The rows.
        row: RowType,
        /// The requested size.
        asked_bytes: usize,
        /// The minimum.
        needed_bytes: usize,
    },
    /// The log of a store that is opened for reading only, which takes memory, does not fit into
    /// the budget of [`Builder::memory_bytes`](crate::Builder::memory_bytes).
    #[error(
        "a memory budget of {asked_bytes} bytes is too small for the log of the store at {path}: \
         raise `memory`, or open the table for writing once"
    )]
    LogMemory {
        /// The store.
        path: String,
        /// The requested size.
        asked_bytes: usize,
    },
    /// The requested GPU is not available for a device tier.
    #[cfg(feature = "gpu")]
    #[error("a device tier of {rows} rows on this GPU is impossible: {reason}")]
    NoDevice {
        /// The requested number of rows.
        rows: usize,
        /// The driver's error.
        reason: GpuError,
    },
    /// The operation needs a device tier, and the table has none.
    #[error("{op} needs a device tier; give the table a `device_capacity`")]
    NoDeviceTier {
        /// The operation.
        op: &'static str,
    },
    /// The destination is in another kind of memory than the device tier.
    #[error("the device tier is on {tier}, but the destination is {given}")]
    Destination {
        /// Where the tier is.
        tier: String,
        /// Where the destination is.
        given: String,
    },
    /// The device tier cannot be made, has failed, or has no memory for delivering rows. The table
    /// keeps working without a tier that has failed.
    #[error("the device tier failed: {reason}")]
    Device {
        /// The reason.
        reason: String,
    },
    /// Two settings of the builder exclude each other.
    #[error("{0}")]
    Conflict(&'static str),
    /// The operation needs a store, and the table has none.
    #[error("{op} needs a store on disk; give the table a `path`")]
    NoStore {
        /// The operation.
        op: &'static str,
    },
    /// The store holds rows of another type, or no table.
    #[error("the store at {path} does not hold a table of rows of {row}: {reason}")]
    OtherTable {
        /// The store.
        path: String,
        /// The requested row type.
        row: RowType,
        /// What the store holds.
        reason: String,
    },
    /// The store's entries expire. A table's rows in memory do not, so it cannot use such a store.
    #[error(
        "the store's entries live {} s, but a table's rows do not expire: use a \
         store without a time to live",
        .ttl.as_secs()
    )]
    StoreTtl {
        /// How long the store's entries live.
        ttl: Duration,
    },
    /// The host tier is full, and the table has neither a store nor a
    /// [`WhenHostFull`](crate::WhenHostFull) that evicts.
    #[error(
        "the host tier is full: its capacity is {capacity}; raise its capacity, set a path for a \
         store, or choose a `when_full` that evicts"
    )]
    Full {
        /// The number of rows it holds.
        capacity: usize,
    },
    /// A value in the store is not as long as a row of this table.
    #[error(
        "the store's value of key {key} has {}, but a row has {needed_bytes}",
        counted(.len_bytes, "byte")
    )]
    BadRow {
        /// The key.
        key: u64,
        /// The length of the value.
        len_bytes: usize,
        /// The length of a row in the store.
        needed_bytes: usize,
    },
    /// A write of a client came after a later one was applied: see
    /// [`write_once`](crate::Table::write_once). Nothing was written.
    #[error("write {sequence} of this client is superseded: its write {last} was applied")]
    Superseded {
        /// The number of the write.
        sequence: u64,
        /// The number of the client's last write.
        last: u64,
    },
    /// The record of a client's last write is damaged.
    #[error("the record of the writes of client {client:032x} is damaged")]
    BadRecord {
        /// The client.
        client: u128,
    },
    /// The memory of replaced rows cannot be reused, because some thread has not stopped reading.
    #[error(
        "no slot was freed within {waited:?}: a reader in this process still holds replaced rows"
    )]
    Stalled {
        /// How long no slot has been freed, not counting the time of evictions.
        waited: Duration,
    },
    /// The builder's [`interrupt_if`](crate::Builder::interrupt_if) function ended the call. Some
    /// keys of the batch may be written or found, others not.
    #[error("the call was interrupted")]
    Interrupted,
    /// The function of [`WhenHostFull::Callback`](crate::WhenHostFull) panicked. The rows that it
    /// received stay in the table, and it may receive them again.
    #[error("the function that receives evicted rows panicked: {message}")]
    CallbackPanicked {
        /// The panic's message.
        message: String,
    },
    /// The table was closed.
    #[error("the table is closed")]
    Closed,
    /// The thread that moves rows cannot be started.
    #[error("cannot start the thread that moves rows: {0}")]
    Thread(String),
    /// The system refused memory.
    #[error("cannot allocate memory for rows: {0}")]
    Memory(RegionError),
    /// The host tier's index failed.
    #[error(transparent)]
    Index(#[from] forerun_hash::Error),
    /// This process is a fork, and the table was opened by its parent. Nothing was touched.
    #[error(transparent)]
    Forked(#[from] forerun_core::Forked),
    /// The store on disk failed.
    #[error(transparent)]
    Store(#[from] forerun_db::Error),
}

#[cfg(feature = "gpu")]
impl From<forerun_gpu::table::TableError> for Error {
    fn from(error: forerun_gpu::table::TableError) -> Error {
        Error::Device {
            reason: error.to_string(),
        }
    }
}

/// The message contains the cause, so it is not a source as well.
impl From<RegionError> for Error {
    fn from(cause: RegionError) -> Error {
        Error::Memory(cause)
    }
}

/// The keys of a batch that failed, and why.
#[derive(Clone, Debug, Default)]
pub struct Failures {
    /// In batch order, or nearly so.
    failed: Vec<(usize, u64, Error)>,
    /// Number of keys that failed and are not in the list, because memory is short.
    unlisted: usize,
    /// Number of keys that were served. For a lookup: found.
    served: usize,
}

impl Failures {
    pub(crate) fn push(&mut self, position: usize, key: u64, error: Error) {
        // Memory is often what the keys failed for.
        match self.failed.try_reserve(1) {
            Ok(()) => self.failed.push((position, key, error)),
            Err(_) => self.unlisted += 1,
        }
    }

    /// Returns `served` if nothing failed, and the failures otherwise: if there is no memory for a
    /// list of them, [`Error::Memory`].
    pub(crate) fn into_result(mut self, served: usize) -> Result<usize> {
        if self.is_empty() {
            return Ok(served);
        }
        if self.unlisted > 0 {
            let len_bytes = self.len() * size_of::<(usize, u64, Error)>();
            return Err(RegionError::OutOfMemory { len_bytes }.into());
        }
        self.served = served;
        Err(Error::Keys(Box::new(self)))
    }

    /// Number of keys that failed.
    pub fn len(&self) -> usize {
        self.failed.len() + self.unlisted
    }

    /// Whether no key failed.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of keys that were served nevertheless: what the call would have returned.
    pub fn served(&self) -> usize {
        self.served
    }

    /// Position in the batch, key and error of each failure.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (usize, u64, &Error)> {
        self.failed
            .iter()
            .map(|(at, key, error)| (*at, *key, error))
    }
}

impl fmt::Display for Failures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.failed.as_slice() {
            [] => f.write_str("no key failed"),
            [(at, key, error)] => write!(f, "key {key} (position {at}) failed: {error}"),
            [(at, key, error), rest @ ..] => write!(
                f,
                "{} keys failed, the first of them {key} (position {at}): {error}",
                rest.len() + 1
            ),
        }
    }
}
