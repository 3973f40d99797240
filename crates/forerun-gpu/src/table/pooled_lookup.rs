//! Pooled lookups: each bag of keys gives one row, the sum or the mean of the dequantized rows of
//! its keys. [`forerun_core::pooling`] defines formats and arithmetic.

use super::device_pooled::{op_of, sums_bytes};
use super::error::TableError;
use super::gpu_table::{Engine, GpuTable};
use super::kernel;
use super::params::TableOp;
use super::table_command::{TableCommand, blocks_of, prepared};
use crate::GpuError;
use crate::driver::DeviceBuffer;
use forerun_core::pooling::{Bags, PoolingOptions};

/// Bags in device memory. Each array starts at the first byte of its own buffer.
#[derive(Clone, Copy, Debug)]
pub struct PooledBatch<'a> {
    /// Number of keys, or their maximum if `count_at` is set.
    pub count: u64,
    /// One u64, read when the operation runs: the number of keys.
    pub count_at: Option<&'a DeviceBuffer>,
    /// The keys, u64.
    pub keys: &'a DeviceBuffer,
    /// Number of bags.
    pub bags: u64,
    /// One u64 per bag and one more: bag `b` has the keys from `offsets[b]` to `offsets[b + 1]`. An
    /// offset beyond the number of keys counts as that number, and a bag that ends before it begins
    /// is empty.
    pub offsets: &'a DeviceBuffer,
    /// One f32 per key. Without them, each is 1.
    pub weights: Option<&'a DeviceBuffer>,
    /// Output: one pooled row per bag, concatenated.
    pub rows_out: &'a DeviceBuffer,
    /// Output: one u32 per bag, the number of its keys that were found.
    pub found_out: Option<&'a DeviceBuffer>,
    /// Memory for sums, which the lookup overwrites: see [`GpuTable::pooled_sums_bytes`].
    pub sums: Option<&'a DeviceBuffer>,
}

impl GpuTable {
    /// Looks up the keys of each bag, dequantizes their rows and adds them up. Writes one pooled
    /// row per bag to `rows_out`, and to `found` how many of the bag's keys are present. An absent
    /// key counts like a row of zeros, and an empty bag gives zeros. Keys may repeat.
    ///
    /// The result is the same, bit for bit, on a GPU and on the CPU: see
    /// [`forerun_core::pooling`].
    ///
    /// ```
    /// use forerun_gpu::table::{Bags, GpuTable, PoolingOptions, RowFormat, TableOptions};
    ///
    /// // Rows of two bytes and their scale.
    /// let mut table = GpuTable::open(TableOptions::new(1000, 6))?;
    /// let (half, two) = (0.5_f32.to_le_bytes(), 2_f32.to_le_bytes());
    /// let rows = [&[1, 2][..], &half, &[10, 0xff], &two].concat();
    /// table.insert_or_assign(&[7, 8], &rows, None)?;
    ///
    /// let bags = Bags::new(&[7, 8, 9, 8], &[0, 3, 3, 4]);
    /// let options = PoolingOptions::new(RowFormat::QInt8Rowwise);
    /// let (mut sums, mut found) = ([0; 3 * 2 * 4], [0; 3]);
    /// table.find_pooled(&bags, &options, &mut sums, &mut found)?;
    /// let expected = [20.5_f32, -1.0, 0.0, 0.0, 20.0, -2.0];
    /// assert_eq!(sums, expected.map(f32::to_le_bytes).concat()[..]);
    /// assert_eq!(found, [2, 0, 1]);
    /// # Ok::<(), forerun_gpu::table::TableError>(())
    /// ```
    ///
    /// # Errors
    /// [`TableError::Pooling`]: the bags, the format or a length is wrong; the device's error.
    pub fn find_pooled(
        &self,
        bags: &Bags<'_>,
        options: &PoolingOptions,
        rows_out: &mut [u8],
        found: &mut [u32],
    ) -> Result<(), TableError> {
        let row_bytes = self.options().row_bytes;
        let dim = bags.check(options, row_bytes, rows_out.len(), found.len())?;
        match self.engine() {
            Engine::Cpu(table) => Ok(table.find_pooled(bags, options, rows_out, found)?),
            Engine::Device(table) => table.find_pooled(bags, options, dim, rows_out, found),
        }
    }

    /// The bytes of [`PooledBatch::sums`] that a lookup of this many bags needs: 4 per value if
    /// rows have more than 256 values and the output is in 16 bits, otherwise none.
    ///
    /// # Errors
    /// The table's rows do not have the format.
    pub fn pooled_sums_bytes(
        &self,
        options: &PoolingOptions,
        bags: u64,
    ) -> Result<u64, TableError> {
        let dim = options.dim(self.options().row_bytes)?;
        Ok(sums_bytes(options, dim, bags))
    }

    /// Prepares a pooled lookup of bags in device memory. `concurrent_writers` means that
    /// operations that change entries may run at the same time: a bag is then added again if one of
    /// its rows changed meanwhile.
    ///
    /// # Errors
    /// [`TableError::Pooling`]: the rows do not have the format. [`GpuError::NoDevice`] if the
    /// table is not on a GPU; a buffer is missing, too short or on another device; the driver's
    /// error.
    pub fn pooled_command<'a>(
        &'a self,
        options: &PoolingOptions,
        batch: &PooledBatch<'a>,
        concurrent_writers: bool,
    ) -> Result<TableCommand<'a>, TableError> {
        let dim = options.dim(self.options().row_bytes)?;
        let gpu = self.gpu().ok_or(GpuError::NoDevice)?;
        let sums = sums_bytes(options, dim, batch.bags);
        if sums != 0 && batch.sums.is_none() {
            return Err(TableError::Missing {
                operation: "find_pooled",
                what: "memory for sums",
            });
        }
        let at = |what, buffer: Option<&DeviceBuffer>, bytes: u64| -> Result<u64, TableError> {
            let Some(buffer) = buffer else { return Ok(0) };
            buffer.expect_bytes(bytes)?;
            gpu.expect(buffer.gpu(), what)?;
            Ok(buffer.address())
        };
        let of = |each: u64, number: u64| number.saturating_mul(each);
        let rows = of(options.output.bytes(), of(dim, batch.bags));
        let offsets = of(8, batch.bags.saturating_add(1));
        let op = TableOp {
            table: *self.state(),
            count: batch.count,
            count_at: at("the number of keys", batch.count_at, 8)?,
            keys: at("the keys", Some(batch.keys), of(8, batch.count))?,
            bags: batch.bags,
            offsets: at("the offsets", Some(batch.offsets), offsets)?,
            weights: at("the weights", batch.weights, of(4, batch.count))?,
            rows_out: at("the pooled rows", Some(batch.rows_out), rows)?,
            found_out: at(
                "the counts of found keys",
                batch.found_out,
                of(4, batch.bags),
            )?,
            sums: match sums {
                // Without a need the sums are in registers or in the output.
                0 => 0,
                bytes => at("the sums", batch.sums, bytes)?,
            },
            concurrent_writers: concurrent_writers.into(),
            ..op_of(options)
        };
        let launch = kernel::find_pooled(self.state().width, batch.bags, blocks_of(gpu));
        prepared(gpu, launch, op)
    }
}
