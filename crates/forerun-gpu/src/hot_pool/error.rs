//! Errors of the hot pool.

use crate::GpuError;
use crate::gather_error::{GatherError, Side};
use forerun_core::size::counted;

/// Why a hot pool was not made, or a call refused. Nothing was launched and no memory was touched.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // The texts name the fields.
pub enum HotPoolError {
    /// A number that must be at least 1 is 0.
    #[error("`{what}` must be at least 1")]
    Zero { what: &'static str },
    /// A number is too large.
    #[error("`{what}` is {given}, but at most {max} is possible")]
    Beyond {
        what: &'static str,
        given: u64,
        max: u64,
    },
    /// A table could not hold all positions of a request at the same time.
    #[error(
        "a request reads up to {}, but its table has only {}",
        counted(count, "position"),
        counted(slots, "slot")
    )]
    TableTooSmall { count: u32, slots: u32 },
    /// There is no such table.
    #[error("`requests[{at}]` is {request}, but there are {tables} tables, numbered from 0")]
    NoSuchTable {
        at: usize,
        request: i64,
        tables: u32,
    },
    /// Two requests of a batch would change one table at the same time.
    #[error("`requests[{at}]`: table {request} is named twice in one batch")]
    NamedTwice { at: usize, request: i32 },
    /// There is no such layer.
    #[error("layer {layer} was asked for, but there are {layers} layers, numbered from 0")]
    NoSuchLayer { layer: u32, layers: u32 },
    /// A layer that shares its table is not the one that resolves.
    #[error(
        "layer {layer} shares the table of layer {anchor}: resolve that one, then replay its plan"
    )]
    SharedTable { layer: u32, anchor: u32 },
    /// Several layers that are not evenly apart.
    #[error("layers in a table of offsets are replayed one at a time")]
    UnevenLayers,
    /// Rows in pages.
    #[error("{side} rows of a hot pool cannot be grouped in pages")]
    Pages { side: Side },
    /// A plan was recorded by another kind of pool or for fewer requests.
    #[error(
        "the plan has room for {} of {} positions, but the call has {batch} of {count}",
        counted(plan_batch, "request"),
        plan_count
    )]
    PlanTooSmall {
        plan_batch: u32,
        plan_count: u32,
        batch: u32,
        count: u32,
    },
    /// Lengths do not fit together.
    #[error(
        "{} of positions cannot be divided evenly among {}",
        counted(positions, "element"),
        counted(requests, "request")
    )]
    Uneven { positions: u64, requests: u64 },
    /// Memory is shorter than the call needs.
    #[error("`{what}` has {}, but the call needs {needed}", counted(bytes, "byte"))]
    TooShort {
        what: &'static str,
        bytes: u64,
        needed: u64,
    },
    /// An address or a stride is not a multiple of its elements' size.
    #[error("`{what}`: {value:#x} is not a multiple of {}", counted(bytes, "byte"))]
    Misaligned {
        what: &'static str,
        value: u64,
        bytes: u64,
    },
    /// A row extends into the next one.
    #[error("{side} rows of {row_bytes} bytes extend past their stride of {stride_bytes}")]
    RowPastStride {
        side: Side,
        row_bytes: u64,
        stride_bytes: u64,
    },
    /// The search does not fit a block's shared memory.
    #[error(
        "a search of {count} positions among {slots} slots needs {needed} bytes of shared memory, \
         but a block has {max}: use CLOCK, or fewer positions or slots"
    )]
    SharedMemory {
        count: u32,
        slots: u32,
        needed: u32,
        max: u32,
    },
    /// Lengths are the contract of tables that LRU orders and whose rows are listed.
    #[error("lengths need LRU, a list of device rows, and a slot of each table for the newest row")]
    Lengths,
    /// A list that names slots names one twice or out of range.
    #[error("`lru_slots` of table {table} does not name each of its {slots} slots once")]
    BadOrder { table: u64, slots: u32 },
    /// Memory for the pool could not be allocated.
    #[error("cannot allocate {bytes} bytes for the hot pool")]
    OutOfMemory { bytes: u64 },
    /// More rows are in use than the host's pool has.
    #[error(
        "{} must be fetched, but only {} of the host's {rows} are free or not in use",
        counted(needed, "row"),
        counted(free, "row")
    )]
    HostFull { needed: u64, free: u64, rows: u64 },
    /// The store lacks a row.
    #[error("the store has no row for key {key}, at position {position} of the batch")]
    NotInStore { key: u64, position: usize },
    /// A row is released that is not in use.
    #[error("host row {row} is released, but it is not in use")]
    NotInUse { row: i64 },
    /// The rows could not be copied.
    #[error(transparent)]
    Copy(#[from] GatherError),
    /// The device failed.
    #[error(transparent)]
    Gpu(#[from] GpuError),
}
