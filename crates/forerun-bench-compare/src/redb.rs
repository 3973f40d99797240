//! redb as an engine: one table, one transaction per write and per batch of reads, and commits that
//! are not synced (`Durability::None`), like the other stores.

use anyhow::{Result, bail};
use forerun_bench::engine::{Engine, Reader, Store, StoreRequirements, Writer};
use forerun_bench::workload::EntryBuffer;
use redb::{Database, Durability, ReadableDatabase, TableDefinition};
use std::path::Path;
use tempfile::TempDir;

use crate::copied::Copied;

/// One `get` after the other, with one transaction per batch.
const GET: &str = "get";

const TABLE: TableDefinition<&[u8], &[u8]> = TableDefinition::new("entries");

/// redb.
pub struct Redb;

impl Engine for Redb {
    fn name(&self) -> &str {
        "redb"
    }

    fn strategies(&self) -> Vec<String> {
        vec![GET.to_owned()]
    }

    fn open(&self, requirements: &StoreRequirements) -> Result<Box<dyn Store>> {
        let directory = requirements.directory()?;
        let mut options = Database::builder();
        if let Some(bytes) = requirements.place.cache_bytes {
            options.set_cache_size(usize::try_from(bytes)?);
        }
        let database = options.create(directory.path().join("redb"))?;
        // Readers find no table before a writer has created it.
        let txn = database.begin_write()?;
        txn.open_table(TABLE)?;
        txn.commit()?;
        Ok(Box::new(RedbStore {
            database,
            directory,
        }))
    }
}

/// An open redb; dropped before its directory.
struct RedbStore {
    database: Database,
    directory: TempDir,
}

impl Store for RedbStore {
    fn reader(&self, strategy: &str) -> Result<Box<dyn Reader + '_>> {
        if strategy != GET {
            bail!("redb has no strategy {strategy:?}");
        }
        Ok(Box::new(RedbReader {
            database: &self.database,
            copied: Copied::default(),
        }))
    }

    fn writer(&self) -> Result<Box<dyn Writer + '_>> {
        Ok(Box::new(RedbWriter(&self.database)))
    }

    fn wait_idle(&self) -> Result<()> {
        // A durable commit, even an empty one, makes the earlier ones durable.
        Ok(self.database.begin_write()?.commit()?)
    }

    fn directory(&self) -> Option<&Path> {
        Some(self.directory.path())
    }
}

struct RedbReader<'a> {
    database: &'a Database,
    copied: Copied,
}

impl Reader for RedbReader<'_> {
    fn read(&mut self, keys: &[&[u8]]) -> Result<usize> {
        self.copied.clear();
        let table = self.database.begin_read()?.open_table(TABLE)?;
        for key in keys {
            let value = table.get(key)?;
            self.copied.keep(value.as_ref().map(|value| value.value()));
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
        let table = self.database.begin_read()?.open_table(TABLE)?;
        let mut given = 0;
        for entry in table.range(from..)?.take(limit) {
            let (key, value) = entry?;
            each(key.value(), value.value());
            given += 1;
        }
        Ok(given)
    }
}

struct RedbWriter<'a>(&'a Database);

impl RedbWriter<'_> {
    fn write_each<'e>(&self, entries: impl Iterator<Item = (&'e [u8], &'e [u8])>) -> Result<()> {
        let mut txn = self.0.begin_write()?;
        txn.set_durability(Durability::None)?;
        let mut table = txn.open_table(TABLE)?;
        for (key, value) in entries {
            table.insert(key, value)?;
        }
        drop(table);
        Ok(txn.commit()?)
    }
}

impl Writer for RedbWriter<'_> {
    fn write(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.write_each(std::iter::once((key, value)))
    }

    fn write_many(&mut self, entries: &[EntryBuffer]) -> Result<()> {
        let entries = entries.iter();
        self.write_each(entries.map(|entry| (entry.key.as_slice(), entry.value.as_slice())))
    }
}
