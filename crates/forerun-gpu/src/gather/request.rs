//! What is to be copied: rows, layers, pairs, and what comes along.
//!
//! ```text
//!   host, page-first                        device, layer-first
//!   offset_bytes                            offset_bytes
//!   |  row 0, layer 0 | row 0, layer 1 | .. |  layer 0: row 0 | row 1 | ..  | layer 1: row 0 | ..
//!   |<------------ stride_bytes ----------->|  |<-- stride -->|
//!   |<- layer step -->|                        |<--------- layer step ----->|
//! ```
//!
//! A [`Spec`] tells this for both sides, without addresses; a [`Request`] adds the addresses, as
//! plain numbers, for callers that have nothing better, such as other languages.

use super::error::GatherError;
use super::version::{Unit, Version};
use std::fmt;
use std::str::FromStr;

/// Which way rows go.
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

/// The two kinds of integers that indices, counts and slots may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Integer {
    /// Four bytes, signed.
    I32,
    /// Eight bytes, signed.
    I64,
}

impl Integer {
    /// Its bytes.
    pub fn bytes(&self) -> u64 {
        match self {
            Integer::I32 => 4,
            Integer::I64 => 8,
        }
    }
}

impl FromStr for Integer {
    type Err = GatherError;

    /// Reads `i32`, `int32`, `torch.int32` and the like.
    fn from_str(text: &str) -> Result<Integer, GatherError> {
        match text.strip_prefix("torch.").unwrap_or(text) {
            "i32" | "int32" | "int" => Ok(Integer::I32),
            "i64" | "int64" | "long" => Ok(Integer::I64),
            _ => Err(GatherError::WrongType {
                given: text.to_owned(),
            }),
        }
    }
}

/// Where the layers of one side lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layers {
    /// As far apart as this; for a single layer it does not matter.
    Step {
        /// From one layer's row 0 to the next's.
        bytes: u64,
    },
    /// Each at an offset of its own from the side's first byte.
    Table {
        /// Offset of each layer's row 0.
        offsets_bytes: Vec<u64>,
    },
}

/// Where the rows of one side lie, from the side's first byte on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Row 0 of layer 0; for a table it is added to each of its offsets.
    pub offset_bytes: u64,
    /// Rows of a layer. Indices from here on name no row.
    pub rows: u64,
    /// From one row to the next.
    pub stride_bytes: u64,
    /// The layers.
    pub layers: Layers,
}

impl Layout {
    /// Rows one after the other, in one layer.
    pub fn dense(rows: u64, row_bytes: u64) -> Layout {
        Layout {
            offset_bytes: 0,
            rows,
            stride_bytes: row_bytes,
            layers: Layers::Step { bytes: 0 },
        }
    }
}

/// What becomes of a destination row whose source index names no row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Absent {
    /// It stays as it is.
    #[default]
    Skip,
    /// It is filled with zeros.
    Zero,
}

/// What a copy is like, apart from where it happens. The CPU's reference takes the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Bytes of a row that are copied; the strides may be longer.
    pub row_bytes: u64,
    /// Layers, each with the same layout. All in one launch.
    pub layers: u32,
    /// The host's side.
    pub host: Layout,
    /// The device's side.
    pub device: Layout,
    /// What becomes of a row without a source.
    pub absent: Absent,
    /// Which kernel runs. The CPU has no use for it.
    pub kernel: KernelChoice,
}

impl Spec {
    /// One layer of dense rows on both sides, with nothing asked for.
    pub fn dense(row_bytes: u64, host_rows: u64, device_rows: u64) -> Spec {
        Spec {
            row_bytes,
            layers: 1,
            host: Layout::dense(host_rows, row_bytes),
            device: Layout::dense(device_rows, row_bytes),
            absent: Absent::Skip,
            kernel: KernelChoice::default(),
        }
    }
}

/// What is asked for by name; where nothing is, [`plan`](super::plan()) chooses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelChoice {
    /// The version.
    pub version: Option<Version>,
    /// The unit; refused where it does not fit, never replaced by a slower one.
    pub unit: Option<Unit>,
    /// The most multiprocessors that it may occupy at a time.
    pub multiprocessors: Option<u32>,
}

/// Pairs of indices in memory: `(source row, destination row)` each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairsAt {
    /// The address of the first source index.
    pub source: u64,
    /// The address of the first destination index.
    pub destination: u64,
    /// From one source (or destination) index to the next, in indices: 2 within pairs, else 1.
    pub step: u64,
    /// The indices' type.
    pub integer: Integer,
    /// Pairs of a layer.
    pub count: u64,
    /// From one layer's first pair to the next's, in indices; 0 where all layers share their pairs.
    pub layer_step: u64,
}

impl PairsAt {
    /// An array of shape `[..., 2]` at `address`: source and destination side by side.
    ///
    /// # Errors
    /// A shape whose last extent is not 2, or that holds more than memory can.
    pub fn interleaved(
        address: u64,
        integer: Integer,
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

    /// Two arrays of their own, each of the length given.
    ///
    /// # Errors
    /// Lengths that differ.
    pub fn split(
        integer: Integer,
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

/// A count in memory that the launch reads when it runs: pairs of a layer in use, at most those
/// that there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountAt {
    /// Its address.
    pub address: u64,
    /// Its type.
    pub integer: Integer,
}

/// What is written to the slot map for each row that is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MapUpdate {
    /// The device's row: the host's row is now there as well.
    Set,
    /// -1: the host's row is no longer on the device.
    Clear,
}

/// A map in memory from host rows to device rows, an entry for each host row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapAt {
    /// The address of the entry of host row 0 of layer 0.
    pub address: u64,
    /// The entries' type.
    pub integer: Integer,
    /// Entries of a layer.
    pub slots: u64,
    /// From one layer's first entry to the next's, in entries; 0 where all layers share their map.
    pub layer_step: u64,
    /// What is written.
    pub update: MapUpdate,
}

/// A copy with all its addresses. Those on the host are the host's own; what the device calls them
/// is found out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Which way.
    pub direction: Direction,
    /// What it is like.
    pub spec: Spec,
    /// The host side's first byte.
    pub host: u64,
    /// The device side's first byte.
    pub device: u64,
    /// The pairs.
    pub pairs: PairsAt,
    /// A count, where there may be fewer pairs than `pairs.count`.
    pub count: Option<CountAt>,
    /// A slot map to keep.
    pub map: Option<MapAt>,
    /// The address of a `u64` to which indices outside their range are added, but for -1.
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
            let pairs = PairsAt::interleaved(64, Integer::I32, shape).unwrap();
            assert_eq!((pairs.count, pairs.destination, pairs.step), (count, 68, 2));
        }
        for shape in [&[][..], &[3], &[2, 3], &[u64::MAX, 2, 2]] {
            let refusal = PairsAt::interleaved(64, Integer::I64, shape).unwrap_err();
            assert!(refusal.to_string().contains("[..., 2]"), "{refusal}");
        }
    }

    #[test]
    fn two_arrays_must_be_as_long() {
        assert!(PairsAt::split(Integer::I64, (8, 5), (80, 5)).is_ok());
        let refusal = PairsAt::split(Integer::I64, (8, 5), (80, 6)).unwrap_err();
        assert!(refusal.to_string().contains("5 source"), "{refusal}");
    }

    #[test]
    fn integers_are_read_as_torch_writes_them() {
        assert_eq!("torch.int64".parse(), Ok(Integer::I64));
        assert_eq!("int32".parse(), Ok(Integer::I32));
        let refusal = "torch.uint8".parse::<Integer>().unwrap_err().to_string();
        assert!(
            refusal.contains("torch.uint8") && refusal.contains("i32"),
            "{refusal}"
        );
    }
}
