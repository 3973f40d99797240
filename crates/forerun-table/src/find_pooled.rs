//! Pooled lookups.
//!
//! ```text
//!   keys of all bags ──find, some at a time──> rows in a buffer ──sums──> one row per bag
//! ```
//!
//! The rows come from whichever tier has them, so they are first collected by position, and then
//! added in the order of the keys. [`forerun_core::pooling`] defines formats and arithmetic.

use crate::inner::Inner;
use crate::interrupt::Interrupt;
use crate::{Dtype, Error, Failures, Result};
use forerun_core::pooling::{BagSum, Bags, PoolingOptions, RowFormat};

/// Bytes of rows that are collected before they are added. They stay in the L2 cache.
const BUFFER_BYTES: usize = 256 << 10;

impl Inner {
    pub(crate) fn find_pooled(
        &self,
        bags: &Bags<'_>,
        options: &PoolingOptions,
        rows: &mut [u8],
        found: &mut [u32],
    ) -> Result<usize> {
        self.check_open()?;
        let row_bytes = self.row.bytes();
        self.check_format(options.format)?;
        bags.check(options, row_bytes as u64, rows.len(), found.len())?;
        let mut sum = BagSum::new(options, row_bytes as u64)?;
        let keys = bags.keys;
        let at_once = (BUFFER_BYTES / row_bytes).clamp(1, keys.len().max(1));
        let mut buffer = vec![0; at_once * row_bytes];
        let mut flags = vec![false; at_once];
        let mut failures = Failures::default();
        let (mut first, mut bag, mut hits) = (0, 0, 0);
        let check_interval = Interrupt::check_interval(row_bytes);
        let mut next_check = check_interval;
        loop {
            // A lookup of so few keys does not ask by itself.
            if first >= next_check {
                self.interrupt.check()?;
                next_check = first + check_interval;
            }
            let end = (first + at_once).min(keys.len());
            let flags = &mut flags[..end - first];
            let collected = &mut buffer[..(end - first) * row_bytes];
            match self.find(&keys[first..end], collected, flags) {
                Ok(found) => hits += found,
                Err(Error::Keys(some)) => {
                    hits += some.served();
                    for (at, key, error) in some.iter() {
                        failures.push(first + at, key, error.clone());
                    }
                }
                Err(error) => return Err(error),
            }
            let row_at = |at: usize| {
                let at = at - first;
                flags[at].then(|| &collected[at * row_bytes..][..row_bytes])
            };
            bag = sum.add_block(bags, first..end, bag, row_at, rows, found);
            first = end;
            if first == keys.len() {
                return failures.into_result(hits);
            }
        }
    }

    /// Rows of 8-bit values and their scale are rows of bytes to the table.
    fn check_format(&self, format: RowFormat) -> Result<()> {
        let fits = match format {
            RowFormat::F32 => self.row.dtype == Dtype::F32,
            RowFormat::F16 => self.row.dtype == Dtype::F16,
            RowFormat::Bf16 => self.row.dtype == Dtype::Bf16,
            _ => matches!(self.row.dtype, Dtype::U8 | Dtype::I8),
        };
        if fits {
            return Ok(());
        }
        Err(Error::RowFormat {
            row: self.row,
            format,
        })
    }
}
