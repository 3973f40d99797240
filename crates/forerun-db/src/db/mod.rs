//! The store: opening, writing, reading.
//!
//! ```text
//!   put, delete, write -> prepare entries -> log          -> link entries -> visible
//!   (write.rs)            memory.rs          commit.rs                       published_sequence.rs
//!
//!   get, multi_get, iter -> view.rs: as of the newest visible sequence number, or of a snapshot's
//!   (readable.rs)           super_version.rs: the memtables and runs of one moment
//!
//!   ingest.rs -> whole runs, bypassing log and memtables, with one sequence number for all entries
//!
//!   full memtables  -> flush.rs -> runs in level 0 -> compaction.rs -> runs below
//!   memtable_set.rs
//! ```
//!
//! The state of an open store, `Inner`, has a part for each group of locks:
//!
//! - `keyspaces.rs`: the set of keyspaces. `keyspace.rs`: the handle of one;
//!   `keyspace_data.rs`: the keyspace behind it.
//! - `memtables.rs`: the active memtables, the frozen ones, and their memory.
//! - `write_path.rs`: the log or a counter, which numbers writes, and what is visible.
//! - `tree.rs`: the manifest, and the locks under which runs change.
//! - `write_controller.rs`: the rate of writes. `snapshots.rs`: the live snapshots.
//! - `directory.rs`: the right to change the directory, which stays locked while anyone has it.
//! - `filter_loading.rs`: when indexes and filters are loaded.
//! - `background_work.rs`: how threads wait for each other. `background.rs`: the threads that
//!   flush and compact; `backoff.rs`: when failed work is retried. `running_compaction.rs`: what a
//!   thread holds while it compacts; `due_deletions.rs`: when deletions make a compaction due;
//!   `full_compaction.rs`: compaction of everything on request. `scrubbing.rs`: reading everything
//!   to find damage.
//!
//! A method is in the part whose locks it takes; what needs several parts is a method of `Inner`,
//! in the file of its task. `maintenance.rs` has flushing, compacting, checking and copying on
//! request; `open.rs` has opening, with `loaded.rs` for the manifest and `replay.rs` for the log;
//! `iter.rs`, `cursor.rs` and `cursor_pool.rs` have entries in order, and cursors kept for reuse;
//! `live_versions.rs`, `dead_walk.rs` and `dead_ranges.rs` have what scans step over, and what they
//! skip; `operation_counters.rs`, `write_stalls.rs` and `stats.rs` have statistics, and `notify.rs`
//! what the event listener receives.
//!
//! A thread takes locks in this order, and may leave out any of them:
//!
//! ```text
//!   closed            closing.rs     while the store is closed
//!   └─ active         memtables.rs   shared by writes; exclusive to freeze, ingest, drop a keyspace
//!      └─ DirGuard    directory.rs   while files are written; closing waits for it
//!         └─ flushing             tree.rs        one flush at a time
//!         └─ picking              tree.rs        while the next compaction is picked
//!         └─ loading              filter_loading.rs   while filters are loaded
//!            └─ catalog           tree.rs        also for a change of the set of keyspaces
//!               └─ snapshots      snapshots.rs   while a sequence number is chosen
//!                  └─ locks of a few instructions: the queue of the log, frozen memtable sets,
//!                     early sequence numbers, marks of the clock, background work, …
//! ```
//!
//! Closing holds only `closed` while it waits. A compaction holds only a `DirGuard` while it runs;
//! the catalog knows its runs. A thread that waits for a flush or a compaction holds at most
//! `active`, since flushes and compactions never take it. Reads take only locks of
//! the last line.

mod background;
mod background_work;
mod backoff;
mod batch;
mod batch_parts;
mod checkpoint;
mod closing;
mod commit;
mod compaction;
mod compaction_failures;
mod count;
mod cursor;
mod cursor_pool;
mod dead_ranges;
mod dead_walk;
mod directory;
mod due_deletions;
mod filter_loading;
mod flush;
mod full_compaction;
mod held_memory;
mod ingest;
mod install;
mod iter;
mod keyspace;
mod keyspace_batch;
mod keyspace_data;
mod keyspaces;
mod live_versions;
mod loaded;
mod maintenance;
mod memory;
mod memtable_set;
mod memtables;
mod notify;
mod open;
mod operation_counters;
mod published_sequence;
mod readable;
mod replay;
mod running_compaction;
mod scrubbing;
mod snapshot;
mod snapshots;
mod source_cursor;
mod stats;
mod super_version;
mod tree;
mod view;
mod write;
mod write_controller;
mod write_path;
mod write_stalls;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use forerun_core::ProcessBound;

use crate::events::EventSender;
use crate::io::guarded::GuardedIo;
use crate::io::{Io, OsIo};
use crate::panics;
use crate::store_dir::StoreDir;
use crate::{Access, Durability, Op, Options, RecoveryReport, Result};

use background::Workers;
use background_work::BackgroundWork;
use closing::Open;
use directory::Directory;
use keyspaces::Keyspaces;
use memtables::MemTables;
use operation_counters::Counters;
use scrubbing::Scrubbing;
use snapshots::Snapshots;
use tree::Tree;
use view::View;
use write_controller::WriteController;
use write_path::WritePath;

pub use batch::WriteBatch;
pub(crate) use checkpoint::BackupSource;
pub use ingest::Ingestion;
pub use iter::Iter;
pub use keyspace::Keyspace;
pub use keyspace_batch::KeyspaceBatch;
pub use readable::Readable;
pub use scrubbing::ScrubStats;
pub use snapshot::{KeyspaceSnapshot, Snapshot};
pub use snapshots::ViewId;
pub use stats::{KeyspaceStats, LevelStats, Stats, TreeStats};
pub use write_stalls::WriteStalls;

/// An ordered, durable key-value store. Keys and values are byte strings.
///
/// This is a handle: clones share one open store. The store is closed when the last handle is
/// dropped, or by [`close`](Db::close). Any number of threads may call any method at once, and
/// readers never wait for writers.
///
/// A handle belongs to the process that opened the store. After a `fork` the child cannot use it:
/// every call returns [`Error::Forked`](crate::Error::Forked), and dropping the handle leaves the
/// store and its lock untouched.
///
/// These methods read and write the store's own keyspace. A store can have other keyspaces, each
/// with its own keys in its own order: see [`keyspace`](Db::keyspace).
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

/// State shared by handles, snapshots and the background threads.
struct Inner {
    io: Arc<dyn Io>,
    path: PathBuf,
    options: Options,
    keyspaces: Keyspaces,
    tree: Tree,
    memtables: MemTables,
    write_path: WritePath,
    write_controller: WriteController,
    snapshots: Snapshots,
    counters: Counters,
    scrubbing: Scrubbing,
    events: EventSender,
    recovery: RecoveryReport,
    work: Arc<BackgroundWork>,
    /// Holds the directory's lock until the store is closed.
    directory: Directory,
}

impl Db {
    /// Opens the store in a directory, or creates one there, and replays its log.
    ///
    /// Of each run with keys it reads and verifies only both ends, with several threads, and checks
    /// that it is the one that the store last had. Runs of range deletions are read whole. Pages
    /// are verified when they are read. Indexes and filters are loaded in the background, the
    /// newest level first, and before this returns with [`Background::Caller`](crate::Background)
    /// and [`Access::ReadOnly`](crate::Access). Until then, lookups search pages.
    /// [`wait_idle`](Self::wait_idle) waits for them. A damaged one is logged and not used.
    ///
    /// ```
    /// use forerun_db::{Db, Error, Options};
    ///
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("store");
    /// let db = Db::open(&path, Options::default().cache_bytes(1 << 30))?;
    /// let again = Db::open(&path, Options::default());
    /// assert!(matches!(again, Err(Error::Locked { .. })));
    /// # drop(db);
    /// # Ok::<(), forerun_db::Error>(())
    /// ```
    ///
    /// # Errors
    /// - [`Error::NotAStore`](crate::Error::NotAStore),
    ///   [`Error::AlreadyExists`](crate::Error::AlreadyExists): see [`Create`](crate::Create).
    ///   `open` never touches a directory that holds other files.
    /// - [`Error::Locked`](crate::Error::Locked): the store is already open, in this process or
    ///   another.
    /// - [`Error::NewerFormat`](crate::Error::NewerFormat),
    ///   [`Error::OlderFormat`](crate::Error::OlderFormat),
    ///   [`Error::ComparatorMismatch`](crate::Error::ComparatorMismatch),
    ///   [`Error::KeyspaceComparator`](crate::Error::KeyspaceComparator): see
    ///   [`Options::keyspaces`].
    /// - [`Error::BadOption`](crate::Error::BadOption).
    /// - [`Error::CorruptFile`](crate::Error::CorruptFile): see [`Recovery`](crate::Recovery).
    /// - [`Error::MemoryLimit`](crate::Error::MemoryLimit): the contents of the log do not fit.
    /// - [`Error::Io`](crate::Error::Io), [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Db> {
        Db::open_on(Arc::new(OsIo), path.as_ref(), options)
    }

    /// [`open`](Self::open) on the given file system instead of the operating system's.
    ///
    /// ```
    /// use forerun_db::io::fault::FaultIo;
    /// use forerun_db::{Db, Options};
    /// use std::sync::Arc;
    ///
    /// let io = Arc::new(FaultIo::new()); // files in memory
    /// let db = Db::open_with_io(io, "/store", Options::default())?;
    /// db.put("paris", "48.85,2.35")?;
    /// # Ok::<(), forerun_db::Error>(())
    /// ```
    ///
    /// # Errors
    /// The same as for [`open`](Self::open).
    pub fn open_with_io(io: Arc<dyn Io>, path: impl AsRef<Path>, options: Options) -> Result<Db> {
        Db::open_on(Arc::new(GuardedIo(io)), path.as_ref(), options)
    }

    fn open_on(io: Arc<dyn Io>, path: &Path, options: Options) -> Result<Db> {
        Db::start(|| open::open(&io, path, options))
    }

    /// Opens the store in a directory whose lock the caller already holds.
    pub(crate) fn open_in(options: Options, dir: StoreDir) -> Result<Db> {
        Db::start(|| open::open_in(options, dir))
    }

    fn start(open: impl FnOnce() -> Result<Inner>) -> Result<Db> {
        let open = || open().inspect(Inner::load_filters_at_opening);
        let inner = Arc::new(panics::catch("opening a store", open)?);
        inner.note_pressure();
        let workers = Workers::start(&inner)?;
        Ok(Db {
            open: Arc::new(ProcessBound::new(Open::new(inner, workers))),
        })
    }

    /// Sets `key` to `value`, with the durability in [`Options::durability`].
    ///
    /// # Errors
    /// The errors of [`write`](Self::write), and [`Error::KeyTooLong`](crate::Error::KeyTooLong),
    /// [`Error::ValueTooLong`](crate::Error::ValueTooLong).
    #[inline]
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        let (key, value) = (key.as_ref(), value.as_ref());
        self.write_one(Op::Put { key, value }, None)
    }

    /// Removes `key`, whether or not it exists, with the durability in [`Options::durability`].
    ///
    /// # Errors
    /// The same as for [`put`](Self::put).
    #[inline]
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<()> {
        let key = key.as_ref();
        self.write_one(Op::Delete { key }, None)
    }

    /// Removes all keys from `start` (included) to `end` (excluded), with the durability in
    /// [`Options::durability`]. This costs no more than removing one key, however many keys there
    /// are: see [`WriteBatch::delete_range`].
    ///
    /// ```
    /// use forerun_db::{Db, Options};
    ///
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("store");
    /// let db = Db::open(path, Options::default())?;
    /// db.put("2025-12-31", "old")?;
    /// db.put("2026-01-01", "new")?;
    /// db.delete_range("2025", "2026")?;
    /// assert_eq!(db.get("2025-12-31")?, None);
    /// assert!(db.get("2026-01-01")?.is_some());
    /// # Ok::<(), forerun_db::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`put`](Self::put), and [`Error::EmptyRange`](crate::Error::EmptyRange).
    pub fn delete_range(&self, start: impl AsRef<[u8]>, end: impl AsRef<[u8]>) -> Result<()> {
        let mut batch = WriteBatch::new();
        batch.delete_range(start, end)?;
        let durability = self.inner()?.options.durability;
        self.write(&batch, durability).map(drop)
    }

    /// [`put`](Self::put) with the given durability.
    ///
    /// ```
    /// use forerun_db::{Db, Durability, Options};
    ///
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("store");
    /// let db = Db::open(path, Options::default())?;
    /// db.put_with("paris", "48.85,2.35", Durability::Synced)?; // survives a loss of power
    /// # Ok::<(), forerun_db::Error>(())
    /// ```
    ///
    /// # Errors
    /// The same as for [`put`](Self::put).
    #[inline]
    pub fn put_with(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        durability: Durability,
    ) -> Result<()> {
        let (key, value) = (key.as_ref(), value.as_ref());
        self.write_one(Op::Put { key, value }, Some(durability))
    }

    /// [`delete`](Self::delete) with the given durability.
    ///
    /// # Errors
    /// The same as for [`delete`](Self::delete).
    #[inline]
    pub fn delete_with(&self, key: impl AsRef<[u8]>, durability: Durability) -> Result<()> {
        let key = key.as_ref();
        self.write_one(Op::Delete { key }, Some(durability))
    }

    /// Applies a batch, which may span keyspaces. Readers see all of it or none of it, and so does
    /// recovery. Returns the sequence number of the last operation; for an empty batch, the newest
    /// visible sequence number.
    ///
    /// ```
    /// use forerun_db::{Db, Durability, Options, WriteBatch};
    ///
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("store");
    /// let db = Db::open(path, Options::default())?;
    /// let users = db.keyspace("users")?;
    /// let mut batch = WriteBatch::new();
    /// batch.put("users", "1")?;
    /// batch.keyspace(&users).put("4711", "Ada")?;
    /// let sequence = db.write(&batch, Durability::Synced)?;
    /// assert_eq!(sequence, 2);
    /// assert_eq!(users.get("4711")?.as_deref(), Some(&b"Ada"[..]));
    /// # Ok::<(), forerun_db::Error>(())
    /// ```
    ///
    /// # Errors
    /// - [`Error::MemoryLimit`](crate::Error::MemoryLimit): nothing was logged or applied.
    /// - [`Error::Io`](crate::Error::Io): the log could not be written, and nothing is applied.
    ///   After a full disk, later writes may succeed. If a sync failed, or a partial write could
    ///   not be undone, the state of the log is unknown: later writes return
    ///   [`Error::Poisoned`](crate::Error::Poisoned), and the next opening may recover the batch,
    ///   as a whole or not at all.
    /// - [`Error::LogOff`](crate::Error::LogOff): [`Durability::Synced`] without a log.
    /// - [`Error::EmptyRange`](crate::Error::EmptyRange): the batch deletes an empty range.
    /// - The error of [`WriteBatch::check`], if an entry of `extend` was too long.
    /// - [`Error::KeyspaceDropped`](crate::Error::KeyspaceDropped),
    ///   [`Error::ForeignKeyspace`](crate::Error::ForeignKeyspace): nothing was logged or applied.
    /// - [`Error::Closed`](crate::Error::Closed).
    pub fn write(&self, batch: &WriteBatch, durability: Durability) -> Result<u64> {
        self.inner()?.write(batch, durability)
    }

    /// Returns a snapshot: the store as it is now, for later reads. In a fork, every read of the
    /// snapshot returns [`Error::Forked`](crate::Error::Forked), as reads of the store do.
    ///
    /// ```
    /// use forerun_db::{Db, Options};
    ///
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("store");
    /// let db = Db::open(path, Options::default())?;
    /// db.put("paris", "48.85,2.35")?;
    /// let snapshot = db.snapshot();
    /// db.delete("paris")?;
    /// assert_eq!(db.get("paris")?, None);
    /// assert_eq!(snapshot.get("paris")?.as_deref(), Some(&b"48.85,2.35"[..]));
    /// # Ok::<(), forerun_db::Error>(())
    /// ```
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::new(Arc::clone(&self.open))
    }

    /// Makes every write that has already returned durable.
    ///
    /// ```
    /// use forerun_db::{Db, Options};
    ///
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("store");
    /// let db = Db::open(path, Options::default())?;
    /// for n in 0..1000_u32 {
    ///     db.put(n.to_be_bytes(), "buffered")?;
    /// }
    /// db.flush_wal()?; // one sync for all of them
    /// # Ok::<(), forerun_db::Error>(())
    /// ```
    ///
    /// # Errors
    /// The same as for [`write`](Self::write).
    pub fn flush_wal(&self) -> Result<()> {
        self.inner()?.flush_wal()
    }

    /// Returns statistics: the store's present contents, and counters since it was opened. In a
    /// fork, all metrics are zero.
    ///
    /// ```
    /// use forerun_db::{Db, Options};
    ///
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("store");
    /// let db = Db::open(path, Options::default())?;
    /// db.put("paris", "48.85,2.35")?;
    /// db.get("paris")?;
    /// let stats = db.stats();
    /// assert_eq!((stats.memtable.entries, stats.write_batches, stats.lookup_keys), (1, 1, 1));
    /// # Ok::<(), forerun_db::Error>(())
    /// ```
    pub fn stats(&self) -> Stats {
        self.inner().map(|inner| inner.stats()).unwrap_or_default()
    }

    /// Returns what opening found in the log: how much was replayed, and what was lost.
    pub fn recovery(&self) -> &RecoveryReport {
        self.open.constant(|open| &open.inner.recovery)
    }

    /// Returns the store's directory, as an absolute path.
    pub fn path(&self) -> &Path {
        self.open.constant(|open| &*open.inner.path)
    }

    /// Returns whether the store may be changed through this handle.
    ///
    /// ```
    /// use forerun_db::{Access, Db, Error, Options};
    ///
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("store");
    /// Db::open(&path, Options::default())?.close()?;
    /// let db = Db::open(path, Options::default().access(Access::ReadOnly))?;
    /// assert_eq!(db.access(), Access::ReadOnly);
    /// assert!(matches!(db.put("paris", "48.85,2.35"), Err(Error::ReadOnly { .. })));
    /// # Ok::<(), forerun_db::Error>(())
    /// ```
    pub fn access(&self) -> Access {
        *self.open.constant(|open| &open.inner.options.access)
    }

    /// Makes the log durable, marks its end, and unlocks the directory. Other handles and snapshots
    /// can still read; writes through them return [`Error::Closed`](crate::Error::Closed). Dropping
    /// the last handle also closes the store, but reports no error.
    ///
    /// The next opening of the store, here or in another process, deletes runs that later runs
    /// replace. If a handle of the closed store needs such a run and does not have its file open
    /// ([`Options::max_open_files`](crate::Options::max_open_files)), it gets
    /// [`Error::Io`](crate::Error::Io). It never reads a different file instead.
    ///
    /// Other threads may be in the middle of a flush, a compaction, an ingestion or a checkpoint.
    /// Each of these stops with [`Error::Closed`](crate::Error::Closed), or completes if it is
    /// nearly done. `close` waits for them, and nothing in the directory changes after it returns.
    /// If several threads close the store, all of them wait until it is closed and get the same
    /// result.
    ///
    /// ```
    /// use forerun_db::{Db, Options};
    ///
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("store");
    /// let db = Db::open(path, Options::default())?;
    /// let snapshot = db.snapshot();
    /// db.put("paris", "48.85,2.35")?;
    /// db.close()?;
    /// assert_eq!(snapshot.get("paris")?, None); // still readable
    /// # Ok::<(), forerun_db::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io), [`Error::Poisoned`](crate::Error::Poisoned). The directory
    /// is unlocked even then.
    pub fn close(self) -> Result<()> {
        self.open.get()?.close()
    }

    /// [`close`](Self::close), but keeps the directory locked until the returned value is dropped.
    pub(crate) fn close_and_keep_lock(self) -> Result<StoreDir> {
        self.open.get()?.close_and_keep_lock()
    }

    /// Returns an error in any process but the one that opened the store. Every method that can
    /// fail makes the same check.
    ///
    /// # Errors
    /// [`Error::Forked`](crate::Error::Forked).
    pub fn check_process(&self) -> Result<()> {
        self.inner().map(drop)
    }

    fn inner(&self) -> Result<&Arc<Inner>> {
        Ok(&self.open.get()?.inner)
    }

    fn write_one(&self, op: Op<'_>, durability: Option<Durability>) -> Result<()> {
        let inner = self.inner()?;
        inner.write_one(&inner.keyspaces.own, op, durability)
    }

    fn view(&self) -> Result<View<'_>> {
        let inner = self.inner()?;
        Ok(View::now(inner, &inner.keyspaces.own))
    }

    fn begin(&self, begin: impl FnOnce(View<'_>) -> Iter) -> Iter {
        self.view().map_or_else(Iter::failed, begin)
    }
}

readable::readable!(Db, "Reads the store's own keyspace as it is now.", "");

impl std::fmt::Debug for Db {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Db")
            .field("path", &self.path())
            .field("options", self.open.constant(|open| &open.inner.options))
            .finish_non_exhaustive()
    }
}
