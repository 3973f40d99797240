//! RocksDB on disk: its default options, and, where Forerun's cache has a size, a block cache as
//! large. A keyspace is a column family.
//!
//! The defaults are: memtables of 64 MiB, leveled compaction, blocks of 4 KiB, no filters, no
//! compression in this build, and a log that is written but not synced. Besides the cache, either
//! filters of 10 bits per key, which Forerun has by default, or another index can be set.

use super::{BlockIndex, GET, Kept, MULTIGET, RocksStore, Setting, settings};
use anyhow::Result;
use forerun_bench::engine::{
    Engine, Feature, KeyspaceSpec, Store, StoreLocation, StoreRequirements,
};
use rocksdb::{
    BlockBasedOptions, Cache, ColumnFamilyDescriptor, ColumnFamilyTtl, DB,
    DEFAULT_COLUMN_FAMILY_NAME, Options,
};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Bits per key of a filter.
pub const FILTER_BITS: f64 = 10.0;

/// RocksDB on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RocksDisk {
    /// The defaults.
    Default,
    /// With filters.
    Bloom,
    /// With interpolation search where it fits.
    AutoIndex,
    /// With a trie as the index.
    TrieIndex,
}

impl Engine for RocksDisk {
    fn name(&self) -> &str {
        match self {
            RocksDisk::Default => "rocksdb",
            RocksDisk::Bloom => "rocksdb-bloom",
            RocksDisk::AutoIndex => "rocksdb-auto-index",
            RocksDisk::TrieIndex => "rocksdb-trie-index",
        }
    }

    fn strategies(&self) -> Vec<String> {
        vec![GET.to_owned(), MULTIGET.to_owned()]
    }

    fn open(&self, requirements: &StoreRequirements) -> Result<Box<dyn Store>> {
        let (options, settings) = self.options(&requirements.place)?;
        let directory = requirements.directory()?;
        let store = RocksStore::open(self.name(), &options, directory, Kept::Levels)?;
        store.check_settings(&settings)?;
        Ok(Box::new(store))
    }

    fn supports(&self, feature: Feature) -> bool {
        match feature {
            Feature::Keyspaces | Feature::RangeDeletes | Feature::Ttl => true,
            // Ingested files have no trie.
            Feature::Ingestion => *self != RocksDisk::TrieIndex,
        }
    }

    fn open_keyspaces(
        &self,
        place: &StoreLocation,
        keyspaces: &[KeyspaceSpec],
    ) -> Result<Vec<Box<dyn Store>>> {
        let (mut options, settings) = self.options(place)?;
        options.create_missing_column_families(true);
        let directory = Arc::new(place.directory()?);
        let descriptor = |name: &str, ttl: Option<Duration>| {
            let ttl = ttl.map_or(ColumnFamilyTtl::Disabled, ColumnFamilyTtl::Duration);
            ColumnFamilyDescriptor::new_with_ttl(name, options.clone(), ttl)
        };
        let families = keyspaces
            .iter()
            .map(|spec| descriptor(&spec.name, spec.ttl));
        let families = families.chain([descriptor(DEFAULT_COLUMN_FAMILY_NAME, None)]);
        let db = if keyspaces.iter().any(|spec| spec.ttl.is_some()) {
            // Each family has its own TTL, or none: that of the whole store applies to none.
            DB::open_cf_descriptors_with_ttl(&options, directory.path(), families, Duration::ZERO)?
        } else {
            DB::open_cf_descriptors(&options, directory.path(), families)?
        };
        settings::check(directory.path(), &settings)?;
        let db = Arc::new(db);
        let store = |spec: &KeyspaceSpec| -> Box<dyn Store> {
            Box::new(RocksStore {
                name: self.name().to_owned(),
                family: spec.name.clone(),
                db: Arc::clone(&db),
                directory: Arc::clone(&directory),
                kept: Kept::Levels,
                huge_pages_before: None,
                huge_pages: OnceLock::new(),
            })
        };
        Ok(keyspaces.iter().map(store).collect())
    }
}

impl RocksDisk {
    /// RocksDB's options, and the lines of its OPTIONS file that prove them.
    fn options(&self, place: &StoreLocation) -> Result<(Options, Vec<Setting>)> {
        let mut blocks = BlockBasedOptions::default();
        if let Some(bytes) = place.cache_bytes {
            blocks.set_block_cache(&Cache::new_lru_cache(usize::try_from(bytes)?));
        }
        if *self == RocksDisk::Bloom {
            blocks.set_bloom_filter(FILTER_BITS, false);
        }
        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_block_based_table_factory(&blocks);
        let index = match self {
            RocksDisk::Default | RocksDisk::Bloom => BlockIndex::Binary,
            RocksDisk::AutoIndex => BlockIndex::Auto,
            RocksDisk::TrieIndex => BlockIndex::Trie,
        };
        let mut settings = Vec::new();
        index.select(&mut options, &mut settings)?;
        Ok((options, settings))
    }
}
