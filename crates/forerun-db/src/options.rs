//! How a store is opened, and how durable a write is.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use forerun_core::Pages;

use crate::comparator::KeyOrder;
use crate::io::ReadBackend;
use crate::memtable::{Bytewise, Checks, Comparator, ReverseBytewise};
use crate::run::{PageSearch, RunOptions};
use crate::{Error, MAX_KEYSPACE_NAME_BYTES, Result};

/// What has happened to a write when it returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// It is with the operating system: it survives the end of the process, `kill -9` included, and
    /// not the loss of power.
    #[default]
    Buffered,
    /// It is on stable storage: it survives the loss of power. Writes of several threads share a
    /// sync.
    Synced,
}

/// What opening does about bad bytes in the log. `docs/internals/format.md` has the cases in a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recovery {
    /// Any bad byte is an error, the end of a write that a crash cut short too.
    Strict,
    /// What a crash cuts short is dropped and told in the
    /// [`RecoveryReport`](crate::RecoveryReport); damage is an error.
    #[default]
    DropTail,
    /// Damage is skipped and told as well; what follows it is applied. The damaged bytes stay in
    /// the log, so the store opens with this choice only until it is copied elsewhere.
    SkipCorrupt,
}

/// Whether writes go to the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WalMode {
    /// Every write does, before it is visible.
    #[default]
    On,
    /// None does: what is written is gone when the store is closed. A log that is there already is
    /// read.
    Off,
}

/// What opening does where there is no store, and where there is one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Create {
    /// A store is created if there is none, with its directory and the directories above.
    #[default]
    IfMissing,
    /// It is an error if there is none.
    Never,
    /// It is an error if there is one.
    MustBeNew,
}

/// Whether a store may be changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// It may.
    #[default]
    ReadWrite,
    /// Nothing is written, created or removed in its directory, which may lie on a read-only file system. What the log holds
    /// is read into memory at each opening, within [`Options::memory_limit_bytes`]. Whatever would change the store is
    /// [`Error::ReadOnly`](crate::Error::ReadOnly). Several may have a store open so at a time, and nobody with
    /// [`ReadWrite`](Self::ReadWrite) beside them.
    ReadOnly,
}

/// The shape of the tree of runs, and how fast it may be rebuilt.
///
/// Level 0 holds memtables as they were flushed, in runs that overlap. A level below holds runs that do not. The last
/// level, 6, has what it has, and each one above it a `level_factor`th of the next, up to the first that this leaves at
/// most `level1_bytes`: there level 0 is merged into, and the levels in between are empty. So little is held twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeOptions {
    /// Runs in level 0 at which they are merged into the first level below that is in use. Default: 4.
    pub level0_runs: usize,
    /// Runs in level 0 at which writes are slowed down. Default: 12.
    pub level0_slow_runs: usize,
    /// Runs in level 0 at which writes wait until there are fewer. Default: 20.
    pub level0_stop_runs: usize,
    /// Bytes that the first level in use below level 0 may have. Default: 256 MiB.
    pub level1_bytes: u64,
    /// How many times the bytes of a level the next one may have. Default: 10.
    pub level_factor: u32,
    /// Bytes at which a compaction begins the next run. Default: 64 MiB.
    pub run_bytes: u64,
    /// The most bytes that flushes and compactions write in a second, together; `None` for no limit. Default: none.
    pub write_rate_bytes: Option<u64>,
}

impl Default for TreeOptions {
    fn default() -> TreeOptions {
        TreeOptions {
            level0_runs: 4,
            level0_slow_runs: 12,
            level0_stop_runs: 20,
            level1_bytes: 256 << 20,
            level_factor: 10,
            run_bytes: 64 << 20,
            write_rate_bytes: None,
        }
    }
}

/// Who flushes full memtables and compacts runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Background {
    /// Two threads of the store's own, one for each.
    #[default]
    Threads,
    /// The thread whose write fills a memtable, before that write returns. Everything then happens in an order that
    /// depends on the calls alone.
    Caller,
}

/// What a keyspace has of its own: its order, the shape of its runs, how long its entries live.
///
/// Of this the store remembers the name of the comparator and the time to live; the rest holds from when it is given until
/// the store is closed, as with [`Options`].
///
/// ```
/// use forerun_db::{Db, KeyspaceOptions, Options};
/// use std::time::Duration;
///
/// # let directory = tempfile::tempdir().unwrap();
/// # let path = directory.path().join("store");
/// let sessions = KeyspaceOptions { ttl: Some(Duration::from_secs(3600)), ..KeyspaceOptions::default() };
/// let options = Options { keyspaces: vec![("sessions".into(), sessions)], ..Options::default() };
/// let db = Db::open(path, options)?;
/// db.keyspace("sessions")?.put(b"4711", b"paris")?;
/// assert_eq!(db.get(b"4711")?, None);
/// # Ok::<(), forerun_db::Error>(())
/// ```
#[derive(Clone)]
pub struct KeyspaceOptions {
    /// The order of keys. A keyspace keeps the one it was created with. Default: [`Bytewise`].
    pub comparator: Arc<dyn Comparator>,
    /// How its runs are written.
    pub run: RunOptions,
    /// The shape of its tree of runs. Writes to the store are held up where that of any keyspace says so; the rate of
    /// writing is the store's, in [`Options::tree`], and not looked at here.
    pub tree: TreeOptions,
    /// How long what is written stays; see [`Options::ttl`]. Default: none. A keyspace that is there keeps the one it was
    /// created with; a new one keeps what is written for ever.
    pub ttl: Option<Duration>,
    /// How a page is searched. Default: by key prefixes.
    pub page_search: PageSearch,
}

impl Default for KeyspaceOptions {
    fn default() -> KeyspaceOptions {
        KeyspaceOptions {
            comparator: Arc::new(Bytewise),
            run: RunOptions::default(),
            tree: TreeOptions::default(),
            ttl: None,
            page_search: PageSearch::default(),
        }
    }
}

impl fmt::Debug for KeyspaceOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyspaceOptions")
            .field("comparator", &self.comparator.name())
            .field("run", &self.run)
            .field("tree", &self.tree)
            .field("ttl", &self.ttl)
            .field("page_search", &self.page_search)
            .finish()
    }
}

/// How a store is opened. The default suits most.
///
/// ```
/// use forerun_db::{Durability, Options};
///
/// let options = Options { durability: Durability::Synced, memory_limit_bytes: 64 << 20, ..Options::default() };
/// # let _ = options;
/// ```
#[derive(Clone)]
pub struct Options {
    /// The order of keys. A store keeps the one it was created with. Default: [`Bytewise`].
    pub comparator: Arc<dyn Comparator>,
    /// The most memory that all memtables together may take, in bytes, those included that are in runs and that an iterator
    /// still holds. Where the next one does not fit, writes wait until one is in runs. Where iterators alone hold the
    /// memory, a write waits for a second and is [`Error::MemoryLimit`] then; drop them and write again. A batch that does
    /// not fit alone, with an eighth more for the memtable's own needs, is an error at once. Not counted is the copy of a
    /// batch on its way to the log, as long as it is written. Default: 1 GiB.
    pub memory_limit_bytes: usize,
    /// Size in bytes at which a memtable is full: its entries go to a run, and a new one takes the writes. At most
    /// half of `memory_limit_bytes` is used of it. Address space of this size is taken at once, memory as it is used.
    /// Default: 64 MiB.
    pub memtable_bytes: usize,
    /// The most memory that pages of runs, and their filters, may take, in bytes. Filters have three quarters of it at most;
    /// a run for whose filter there is no room is searched without, until there is: see
    /// [`LevelStats::unfiltered_runs`](crate::LevelStats::unfiltered_runs). What is in memory for every open run, its root
    /// page and eight bytes a page, is counted in, but must be there even where this is too small for it. Default: 256 MiB.
    pub cache_bytes: usize,
    /// The most files of runs that are open at a time; others are closed, and opened again when a page of theirs is read.
    /// Those that are being read do not count, nor do the log, the lock and files that are written, a handful. Default:
    /// half of what the process may open (`RLIMIT_NOFILE`), from 16 to 65,536.
    ///
    /// What a snapshot or an iterator holds can be read as long as the store is open. Kept for longer than that, it may
    /// need a file that is closed, and that the next opening of the store has removed: an error.
    pub max_open_files: Option<usize>,
    /// Pages that the memory for entries and for the cache is asked in. Default: huge ones.
    pub pages: Pages,
    /// How runs are written.
    pub run: RunOptions,
    /// How long what is written stays, in whole seconds, at least one. Each read decides it by the system's clock: an
    /// entry is found for at least this long and gone a second later, wherever it lies and whenever the store was opened.
    /// A snapshot and an iterator go by the clock of the moment they were made: what they see does not expire under them.
    /// Flushes and compactions leave out what has expired. Over a time to live of more than twelve days, an entry may live
    /// longer by a millionth of it; after the clock was set back, until it has caught up.
    ///
    /// A store keeps the time to live that it was created with; asking for another one is
    /// [`Error::KeyspaceTtl`](crate::Error::KeyspaceTtl). Default: none. A new store then keeps what is written for ever.
    pub ttl: Option<Duration>,
    /// How a page is searched. Default: by key prefixes, the fastest in every measurement.
    pub page_search: PageSearch,
    /// How pages are read from the disk. Default: by io_uring, or by a pool of threads where that is refused.
    pub reads: ReadBackend,
    /// The shape of the tree of runs.
    pub tree: TreeOptions,
    /// Who flushes memtables and compacts runs. Default: threads of the store's own.
    pub background: Background,
    /// How durable `put` and `delete` are. Default: [`Durability::Buffered`].
    pub durability: Durability,
    /// Whether every entry that a lookup walks over is verified. Default: off.
    pub checks: Checks,
    /// What is done about bad bytes in the log. Default: [`Recovery::DropTail`].
    pub recovery: Recovery,
    /// Whether writes go to the log. Default: [`WalMode::On`].
    pub wal: WalMode,
    /// Length in bytes at which a segment of the log is full and the next is begun. Default: 64
    /// MiB.
    pub wal_segment_bytes: u64,
    /// What is done where there is no store. Default: [`Create::IfMissing`].
    pub create: Create,
    /// Whether the store may be changed. Default: [`Access::ReadWrite`]. With [`Access::ReadOnly`], none is created.
    pub access: Access,
    /// Keyspaces by name, with their options. One that is not listed has this store's `run`, `tree` and `page_search`, no
    /// time to live, and the order by bytes, or [`ReverseBytewise`] if it was created with that; one that was created
    /// with any other comparator must be listed, or the store is not opened. Listing creates nothing. Default: none.
    pub keyspaces: Vec<(String, KeyspaceOptions)>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            comparator: Arc::new(Bytewise),
            memory_limit_bytes: 1 << 30,
            memtable_bytes: 64 << 20,
            cache_bytes: 256 << 20,
            max_open_files: None,
            pages: Pages::Huge,
            run: RunOptions::default(),
            ttl: None,
            page_search: PageSearch::default(),
            reads: ReadBackend::default(),
            tree: TreeOptions::default(),
            background: Background::default(),
            durability: Durability::default(),
            checks: Checks::Off,
            recovery: Recovery::default(),
            wal: WalMode::default(),
            wal_segment_bytes: 64 << 20,
            create: Create::default(),
            access: Access::default(),
            keyspaces: Vec::new(),
        }
    }
}

impl TreeOptions {
    /// Refuses what would make writes wait for a compaction that is never due.
    pub(crate) fn check(&self) -> Result<()> {
        match self.level0_stop_runs > self.level0_runs {
            true => Ok(()),
            false => Err(Error::BadOption {
                option: "level0_stop_runs",
                reason: format!(
                    "writes would wait at {} runs, and compaction begins at {}: it must be more",
                    self.level0_stop_runs, self.level0_runs
                ),
            }),
        }
    }
}

impl Options {
    /// Refuses what contradicts itself.
    pub(crate) fn check(&self) -> Result<()> {
        self.tree.check()?;
        check_ttl(self.ttl)?;
        for (name, options) in &self.keyspaces {
            check_keyspace_name(name)?;
            options.check()?;
        }
        Ok(())
    }

    /// What the keyspace of a name has; the store's own has the empty one.
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
            page_search: self.page_search,
        };
        match name.is_empty() {
            true => own,
            false => KeyspaceOptions {
                comparator: Arc::new(Bytewise),
                ttl: None,
                ..own
            },
        }
    }

    /// The same for one that is there and ordered by the comparator of this name.
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

    /// The order of the keys of a keyspace that is there.
    pub(crate) fn order_of(&self, dir: &Path, name: &str, comparator: &str) -> Result<KeyOrder> {
        let options = self.of_stored_keyspace(dir, name, comparator)?;
        Ok(KeyOrder::new(options.comparator))
    }
}

impl KeyspaceOptions {
    /// Refuses what contradicts itself.
    pub(crate) fn check(&self) -> Result<()> {
        check_ttl(self.ttl)?;
        self.tree.check()
    }

    /// The same with the time to live of a keyspace that is there, in seconds, 0 for none, unless they ask for another.
    pub(crate) fn with_stored_ttl(self, keyspace: &str, ttl: u64) -> Result<KeyspaceOptions> {
        let stored = (ttl > 0).then(|| Duration::from_secs(ttl));
        match self.ttl {
            Some(given) if Some(given) != stored => Err(Error::KeyspaceTtl {
                keyspace: keyspace.to_owned(),
                stored,
                given,
            }),
            _ => Ok(KeyspaceOptions {
                ttl: stored,
                ..self
            }),
        }
    }

    /// The time to live in seconds; 0: for ever.
    pub(crate) fn ttl_s(&self) -> u64 {
        self.ttl.map_or(0, |ttl| ttl.as_secs())
    }
}

fn check_ttl(ttl: Option<Duration>) -> Result<()> {
    match ttl {
        Some(ttl) if ttl.subsec_nanos() != 0 || ttl.is_zero() => Err(Error::BadOption {
            option: "ttl",
            reason: format!("{ttl:?} is not a whole number of seconds, at least 1"),
        }),
        _ => Ok(()),
    }
}

/// Refuses a name that no keyspace but the store's own may have.
pub(crate) fn check_keyspace_name(name: &str) -> Result<()> {
    match name.len() {
        0 => Err(Error::KeyspaceName {
            name: name.to_owned(),
            reason: "only the store's own keyspace has an empty name".into(),
        }),
        len if len > MAX_KEYSPACE_NAME_BYTES => Err(Error::KeyspaceName {
            name: name.to_owned(),
            reason: format!("it has {len} bytes, and may have {MAX_KEYSPACE_NAME_BYTES}"),
        }),
        _ => Ok(()),
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("comparator", &self.comparator.name())
            .field("memory_limit_bytes", &self.memory_limit_bytes)
            .field("memtable_bytes", &self.memtable_bytes)
            .field("cache_bytes", &self.cache_bytes)
            .field("max_open_files", &self.max_open_files)
            .field("pages", &self.pages)
            .field("run", &self.run)
            .field("ttl", &self.ttl)
            .field("page_search", &self.page_search)
            .field("reads", &self.reads)
            .field("tree", &self.tree)
            .field("background", &self.background)
            .field("durability", &self.durability)
            .field("checks", &self.checks)
            .field("recovery", &self.recovery)
            .field("wal", &self.wal)
            .field("wal_segment_bytes", &self.wal_segment_bytes)
            .field("create", &self.create)
            .field("access", &self.access)
            .field("keyspaces", &self.keyspaces)
            .finish()
    }
}
