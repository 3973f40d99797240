//! LMDB as an engine of the lookup benches: one database, loaded in key order, its file wholly in the system's cache.

use anyhow::{Context, Result, bail};
use forerun_bench::engine::{Engine, Reader, Store, Writer};
use forerun_bench::workload::{Dataset, EntryBuffer};
use heed::types::Bytes;
use heed::{CommitOrAbort, Database, Env, EnvOpenOptions, PutFlags, RoTxn, WithTls};
use tempfile::TempDir;

use crate::copied::Copied;

/// One `get` after the other, in one transaction.
pub const GET: &str = "get";

/// LMDB.
pub struct Lmdb;

impl Engine for Lmdb {
    fn name(&self) -> &str {
        "lmdb"
    }

    fn strategies(&self) -> Vec<String> {
        vec![GET.to_owned()]
    }

    fn open(&self, _: &Dataset, _: u64) -> Result<Box<dyn Store>> {
        bail!("LMDB is loaded in order")
    }

    fn open_loaded(&self, data: &Dataset) -> Result<Option<Box<dyn Store>>> {
        let directory = tempfile::tempdir()?;
        let entry_bytes = data.key_bytes() + data.value_bytes() + 64;
        let map_bytes = 2 * data.keys() as usize * entry_bytes + (64 << 20);
        let mut options = EnvOpenOptions::new();
        options
            .map_size(map_bytes.next_multiple_of(4096))
            .max_dbs(1);
        // SAFETY: LMDB maps the file, which must not be changed from elsewhere: it lies in a new directory of our own.
        let env = unsafe { options.open(directory.path()) }.context("opening LMDB")?;
        let database = unnamed(&env)?;
        let mut txn = env.write_txn()?;
        let mut entry = EntryBuffer::default();
        for index in 0..data.keys() {
            data.entry(index, &mut entry);
            database.put_with_flags(&mut txn, PutFlags::APPEND, &entry.key, &entry.value)?;
        }
        txn.commit()?;
        Ok(Some(Box::new(LmdbStore {
            env,
            _directory: directory,
        })))
    }
}

/// The database without a name, which every LMDB has.
fn unnamed(env: &Env) -> Result<Database<'_, Bytes, Bytes>> {
    let opened = env.open_databases_and_commit(env.read_txn()?, |open, txn| {
        let database = open.open_database::<Bytes, Bytes>(txn, None)?;
        Ok::<_, heed::Error>(CommitOrAbort::<_, ()>::Commit(database))
    })?;
    opened.unwrap_commit().context("LMDB has no database")
}

/// An open LMDB; dropped before its directory.
struct LmdbStore {
    env: Env,
    _directory: TempDir,
}

impl Store for LmdbStore {
    fn reader(&self, strategy: &str) -> Result<Box<dyn Reader + '_>> {
        if strategy != GET {
            bail!("LMDB has no strategy {strategy:?}");
        }
        Ok(Box::new(LmdbReader {
            txn: self.env.read_txn()?,
            database: unnamed(&self.env)?,
            copied: Copied::default(),
        }))
    }

    fn writer(&self) -> Result<Box<dyn Writer + '_>> {
        bail!("LMDB is only read here")
    }
}

struct LmdbReader<'a> {
    txn: RoTxn<'a, WithTls>,
    database: Database<'a, Bytes, Bytes>,
    copied: Copied,
}

impl Reader for LmdbReader<'_> {
    fn read(&mut self, keys: &[&[u8]]) -> Result<usize> {
        self.copied.clear();
        for key in keys {
            let value = self.database.get(&self.txn, key)?;
            self.copied.keep(value);
        }
        Ok(self.copied.found())
    }

    fn value(&self, at: usize) -> Option<&[u8]> {
        self.copied.get(at)
    }
}
