//! [`forerun_db::Db`] as an engine: a store on disk, used as programs use it.
//!
//! ```text
//!  read(keys)   multi_get of the batch, or of one key after the other Values: copied out
//!  write        put, with the default durability: the operating system has it
//!  write_many   one WriteBatch
//!  scan         range, lending its entries one by one; scan_back from its end
//!  ingest       one Ingestion
//! ```

use crate::engine::{
    Engine, Feature, KeyspaceSpec, Reader, Store, StoreLocation, StoreRequirements, Writer,
};
use crate::workload::EntryBuffer;
use anyhow::{Result, bail};
use forerun_core::Pages;
use forerun_db::{
    Create, Db, Durability, Keyspace, KeyspaceOptions, Options, Values, WalMode, WriteBatch,
};
use forerun_measure::size::{count, digits, short};
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;

/// The store as an engine to measure.
#[derive(Clone, Copy, Debug, Default)]
pub struct DbEngine;

/// The strategy that looks up one key per call.
const SINGLE: &str = "single";

/// The strategy that looks up a batch per call.
const MULTIGET: &str = "multiget";

/// A store whose memtable holds everything, for the bench of memtables: the memtable as programs
/// reach it, beside the bare one. Nothing is logged or flushed, as with the peers there.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemTableInStore {
    /// The kind of pages for its memory.
    pub pages: Pages,
}

impl Engine for MemTableInStore {
    fn name(&self) -> &str {
        "store"
    }

    fn strategies(&self) -> Vec<String> {
        DbEngine.strategies()
    }

    fn open(&self, requirements: &StoreRequirements) -> Result<Box<dyn Store>> {
        // The bench of memtables allows an entry as much. Another half is for the next memtable,
        // which is never needed.
        let memtable_bytes = requirements.total_bytes(128).saturating_add(1 << 20);
        let directory = requirements.directory()?;
        let options = Options::default()
            .create(Create::MustBeNew)
            .wal(WalMode::Off)
            .pages(self.pages)
            .memtable_bytes(memtable_bytes)
            .memory_limit_bytes(memtable_bytes.saturating_mul(2));
        let db = Db::open(directory.path().join("db"), options)?;
        let store = MemTableStore(DbStore {
            keyspace: db.default_keyspace(),
            opened: Arc::new(OpenDb { db, directory }),
        });
        Ok(Box::new(store))
    }
}

/// A store that is never flushed.
struct MemTableStore(DbStore);

impl Store for MemTableStore {
    fn reader(&self, strategy: &str) -> Result<Box<dyn Reader + '_>> {
        self.0.reader(strategy)
    }

    fn writer(&self) -> Result<Box<dyn Writer + '_>> {
        self.0.writer()
    }

    fn facts(&self) -> Vec<(String, String)> {
        let stats = self.0.opened.db.stats();
        let text = format!(
            "{} entries and {}B in its memtable, {} flushes; called through Db",
            count(stats.memtable.entries as u64),
            short(stats.memtable.used_bytes as f64),
            stats.tree.flushes
        );
        vec![("forerun store".to_owned(), text)]
    }
}

impl Engine for DbEngine {
    fn name(&self) -> &str {
        "forerun"
    }

    fn strategies(&self) -> Vec<String> {
        [SINGLE, MULTIGET].map(str::to_owned).to_vec()
    }

    fn open(&self, requirements: &StoreRequirements) -> Result<Box<dyn Store>> {
        let opened = open(&requirements.place)?;
        Ok(Box::new(DbStore {
            keyspace: opened.db.default_keyspace(),
            opened: Arc::new(opened),
        }))
    }

    fn supports(&self, feature: Feature) -> bool {
        match feature {
            Feature::Keyspaces | Feature::RangeDeletes | Feature::Ingestion | Feature::Ttl => true,
        }
    }

    fn open_keyspaces(
        &self,
        place: &StoreLocation,
        keyspaces: &[KeyspaceSpec],
    ) -> Result<Vec<Box<dyn Store>>> {
        let opened = Arc::new(open(place)?);
        let mut stores: Vec<Box<dyn Store>> = Vec::new();
        for spec in keyspaces {
            let options = KeyspaceOptions::default().ttl(spec.ttl);
            stores.push(Box::new(DbStore {
                keyspace: opened.db.keyspace_with(&spec.name, options)?,
                opened: Arc::clone(&opened),
            }));
        }
        Ok(stores)
    }
}

fn open(place: &StoreLocation) -> Result<OpenDb> {
    let directory = place.directory()?;
    let cache_bytes = place.cache_bytes.map(usize::try_from).transpose()?;
    let options = Options::default()
        .create(Create::MustBeNew)
        .cache_bytes(cache_bytes);
    let db = Db::open(directory.path().join("db"), options)?;
    Ok(OpenDb { db, directory })
}

/// A keyspace of an open store; dropped before the store.
struct DbStore {
    keyspace: Keyspace,
    opened: Arc<OpenDb>,
}

/// An open store; dropped before its directory.
struct OpenDb {
    db: Db,
    directory: TempDir,
}

impl Store for DbStore {
    fn reader(&self, strategy: &str) -> Result<Box<dyn Reader + '_>> {
        let call_keys = match strategy {
            SINGLE => 1,
            MULTIGET => usize::MAX,
            _ => bail!("the store has no strategy {strategy:?}, only {SINGLE} and {MULTIGET}"),
        };
        Ok(Box::new(DbReader {
            keyspace: &self.keyspace,
            call_keys,
            values: Vec::new(),
        }))
    }

    fn writer(&self) -> Result<Box<dyn Writer + '_>> {
        Ok(Box::new(DbWriter {
            db: &self.opened.db,
            keyspace: &self.keyspace,
            batch: WriteBatch::new(),
        }))
    }

    fn wait_idle(&self) -> Result<()> {
        self.opened.db.flush()?;
        Ok(self.opened.db.wait_idle()?)
    }

    fn compact(&self) -> Result<()> {
        Ok(self.keyspace.compact()?)
    }

    fn ingest(&self, next: &mut dyn FnMut(&mut EntryBuffer) -> Result<bool>) -> Result<()> {
        let mut ingestion = self.keyspace.ingest();
        let mut entry = EntryBuffer::default();
        while next(&mut entry)? {
            ingestion.add(&entry.key, &entry.value)?;
        }
        ingestion.commit()?;
        Ok(())
    }

    fn directory(&self) -> Option<&Path> {
        Some(self.opened.directory.path())
    }

    fn facts(&self) -> Vec<(String, String)> {
        let stats = self.opened.db.stats();
        let levels = stats.levels.iter().enumerate();
        let levels = levels.filter(|(_, level)| level.runs > 0);
        let levels: Vec<String> = levels
            .map(|(at, level)| {
                let bytes = short(level.bytes as f64);
                format!("level {at}: {} runs of {bytes}B", level.runs)
            })
            .collect();
        let cache = format!(
            "{}B of {}B, {} hits, {} misses",
            short(stats.cache.used_bytes as f64),
            short(stats.cache.capacity_bytes as f64),
            short(stats.cache.hits as f64),
            short(stats.cache.misses as f64)
        );
        let tree = format!(
            "{} flushes, {} compactions, {} times what was flushed written to runs; {}B of log; {} \
             stalls of {:.2} s",
            stats.tree.flushes,
            stats.tree.compactions,
            digits(stats.tree.write_amplification()),
            short(stats.log_written_bytes as f64),
            stats.write_stalls.stalls,
            stats.write_stalls.stalled_us as f64 / 1e6
        );
        vec![
            ("forerun runs".to_owned(), levels.join(", ")),
            ("forerun cache".to_owned(), cache),
            ("forerun tree".to_owned(), tree),
        ]
    }
}

struct DbReader<'a> {
    keyspace: &'a Keyspace,
    /// The most keys in a call.
    call_keys: usize,
    /// The answers of each call.
    values: Vec<Values>,
}

impl Reader for DbReader<'_> {
    fn read(&mut self, keys: &[&[u8]]) -> Result<usize> {
        let calls = keys.chunks(self.call_keys);
        if self.values.len() < calls.len() {
            self.values.resize_with(calls.len(), Values::new);
        }
        let mut found = 0;
        for (keys, values) in calls.zip(&mut self.values) {
            self.keyspace.multi_get(keys, values)?;
            found += values.found();
        }
        Ok(found)
    }

    fn value(&self, at: usize) -> Option<&[u8]> {
        let values = &self.values[at / self.call_keys];
        values.get(at % self.call_keys).ok().flatten()
    }

    fn scan(
        &mut self,
        from: &[u8],
        limit: usize,
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<usize> {
        let mut entries = self.keyspace.range(from..);
        for given in 0..limit {
            let Some(entry) = entries.next_entry()? else {
                return Ok(given);
            };
            each(entry.key, entry.value);
        }
        Ok(limit)
    }

    fn scan_back(
        &mut self,
        from: &[u8],
        limit: usize,
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<usize> {
        let mut entries = self.keyspace.range(..=from);
        for given in 0..limit {
            let Some(entry) = entries.next_entry_back()? else {
                return Ok(given);
            };
            each(entry.key, entry.value);
        }
        Ok(limit)
    }
}

struct DbWriter<'a> {
    db: &'a Db,
    keyspace: &'a Keyspace,
    batch: WriteBatch,
}

impl Writer for DbWriter<'_> {
    fn write(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.keyspace.put(key, value)?)
    }

    fn write_many(&mut self, entries: &[EntryBuffer]) -> Result<()> {
        self.batch.clear();
        let mut batch = self.batch.keyspace(self.keyspace);
        for entry in entries {
            batch.put(&entry.key, &entry.value)?;
        }
        self.db.write(&self.batch, Durability::default())?;
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        Ok(self.keyspace.delete(key)?)
    }

    fn delete_range(&mut self, from: &[u8], to: &[u8]) -> Result<()> {
        Ok(self.keyspace.delete_range(from, to)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{self, StoreLocation};
    use crate::workload::Dataset;

    #[test]
    fn a_store_returns_written_values_singly_and_batched() {
        let data = Dataset::new(300, 16, 0, 50).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let requirements = StoreRequirements {
            place: StoreLocation {
                parent: Some(folder.path().to_owned()),
                cache_bytes: Some(1 << 20),
            },
            ..StoreRequirements::of(&data, 300)
        };
        let store = DbEngine.open(&requirements).unwrap();
        let mut writer = store.writer().unwrap();
        engine::load(&mut *writer, &data, 0..100, 1, |_| ()).unwrap();
        let rest: Vec<EntryBuffer> = data
            .load_order(100..300)
            .map(|index| {
                let mut entry = EntryBuffer::default();
                data.entry(index, &mut entry);
                entry
            })
            .collect();
        writer.write_many(&rest).unwrap();
        store.wait_idle().unwrap();
        for strategy in DbEngine.strategies() {
            let mut reader = store.reader(&strategy).unwrap();
            engine::verify(&mut *reader, &data).unwrap();
            let mut keys = Vec::new();
            let mut each = |key: &[u8], _: &[u8]| keys.push(key.to_vec());
            let from = data.absent(294);
            assert_eq!(reader.scan(&from, 3, &mut each).unwrap(), 3);
            assert_eq!(reader.scan(&from, 9, &mut each).unwrap(), 5);
            assert_eq!(keys[..3], [295, 296, 297].map(|index| data.present(index)));
            assert_eq!(keys.len(), 8);
            keys.clear();
            let mut each = |key: &[u8], _: &[u8]| keys.push(key.to_vec());
            assert_eq!(reader.scan_back(&from, 3, &mut each).unwrap(), 3);
            assert_eq!(reader.scan_back(&data.present(1), 9, &mut each).unwrap(), 2);
            assert_eq!(keys, [294, 293, 292, 1, 0].map(|index| data.present(index)));
        }
        let files = std::fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(files, 1);
        drop(writer);
        drop(store);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_missing_directory_is_named() {
        let data = Dataset::new(1, 16, 0, 0).unwrap();
        let requirements = StoreRequirements {
            place: StoreLocation {
                parent: Some("no-such-folder".into()),
                cache_bytes: None,
            },
            ..StoreRequirements::of(&data, 0)
        };
        let error = DbEngine.open(&requirements).err().unwrap();
        assert!(format!("{error:#}").contains("no-such-folder"));
    }
}
