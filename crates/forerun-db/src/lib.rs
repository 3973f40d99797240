//! An ordered, durable key-value store built for batched lookups.
//!
//! ```text
//!   db/          the store: open, write, read, snapshots, iterators
//!   backup/      copies of a store, several in one directory
//!   store_dir.rs the directory of a store and its lock
//!   tree/        the set of runs: manifest, levels, compaction
//!   run/         sorted, immutable files of pages
//!   cache/       pages in memory
//!   memtable/    the newest writes, in memory
//!   wal/         the write-ahead log, from which memtables are recovered
//!   io/          every access to files
//! ```
//!
//! `options.rs`, `error.rs`, `batch.rs`, `values.rs` and `comparator.rs` hold the types of the
//! interface; `versions.rs` what memtables and runs share; `ranges.rs` range deletions; `clock.rs`
//! expiry; `sealed.rs` small checksummed files.
//!
//! Start with [`Db`].

#![deny(unsafe_code)]

#[doc(hidden)]
pub mod backup;
mod batch;
mod cache;
mod clock;
mod comparator;
mod db;
mod error;
pub mod io;
#[allow(
    unsafe_code,
    reason = "the skip list: nodes laid out by hand, shared without locks"
)]
pub mod memtable;
mod options;
mod panics;
#[cfg(not(feature = "planted"))]
mod planted;
#[cfg(feature = "planted")]
pub mod planted;
mod ranges;
#[doc(hidden)]
pub mod run;
mod sealed;
mod store_dir;
#[doc(hidden)]
pub mod tree;
mod values;
mod versions;
#[doc(hidden)]
pub mod wal;

pub use backup::{Backup, BackupList, BackupProgress, Backups, CheckedBackups, RemovedBackups};
#[doc(hidden)]
pub use batch::fuzz_batch;
pub use batch::{KeyspaceBatch, Op, Ops, WriteBatch};
pub use cache::CacheStats;
pub use db::{
    BackPressure, Db, Ingestion, Iter, Keyspace, KeyspaceSnapshot, KeyspaceStats, LevelStats,
    Readable, Snapshot, Stats, TreeWork, ViewId,
};
pub use error::{Error, Result};
pub use io::ReadBackend;
pub use memtable::{
    Bytewise, Checks, Comparator, Entry, ReverseBytewise, Strategy, UnknownStrategy,
};
pub use options::{
    Access, Background, Create, Durability, KeyspaceOptions, Options, Recovery, TreeOptions,
    WalMode,
};
pub use run::dump::{PageDescription, RowContent, RowDescription};
pub use run::{Compression, RunOptions};
pub use tree::describe::{DescribeOptions, describe};
pub use tree::description::{
    Description, KeyspaceDescription, ManifestDescription, RunDescription, RunSummary,
};
pub use tree::offline::{CheckReport, check, check_with_io, repair, repair_with_io};
pub use tree::repair::RepairReport;
pub use tree::salvage::{KeyRange, Loss};
pub use tree::verify::VerifyReport;
pub use values::Values;
pub use wal::recovery_report::{BadRange, RecoveryReport};

/// Longest key: 64 KiB. The empty key is a key.
pub const MAX_KEY_BYTES: usize = 65_536;

/// Longest value: 1 GiB. The empty value is a value.
pub const MAX_VALUE_BYTES: usize = 1 << 30;

/// The most keyspaces of a store, its own included.
pub const MAX_KEYSPACES: usize = 1024;

/// Longest name of a keyspace: 255 bytes. Only the store's own has an empty one.
pub const MAX_KEYSPACE_NAME_BYTES: usize = 255;

/// Longest batch, encoded: 2 GiB less a byte.
pub const MAX_BATCH_BYTES: usize = (1 << 31) - 1;
