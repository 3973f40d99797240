//! The store: opening, writing, reading.
//!
//! ```text
//!   put, delete, write ──> prepare entries ──> log (commit.rs) ──> link entries ──> visible (published_sequence.rs)
//!                          memory reserved     sequence numbers                     in order
//!
//!   get, multi_get, iter, range, prefix ──> view.rs, as of the newest visible sequence number, or of a snapshot's
//!                                           super_version.rs: the memtables and runs of one moment
//!
//!   ingest.rs ──> runs, whole, past log and memtables; a sequence number for all of them
//!
//!   full memtables ──> flush.rs ──> runs in level 0 ──> compact.rs ──> runs below
//!   memtable_set.rs      background.rs, work.rs: who does it, and who waits for whom     backoff.rs: when it is tried again
//!                      directory.rs: who may change the directory, until when it stays locked
//!
//!   iter.rs, cursor.rs   entries in order     cursor_pool.rs   cursors between two uses
//!   keyspace.rs   a keyspace, for its users: a way of its own through all this     keyspace_data.rs   what it is in here
//! ```

mod background;
mod backoff;
mod checkpoint;
mod closing;
mod commit;
mod compact;
mod cursor;
mod cursor_pool;
mod directory;
mod flush;
mod ingest;
mod iter;
mod keyspace;
mod keyspace_data;
mod live_versions;
mod memory;
mod memtable_set;
mod open;
mod published_sequence;
mod snapshot;
mod snapshots;
mod stats;
mod super_version;
mod view;
mod work;
mod write;

use forerun_core::sync::atomic::{AtomicBool, AtomicU64};
use std::ops::{Bound, RangeBounds};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use forerun_core::ProcessBound;
use forerun_core::sync::{Mutex, RwLock};

use crate::cache::PageCache;
use crate::clock::Clock;
use crate::io::guarded::GuardedIo;
use crate::io::{Io, OsIo};
use crate::memtable::Strategy;
use crate::panics;
use crate::run::lookup::ReadContext;
use crate::store_dir::StoreDir;
use crate::tree::limiter::RateLimiter;
use crate::tree::trash::Trash;
use crate::tree::verify::Verified;
use crate::{Durability, Options, RecoveryReport, Result, Values, WriteBatch};

use background::Workers;
use closing::Open;
use commit::Commit;
use compact::Tree;
use directory::Directory;
use keyspace_data::{KeyspaceData, KeyspaceSet};
use memory::HeldMemory;
use memtable_set::{FrozenMemTables, MemTableSet};
use published_sequence::PublishedSequence;
use snapshots::{Expired, Snapshots};
use stats::Counters;
use view::View;
use work::Work;
use write::Writer;

pub(crate) use checkpoint::BackupSource;
pub use ingest::Ingestion;
pub use iter::Iter;
pub use keyspace::Keyspace;
pub use snapshot::{KeyspaceSnapshot, Snapshot};
pub use stats::{BackPressure, KeyspaceStats, LevelStats, Stats, TreeWork};

/// An ordered, durable store of byte strings under byte strings.
///
/// A handle: clones share one open store, which is closed with the last of them or by
/// [`close`](Db::close). All methods may be called from many threads at once, and readers never
/// wait for writers.
///
/// A handle belongs to the process that opened the store. After a `fork`, it does nothing in the child: each call there is
/// [`Error::Forked`](crate::Error::Forked), and to drop it leaves the store and its lock as they are.
///
/// What is written and read here is in the store's own keyspace. There may be others beside it, each with keys of its own
/// in an order of its own: see [`keyspace`](Db::keyspace).
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
    open: Arc<ProcessBound<Open>>,
}

/// What handles, snapshots and the store's own threads share.
struct Inner {
    io: Arc<dyn Io>,
    path: PathBuf,
    options: Options,
    /// Tells open stores apart.
    number: u64,
    /// The store's own keyspace.
    own: Arc<KeyspaceData>,
    /// All keyspaces. Changed under the lock of `tree`'s catalog.
    keyspaces: ArcSwap<KeyspaceSet>,
    cache: Arc<PageCache>,
    reading: ReadContext,
    limiter: RateLimiter,
    tree: Tree,
    /// Where files of runs go that are of no use any more.
    trash: Arc<Trash>,
    clock: Arc<Clock>,
    /// What had expired for the last snapshot.
    expired: ArcSwap<Expired>,
    /// The memtables that take writes. A write holds the lock for reading; to replace them is to wait for those.
    active: RwLock<MemTableSet>,
    /// Those before, on their way to runs, oldest first.
    frozen: Mutex<Vec<Arc<FrozenMemTables>>>,
    writer: Writer,
    published: PublishedSequence,
    snapshots: Snapshots,
    counters: Counters,
    recovery: RecoveryReport,
    work: Arc<Work>,
    /// Memory of memtables that take no more writes.
    held: Arc<HeldMemory>,
    /// Held by whoever flushes, so that memtable sets become runs in order.
    flushing: Mutex<()>,
    /// Whether writes are slowed down, and for how many bytes no pause has been made yet.
    is_slow: AtomicBool,
    slow_debt_bytes: AtomicU64,
    /// Locked until the store is closed.
    directory: Directory,
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
    ///   [`Error::ComparatorMismatch`](crate::Error::ComparatorMismatch),
    ///   [`Error::KeyspaceComparator`](crate::Error::KeyspaceComparator): see [`Options::keyspaces`].
    /// - [`Error::BadOption`](crate::Error::BadOption).
    /// - [`Error::CorruptFile`](crate::Error::CorruptFile): see [`Recovery`](crate::Recovery).
    /// - [`Error::MemoryLimit`](crate::Error::MemoryLimit): what the log holds does not fit.
    /// - [`Error::Io`](crate::Error::Io), [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Db> {
        Db::open_on(Arc::new(OsIo), path.as_ref(), options)
    }

    /// [`open`](Self::open) on another file system than the operating system's.
    ///
    /// # Errors
    /// As there.
    pub fn open_with_io(io: Arc<dyn Io>, path: impl AsRef<Path>, options: Options) -> Result<Db> {
        Db::open_on(Arc::new(GuardedIo(io)), path.as_ref(), options)
    }

    fn open_on(io: Arc<dyn Io>, path: &Path, options: Options) -> Result<Db> {
        Db::start(|| open::open(io, path, options))
    }

    /// Opens the store in a directory that is locked already.
    pub(crate) fn open_in(
        io: Arc<dyn Io>,
        path: &Path,
        options: Options,
        dir: StoreDir,
    ) -> Result<Db> {
        Db::start(|| open::open_in(Arc::new(GuardedIo(io)), path, options, dir))
    }

    fn start(open: impl FnOnce() -> Result<Inner>) -> Result<Db> {
        let inner = Arc::new(panics::catch("opening a store", open)?);
        let workers = Workers::start(&inner)?;
        Ok(Db {
            open: Arc::new(ProcessBound::new(Open::new(inner, workers))),
        })
    }

    /// Sets `key` to `value`, as durably as [`Options::durability`] says.
    ///
    /// # Errors
    /// As [`write`](Self::write), and [`Error::KeyTooLong`](crate::Error::KeyTooLong),
    /// [`Error::ValueTooLong`](crate::Error::ValueTooLong).
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        let durability = self.inner()?.options.durability;
        self.put_with(key, value, durability)
    }

    /// Removes `key`, which need not be there, as durably as [`Options::durability`] says.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub fn delete(&self, key: &[u8]) -> Result<()> {
        let durability = self.inner()?.options.durability;
        self.delete_with(key, durability)
    }

    /// Removes all keys from `start` up to, not including, `end`, as durably as [`Options::durability`] says. It costs no
    /// more than removing one key, however many there are: see [`WriteBatch::delete_range`].
    ///
    /// # Errors
    /// As [`put`](Self::put), and [`Error::EmptyRange`](crate::Error::EmptyRange).
    pub fn delete_range(&self, start: &[u8], end: &[u8]) -> Result<()> {
        let mut batch = WriteBatch::new();
        batch.delete_range(start, end)?;
        let durability = self.inner()?.options.durability;
        self.write(&batch, durability).map(drop)
    }

    /// [`put`](Self::put) with a durability of its own.
    ///
    /// # Errors
    /// As there.
    pub fn put_with(&self, key: &[u8], value: &[u8], durability: Durability) -> Result<()> {
        let inner = self.inner()?;
        inner.write_one(&inner.own, crate::Op::Put { key, value }, durability)
    }

    /// [`delete`](Self::delete) with a durability of its own.
    ///
    /// # Errors
    /// As there.
    pub fn delete_with(&self, key: &[u8], durability: Durability) -> Result<()> {
        let inner = self.inner()?;
        inner.write_one(&inner.own, crate::Op::Delete { key }, durability)
    }

    /// Applies a batch, of whatever keyspaces: readers see all of it or nothing, and so does recovery. Returns the
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
    /// - [`Error::EmptyRange`](crate::Error::EmptyRange): it deletes a range that is empty.
    /// - [`Error::KeyspaceDropped`](crate::Error::KeyspaceDropped),
    ///   [`Error::ForeignKeyspace`](crate::Error::ForeignKeyspace): nothing was logged or applied.
    /// - [`Error::Closed`](crate::Error::Closed).
    pub fn write(&self, batch: &WriteBatch, durability: Durability) -> Result<u64> {
        self.inner()?.write(batch, durability)
    }

    /// The value of `key`.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) and [`Error::CorruptFile`](crate::Error::CorruptFile) from a run;
    /// [`Error::CorruptEntry`](crate::Error::CorruptEntry), with paranoid checks only.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.view()?.get(key)
    }

    /// The values of `keys`, by position, as of one moment. `values` is reused from batch to batch,
    /// so that a warm batch allocates nothing.
    ///
    /// # Errors
    /// [`Error::Forked`](crate::Error::Forked). What concerns one key is at its place in `values`.
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
        self.view()?.multi_get(keys, strategy, values)
    }

    /// The store as it is now, for reading later. In a fork, every read of the snapshot is
    /// [`Error::Forked`](crate::Error::Forked), as reads of the store are.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::new(Arc::clone(&self.open))
    }

    /// All entries, as of now.
    pub fn iter(&self) -> Iter {
        self.begin(|view| view.iter(Bound::Unbounded, Bound::Unbounded))
    }

    /// The entries whose keys lie in `range`, in the store's order, as of now. A range that ends
    /// before it starts is empty.
    pub fn range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Iter {
        self.begin(|view| view.range(range))
    }

    /// The entries whose keys begin with these bytes, as of now.
    ///
    /// This needs an order that keeps such keys together: [`Bytewise`](crate::memtable::Bytewise)
    /// or [`ReverseBytewise`](crate::memtable::ReverseBytewise). With another comparator the
    /// iterator gives [`Error::PrefixOrder`](crate::Error::PrefixOrder) and ends.
    pub fn prefix(&self, prefix: &[u8]) -> Iter {
        self.begin(|view| view.prefix(prefix))
    }

    /// Makes every write that has returned durable.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn flush_wal(&self) -> Result<()> {
        self.inner()?.flush_wal()
    }

    /// What the store holds, and did since it was opened. All zeros in a fork, where nothing can be asked.
    pub fn stats(&self) -> Stats {
        self.inner().map(|inner| inner.stats()).unwrap_or_default()
    }

    /// What opening found in the log.
    pub fn recovery(&self) -> &RecoveryReport {
        self.open.constant(|open| &open.inner.recovery)
    }

    /// The store's directory.
    pub fn path(&self) -> &Path {
        self.open.constant(|open| &*open.inner.path)
    }

    /// Makes the log durable, marks its end, and unlocks the directory. Other handles and snapshots
    /// can still read; writes through them fail with [`Error::Closed`](crate::Error::Closed). Dropping the
    /// last handle closes the store too, but reports no error.
    ///
    /// Once the store is opened again, here or in another process, that opening removes runs that it replaces. A handle of
    /// the closed store that needs such a run, and does not have its file open
    /// ([`Options::max_open_files`](crate::Options::max_open_files)), gets [`Error::Io`](crate::Error::Io); it never reads
    /// another file in its place.
    ///
    /// Other threads may be in the middle of a flush, a compaction, an ingestion or a checkpoint. These stop with
    /// [`Error::Closed`](crate::Error::Closed), or complete if they are about to; `close` returns once they have, and
    /// nothing in the directory changes after that. If several threads close the store, each of them waits until it is
    /// closed, and gets the same result.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io), [`Error::Poisoned`](crate::Error::Poisoned). The directory is
    /// unlocked all the same.
    pub fn close(self) -> Result<()> {
        self.open.get()?.close()
    }

    /// [`close`](Self::close), but the directory stays locked until what this returns is dropped.
    pub(crate) fn close_and_keep_lock(self) -> Result<StoreDir> {
        self.open.get()?.close_and_keep_lock()
    }

    /// Puts all that was written before, to whatever keyspace, into runs, durably, also without a log, and returns when
    /// that is done.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io): nothing is lost; the entries stay in memory and in the log.
    /// [`Error::Closed`](crate::Error::Closed).
    pub fn flush(&self) -> Result<()> {
        self.inner()?.flush_all()
    }

    /// Flushes, and merges all runs of each keyspace into its last level, leaving out what was overwritten or deleted and
    /// no snapshot sees. The store does by itself what it needs; this gives back the rest of the space, for much reading and writing.
    ///
    /// # Errors
    /// As [`flush`](Self::flush), and [`Error::CompactionFailed`](crate::Error::CompactionFailed): the runs of a keyspace
    /// cannot be compacted, because one is damaged, say; those of all others are.
    pub fn compact(&self) -> Result<()> {
        let inner = self.inner()?;
        let keyspaces: Vec<_> = inner.keyspaces.load().iter().cloned().collect();
        inner.compact_all(&keyspaces)
    }

    /// Waits until the store is at rest: until no memtable is on its way to a run, no compaction is due, and the files that
    /// were of no use any more are off the disk, but for those that a reader holds. What is in the memtable that takes
    /// writes stays there: [`flush`](Self::flush) first, where that is not wanted. Where others go on writing, that may
    /// take as long as they do.
    ///
    /// ```
    /// use forerun_db::{Db, Options};
    ///
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("store");
    /// let db = Db::open(path, Options::default())?;
    /// for n in 0..1000_u32 {
    ///     db.put(&n.to_be_bytes(), b"value")?;
    /// }
    /// db.flush()?;
    /// db.wait_idle()?;
    /// assert!(!db.stats().is_compaction_due);
    /// # Ok::<(), forerun_db::Error>(())
    /// ```
    ///
    /// # Errors
    /// That of the first flush or compaction that fails meanwhile, as of [`compact`](Self::compact).
    pub fn wait_idle(&self) -> Result<()> {
        self.inner()?.wait_idle()
    }

    /// Begins to take in many entries at once, in ascending order of their keys, past log and memtables: see
    /// [`Ingestion`]. Nothing of it is visible before [`Ingestion::commit`].
    pub fn ingest(&self) -> Ingestion {
        let own = Arc::clone(self.open.constant(|open| &open.inner.own));
        Ingestion::new(Arc::clone(&self.open), own)
    }

    /// Changes the most bytes that flushes and compactions write in a second, which
    /// [`TreeOptions::write_rate_bytes`](crate::TreeOptions::write_rate_bytes) set; `None` for no limit.
    pub fn set_write_rate(&self, bytes_per_second: Option<u64>) {
        if let Ok(inner) = self.inner() {
            inner.limiter.set(bytes_per_second);
        }
    }

    /// Makes a store in the directory `into`, which must be empty or not there, that holds what this one holds now.
    /// Runs get a second name there instead of a copy, where the file system can do that. Writes and reads go on
    /// meanwhile; what is written during the call may be in it or not, in the order of writing.
    ///
    /// ```
    /// use forerun_db::{Db, Options};
    ///
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let (path, copy) = (directory.path().join("store"), directory.path().join("copy"));
    /// let db = Db::open(path, Options::default())?;
    /// db.put(b"key", b"value")?;
    /// db.checkpoint(&copy)?;
    /// db.delete(b"key")?;
    /// let copy = Db::open(copy, Options::default())?;
    /// assert_eq!(copy.get(b"key")?.as_deref(), Some(&b"value"[..]));
    /// # Ok::<(), forerun_db::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::AlreadyExists`](crate::Error::AlreadyExists): there is something in `into`.
    /// [`Error::Io`](crate::Error::Io): what was made is removed again. [`Error::Poisoned`](crate::Error::Poisoned): the log
    /// may end with a write that failed. And as [`flush`](Self::flush).
    pub fn checkpoint(&self, into: impl AsRef<Path>) -> Result<()> {
        self.inner()?.checkpoint(into.as_ref())
    }

    /// Reads every byte of the store's runs and looks whether it is what it should be: checksums, the order of keys,
    /// counts, filters, ranges. What is wrong is in the answer. (The log is looked at at each opening.)
    ///
    /// # Errors
    /// [`Error::Closed`](crate::Error::Closed): the store was closed meanwhile.
    pub fn verify(&self) -> Result<Verified> {
        self.inner()?.verify()
    }

    /// Refuses every process but the one that opened the store, as all methods do that can fail.
    ///
    /// # Errors
    /// [`Error::Forked`](crate::Error::Forked).
    pub fn check_process(&self) -> Result<()> {
        self.inner().map(drop)
    }

    fn inner(&self) -> Result<&Arc<Inner>> {
        Ok(&self.open.get()?.inner)
    }

    fn view(&self) -> Result<View<'_>> {
        let inner = self.inner()?;
        Ok(View::now(inner, &inner.own))
    }

    fn begin(&self, begin: impl FnOnce(View<'_>) -> Iter) -> Iter {
        self.view().map_or_else(Iter::failed, begin)
    }
}

impl std::fmt::Debug for Db {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Db")
            .field("path", &self.path())
            .field("options", self.open.constant(|open| &open.inner.options))
            .finish_non_exhaustive()
    }
}
