//! Memory of the table's kind, for callers that have no CUDA run time.

use crate::failure::{Failure, guarded};
use crate::handle::{HeldMemory, Table, put, table_at};
use std::ffi::c_void;

/// See `forerun_gpu.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forerun_gpu_memory_alloc(
    table: *mut Table,
    bytes: usize,
    memory: *mut *mut c_void,
) -> i32 {
    guarded(|| {
        // SAFETY: the caller keeps the header's contract.
        let table = unsafe { table_at(table) }?;
        let made = HeldMemory::new(table.table.gpu().as_ref(), bytes)?;
        let address = made.address();
        // SAFETY: as above.
        unsafe { put(memory, address as *mut c_void, "memory") }?;
        table.memory().insert(address, made);
        Ok(())
    })
}

/// See `forerun_gpu.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forerun_gpu_memory_free(table: *mut Table, memory: *mut c_void) -> i32 {
    guarded(|| {
        // SAFETY: the caller keeps the header's contract.
        let table = unsafe { table_at(table) }?;
        if memory.is_null() {
            return Ok(());
        }
        let freed = table.memory().remove(&(memory as u64));
        // The driver waits for the device, without the lock.
        freed
            .map(drop)
            .ok_or_else(|| Failure::invalid(format!("{memory:p} was not allocated for this table")))
    })
}

/// See `forerun_gpu.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forerun_gpu_fill(
    table: *const Table,
    memory: *mut c_void,
    byte: u8,
    bytes: usize,
    stream: *mut c_void,
) -> i32 {
    // SAFETY: the caller keeps the header's contract.
    guarded(|| unsafe {
        Ok(table_at(table)?
            .table
            .fill(memory as u64, byte, bytes, stream)?)
    })
}

/// See `forerun_gpu.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forerun_gpu_copy_in(
    table: *const Table,
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    stream: *mut c_void,
) -> i32 {
    // SAFETY: the caller keeps the header's contract.
    guarded(|| unsafe {
        let table = table_at(table)?;
        if bytes == 0 {
            return Ok(());
        }
        expect_not_null(from)?;
        let from = std::slice::from_raw_parts(from.cast::<u8>(), bytes);
        Ok(table.table.copy_in(to as u64, from, stream)?)
    })
}

/// See `forerun_gpu.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forerun_gpu_copy_out(
    table: *const Table,
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    stream: *mut c_void,
) -> i32 {
    // SAFETY: the caller keeps the header's contract.
    guarded(|| unsafe {
        let table = table_at(table)?;
        if bytes == 0 {
            return Ok(());
        }
        expect_not_null(to)?;
        let to = std::slice::from_raw_parts_mut(to.cast::<u8>(), bytes);
        Ok(table.table.copy_out(from as u64, to, stream)?)
    })
}

fn expect_not_null(memory: *const c_void) -> Result<(), Failure> {
    if memory.is_null() {
        return Err(Failure::invalid("the ordinary memory's address is null"));
    }
    Ok(())
}
