//! RocksDB with all entries in one sorted run, all of it in memory.
//!
//! ```text
//!  rocksdb               blocks of 4 KiB in the block cache, a Bloom filter of 10 bits per key
//!  rocksdb-auto-index    the same, with another search of the index (block_index.rs)
//!  rocksdb-trie-index    the same, with a trie as the index
//!  rocksdb-point-lookup  the same, and a hash index in each block: OptimizeForPointLookup
//!  rocksdb-plain-table   a PlainTable: a mapped file of records without blocks, and a hash table
//!                        from a key to its record's offset
//! ```
//!
//! The cache has room for twice the entries. Index and filter blocks are outside of it, in the
//! table's reader, which RocksDB keeps open.

use super::huge_pages::HUGE_PAGE_BYTES;
use super::{BlockIndex, FILTER_BITS, GET, Kept, MULTIGET, RocksStore, Setting};
use anyhow::{Result, bail, ensure};
use forerun_bench::engine::{Engine, Store, StoreRequirements};
use forerun_bench::workload::{Dataset, EntryBuffer};
use rocksdb::{BlockBasedOptions, Cache, DBCompressionType, IteratorMode, Options, WriteOptions};

/// A PlainTable has less than 2 GiB. A larger run is cut into several.
const PLAIN_TABLE_BYTES: u64 = (2 << 30) - (64 << 20);

/// RocksDB with one format of its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RocksRun {
    /// The block-based format, with filters.
    Blocks(BlockIndex),
    /// The block-based format, optimized for point lookups.
    PointLookup,
    /// PlainTable.
    PlainTable,
}

impl RocksRun {
    /// RocksDB's options, and the lines of its OPTIONS file that prove them.
    fn options(self, data: &Dataset) -> Result<(Options, Vec<Setting>)> {
        let cache_bytes = 2 * data.keys() * (data.key_bytes() + data.value_bytes() + 64) as u64;
        let cache_mib = (cache_bytes >> 20) + 64;
        let mut options = Options::default();
        let mut settings = Vec::new();
        // One file, as there is one run.
        let mut file_bytes = u64::MAX / 2;
        match self {
            RocksRun::Blocks(index) => {
                let mut blocks = BlockBasedOptions::default();
                let cache_bytes = usize::try_from(cache_mib << 20)?;
                blocks.set_block_cache(&Cache::new_lru_cache(cache_bytes));
                blocks.set_bloom_filter(FILTER_BITS, false);
                options.set_block_based_table_factory(&blocks);
                index.select(&mut options, &mut settings)?;
            }
            RocksRun::PointLookup => {
                options.optimize_for_point_lookup(cache_mib);
                settings.extend([
                    Setting::new("data_block_index_type", "kDataBlockBinaryAndHash"),
                    Setting::new("data_block_hash_table_util_ratio", "0.75"),
                    Setting::new("filter_policy", "bloomfilter:10"),
                    Setting::new("whole_key_filtering", "true"),
                    Setting::new("cache_index_and_filter_blocks", "false"),
                ]);
            }
            RocksRun::PlainTable => {
                // By RocksDB's names, because its C interface for these options has changed.
                let table = [
                    Setting::new("user_key_len", data.key_bytes()),
                    Setting::new("bloom_bits_per_key", FILTER_BITS),
                    Setting::new("hash_table_ratio", "0.75"),
                    Setting::new("huge_page_tlb_size", HUGE_PAGE_BYTES),
                ];
                let each: Vec<String> = table.iter().map(Setting::to_string).collect();
                // The table hashes prefixes; the prefix is the whole key.
                options = options.get_options_from_string(format!(
                    "prefix_extractor=rocksdb.Noop;table_factory={{id=PlainTable;{}}}",
                    each.join(";")
                ))?;
                options.set_allow_mmap_reads(true);
                file_bytes = PLAIN_TABLE_BYTES;
                settings.extend(table);
                settings.extend([
                    Setting::new("prefix_extractor", "rocksdb.Noop"),
                    Setting::new("table_factory", "PlainTable"),
                    Setting::new("allow_mmap_reads", "true"),
                ]);
            }
        }
        options.create_if_missing(true);
        options.set_compression_type(DBCompressionType::None);
        options.set_target_file_size_base(file_bytes);
        Ok((options, settings))
    }
}

impl Engine for RocksRun {
    fn name(&self) -> &str {
        match self {
            RocksRun::Blocks(BlockIndex::Binary) => "rocksdb",
            RocksRun::Blocks(BlockIndex::Auto) => "rocksdb-auto-index",
            RocksRun::Blocks(BlockIndex::Trie) => "rocksdb-trie-index",
            RocksRun::PointLookup => "rocksdb-point-lookup",
            RocksRun::PlainTable => "rocksdb-plain-table",
        }
    }

    fn strategies(&self) -> Vec<String> {
        vec![GET.to_owned(), MULTIGET.to_owned()]
    }

    fn open(&self, _: &StoreRequirements) -> Result<Box<dyn Store>> {
        bail!("this RocksDB is loaded in order")
    }

    fn open_loaded(&self, data: &Dataset) -> Result<Option<Box<dyn Store>>> {
        let (options, settings) = self.options(data)?;
        let directory = StoreRequirements::of(data, 0).directory()?;
        let store = RocksStore::open(self.name(), &options, directory, Kept::Run)?;
        store.check_settings(&settings)?;
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
        // Reads every block into the cache, or every page of a mapped file into memory.
        let mut read = 0;
        for entry in db.iterator(IteratorMode::Start) {
            entry?;
            read += 1;
        }
        ensure!(
            read == data.keys(),
            "{} has {read} entries instead of {}",
            self.name(),
            data.keys()
        );
        store.wait_idle()?;
        Ok(Some(Box::new(store)))
    }
}
