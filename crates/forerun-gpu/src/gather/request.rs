//! The description of a copy: rows, layers, pairs and optional parts.
//!
//! ```text
//!   host, page-first                        device, layer-first
//!   offset_bytes                            offset_bytes
//!   |  row 0, layer 0 | row 0, layer 1 | .. |  layer 0: row 0 | row 1 | ..  | layer 1: row 0 | ..
//!   |<------------ stride_bytes ----------->|  |<-- stride -->|
//!   |<- layer step -->|                        |<--------- layer step ----->|
//! ```
//!
//! A [`CopySpec`] describes both sides without addresses. A [`Request`] adds the addresses as plain
//! numbers, for callers that have only these, such as other languages.

use crate::copy_version::{AccessWidth, KernelVersion};
use crate::gather_error::GatherError;
use std::fmt;
use std::str::FromStr;

/// The direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the host to the device.
    Gather,
    /// From the device to the host.
    Scatter,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Direction::Gather => "gather",
            Direction::Scatter => "scatter",
        })
    }
}

/// The integer types of indices, counts and slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IndexType {
    /// Four bytes, signed.
    I32,
    /// Eight bytes, signed.
    I64,
}

impl IndexType {
    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        match self {
            IndexType::I32 => 4,
            IndexType::I64 => 8,
        }
    }

    /// The number of rows that indices reach.
    pub fn rows_max(&self) -> u64 {
        match self {
            IndexType::I32 => 1 << 31,
            IndexType::I64 => 1 << 63,
        }
    }
}

impl FromStr for IndexType {
    type Err = GatherError;

    /// Parses `i32`, `int32`, `torch.int32` and similar names.
    fn from_str(text: &str) -> Result<IndexType, GatherError> {
        match text.strip_prefix("torch.").unwrap_or(text) {
            "i32" | "int32" | "int" => Ok(IndexType::I32),
            "i64" | "int64" | "long" => Ok(IndexType::I64),
            _ => Err(GatherError::WrongType {
                given: text.to_owned(),
            }),
        }
    }
}

/// Where the layers of one side are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layers {
    /// At a fixed step. For a single layer it does not matter.
    Step {
        /// Bytes from one layer's row 0 to the next.
        bytes: u64,
    },
    /// Each at its own offset from the side's first byte.
    Table {
        /// Offset of each layer's row 0.
        offsets_bytes: Vec<u64>,
    },
}

/// The layout of one side's rows, relative to the side's first byte.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RowLayout {
    /// Offset of row 0 of layer 0. It is added to each offset of a table.
    pub offset_bytes: u64,
    /// Rows per layer. Higher indices are not rows.
    pub rows: u64,
    /// Bytes from one row to the next, within a page if there are pages.
    pub stride_bytes: u64,
    /// The layers.
    pub layers: Layers,
    /// The pages in which each layer's rows are grouped. Without pages, all rows are equally far
    /// apart.
    pub pages: Option<RowPages>,
}

/// Groups of rows, in which each group begins a fixed number of bytes after the previous one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowPages {
    /// Rows per page.
    pub rows: u32,
    /// Bytes from the first row of a page to that of the next.
    pub bytes: u64,
}

impl RowLayout {
    /// Consecutive rows in one layer.
    pub fn dense(rows: u64, row_bytes: u64) -> RowLayout {
        RowLayout {
            offset_bytes: 0,
            rows,
            stride_bytes: row_bytes,
            layers: Layers::Step { bytes: 0 },
            pages: None,
        }
    }
}

forerun_core::setters! {
    RowLayout { offset_bytes: u64, rows: u64, stride_bytes: u64, layers: Layers } into {
        pages: Option<RowPages>,
    }
}

/// The treatment of a destination row without a source row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Absent {
    /// It stays as it is.
    #[default]
    Skip,
    /// It is filled with zeros.
    Zero,
}

/// A copy without its addresses. The CPU's copy takes the same description.
///
/// ```
/// use forerun_gpu::gather::{Absent, CopySpec, RowLayout};
///
/// // Rows of 600 bytes that begin every 656 bytes on the host and are dense on the device. Device
/// // rows without a source become zero.
/// let spec = CopySpec::dense(600, 300_000, 1000)
///     .host(RowLayout::dense(300_000, 656))
///     .absent(Absent::Zero);
/// assert_eq!(spec.host.stride_bytes, 656);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CopySpec {
    /// Bytes that are copied per row. The strides may be longer.
    pub row_bytes: u64,
    /// Number of layers, all with the same layout. One launch copies them all.
    pub layers: u32,
    /// The host's side.
    pub host: RowLayout,
    /// The device's side.
    pub device: RowLayout,
    /// The treatment of a row without a source.
    pub absent: Absent,
    /// Which kernel runs. The CPU ignores it.
    pub kernel: KernelChoice,
}

impl CopySpec {
    /// One layer of dense rows on both sides, with default options.
    pub fn dense(row_bytes: u64, host_rows: u64, device_rows: u64) -> CopySpec {
        CopySpec {
            row_bytes,
            layers: 1,
            host: RowLayout::dense(host_rows, row_bytes),
            device: RowLayout::dense(device_rows, row_bytes),
            absent: Absent::Skip,
            kernel: KernelChoice::default(),
        }
    }
}

forerun_core::setters! {
    CopySpec {
        row_bytes: u64,
        layers: u32,
        host: RowLayout,
        device: RowLayout,
        absent: Absent,
        kernel: KernelChoice,
    }
}

/// Explicit requests for the kernel. [`plan`](super::plan()) chooses the rest. Default: all of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct KernelChoice {
    /// The version.
    pub(crate) version: Option<KernelVersion>,
    /// The unit. It is refused if it does not fit, and never replaced by a slower one.
    pub unit: Option<AccessWidth>,
    /// The maximum number of multiprocessors to occupy at a time.
    pub multiprocessors: Option<u32>,
}

forerun_core::setters! {
    KernelChoice {} into {
        unit: Option<AccessWidth>,
        multiprocessors: Option<u32>,
    }
}

impl KernelChoice {
    /// Requests a version of the row copy. A build without the feature `study` has only V5.
    #[must_use]
    pub fn version(mut self, version: KernelVersion) -> Self {
        self.version = Some(version);
        self
    }
}

/// Pairs of indices in memory: `(source row, destination row)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairsAt {
    /// The address of the first source index.
    pub source: u64,
    /// The address of the first destination index.
    pub destination: u64,
    /// Distance between successive source (or destination) indices, in indices: 2 within pairs,
    /// otherwise 1.
    pub step: u64,
    /// The index type.
    pub integer: IndexType,
    /// Pairs per layer.
    pub count: u64,
    /// Indices from one layer's first pair to the next; 0 if all layers share their pairs.
    pub layer_step: u64,
}

impl PairsAt {
    /// An array of shape `[..., 2]` at `address`, with source and destination next to each other.
    ///
    /// # Errors
    /// The last extent of the shape is not 2, or the array is larger than memory.
    pub fn interleaved(
        address: u64,
        integer: IndexType,
        shape: &[u64],
    ) -> Result<PairsAt, GatherError> {
        let wrong = || GatherError::WrongShape {
            shape: shape.to_vec(),
        };
        let Some((2, outer)) = shape.split_last() else {
            return Err(wrong());
        };
        let count = outer.iter().try_fold(1u64, |n, &len| n.checked_mul(len));
        Ok(PairsAt {
            source: address,
            destination: address.wrapping_add(integer.bytes()),
            step: 2,
            integer,
            count: count.ok_or_else(wrong)?,
            layer_step: 0,
        })
    }

    /// Two separate arrays with the given lengths.
    ///
    /// # Errors
    /// The lengths differ.
    pub fn split(
        integer: IndexType,
        (source, source_len): (u64, u64),
        (destination, destination_len): (u64, u64),
    ) -> Result<PairsAt, GatherError> {
        if source_len != destination_len {
            return Err(GatherError::LengthsDiffer {
                source_len,
                destination_len,
            });
        }
        Ok(PairsAt {
            source,
            destination,
            step: 1,
            integer,
            count: source_len,
            layer_step: 0,
        })
    }
}

/// A count in memory that the launch reads when it runs: the number of pairs to use per layer,
/// limited to the pairs given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountAt {
    /// Its address.
    pub address: u64,
    /// Its type.
    pub integer: IndexType,
}

/// The value that is written to the slot map for each copied row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MapUpdate {
    /// The device's row: the host's row is now also there.
    Set,
    /// -1: the host's row is no longer on the device.
    Clear,
}

/// A map in memory from host rows to device rows, with one entry per host row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapAt {
    /// The address of the entry for host row 0 of layer 0.
    pub address: u64,
    /// The entry type.
    pub integer: IndexType,
    /// Entries per layer.
    pub slots: u64,
    /// Entries from one layer's first entry to the next; 0 if all layers share their map.
    pub layer_step: u64,
    /// The value that is written.
    pub update: MapUpdate,
}

/// A copy with all its addresses. Addresses of host memory are the host's; the device's addresses
/// are looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The direction.
    pub direction: Direction,
    /// The layout and options.
    pub spec: CopySpec,
    /// The host side's first byte.
    pub host: u64,
    /// The device side's first byte.
    pub device: u64,
    /// The pairs.
    pub pairs: PairsAt,
    /// A count, if fewer pairs than `pairs.count` may be in use.
    pub count: Option<CountAt>,
    /// A slot map to maintain.
    pub map: Option<MapAt>,
    /// The address of a `u64` that counts indices out of range, except -1.
    pub out_of_range: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_of_any_outer_shape_are_counted() {
        for (shape, count) in [
            (&[128, 2048, 2][..], 262_144),
            (&[5, 2], 5),
            (&[0, 2], 0),
            (&[2], 1),
        ] {
            let pairs = PairsAt::interleaved(64, IndexType::I32, shape).unwrap();
            assert_eq!((pairs.count, pairs.destination, pairs.step), (count, 68, 2));
        }
        for shape in [&[][..], &[3], &[2, 3], &[u64::MAX, 2, 2]] {
            let refusal = PairsAt::interleaved(64, IndexType::I64, shape).unwrap_err();
            assert!(refusal.to_string().contains("[..., 2]"), "{refusal}");
        }
    }

    #[test]
    fn two_arrays_must_have_equal_lengths() {
        assert!(PairsAt::split(IndexType::I64, (8, 5), (80, 5)).is_ok());
        let refusal = PairsAt::split(IndexType::I64, (8, 5), (80, 6)).unwrap_err();
        assert!(refusal.to_string().contains("not 5 and 6"), "{refusal}");
    }

    #[test]
    fn integers_are_read_as_torch_writes_them() {
        assert_eq!("torch.int64".parse(), Ok(IndexType::I64));
        assert_eq!("int32".parse(), Ok(IndexType::I32));
        let refusal = "torch.uint8".parse::<IndexType>().unwrap_err().to_string();
        assert!(
            refusal.contains("torch.uint8") && refusal.contains("i32"),
            "{refusal}"
        );
    }
}
