//! RocksDB's memtable: everything in one memtable, no log, nothing ever flushed.
//!
//! ```text
//!  rocksdb                 the defaults: a skip list, an arena in blocks of 1 MiB
//!  rocksdb-finger          the same, with the finger search for batches
//!  rocksdb-point-lookup    a skip list behind a Bloom filter of whole keys     \
//!  rocksdb-hash-skip-list  a hash table whose buckets are skip lists            | huge pages
//!  rocksdb-hash-link-list  a hash table whose buckets are linked lists         /
//! ```
//!
//! A hash table puts the keys that the prefix extractor makes equal into one bucket. Here the
//! prefix is the whole key, so a bucket has one key, or a few that collide.

use super::huge_pages::{ARENA_BLOCK_BYTES, HUGE_PAGE_BYTES};
use super::{GET, Kept, MULTIGET, RocksStore, Setting};
use anyhow::{Context, Result};
use forerun_bench::engine::{Engine, Store, StoreRequirements};
use rocksdb::{MemtableFactory, Options, SliceTransform};

/// MiB of block cache in RocksDB's options for point lookups; nothing here is in blocks.
const BLOCK_CACHE_MIB: u64 = 8;

/// Height and branching factor of a bucket's skip list: RocksDB's defaults.
const BUCKET_HEIGHT: i32 = 4;
const BUCKET_BRANCHING_FACTOR: i32 = 4;

/// RocksDB with one kind of memtable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum RocksMemtable {
    /// RocksDB's default options
    Rocksdb,
    /// The same with memtable_batch_lookup_optimization, which older versions lack
    RocksdbFinger,
    /// OptimizeForPointLookup (a Bloom filter of whole keys), arena in huge pages
    RocksdbPointLookup,
    /// HashSkipListRep with a bucket per key, arena in huge pages
    RocksdbHashSkipList,
    /// HashLinkListRep with a bucket per key, arena in huge pages
    RocksdbHashLinkList,
}

impl RocksMemtable {
    /// The memtables measured by default.
    pub const DEFAULT: &[RocksMemtable] = &[RocksMemtable::RocksdbFinger, RocksMemtable::Rocksdb];

    /// Bytes per entry besides key and value, generously; a hash table's buckets included.
    fn overhead_bytes(self) -> usize {
        match self {
            RocksMemtable::Rocksdb
            | RocksMemtable::RocksdbFinger
            | RocksMemtable::RocksdbPointLookup => 128,
            // Each bucket has its own list head.
            RocksMemtable::RocksdbHashSkipList | RocksMemtable::RocksdbHashLinkList => 512,
        }
    }

    /// RocksDB's options, and the lines of its OPTIONS file that prove them.
    fn options(self, requirements: &StoreRequirements) -> Result<(Options, Vec<Setting>)> {
        let mut options = Options::default();
        let mut settings = Vec::new();
        match self {
            RocksMemtable::Rocksdb => {}
            RocksMemtable::RocksdbFinger => {
                options = options
                    .get_options_from_string("memtable_batch_lookup_optimization=true")
                    .context("this version of RocksDB has no finger search")?;
                settings.push(Setting::new("memtable_batch_lookup_optimization", "true"));
            }
            RocksMemtable::RocksdbPointLookup => {
                options.optimize_for_point_lookup(BLOCK_CACHE_MIB);
                settings.extend([
                    Setting::new("memtable_prefix_bloom_size_ratio", "0.02"),
                    Setting::new("memtable_whole_key_filtering", "true"),
                ]);
                take_huge_pages(&mut options, &mut settings);
            }
            RocksMemtable::RocksdbHashSkipList => {
                let factory = MemtableFactory::HashSkipList {
                    bucket_count: bucket_count(requirements),
                    height: BUCKET_HEIGHT,
                    branching_factor: BUCKET_BRANCHING_FACTOR,
                };
                hash_whole_keys(&mut options, &mut settings, factory);
                settings.push(Setting::new("memtable_factory", "HashSkipListRepFactory"));
            }
            RocksMemtable::RocksdbHashLinkList => {
                let bucket_count = bucket_count(requirements);
                let factory = MemtableFactory::HashLinkList { bucket_count };
                hash_whole_keys(&mut options, &mut settings, factory);
                settings.push(Setting::new("memtable_factory", "HashLinkListRepFactory"));
            }
        }
        options.create_if_missing(true);
        // Everything stays in one memtable.
        let entries_bytes = requirements.total_bytes(self.overhead_bytes());
        options.set_write_buffer_size(entries_bytes.saturating_add(4 * ARENA_BLOCK_BYTES));
        options.set_disable_auto_compactions(true);
        Ok((options, settings))
    }
}

/// Twice as many buckets as keys: two keys in three have a bucket to themselves.
fn bucket_count(requirements: &StoreRequirements) -> usize {
    usize::try_from(requirements.keys.saturating_mul(2)).unwrap_or(usize::MAX)
}

fn hash_whole_keys(options: &mut Options, settings: &mut Vec<Setting>, factory: MemtableFactory) {
    options.set_prefix_extractor(SliceTransform::create_noop());
    options.set_memtable_factory(factory);
    // Only the skip list supports it.
    options.set_allow_concurrent_memtable_write(false);
    settings.push(Setting::new("prefix_extractor", "rocksdb.Noop"));
    take_huge_pages(options, settings);
}

/// The arena requests reserved huge pages. Where none are left, it allocates blocks that are large
/// enough for transparent huge pages.
fn take_huge_pages(options: &mut Options, settings: &mut Vec<Setting>) {
    options.set_memtable_huge_page_size(HUGE_PAGE_BYTES);
    options.set_arena_block_size(ARENA_BLOCK_BYTES);
    settings.extend([
        Setting::new("memtable_huge_page_size", HUGE_PAGE_BYTES),
        Setting::new("arena_block_size", ARENA_BLOCK_BYTES),
    ]);
}

impl Engine for RocksMemtable {
    fn name(&self) -> &str {
        match self {
            RocksMemtable::Rocksdb => "rocksdb",
            RocksMemtable::RocksdbFinger => "rocksdb-finger",
            RocksMemtable::RocksdbPointLookup => "rocksdb-point-lookup",
            RocksMemtable::RocksdbHashSkipList => "rocksdb-hash-skip-list",
            RocksMemtable::RocksdbHashLinkList => "rocksdb-hash-link-list",
        }
    }

    fn strategies(&self) -> Vec<String> {
        vec![GET.to_owned(), MULTIGET.to_owned()]
    }

    fn open(&self, requirements: &StoreRequirements) -> Result<Box<dyn Store>> {
        let (options, settings) = self.options(requirements)?;
        let directory = requirements.directory()?;
        let store = RocksStore::open(self.name(), &options, directory, Kept::Memtable)?;
        store.check_settings(&settings)?;
        Ok(Box::new(store))
    }
}
