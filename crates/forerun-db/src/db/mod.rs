//! The store: opening, writing, reading.
//!
//! ```text
//!   put, delete, write ──> prepare entries ──> log (commit.rs) ──> link entries ──> visible (visible.rs)
//!                          memory reserved     sequence numbers                     in order
//!
//!   get, multi_get, iter, range, prefix ──> view.rs, as of the newest visible sequence number, or of a snapshot's
//! ```

mod commit;
mod iter;
mod open;
mod snapshot;
mod stats;
mod view;
mod visible;
mod write;

use std::ops::{Bound, RangeBounds};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use crate::io::{Io, OsIo};
use crate::memtable::{Comparator, MemTable, Strategy};
use crate::store_dir::StoreDir;
use crate::{Durability, Options, RecoveryReport, Result, Values, WriteBatch};

use commit::Commit;
use stats::Counters;
use view::View;
use visible::Visible;
use write::Writer;

pub use iter::Iter;
pub use snapshot::Snapshot;
pub use stats::Stats;

/// An ordered, durable store of byte strings under byte strings.
///
/// A handle: clones share one open store, which is closed with the last of them or by
/// [`close`](Db::close). All methods may be called from many threads at once, and readers never
/// wait for writers.
///
/// ```
/// use forerun_db::{Db, Durability, Options, Values, WriteBatch};
///
/// # let directory = tempfile::tempdir().unwrap();
/// # let path = directory.path().join("store");
/// let db = Db::open(&path, Options::default())?;
/// db.put(b"paris", b"48.85,2.35")?;
///
/// let mut batch = WriteBatch::new();
/// batch.put(b"oslo", b"59.91,10.75")?;
/// batch.delete(b"paris")?;
/// db.write(&batch, Durability::Synced)?;
///
/// let mut values = Values::new();
/// db.multi_get(&["oslo", "paris"], &mut values)?;
/// assert_eq!(values.get(0)?, Some(&b"59.91,10.75"[..]));
/// assert_eq!(values.get(1)?, None);
/// db.close()?;
///
/// let db = Db::open(&path, Options::default())?;
/// assert_eq!(db.iter().count(), 1);
/// assert!(db.recovery().clean_close);
/// # Ok::<(), forerun_db::Error>(())
/// ```
#[derive(Clone)]
pub struct Db {
    inner: Arc<Inner>,
}

/// What the handles share.
struct Inner {
    path: PathBuf,
    memtable: MemTable,
    comparator: Arc<dyn Comparator>,
    durability: Durability,
    writer: Writer,
    visible: Visible,
    counters: Counters,
    recovery: RecoveryReport,
    /// The lock; given back when the store is closed.
    dir: Mutex<Option<StoreDir>>,
}

impl Db {
    /// Opens a store, or creates one, in a directory, and reads its log.
    ///
    /// # Errors
    /// - [`Error::NotAStore`](crate::Error::NotAStore),
    ///   [`Error::AlreadyExists`](crate::Error::AlreadyExists): see [`Create`](crate::Create). A
    ///   directory that holds other files is never touched.
    /// - [`Error::Locked`](crate::Error::Locked): it is open already, here or in another process.
    /// - [`Error::NewerFormat`](crate::Error::NewerFormat),
    ///   [`Error::ComparatorMismatch`](crate::Error::ComparatorMismatch).
    /// - [`Error::CorruptFile`](crate::Error::CorruptFile): see [`Recovery`](crate::Recovery).
    /// - [`Error::MemoryLimit`](crate::Error::MemoryLimit): what the log holds does not fit.
    /// - [`Error::Io`](crate::Error::Io), [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Db> {
        Db::open_with_io(Arc::new(OsIo), path, options)
    }

    /// [`open`](Self::open) on another file system than the operating system's.
    ///
    /// # Errors
    /// As there.
    pub fn open_with_io(io: Arc<dyn Io>, path: impl AsRef<Path>, options: Options) -> Result<Db> {
        let inner = open::open(io, path.as_ref(), options)?;
        Ok(Db {
            inner: Arc::new(inner),
        })
    }

    /// Sets `key` to `value`, as durably as [`Options::durability`] says.
    ///
    /// # Errors
    /// As [`write`](Self::write), and [`Error::KeyTooLong`](crate::Error::KeyTooLong),
    /// [`Error::ValueTooLong`](crate::Error::ValueTooLong).
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.put_with(key, value, self.inner.durability)
    }

    /// Removes `key`, which need not be there, as durably as [`Options::durability`] says.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub fn delete(&self, key: &[u8]) -> Result<()> {
        self.delete_with(key, self.inner.durability)
    }

    /// [`put`](Self::put) with a durability of its own.
    ///
    /// # Errors
    /// As there.
    pub fn put_with(&self, key: &[u8], value: &[u8], durability: Durability) -> Result<()> {
        self.inner
            .write_one(crate::Op::Put { key, value }, durability)
    }

    /// [`delete`](Self::delete) with a durability of its own.
    ///
    /// # Errors
    /// As there.
    pub fn delete_with(&self, key: &[u8], durability: Durability) -> Result<()> {
        self.inner.write_one(crate::Op::Delete { key }, durability)
    }

    /// Applies a batch: readers see all of it or nothing, and so does recovery. Returns the
    /// sequence number of its last operation; for an empty batch, that of the newest visible one.
    ///
    /// # Errors
    /// - [`Error::MemoryLimit`](crate::Error::MemoryLimit): nothing was logged or applied.
    /// - [`Error::Io`](crate::Error::Io): the log could not be written, and nothing is applied.
    ///   After a full disk, later writes may succeed. Where the log's state is unknown, because a
    ///   sync failed or what was written could not be taken back, they get
    ///   [`Error::Poisoned`](crate::Error::Poisoned), and whether this batch is there after the
    ///   next opening is open; half of it is not.
    /// - [`Error::LogOff`](crate::Error::LogOff): [`Durability::Synced`] without a log.
    /// - [`Error::Closed`](crate::Error::Closed).
    pub fn write(&self, batch: &WriteBatch, durability: Durability) -> Result<u64> {
        self.inner.write(batch, durability)
    }

    /// The value of `key`.
    ///
    /// # Errors
    /// [`Error::CorruptEntry`](crate::Error::CorruptEntry), with paranoid checks only.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.view().get(key)
    }

    /// The values of `keys`, by position, as of one moment. `values` is reused from batch to batch,
    /// so that a warm batch allocates nothing.
    ///
    /// # Errors
    /// None that concerns the whole batch so far; what concerns one key is at its place in
    /// `values`.
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K], values: &mut Values) -> Result<()> {
        self.multi_get_with(keys, Strategy::Auto, values)
    }

    /// [`multi_get`](Self::multi_get) by a chosen strategy; the answers are the same.
    ///
    /// # Errors
    /// As there.
    pub fn multi_get_with<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        strategy: Strategy,
        values: &mut Values,
    ) -> Result<()> {
        self.view().multi_get(keys, strategy, values);
        Ok(())
    }

    /// The store as it is now, for reading later.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::new(Arc::clone(&self.inner), self.inner.visible.last())
    }

    /// All entries, as of now.
    pub fn iter(&self) -> Iter<'_> {
        self.view().iter(Bound::Unbounded, Bound::Unbounded)
    }

    /// The entries whose keys lie in `range`, in the store's order, as of now. A range that ends
    /// before it starts is empty.
    pub fn range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Iter<'_> {
        self.view().range(range)
    }

    /// The entries whose keys begin with these bytes, as of now.
    ///
    /// This needs an order that keeps such keys together: [`Bytewise`](crate::memtable::Bytewise)
    /// or [`ReverseBytewise`](crate::memtable::ReverseBytewise). With another comparator the
    /// iterator gives [`Error::PrefixOrder`](crate::Error::PrefixOrder) and ends.
    pub fn prefix(&self, prefix: &[u8]) -> Iter<'_> {
        self.view().prefix(prefix)
    }

    /// Makes every write that has returned durable.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn flush_wal(&self) -> Result<()> {
        self.inner.flush_wal()
    }

    /// What the store holds, and did since it was opened.
    pub fn stats(&self) -> Stats {
        self.inner.stats()
    }

    /// What opening found in the log.
    pub fn recovery(&self) -> &RecoveryReport {
        &self.inner.recovery
    }

    /// The store's directory.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// Makes the log durable, marks its end, and gives the lock back. Other handles and snapshots
    /// can read on; writes through them are [`Error::Closed`](crate::Error::Closed). Dropping the
    /// last handle does the same and tells nobody of a failure.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io), [`Error::Poisoned`](crate::Error::Poisoned). The lock is
    /// given back all the same.
    pub fn close(self) -> Result<()> {
        self.inner.close()
    }

    fn view(&self) -> View<'_> {
        View {
            inner: &self.inner,
            sequence: self.inner.visible.last(),
        }
    }
}

impl std::fmt::Debug for Db {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Db")
            .field("path", &self.inner.path)
            .field("memtable", &self.inner.memtable)
            .finish_non_exhaustive()
    }
}
