//! A table that several threads share, whose calls take arrays by address and a stream. The C
//! interface and the Python package are made of it.
//!
//! ```text
//!   table on a GPU    arrays in device memory or pinned   checked, one launch on the stream, not waited for
//!   table on the CPU  arrays in ordinary memory           done when the call returns; the stream does not matter
//! ```

use super::batch::{Condition, LookupMode, Operation};
use super::batch_arrays::{RawBatch, RawEntries, RawPooledBatch};
use super::error::TableError;
use super::gpu_table::{Engine, GpuTable};
use super::options::TableOptions;
use super::table_command::{Prepared, Scan};
use crate::driver::{Command, Stream, copy_from_device, copy_to_device, fill_device};
use crate::{Gpu, GpuError};
use forerun_core::pooling::PoolingOptions;
use forerun_core::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::ffi::c_void;
use std::fmt;
use std::ops::Range;
use std::path::Path;

/// A table for callers that have addresses and streams: other languages.
///
/// On a GPU, operations by key, scans and `clear` are one launch on the caller's stream, which is
/// not waited for and may be captured into a graph. `docs/guide/gpu-table.md` says which operations
/// may run at the same time; order others with streams and events. [`size`](StreamTable::size),
/// [`reserve`](StreamTable::reserve), [`save`](StreamTable::save) and [`load`](StreamTable::load)
/// wait for the given stream first, and for their own work.
///
/// Without a GPU, each call is done when it returns, and calls of other threads wait.
///
/// ```
/// use forerun_gpu::table::{GpuTable, LookupMode, Operation, RawBatch, StreamTable, TableOptions};
/// use std::ptr::null_mut;
///
/// let table = StreamTable::new(GpuTable::on_cpu(TableOptions::new(1000, 4))?);
/// let (keys, rows, mut found) = ([7_u64, 8], *b"row1row2", [9_u8; 2]);
/// let batch = RawBatch::new(keys.as_ptr() as u64, 2);
/// // SAFETY: each array has as many elements as there are keys, and outlives the calls, which are
/// // done when they return.
/// unsafe {
///     let insert = RawBatch { rows: Some(rows.as_ptr() as u64), ..batch };
///     table.apply(Operation::InsertOrAssign, &insert, null_mut())?;
///     let contains = RawBatch { status_out: Some(found.as_mut_ptr() as u64), ..batch };
///     table.lookup(LookupMode::ByLoad, &contains, true, null_mut())?;
///     assert_eq!((found, table.size(null_mut())?), ([1, 1], 2));
/// }
/// # Ok::<(), forerun_gpu::table::TableError>(())
/// ```
///
/// # Safety of its calls
/// Until the stream has run an operation, all its arrays must have the lengths that the fields of
/// its batch require; nothing else may write what it reads, or use what it writes. `rows_out` may
/// be `rows`, and `scores_out` may be `scores`. The stream must be null, the default stream, or a
/// stream of the primary context of the table's device.
pub struct StreamTable {
    table: RwLock<GpuTable>,
}

impl StreamTable {
    /// Shares a table.
    pub fn new(table: GpuTable) -> StreamTable {
        StreamTable {
            table: RwLock::new(table),
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, GpuTable> {
        // A panic leaves the table as consistent as an error does.
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, GpuTable> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The table's options.
    pub fn options(&self) -> TableOptions {
        *self.read().options()
    }

    /// The table's GPU, if it is on one.
    pub fn gpu(&self) -> Option<Gpu> {
        self.read().gpu().cloned()
    }

    /// Number of slots.
    pub fn capacity(&self) -> u64 {
        self.read().capacity()
    }

    /// See [`GpuTable::set_max_capacity`].
    ///
    /// # Errors
    /// The capacity is greater than any table can have.
    pub fn set_max_capacity(&self, max_capacity: u64) -> Result<(), TableError> {
        self.write().set_max_capacity(max_capacity)
    }

    /// See [`GpuTable::pooled_sums_bytes`].
    ///
    /// # Errors
    /// The table's rows do not have the format.
    pub fn pooled_sums_bytes(
        &self,
        options: &PoolingOptions,
        bags: u64,
    ) -> Result<u64, TableError> {
        self.read().pooled_sums_bytes(options, bags)
    }

    /// Puts an operation that changes entries on a stream.
    ///
    /// A table on the CPU may grow for it; one on a GPU grows by
    /// [`reserve_for`](StreamTable::reserve_for).
    ///
    /// # Safety
    /// See [the type](StreamTable#safety-of-its-calls).
    ///
    /// # Errors
    /// Those of [`TableCommand::from_raw`](super::TableCommand::from_raw), and of
    /// [`GpuTable::apply`] on the CPU.
    pub unsafe fn apply(
        &self,
        operation: Operation,
        batch: &RawBatch,
        stream: *mut c_void,
    ) -> Result<(), TableError> {
        // SAFETY: the caller guarantees the arrays and the stream.
        unsafe {
            self.run(
                stream,
                |table| table.write_op(operation, batch),
                |table| table.apply_here(operation, batch),
            )
        }
    }

    /// Puts a lookup on a stream.
    ///
    /// # Safety
    /// See [the type](StreamTable#safety-of-its-calls). Without `concurrent_writers`, no operation
    /// that changes entries may run at the same time.
    ///
    /// # Errors
    /// Those of [`StreamTable::apply`].
    pub unsafe fn lookup(
        &self,
        lookup: LookupMode,
        batch: &RawBatch,
        concurrent_writers: bool,
        stream: *mut c_void,
    ) -> Result<(), TableError> {
        let table = self.read();
        if let Engine::Cpu(_) = table.engine() {
            // SAFETY: the caller guarantees the arrays.
            return unsafe { table.lookup_here(lookup, batch) };
        }
        let prepared = table.lookup_op(lookup, batch, concurrent_writers)?;
        // SAFETY: the caller guarantees the arrays and the stream.
        unsafe { table.enqueue_on(prepared, stream) }
    }

    /// Puts a pooled lookup on a stream.
    ///
    /// # Safety
    /// As for [`StreamTable::lookup`].
    ///
    /// # Errors
    /// Those of [`GpuTable::pooled_command`] and [`StreamTable::apply`]. On the CPU also offsets
    /// that are not those of bags.
    pub unsafe fn find_pooled(
        &self,
        options: &PoolingOptions,
        batch: &RawPooledBatch,
        concurrent_writers: bool,
        stream: *mut c_void,
    ) -> Result<(), TableError> {
        let table = self.read();
        if let Engine::Cpu(_) = table.engine() {
            // SAFETY: the caller guarantees the arrays.
            return unsafe { table.pool_here(options, batch) };
        }
        let prepared = table.pooled_op(options, batch, concurrent_writers)?;
        // SAFETY: the caller guarantees the arrays and the stream.
        unsafe { table.enqueue_on(prepared, stream) }
    }

    /// Puts a scan on a stream: see [`GpuTable::scan_command`].
    ///
    /// # Safety
    /// See [the type](StreamTable#safety-of-its-calls).
    ///
    /// # Errors
    /// Those of [`StreamTable::apply`].
    pub unsafe fn scan(
        &self,
        scan: Scan,
        slots: Range<u64>,
        condition: &Condition,
        entries_out: &RawEntries,
        stream: *mut c_void,
    ) -> Result<(), TableError> {
        // SAFETY: the caller guarantees the arrays and the stream.
        unsafe {
            self.run(
                stream,
                |table| table.scan_op(scan, slots.clone(), condition, entries_out),
                |table| table.scan_here(scan, slots.clone(), condition, entries_out),
            )
        }
    }

    /// Puts on a stream that all entries are removed, including pinned ones.
    ///
    /// # Safety
    /// See [the type](StreamTable#safety-of-its-calls).
    ///
    /// # Errors
    /// The driver's error.
    pub unsafe fn clear(&self, stream: *mut c_void) -> Result<(), TableError> {
        // SAFETY: the caller guarantees the stream.
        unsafe { self.run(stream, GpuTable::clear_op, GpuTable::clear) }
    }

    /// Number of entries, after the work on the stream.
    ///
    /// # Safety
    /// The stream must be as [the type](StreamTable#safety-of-its-calls) says.
    ///
    /// # Errors
    /// The device's error.
    pub unsafe fn size(&self, stream: *mut c_void) -> Result<u64, TableError> {
        let table = self.read();
        // SAFETY: the caller guarantees the stream.
        unsafe { table.wait_for(stream) }?;
        table.size()
    }

    /// [`GpuTable::reserve`], after the work on the stream. No other stream may use the table.
    ///
    /// # Safety
    /// As for [`StreamTable::size`].
    ///
    /// # Errors
    /// Those of [`GpuTable::reserve`].
    pub unsafe fn reserve(&self, capacity: u64, stream: *mut c_void) -> Result<(), TableError> {
        let mut table = self.write();
        // SAFETY: the caller guarantees the stream.
        unsafe { table.wait_for(stream) }?;
        table.reserve(capacity)
    }

    /// Grows the table for this many more keys as an operation from the host would
    /// ([`TableOptions::max_capacity`]). If it may grow no further, it does not wait. Otherwise as
    /// [`StreamTable::reserve`].
    ///
    /// # Safety
    /// As for [`StreamTable::size`].
    ///
    /// # Errors
    /// Those of [`GpuTable::reserve`].
    pub unsafe fn reserve_for(&self, keys: u64, stream: *mut c_void) -> Result<(), TableError> {
        let is_largest = {
            let table = self.read();
            table.capacity() >= table.capacity_max()
        };
        if is_largest {
            return Ok(());
        }
        let mut table = self.write();
        // SAFETY: the caller guarantees the stream.
        unsafe { table.wait_for(stream) }?;
        table.grow_for(keys)
    }

    /// [`GpuTable::save`], after the work on the stream. No other stream may change the table.
    ///
    /// # Safety
    /// As for [`StreamTable::size`].
    ///
    /// # Errors
    /// Those of [`GpuTable::save`].
    pub unsafe fn save(&self, path: &Path, stream: *mut c_void) -> Result<(), TableError> {
        let mut table = self.write();
        // SAFETY: the caller guarantees the stream.
        unsafe { table.wait_for(stream) }?;
        table.save(path)
    }

    /// [`GpuTable::load`], after the work on the stream. No other stream may use the table.
    ///
    /// # Safety
    /// As for [`StreamTable::size`].
    ///
    /// # Errors
    /// Those of [`GpuTable::load`].
    pub unsafe fn load(&self, path: &Path, stream: *mut c_void) -> Result<u64, TableError> {
        let mut table = self.write();
        // SAFETY: the caller guarantees the stream.
        unsafe { table.wait_for(stream) }?;
        table.load(path)
    }

    /// Sets bytes of the table's kind of memory, in the order of the stream.
    ///
    /// # Safety
    /// As many bytes must be there until the stream has done it, and nothing else may use them.
    ///
    /// # Errors
    /// The driver's error.
    pub unsafe fn fill(
        &self,
        to: u64,
        byte: u8,
        len: usize,
        stream: *mut c_void,
    ) -> Result<(), GpuError> {
        match self.gpu() {
            // SAFETY: the caller guarantees the bytes and the stream.
            Some(gpu) => unsafe { fill_device(&Stream::borrowed(&gpu, stream), to, byte, len) },
            None if len == 0 => Ok(()),
            None => {
                // SAFETY: the caller guarantees the bytes.
                unsafe { std::ptr::write_bytes(to as *mut u8, byte, len) };
                Ok(())
            }
        }
    }

    /// Copies to the table's kind of memory, in the order of the stream, and waits for it.
    ///
    /// # Safety
    /// As many bytes must be at `to`, and nothing else may use them.
    ///
    /// # Errors
    /// The driver's error.
    pub unsafe fn copy_in(
        &self,
        to: u64,
        bytes: &[u8],
        stream: *mut c_void,
    ) -> Result<(), GpuError> {
        match self.gpu() {
            // SAFETY: the caller guarantees the bytes and the stream.
            Some(gpu) => unsafe { copy_to_device(&Stream::borrowed(&gpu, stream), to, bytes) },
            None if bytes.is_empty() => Ok(()),
            None => {
                // SAFETY: the caller guarantees the bytes. A slice may be part of them.
                unsafe { std::ptr::copy(bytes.as_ptr(), to as *mut u8, bytes.len()) };
                Ok(())
            }
        }
    }

    /// Copies from the table's kind of memory, in the order of the stream, and waits for it.
    ///
    /// # Safety
    /// As many bytes must be at `from`, and nothing else may write them.
    ///
    /// # Errors
    /// The driver's error.
    pub unsafe fn copy_out(
        &self,
        from: u64,
        bytes: &mut [u8],
        stream: *mut c_void,
    ) -> Result<(), GpuError> {
        match self.gpu() {
            // SAFETY: the caller guarantees the bytes and the stream.
            Some(gpu) => unsafe { copy_from_device(&Stream::borrowed(&gpu, stream), from, bytes) },
            None if bytes.is_empty() => Ok(()),
            None => {
                // SAFETY: the caller guarantees the bytes. The slice may be part of them.
                unsafe { std::ptr::copy(from as *const u8, bytes.as_mut_ptr(), bytes.len()) };
                Ok(())
            }
        }
    }

    /// Puts an operation on a stream, or runs it `here`, on the CPU.
    ///
    /// # Safety
    /// The caller of the operation guarantees its arrays and the stream.
    unsafe fn run(
        &self,
        stream: *mut c_void,
        prepare: impl FnOnce(&GpuTable) -> Result<Prepared, TableError>,
        here: impl FnOnce(&mut GpuTable) -> Result<(), TableError>,
    ) -> Result<(), TableError> {
        let table = self.read();
        if let Engine::Device(_) = table.engine() {
            // SAFETY: the caller guarantees the arrays and the stream.
            return unsafe { table.enqueue_on(prepare(&table)?, stream) };
        }
        drop(table);
        here(&mut self.write())
    }
}

impl GpuTable {
    /// Puts a launch on a stream. A backend without a GPU has no streams, and runs it.
    ///
    /// # Safety
    /// The launch's arrays and the stream must be as [`StreamTable`] requires.
    unsafe fn enqueue_on(&self, prepared: Prepared, stream: *mut c_void) -> Result<(), TableError> {
        let Some(gpu) = self.gpu() else {
            let (launch, op) = prepared;
            return self.device()?.backend().launch(launch, &op);
        };
        let command = self.on_its_gpu(prepared)?;
        // SAFETY: the caller guarantees the stream and, until it has run this, the arrays. The
        // table's own arrays stay: they are freed only when the device is idle.
        unsafe { command.enqueue(&Stream::borrowed(gpu, stream)) }?;
        Ok(())
    }

    /// Waits for the work on a stream of the table's device.
    ///
    /// # Safety
    /// The stream must be as [`StreamTable`] requires.
    unsafe fn wait_for(&self, stream: *mut c_void) -> Result<(), GpuError> {
        match self.gpu() {
            // SAFETY: the caller guarantees the stream.
            Some(gpu) => unsafe { Stream::borrowed(gpu, stream) }.synchronize(),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for StreamTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StreamTable").field(&*self.read()).finish()
    }
}
