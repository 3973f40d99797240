//! A table of fixed-size rows under 64-bit keys, in GPU memory, host memory and on disk, built for
//! batched lookups.
//!
//! ```text
//!   find(keys) ──> device tier: copies in a GPU's memory
//!                    │ misses            ^ device_moves.rs: copies the hottest rows up, takes evicted rows back
//!                    v                   v
//!                  host tier: hash table + rows in huge pages
//!                    │ misses            ^ host_moves.rs: promotes hot rows, demotes cold ones
//!                    v                   v
//!                  store: a Db on disk
//!
//!   table.rs, builder.rs            the public interface
//!   find.rs, misses.rs              lookups; keys still open; find_scratch.rs: their memory
//!   find_pooled.rs                  sums of the rows of bags of keys
//!   find_to_device.rs               rows into device memory
//!   ring_pool.rs                    the pinned memory that they pass through
//!   write.rs, ingest.rs             insert, update, erase
//!   write_once.rs, clients.rs       writes that are applied once, and a record of each client
//!   partition.rs                    the shard of a key, when several tables hold the rows
//!   key_locks.rs                    locks of writers, versions of keys
//!   device_tier.rs                  the device tier, on a GPU or the CPU
//!   host/                           the host tier: row slab (with `unsafe`), clock
//!   disk_tier.rs                    the rows on disk
//!   host_moves.rs, device_moves.rs  promotion, demotion
//!   promotion_batch.rs              rows on their way to the host tier
//!   background_moves.rs             the thread that promotes and demotes; move_queue.rs: its queue
//!   admission.rs, ghosts.rs         which rows a lookup promotes
//!   evict_strategy.rs               ranks and ages of rows
//!   options.rs, row_type.rs         capacities, policies; the type of rows
//!   memory_budget.rs                one limit for all parts
//!   close.rs, weak_table.rs         closing, handles that do not keep a table open
//!   interrupt.rs                    interrupting
//!   flush.rs, snapshot.rs           durability, views, export
//!   metadata.rs                     named values beside the rows
//! ```
//!
//! The device tier needs the feature `gpu`, which is off by default. Without it, `device_none.rs`
//! replaces `device_tier.rs`, and the crate does not depend on `forerun-gpu`.
//!
//! Start with [`Table`].

#![deny(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod admission;
mod background_moves;
mod builder;
mod clients;
mod close;
mod device_moves;
#[cfg(feature = "gpu")]
mod device_tier;
#[cfg(not(feature = "gpu"))]
#[path = "device_none.rs"]
mod device_tier;
mod disk_tier;
mod error;
mod evict_strategy;
mod find;
mod find_pooled;
mod find_scratch;
#[cfg(feature = "gpu")]
mod find_to_device;
mod flush;
mod ghosts;
mod host;
mod host_moves;
mod ingest;
mod inner;
mod interrupt;
mod key_locks;
mod memory_budget;
mod metadata;
mod misses;
mod move_queue;
mod options;
pub mod partition;
mod promotion_batch;
#[cfg(feature = "gpu")]
mod ring_pool;
mod row_count;
#[cfg(feature = "gpu")]
mod row_store;
mod row_type;
mod snapshot;
mod stats;
mod table;
#[cfg(all(test, feature = "gpu"))]
mod testing;
mod typed;
mod update;
mod weak_table;
mod write;
mod write_once;

pub use builder::Builder;
pub use clients::Applied;
#[cfg(feature = "gpu")]
pub use device_tier::Pointers;
pub use error::{Error, Failures, Result};
pub use evict_strategy::{EvictStrategy, UnknownEvictStrategy};
pub use forerun_core::Latency;
pub use forerun_core::pooling::{
    Bags, PooledDtype, Pooling, PoolingError, PoolingOptions, RowFormat, UnknownPooledDtype,
    UnknownPooling, UnknownRowFormat,
};
pub use forerun_db::Background;
#[cfg(feature = "gpu")]
pub use forerun_gpu::gather::Destination;
#[cfg(feature = "gpu")]
pub use options::DeviceChoice;
pub use options::{
    Admission, EvictionCallback, HostCapacity, Promotion, Update, WhenHostFull, WritePolicy,
};
pub use row_type::{Dtype, RowType, UnknownDtype};
pub use snapshot::{Export, Rows, TableSnapshot};
pub use stats::{Counts, DeviceStats, TableStats};
pub use table::Table;
pub use typed::{TypedRow, TypedTable};
pub use weak_table::WeakTable;
pub use write_once::{Write, WriteId};
// The types of a `TypedTable`'s rows implement its traits.
pub use zerocopy;
