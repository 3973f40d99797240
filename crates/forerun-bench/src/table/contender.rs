//! The interface of a table to be measured, and Forerun's implementation of it.
//!
//! A peer implements the four traits here, and is then passed to [`run_with`](super::run_with).

use super::access::{Keys, push_row};
use super::args::admission_name;
use anyhow::{Context, Result};
use forerun_db::{Db, Options};
use forerun_table::{Admission, Background, EvictStrategy, RowType, Table};
use std::path::{Path, PathBuf};

/// Rows loaded at a time.
const LOAD_BATCH: u64 = 4096;

/// The requirements for a store of rows.
#[derive(Clone, Debug)]
pub struct StoreRequirements<'n> {
    /// The rows' shape.
    pub row: RowType,
    /// Their keys.
    pub keys: &'n Keys,
    /// The maximum cache that the store may use besides the budget of rows, in bytes. A peer with a
    /// single cache adds it to that.
    pub cache_bytes: u64,
    /// Its own directory.
    pub dir: &'n Path,
}

/// Something that stores rows.
pub trait Contender {
    /// Its name.
    fn name(&self) -> &str;

    /// The policy by which rows stay in memory.
    fn policy(&self) -> String;

    /// Writes all rows to disk, and calls `report` with the number of rows so far.
    ///
    /// # Errors
    /// Its own errors.
    fn load(&self, requirements: &StoreRequirements<'_>, report: &dyn Fn(u64)) -> Result<()>;

    /// Opens the loaded store, with memory for this many rows.
    ///
    /// # Errors
    /// Its own errors.
    fn open(
        &self,
        requirements: &StoreRequirements<'_>,
        budget_rows: u64,
    ) -> Result<Box<dyn TieredTable>>;
}

/// Rows in memory and on disk.
pub trait TieredTable: Sync {
    /// A thread's handle for lookups.
    ///
    /// # Errors
    /// Its own errors.
    fn reader(&self) -> Result<Box<dyn Reader + '_>>;

    /// Moves these rows into memory, if that is supported.
    ///
    /// # Errors
    /// Its own errors.
    fn fetch(&self, keys: &[u64]) -> Result<()>;

    /// Waits until no rows are being moved.
    fn wait_idle(&self);

    /// Counts since it was opened.
    fn counters(&self) -> Counters;
}

/// A thread's lookups.
pub trait Reader {
    /// Copies the found rows to their positions, sets `found`, and returns the number of found
    /// rows.
    ///
    /// # Errors
    /// Its own errors.
    fn find(&mut self, keys: &[u64], rows: &mut [u8], found: &mut [bool]) -> Result<usize>;
}

/// Counts; a peer that does not provide them leaves them at 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Keys looked up.
    pub keys: u64,
    /// Rows found in memory.
    pub host_hits: u64,
    /// Bytes of rows that moved between memory and disk.
    pub moved_bytes: u64,
    /// Bytes of memory.
    pub host_bytes: u64,
}

/// [`Table`], with some policies.
#[derive(Clone, Copy, Debug)]
pub struct ForerunTables {
    /// Which rows are demoted.
    pub evict_strategy: EvictStrategy,
    /// Which rows are promoted.
    pub admission: Admission,
    /// Bytes of the store's pages, if not the table's default.
    pub page_bytes: Option<usize>,
    /// Which thread moves rows.
    pub background: Background,
}

impl ForerunTables {
    fn table(
        &self,
        store: PathBuf,
        requirements: &StoreRequirements<'_>,
        rows: u64,
    ) -> Result<Table> {
        let builder = Table::builder(requirements.row.dtype, requirements.row.dim)
            .host_capacity(rows.max(1) as usize)
            .path(store)
            .evict_strategy(self.evict_strategy)
            .admission(self.admission)
            .background(self.background);
        let mut options = builder
            .default_store_options()
            .cache_bytes(requirements.cache_bytes as usize);
        if let Some(page_bytes) = self.page_bytes {
            options.run.page_bytes = page_bytes;
        }
        Ok(builder.store_options(options).open()?)
    }
}

impl Contender for ForerunTables {
    fn name(&self) -> &str {
        "forerun"
    }

    fn policy(&self) -> String {
        format!(
            "{}, {}",
            self.evict_strategy.name(),
            admission_name(self.admission)
        )
    }

    fn load(&self, requirements: &StoreRequirements<'_>, report: &dyn Fn(u64)) -> Result<()> {
        let store = loaded_store(requirements.dir);
        if store.exists() {
            // Another policy has already loaded the same rows.
            return Ok(());
        }
        let table = self.table(store.clone(), requirements, 1)?;
        let mut rows = Vec::new();
        for from in (0..requirements.keys.len()).step_by(LOAD_BATCH as usize) {
            let keys = requirements.keys.part(from, from + LOAD_BATCH);
            rows.clear();
            keys.iter()
                .for_each(|&key| push_row(key, requirements.row, &mut rows));
            table.import_rows(&keys, &rows)?;
            report(from + keys.len() as u64);
        }
        table.close().context("closing the loaded table")?;
        // Wait until the store is idle, so that measurements do not wait for the rest of the load.
        let db = Db::open(store, Options::default())?;
        db.compact()?;
        Ok(db.close()?)
    }

    fn open(
        &self,
        requirements: &StoreRequirements<'_>,
        budget_rows: u64,
    ) -> Result<Box<dyn TieredTable>> {
        // Each policy has its own store, linked to the same files, since all are open at once.
        let store = requirements.dir.join(self.policy().replace(", ", "-"));
        if !store.exists() {
            let loaded = Db::open(loaded_store(requirements.dir), Options::default())?;
            loaded.checkpoint(&store)?;
            loaded.close()?;
        }
        Ok(Box::new(self.table(store, requirements, budget_rows)?))
    }
}

fn loaded_store(dir: &Path) -> PathBuf {
    dir.join("loaded")
}

impl TieredTable for Table {
    fn reader(&self) -> Result<Box<dyn Reader + '_>> {
        Ok(Box::new(self))
    }

    fn fetch(&self, keys: &[u64]) -> Result<()> {
        self.prefetch(keys)?;
        Ok(())
    }

    fn wait_idle(&self) {
        Table::wait_idle(self);
    }

    fn counters(&self) -> Counters {
        let stats = self.stats();
        Counters {
            keys: stats.counts.find_keys,
            host_hits: stats.counts.host_hits,
            moved_bytes: stats.moved_bytes(),
            host_bytes: stats.host_bytes,
        }
    }
}

impl Reader for &Table {
    fn find(&mut self, keys: &[u64], rows: &mut [u8], found: &mut [bool]) -> Result<usize> {
        Ok(Table::find(self, keys, rows, found)?)
    }
}
