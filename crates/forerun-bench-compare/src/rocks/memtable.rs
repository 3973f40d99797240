//! RocksDB's memtable: everything in one memtable, no log, nothing ever flushed.

use super::{GET, Kept, MULTIGET, RocksStore};
use anyhow::Result;
use forerun_bench::engine::{Engine, Store, StoreRequirements};
use rocksdb::Options;

/// Whether RocksDB's batches use the finger search.
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

    fn open(&self, requirements: &StoreRequirements) -> Result<Box<dyn Store>> {
        let on = self.finger == FingerSearch::On;
        let mut options = Options::default()
            .get_options_from_string(format!("memtable_batch_lookup_optimization={on}"))?;
        options.create_if_missing(true);
        // Everything stays in one memtable.
        options.set_write_buffer_size(requirements.total_bytes(128).saturating_add(64 << 20));
        options.set_disable_auto_compactions(true);
        Ok(Box::new(RocksStore::open(
            &options,
            requirements.directory()?,
            Kept::InPlace,
        )?))
    }
}
