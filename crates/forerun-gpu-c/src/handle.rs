//! What a `forerun_gpu_table*` points to.

use crate::failure::{Failure, OUT_OF_MEMORY};
use forerun_core::sync::{Mutex, MutexGuard, PoisonError};
use forerun_gpu::table::{GpuTable, StreamTable};
use forerun_gpu::{DeviceBuffer, Gpu};
use std::collections::BTreeMap;

/// `forerun_gpu_table`.
pub struct Table {
    pub(crate) table: StreamTable,
    /// What `forerun_gpu_memory_alloc` gave, by address.
    memory: Mutex<BTreeMap<u64, HeldMemory>>,
}

impl Table {
    pub(crate) fn new(table: GpuTable) -> Table {
        Table {
            table: StreamTable::new(table),
            memory: Mutex::default(),
        }
    }

    pub(crate) fn memory(&self) -> MutexGuard<'_, BTreeMap<u64, HeldMemory>> {
        // A panic elsewhere leaves the map consistent.
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Memory that was given out. Its address stays.
pub(crate) enum HeldMemory {
    /// On the table's device.
    Device(DeviceBuffer),
    /// Of this process, aligned to 16 bytes.
    Host(Vec<u128>),
}

impl HeldMemory {
    /// Allocates on a device, or without one in this process.
    pub(crate) fn new(gpu: Option<&Gpu>, bytes: usize) -> Result<HeldMemory, Failure> {
        if let Some(gpu) = gpu {
            return Ok(HeldMemory::Device(DeviceBuffer::new(gpu, bytes)?));
        }
        let (mut words, len) = (Vec::new(), bytes.div_ceil(16).max(1));
        words.try_reserve_exact(len).map_err(|error| Failure {
            number: OUT_OF_MEMORY,
            text: format!("cannot allocate {bytes} bytes: {error}"),
        })?;
        words.resize(len, 0);
        Ok(HeldMemory::Host(words))
    }

    pub(crate) fn address(&self) -> u64 {
        match self {
            HeldMemory::Device(buffer) => buffer.address(),
            HeldMemory::Host(words) => words.as_ptr() as u64,
        }
    }
}

/// The table that a pointer gives.
///
/// # Safety
/// It must be null, or a table that is not destroyed for as long as the reference lives.
pub(crate) unsafe fn table_at<'a>(table: *const Table) -> Result<&'a Table, Failure> {
    // SAFETY: the caller guarantees it.
    let table = unsafe { table.as_ref() };
    table.ok_or_else(|| Failure::invalid("the table is null"))
}

/// Writes a result to where the caller wants it.
///
/// # Safety
/// `to` must be null or the address of a `T` that nothing else uses.
pub(crate) unsafe fn put<T>(to: *mut T, value: T, what: &str) -> Result<(), Failure> {
    if to.is_null() {
        return Err(Failure::invalid(format!("{what}: the address is null")));
    }
    // SAFETY: the caller guarantees it.
    unsafe { to.write(value) };
    Ok(())
}
