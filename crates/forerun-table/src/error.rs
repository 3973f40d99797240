//! What can go wrong, worded.

use crate::RowType;
use forerun_core::RegionError;
use forerun_gpu::GpuError;
use std::fmt;
use std::time::Duration;

/// The result of the crate's operations.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation failed, or what of it did.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Some keys of a batch could not be served; all others were, as if these had not been in it.
    #[error("{0}")]
    Keys(Box<Failures>),
    /// Keys, rows and flags do not fit each other. Nothing was done.
    #[error("{len} {what} were given for {keys} keys, which takes {needed}")]
    Length {
        /// What was given: `"bytes of rows"`, `"flags"`, `"scores"`.
        what: &'static str,
        /// How many were given.
        len: usize,
        /// Keys of the batch.
        keys: usize,
        /// How many that takes.
        needed: usize,
    },
    /// Rows of no bytes, or of more than a tier takes.
    #[error("a row of {row} has {} bytes; a table takes rows of 1 to {limit_bytes} bytes", .row.bytes())]
    RowSize {
        /// The rows asked for.
        row: RowType,
        /// The most bytes.
        limit_bytes: usize,
    },
    /// The host tier cannot be of this size.
    #[error("a host tier of {asked} {unit} is not possible: {reason}")]
    HostCapacity {
        /// What was asked for.
        asked: usize,
        /// `"rows"` or `"bytes"`.
        unit: &'static str,
        /// Why not.
        reason: String,
    },
    /// A device tier was asked for on a GPU that cannot be had.
    #[error("a device tier of {rows} rows on this GPU is not possible: {reason}")]
    NoDevice {
        /// The rows asked for.
        rows: usize,
        /// What the driver said.
        reason: GpuError,
    },
    /// The operation works on a device tier, and the table has none.
    #[error("{op} needs a device tier; give the builder a device capacity")]
    NoDeviceTier {
        /// The operation.
        op: &'static str,
    },
    /// Rows were to go to memory of another kind than the device tier's.
    #[error("the device tier lies on {tier}, and the rows were to go to {given}")]
    Destination {
        /// What the tier lies on.
        tier: String,
        /// Where the rows were to go.
        given: String,
    },
    /// The device tier cannot be made, or has failed, or has no memory to bring rows there. Once it
    /// has failed, the table goes on without it.
    #[error("the device tier failed: {reason}")]
    Device {
        /// What it said.
        reason: String,
    },
    /// Two choices of the builder exclude each other.
    #[error("{0}")]
    Conflict(&'static str),
    /// The operation works on a store, and the table has none.
    #[error("{op} needs a store on disk; give the builder a path")]
    NoStore {
        /// The operation.
        op: &'static str,
    },
    /// The store holds rows of another shape, or something else.
    #[error("the store at {path} does not hold a table of rows of {row}: {reason}")]
    OtherTable {
        /// The store.
        path: String,
        /// The rows asked for.
        row: RowType,
        /// What it holds.
        reason: String,
    },
    /// The host tier is full, the table has no store, and was not told to evict rows.
    #[error(
        "the host tier is full: all of its {capacity} rows are taken; give the table more capacity, a path to keep further rows at, or an overflow policy that evicts"
    )]
    Full {
        /// Rows it holds.
        capacity: usize,
    },
    /// A row in the store has a length that no row of this table has.
    #[error(
        "the store has {len_bytes} bytes under key {key}, which is no row: rows have {needed_bytes}"
    )]
    BadRow {
        /// The key.
        key: u64,
        /// Bytes that are there.
        len_bytes: usize,
        /// Bytes of a row there.
        needed_bytes: usize,
    },
    /// Memory of rows that were replaced cannot be used again: some thread has not stopped reading.
    #[error(
        "no row came free within {waited:?}: a reader of this process holds on to those that were replaced"
    )]
    Stalled {
        /// How long nothing came free, the time of evictions not counted.
        waited: Duration,
    },
    /// The builder's [`interrupt`](crate::Builder::interrupt) function ended the call. Some keys of
    /// the batch may be written or found, others are not.
    #[error("the call was interrupted")]
    Interrupted,
    /// The table was closed.
    #[error("the table is closed")]
    Closed,
    /// No thread for the table's moves.
    #[error("cannot start the thread that moves rows: {0}")]
    Thread(String),
    /// Memory was refused.
    #[error("no memory for the rows of the host tier: {0}")]
    Memory(#[from] RegionError),
    /// The host tier's index failed.
    #[error(transparent)]
    Index(#[from] forerun_hash::Error),
    /// The table was opened by another process, of which this one is a fork. Nothing was touched.
    #[error(transparent)]
    Forked(#[from] forerun_core::Forked),
    /// The store on disk failed.
    #[error(transparent)]
    Store(#[from] forerun_db::Error),
}

impl From<forerun_gpu::table::TableError> for Error {
    fn from(error: forerun_gpu::table::TableError) -> Error {
        Error::Device {
            reason: error.to_string(),
        }
    }
}

/// The keys of a batch that could not be served, and why.
#[derive(Clone, Debug, Default)]
pub struct Failures {
    /// In the order of the batch, or nearly so.
    failed: Vec<(usize, u64, Error)>,
    /// Keys of the batch that were served: found, in a lookup.
    served: usize,
}

impl Failures {
    pub(crate) fn push(&mut self, position: usize, key: u64, error: Error) {
        self.failed.push((position, key, error));
    }

    /// `served` if nothing failed, else what did.
    pub(crate) fn into_result(mut self, served: usize) -> Result<usize> {
        if self.failed.is_empty() {
            return Ok(served);
        }
        self.served = served;
        Err(Error::Keys(Box::new(self)))
    }

    /// Keys that failed.
    pub fn len(&self) -> usize {
        self.failed.len()
    }

    /// Whether none did.
    pub fn is_empty(&self) -> bool {
        self.failed.is_empty()
    }

    /// Keys that were served all the same: what the call would have returned.
    pub fn served(&self) -> usize {
        self.served
    }

    /// Position in the batch, key and error of each.
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
