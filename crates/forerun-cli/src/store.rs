//! Opening a store as the options of a command say.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::ValueEnum;
use forerun_db::{Access, Checks, Create, Db, Durability, Error, Keyspace, Options, Recovery};
use forerun_measure::size::parse_size;

use crate::exit;

/// Where the store is, and how it is opened.
#[derive(Debug, clap::Args)]
pub struct StoreArgs {
    /// The store's directory
    #[arg(value_name = "DB")]
    pub path: PathBuf,
    #[command(flatten)]
    options: StoreOptions,
}

/// Which keyspace of the store a command is about.
#[derive(Debug, clap::Args)]
pub struct KeyspaceArgs {
    /// The keyspace [default: the store's own]
    #[arg(long, value_name = "NAME", help_heading = "Store options")]
    keyspace: Option<String>,
}

impl KeyspaceArgs {
    /// The keyspace, which must be there.
    pub fn existing(&self, db: &Db) -> anyhow::Result<Keyspace> {
        let Some(name) = &self.keyspace else {
            return Ok(db.own_keyspace());
        };
        db.find_keyspace(name).ok_or_else(|| {
            let name = name.clone();
            anyhow::Error::new(Error::UnknownKeyspace { name })
        })
    }

    /// The keyspace, made where there is none.
    pub fn open_or_create(&self, db: &Db) -> anyhow::Result<Keyspace> {
        match &self.keyspace {
            None => Ok(db.own_keyspace()),
            Some(name) => db.keyspace(name).context("cannot open the keyspace"),
        }
    }
}

/// How a store is opened.
#[derive(Debug, clap::Args)]
pub struct StoreOptions {
    /// The most memory that writes may take on their way to disk
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "1GiB", help_heading = "Store options")]
    pub memory_limit: usize,
    /// Size at which a memtable is full and goes to disk
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "64MiB", help_heading = "Store options")]
    pub memtable: usize,
    /// The most memory that pages of the store may take, such as 512MiB or 4GiB
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "256MiB", help_heading = "Store options")]
    pub cache: usize,
    /// Verify order and checksum of every entry that a lookup passes
    #[arg(long, help_heading = "Store options")]
    pub paranoid: bool,
    /// What to do about a damaged log
    #[arg(long, value_enum, default_value_t = RecoveryArg::DropTail, help_heading = "Store options")]
    pub recovery: RecoveryArg,
}

/// What to do about a damaged log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RecoveryArg {
    /// Any damage is an error
    Strict,
    /// A torn end, as a crash leaves it, is dropped and told; other damage is an error
    DropTail,
    /// Damaged records are passed over and told: for rescuing what is left
    SkipCorrupt,
}

/// How durable a write is before the next one begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DurabilityArg {
    /// Handed to the operating system: survives the end of the process, not a power cut
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
    /// Opens a store that must be there.
    pub fn open_existing(&self) -> anyhow::Result<Db> {
        self.options.open(&self.path, Create::Never)
    }

    /// Opens a store that must be there and is not changed: it may lie on a read-only file system.
    pub fn open_for_reading(&self) -> anyhow::Result<Db> {
        let (create, access) = (Create::Never, Access::ReadOnly);
        self.options.open_with(&self.path, create, access)
    }

    /// Opens a store, or makes it where there is none.
    pub fn open_or_create(&self) -> anyhow::Result<Db> {
        self.options.open(&self.path, Create::IfMissing)
    }
}

impl StoreOptions {
    /// Opens the store at `path`, and says on standard error what recovery had to drop.
    pub fn open(&self, path: &Path, create: Create) -> anyhow::Result<Db> {
        self.open_with(path, create, Access::ReadWrite)
    }

    fn open_with(&self, path: &Path, create: Create, access: Access) -> anyhow::Result<Db> {
        let recovery = match self.recovery {
            RecoveryArg::Strict => Recovery::Strict,
            RecoveryArg::DropTail => Recovery::DropTail,
            RecoveryArg::SkipCorrupt => Recovery::SkipCorrupt,
        };
        let options = Options {
            create,
            access,
            memory_limit_bytes: self.memory_limit,
            memtable_bytes: self.memtable,
            cache_bytes: self.cache,
            checks: if self.paranoid {
                Checks::Paranoid
            } else {
                Checks::Off
            },
            recovery,
            ..Options::default()
        };
        let db = Db::open(path, options).context("cannot open the store")?;
        let recovery = db.recovery();
        for lost in recovery.dropped_tail.iter().chain(&recovery.skipped) {
            exit::warn(format_args!(
                "the log was damaged, as a crash may leave it; dropped {lost}"
            ));
        }
        Ok(db)
    }
}
