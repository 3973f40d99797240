//! Rows of one size under 64-bit numbers, on a GPU, in memory and on disk, each lookup a batch.
//!
//! ```text
//!   find(keys) ──> device tier: copies in a GPU's memory
//!                    │ misses            ^ lift.rs: what is wanted most is copied up, what makes room goes down
//!                    v                   v
//!                  host tier: hash table + rows in huge pages
//!                    │ misses            ^ moves.rs: rows that are wanted come up, rows that are not go down
//!                    v                   v
//!                  store: a Db on disk
//!
//!   table.rs, builder.rs  what is used                    device.rs  rows on a device, or on the processor in its stead
//!   find.rs, rest.rs      lookups; what is still open     host/      rows in memory: shelf (unsafe lives here), hand
//!   find_to_device.rs     lookups whose rows end there    rings.rs   pinned memory by way of which they go
//!   write.rs, ingest.rs   insert, update, erase; import   store.rs   rows on disk
//!   moves.rs, lift.rs     promotion, demotion             stripes.rs who writes a key, and whether it changed
//!   worker.rs             ... in the background           gate.rs, ghosts.rs  what is let up; what was asked for
//!   close.rs, interrupt.rs how it is closed; how long calls are ended
//!   flush.rs, snapshot.rs durability, views, export       row.rs, options.rs, error.rs, stats.rs, latency.rs
//! ```
//!
//! [`Table`] is where to begin.

#![deny(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

#[cfg(test)]
mod broken;
mod builder;
mod close;
mod device;
mod error;
mod find;
mod find_to_device;
mod flush;
mod gate;
mod ghosts;
mod host;
mod ingest;
mod inner;
mod interrupt;
mod latency;
mod lift;
mod moves;
mod options;
mod rest;
mod rings;
mod row;
mod snapshot;
mod stats;
mod store;
mod stripes;
mod table;
mod worker;
mod write;

pub use builder::Builder;
pub use close::WeakTable;
pub use device::Pointers;
pub use error::{Error, Failures, Result};
pub use forerun_gpu::gather::Destination;
pub use latency::Latency;
pub use options::{
    Admission, DeviceChoice, HostCapacity, Moves, Overflow, Promotion, Score, Sink, Update, Writes,
};
pub use row::{Dtype, RowType, UnknownDtype};
pub use snapshot::{Export, Rows, Snapshot};
pub use stats::{Counts, DeviceStats, Stats};
pub use table::Table;
