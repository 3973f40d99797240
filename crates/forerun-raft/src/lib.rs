//! Log storage and key-value state machine for [openraft] on one Forerun store.
//!
//! ```text
//!   openraft ── LogStore ────── log, vote   ┐
//!            └─ StateMachine ── entries     ┴── one Db: one log, one directory
//!   your reads ─ KvReader ───────── ┘
//! ```
//!
//! openraft elects leaders and replicates; you give it a network. This crate stores what it needs:
//! [`open`](open()) returns a [`LogStore`] and a [`StateMachine`] for `openraft::Raft::new`.
//! [`Request`]s go through `Raft::client_write`; a [`KvReader`] looks up keys in batches.
//!
//! - A log entry is acknowledged to the leader when it is on stable storage. Entries that wait at
//!   the same time share a sync.
//! - What is applied and the log id up to which it is applied are written in one batch, so a
//!   restart never applies an entry twice.
//! - A snapshot is built without copying, read as a stream of bytes, and loaded by the receiver
//!   into a new keyspace. One durable batch then makes that keyspace the current one.
//!
//! openraft's feature `generic-snapshot-data` is on, so a network sends snapshots with
//! `RaftNetwork::full_snapshot`. The crate's example `replicated` is a complete server.
//!
//! ```no_run
//! # use openraft::RaftNetworkFactory;
//! # async fn start<N: RaftNetworkFactory<forerun_raft::TypeConfig>>(
//! #     config: std::sync::Arc<openraft::Config>,
//! #     network: N,
//! # ) -> anyhow::Result<()> {
//! use forerun_db::{Db, Options};
//! use forerun_raft::TypeConfig;
//!
//! let db = Db::open("node-1", Options::default())?;
//! let (log, state_machine) = forerun_raft::open::<TypeConfig>(&db)?;
//! let reader = state_machine.reader(); // looks up keys on this node
//! let raft = openraft::Raft::new(1, config, network, log, state_machine).await?;
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod error;
mod install_order;
mod kv_keyspaces;
mod kv_reader;
mod log_store;
mod open;
mod records;
mod request;
mod snapshot_data;
mod snapshot_stream;
mod state_machine;
mod type_config;
mod writer;

pub use error::{Error, Result};
pub use kv_reader::KvReader;
pub use log_store::{LogReader, LogStore};
pub use open::open;
pub use request::{Op, REQUEST_BYTES_MAX, REQUEST_OPS_MAX, RejectedRequest, Request, Response};
pub use snapshot_data::SnapshotData;
pub use state_machine::{SnapshotBuilder, StateMachine};
pub use type_config::TypeConfig;
