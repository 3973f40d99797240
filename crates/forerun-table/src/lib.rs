//! Rows of one size under 64-bit numbers, on a GPU, in memory and on disk, each lookup a batch.
//!
//! ```text
//!   find(keys) ──> device tier: copies in a GPU's memory
//!                    │ misses            ^ device_moves.rs: what is wanted most is copied up, what makes room goes down
//!                    v                   v
//!                  host tier: hash table + rows in huge pages
//!                    │ misses            ^ host_moves.rs: rows that are wanted come up, rows that are not go down
//!                    v                   v
//!                  store: a Db on disk
//!
//!   table.rs, builder.rs  what is used                    device.rs  rows on a device, or on the CPU in its stead
//!   find.rs, misses.rs      lookups; what is still open     host/      rows in memory: slab (unsafe lives here), hand
//!   find_to_device.rs     lookups whose rows end there    ring_pool.rs   pinned memory by way of which they go
//!   write.rs, ingest.rs   insert, update, erase; import   store.rs   rows on disk
//!   moves.rs, device_moves.rs     promotion, demotion             key_locks.rs who writes a key, and whether it changed
//!   worker.rs             ... in the background           admission.rs, ghosts.rs  what is let up; what was asked for
//!   close.rs, interrupt.rs how it is closed; how long calls are ended
//!   flush.rs, snapshot.rs durability, views, export       row.rs, options.rs, error.rs, stats.rs, latency.rs
//! ```
//!
//! [`Table`] is where to begin.

#![deny(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod admission;
mod builder;
mod close;
mod device;
mod device_moves;
mod error;
mod find;
mod find_to_device;
mod flush;
mod ghosts;
mod host;
mod host_moves;
mod ingest;
mod inner;
mod interrupt;
mod key_locks;
mod latency;
mod misses;
mod options;
mod ring_pool;
mod row;
mod snapshot;
mod stats;
mod store;
mod table;
#[cfg(test)]
mod testing;
mod worker;
mod write;

pub use builder::Builder;
pub use close::WeakTable;
pub use device::Pointers;
pub use error::{Error, Failures, Result};
pub use forerun_gpu::gather::Destination;
pub use latency::Latency;
pub use options::{
    Admission, DeviceChoice, EvictionCallback, HostCapacity, Moves, Overflow, Promotion, Score,
    Update, Writes,
};
pub use row::{Dtype, RowType, UnknownDtype};
pub use snapshot::{Export, Rows, Snapshot};
pub use stats::{Counts, DeviceStats, Stats};
pub use table::Table;
