//! Pooled lookups: each bag of keys gives one row, the sum or the mean of the dequantized rows of
//! its keys. [`forerun_core::pooling`] defines formats and arithmetic.

use super::batch_arrays::{ArrayUse, DeviceArray, PooledArrays, PooledBatch, place_optional};
use super::device_pooled::{op_of, sums_bytes};
use super::error::TableError;
use super::gpu_table::{Engine, GpuTable};
use super::kernel;
use super::params::TableOp;
use super::table_command::{Prepared, TableCommand};
use forerun_core::pooling::{Bags, PoolingOptions};

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

    /// The bytes of [`PooledArrays::sums`] that a lookup of this many bags needs: 4 per value if
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
    /// [`TableError::Pooling`]: the rows do not have the format.
    /// [`GpuError::NoDevice`](crate::GpuError::NoDevice) if the table is not on a GPU; a buffer is
    /// missing, too short or on another device; the driver's error.
    pub fn pooled_command<'a>(
        &'a self,
        options: &PoolingOptions,
        batch: &PooledBatch<'a>,
        concurrent_writers: bool,
    ) -> Result<TableCommand<'a>, TableError> {
        self.on_its_gpu(self.pooled_op(options, batch, concurrent_writers)?)
    }

    pub(super) fn pooled_op<A: DeviceArray>(
        &self,
        options: &PoolingOptions,
        batch: &PooledArrays<A>,
        concurrent_writers: bool,
    ) -> Result<Prepared, TableError> {
        let dim = options.dim(self.options().row_bytes)?;
        let max = self.device()?.backend().blocks_max();
        let sums = sums_bytes(options, dim, batch.bags);
        if sums != 0 && batch.sums.is_none() {
            return Err(TableError::Missing {
                operation: "find_pooled",
                what: "memory for sums",
            });
        }
        let gpu = self.gpu();
        let at = |array: Option<A>, needs: ArrayUse| place_optional(gpu, array, needs);
        let values = dim.saturating_mul(batch.bags);
        let pooled = ArrayUse::elements("the pooled rows", values, options.output.bytes());
        let offsets = ArrayUse::words("the offsets", batch.bags.saturating_add(1));
        let op = TableOp {
            table: *self.state(),
            count: batch.count,
            count_at: at(batch.count_at, ArrayUse::words("the number of keys", 1))?,
            keys: at(Some(batch.keys), ArrayUse::words("the keys", batch.count))?,
            bags: batch.bags,
            offsets: at(Some(batch.offsets), offsets)?,
            weights: at(
                batch.weights,
                ArrayUse::elements("the weights", batch.count, 4),
            )?,
            rows_out: at(Some(batch.rows_out), pooled)?,
            found_out: at(
                batch.found_out,
                ArrayUse::elements("the counts of found keys", batch.bags, 4),
            )?,
            sums: match sums {
                // Without a need the sums are in registers or in the output.
                0 => 0,
                bytes => at(batch.sums, ArrayUse::elements("the sums", bytes / 4, 4))?,
            },
            concurrent_writers: concurrent_writers.into(),
            ..op_of(options)
        };
        let launch = kernel::find_pooled(self.state().width, batch.bags, max);
        Ok((launch, op))
    }
}
