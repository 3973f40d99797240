//! Operations on device memory, prepared once and put on streams any number of times.
//!
//! ```text
//!   table.command(operation, &device batch)         ─┐
//!   TableCommand::from_raw(&table, operation, &raw) ─┴─▶   TableCommand: put on a stream, or captured in a graph
//! ```
//!
//! A launch is one call of the driver. It neither allocates nor waits. The kernel chooses how a
//! lookup searches by the table's load, and does so again on each replay.

use super::backend::TableLaunch;
use super::batch::{Condition, LookupMode, Operation};
use super::batch_arrays::{
    ArrayUse, BatchArrays, DeviceArray, DeviceBatch, EntryArrays, EntryBuffers, RawBatch,
    RawEntries, RawPooledBatch, place_optional,
};
use super::device_table::DeviceTable;
use super::error::TableError;
use super::gpu_table::{Engine, GpuTable};
use super::kernel;
use super::params::{EVICTED_OUT, SCAN_COUNT, SCAN_ERASE, SCAN_EXPORT, TableOp};
use crate::driver::{Command, Kernel, Launch, Stream, sealed};
use crate::{Gpu, GpuError};
use forerun_core::pooling::PoolingOptions;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;

/// An action on the entries that match a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scan {
    /// Count them.
    Count,
    /// Copy them out, with their slots as places.
    Export,
    /// Erase them, unless they are pinned.
    Erase,
}

impl Scan {
    /// Its number for the kernels.
    pub(super) fn number(self) -> u32 {
        match self {
            Scan::Count => SCAN_COUNT,
            Scan::Export => SCAN_EXPORT,
            Scan::Erase => SCAN_ERASE,
        }
    }
}

/// A kernel's launch, and its argument.
pub(super) type Prepared = (TableLaunch, TableOp);

/// An operation that a stream can run.
pub struct TableCommand<'a> {
    gpu: Gpu,
    kernel: Kernel,
    launch: Launch,
    op: TableOp,
    _memory: PhantomData<&'a ()>,
}

impl fmt::Debug for TableCommand<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TableCommand")
            .field("launch", &self.launch)
            .field("op", &self.op)
            .finish()
    }
}

impl GpuTable {
    /// Prepares an operation that changes entries.
    ///
    /// The command borrows the table for as long as it exists. During that time the table's own
    /// operations may be used only where `docs/guide/gpu-table.md` allows them to run concurrently
    /// with it.
    ///
    /// # Errors
    /// [`GpuError::NoDevice`] if the table is not on a GPU; a buffer is missing, too short or on
    /// another device; the driver's error.
    pub fn command<'a>(
        &'a self,
        operation: Operation,
        batch: &DeviceBatch<'a>,
    ) -> Result<TableCommand<'a>, TableError> {
        self.on_its_gpu(self.write_op(operation, batch)?)
    }

    /// Prepares a lookup. `concurrent_writers` means that operations that change entries may run at
    /// the same time: rows that they change are then read again.
    ///
    /// # Errors
    /// Those of [`GpuTable::command`].
    pub fn lookup_command<'a>(
        &'a self,
        lookup: LookupMode,
        batch: &DeviceBatch<'a>,
        concurrent_writers: bool,
    ) -> Result<TableCommand<'a>, TableError> {
        self.on_its_gpu(self.lookup_op(lookup, batch, concurrent_writers)?)
    }

    /// Prepares a scan of all entries in a range of slots. It adds the number of matching entries
    /// to `entries_out.count`. [`Scan::Export`] also fills the rest of `entries_out`, which needs
    /// space for one entry per slot of the range.
    ///
    /// # Errors
    /// Those of [`GpuTable::command`].
    pub fn scan_command<'a>(
        &'a self,
        scan: Scan,
        slots: Range<u64>,
        condition: &Condition,
        entries_out: &EntryBuffers<'a>,
    ) -> Result<TableCommand<'a>, TableError> {
        self.on_its_gpu(self.scan_op(scan, slots, condition, entries_out)?)
    }

    /// Prepares to clear the table. Pinned entries are removed too.
    ///
    /// # Errors
    /// Those of [`GpuTable::command`].
    pub fn clear_command(&self) -> Result<TableCommand<'_>, TableError> {
        self.on_its_gpu(self.clear_op()?)
    }

    /// The table's arrays on a device.
    pub(super) fn device(&self) -> Result<&DeviceTable, TableError> {
        match self.engine() {
            Engine::Cpu(_) => Err(GpuError::NoDevice.into()),
            Engine::Device(table) => Ok(table),
        }
    }

    pub(super) fn write_op<A: DeviceArray>(
        &self,
        operation: Operation,
        batch: &BatchArrays<A>,
    ) -> Result<Prepared, TableError> {
        self.expect_arrays(operation, batch)?;
        let backend = self.device()?.backend();
        let op = TableOp {
            actions: operation.actions(),
            element: operation.element() as u32,
            ..self.op_of(batch, operation.row_align())?
        };
        let launch = kernel::write(self.state().width, batch.count, backend.blocks_max());
        Ok((launch, op))
    }

    /// Checks that a batch has the arrays that the operation needs.
    pub(super) fn expect_arrays<A>(
        &self,
        operation: Operation,
        batch: &BatchArrays<A>,
    ) -> Result<(), TableError> {
        let has = (
            batch.rows.is_some(),
            batch.scores.is_some(),
            batch.flags.is_some(),
        );
        operation.check(self.options().row_bytes, has.0, has.1, has.2)?;
        if operation.actions() & EVICTED_OUT != 0 && batch.entries_out.is_none() {
            return Err(TableError::Missing {
                operation: operation.name(),
                what: "output for evicted entries",
            });
        }
        if batch.epoch >> 32 != 0 {
            return Err(TableError::Epoch { epoch: batch.epoch });
        }
        Ok(())
    }

    pub(super) fn lookup_op<A: DeviceArray>(
        &self,
        lookup: LookupMode,
        batch: &BatchArrays<A>,
        concurrent_writers: bool,
    ) -> Result<Prepared, TableError> {
        let (width, max) = (self.state().width, self.device()?.backend().blocks_max());
        let (by_slots, strategy) = kernel::find_slots(lookup, width, batch.count, max)?;
        let with_rows = batch.rows_out.is_some() || batch.scores_out.is_some();
        let launch = if with_rows {
            kernel::find_rows(width, batch.count, max)
        } else if batch.entries_out.is_some() && !by_slots.kernel.contains("slots") {
            // Only lookups with tiles list the missed keys.
            kernel::find_slots(LookupMode::ByLoad, width, batch.count, max)?.0
        } else {
            by_slots
        };
        #[cfg(feature = "study")]
        if concurrent_writers && !with_rows && !lookup.may_run_beside_writers() {
            return Err(TableError::BesideWriters {
                lookup: lookup.name(),
            });
        }
        let op = TableOp {
            lookup: strategy,
            concurrent_writers: concurrent_writers.into(),
            ..self.op_of(batch, 1)?
        };
        Ok((launch, op))
    }

    pub(super) fn scan_op<A: DeviceArray>(
        &self,
        scan: Scan,
        slots: Range<u64>,
        condition: &Condition,
        entries_out: &EntryArrays<A>,
    ) -> Result<Prepared, TableError> {
        let backend = self.device()?.backend();
        let first = slots.start.min(self.capacity());
        let n = slots.end.min(self.capacity()).saturating_sub(first);
        let entries = if scan == Scan::Export { n } else { 0 };
        let batch = BatchArrays {
            entries_out: Some(*entries_out),
            ..BatchArrays::new(entries_out.keys, entries)
        };
        let op = TableOp {
            count: n,
            first_slot: first,
            score_min: *condition.scores.start(),
            score_max: *condition.scores.end(),
            key_mask: condition.key_mask,
            key_value: condition.key_value,
            scan: scan.number(),
            ..self.op_of(&batch, 1)?
        };
        Ok((kernel::scan(n, backend.blocks_max()), op))
    }

    pub(super) fn clear_op(&self) -> Result<Prepared, TableError> {
        let max = self.device()?.backend().blocks_max();
        let op = TableOp {
            table: *self.state(),
            ..TableOp::default()
        };
        Ok((kernel::clear(self.state().buckets, max), op))
    }

    /// `row_align` is what must divide the address of the input rows.
    fn op_of<A: DeviceArray>(
        &self,
        batch: &BatchArrays<A>,
        row_align: u64,
    ) -> Result<TableOp, TableError> {
        if batch.epoch >> 32 != 0 {
            return Err(TableError::Epoch { epoch: batch.epoch });
        }
        let (n, gpu) = (batch.count, self.gpu());
        let rows = n.saturating_mul(self.options().row_bytes);
        let words = |what, array| place_optional(gpu, array, ArrayUse::words(what, n));
        let word = |what, array| place_optional(gpu, array, ArrayUse::words(what, 1));
        let bytes = |what, array, bytes| place_optional(gpu, array, ArrayUse::bytes(what, bytes));
        let rows_in = ArrayUse {
            align: row_align,
            ..ArrayUse::bytes("the rows", rows)
        };
        let entries_out = batch.entries_out.as_ref();
        Ok(TableOp {
            table: *self.state(),
            count: n,
            count_at: word("the number of keys", batch.count_at)?,
            keys: words("the keys", Some(batch.keys))?,
            rows_in: place_optional(gpu, batch.rows, rows_in)?,
            scores_in: words("the scores", batch.scores)?,
            flags: bytes("the flags", batch.flags, n)?,
            epoch: batch.epoch,
            rows_out: bytes("the row output", batch.rows_out, rows)?,
            scores_out: words("the score output", batch.scores_out)?,
            slots_out: words("the slot output", batch.slots_out)?,
            pointers_out: words("the pointer output", batch.pointers_out)?,
            status_out: bytes("the status output", batch.status_out, n)?,
            out_count: word("the entry output's count", entries_out.map(|e| e.count))?,
            out_keys: words("the entry output's keys", entries_out.map(|e| e.keys))?,
            out_rows: bytes(
                "the entry output's rows",
                entries_out.and_then(|e| e.rows),
                rows,
            )?,
            out_scores: words(
                "the entry output's scores",
                entries_out.and_then(|e| e.scores),
            )?,
            out_places: words(
                "the entry output's positions",
                entries_out.and_then(|e| e.positions),
            )?,
            ..TableOp::default()
        })
    }

    /// The command for a launch on the table's GPU.
    pub(super) fn on_its_gpu(
        &self,
        (launch, op): Prepared,
    ) -> Result<TableCommand<'_>, TableError> {
        let gpu = self.gpu().ok_or(GpuError::NoDevice)?;
        Ok(TableCommand {
            gpu: gpu.clone(),
            kernel: gpu.kernel(launch.kernel)?,
            launch: Launch {
                blocks: launch.blocks,
                threads: launch.threads,
                shared_bytes: 0,
            },
            op,
            _memory: PhantomData,
        })
    }
}

impl<'a> TableCommand<'a> {
    /// [`GpuTable::command`] with arrays by address, such as those of another library's tensors. An
    /// address is the host's or the device's, of device memory or of pinned host memory.
    ///
    /// Checked are null addresses, alignments, and whether the first and the last byte of each
    /// array are in memory that the table's device can use.
    ///
    /// ```no_run
    /// use forerun_gpu::table::{GpuTable, Operation, RawBatch, TableCommand};
    /// use forerun_gpu::{Command, Stream};
    /// use std::ffi::c_void;
    ///
    /// /// `keys` and `rows` are the `data_ptr()` of tensors, `stream` is PyTorch's current stream.
    /// unsafe fn insert(
    ///     table: &GpuTable, count: u64, keys: u64, rows: u64, stream: *mut c_void,
    /// ) -> Result<(), Box<dyn std::error::Error>> {
    ///     let batch = RawBatch { rows: Some(rows), ..RawBatch::new(keys, count) };
    ///     let gpu = table.gpu().ok_or("the table is on the CPU")?;
    ///     // SAFETY: the caller keeps the tensors and the stream until the work is done.
    ///     unsafe {
    ///         let insert = TableCommand::from_raw(table, Operation::InsertOrAssign, &batch)?;
    ///         insert.enqueue(&Stream::borrowed(gpu, stream))?;
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Safety
    /// For as long as the command exists, and until each stream has run it, all arrays must have
    /// the lengths that the batch's fields require. While a stream runs it, nothing else may write
    /// what it reads, or use what it writes. `rows_out` may be `rows`, and `scores_out` may be
    /// `scores`.
    ///
    /// # Errors
    /// [`GpuError::NoDevice`] if the table is not on a GPU; an array is missing; [`GpuError`]: an
    /// address is null, misaligned, or not that of memory which the device can use.
    pub unsafe fn from_raw(
        table: &'a GpuTable,
        operation: Operation,
        batch: &RawBatch,
    ) -> Result<TableCommand<'a>, TableError> {
        table.on_its_gpu(table.write_op(operation, batch)?)
    }

    /// [`GpuTable::lookup_command`] with arrays by address.
    ///
    /// # Safety
    /// As for [`TableCommand::from_raw`].
    ///
    /// # Errors
    /// Those of [`TableCommand::from_raw`].
    pub unsafe fn lookup_from_raw(
        table: &'a GpuTable,
        lookup: LookupMode,
        batch: &RawBatch,
        concurrent_writers: bool,
    ) -> Result<TableCommand<'a>, TableError> {
        table.on_its_gpu(table.lookup_op(lookup, batch, concurrent_writers)?)
    }

    /// [`GpuTable::scan_command`] with arrays by address.
    ///
    /// # Safety
    /// As for [`TableCommand::from_raw`].
    ///
    /// # Errors
    /// Those of [`TableCommand::from_raw`].
    pub unsafe fn scan_from_raw(
        table: &'a GpuTable,
        scan: Scan,
        slots: Range<u64>,
        condition: &Condition,
        entries_out: &RawEntries,
    ) -> Result<TableCommand<'a>, TableError> {
        table.on_its_gpu(table.scan_op(scan, slots, condition, entries_out)?)
    }

    /// [`GpuTable::pooled_command`] with arrays by address.
    ///
    /// # Safety
    /// As for [`TableCommand::from_raw`].
    ///
    /// # Errors
    /// Those of [`GpuTable::pooled_command`] and of [`TableCommand::from_raw`].
    pub unsafe fn pooled_from_raw(
        table: &'a GpuTable,
        options: &PoolingOptions,
        batch: &RawPooledBatch,
        concurrent_writers: bool,
    ) -> Result<TableCommand<'a>, TableError> {
        table.on_its_gpu(table.pooled_op(options, batch, concurrent_writers)?)
    }
}

impl sealed::Sealed for TableCommand<'_> {}

impl Command for TableCommand<'_> {
    fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    unsafe fn enqueue(&self, stream: &Stream) -> Result<(), GpuError> {
        stream.expect(&self.gpu, "the table's operation")?;
        // SAFETY: the kernels of table.list take a TableOp, whose layout both sides assert. `op_of`
        // has checked that every array is long enough, or `from_raw`'s caller guarantees it. The
        // arrays and the table live as long as the command is borrowed.
        unsafe { self.kernel.launch(stream, self.launch, &self.op) }
    }
}
