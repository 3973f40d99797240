//! Operations on device memory, prepared once and put on streams any number of times.
//!
//! ```text
//!   table.command(operation, &device batch)   ->   TableCommand: put on a stream, or captured in a graph
//! ```
//!
//! A launch is one call of the driver. It neither allocates nor waits. The kernel chooses how a
//! lookup searches by the table's load, and does so again on each replay.

use super::batch::{Condition, LookupMode, Operation};
use super::error::TableError;
use super::gpu_table::GpuTable;
use super::kernel;
use super::params::{EVICTED_OUT, SCAN_COUNT, SCAN_ERASE, SCAN_EXPORT, TableOp};
use crate::driver::{Command, DeviceBuffer, Kernel, Launch, Stream, sealed};
use crate::{Gpu, GpuError};
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;

/// A batch in device memory. Each array starts at the first byte of its own buffer and has u64
/// elements unless stated otherwise.
#[derive(Clone, Copy, Debug)]
pub struct DeviceBatch<'a> {
    /// Number of keys, or their maximum if `count_at` is set.
    pub count: u64,
    /// One u64, read when the operation runs: the number of keys. For example, it can be the
    /// [`EntryBuffers::count`] of the previous operation, which passes missing keys on to the next
    /// operation without the host.
    pub count_at: Option<&'a DeviceBuffer>,
    /// The keys.
    pub keys: &'a DeviceBuffer,
    /// Input rows, concatenated.
    pub rows: Option<&'a DeviceBuffer>,
    /// Input scores.
    pub scores: Option<&'a DeviceBuffer>,
    /// Input flags, one byte each.
    pub flags: Option<&'a DeviceBuffer>,
    /// The epoch of the epoch strategies.
    pub epoch: u64,
    /// Output rows. Those of absent keys are as in [`Answers::rows`](super::Answers::rows).
    pub rows_out: Option<&'a DeviceBuffer>,
    /// Output scores.
    pub scores_out: Option<&'a DeviceBuffer>,
    /// Output slots, `u64::MAX` for absent keys.
    pub slots_out: Option<&'a DeviceBuffer>,
    /// Addresses of rows, 0 for absent keys.
    pub pointers_out: Option<&'a DeviceBuffer>,
    /// The outcome for each key, one byte: the number of a [`Status`](super::Status).
    pub status_out: Option<&'a DeviceBuffer>,
    /// Output for evicted or missing entries.
    pub entries_out: Option<EntryBuffers<'a>>,
}

/// Output for evicted and refused entries or missing keys, with space for one entry per key of the
/// batch.
#[derive(Clone, Copy, Debug)]
pub struct EntryBuffers<'a> {
    /// One u64 to which their number is added. Set it to zero first.
    pub count: &'a DeviceBuffer,
    /// Their keys.
    pub keys: &'a DeviceBuffer,
    /// Their rows (not for missing keys).
    pub rows: Option<&'a DeviceBuffer>,
    /// Their scores (not for missing keys).
    pub scores: Option<&'a DeviceBuffer>,
    /// Their positions in the batch.
    pub positions: Option<&'a DeviceBuffer>,
}

impl<'a> DeviceBatch<'a> {
    /// A batch of `count` keys without other arrays.
    pub fn new(keys: &'a DeviceBuffer, count: u64) -> DeviceBatch<'a> {
        DeviceBatch {
            count,
            count_at: None,
            keys,
            rows: None,
            scores: None,
            flags: None,
            epoch: 0,
            rows_out: None,
            scores_out: None,
            slots_out: None,
            pointers_out: None,
            status_out: None,
            entries_out: None,
        }
    }
}

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
        let gpu = self.gpu().ok_or(GpuError::NoDevice)?;
        let op = TableOp {
            actions: operation.actions(),
            element: operation.element() as u32,
            ..self.op_of(gpu, batch)?
        };
        let launch = kernel::write(self.state().width, batch.count, blocks_of(gpu));
        prepared(gpu, launch, op)
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
        let gpu = self.gpu().ok_or(GpuError::NoDevice)?;
        let (width, max) = (self.state().width, blocks_of(gpu));
        let (by_slots, strategy) = kernel::find_slots(lookup, width, batch.count, max)?;
        let with_rows = batch.rows_out.is_some() || batch.scores_out.is_some();
        let launch = if with_rows {
            kernel::find_rows(width, batch.count, max)
        } else {
            by_slots
        };
        if batch.entries_out.is_some() && !with_rows && !launch.kernel.contains("slots") {
            return Err(TableError::Missing {
                operation: "find_missed",
                what: "a lookup with tiles",
            });
        }
        #[cfg(feature = "study")]
        if concurrent_writers && !with_rows && !lookup.may_run_beside_writers() {
            return Err(TableError::BesideWriters {
                lookup: lookup.name(),
            });
        }
        let op = TableOp {
            lookup: strategy,
            concurrent_writers: concurrent_writers.into(),
            ..self.op_of(gpu, batch)?
        };
        prepared(gpu, launch, op)
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
        let gpu = self.gpu().ok_or(GpuError::NoDevice)?;
        let first = slots.start.min(self.capacity());
        let n = slots.end.min(self.capacity()).saturating_sub(first);
        let entries = if scan == Scan::Export { n } else { 0 };
        let batch = DeviceBatch {
            entries_out: Some(*entries_out),
            ..DeviceBatch::new(entries_out.keys, entries)
        };
        let op = TableOp {
            count: n,
            first_slot: first,
            score_min: *condition.scores.start(),
            score_max: *condition.scores.end(),
            key_mask: condition.key_mask,
            key_value: condition.key_value,
            scan: match scan {
                Scan::Count => SCAN_COUNT,
                Scan::Export => SCAN_EXPORT,
                Scan::Erase => SCAN_ERASE,
            },
            ..self.op_of(gpu, &batch)?
        };
        prepared(gpu, kernel::scan(n, blocks_of(gpu)), op)
    }

    /// Prepares to clear the table. Pinned entries are removed too.
    ///
    /// # Errors
    /// Those of [`GpuTable::command`].
    pub fn clear_command(&self) -> Result<TableCommand<'_>, TableError> {
        let gpu = self.gpu().ok_or(GpuError::NoDevice)?;
        let op = TableOp {
            table: *self.state(),
            ..TableOp::default()
        };
        let launch = kernel::clear(self.state().buckets, blocks_of(gpu));
        prepared(gpu, launch, op)
    }

    fn op_of(&self, gpu: &Gpu, batch: &DeviceBatch<'_>) -> Result<TableOp, TableError> {
        if batch.epoch >> 32 != 0 {
            return Err(TableError::Epoch { epoch: batch.epoch });
        }
        let (n, row_bytes) = (batch.count, self.options().row_bytes);
        let words = n.saturating_mul(8);
        let rows = n.saturating_mul(row_bytes);
        let at = |what, buffer: Option<&DeviceBuffer>, bytes: u64| -> Result<u64, TableError> {
            let Some(buffer) = buffer else { return Ok(0) };
            buffer.expect_bytes(bytes)?;
            gpu.expect(buffer.gpu(), what)?;
            Ok(buffer.address())
        };
        let entries_out = batch.entries_out.as_ref();
        Ok(TableOp {
            table: *self.state(),
            count: n,
            count_at: at("the number of keys", batch.count_at, 8)?,
            keys: at("the keys", Some(batch.keys), words)?,
            rows_in: at("the rows", batch.rows, rows)?,
            scores_in: at("the scores", batch.scores, words)?,
            flags: at("the flags", batch.flags, n)?,
            epoch: batch.epoch,
            rows_out: at("the row output", batch.rows_out, rows)?,
            scores_out: at("the score output", batch.scores_out, words)?,
            slots_out: at("the slot output", batch.slots_out, words)?,
            pointers_out: at("the pointer output", batch.pointers_out, words)?,
            status_out: at("the status output", batch.status_out, n)?,
            out_count: at(
                "the count of the entry output",
                entries_out.map(|g| g.count),
                8,
            )?,
            out_keys: at(
                "the entry output's keys",
                entries_out.map(|g| g.keys),
                words,
            )?,
            out_rows: at(
                "the entry output's rows",
                entries_out.and_then(|g| g.rows),
                rows,
            )?,
            out_scores: at(
                "the entry output's scores",
                entries_out.and_then(|g| g.scores),
                words,
            )?,
            out_places: at(
                "the entry output's positions",
                entries_out.and_then(|g| g.positions),
                words,
            )?,
            ..TableOp::default()
        })
    }
}

pub(super) fn blocks_of(gpu: &Gpu) -> u32 {
    gpu.info().multiprocessors * super::backend::BLOCKS_EACH
}

pub(super) fn prepared<'a>(
    gpu: &Gpu,
    launch: super::backend::TableLaunch,
    op: TableOp,
) -> Result<TableCommand<'a>, TableError> {
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

impl sealed::Sealed for TableCommand<'_> {}

impl Command for TableCommand<'_> {
    fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    unsafe fn enqueue(&self, stream: &Stream) -> Result<(), GpuError> {
        stream.expect(&self.gpu, "the table's operation")?;
        // SAFETY: the kernels of table.list take a TableOp, whose layout both sides assert. `op_of`
        // has checked that every array is long enough. The arrays and the table live as long as the
        // command is borrowed.
        unsafe { self.kernel.launch(stream, self.launch, &self.op) }
    }
}
