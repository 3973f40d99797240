//! fjall as an engine: keyspaces with their default options. The system has a write when it
//! returns, but nothing is synced. A batch is read through one snapshot.

use anyhow::{Result, bail, ensure};
use fjall::{Database, Keyspace, KeyspaceCreateOptions, Readable};
use forerun_bench::engine::{
    Engine, Feature, KeyspaceSpec, Reader, Store, StoreLocation, StoreRequirements, Writer,
};
use forerun_bench::workload::EntryBuffer;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

use crate::copied::Copied;

/// One `get` after the other, with one snapshot per batch.
const GET: &str = "get";

/// fjall.
pub struct Fjall;

impl Engine for Fjall {
    fn name(&self) -> &str {
        "fjall"
    }

    fn strategies(&self) -> Vec<String> {
        vec![GET.to_owned()]
    }

    fn open(&self, requirements: &StoreRequirements) -> Result<Box<dyn Store>> {
        Ok(Box::new(open(&requirements.place)?.keyspace("entries")?))
    }

    fn supports(&self, feature: Feature) -> bool {
        match feature {
            Feature::Keyspaces | Feature::Ingestion => true,
            Feature::RangeDeletes | Feature::Ttl => false,
        }
    }

    fn open_keyspaces(
        &self,
        place: &StoreLocation,
        keyspaces: &[KeyspaceSpec],
    ) -> Result<Vec<Box<dyn Store>>> {
        let opened = open(place)?;
        let mut stores: Vec<Box<dyn Store>> = Vec::new();
        for spec in keyspaces {
            ensure!(spec.ttl.is_none(), "fjall has no TTLs");
            stores.push(Box::new(opened.keyspace(&spec.name)?));
        }
        Ok(stores)
    }
}

fn open(place: &StoreLocation) -> Result<OpenDatabase> {
    let directory = place.directory()?;
    let mut options = Database::builder(directory.path().join("fjall"));
    if let Some(bytes) = place.cache_bytes {
        options = options.cache_size(bytes);
    }
    Ok(OpenDatabase {
        database: options.open()?,
        directory: Arc::new(directory),
    })
}

/// An open fjall; closed before its directory is removed.
#[derive(Clone)]
struct OpenDatabase {
    database: Database,
    directory: Arc<TempDir>,
}

impl OpenDatabase {
    fn keyspace(&self, name: &str) -> Result<FjallStore> {
        let keyspace = self
            .database
            .keyspace(name, KeyspaceCreateOptions::default)?;
        Ok(FjallStore {
            keyspace,
            opened: self.clone(),
        })
    }
}

/// A keyspace; dropped before the database.
struct FjallStore {
    keyspace: Keyspace,
    opened: OpenDatabase,
}

impl Store for FjallStore {
    fn reader(&self, strategy: &str) -> Result<Box<dyn Reader + '_>> {
        if strategy != GET {
            bail!("fjall has no strategy {strategy:?}");
        }
        Ok(Box::new(FjallReader {
            store: self,
            copied: Copied::default(),
        }))
    }

    fn writer(&self) -> Result<Box<dyn Writer + '_>> {
        Ok(Box::new(FjallWriter(self)))
    }

    fn wait_idle(&self) -> Result<()> {
        self.keyspace.rotate_memtable_and_wait()?;
        let database = &self.opened.database;
        // It reports only whether a compaction is running, not whether one is due: it counts as
        // idle if none has run for a while.
        let mut quiet = 0;
        while quiet < 20 {
            std::thread::sleep(Duration::from_millis(10));
            let busy = database.active_compactions() + database.outstanding_flushes();
            quiet = if busy == 0 { quiet + 1 } else { 0 };
        }
        Ok(())
    }

    fn ingest(&self, next: &mut dyn FnMut(&mut EntryBuffer) -> Result<bool>) -> Result<()> {
        let mut ingestion = self.keyspace.start_ingestion()?;
        let mut entry = EntryBuffer::default();
        while next(&mut entry)? {
            ingestion.write(entry.key.as_slice(), entry.value.as_slice())?;
        }
        Ok(ingestion.finish()?)
    }

    fn directory(&self) -> Option<&Path> {
        Some(self.opened.directory.path())
    }
}

struct FjallReader<'a> {
    store: &'a FjallStore,
    copied: Copied,
}

impl Reader for FjallReader<'_> {
    fn read(&mut self, keys: &[&[u8]]) -> Result<usize> {
        self.copied.clear();
        let snapshot = self.store.opened.database.snapshot();
        for key in keys {
            let value = snapshot.get(&self.store.keyspace, key)?;
            self.copied.keep(value.as_deref());
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
        let mut given = 0;
        for entry in self.store.keyspace.range(from..).take(limit) {
            let (key, value) = entry.into_inner()?;
            each(&key, &value);
            given += 1;
        }
        Ok(given)
    }
}

struct FjallWriter<'a>(&'a FjallStore);

impl Writer for FjallWriter<'_> {
    fn write(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.0.keyspace.insert(key, value)?)
    }

    fn write_many(&mut self, entries: &[EntryBuffer]) -> Result<()> {
        let mut batch = self.0.opened.database.batch();
        for entry in entries {
            batch.insert(
                &self.0.keyspace,
                entry.key.as_slice(),
                entry.value.as_slice(),
            );
        }
        Ok(batch.commit()?)
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        Ok(self.0.keyspace.remove(key)?)
    }
}
