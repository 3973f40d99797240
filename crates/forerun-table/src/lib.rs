//! Rows of one size under 64-bit numbers, in memory and on disk, each lookup a batch.
//!
//! ```text
//!   find(keys) ──> host tier: hash table + rows in huge pages ──misses──> store: a Db on disk
//!                  ^   rows that are wanted come up    rows that are not go down   |
//!                  └────────────────────────── moves.rs ───────────────────────────┘
//!
//!   table.rs, builder.rs  what is used                    host/      rows in memory: shelf (unsafe lives here), hand
//!   find.rs, write.rs     lookups; insert, update, erase  store.rs   rows on disk
//!   moves.rs, worker.rs   promotion, demotion             stripes.rs who writes a key, and whether it changed
//!   flush.rs, snapshot.rs durability, views, export       ghosts.rs  what was asked for and is not here
//!   row.rs, options.rs, error.rs, stats.rs, latency.rs
//! ```
//!
//! [`Table`] is where to begin.

#![deny(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod builder;
mod error;
mod find;
mod flush;
mod ghosts;
mod host;
mod inner;
mod latency;
mod moves;
mod options;
mod row;
mod snapshot;
mod stats;
mod store;
mod stripes;
mod table;
mod worker;
mod write;

pub use builder::Builder;
pub use error::{Error, Failures, Result};
pub use latency::Latency;
pub use options::{
    Admission, HostCapacity, Moves, Overflow, Promotion, Score, Sink, Update, Writes,
};
pub use row::{Dtype, RowType, UnknownDtype};
pub use snapshot::{Export, Rows, Snapshot};
pub use stats::{Counts, Stats};
pub use table::Table;
