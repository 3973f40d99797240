//! Copies of rows between scattered places in pinned host memory and scattered places in GPU
//! memory.
//!
//! ```text
//!   host rows      0 1 2 3 4 5 6 7 8 9 ...          pairs      (7, 0) (2, 1) (-1, 2) (9, 3)
//!                      |         |   |
//!                      `-. .-----'   |              gather: source = host, destination = device
//!   device rows    0 1 2 3 ...  <----'              scatter: source = device, destination = host
//! ```
//!
//! | file               | holds |
//! |--------------------|-------|
//! | `request.rs`       | the description of a copy |
//! | `launch_checks.rs` | checks of a request; `layers.rs`: overlapping layers; `known_memory.rs`: the kind of memory at an address; `unsized_rows.rs`: rows behind an address alone |
//! | `plan.rs`          | which kernel runs; `params.rs` is its argument |
//! | `op.rs`            | the copy, prepared once and launched often; `planned.rs`: its parts |
//! | `copy_queue.rs`    | copies on the streams of others, which never wait; `piece_ring.rs`: their pinned memory |
//! | `staging/`         | sends rows that others may write, through pieces of pinned memory |
//! | `cpu/`             | the same on the CPU |
//!
//! # Guarantees
//! - A pair `(s, d)` copies row `s` of the source to row `d` of the destination, in every layer. An
//!   index below 0 or beyond the rows is not a row. If there is no destination row, nothing
//!   happens. If only the source row is missing, the destination row stays as it is or is zeroed
//!   ([`Absent`]). Nothing outside the rows is ever read or written. An index that is neither a row
//!   nor -1 is a mistake of the caller that no call reports; if a counter is given, it counts them.
//! - If two pairs have the same destination, that row is unspecified (any mix of the two), and so
//!   is its entry in the slot map. The CPU's copy processes pairs in order, but do not rely on it.
//! - With a count in memory, the launch reads it when it runs. It uses that many pairs of each
//!   layer, but at most all of them. A negative count means none.
//! - A scatter writes to host memory without the host's knowledge. The host may read that memory
//!   only after it has waited for an event recorded after the scatter, or for the stream.
//! - A launch neither allocates nor waits. If it is captured in a graph, each replay reads the
//!   indices and counts that are in memory at that time.

mod copy_queue;
pub mod cpu;
mod known_memory;
mod launch_checks;
mod layers;
mod op;
mod params;
mod piece_ring;
mod plan;
mod planned;
mod request;
mod staging;
mod unsized_rows;

#[cfg(feature = "study")]
pub use crate::copy_version::units_of;
pub use crate::copy_version::{
    AccessWidth, KernelVersion, UnknownAccessWidth, UnknownKernelVersion,
};
pub use crate::gather_error::{GatherError, Operand, Side};
pub use crate::memory_type::{MemoryType, PointerAttributes};
pub use copy_queue::{BATCH_ROW_BYTES_MIN, CopyQueue, QueuedCopy, QueuedPairs};
pub use known_memory::{KnownMemory, Locate, LocatedRanges};
pub use launch_checks::{Target, check_request};
pub use op::{
    DeviceCopyOptions, DeviceMap, DevicePairs, DeviceWord, RowCopy, copy_within_device, gather,
    scatter,
};
pub use piece_ring::Kept;
pub use plan::{DEFAULT_THREADS, IN_FLIGHT_BYTES, Plan, Work, plan};
pub use request::{
    Absent, CopySpec, CountAt, Direction, IndexType, KernelChoice, Layers, MapAt, MapUpdate,
    PairsAt, Request, RowLayout, RowPages,
};
pub use staging::{Delivery, Destination, StagingRing, StagingShape};
pub use unsized_rows::rows_that_fit;
