//! Stores on disk as peers of a table of rows: a row is a value under its key's eight bytes,
//! big-endian.
//!
//! ```text
//!  lmdb.rs    the system's cache, one transaction per batch
//!  rocks.rs   a block cache as large as the budget of rows and Forerun's page cache together
//! ```

#[cfg(feature = "lmdb")]
mod lmdb;
#[cfg(feature = "rocksdb")]
mod rocks;

#[cfg(feature = "lmdb")]
pub use lmdb::LmdbRows;
#[cfg(feature = "rocksdb")]
pub use rocks::RocksRows;

use anyhow::{Result, ensure};
use forerun_bench::table::access::push_row;
use forerun_bench::table::contender::{Contender, StoreRequirements};

/// Rows loaded at a time.
const LOAD_BATCH: u64 = 4096;

/// The peers that are built in.
pub fn all() -> Vec<Box<dyn Contender>> {
    vec![
        #[cfg(feature = "rocksdb")]
        Box::new(RocksRows::Get),
        #[cfg(feature = "rocksdb")]
        Box::new(RocksRows::MultiGet),
        #[cfg(feature = "lmdb")]
        Box::new(LmdbRows),
    ]
}

/// Passes all rows to `put`, ascending by key, a few thousand at a time.
fn each_batch(
    requirements: &StoreRequirements<'_>,
    report: &dyn Fn(u64),
    mut put: impl FnMut(&mut dyn Iterator<Item = ([u8; 8], &[u8])>) -> Result<()>,
) -> Result<()> {
    let mut rows = Vec::new();
    for from in (0..requirements.keys.len()).step_by(LOAD_BATCH as usize) {
        let keys = requirements.keys.part(from, from + LOAD_BATCH);
        rows.clear();
        keys.iter()
            .for_each(|&key| push_row(key, requirements.row, &mut rows));
        let each = rows.chunks_exact(requirements.row.bytes());
        put(&mut keys.iter().map(|key| key.to_be_bytes()).zip(each))?;
        report(from + keys.len() as u64);
    }
    Ok(())
}

/// The buffers for a batch's answers.
struct Answers<'a> {
    rows: &'a mut [u8],
    found: &'a mut [bool],
    row_bytes: usize,
    hits: usize,
}

impl<'a> Answers<'a> {
    fn new(rows: &'a mut [u8], found: &'a mut [bool]) -> Answers<'a> {
        Answers {
            row_bytes: rows.len() / found.len().max(1),
            rows,
            found,
            hits: 0,
        }
    }

    /// Copies the result for key number `at`.
    fn put(&mut self, at: usize, row: Option<&[u8]>) -> Result<()> {
        self.found[at] = row.is_some();
        let Some(row) = row else { return Ok(()) };
        ensure!(
            row.len() == self.row_bytes,
            "a row has {} bytes instead of {}",
            row.len(),
            self.row_bytes
        );
        self.rows[at * self.row_bytes..][..self.row_bytes].copy_from_slice(row);
        self.hits += 1;
        Ok(())
    }
}
