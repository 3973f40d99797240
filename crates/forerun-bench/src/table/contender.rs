//! What is asked of a table, ours or a peer's; and ours.
//!
//! A peer implements the four traits here, and is then given to [`run_with`](super::run_with).

use super::access::{Keys, push_row};
use super::args::{admission_name, score_name};
use anyhow::{Context, Result};
use forerun_db::{Db, Options};
use forerun_table::{Admission, Moves, RowType, Score, Table};
use std::path::{Path, PathBuf};

/// Rows loaded at a time.
const LOAD_BATCH: u64 = 4096;

/// What a store of rows is to be like.
#[derive(Clone, Debug)]
pub struct Need<'n> {
    /// The rows' shape.
    pub row: RowType,
    /// Their keys.
    pub keys: &'n Keys,
    /// The most bytes of cache that the store may have besides the budget of rows; for a peer that
    /// knows one cache only, to be added to that.
    pub cache_bytes: u64,
    /// A directory for it alone.
    pub dir: &'n Path,
}

/// Something that keeps rows.
pub trait Contender {
    /// Whose it is.
    fn name(&self) -> &str;

    /// By which policy rows stay in memory.
    fn policy(&self) -> String;

    /// Puts all rows on disk; `told` is called with how many there are so far.
    ///
    /// # Errors
    /// Its own.
    fn load(&self, need: &Need<'_>, told: &dyn Fn(u64)) -> Result<()>;

    /// Opens what was loaded, with room for so many rows in memory.
    ///
    /// # Errors
    /// Its own.
    fn open(&self, need: &Need<'_>, budget_rows: u64) -> Result<Box<dyn Tiers>>;
}

/// Rows in memory and on disk.
pub trait Tiers: Sync {
    /// A thread's way to look up.
    ///
    /// # Errors
    /// Its own.
    fn reader(&self) -> Result<Box<dyn Reader + '_>>;

    /// Brings these rows into memory, where that can be asked for.
    ///
    /// # Errors
    /// Its own.
    fn fetch(&self, keys: &[u64]) -> Result<()>;

    /// Waits until nothing moves.
    fn wait_idle(&self);

    /// What has happened since it was opened.
    fn tally(&self) -> Tally;
}

/// A thread's lookups.
pub trait Reader {
    /// Copies the rows of the keys that are found to their positions, says which are, and gives
    /// their number.
    ///
    /// # Errors
    /// Its own.
    fn find(&mut self, keys: &[u64], rows: &mut [u8], found: &mut [bool]) -> Result<usize>;
}

/// Counts of what has happened; a peer that does not tell leaves them at 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Keys looked up.
    pub keys: u64,
    /// Rows that memory had.
    pub host_hits: u64,
    /// Bytes of rows that moved between memory and disk.
    pub moved_bytes: u64,
    /// Bytes of memory.
    pub host_bytes: u64,
}

/// [`Table`], by some policies.
#[derive(Clone, Copy, Debug)]
pub struct Ours {
    /// Which rows leave.
    pub score: Score,
    /// Which come up.
    pub admission: Admission,
    /// Bytes of the store's pages, if not the table's choice.
    pub page_bytes: Option<usize>,
    /// Who moves rows.
    pub moves: Moves,
}

impl Ours {
    fn table(&self, store: PathBuf, need: &Need<'_>, rows: u64) -> Result<Table> {
        let builder = Table::builder(need.row.dtype, need.row.dim)
            .host_capacity(rows.max(1) as usize)
            .path(store)
            .score(self.score)
            .admission(self.admission)
            .moves(self.moves);
        let mut options = Options {
            cache_bytes: need.cache_bytes as usize,
            ..builder.default_store_options()
        };
        if let Some(page_bytes) = self.page_bytes {
            options.run.page_bytes = page_bytes;
        }
        Ok(builder.store_options(options).open()?)
    }
}

impl Contender for Ours {
    fn name(&self) -> &str {
        "forerun"
    }

    fn policy(&self) -> String {
        format!(
            "{}, {}",
            score_name(self.score),
            admission_name(self.admission)
        )
    }

    fn load(&self, need: &Need<'_>, told: &dyn Fn(u64)) -> Result<()> {
        let store = loaded_store(need.dir);
        if store.exists() {
            // Another policy's: the rows are the same.
            return Ok(());
        }
        let table = self.table(store.clone(), need, 1)?;
        let mut rows = Vec::new();
        for from in (0..need.keys.len()).step_by(LOAD_BATCH as usize) {
            let keys = need.keys.part(from, from + LOAD_BATCH);
            rows.clear();
            keys.iter()
                .for_each(|&key| push_row(key, need.row, &mut rows));
            table.import_rows(&keys, &rows)?;
            told(from + keys.len() as u64);
        }
        table.close().context("closing the loaded table")?;
        // At rest: what is measured is not to wait for what is left of the load.
        let db = Db::open(store, Options::default())?;
        db.compact()?;
        Ok(db.close()?)
    }

    fn open(&self, need: &Need<'_>, budget_rows: u64) -> Result<Box<dyn Tiers>> {
        // One of its own, of the same files: all policies' are open at once.
        let store = need.dir.join(self.policy().replace(", ", "-"));
        if !store.exists() {
            let loaded = Db::open(loaded_store(need.dir), Options::default())?;
            loaded.checkpoint(&store)?;
            loaded.close()?;
        }
        Ok(Box::new(self.table(store, need, budget_rows)?))
    }
}

fn loaded_store(dir: &Path) -> PathBuf {
    dir.join("loaded")
}

impl Tiers for Table {
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

    fn tally(&self) -> Tally {
        let stats = self.stats();
        Tally {
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
