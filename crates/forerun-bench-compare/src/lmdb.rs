//! LMDB as an engine: one database. In the bench of a run it is loaded in key order and only read.
//! In the bench of the store it is written and read, without a sync at each commit (`MDB_NOSYNC`),
//! like the other stores there.
//!
//! Its cache is the system's: the file is mapped. Each batch is read in its own transaction, and
//! each write has its own too.

use anyhow::{Context, Result, bail};
use forerun_bench::engine::{Engine, Reader, Store, StoreRequirements, Writer};
use forerun_bench::workload::{Dataset, EntryBuffer};
use heed::types::Bytes;
use heed::{CommitOrAbort, Database, Env, EnvFlags, EnvOpenOptions, PutFlags};
use std::ops::Bound;
use std::path::Path;
use tempfile::TempDir;

use crate::copied::Copied;

/// One `get` after the other, with one transaction per batch.
pub const GET: &str = "get";

/// The most bytes that an entry takes besides its key and value when pages are half full.
const OVERHEAD_BYTES: usize = 64;

/// LMDB.
pub struct Lmdb;

impl Engine for Lmdb {
    fn name(&self) -> &str {
        "lmdb"
    }

    fn strategies(&self) -> Vec<String> {
        vec![GET.to_owned()]
    }

    fn open(&self, requirements: &StoreRequirements) -> Result<Box<dyn Store>> {
        Ok(Box::new(LmdbStore::open(requirements, EnvFlags::NO_SYNC)?))
    }

    fn open_loaded(&self, data: &Dataset) -> Result<Option<Box<dyn Store>>> {
        let store = LmdbStore::open(&StoreRequirements::of(data, 0), EnvFlags::empty())?;
        let database = unnamed(&store.env)?;
        let mut txn = store.env.write_txn()?;
        let mut entry = EntryBuffer::default();
        for index in 0..data.keys() {
            data.entry(index, &mut entry);
            database.put_with_flags(&mut txn, PutFlags::APPEND, &entry.key, &entry.value)?;
        }
        txn.commit()?;
        Ok(Some(Box::new(store)))
    }
}

/// Address space for this many entries. Pages may be half full, values of about a page take whole
/// pages, and space that a write frees is reused once no reader sees it any more.
pub fn map_bytes(entries: u64, entry_bytes: usize) -> usize {
    let entries = usize::try_from(entries).unwrap_or(usize::MAX);
    let bytes = entries.saturating_mul(entry_bytes + OVERHEAD_BYTES);
    let bytes = bytes.saturating_mul(4).saturating_add(1 << 30);
    bytes.min(1 << 44).next_multiple_of(4096)
}

/// The database without a name, which every LMDB has.
pub fn unnamed(env: &Env) -> Result<Database<'_, Bytes, Bytes>> {
    let opened = env.open_databases_and_commit(env.read_txn()?, |open, txn| {
        let database = open.open_database::<Bytes, Bytes>(txn, None)?;
        Ok::<_, heed::Error>(CommitOrAbort::<_, ()>::Commit(database))
    })?;
    opened.unwrap_commit().context("LMDB has no database")
}

/// An open LMDB; dropped before its directory.
struct LmdbStore {
    env: Env,
    directory: TempDir,
}

impl LmdbStore {
    fn open(requirements: &StoreRequirements, flags: EnvFlags) -> Result<LmdbStore> {
        let directory = requirements.directory()?;
        let mut options = EnvOpenOptions::new();
        options
            .map_size(map_bytes(
                requirements.keys,
                requirements.key_bytes + requirements.value_bytes,
            ))
            .max_dbs(1);
        // SAFETY: LMDB maps the file, which must not be changed from elsewhere; it is in a new
        // directory of our own. Without a sync, a crash of the system may damage it; it is then
        // gone and never opened again.
        let env = unsafe { options.flags(flags).open(directory.path()) };
        Ok(LmdbStore {
            env: env.context("opening LMDB")?,
            directory,
        })
    }
}

impl Store for LmdbStore {
    fn reader(&self, strategy: &str) -> Result<Box<dyn Reader + '_>> {
        if strategy != GET {
            bail!("LMDB has no strategy {strategy:?}");
        }
        Ok(Box::new(LmdbReader {
            env: &self.env,
            database: unnamed(&self.env)?,
            copied: Copied::default(),
        }))
    }

    fn writer(&self) -> Result<Box<dyn Writer + '_>> {
        Ok(Box::new(LmdbWriter {
            env: &self.env,
            database: unnamed(&self.env)?,
        }))
    }

    fn wait_idle(&self) -> Result<()> {
        Ok(self.env.force_sync()?)
    }

    fn directory(&self) -> Option<&Path> {
        Some(self.directory.path())
    }
}

struct LmdbReader<'a> {
    env: &'a Env,
    database: Database<'a, Bytes, Bytes>,
    copied: Copied,
}

impl Reader for LmdbReader<'_> {
    fn read(&mut self, keys: &[&[u8]]) -> Result<usize> {
        self.copied.clear();
        let txn = self.env.read_txn()?;
        for key in keys {
            let value = self.database.get(&txn, key)?;
            self.copied.keep(value);
        }
        Ok(self.copied.found())
    }

    fn value(&self, at: usize) -> Option<&[u8]> {
        self.copied.get(at)
    }

    fn scan(
        &mut self,
        from: &[u8],
        limit: usize,
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<usize> {
        let txn = self.env.read_txn()?;
        let range = (Bound::Included(from), Bound::Unbounded);
        pass_on(self.database.range(&txn, &range)?.take(limit), each)
    }

    fn scan_back(
        &mut self,
        from: &[u8],
        limit: usize,
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<usize> {
        let txn = self.env.read_txn()?;
        let range = (Bound::Unbounded, Bound::Included(from));
        pass_on(self.database.rev_range(&txn, &range)?.take(limit), each)
    }
}

/// Passes entries on, and returns how many there were.
fn pass_on<'a>(
    entries: impl Iterator<Item = heed::Result<(&'a [u8], &'a [u8])>>,
    each: &mut dyn FnMut(&[u8], &[u8]),
) -> Result<usize> {
    let mut given = 0;
    for entry in entries {
        let (key, value) = entry?;
        each(key, value);
        given += 1;
    }
    Ok(given)
}

struct LmdbWriter<'a> {
    env: &'a Env,
    database: Database<'a, Bytes, Bytes>,
}

impl Writer for LmdbWriter<'_> {
    fn write(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let mut txn = self.env.write_txn()?;
        self.database.put(&mut txn, key, value)?;
        Ok(txn.commit()?)
    }

    fn write_many(&mut self, entries: &[EntryBuffer]) -> Result<()> {
        let mut txn = self.env.write_txn()?;
        for entry in entries {
            self.database.put(&mut txn, &entry.key, &entry.value)?;
        }
        Ok(txn.commit()?)
    }
}
