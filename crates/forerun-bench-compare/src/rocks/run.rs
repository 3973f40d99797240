//! RocksDB with one sorted run of blocks, all of them in the block cache.

use super::{GET, Kept, MULTIGET, RocksStore};
use anyhow::{Result, bail};
use forerun_bench::engine::{Engine, Store, StoreRequirements};
use forerun_bench::workload::{Dataset, EntryBuffer};
use rocksdb::{BlockBasedOptions, Cache, DBCompressionType, IteratorMode, Options, WriteOptions};

/// RocksDB with all entries in blocks of one sorted run, and the blocks in its cache.
pub struct RocksRun;

impl Engine for RocksRun {
    fn name(&self) -> &str {
        "rocksdb"
    }

    fn strategies(&self) -> Vec<String> {
        vec![GET.to_owned(), MULTIGET.to_owned()]
    }

    fn open(&self, _: &StoreRequirements) -> Result<Box<dyn Store>> {
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
        let directory = StoreRequirements::of(data, 0).directory()?;
        let store = RocksStore::open(&options, directory, Kept::InPlace)?;
        let db = &store.db;
        let mut write = WriteOptions::default();
        write.disable_wal(true);
        let mut entry = EntryBuffer::default();
        for index in 0..data.keys() {
            data.entry(index, &mut entry);
            db.put_opt(&entry.key, &entry.value, &write)?;
        }
        db.flush()?;
        db.compact_range(None::<&[u8]>, None::<&[u8]>);
        // Reads every block into the cache.
        for entry in db.iterator(IteratorMode::Start) {
            entry?;
        }
        Ok(Some(Box::new(store)))
    }
}
