//! RocksDB with the layout of openraft's example store (`openraft-rocksstore` 0.9): entries by
//! big-endian index in one column family, the state machine's pairs in another, and what is applied
//! in a third.
//!
//! The example makes a put for each entry and each pair, encodes entries as JSON, and syncs what it
//! applies. It does not sync appended entries, although openraft counts on it; here they are synced
//! once for each call.

use std::path::Path;

use anyhow::{Context, Result};
use forerun_raft::{Op, Request};
use openraft::EntryPayload;
use rocksdb::{
    BlockBasedOptions, Cache, ColumnFamily, ColumnFamilyDescriptor, DB, Options, WriteBatch,
    WriteOptions,
};

use super::node::{Entry, KEY_BYTES, Node};
use crate::copied::Copied;
use crate::rocks::FILTER_BITS;

const LOG: &str = "log";
const META: &str = "meta";
const KV: &str = "kv";
const APPLIED: &str = "applied";

/// How entries are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writes {
    /// As the example does: a put for each, JSON, and a sync at the end of each call.
    Example,
    /// As well as RocksDB can: one batch for each call, entries in postcard's format, and a sync
    /// for appended entries only. The block cache is as large as Forerun's, and there are filters.
    Batch,
}

pub struct RocksNode {
    db: DB,
    writes: Writes,
    copied: Copied,
}

impl RocksNode {
    pub fn open(directory: &Path, writes: Writes) -> Result<RocksNode> {
        let mut options = Options::default();
        options.create_if_missing(true);
        options.create_missing_column_families(true);
        let mut of_family = Options::default();
        if writes == Writes::Batch {
            let mut blocks = BlockBasedOptions::default();
            let bytes = forerun_db::Options::default().cache_bytes;
            blocks.set_block_cache(&Cache::new_lru_cache(bytes));
            blocks.set_bloom_filter(FILTER_BITS, false);
            of_family.set_block_based_table_factory(&blocks);
        }
        let families = [LOG, META, KV];
        let families = families.map(|name| ColumnFamilyDescriptor::new(name, of_family.clone()));
        Ok(RocksNode {
            db: DB::open_cf_descriptors(&options, directory, families)?,
            writes,
            copied: Copied::default(),
        })
    }

    fn family(&self, name: &str) -> Result<&ColumnFamily> {
        let family = self.db.cf_handle(name);
        family.with_context(|| format!("RocksDB has lost its column family {name}"))
    }
}

impl Node for RocksNode {
    fn name(&self) -> &str {
        match self.writes {
            Writes::Example => "rocksdb-example",
            Writes::Batch => "rocksdb",
        }
    }

    fn durability(&self, case: &str) -> &'static str {
        match (case, self.writes) {
            ("append", _) | ("apply", Writes::Example) => "synced",
            ("apply", Writes::Batch) => "not synced",
            _ => "",
        }
    }

    fn append(&mut self, entries: Vec<Entry>) -> Result<()> {
        let log = self.family(LOG)?;
        match self.writes {
            Writes::Example => {
                for entry in &entries {
                    let index = entry.log_id.index.to_be_bytes();
                    self.db.put_cf(log, index, serde_json::to_vec(entry)?)?;
                }
                self.db.flush_wal(true)?;
            }
            Writes::Batch => {
                let mut batch = WriteBatch::default();
                for entry in &entries {
                    let index = entry.log_id.index.to_be_bytes();
                    batch.put_cf(log, index, postcard::to_stdvec(entry)?);
                }
                let mut options = WriteOptions::default();
                options.set_sync(true);
                self.db.write_opt(batch, &options)?;
            }
        }
        Ok(())
    }

    fn apply(&mut self, entries: Vec<Entry>) -> Result<()> {
        let (meta, kv) = (self.family(META)?, self.family(KV)?);
        match self.writes {
            Writes::Example => {
                for entry in &entries {
                    let applied = serde_json::to_vec(&entry.log_id)?;
                    self.db.put_cf(meta, APPLIED, applied)?;
                    for (key, value) in puts(entry) {
                        self.db.put_cf(kv, key, value)?;
                    }
                }
                self.db.flush_wal(true)?;
            }
            Writes::Batch => {
                let mut batch = WriteBatch::default();
                for (key, value) in entries.iter().flat_map(puts) {
                    batch.put_cf(kv, key, value);
                }
                if let Some(last) = entries.last() {
                    batch.put_cf(meta, APPLIED, postcard::to_stdvec(&last.log_id)?);
                }
                self.db.write(batch)?;
            }
        }
        Ok(())
    }

    fn compact(&mut self) -> Result<()> {
        let kv = self.family(KV)?;
        self.db.flush_cf(kv)?;
        self.db.compact_range_cf(kv, None::<&[u8]>, None::<&[u8]>);
        Ok(())
    }

    fn multi_get(&mut self, keys: &[[u8; KEY_BYTES]]) -> Result<usize> {
        self.copied.clear();
        let kv = self.db.cf_handle(KV);
        let kv = kv.context("RocksDB has lost a column family")?;
        let keys = keys.iter().map(<[u8; KEY_BYTES]>::as_slice);
        for value in self.db.batched_multi_get_cf(kv, keys, false) {
            self.copied.keep(value?.as_deref());
        }
        Ok(self.copied.found())
    }
}

/// The pairs that an entry puts.
fn puts(entry: &Entry) -> impl Iterator<Item = (&[u8], &[u8])> {
    let ops = match &entry.payload {
        EntryPayload::Normal(request) => Request::ops(request),
        _ => &[],
    };
    ops.iter().filter_map(|op| match op {
        Op::Put { key, value } => Some((&key[..], &value[..])),
        _ => None,
    })
}
