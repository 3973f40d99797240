//! Forerun: a key-value engine whose every lookup is a batch.
//!
//! A lookup in a large store spends its time waiting for memory: each step needs an address that
//! the step before must first fetch. One lookup cannot hurry that. A batch can: [`Db::multi_get`]
//! walks all its keys at once and, whenever one would wait, goes on with another. The same search
//! answers a single [`Db::get`].
//!
//! [`Db`] is an ordered, durable store of bytes under bytes: a write-ahead log, atomic batches of
//! writes, snapshots, scans both ways.
//!
//! ```
//! use forerun::prelude::*;
//!
//! # fn main() -> Result<(), forerun::Error> {
//! # let directory = tempfile::tempdir().expect("a temporary directory can be made");
//! # let path = directory.path().join("towns");
//! let db = Db::open(&path, Options::default())?;
//!
//! // A batch of writes is applied whole or not at all.
//! let mut batch = WriteBatch::new();
//! batch.put(b"CH/Biel", b"47.137,7.246")?;
//! batch.put(b"CH/Bern", b"46.948,7.447")?;
//! batch.put(b"DE/Bonn", b"50.734,7.100")?;
//! db.write(&batch, Durability::Synced)?;
//!
//! // A batch of lookups is answered into memory that is used again, in the order of its keys.
//! let mut values = Values::new();
//! db.multi_get(&["DE/Bonn", "FR/Lyon", "CH/Biel"], &mut values)?;
//! assert_eq!(values.get(0)?, Some(&b"50.734,7.100"[..]));
//! assert_eq!(values.get(1)?, None);
//! assert_eq!(values.found(), 2);
//!
//! // A snapshot stays as it is while the store goes on.
//! let snapshot = db.snapshot();
//! db.delete(b"CH/Bern")?;
//! assert_eq!(snapshot.get(b"CH/Bern")?.as_deref(), Some(&b"46.948,7.447"[..]));
//! assert_eq!(db.get(b"CH/Bern")?, None);
//!
//! // Entries in order, from either end.
//! let last = db.prefix(b"CH/").next_back().transpose()?;
//! assert_eq!(last, Some((b"CH/Biel".to_vec(), b"47.137,7.246".to_vec())));
//!
//! // Keyspaces have keys of their own, and a batch may go across them.
//! let countries = db.keyspace("countries")?;
//! let mut batch = WriteBatch::new();
//! batch.keyspace(&countries).put(b"FR", b"France")?;
//! batch.put(b"FR/Lyon", b"45.764,4.836")?;
//! db.write(&batch, Durability::Synced)?;
//! assert_eq!(countries.get(b"FR")?.as_deref(), Some(&b"France"[..]));
//! drop(countries);
//! db.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! [`hash::HashTable`] is the part to use where keys and values are eight bytes each and order does
//! not matter.
//!
//! # How a batch is answered
//! [`Strategy::Auto`] chooses by the batch's length, and is what [`Db::multi_get`] uses;
//! [`Db::multi_get_with`] takes another. `forerun demo` (the crate `forerun-cli`) shows on real
//! data what that is worth on a machine at hand. The instruction set is chosen when the program
//! runs ([`isa`]), so a plain build is the fast one.
//!
//! # What is on disk
//! Every write goes to the log first: handed to the operating system ([`Durability::Buffered`]) or
//! on stable storage ([`Durability::Synced`]). Opening reads it back; what a crash cut short is
//! dropped and told by [`Db::recovery`]. The newest writes are in memory as well. A full memtable
//! becomes a run, a sorted file of pages, and runs are merged into larger ones behind the scenes;
//! pages are read when they are asked for and kept within [`Options::cache_bytes`]. So a store may
//! be many times larger than memory, and a batch waits for the disk once, not once a key.

#![forbid(unsafe_code)]

pub use forerun_core::arch::{Isa, isa};
pub use forerun_core::{Forked, Owner, PerProcess, ProcessBound};
pub use forerun_db::{
    Access, BackPressure, Background, Backup, BackupList, BackupProgress, Backups, BadRange,
    Bytewise, CacheStats, CheckReport, CheckedBackups, Checks, Comparator, Compression, Create, Db,
    DescribeOptions, Durability, Entry, Error, Ingestion, Iter, KeyRange, Keyspace, KeyspaceBatch,
    KeyspaceOptions, KeyspaceSnapshot, KeyspaceStats, LevelStats, Loss, MAX_BATCH_BYTES,
    MAX_KEY_BYTES, MAX_KEYSPACE_NAME_BYTES, MAX_KEYSPACES, MAX_VALUE_BYTES, Op, Ops, Options,
    PageSearch, ReadBackend, Readable, Recovery, RecoveryReport, RemovedBackups, RepairReport,
    Result, ReverseBytewise, RunOptions, Snapshot, Stats, Strategy, TreeOptions, TreeWork, Values,
    VerifyReport, WalMode, WriteBatch, check, describe, repair,
};

/// Hash tables of fixed width, in memory, whose every lookup is a batch.
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
/// let hits = table.find_batch(&[1, 2, 3, 4], &mut values, &mut found);
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
    pub use forerun_hash::{Error, HashTable, Iter, Options, Pinned};
}

/// A cache of byte strings within a hard limit of memory, shared by threads, whose every lookup is
/// a batch.
///
/// ```
/// use forerun::cache::{Cache, CacheOptions, Expiry, Store};
///
/// # fn main() -> Result<(), forerun::cache::Error> {
/// let cache = Cache::new(CacheOptions { memory_limit_bytes: 64 << 20, ..CacheOptions::default() })?;
/// cache.store(Store { expiry: Expiry::At(cache.now() + 60), ..Store::set(b"CH/Bern", b"46.948,7.447") });
///
/// // Values are read where they lie, as long as the guard is there.
/// let guard = cache.pin();
/// let mut items = [None; 2];
/// guard.multi_get(&[b"CH/Bern", b"FR/Lyon"], &mut items);
/// assert_eq!(items[0].unwrap().value(), b"46.948,7.447");
/// assert!(items[1].is_none());
/// # Ok(())
/// # }
/// ```
pub mod cache {
    pub use forerun_cache::*;
}

/// Scattered rows between host memory and a GPU's, in one launch; the same on the CPU where there
/// is none.
///
/// ```
/// use forerun::gpu::gather::{Spec, cpu};
///
/// let (host, mut device) = ([10u8, 11, 20, 21, 30, 31], [0u8; 4]);
/// let pairs = cpu::Pairs::interleaved(cpu::Indices::I32(&[2, 0, 0, 1]))?;
/// cpu::gather(&host, &mut device, &Spec::dense(2, 3, 2), &pairs, cpu::Extras::default())?;
/// assert_eq!(device, [30, 31, 10, 11]);
/// # Ok::<(), forerun::gpu::gather::GatherError>(())
/// ```
pub mod gpu {
    pub use forerun_gpu::*;
}

/// Rows of one size under `u64` keys: those in use in memory, a GPU's or the host's, the rest on
/// disk.
///
/// ```
/// use forerun::table::{Dtype, Table};
///
/// # fn main() -> Result<(), forerun::table::Error> {
/// # let directory = tempfile::tempdir().expect("a temporary directory can be made");
/// # let path = directory.path().join("embeddings");
/// // Rows of four floats; a million in memory, the rest in a store.
/// let table = Table::builder(Dtype::F32, 4).host_capacity(1_000_000).path(path).open()?;
/// let row = [1.0f32, 2.0, 3.0, 4.0].map(f32::to_le_bytes).concat();
/// table.insert(&[30_522], &row)?;
///
/// // A batch of keys; the rows of those that are present.
/// let (mut rows, mut found) = ([0; 32], [false; 2]);
/// assert_eq!(table.find(&[7, 30_522], &mut rows, &mut found)?, 1);
/// assert_eq!(found, [false, true]);
/// assert_eq!(rows[16..], row);
/// table.close()?;
/// # Ok(())
/// # }
/// ```
pub mod table {
    pub use forerun_table::{
        Admission, Builder, Counts, Destination, DeviceChoice, DeviceStats, Dtype, Error,
        EvictionCallback, Export, Failures, HostCapacity, Latency, Moves, Overflow, Pointers,
        Promotion, Result, RowType, Rows, Score, Snapshot, Stats, Table, UnknownDtype, Update,
        WeakTable, Writes,
    };
}

/// What most programs use: `use forerun::prelude::*;`.
pub mod prelude {
    pub use crate::cache::{Cache, CacheOptions};
    pub use crate::table::Table;
    pub use crate::{Db, Durability, Options, Snapshot, Strategy, Values, WriteBatch};
}

/// The examples of the project's README and of the crate's, compiled with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
#[doc = include_str!("../README.md")]
struct Readme;
