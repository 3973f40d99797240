//! RocksDB as an engine.
//!
//! ```text
//!  memtable.rs     one memtable, no log, nothing ever flushed       compared with the memtable
//!  run.rs          one sorted run, all of it in memory              compared with a run
//!  disk.rs         a store on disk, as programs use it              compared with the store
//!  block_index.rs  how the block of a key is found in a run
//!  settings.rs     what RocksDB says that it runs with
//!  huge_pages.rs   how much of its memory is in huge pages
//! ```
//!
//! This file has the readers and writers of all three.

mod block_index;
mod disk;
mod huge_pages;
mod memtable;
mod run;
mod settings;
#[cfg(test)]
mod tests;

pub use block_index::BlockIndex;
pub use disk::{FILTER_BITS, RocksDisk};
pub use memtable::RocksMemtable;
pub use run::RocksRun;

use anyhow::{Context, Result, bail, ensure};
use forerun_bench::engine::{Reader, Store, Writer};
use forerun_bench::workload::EntryBuffer;
use rocksdb::{
    ColumnFamily, ColumnFamilyDescriptor, DB, DEFAULT_COLUMN_FAMILY_NAME,
    IngestExternalFileOptions, Options, ReadOptions, SstFileWriter, WaitForCompactOptions,
    WriteBatch, WriteOptions,
};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use tempfile::TempDir;

use crate::copied::Copied;
use huge_pages::HugePages;
use settings::Setting;

/// One `Get` after the other.
pub const GET: &str = "get";

/// `MultiGet`, through `batched_multi_get_cf`. RocksDB cuts it into pieces of 32 keys by itself.
pub const MULTIGET: &str = "multiget";

/// The kind of store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    /// All entries are in one memtable; there is no log.
    Memtable,
    /// All entries are in one sorted run; there is no log.
    Run,
    /// Entries go through the log and from level to level.
    Levels,
}

/// A column family of an open RocksDB; dropped before its directory.
struct RocksStore {
    name: String,
    /// The name of the family.
    family: String,
    db: Arc<DB>,
    directory: Arc<TempDir>,
    kept: Kept,
    huge_pages_before: Option<HugePages>,
    /// Taken while the store was loaded.
    huge_pages: OnceLock<HugePages>,
}

impl RocksStore {
    /// Creates a store with one column family, for the engine of that name.
    fn open(name: &str, options: &Options, directory: TempDir, kept: Kept) -> Result<RocksStore> {
        let huge_pages_before = HugePages::of_process();
        // The default column family is opened by name, because its MultiGet takes a handle.
        let family = ColumnFamilyDescriptor::new(DEFAULT_COLUMN_FAMILY_NAME, options.clone());
        let db = DB::open_cf_descriptors(options, directory.path(), [family])?;
        Ok(RocksStore {
            name: name.to_owned(),
            family: DEFAULT_COLUMN_FAMILY_NAME.to_owned(),
            db: Arc::new(db),
            directory: Arc::new(directory),
            kept,
            huge_pages_before,
            huge_pages: OnceLock::new(),
        })
    }

    /// The handle of the family.
    fn family(&self) -> Result<&ColumnFamily> {
        let family = self.db.cf_handle(&self.family);
        family.with_context(|| format!("RocksDB has lost its column family {}", self.family))
    }

    /// Checks that RocksDB runs with these settings.
    fn check_settings(&self, settings: &[Setting]) -> Result<()> {
        settings::check(self.directory.path(), settings)
    }

    /// Checks that all entries are still in the memtable to which they were written.
    fn check_unflushed(&self) -> Result<()> {
        let immutable = "rocksdb.num-immutable-mem-table";
        let immutable = self.db.property_int_value(immutable)?;
        let files = self.db.property_value("rocksdb.num-files-at-level0")?;
        ensure!(
            immutable == Some(0) && files.as_deref() == Some("0"),
            "{} has flushed a memtable: its write buffer is too small",
            self.name
        );
        Ok(())
    }

    fn count_huge_pages(&self) {
        if let (Some(before), Some(now)) = (self.huge_pages_before, HugePages::of_process()) {
            self.huge_pages.get_or_init(|| now.since(before));
        }
    }

    /// Files and MiB of each non-empty level.
    fn levels(&self) -> Option<String> {
        let family = self.family().ok()?;
        let table = self.db.property_value_cf(family, "rocksdb.levelstats");
        let table = table.ok()??;
        // A line of column heads, one of dashes, then each level's number, files and size.
        let levels = table.lines().skip(2).filter_map(|line| {
            let mut words = line.split_whitespace();
            let (level, files, size) = (words.next()?, words.next()?, words.next()?);
            (files != "0").then(|| format!("level {level}: {files} runs of {size} MiB"))
        });
        Some(levels.collect::<Vec<_>>().join(", "))
    }
}

impl Store for RocksStore {
    fn reader(&self, strategy: &str) -> Result<Box<dyn Reader + '_>> {
        let call = match strategy {
            GET => ReadCall::Get,
            MULTIGET => ReadCall::MultiGet,
            other => bail!("RocksDB has no strategy {other:?}"),
        };
        Ok(Box::new(RocksReader {
            db: &self.db,
            family: self.family()?,
            call,
            options: ReadOptions::default(),
            copied: Copied::default(),
        }))
    }

    fn writer(&self) -> Result<Box<dyn Writer + '_>> {
        let mut options = WriteOptions::default();
        options.disable_wal(self.kept != Kept::Levels);
        Ok(Box::new(RocksWriter {
            db: &self.db,
            family: self.family()?,
            options,
        }))
    }

    fn wait_idle(&self) -> Result<()> {
        match self.kept {
            Kept::Memtable => {
                self.check_unflushed()?;
                self.count_huge_pages();
            }
            Kept::Run => self.count_huge_pages(),
            Kept::Levels => {
                self.db.flush_cf(self.family()?)?;
                self.db
                    .wait_for_compact(&WaitForCompactOptions::default())?;
            }
        }
        Ok(())
    }

    fn ingest(&self, next: &mut dyn FnMut(&mut EntryBuffer) -> Result<bool>) -> Result<()> {
        let path = self.directory.path().join("ingested.sst");
        let options = Options::default();
        let mut file = SstFileWriter::create(&options);
        file.open(&path)?;
        let mut entry = EntryBuffer::default();
        while next(&mut entry)? {
            file.put(&entry.key, &entry.value)?;
        }
        file.finish()?;
        let mut options = IngestExternalFileOptions::default();
        options.set_move_files(true);
        let ingest = self
            .db
            .ingest_external_file_cf_opts(self.family()?, &options, vec![path]);
        Ok(ingest?)
    }

    fn directory(&self) -> Option<&Path> {
        Some(self.directory.path())
    }

    fn facts(&self) -> Vec<(String, String)> {
        let (what, text) = match self.kept {
            Kept::Memtable => {
                let bytes = "rocksdb.cur-size-active-mem-table";
                let bytes = self.db.property_int_value(bytes).ok().flatten();
                ("memtable", bytes.map(|bytes| format!("{bytes} bytes")))
            }
            Kept::Run | Kept::Levels => ("runs", self.levels()),
        };
        let pages = self.huge_pages.get().map(|pages| format!(", {pages}"));
        let pages = pages.unwrap_or_default();
        text.map(|text| (format!("{} {what}", self.name), format!("{text}{pages}")))
            .into_iter()
            .collect()
    }
}

#[derive(Clone, Copy)]
enum ReadCall {
    Get,
    MultiGet,
}

/// A reader that copies the values into one buffer, as Forerun's does.
struct RocksReader<'a> {
    db: &'a DB,
    family: &'a ColumnFamily,
    call: ReadCall,
    options: ReadOptions,
    copied: Copied,
}

impl Reader for RocksReader<'_> {
    fn read(&mut self, keys: &[&[u8]]) -> Result<usize> {
        self.copied.clear();
        match self.call {
            ReadCall::Get => {
                for key in keys {
                    let value = self.db.get_pinned_cf_opt(self.family, key, &self.options)?;
                    self.copied.keep(value.as_deref());
                }
            }
            ReadCall::MultiGet => {
                let keys = keys.iter().copied();
                for value in
                    self.db
                        .batched_multi_get_cf_opt(self.family, keys, false, &self.options)
                {
                    self.copied.keep(value?.as_deref());
                }
            }
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
        let mut entries = self.db.raw_iterator_cf(self.family);
        entries.seek(from);
        let mut given = 0;
        while given < limit {
            let Some((key, value)) = entries.item() else {
                break;
            };
            each(key, value);
            given += 1;
            entries.next();
        }
        entries.status()?;
        Ok(given)
    }
}

struct RocksWriter<'a> {
    db: &'a DB,
    family: &'a ColumnFamily,
    options: WriteOptions,
}

impl Writer for RocksWriter<'_> {
    fn write(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.db.put_cf_opt(self.family, key, value, &self.options)?)
    }

    fn write_many(&mut self, entries: &[EntryBuffer]) -> Result<()> {
        let mut batch = WriteBatch::default();
        for entry in entries {
            batch.put_cf(self.family, &entry.key, &entry.value);
        }
        Ok(self.db.write_opt(batch, &self.options)?)
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        Ok(self.db.delete_cf_opt(self.family, key, &self.options)?)
    }

    fn delete_range(&mut self, from: &[u8], to: &[u8]) -> Result<()> {
        let deleted = self
            .db
            .delete_range_cf_opt(self.family, from, to, &self.options);
        Ok(deleted?)
    }
}
