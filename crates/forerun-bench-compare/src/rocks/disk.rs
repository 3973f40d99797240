//! RocksDB on disk: its default options, and, where Forerun's cache has a size, a block cache as
//! large. A keyspace is a column family.
//!
//! The defaults are: memtables of 64 MiB, leveled compaction, blocks of 4 KiB, no filters, no
//! compression in this build, and a log that is written but not synced. One option can be set
//! besides the cache: filters of 10 bits per key, which Forerun has by default.

use super::{GET, Kept, MULTIGET, RocksStore};
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
        let store = RocksStore::open(
            self.name(),
            &self.options(&requirements.place)?,
            requirements.directory()?,
            Kept::Levels,
        )?;
        Ok(Box::new(store))
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
        let mut options = self.options(place)?;
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
    fn options(&self, place: &StoreLocation) -> Result<Options> {
        let mut blocks = BlockBasedOptions::default();
        if let Some(bytes) = place.cache_bytes {
            blocks.set_block_cache(&Cache::new_lru_cache(usize::try_from(bytes)?));
        }
        if self.filters {
            blocks.set_bloom_filter(FILTER_BITS, false);
        }
        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_block_based_table_factory(&blocks);
        Ok(options)
    }
}
