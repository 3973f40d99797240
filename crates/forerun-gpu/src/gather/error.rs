//! Why a copy is not launched.

use super::version::{Unit, Version};
use std::fmt;

/// One of the two sides of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// The host's rows.
    Host,
    /// The device's rows.
    Device,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Side::Host => "host",
            Side::Device => "device",
        })
    }
}

/// Something in memory that a copy uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// The rows of a side.
    Rows(Side),
    /// The source indices.
    SourceIndices,
    /// The destination indices.
    DestinationIndices,
    /// The count.
    Count,
    /// The slot map.
    Map,
    /// The counter of indices out of range.
    OutOfRange,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Part::Rows(side) => write!(f, "the {side} rows"),
            Part::SourceIndices => f.write_str("the source indices"),
            Part::DestinationIndices => f.write_str("the destination indices"),
            Part::Count => f.write_str("the count"),
            Part::Map => f.write_str("the slot map"),
            Part::OutOfRange => f.write_str("the counter of indices out of range"),
        }
    }
}

/// Why a copy is refused. Nothing has been launched then, and no memory touched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // The texts name the fields.
pub enum GatherError {
    /// Host memory that the device cannot reach.
    #[error(
        "{part}: {address:#x} is ordinary host memory, which the device cannot reach: pin it (PinnedBuffer) or register it \
         (Registered)"
    )]
    NotPinned { part: Part, address: u64 },
    /// Memory of the wrong kind.
    #[error("{part}: {address:#x} is {found}, and must be {expected}")]
    WrongMemory {
        part: Part,
        address: u64,
        expected: &'static str,
        found: &'static str,
    },
    /// Memory of another device than the one that runs the copy.
    #[error("{part}: the memory is that of device {found}, and the copy runs on device {expected}")]
    WrongDevice {
        part: Part,
        found: usize,
        expected: usize,
    },
    /// No integer that can be an index.
    #[error("indices, counts and slots are i32 or i64, not {given}")]
    WrongType { given: String },
    /// Pairs that are no pairs.
    #[error("pairs have the shape [..., 2], not {shape:?}")]
    WrongShape { shape: Vec<u64> },
    /// Two arrays of indices of different lengths.
    #[error("there are {source_len} source indices and {destination_len} destination indices")]
    LengthsDiffer {
        source_len: u64,
        destination_len: u64,
    },
    /// Rows without bytes.
    #[error("rows of 0 bytes cannot be copied")]
    NoBytes,
    /// Rows longer than a kernel counts.
    #[error("rows of {row_bytes} bytes are longer than the {max} that can be copied")]
    RowTooLong { row_bytes: u64, max: u64 },
    /// A copy of no layers.
    #[error("there must be at least one layer")]
    NoLayers,
    /// More layers than anybody has.
    #[error("{layers} layers are more than the {max} of one launch")]
    LayersBeyond { layers: u32, max: u32 },
    /// More layers than addresses for them.
    #[error("{layers} layers are to be copied, and the {side}'s table has {table}")]
    TooManyLayers {
        side: Side,
        layers: u32,
        table: usize,
    },
    /// A row that reaches into the next.
    #[error("{side} rows of {row_bytes} bytes reach past their stride of {stride_bytes}")]
    RowPastStride {
        side: Side,
        row_bytes: u64,
        stride_bytes: u64,
    },
    /// Addresses beyond what 64 bits hold.
    #[error("{part}: their addresses do not fit 64 bits")]
    TooLarge { part: Part },
    /// Memory beyond the end of its allocation.
    #[error(
        "{part}: they end at {end:#x}, past the end of their memory, which is {memory_len} bytes from {memory_start:#x} on"
    )]
    PastEnd {
        part: Part,
        end: u64,
        memory_start: u64,
        memory_len: u64,
    },
    /// Two layers of a destination that share bytes.
    #[error("layers {first} and {second} of the destination, the {side} rows, overlap")]
    LayersOverlap { side: Side, first: u32, second: u32 },
    /// What is written lies on what is read, or on something else that is written.
    #[error("{written} and {other} overlap")]
    Overlap { written: Part, other: Part },
    /// An index, count, entry or counter at an address that is no multiple of its size.
    #[error("{part}: {address:#x} is no multiple of {bytes} bytes")]
    Misaligned {
        part: Part,
        address: u64,
        bytes: u64,
    },
    /// A unit asked for that does not divide what it must.
    #[error(
        "a unit of {unit} bytes was asked for, and {what} is no multiple of it; the largest unit that fits is {largest}"
    )]
    UnitDoesNotFit {
        unit: Unit,
        what: String,
        largest: Unit,
    },
    /// A version asked for that has no kernel with units that fit.
    #[error("there is no kernel {version} of {unit}-byte units: it has {}", list(.has))]
    NoKernel {
        version: Version,
        unit: Unit,
        has: Vec<Unit>,
    },
    /// A version asked for that the device cannot run.
    #[error("{version} needs compute capability {}.{}, and the device has {}.{}", needed.0, needed.1, found.0, found.1)]
    VersionNeedsNewerDevice {
        version: Version,
        needed: (u32, u32),
        found: (u32, u32),
    },
    /// A cap on a version that needs a thread or warp for every row.
    #[error(
        "{version} takes one row a thread or warp and cannot be kept to {cap} multiprocessors; v4 and later can"
    )]
    CannotCap { version: Version, cap: u32 },
    /// A cap of nothing.
    #[error("at least one multiprocessor is needed")]
    NoMultiprocessors,
    /// More rows than one launch of such a version can have.
    #[error("{rows} rows are too many for one launch of {version}; v4 and later take any number")]
    TooManyRows { version: Version, rows: u64 },
    /// A map with fewer entries than there are host rows.
    #[error("the slot map has {slots} entries a layer for {rows} host rows")]
    MapTooShort { slots: u64, rows: u64 },
    /// Maps of layers that share entries, but are not one and the same.
    #[error("the slot maps of the layers, {layer_step} entries apart, overlap: each has {slots}")]
    MapLayersOverlap { layer_step: u64, slots: u64 },
    /// A device row that the map's entries cannot hold.
    #[error("device rows up to {rows} do not fit the slot map's i32 entries")]
    MapTooNarrow { rows: u64 },
    /// An index that names no row, found by the host.
    #[error(
        "pair {pair}: {index} is no {side} row; there are {rows}, and -1 says that there is none"
    )]
    IndexOutOfRange {
        pair: u64,
        side: Side,
        index: i64,
        rows: u64,
    },
    /// The driver could not say what memory it is.
    #[error("the driver cannot tell what lies at {address:#x}: {text}")]
    Unknown { address: u64, text: String },
}

fn list(units: &[Unit]) -> String {
    let units: Vec<String> = units.iter().map(Unit::to_string).collect();
    units.join(", ")
}
