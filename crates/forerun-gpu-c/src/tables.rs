//! Tables, their sizes, and their files.

use crate::failure::{Failure, guarded};
use crate::handle::{Table, put, table_at};
use crate::structs::{DEVICE_ANY, DEVICE_CPU, Options, given};
use forerun_gpu::Gpu;
use forerun_gpu::table::GpuTable;
use std::ffi::{CStr, c_char, c_void};
use std::path::PathBuf;
use std::sync::Arc;

/// See `forerun_gpu.h`.
#[unsafe(no_mangle)]
pub extern "C" fn forerun_gpu_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// See `forerun_gpu.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forerun_gpu_options_init(
    options: *mut Options,
    capacity: u64,
    row_bytes: u64,
) -> i32 {
    let defaults = Options::defaults(capacity, row_bytes);
    // SAFETY: the caller gives room for options.
    guarded(|| unsafe { put(options, defaults, "the options") })
}

/// Makes the table that the options describe.
///
/// # Safety
/// Their allocator must be null or point to one.
unsafe fn open(options: &Options) -> Result<GpuTable, Failure> {
    let table_options = options.table_options()?;
    let gpu = match options.device {
        DEVICE_CPU => return Ok(GpuTable::on_cpu(table_options)?),
        DEVICE_ANY => match Gpu::open_current() {
            Err(error) if error.is_absent() => return Ok(GpuTable::on_cpu(table_options)?),
            opened => opened?,
        },
        number => {
            let ordinal = usize::try_from(number);
            let ordinal = ordinal.map_err(|_| Failure::invalid(format!("no device {number}")))?;
            Gpu::open(ordinal)?
        }
    };
    // SAFETY: the caller guarantees it.
    let allocator = unsafe { options.allocator.as_ref() };
    Ok(match allocator {
        None => GpuTable::on_gpu(&gpu, table_options)?,
        Some(allocator) => {
            GpuTable::on_gpu_with(&gpu, table_options, Arc::new(allocator.callbacks()?))?
        }
    })
}

/// See `forerun_gpu.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forerun_gpu_table_create(
    options: *const Options,
    table: *mut *mut Table,
) -> i32 {
    guarded(|| {
        if table.is_null() {
            return Err(Failure::invalid("the new table's place is null"));
        }
        // SAFETY: the caller gives options of the size that they state, with null or an allocator.
        let made = unsafe { open(&given(options)?) }?;
        let made = Box::new(Table::new(made));
        // SAFETY: the caller gives room for a pointer, as checked above.
        unsafe { put(table, Box::into_raw(made), "the new table") }
    })
}

/// See `forerun_gpu.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forerun_gpu_table_destroy(table: *mut Table) {
    if table.is_null() {
        return;
    }
    guarded(|| {
        // SAFETY: the caller gives what `forerun_gpu_table_create` made, once.
        drop(unsafe { Box::from_raw(table) });
        Ok(())
    });
}

/// See `forerun_gpu.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forerun_gpu_device(table: *const Table, device: *mut i32) -> i32 {
    guarded(|| {
        // SAFETY: the caller keeps the header's contract.
        let table = unsafe { table_at(table) }?;
        let ordinal = table.table.gpu().map(|gpu| gpu.info().ordinal);
        let number = ordinal.map_or(DEVICE_CPU, |ordinal| ordinal as i32);
        // SAFETY: as above.
        unsafe { put(device, number, "device") }
    })
}

/// See `forerun_gpu.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forerun_gpu_capacity(table: *const Table, capacity: *mut u64) -> i32 {
    // SAFETY: the caller keeps the header's contract.
    guarded(|| unsafe { put(capacity, table_at(table)?.table.capacity(), "capacity") })
}

/// See `forerun_gpu.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forerun_gpu_size(
    table: *const Table,
    size: *mut u64,
    stream: *mut c_void,
) -> i32 {
    // SAFETY: the caller keeps the header's contract.
    guarded(|| unsafe { put(size, table_at(table)?.table.size(stream)?, "size") })
}

/// See `forerun_gpu.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forerun_gpu_reserve(
    table: *mut Table,
    capacity: u64,
    stream: *mut c_void,
) -> i32 {
    // SAFETY: the caller keeps the header's contract.
    guarded(|| unsafe { Ok(table_at(table)?.table.reserve(capacity, stream)?) })
}

/// See `forerun_gpu.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forerun_gpu_reserve_for(
    table: *mut Table,
    keys: u64,
    stream: *mut c_void,
) -> i32 {
    // SAFETY: the caller keeps the header's contract.
    guarded(|| unsafe { Ok(table_at(table)?.table.reserve_for(keys, stream)?) })
}

/// See `forerun_gpu.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forerun_gpu_set_max_capacity(table: *mut Table, max_capacity: u64) -> i32 {
    // SAFETY: the caller keeps the header's contract.
    guarded(|| unsafe { Ok(table_at(table)?.table.set_max_capacity(max_capacity)?) })
}

/// The path that C gives.
///
/// # Safety
/// It must be null or a text that ends with a zero.
unsafe fn path_at(path: *const c_char) -> Result<PathBuf, Failure> {
    if path.is_null() {
        return Err(Failure::invalid("the path is null"));
    }
    // SAFETY: the caller guarantees it.
    let path = unsafe { CStr::from_ptr(path) };
    #[cfg(unix)]
    {
        use std::os::unix::ffi::OsStrExt;
        Ok(std::ffi::OsStr::from_bytes(path.to_bytes()).into())
    }
    #[cfg(not(unix))]
    {
        let text = path.to_str();
        let text = text.map_err(|_| Failure::invalid("the path is not UTF-8"))?;
        Ok(text.into())
    }
}

/// See `forerun_gpu.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forerun_gpu_save(
    table: *mut Table,
    path: *const c_char,
    stream: *mut c_void,
) -> i32 {
    // SAFETY: the caller keeps the header's contract.
    guarded(|| unsafe { Ok(table_at(table)?.table.save(&path_at(path)?, stream)?) })
}

/// See `forerun_gpu.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forerun_gpu_load(
    table: *mut Table,
    path: *const c_char,
    entries: *mut u64,
    stream: *mut c_void,
) -> i32 {
    // SAFETY: the caller keeps the header's contract.
    guarded(|| unsafe {
        let loaded = table_at(table)?.table.load(&path_at(path)?, stream)?;
        if entries.is_null() {
            return Ok(());
        }
        put(entries, loaded, "entries")
    })
}
