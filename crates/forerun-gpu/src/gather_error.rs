//! Errors of a copy that is refused before the launch.

use crate::copy_version::AccessWidth;
use std::fmt;

use forerun_core::size::counted;

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

/// A part of memory that a copy uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operand {
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
    OutOfRangeCounter,
}

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operand::Rows(side) => write!(f, "the {side} rows"),
            Operand::SourceIndices => f.write_str("the source indices"),
            Operand::DestinationIndices => f.write_str("the destination indices"),
            Operand::Count => f.write_str("the count"),
            Operand::Map => f.write_str("the slot map"),
            Operand::OutOfRangeCounter => f.write_str("the counter of indices out of range"),
        }
    }
}

/// Why a copy is refused. Nothing was launched and no memory was touched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // The texts name the fields.
pub enum GatherError {
    /// Host memory that the device cannot reach.
    #[error(
        "{part}: {address:#x} is ordinary host memory, which the device cannot reach: pin it \
         (PinnedBuffer) or register it (Registered)"
    )]
    NotPinned { part: Operand, address: u64 },
    /// Memory of the wrong kind.
    #[error("{part}: {address:#x} is {found}, but must be {expected}")]
    WrongMemory {
        part: Operand,
        address: u64,
        expected: &'static str,
        found: &'static str,
    },
    /// Memory of another device than the one that runs the copy.
    #[error("{part}: the memory belongs to device {found}, but the copy runs on device {expected}")]
    WrongDevice {
        part: Operand,
        found: usize,
        expected: usize,
    },
    /// The type is not supported for indices.
    #[error("indices, counts and slots are i32 or i64, not {given}")]
    WrongType { given: String },
    /// The shape is not that of pairs.
    #[error("pairs have the shape [..., 2], not {shape:?}")]
    WrongShape { shape: Vec<u64> },
    /// The index arrays have different lengths.
    #[error(
        "source and destination must have the same number of indices, not {source_len} and \
         {destination_len}"
    )]
    LengthsDiffer {
        source_len: u64,
        destination_len: u64,
    },
    /// Rows have no bytes.
    #[error("rows of 0 bytes cannot be copied")]
    NoBytes,
    /// Rows are longer than a kernel can count.
    #[error("rows of {row_bytes} bytes are longer than the maximum of {max}")]
    RowTooLong { row_bytes: u64, max: u64 },
    /// The copy has no layers.
    #[error("there must be at least one layer")]
    NoLayers,
    /// There are too many layers for one launch.
    #[error("{layers} layers are more than the maximum of {max} per launch")]
    LayersBeyond { layers: u32, max: u32 },
    /// A table has fewer addresses than there are layers.
    #[error(
        "{} requested, but the {side}'s table has {}",
        counted(layers, "layer"),
        counted(table, "address")
    )]
    TooManyLayers {
        side: Side,
        layers: u32,
        table: usize,
    },
    /// A row extends into the next one.
    #[error(
        "{side} rows of {} extend past their stride of {stride_bytes}",
        counted(row_bytes, "byte")
    )]
    RowPastStride {
        side: Side,
        row_bytes: u64,
        stride_bytes: u64,
    },
    /// The rows are not whole pages.
    #[error(
        "{side} rows: {} cannot be grouped in whole pages of {}",
        counted(rows, "row"),
        counted(page_rows, "row")
    )]
    PartialPage {
        side: Side,
        rows: u64,
        page_rows: u32,
    },
    /// The rows of a page extend into the next one.
    #[error(
        "{side} rows: a page takes {}, more than the {page_bytes} from one page to the next",
        counted(bytes, "byte")
    )]
    RowsPastPage {
        side: Side,
        bytes: u64,
        page_bytes: u64,
    },
    /// There are more rows in pages than the kernels can divide.
    #[error("{side} rows: {rows} are more than the maximum of {max} in pages")]
    PagedRowsBeyond { side: Side, rows: u64, max: u64 },
    /// Addresses do not fit 64 bits.
    #[error("{part}: their addresses do not fit 64 bits")]
    TooLarge { part: Operand },
    /// Memory extends beyond the end of its allocation.
    #[error(
        "{part}: they end at {end:#x}, past the end of their memory, which has {} at \
         {memory_start:#x}",
        counted(memory_len, "byte")
    )]
    PastEnd {
        part: Operand,
        end: u64,
        memory_start: u64,
        memory_len: u64,
    },
    /// Two layers of a destination share bytes.
    #[error("layers {first} and {second} of the destination, the {side} rows, overlap")]
    LayersOverlap { side: Side, first: u32, second: u32 },
    /// Written memory overlaps memory that is read, or other written memory.
    #[error("{written} and {other} overlap")]
    Overlap { written: Operand, other: Operand },
    /// The address of an index, count, entry or counter is not a multiple of its size.
    #[error("{part}: {address:#x} is not a multiple of {bytes} bytes")]
    Misaligned {
        part: Operand,
        address: u64,
        bytes: u64,
    },
    /// The requested unit does not divide an address, stride or size.
    #[error(
        "a unit of {unit} bytes was requested, but {what} is not a multiple of it; the largest \
         unit that fits is {largest}"
    )]
    UnitDoesNotFit {
        unit: AccessWidth,
        what: String,
        largest: AccessWidth,
    },
    /// The requested version has no kernel with a unit that fits.
    #[error("there is no kernel {version} with {unit}-byte units, only with {}", list(.has))]
    NoKernel {
        version: &'static str,
        unit: AccessWidth,
        has: Vec<AccessWidth>,
    },
    /// The requested version does not run on this device.
    #[error(
        "{version} needs compute capability {}.{}, but the device has {}.{}",
        needed.0,
        needed.1,
        found.0,
        found.1
    )]
    VersionNeedsNewerDevice {
        version: &'static str,
        needed: (u32, u32),
        found: (u32, u32),
    },
    /// A limit on multiprocessors is set for a version that needs a thread or warp per row.
    #[error(
        "{version} needs a thread or warp per row and cannot be limited to {}; v4 and later can",
        counted(cap, "multiprocessor")
    )]
    #[cfg(feature = "study")]
    CannotCap { version: &'static str, cap: u32 },
    /// The limit on multiprocessors is zero.
    #[error("at least one multiprocessor is needed")]
    NoMultiprocessors,
    /// There are more rows than one launch of this version supports.
    #[error("{rows} rows are too many for one launch of {version}; v4 and later take any number")]
    #[cfg(feature = "study")]
    TooManyRows { version: &'static str, rows: u64 },
    /// The map has fewer entries than there are host rows.
    #[error(
        "the slot map has {} per layer, but the host has {}",
        counted(slots, "entry"),
        counted(rows, "row")
    )]
    MapTooShort { slots: u64, rows: u64 },
    /// The maps of different layers overlap partly.
    #[error(
        "the layers' slot maps overlap: each has {}, but they are {layer_step} apart",
        counted(slots, "entry")
    )]
    MapLayersOverlap { layer_step: u64, slots: u64 },
    /// The map's entries are too narrow for a device row.
    #[error("device rows up to {rows} do not fit the slot map's i32 entries")]
    MapTooNarrow { rows: u64 },
    /// The host found an index that is not a row.
    #[error(
        "pair {pair}: {index} is not a {side} row; there {} {}, and -1 means none",
        if *rows == 1 { "is" } else { "are" },
        counted(rows, "row")
    )]
    IndexOutOfRange {
        pair: u64,
        side: Side,
        index: i64,
        rows: u64,
    },
    /// A part that only the device's copy of a request supports.
    #[error("a slot map and a counter of indices out of range need a copy on a device")]
    OnlyOnDevice,
    /// The driver could not report the kind of memory.
    #[error("cannot locate the memory at {address:#x}: {text}")]
    Unknown { address: u64, text: String },
}

fn list(units: &[AccessWidth]) -> String {
    let units: Vec<String> = units.iter().map(AccessWidth::to_string).collect();
    units.join(", ")
}
