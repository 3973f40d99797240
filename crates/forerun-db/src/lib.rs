//! An ordered, durable key-value store built for batched lookups.
//!
//! ```text
//!   db/          the store: open, write, read, snapshots, iterators
//!   backup/      copies of a store, several in one directory
//!   offline/     checks, repairs and describes a store that is not open
//!   store_dir/   the directory of a store and its lock
//!   tree/        the set of runs: manifest, levels, compaction
//!   run/         sorted, immutable files of pages
//!   cache/       pages in memory
//!   memtable/    the newest writes, in memory
//!   wal/         the write-ahead log, from which memtables are recovered
//!   io/          every access to files
//! ```
//!
//! `options.rs`, `keyspace_options.rs`, `tree_options.rs`, `error.rs`, `events.rs`, `limits.rs`,
//! `ops.rs`, `values.rs` and `comparator.rs` define the types of the interface. `versions/` has
//! what memtables and runs share, `ranges/` range deletions, `clock.rs` expiry, `steady_clock.rs`
//! the time, `sealed.rs` small checksummed files, and `bytes.rs` numbers in files.
//!
//! Start with [`Db`], which is opened with [`Options`]. [`WriteBatch`] has atomic writes,
//! [`Values`] the answers of a batch of lookups, [`Iter`] scans, [`Snapshot`] reads at one moment,
//! [`Keyspace`] several ordered maps in one store, [`Ingestion`] bulk loads, and [`Backups`]
//! backups. [`check`], [`repair`] and [`describe`] work on a store that is not open.
//!
//! Whatever can fail returns an [`Error`]. No call of a store panics on bad input, on damaged
//! files, or if a [`Comparator`], an [`EventListener`] or a file system ([`io::Io`]) of the user
//! panics.

#![deny(unsafe_code)]

mod backup;
mod bytes;
mod cache;
mod clock;
mod comparator;
mod db;
mod error;
mod events;
pub mod io;
mod keyspace_options;
mod limits;
#[allow(
    unsafe_code,
    reason = "the skip list: nodes laid out by hand, shared without locks"
)]
pub mod memtable;
mod offline;
mod ops;
mod options;
mod panics;
mod ranges;
// Hidden modules are public only for the fuzz targets and, with the feature `study`, the benches.
#[doc(hidden)]
pub mod run;
mod sealed;
mod steady_clock;
mod store_dir;
// Hidden: see `run`.
#[doc(hidden)]
pub mod testing;
// Hidden: see `run`.
#[doc(hidden)]
pub mod tree;
mod tree_options;
mod values;
mod versions;
mod wal;

pub use backup::{Backup, BackupList, BackupVerifyReport, Backups, RemovedBackups};
pub use cache::{PageCacheStats, VerifyChecksums};
pub use comparator::{Bytewise, Comparator, ReverseBytewise};
pub use db::{
    Db, Ingestion, Iter, Keyspace, KeyspaceBatch, KeyspaceSnapshot, KeyspaceStats, LevelStats,
    Readable, ScrubStats, Snapshot, Stats, TreeStats, ViewId, WriteBatch, WriteStalls,
};
pub use error::{Error, Result};
pub use events::{BackgroundTask, CompactionReason, DbEvent, EventListener, WriteStallReason};
pub use io::ReadBackend;
pub use keyspace_options::KeyspaceOptions;
pub use limits::{
    BATCH_BYTES_MAX, KEY_BYTES_MAX, KEYSPACE_NAME_BYTES_MAX, KEYSPACES_MAX, VALUE_BYTES_MAX,
};
pub use memtable::{MemTableStats, MemoryChecks};
pub use offline::describe::{DescribeOptions, describe};
pub use offline::description::{
    Description, KeyspaceDescription, ManifestDescription, RunDescription, RunSummary,
};
pub use offline::{CheckReport, check, check_with_io, repair, repair_with_io};
pub use ops::{Op, Ops};
pub use options::{Access, Background, Durability, Options, StatsLevel, WalMode};
pub use run::dump::{PageDescription, RowContent, RowDescription};
pub use run::{Compression, RunOptions, ZstdOptions};
pub use store_dir::Create;
pub use tree::file_copy::{CopyProgress, FileCopyOptions};
pub use tree::repair::RepairReport;
pub use tree::salvage::{DataLoss, KeyRange};
pub use tree::verify::VerifyReport;
pub use tree_options::TreeOptions;
pub use values::Values;
pub use versions::Entry;
pub use wal::recovery::Recovery;
pub use wal::recovery_report::{CorruptRange, RecoveryReport};
