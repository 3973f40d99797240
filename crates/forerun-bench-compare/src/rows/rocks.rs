//! RocksDB as a peer of a table: default settings, filters of 10 bits per key as in Forerun's runs,
//! no compression, and a block cache as large as Forerun's memory for rows and pages.

use super::{Answers, each_batch};
use crate::rocks::{FILTER_BITS, GET, MULTIGET};
use anyhow::{Result, bail};
use forerun_bench::table::contender::{
    Contender, Counters, Reader, StoreRequirements, TieredTable,
};
use rocksdb::{
    BlockBasedOptions, Cache, ColumnFamilyDescriptor, DB, DBCompressionType,
    DEFAULT_COLUMN_FAMILY_NAME, Options, WriteBatch, WriteOptions,
};

/// RocksDB, with one of its ways to look up.
#[derive(Clone, Copy, Debug)]
pub enum RocksRows {
    /// One `Get` after the other.
    Get,
    /// `MultiGet`.
    MultiGet,
}

fn open(requirements: &StoreRequirements<'_>, cache_bytes: usize) -> Result<DB> {
    let mut blocks = BlockBasedOptions::default();
    blocks.set_block_cache(&Cache::new_lru_cache(cache_bytes));
    blocks.set_bloom_filter(FILTER_BITS, false);
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_block_based_table_factory(&blocks);
    options.set_compression_type(DBCompressionType::None);
    // The default column family is opened by name, because its MultiGet takes a handle.
    let family = ColumnFamilyDescriptor::new(DEFAULT_COLUMN_FAMILY_NAME, options.clone());
    Ok(DB::open_cf_descriptors(
        &options,
        requirements.dir.join("rows"),
        [family],
    )?)
}

impl Contender for RocksRows {
    // Each has its own name, and with it its own directory, because a store can be open only once.
    fn name(&self) -> &str {
        match self {
            RocksRows::Get => "rocksdb-get",
            RocksRows::MultiGet => "rocksdb",
        }
    }

    fn policy(&self) -> String {
        match self {
            RocksRows::Get => GET,
            RocksRows::MultiGet => MULTIGET,
        }
        .to_owned()
    }

    fn load(&self, requirements: &StoreRequirements<'_>, report: &dyn Fn(u64)) -> Result<()> {
        let db = open(requirements, requirements.cache_bytes as usize)?;
        let mut write = WriteOptions::default();
        write.disable_wal(true);
        each_batch(requirements, report, |entries| {
            let mut batch = WriteBatch::default();
            for (key, row) in entries {
                batch.put(key, row);
            }
            Ok(db.write_opt(batch, &write)?)
        })?;
        db.flush()?;
        db.compact_range(None::<&[u8]>, None::<&[u8]>);
        Ok(())
    }

    fn open(
        &self,
        requirements: &StoreRequirements<'_>,
        budget_rows: u64,
    ) -> Result<Box<dyn TieredTable>> {
        let budget_bytes = budget_rows * requirements.row.bytes() as u64;
        let db = open(
            requirements,
            (budget_bytes + requirements.cache_bytes) as usize,
        )?;
        Ok(Box::new(Rows { db, options: *self }))
    }
}

struct Rows {
    db: DB,
    options: RocksRows,
}

impl TieredTable for Rows {
    fn reader(&self) -> Result<Box<dyn Reader + '_>> {
        Ok(Box::new(RowReader {
            rows: self,
            keys: Vec::new(),
        }))
    }

    fn fetch(&self, _: &[u64]) -> Result<()> {
        Ok(())
    }

    fn wait_idle(&self) {}

    fn counters(&self) -> Counters {
        Counters::default()
    }
}

struct RowReader<'a> {
    rows: &'a Rows,
    keys: Vec<[u8; 8]>,
}

impl Reader for RowReader<'_> {
    fn find(&mut self, keys: &[u64], rows: &mut [u8], found: &mut [bool]) -> Result<usize> {
        let db = &self.rows.db;
        let mut answers = Answers::new(rows, found);
        match self.rows.options {
            RocksRows::Get => {
                for (at, key) in keys.iter().enumerate() {
                    answers.put(at, db.get_pinned(key.to_be_bytes())?.as_deref())?;
                }
            }
            RocksRows::MultiGet => {
                let Some(family) = db.cf_handle(DEFAULT_COLUMN_FAMILY_NAME) else {
                    bail!("RocksDB has lost its default column family");
                };
                self.keys.clear();
                self.keys.extend(keys.iter().map(|key| key.to_be_bytes()));
                let values = db.batched_multi_get_cf(family, &self.keys, false);
                for (at, value) in values.into_iter().enumerate() {
                    answers.put(at, value?.as_deref())?;
                }
            }
        }
        Ok(answers.hits)
    }
}
