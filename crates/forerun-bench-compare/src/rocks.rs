//! RocksDB as an engine of the lookup benches: one memtable, no log, nothing ever flushed; or one sorted run of blocks,
//! all of them in the block cache.

use anyhow::{Result, bail};
use forerun_bench::engine::{Engine, Reader, Store, Writer};
use forerun_bench::workload::{Dataset, EntryBuffer};
use rocksdb::{
    BlockBasedOptions, Cache, ColumnFamilyDescriptor, DB, DBCompressionType,
    DEFAULT_COLUMN_FAMILY_NAME, IteratorMode, Options, ReadOptions, WriteOptions,
};
use tempfile::TempDir;

use crate::copied::Copied;

/// One `Get` after the other.
const GET: &str = "get";

/// `MultiGet`, as `batched_multi_get_cf` calls it. RocksDB cuts it into pieces of 32 keys by itself.
pub const MULTIGET: &str = "multiget";

/// Whether RocksDB's batches search from a finger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FingerSearch {
    /// RocksDB's default.
    Off,
    /// `memtable_batch_lookup_optimization=true`.
    On,
}

/// RocksDB with one setting of its finger search.
pub struct RocksDb {
    finger: FingerSearch,
}

impl RocksDb {
    /// The engine with that setting.
    pub fn new(finger: FingerSearch) -> RocksDb {
        RocksDb { finger }
    }
}

impl Engine for RocksDb {
    fn name(&self) -> &str {
        match self.finger {
            FingerSearch::Off => "rocksdb",
            FingerSearch::On => "rocksdb-finger",
        }
    }

    fn strategies(&self) -> Vec<String> {
        vec![GET.to_owned(), MULTIGET.to_owned()]
    }

    fn open(&self, data: &Dataset, spare_entries: u64) -> Result<Box<dyn Store>> {
        let on = self.finger == FingerSearch::On;
        let mut options = Options::default()
            .get_options_from_string(format!("memtable_batch_lookup_optimization={on}"))?;
        options.create_if_missing(true);
        // Everything stays in one memtable.
        let entry_bytes = data.key_bytes() + data.value_bytes() + 128;
        let memtable_bytes = (data.keys() + spare_entries) as usize * entry_bytes + (64 << 20);
        options.set_write_buffer_size(memtable_bytes);
        options.set_disable_auto_compactions(true);
        let directory = tempfile::tempdir()?;
        // The default column family is opened by name, because its MultiGet takes a handle.
        let family = ColumnFamilyDescriptor::new(DEFAULT_COLUMN_FAMILY_NAME, options.clone());
        let db = DB::open_cf_descriptors(&options, directory.path(), [family])?;
        Ok(Box::new(RocksStore {
            db,
            _directory: directory,
        }))
    }
}

/// RocksDB with all entries in blocks of one sorted run, and the blocks in its cache.
pub struct RocksRun;

impl Engine for RocksRun {
    fn name(&self) -> &str {
        "rocksdb"
    }

    fn strategies(&self) -> Vec<String> {
        vec![GET.to_owned(), MULTIGET.to_owned()]
    }

    fn open(&self, _: &Dataset, _: u64) -> Result<Box<dyn Store>> {
        bail!("this RocksDB is loaded in order")
    }

    fn open_loaded(&self, data: &Dataset) -> Result<Option<Box<dyn Store>>> {
        let entry_bytes = data.key_bytes() + data.value_bytes() + 64;
        let mut blocks = BlockBasedOptions::default();
        let cache_bytes = 2 * data.keys() as usize * entry_bytes + (64 << 20);
        blocks.set_block_cache(&Cache::new_lru_cache(cache_bytes));
        blocks.set_bloom_filter(10.0, false);
        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_block_based_table_factory(&blocks);
        options.set_compression_type(DBCompressionType::None);
        // One file, as there is one run.
        options.set_target_file_size_base(u64::MAX / 2);
        let directory = tempfile::tempdir()?;
        let family = ColumnFamilyDescriptor::new(DEFAULT_COLUMN_FAMILY_NAME, options.clone());
        let db = DB::open_cf_descriptors(&options, directory.path(), [family])?;
        let mut write = WriteOptions::default();
        write.disable_wal(true);
        let mut entry = EntryBuffer::default();
        for index in 0..data.keys() {
            data.entry(index, &mut entry);
            db.put_opt(&entry.key, &entry.value, &write)?;
        }
        db.flush()?;
        db.compact_range(None::<&[u8]>, None::<&[u8]>);
        // Every block is brought into the cache.
        for entry in db.iterator(IteratorMode::Start) {
            entry?;
        }
        Ok(Some(Box::new(RocksStore {
            db,
            _directory: directory,
        })))
    }
}

/// An open RocksDB; dropped before its directory.
struct RocksStore {
    db: DB,
    _directory: TempDir,
}

impl Store for RocksStore {
    fn reader(&self, strategy: &str) -> Result<Box<dyn Reader + '_>> {
        let way = match strategy {
            GET => Way::Get,
            MULTIGET => Way::MultiGet,
            other => bail!("RocksDB has no strategy {other:?}"),
        };
        Ok(Box::new(RocksReader {
            db: &self.db,
            way,
            options: ReadOptions::default(),
            copied: Copied::default(),
        }))
    }

    fn writer(&self) -> Result<Box<dyn Writer + '_>> {
        let mut options = WriteOptions::default();
        options.disable_wal(true);
        Ok(Box::new(RocksWriter {
            db: &self.db,
            options,
        }))
    }

    fn facts(&self) -> Vec<(String, String)> {
        let bytes = self
            .db
            .property_int_value("rocksdb.cur-size-active-mem-table");
        match bytes {
            Ok(Some(bytes)) => vec![("rocksdb memtable".to_owned(), format!("{bytes} bytes"))],
            _ => Vec::new(),
        }
    }
}

#[derive(Clone, Copy)]
enum Way {
    Get,
    MultiGet,
}

/// A reader that copies the values out into one buffer, as Forerun's does.
struct RocksReader<'a> {
    db: &'a DB,
    way: Way,
    options: ReadOptions,
    copied: Copied,
}

impl Reader for RocksReader<'_> {
    fn read(&mut self, keys: &[&[u8]]) -> Result<usize> {
        self.copied.clear();
        match self.way {
            Way::Get => {
                for key in keys {
                    let value = self.db.get_pinned_opt(key, &self.options)?;
                    self.copied.keep(value.as_deref());
                }
            }
            Way::MultiGet => {
                let Some(family) = self.db.cf_handle(DEFAULT_COLUMN_FAMILY_NAME) else {
                    bail!("RocksDB has lost its default column family");
                };
                let keys = keys.iter().copied();
                for value in self
                    .db
                    .batched_multi_get_cf_opt(family, keys, false, &self.options)
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
}

struct RocksWriter<'a> {
    db: &'a DB,
    options: WriteOptions,
}

impl Writer for RocksWriter<'_> {
    fn write(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.db.put_opt(key, value, &self.options)?)
    }
}
