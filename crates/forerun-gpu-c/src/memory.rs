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
        let table = table_at(table)?;
        if bytes == 0 {
            return Ok(());
        }
        expect_memory(memory, bytes)?;
        Ok(table.table.fill(memory as u64, byte, bytes, stream)?)
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
        expect_memory(to, bytes)?;
        expect_memory(from, bytes)?;
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
        expect_memory(from, bytes)?;
        expect_memory(to, bytes)?;
        let to = std::slice::from_raw_parts_mut(to.cast::<u8>(), bytes);
        Ok(table.table.copy_out(from as u64, to, stream)?)
    })
}

/// Checks what numbers show of memory that is not empty.
fn expect_memory(memory: *const c_void, bytes: usize) -> Result<(), Failure> {
    if memory.is_null() {
        return Err(Failure::invalid("the memory's address is null"));
    }
    if bytes > isize::MAX as usize || (memory as usize).checked_add(bytes).is_none() {
        return Err(Failure::invalid(format!(
            "no memory has {bytes} bytes at {memory:p}"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_nothing_can_have_is_refused() {
        let bytes = [0_u8; 8];
        let at: *const c_void = bytes.as_ptr().cast();
        assert!(expect_memory(at, 8).is_ok());
        for (memory, bytes) in [(std::ptr::null(), 8), (at, usize::MAX), (at, 1 << 63)] {
            assert!(expect_memory(memory, bytes).is_err());
        }
    }
}
