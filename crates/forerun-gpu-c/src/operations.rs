//! Operations by key, lookups, bags and scans.

use crate::failure::{Failure, guarded};
use crate::handle::{Table, put, table_at};
use crate::structs::{BagArrays, Condition, EntryArrays, KeyArrays, given};
use forerun_gpu::table::{LookupMode, Operation, Scan};
use std::ffi::c_void;

/// Applies an operation that the batch determines.
///
/// # Safety
/// The header's contract.
unsafe fn apply(
    table: *const Table,
    batch: *const KeyArrays,
    stream: *mut c_void,
    operation: impl FnOnce(&KeyArrays) -> Result<Operation, Failure>,
) -> Result<(), Failure> {
    // SAFETY: the caller guarantees both.
    let (table, batch) = unsafe { (table_at(table)?, given(batch)?) };
    let operation = operation(&batch)?;
    // SAFETY: the caller guarantees the arrays and the stream.
    Ok(unsafe { table.table.apply(operation, &batch.raw(), stream) }?)
}

macro_rules! writers {
    ($(fn $name:ident = |$batch:ident| $operation:expr;)+) => {$(
        /// See `forerun_gpu.h`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            table: *mut Table,
            batch: *const KeyArrays,
            stream: *mut c_void,
        ) -> i32 {
            // SAFETY: the caller keeps the header's contract.
            guarded(|| unsafe { apply(table, batch, stream, |$batch| Ok($operation)) })
        }
    )+};
}

writers! {
    fn forerun_gpu_insert_or_assign = |_batch| Operation::InsertOrAssign;
    fn forerun_gpu_insert_and_evict = |_batch| Operation::InsertAndEvict;
    fn forerun_gpu_find_or_insert = |_batch| Operation::FindOrInsert;
    fn forerun_gpu_accumulate_or_assign = |batch| Operation::AccumulateOrAssign(batch.element()?);
    fn forerun_gpu_assign = |_batch| Operation::Assign;
    fn forerun_gpu_assign_rows = |_batch| Operation::AssignRows;
    fn forerun_gpu_assign_scores = |_batch| Operation::AssignScores;
    fn forerun_gpu_find_and_update = |_batch| Operation::FindAndUpdate;
    fn forerun_gpu_lock = |_batch| Operation::Lock;
    fn forerun_gpu_unlock = |_batch| Operation::Unlock;
    fn forerun_gpu_erase = |_batch| Operation::Erase;
    fn forerun_gpu_restore = |_batch| Operation::Restore;
}

/// See `forerun_gpu.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forerun_gpu_find(
    table: *const Table,
    batch: *const KeyArrays,
    stream: *mut c_void,
) -> i32 {
    // SAFETY: the caller keeps the header's contract.
    guarded(|| unsafe {
        let (table, batch) = (table_at(table)?, given(batch)?);
        let beside_writers = batch.no_writers == 0;
        let (lookup, raw) = (LookupMode::ByLoad, batch.raw());
        Ok(table.table.lookup(lookup, &raw, beside_writers, stream)?)
    })
}

/// See `forerun_gpu.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forerun_gpu_find_pooled(
    table: *const Table,
    bags: *const BagArrays,
    stream: *mut c_void,
) -> i32 {
    // SAFETY: the caller keeps the header's contract.
    guarded(|| unsafe {
        let (table, bags) = (table_at(table)?, given(bags)?);
        let (pooling, raw) = (bags.pooling()?, bags.raw());
        let beside_writers = bags.no_writers == 0;
        Ok(table
            .table
            .find_pooled(&pooling, &raw, beside_writers, stream)?)
    })
}

/// See `forerun_gpu.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forerun_gpu_pooled_sums_bytes(
    table: *const Table,
    bags: *const BagArrays,
    bytes: *mut u64,
) -> i32 {
    // SAFETY: the caller keeps the header's contract.
    guarded(|| unsafe {
        let (table, bags) = (table_at(table)?, given(bags)?);
        let needed = table.table.pooled_sums_bytes(&bags.pooling()?, bags.bags)?;
        put(bytes, needed, "bytes")
    })
}

/// Output of a scan that gives only a number.
fn only_count(count: *mut u64) -> EntryArrays {
    EntryArrays {
        count,
        keys: std::ptr::null_mut(),
        rows: std::ptr::null_mut(),
        scores: std::ptr::null_mut(),
        positions: std::ptr::null_mut(),
    }
}

/// See `forerun_gpu.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forerun_gpu_size_if(
    table: *mut Table,
    condition: *const Condition,
    count: *mut u64,
    stream: *mut c_void,
) -> i32 {
    // SAFETY: the caller keeps the header's contract.
    guarded(|| unsafe {
        let (condition, out) = (Condition::at(condition), only_count(count).raw());
        let table = &table_at(table)?.table;
        Ok(table.scan(Scan::Count, 0..u64::MAX, &condition, &out, stream)?)
    })
}

/// See `forerun_gpu.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forerun_gpu_erase_if(
    table: *mut Table,
    condition: *const Condition,
    count: *mut u64,
    stream: *mut c_void,
) -> i32 {
    // SAFETY: the caller keeps the header's contract.
    guarded(|| unsafe {
        let (condition, out) = (Condition::at(condition), only_count(count).raw());
        let table = &table_at(table)?.table;
        Ok(table.scan(Scan::Erase, 0..u64::MAX, &condition, &out, stream)?)
    })
}

/// See `forerun_gpu.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forerun_gpu_export_batch(
    table: *mut Table,
    first_slot: u64,
    slots: u64,
    condition: *const Condition,
    entries: *const EntryArrays,
    stream: *mut c_void,
) -> i32 {
    // SAFETY: the caller keeps the header's contract.
    guarded(|| unsafe {
        let Some(entries) = entries.as_ref() else {
            return Err(Failure::invalid("the entries are null"));
        };
        let (condition, out) = (Condition::at(condition), entries.raw());
        let slots = first_slot..first_slot.saturating_add(slots);
        let table = &table_at(table)?.table;
        Ok(table.scan(Scan::Export, slots, &condition, &out, stream)?)
    })
}

/// See `forerun_gpu.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forerun_gpu_clear(table: *mut Table, stream: *mut c_void) -> i32 {
    // SAFETY: the caller keeps the header's contract.
    guarded(|| unsafe { Ok(table_at(table)?.table.clear(stream)?) })
}
