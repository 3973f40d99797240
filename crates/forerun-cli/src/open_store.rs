//! Opens a store with the options of a command.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::ValueEnum;
use forerun_core::size::parse_size;
use forerun_db::{
    Access, Compression, Create, Db, Durability, Error, Keyspace, MemoryChecks, Options, Recovery,
};

use crate::exit;

/// The path of a store and the options to open it.
#[derive(Debug, clap::Args)]
pub struct StoreArgs {
    /// The store's directory
    #[arg(value_name = "DB")]
    pub path: PathBuf,
    #[command(flatten)]
    options: StoreOptions,
}

/// The keyspace that a command works on.
#[derive(Debug, clap::Args)]
pub struct KeyspaceArgs {
    /// The keyspace [default: the store's default keyspace]
    #[arg(long, value_name = "NAME", help_heading = "Store options")]
    keyspace: Option<String>,
}

impl KeyspaceArgs {
    /// Returns the keyspace, which must exist.
    pub fn existing(&self, db: &Db) -> anyhow::Result<Keyspace> {
        let Some(name) = &self.keyspace else {
            return Ok(db.default_keyspace());
        };
        db.find_keyspace(name).ok_or_else(|| {
            let name = name.clone();
            anyhow::Error::new(Error::UnknownKeyspace { name })
        })
    }

    /// Returns the keyspace and creates it if it does not exist.
    pub fn open_or_create(&self, db: &Db) -> anyhow::Result<Keyspace> {
        match &self.keyspace {
            None => Ok(db.default_keyspace()),
            Some(name) => db.keyspace(name).context("cannot open the keyspace"),
        }
    }
}

/// Options to open a store.
#[derive(Debug, clap::Args)]
pub struct StoreOptions {
    /// Maximum memory for memtables that are not yet on disk; by default 1280MiB, or a quarter of
    /// what the process may use
    #[arg(
        long,
        value_name = "SIZE",
        value_parser = parse_size,
        help_heading = "Store options"
    )]
    pub memory_limit: Option<usize>,
    /// Memtable size at which it is flushed to disk
    #[arg(
        long,
        value_name = "SIZE",
        value_parser = parse_size,
        default_value = "64MiB",
        help_heading = "Store options"
    )]
    pub memtable: usize,
    /// Maximum memory for cached pages, such as 512MiB or 4GiB; by default half of what the process
    /// may use beyond memtables and 512 MiB
    #[arg(
        long,
        value_name = "SIZE",
        value_parser = parse_size,
        help_heading = "Store options"
    )]
    pub cache: Option<usize>,
    /// Threads that compact runs, from 1 to 64; by default half of the cores, from 2 to 4
    #[arg(long, value_name = "NUMBER", help_heading = "Store options")]
    pub background_threads: Option<usize>,
    /// Compression of what is written to runs: none, lz4, zstd, zstd:LEVEL or
    /// zstd:LEVEL:DICTIONARY_SIZE, such as zstd:6:16KiB
    #[arg(
        long,
        value_name = "NAME",
        default_value_t,
        help_heading = "Store options"
    )]
    pub compression: Compression,
    /// The same for the last level, which has most of the data; by default as the others
    #[arg(long, value_name = "NAME", help_heading = "Store options")]
    pub bottommost_compression: Option<Compression>,
    /// Verify order and checksum of every entry that a lookup reads, and each page read from a file
    #[arg(long, help_heading = "Store options")]
    pub paranoid: bool,
    /// Treatment of a damaged log
    #[arg(
        long,
        value_enum,
        default_value_t = RecoveryArg::DropTail,
        help_heading = "Store options"
    )]
    pub recovery: RecoveryArg,
}

/// Treatment of a damaged log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RecoveryArg {
    /// Report any damage as an error
    Strict,
    /// Drop a torn end, as a crash leaves it, and report it; other damage is an error
    DropTail,
    /// Skip damaged records and report them: for rescuing data
    SkipCorrupt,
}

/// Durability of a write before the next one begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DurabilityArg {
    /// In the operating system: survives the end of the process, not a power failure
    Buffered,
    /// On stable storage
    Synced,
}

impl From<DurabilityArg> for Durability {
    fn from(durability: DurabilityArg) -> Durability {
        match durability {
            DurabilityArg::Buffered => Durability::Buffered,
            DurabilityArg::Synced => Durability::Synced,
        }
    }
}

impl StoreArgs {
    /// Opens a store that must exist.
    pub fn open_existing(&self) -> anyhow::Result<Db> {
        self.options.open(&self.path, Create::Never)
    }

    /// Opens an existing store without changing it. The file system may be read-only.
    pub fn open_for_reading(&self) -> anyhow::Result<Db> {
        let (create, access) = (Create::Never, Access::ReadOnly);
        self.options.open_with(&self.path, create, access)
    }

    /// Opens a store and creates it if it does not exist.
    pub fn open_or_create(&self) -> anyhow::Result<Db> {
        self.options.open(&self.path, Create::IfMissing)
    }
}

impl StoreOptions {
    /// Opens the store at `path`, and reports on standard error what recovery had to drop.
    pub fn open(&self, path: &Path, create: Create) -> anyhow::Result<Db> {
        self.open_with(path, create, Access::ReadWrite)
    }

    fn open_with(&self, path: &Path, create: Create, access: Access) -> anyhow::Result<Db> {
        let recovery = match self.recovery {
            RecoveryArg::Strict => Recovery::Strict,
            RecoveryArg::DropTail => Recovery::DropTail,
            RecoveryArg::SkipCorrupt => Recovery::SkipCorrupt,
        };
        let checks = if self.paranoid {
            MemoryChecks::Paranoid
        } else {
            MemoryChecks::Off
        };
        let options = Options::default();
        let memory_limit_bytes = self.memory_limit.unwrap_or(options.memory_limit_bytes);
        let background_threads = self.background_threads;
        let background_threads = background_threads.unwrap_or(options.background_threads);
        let (run, mut tree) = (options.run.compression(self.compression), options.tree);
        if let Some(compression) = self.bottommost_compression {
            tree = tree.bottommost_compression(compression);
        }
        let options = options
            .run(run)
            .tree(tree)
            .create(create)
            .access(access)
            .memory_limit_bytes(memory_limit_bytes)
            .memtable_bytes(self.memtable)
            .cache_bytes(self.cache)
            .background_threads(background_threads)
            .checks(checks)
            .recovery(recovery);
        let db = options
            .in_stored_order(|options| Db::open(path, options.clone()))
            .context("cannot open the store")?;
        let recovery = db.recovery();
        for lost in recovery.dropped_tail.iter().chain(&recovery.skipped) {
            exit::warn(format_args!(
                "the log was damaged, as after a crash; dropped {lost}"
            ));
        }
        Ok(db)
    }
}
