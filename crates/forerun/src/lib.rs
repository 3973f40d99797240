//! Forerun: a key-value engine built for batched lookups.
//!
//! A lookup in a large store spends most of its time waiting for memory: each step needs an address
//! that the previous step must fetch first. A single lookup cannot avoid that wait. A batch can:
//! [`Db::multi_get`] walks all its keys at once, and whenever one of them would wait, it continues
//! with another. A single [`Db::get`] uses the same search.
//!
//! [`Db`] is an ordered, durable store of byte strings: a write-ahead log, atomic batches of
//! writes, snapshots, scans in both directions.
//!
//! ```
//! use forerun::prelude::*;
//!
//! # fn main() -> Result<(), forerun::Error> {
//! # let directory = tempfile::tempdir().expect("a temporary directory can be made");
//! # let path = directory.path().join("towns");
//! let db = Db::open(&path, Options::default())?;
//!
//! // A batch of writes is atomic.
//! let mut batch = WriteBatch::new();
//! batch.put("CH/Biel", "47.137,7.246")?;
//! batch.put("CH/Bern", "46.948,7.447")?;
//! batch.put("DE/Bonn", "50.734,7.100")?;
//! db.write(&batch, Durability::Synced)?;
//!
//! // Answers come in the order of the keys, in memory that the next batch reuses.
//! let mut values = Values::new();
//! db.multi_get(&["DE/Bonn", "FR/Lyon", "CH/Biel"], &mut values)?;
//! assert_eq!(values.get(0)?, Some(&b"50.734,7.100"[..]));
//! assert_eq!(values.get(1)?, None);
//! assert_eq!(values.found(), 2);
//!
//! // A snapshot does not change when the store does.
//! let snapshot = db.snapshot();
//! db.delete("CH/Bern")?;
//! assert_eq!(snapshot.get("CH/Bern")?.as_deref(), Some(&b"46.948,7.447"[..]));
//! assert_eq!(db.get("CH/Bern")?, None);
//!
//! // Entries in order, from either end.
//! let last = db.prefix("CH/").next_back().transpose()?;
//! assert_eq!(last, Some((b"CH/Biel".to_vec(), b"47.137,7.246".to_vec())));
//!
//! // Each keyspace has its own keys, and a batch may span keyspaces.
//! let countries = db.keyspace("countries")?;
//! let mut batch = WriteBatch::new();
//! batch.keyspace(&countries).put("FR", "France")?;
//! batch.put("FR/Lyon", "45.764,4.836")?;
//! db.write(&batch, Durability::Synced)?;
//! assert_eq!(countries.get("FR")?.as_deref(), Some(&b"France"[..]));
//! drop(countries);
//! db.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! Use [`hash::HashTable`] where keys and values have eight bytes each and order does not matter.
//!
//! # Execution of a batch
//! [`Db::multi_get`] looks up all keys of a batch together: through the hash index of a memtable,
//! or where there is none, in its list, with many searches in flight. `forerun demo` (the crate
//! `forerun-cli`) measures the gain on real data on your machine. The instruction set is chosen
//! when the program starts ([`machine::isa`]), so a plain build is as fast as one built for the
//! machine.
//!
//! # Reading
//! [`Db::get`] returns an owned value, [`Db::read`] lends it to a closure without a copy,
//! [`Db::multi_get`] fills [`Values`], which are reused, and [`Values::to_vec`] copies them.
//! [`Iter`] is an iterator of owned pairs, and its [`next_entry`](Iter::next_entry) lends
//! entries instead. [`Keyspace`], [`Snapshot`] and [`KeyspaceSnapshot`] have the same methods, and
//! [`Readable`] is their trait.
//!
//! There is no counterpart to RocksDB's `PinnableSlice`, which pins a value until the caller drops
//! it. It would keep memory alive that other threads have long replaced. [`Db::read`] lends a value
//! only while its closure runs; copy a value that must live longer.
//!
//! # Errors
//! Each part has one error type: [`DbError`], `cache::Error`, `client::Error`, [`hash::Error`],
//! `table::Error`. They own what they contain, are `Send`, `Sync` and `'static`, and convert with
//! `?` to [`Error`], `anyhow::Error` and `Box<dyn std::error::Error>`. The message names the cause.
//!
//! # Extensibility
//! Options, most of their choices (such as [`Compression`] or [`Create`]), statistics, reports and
//! errors are `#[non_exhaustive]`: a later release may add to them. Set options with their setters.
//! Request and result types (such as [`Op`], [`Entry`] or `cache::StoreResult`) are exhaustive, so
//! the compiler finds every place that must handle a new result.
//!
//! # Cargo features
//! | feature | default | what |
//! |---|---|---|
//! | `cache` | on | the cache of byte strings, `forerun::cache` |
//! | `table` | on | the table of rows, `forerun::table` |
//! | `client` | off | the client of several memcached servers, `forerun::client` |
//! | `tls` | off | the client's connections over TLS |
//! | `ucx` | off | the client's connections over UCX |
//! | `gpu` | off | row gathers, `forerun::gpu`, and the table's device tier |
//! | `serde` | off | options implement `Serialize` and `Deserialize`, statistics and reports `Serialize` |
//!
//! # On-disk format
//! Every write goes to the log first: to the operating system ([`Durability::Buffered`]) or to
//! stable storage ([`Durability::Synced`]). Opening a store replays the log; an incomplete write at
//! its end is dropped and reported by [`Db::recovery`]. The newest writes are also in memory. A
//! full memtable becomes a run, a sorted file of pages, and background threads merge runs into
//! larger ones. Pages are read on demand and cached within [`Options::cache_bytes`]. So a store may
//! be many times larger than memory, and a batch waits for the disk once, not once per key.

#![forbid(unsafe_code)]

mod error;

pub use error::{Error, Result};
pub use forerun_db::{
    Access, Background, Compression, Create, Db, Durability, Entry, Error as DbError, Ingestion,
    Iter, KeyRange, Keyspace, KeyspaceBatch, KeyspaceOptions, KeyspaceSnapshot, MemoryChecks, Op,
    Ops, Options, Readable, Recovery, Result as DbResult, RunOptions, Snapshot, TreeOptions,
    Values, VerifyChecksums, ViewId, WalMode, WriteBatch, ZstdOptions,
};

/// Backups of a store.
pub mod backup {
    pub use forerun_db::{
        Backup, BackupList, BackupVerifyReport, Backups, CopyProgress, FileCopyOptions,
        RemovedBackups,
    };
}

/// The order of a store's keys.
pub mod comparator {
    pub use forerun_db::{Bytewise, Comparator, ReverseBytewise};
}

/// What is in a store's files: whether they are intact, what a repair can save, and each page and
/// row.
pub mod inspect {
    pub use forerun_db::{
        CheckReport, CorruptRange, DataLoss, DescribeOptions, Description, KeyspaceDescription,
        ManifestDescription, PageDescription, RecoveryReport, RepairReport, RowContent,
        RowDescription, RunDescription, RunSummary, VerifyReport, check, check_with_io, describe,
        repair, repair_with_io,
    };
}

/// What happens in an open store, for a listener of the program.
pub mod events {
    pub use forerun_db::{
        BackgroundTask, CompactionReason, DbEvent, EventListener, WriteStallReason,
    };
}

/// The file system of a store, which [`Db::open_with_io`] replaces.
pub mod io {
    pub use forerun_db::io::{FileId, Io, IoFile, OpenMode, OsIo, UnknownReadBackend};
    pub use forerun_db::{ReadBackend, forward_io};
}

/// The limits of keys, values, batches and keyspaces.
pub mod limits {
    pub use forerun_db::{
        BATCH_BYTES_MAX, KEY_BYTES_MAX, KEYSPACE_NAME_BYTES_MAX, KEYSPACES_MAX, VALUE_BYTES_MAX,
    };
}

/// The machine: its instruction set, its memory pages, and sizes as people write them.
pub mod machine {
    pub use forerun_core::arch::{Isa, UnknownIsa, isa};
    pub use forerun_core::size::{SizeError, format_size, parse_size};
    pub use forerun_core::{Backing, Pages, RegionError};
}

/// Which process a handle belongs to, and what a fork may do with it.
pub mod process {
    pub use forerun_core::{Forked, Owner, PerProcess, ProcessBound};
}

/// Statistics of a store, and the metrics of all statistics by name.
pub mod stats {
    pub use forerun_core::{
        DurationBuckets, Latency, LatencyHistogram, Metric, MetricKind, Metrics, prometheus_text,
    };
    pub use forerun_db::{
        KeyspaceStats, LevelStats, MemTableStats, PageCacheStats, ScrubStats, Stats, StatsLevel,
        TreeStats, WriteStalls,
    };
}

/// Hash tables in memory for keys and values of fixed width, built for batched lookups.
///
/// ```
/// use forerun::hash::HashTable;
///
/// # fn main() -> Result<(), forerun::hash::Error> {
/// let table = HashTable::with_capacity(1_000_000)?;
/// table.insert_batch(&[3, 1, 2], &[30, 10, 20])?;
///
/// // A batch of keys; the values of those that are present.
/// let (mut values, mut found) = ([0; 4], [false; 4]);
/// let hits = table.find(&[1, 2, 3, 4], &mut values, &mut found);
/// assert_eq!((hits, values), (3, [10, 20, 30, 0]));
/// assert_eq!(found, [true, true, true, false]);
///
/// // Any thread may write while others read.
/// table.upsert(1, |value| value.unwrap_or(0) + 1)?;
/// assert_eq!(table.get(1), Some(11));
/// # Ok(())
/// # }
/// ```
pub mod hash {
    pub use forerun_hash::{
        Error, FrozenHashTable, HashTable, HashTableGuard, HashTableIter, HashTableOptions,
    };
}

/// A cache of byte strings with a hard memory limit, shared by threads and built for batched
/// lookups.
///
/// ```
/// use forerun::cache::{Cache, CacheOptions, Expiry, Store, StoreResult};
/// use std::time::Duration;
///
/// # fn main() -> Result<(), forerun::Error> {
/// let cache = Cache::new(CacheOptions::default().memory_limit_bytes(64 << 20))?;
/// let expiry = Expiry::In(Duration::from_secs(60));
/// let stored = cache.store(Store { expiry, ..Store::set("CH/Bern", "46.948,7.447") });
/// assert!(matches!(stored, StoreResult::Stored { .. }));
///
/// // Values are read in place while the guard lives.
/// let guard = cache.pin();
/// let mut items = [None; 2];
/// guard.multi_get(&["CH/Bern", "FR/Lyon"], &mut items)?;
/// assert_eq!(items[0].unwrap().value(), b"46.948,7.447");
/// assert!(items[1].is_none());
/// # Ok(())
/// # }
/// ```
#[cfg(feature = "cache")]
pub mod cache {
    pub use forerun_cache::*;
}

/// A client of several memcached servers, such as `forerun serve`: a batch is one overlapped round
/// trip to all of them.
///
/// ```no_run
/// use forerun::client::{Client, ClientOptions, Lookups};
///
/// # fn main() -> Result<(), forerun::client::Error> {
/// let servers = ["10.0.1.1:11211".parse()?, "10.0.1.2:11211".parse()?];
/// let client = Client::new(servers, ClientOptions::default())?;
/// client.set("CH/Bern", "46.948,7.447")?;
///
/// // The requests to all servers are sent before the first answer is read.
/// let mut values = Lookups::new();
/// let report = client.multi_get(&["FR/Lyon", "CH/Bern"], &mut values)?;
/// assert!(values.get(0).is_none());
/// for failure in &report.failures {
///     eprintln!("{failure}");
/// }
/// # Ok(())
/// # }
/// ```
#[cfg(feature = "client")]
pub mod client {
    pub use forerun_client::*;
}

/// Gathers and scatters rows between host memory and a GPU's memory in one launch; without a GPU,
/// the CPU does the same.
///
/// ```
/// use forerun::gpu::gather::{CopySpec, cpu};
///
/// let (host, mut device) = ([10u8, 11, 20, 21, 30, 31], [0u8; 4]);
/// let pairs = cpu::Pairs::interleaved(cpu::Indices::I32(&[2, 0, 0, 1]))?;
/// let spec = CopySpec::dense(2, 3, 2);
/// cpu::gather(&host, &mut device, &spec, &pairs, cpu::CopyOptions::default())?;
/// assert_eq!(device, [30, 31, 10, 11]);
/// # Ok::<(), forerun::gpu::gather::GatherError>(())
/// ```
#[cfg(feature = "gpu")]
pub mod gpu {
    pub use forerun_gpu::*;
}

/// Rows of fixed size under `u64` keys: hot rows in a GPU's or the host's memory, the rest on disk.
///
/// ```
/// use forerun::table::{Dtype, Table};
///
/// # fn main() -> Result<(), forerun::table::Error> {
/// # let directory = tempfile::tempdir().expect("a temporary directory can be made");
/// # let path = directory.path().join("embeddings");
/// // Rows of four floats; a million in memory, the rest in a store.
/// let table = Table::builder(Dtype::F32, 4).host_capacity(1_000_000).path(path).open()?;
/// let rows = table.typed::<[f32; 4]>()?;
/// rows.insert(&[30_522], &[[1.0, 2.0, 3.0, 4.0]])?;
///
/// // A batch of keys; the rows of those that are present.
/// let (mut answers, mut found) = ([[0.0; 4]; 2], [false; 2]);
/// assert_eq!(rows.find(&[7, 30_522], &mut answers, &mut found)?, 1);
/// assert_eq!(found, [false, true]);
/// assert_eq!(answers[1], [1.0, 2.0, 3.0, 4.0]);
/// table.close()?;
/// # Ok(())
/// # }
/// ```
#[cfg(feature = "table")]
pub mod table {
    pub use forerun_table::{
        Admission, Applied, Bags, Builder, Counts, DeviceStats, Dtype, Error, EvictStrategy,
        EvictionCallback, Export, Failures, HostCapacity, Latency, PooledDtype, Pooling,
        PoolingError, PoolingOptions, Promotion, Result, RowFormat, RowType, Rows, Table,
        TableSnapshot, TableStats, TypedRow, TypedTable, UnknownDtype, UnknownEvictStrategy,
        UnknownPooledDtype, UnknownPooling, UnknownRowFormat, Update, WeakTable, WhenHostFull,
        Write, WriteId, WritePolicy, partition, zerocopy,
    };
    #[cfg(feature = "gpu")]
    pub use forerun_table::{Destination, DeviceChoice, Pointers};
}

/// The names that most programs use: `use forerun::prelude::*;`.
pub mod prelude {
    #[cfg(feature = "cache")]
    pub use crate::cache::{Cache, CacheOptions};
    #[cfg(feature = "client")]
    pub use crate::client::{Client, ClientOptions, ServerAddress};
    #[cfg(feature = "table")]
    pub use crate::table::{Dtype, Table};
    pub use crate::{Db, Durability, Keyspace, Options, Snapshot, Values, WriteBatch};
}

/// The examples of the project's and the crate's README, compiled with the tests.
#[cfg(all(doctest, feature = "cache", feature = "table"))]
#[doc = include_str!("../../../README.md")]
#[doc = include_str!("../README.md")]
struct Readme;
