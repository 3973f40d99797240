//! How a store is opened, and how durable a write is.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use forerun_core::sync::{OnceLock, SIMULATED, thread};
use forerun_core::{Pages, memory_limit, setters};

use crate::cache::VerifyChecksums;
use crate::comparator::{Bytewise, Comparator, KeyOrder, ReverseBytewise};
use crate::events::EventListener;
use crate::io::ReadBackend;
use crate::keyspace_options::{check_keyspace_name, check_ttl};
use crate::limits::MEMTABLE_BYTES_MIN;
use crate::memtable::MemoryChecks;
use crate::run::RunOptions;
use crate::store_dir::Create;
use crate::tree_options::TreeOptions;
use crate::wal::recovery::Recovery;
use crate::{Error, KeyspaceOptions, Result, VALUE_BYTES_MAX};

/// Which failures a write survives once it has returned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum Durability {
    /// The operating system has it: it survives the end of the process, `kill -9` included, but not
    /// a power loss.
    #[default]
    Buffered,
    /// It is on stable storage: it survives a power loss. Writes of several threads share a sync.
    Synced,
}

/// Whether writes go to the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum WalMode {
    /// Every write goes to the log before it is visible.
    #[default]
    On,
    /// No write goes to the log: unflushed writes are lost when the store is closed. An existing
    /// log is still replayed.
    Off,
}

/// Whether a store may be changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum Access {
    /// The store may be changed.
    #[default]
    ReadWrite,
    /// Opening writes, creates and removes nothing in the directory, which may be on a read-only
    /// file system. Each opening reads the log into memory, within [`Options::memory_limit_bytes`].
    /// Whatever would change the store returns [`Error::ReadOnly`](crate::Error::ReadOnly). Several
    /// processes may have a store open read-only at the same time, but not while one has it open
    /// with [`ReadWrite`](Self::ReadWrite).
    ReadOnly,
}

/// Which threads do the work that no call has to wait for: in a store, flushes, compactions, and
/// the loading of indexes and filters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum Background {
    /// Background threads. A store has one that flushes, one that syncs the log, one that loads
    /// indexes and filters, one that removes replaced files, one that scrubs if
    /// [`Options::scrub_rate_bytes`] is set, and [`Options::background_threads`] that compact.
    /// Several others open its runs.
    #[default]
    Threads,
    /// The thread whose call causes the work, before the call returns: in a store, the write that
    /// fills a memtable, or the call that opens the store. Everything then happens in an order that
    /// depends only on the calls.
    Caller,
}

/// Which operations [`Db::stats`](crate::Db::stats) times. Those that take far longer than reading
/// the clock always are: flushes, compactions, waits, and synced writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum StatsLevel {
    /// One in 1,024 lookups and buffered writes.
    #[default]
    Sampled,
    /// Every lookup and every write. The clock is read twice for each, which takes about 50 ns.
    All,
}

/// How a store is opened. The defaults suit most uses.
///
/// Each field has a setter of the same name, which takes and returns the options. Later releases
/// may add fields.
///
/// ```
/// use forerun_db::{Durability, Options};
///
/// let options = Options::default().durability(Durability::Synced).memory_limit_bytes(64 << 20);
/// assert_eq!(options.memory_limit_bytes, 64 << 20);
/// ```
#[derive(Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
#[non_exhaustive]
pub struct Options {
    /// The order of keys. A store keeps the one that it was created with. Default: [`Bytewise`].
    ///
    /// It is not serialized; deserialized options have the default.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub comparator: Arc<dyn Comparator>,
    /// The maximum memory of all memtables together, in bytes, including flushed ones that an
    /// iterator still holds and, up to a quarter of it, range deletions in runs. If the next
    /// memtable does not fit, writes wait for a flush. If only iterators hold the memory, a write
    /// waits for a second and then returns [`Error::MemoryLimit`]; drop the iterators and write
    /// again. A batch that does not fit on its own, plus an eighth for overhead, is an error at
    /// once. A batch's copy on its way to the log, and up to four bytes per entry while an index is
    /// built, do not count. Default: 1.25 GiB, or a quarter of what the process may use, if that is
    /// less, but at least 64 MiB.
    pub memory_limit_bytes: usize,
    /// The size in bytes at which a memtable is full, is flushed to a run, and is replaced by a new
    /// one, at least 1 KiB, at most half of `memory_limit_bytes`. A memtable reserves address space
    /// of this size, and memory as it fills, which the next one uses again. Default: 64 MiB.
    pub memtable_bytes: usize,
    /// Whether memtables of 16 KiB and more have an index by hash, so that point lookups search no
    /// list. Insertions take 15 to 32% longer. Only for
    /// [`Comparator::equal_means_identical`]. Default: true.
    pub memtable_index: bool,
    /// The maximum memory for pages of runs, their indexes and filters, in bytes. Indexes use at
    /// most a quarter of it; a run whose index does not fit uses its filter. Filters use at most
    /// three quarters; a run whose filter does not fit either is searched without it: see
    /// [`LevelStats::indexed_runs`](crate::LevelStats::indexed_runs) and
    /// [`LevelStats::unfiltered_runs`](crate::LevelStats::unfiltered_runs). Every open run also
    /// needs its root page and 16 bytes per page in memory. That is counted here, but needed even
    /// if it exceeds the limit.
    ///
    /// Default: automatic. All automatic caches of a process share half of what the process may
    /// use (its physical memory, `RLIMIT_AS`, or the limit of its control group), less
    /// `memory_limit_bytes` and 512 MiB, but at least 64 MiB. They take it as pages arrive and give
    /// back a part while memory is scarce.
    pub cache_bytes: Option<usize>,
    /// The maximum number of run files that are open at a time. All others are closed, and are
    /// reopened when one of their pages is read. Files being read do not count, and neither do the
    /// log, the lock, the few files being written, and the io_uring ring that each thread keeps
    /// once it has read pages ([`reads`](Self::reads)). Default: half of the process's limit
    /// (`RLIMIT_NOFILE`), from 16 to 65,536.
    ///
    /// Snapshots and iterators can read everything they hold while the store is open. After the
    /// store is closed, they may need a file that is closed and that the next opening of the store
    /// has removed, which is an error.
    pub max_open_files: Option<usize>,
    /// The page size for the memory of memtables and cache. Default: huge pages.
    pub pages: Pages,
    /// How runs are written. Default: pages of 16 KiB, compressed with LZ4, an index, and filters
    /// of 10 bits per key.
    pub run: RunOptions,
    /// How long entries live, in whole seconds, at least one. Each read uses the system clock: an
    /// entry is found for at least this long and is gone a second later, wherever it is stored and
    /// whenever the store was opened. A snapshot or an iterator uses the time of its creation, so
    /// nothing expires while it is in use. Flushes and compactions drop expired entries. With a
    /// time to live of more than four hours, an entry may live longer by a 16,384th of it, which is
    /// six seconds of a day. If the system clock is set back, the store counts on from the time
    /// before.
    ///
    /// A store keeps the time to live that it was created with; opening it with another one returns
    /// [`Error::KeyspaceTtl`](crate::Error::KeyspaceTtl). Default: none, so in a new store entries
    /// never expire.
    pub ttl: Option<Duration>,
    /// How pages are read from disk. Default: with io_uring, or with a pool of threads if the
    /// kernel refuses it.
    pub reads: ReadBackend,
    /// Whether pages of runs are read past the memory of the system (`O_DIRECT`, Linux), so that a
    /// page is never in memory twice: worth it if the cache has most of the memory and pages rarely
    /// come back to it. Otherwise the memory of the system is a second cache, and reads from it are
    /// faster than any device. Flushes and compactions write as without this; a run is dropped from
    /// the memory of the system once it is written. If the file system has no direct reads, opening
    /// returns [`Error::BadOption`]. Default: false.
    pub use_direct_reads: bool,
    /// How often point lookups verify the checksums of leaves that are in the system's memory but
    /// not in the cache. Default: once for each opening of a file. All other reads verify always,
    /// and so does a store whose [`checks`](Self::checks) are paranoid.
    pub verify_checksums: VerifyChecksums,
    /// The shape of the tree of runs. Default: as in [`TreeOptions`].
    pub tree: TreeOptions,
    /// Which threads flush memtables and compact runs. Default: background threads.
    pub background: Background,
    /// How many background threads compact runs, from 1 to 64. They compact several keyspaces, or
    /// parts of one, at once. All but one may be busy with long compactions: one is left for level
    /// 0, for which writers may wait. A large compaction of level 0 has as many threads as are idle
    /// when it begins; those that begin beside it have one each. Default: half of the cores, from 2
    /// to 4.
    pub background_threads: usize,
    /// How many bytes of runs a scrub reads per second: a background thread that looks for damage
    /// where no lookup does. It reads from the device, past the memory of the system and the cache,
    /// if the file system has direct reads, and begins to read all runs again at most once an hour.
    /// Of [`TreeOptions::write_rate_bytes`], all else gets most. Damage is a
    /// [`DbEvent::DamageFound`](crate::DbEvent::DamageFound), and counted in
    /// [`Stats::scrub`](crate::Stats::scrub). Only with [`Background::Threads`] and
    /// [`Access::ReadWrite`]; [`Db::verify`](crate::Db::verify) checks once, and more. Default: 0,
    /// no scrub.
    pub scrub_rate_bytes: u64,
    /// How durable `put` and `delete` are. Default: [`Durability::Buffered`].
    pub durability: Durability,
    /// Whether lookups verify every entry that they pass. Default: off.
    pub checks: MemoryChecks,
    /// How damaged bytes in the log are handled. Default: [`Recovery::DropTail`].
    pub recovery: Recovery,
    /// Whether writes go to the log. Default: [`WalMode::On`].
    pub wal: WalMode,
    /// The size in bytes at which a log segment is full and the next one begins. Default: 64 MiB.
    pub wal_segment_bytes: u64,
    /// Whether to create a missing store. Default: [`Create::IfMissing`].
    pub create: Create,
    /// Whether the store may be changed. Default: [`Access::ReadWrite`]. With [`Access::ReadOnly`],
    /// no store is created, and [`Create::MustBeNew`] is an error.
    pub access: Access,
    /// Which operations are timed. Default: [`StatsLevel::Sampled`].
    pub stats_level: StatsLevel,
    /// Receives the events of the store, if set: see [`EventListener`]. Default: none.
    ///
    /// It is not serialized.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub event_listener: Option<Arc<dyn EventListener>>,
    /// Options of keyspaces, by name. A keyspace that is not listed uses this store's `run` and
    /// `tree`, has no time to live, and is ordered by [`Bytewise`], or by [`ReverseBytewise`] if it
    /// was created with that. A keyspace created with any other comparator must be listed, or the
    /// store does not open. Listing a keyspace does not create it. Default: none.
    pub keyspaces: Vec<(String, KeyspaceOptions)>,
}

/// More threads would only share the bandwidth of the disk.
const BACKGROUND_THREADS_MAX: usize = 64;

/// Enough for the longest value where the process may use four times as much.
fn default_memory_limit_bytes() -> usize {
    const BYTES_MAX: usize = VALUE_BYTES_MAX + VALUE_BYTES_MAX / 4;
    const BYTES_MIN: usize = 64 << 20;
    if SIMULATED {
        // A simulation repeats on every machine.
        return BYTES_MAX;
    }
    static BYTES: OnceLock<usize> = OnceLock::new();
    *BYTES.get_or_init(|| {
        let quarter = memory_limit().map_or(u64::MAX, |limit| limit.bytes / 4);
        usize::try_from(quarter).map_or(BYTES_MAX, |quarter| quarter.clamp(BYTES_MIN, BYTES_MAX))
    })
}

/// Compactions leave half of the cores to reads and writes.
fn default_background_threads() -> usize {
    const THREADS_MIN: usize = 2;
    const THREADS_MAX: usize = 4;
    if SIMULATED {
        // As above.
        return THREADS_MIN;
    }
    let cores = thread::available_parallelism().map_or(1, usize::from);
    (cores / 2).clamp(THREADS_MIN, THREADS_MAX)
}

impl Default for Options {
    fn default() -> Options {
        Options {
            comparator: Arc::new(Bytewise),
            memory_limit_bytes: default_memory_limit_bytes(),
            memtable_bytes: 64 << 20,
            memtable_index: true,
            cache_bytes: None,
            max_open_files: None,
            pages: Pages::Huge,
            run: RunOptions::default(),
            ttl: None,
            reads: ReadBackend::default(),
            use_direct_reads: false,
            verify_checksums: VerifyChecksums::default(),
            tree: TreeOptions::default(),
            background: Background::default(),
            background_threads: default_background_threads(),
            scrub_rate_bytes: 0,
            durability: Durability::default(),
            checks: MemoryChecks::Off,
            recovery: Recovery::default(),
            wal: WalMode::default(),
            wal_segment_bytes: 64 << 20,
            create: Create::default(),
            access: Access::default(),
            stats_level: StatsLevel::default(),
            event_listener: None,
            keyspaces: Vec::new(),
        }
    }
}

setters! {
    Options {
        comparator: Arc<dyn Comparator>,
        memory_limit_bytes: usize,
        memtable_bytes: usize,
        memtable_index: bool,
        pages: Pages,
        run: RunOptions,
        reads: ReadBackend,
        use_direct_reads: bool,
        verify_checksums: VerifyChecksums,
        tree: TreeOptions,
        background: Background,
        background_threads: usize,
        scrub_rate_bytes: u64,
        durability: Durability,
        checks: MemoryChecks,
        recovery: Recovery,
        wal: WalMode,
        wal_segment_bytes: u64,
        create: Create,
        access: Access,
        stats_level: StatsLevel,
        keyspaces: Vec<(String, KeyspaceOptions)>,
    } into {
        cache_bytes: Option<usize>,
        max_open_files: Option<usize>,
        ttl: Option<Duration>,
    }
}

impl Options {
    /// How often lookups verify checksums.
    pub(crate) fn lookups_verify(&self) -> VerifyChecksums {
        match self.checks {
            MemoryChecks::Off => self.verify_checksums,
            MemoryChecks::Paranoid => VerifyChecksums::Always,
        }
    }

    /// Sets [`event_listener`](#structfield.event_listener).
    #[must_use]
    pub fn event_listener(mut self, listener: Arc<dyn EventListener>) -> Options {
        self.event_listener = Some(listener);
        self
    }

    /// Adds the options of one keyspace to [`keyspaces`](#structfield.keyspaces).
    ///
    /// ```
    /// use forerun_db::{KeyspaceOptions, Options, ReverseBytewise};
    /// use std::sync::Arc;
    ///
    /// let newest_first = KeyspaceOptions::default().comparator(Arc::new(ReverseBytewise));
    /// let options = Options::default().keyspace("events", newest_first);
    /// assert_eq!(options.keyspaces.len(), 1);
    /// ```
    #[must_use]
    pub fn keyspace(mut self, name: impl Into<String>, options: KeyspaceOptions) -> Options {
        self.keyspaces.push((name.into(), options));
        self
    }
}

impl Options {
    /// Calls `open` with these options. If the store is ordered by [`ReverseBytewise`], calls it
    /// again with that comparator.
    ///
    /// A store keeps the order that it was created with. Every program has these two orders. Any
    /// other is code of the program that created the store; the error of `open` names it.
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// use forerun_db::{Db, Options, ReverseBytewise};
    ///
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("store");
    /// let reverse = Options::default().comparator(Arc::new(ReverseBytewise));
    /// Db::open(&path, reverse)?.close()?;
    /// let db = Options::default().in_stored_order(|options| Db::open(&path, options.clone()))?;
    /// # drop(db);
    /// # Ok::<(), forerun_db::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of `open`.
    pub fn in_stored_order<T>(self, open: impl Fn(&Options) -> Result<T>) -> Result<T> {
        match open(&self) {
            Err(Error::ComparatorMismatch { stored, .. }) if stored == ReverseBytewise.name() => {
                open(&self.comparator(Arc::new(ReverseBytewise)))
            }
            opened => opened,
        }
    }

    /// Refuses contradictory options.
    pub(crate) fn check(&self) -> Result<()> {
        self.run.check()?;
        self.tree.check(&self.run)?;
        check_ttl(self.ttl)?;
        check_bytes("memtable_bytes", self.memtable_bytes, MEMTABLE_BYTES_MIN)?;
        // At most half of this limit is one memtable.
        let limit_min = 2 * MEMTABLE_BYTES_MIN;
        check_bytes("memory_limit_bytes", self.memory_limit_bytes, limit_min)?;
        if !(1..=BACKGROUND_THREADS_MAX).contains(&self.background_threads) {
            return Err(Error::BadOption {
                option: "background_threads",
                reason: format!(
                    "{} threads: from 1 to {BACKGROUND_THREADS_MAX} can compact",
                    self.background_threads
                ),
            });
        }
        if self.access == Access::ReadOnly && self.create == Create::MustBeNew {
            return Err(Error::BadOption {
                option: "create",
                reason: "a store that is opened for reading only cannot be new".into(),
            });
        }
        for (name, options) in &self.keyspaces {
            check_keyspace_name(name)?;
            options.check()?;
        }
        Ok(())
    }

    /// The options of a keyspace, by name. The name of the store's own keyspace is empty.
    pub(crate) fn of_keyspace(&self, name: &str) -> KeyspaceOptions {
        let listed = self.keyspaces.iter().find(|(listed, _)| listed == name);
        if let Some((_, options)) = listed.filter(|_| !name.is_empty()) {
            return options.clone();
        }
        let own = KeyspaceOptions {
            comparator: Arc::clone(&self.comparator),
            run: self.run,
            tree: self.tree,
            ttl: self.ttl,
        };
        if name.is_empty() {
            own
        } else {
            KeyspaceOptions {
                comparator: Arc::new(Bytewise),
                ttl: None,
                ..own
            }
        }
    }

    /// The options of an existing keyspace that is ordered by the comparator of this name.
    pub(crate) fn of_stored_keyspace(
        &self,
        dir: &Path,
        name: &str,
        comparator: &str,
    ) -> Result<KeyspaceOptions> {
        let options = self.of_keyspace(name);
        if options.comparator.name() == comparator {
            return Ok(options);
        }
        if name.is_empty() {
            return Err(Error::ComparatorMismatch {
                path: dir.to_owned(),
                stored: comparator.to_owned(),
                given: options.comparator.name().to_owned(),
            });
        }
        let is_listed = self.keyspaces.iter().any(|(listed, _)| listed == name);
        if !is_listed && comparator == ReverseBytewise.name() {
            return Ok(KeyspaceOptions {
                comparator: Arc::new(ReverseBytewise),
                ..options
            });
        }
        Err(Error::KeyspaceComparator {
            keyspace: name.to_owned(),
            stored: comparator.to_owned(),
            given: is_listed.then(|| options.comparator.name().to_owned()),
        })
    }

    /// The key order of an existing keyspace.
    pub(crate) fn order_of(&self, dir: &Path, name: &str, comparator: &str) -> Result<KeyOrder> {
        let options = self.of_stored_keyspace(dir, name, comparator)?;
        Ok(KeyOrder::new(options.comparator))
    }
}

fn check_bytes(option: &'static str, bytes: usize, bytes_min: usize) -> Result<()> {
    if bytes >= bytes_min {
        return Ok(());
    }
    Err(Error::BadOption {
        option,
        reason: format!("{bytes} bytes are too few: at least {bytes_min} are needed"),
    })
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("comparator", &self.comparator.name())
            .field("memory_limit_bytes", &self.memory_limit_bytes)
            .field("memtable_bytes", &self.memtable_bytes)
            .field("memtable_index", &self.memtable_index)
            .field("cache_bytes", &self.cache_bytes)
            .field("max_open_files", &self.max_open_files)
            .field("pages", &self.pages)
            .field("run", &self.run)
            .field("ttl", &self.ttl)
            .field("reads", &self.reads)
            .field("use_direct_reads", &self.use_direct_reads)
            .field("verify_checksums", &self.verify_checksums)
            .field("tree", &self.tree)
            .field("background", &self.background)
            .field("background_threads", &self.background_threads)
            .field("scrub_rate_bytes", &self.scrub_rate_bytes)
            .field("durability", &self.durability)
            .field("checks", &self.checks)
            .field("recovery", &self.recovery)
            .field("wal", &self.wal)
            .field("wal_segment_bytes", &self.wal_segment_bytes)
            .field("create", &self.create)
            .field("access", &self.access)
            .field("stats_level", &self.stats_level)
            .field("keyspaces", &self.keyspaces)
            .finish_non_exhaustive()
    }
}
