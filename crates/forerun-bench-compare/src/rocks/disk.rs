//! RocksDB on disk: its default options, and a block cache as large as Forerun's.
//!
//! The defaults are: memtables of 64 MiB, leveled compaction, blocks of 4 KiB, no filters, no
//! compression in this build, and a log that is written but not synced. One option can be set
//! besides the cache: filters of 10 bits per key, which Forerun has by default.

use super::{GET, Kept, MULTIGET, RocksStore};
use anyhow::Result;
use forerun_bench::engine::{Engine, Store, StoreRequirements};
use rocksdb::{BlockBasedOptions, Cache, Options};

/// Bits per key of a filter.
pub const FILTER_BITS: f64 = 10.0;

/// RocksDB on disk.
#[derive(Clone, Copy, Debug)]
pub struct RocksDisk {
    /// Whether its runs have filters.
    pub filters: bool,
}

impl Engine for RocksDisk {
    fn name(&self) -> &str {
        if self.filters {
            "rocksdb-bloom"
        } else {
            "rocksdb"
        }
    }

    fn strategies(&self) -> Vec<String> {
        vec![GET.to_owned(), MULTIGET.to_owned()]
    }

    fn open(&self, requirements: &StoreRequirements) -> Result<Box<dyn Store>> {
        let mut blocks = BlockBasedOptions::default();
        if let Some(bytes) = requirements.place.cache_bytes {
            blocks.set_block_cache(&Cache::new_lru_cache(usize::try_from(bytes)?));
        }
        if self.filters {
            blocks.set_bloom_filter(FILTER_BITS, false);
        }
        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_block_based_table_factory(&blocks);
        let store = RocksStore::open(
            self.name(),
            &options,
            requirements.directory()?,
            Kept::Levels,
        )?;
        Ok(Box::new(store))
    }
}
