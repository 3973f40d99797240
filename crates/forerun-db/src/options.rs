//! How a store is opened, and how durable a write is.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use forerun_core::Pages;

use crate::io::ReadBackend;
use crate::memtable::{Bytewise, Checks, Comparator};
use crate::run::{RowSearch, RunOptions};

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

/// What opening does about bad bytes in the log. `docs/format.md` has the cases in a table.
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
    /// The most memory that all memtables together may take, in bytes. Where the next one does not fit, writes wait
    /// until one is in runs; a batch that does not fit alone is an error. Default: 1 GiB.
    pub memory_limit_bytes: usize,
    /// Size in bytes at which a memtable is full: its entries go to a run, and a new one takes the writes. At most
    /// half of `memory_limit_bytes` is used of it. Address space of this size is taken at once, memory as it is used.
    /// Default: 64 MiB.
    pub memtable_bytes: usize,
    /// The most memory that pages of runs, and their filters, may take, in bytes. Default: 256 MiB.
    pub cache_bytes: usize,
    /// Pages that the memory for entries and for the cache is asked in. Default: huge ones.
    pub pages: Pages,
    /// How runs are written.
    pub run: RunOptions,
    /// How long what is written stays: when it is older, it is not found any more, and flushes and compactions leave it
    /// out. Ages are known from flush to flush, so a thing lives up to that much longer, and as long as it is in a
    /// memtable. Default: none, for ever.
    pub ttl: Option<Duration>,
    /// How a page is searched. Default: by heads, which wins everywhere.
    pub row_search: RowSearch,
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
}

impl Default for Options {
    fn default() -> Options {
        Options {
            comparator: Arc::new(Bytewise),
            memory_limit_bytes: 1 << 30,
            memtable_bytes: 64 << 20,
            cache_bytes: 256 << 20,
            pages: Pages::Huge,
            run: RunOptions::default(),
            ttl: None,
            row_search: RowSearch::default(),
            reads: ReadBackend::default(),
            tree: TreeOptions::default(),
            background: Background::default(),
            durability: Durability::default(),
            checks: Checks::Off,
            recovery: Recovery::default(),
            wal: WalMode::default(),
            wal_segment_bytes: 64 << 20,
            create: Create::default(),
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("comparator", &self.comparator.name())
            .field("memory_limit_bytes", &self.memory_limit_bytes)
            .field("memtable_bytes", &self.memtable_bytes)
            .field("cache_bytes", &self.cache_bytes)
            .field("pages", &self.pages)
            .field("run", &self.run)
            .field("ttl", &self.ttl)
            .field("row_search", &self.row_search)
            .field("reads", &self.reads)
            .field("tree", &self.tree)
            .field("background", &self.background)
            .field("durability", &self.durability)
            .field("checks", &self.checks)
            .field("recovery", &self.recovery)
            .field("wal", &self.wal)
            .field("wal_segment_bytes", &self.wal_segment_bytes)
            .field("create", &self.create)
            .finish()
    }
}
