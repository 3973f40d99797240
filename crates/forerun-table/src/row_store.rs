//! A table below the host's rows of a hot pool.

use crate::{Error, Result, Table};
use forerun_gpu::hot_pool::RowStore;

/// A row of the table is a row of the pool, in all its layers.
///
/// ```
/// use forerun_gpu::hot_pool::HostRows;
/// use forerun_table::{Dtype, Table};
///
/// let table = Table::builder(Dtype::F32, 4).open()?;
/// table.insert(&[70, 71], &[1; 2 * 4 * 4])?;
/// let mut host_rows = HostRows::new(8, 4 * 4);
/// let (mut memory, mut rows) = (vec![0; 8 * 16], [0; 2]);
/// host_rows.acquire(&[71, 70], &mut memory, &table, &mut rows)?;
/// assert_eq!(memory[rows[0] as usize * 16..][..16], [1; 16]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl RowStore for Table {
    type Error = Error;

    fn find_rows(&self, keys: &[u64], rows: &mut [u8], found: &mut [bool]) -> Result<()> {
        self.find(keys, rows, found).map(drop)
    }
}
