//! Runs a kernel's argument on the CPU: finds the tables behind its addresses, resolves, and copies
//! the rows with the gather's copy.

use super::error::HotPoolError;
use super::params::{COUNTERS, HotPoolParams, NO_SLOT, POLICY_LRU};
use super::twin::{
    ClockTable, Found, Plan, Request, Scratch, resolve_clock, resolve_lru, slot_of_clock,
    slot_of_lru, write_rows,
};
use crate::gather::cpu::{CpuOptions, copy_request};
use crate::gather::{
    CopySpec, Direction, IndexType, KnownMemory, PairsAt, Request as CopyRequest, RowLayout,
};
use crate::memory_type::MemoryType;

/// Memory that launches on the CPU use again.
#[derive(Debug, Default)]
pub(super) struct CpuScratch {
    twin: Scratch,
    destinations: Vec<i64>,
}

/// `count` elements at element `first` of an array. An empty slice needs no array.
///
/// # Safety
/// They must be initialised, aligned, and valid for reads for `'a`, without a mutable reference.
pub(super) unsafe fn array<'a, T>(address: u64, first: u64, count: usize) -> &'a [T] {
    if count == 0 {
        return &[];
    }
    let at = address as usize + first as usize * size_of::<T>();
    // SAFETY: as the caller guarantees.
    unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(at), count) }
}

/// Like [`array`], to be written.
///
/// # Safety
/// That of [`array`], without any other reference.
unsafe fn array_mut<'a, T>(address: u64, first: u64, count: usize) -> &'a mut [T] {
    if count == 0 {
        return &mut [];
    }
    let at = address as usize + first as usize * size_of::<T>();
    // SAFETY: as the caller guarantees.
    unsafe { std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(at), count) }
}

/// A signed integer of 4 or 8 bytes.
///
/// # Safety
/// That of [`array`].
pub(super) unsafe fn signed(address: u64, at: u64, bytes: u32) -> i64 {
    match bytes {
        // SAFETY: as the caller guarantees.
        4 => unsafe { array::<i32>(address, at, 1) }
            .first()
            .map_or(-1, |&word| word.into()),
        // SAFETY: as above.
        _ => unsafe { array::<i64>(address, at, 1) }
            .first()
            .map_or(-1, |&word| word),
    }
}

/// The number of requests in a launch.
///
/// # Safety
/// That of [`resolve_on_cpu`].
pub(super) unsafe fn batch_of(p: &HotPoolParams) -> u64 {
    let given = match p.batch_at {
        0 => i64::from(p.batch),
        // SAFETY: as the caller guarantees.
        address => unsafe { signed(address, 0, 4) },
    };
    given.clamp(0, p.batch.into()) as u64
}

/// Resolves a batch, and copies what is missing. The kernel `hot_pool_lru` or `hot_pool_clock`.
///
/// # Safety
/// The argument was checked, every array that it names is in host memory, initialised and as long
/// as it says, and nothing else uses them during the call.
pub(super) unsafe fn resolve_on_cpu(
    p: &HotPoolParams,
    scratch: &mut CpuScratch,
) -> Result<(), HotPoolError> {
    // SAFETY: as the caller guarantees.
    for entry in 0..unsafe { batch_of(p) } {
        // SAFETY: as the caller guarantees; one entry at a time has references.
        let misses = unsafe { resolve_entry(p, entry, scratch) };
        // SAFETY: as above, and the plan's rows are in range.
        unsafe { copy_plan(p, entry, misses, 0, scratch) }?;
    }
    Ok(())
}

/// # Safety
/// That of [`resolve_on_cpu`].
unsafe fn resolve_entry(p: &HotPoolParams, entry: u64, scratch: &mut CpuScratch) -> u32 {
    let table = match p.requests {
        0 => entry as i64,
        // SAFETY: as the caller guarantees.
        address => unsafe { signed(address, entry, p.request_bytes) },
    };
    let is_known = (table as u64) < p.tables.into();
    let table = if is_known { table as u64 } else { 0 };
    let length = match p.lengths {
        0 => None,
        // SAFETY: as above.
        address => Some(unsafe { signed(address, entry, p.length_bytes) }.max(0)),
    };
    let limit = length.map_or(p.position_limit, |length| {
        length.min(p.position_limit.into()) as u32
    });
    let (count, slots) = (p.count as usize, p.slots as usize);
    // Rows are listed for the newest position's slot too.
    let listed = slots + usize::from(p.lengths != 0);
    let request = Request {
        // SAFETY: as above.
        positions: unsafe { array(p.positions, entry * p.positions_step, count) },
        limit: if is_known { limit } else { 0 },
        length,
        table,
        slots: p.slots,
        device_rows: (p.device_rows != 0)
            // SAFETY: as above.
            .then(|| unsafe { array(p.device_rows, table * p.keys_step, listed) }),
        device_row_limit: p.device_row_limit,
        host_rows: (p.host_rows != 0).then(|| {
            let positions = p.position_limit as usize;
            // SAFETY: as above.
            unsafe { array(p.host_rows, table * p.host_rows_step, positions) }
        }),
        host_row_limit: p.host_row_limit,
    };
    let mut plan = Plan {
        // SAFETY: as above.
        sources: unsafe { array_mut(p.plan_sources, entry * p.plan_step, count) },
        // SAFETY: as above.
        destinations: unsafe { array_mut(p.plan_destinations, entry * p.plan_step, count) },
    };
    // SAFETY: as above.
    let rows_out = unsafe { array_mut(p.rows_out, entry * p.rows_out_step, count) };
    // SAFETY: as above.
    let keys = unsafe { array_mut(p.keys, table * p.keys_step, slots) };
    let (found, absent);
    if !is_known || request.is_in_order() {
        found = Found::default();
        absent = write_rows(&request, rows_out, |_| None);
    } else if p.policy == POLICY_LRU {
        // SAFETY: as above.
        let order = unsafe { array_mut(p.order, table * p.order_step, slots) };
        found = resolve_lru(&request, keys, order, &mut plan, &mut scratch.twin);
        let slot_of = |position| slot_of_lru(&scratch.twin, position);
        absent = write_rows(&request, rows_out, slot_of);
    } else {
        let positions = p.position_limit as usize;
        let mut clock = ClockTable {
            keys,
            // SAFETY: as above.
            map: unsafe { array_mut(p.map, table * p.map_step, positions) },
            // SAFETY: as above.
            used: unsafe { array_mut(p.used, table * u64::from(p.slots), slots) },
            // SAFETY: as above.
            clock: unsafe { array_mut(p.clocks, table * 2, 2) },
        };
        found = resolve_clock(&request, &mut clock, &mut plan, &mut scratch.twin);
        let slot_of = |position| slot_of_clock(clock.map, position);
        absent = write_rows(&request, rows_out, slot_of);
    }
    // SAFETY: as above.
    unsafe { array_mut::<i32>(p.plan_counts, entry, 1) }.fill(found.misses as i32);
    if p.counters != 0 {
        // SAFETY: as above.
        let counters = unsafe { array_mut::<u64>(p.counters, 0, COUNTERS) };
        let more = [found.hits.into(), found.misses.into(), absent];
        for (counter, more) in counters.iter_mut().zip(more) {
            *counter += more;
        }
    }
    found.misses
}

/// Copies the rows of recorded plans in each layer. The kernel `hot_pool_replay`.
///
/// # Safety
/// That of [`resolve_on_cpu`].
pub(super) unsafe fn replay_on_cpu(
    p: &HotPoolParams,
    scratch: &mut CpuScratch,
) -> Result<(), HotPoolError> {
    for layer in 0..u64::from(p.layers) {
        // SAFETY: as the caller guarantees.
        for entry in 0..unsafe { batch_of(p) } {
            // SAFETY: as above.
            let given = unsafe { signed(p.plan_counts, entry, 4) };
            let misses = given.clamp(0, p.count.into()) as u32;
            // SAFETY: as above. Rows out of range are skipped.
            unsafe { copy_plan(p, entry, misses, layer, scratch) }?;
        }
    }
    Ok(())
}

/// # Safety
/// That of [`resolve_on_cpu`].
unsafe fn copy_plan(
    p: &HotPoolParams,
    entry: u64,
    misses: u32,
    layer: u64,
    scratch: &mut CpuScratch,
) -> Result<(), HotPoolError> {
    if misses == 0 {
        return Ok(());
    }
    let (first, count) = (entry * p.plan_step, misses as usize);
    // SAFETY: as the caller guarantees.
    let sources: &[i64] = unsafe { array(p.plan_sources, first, count) };
    // SAFETY: as above.
    let destinations: &[i32] = unsafe { array(p.plan_destinations, first, count) };
    scratch.destinations.clear();
    scratch
        .destinations
        .extend(destinations.iter().map(|&row| i64::from(row)));
    let host = p.host + layer * p.host_layer_bytes;
    let device = p.device + layer * p.device_layer_bytes;
    let mut known = KnownMemory::default();
    let mut add = |address: u64, bytes: u64| {
        known.add(address, bytes, MemoryType::Pageable, address);
        address
    };
    let bytes_of = |rows: u64, stride: u64| match rows {
        0 => 0,
        rows => (rows - 1) * stride + p.row_bytes,
    };
    add(host, bytes_of(p.host_row_limit, p.host_stride_bytes));
    add(device, bytes_of(p.device_row_limit, p.device_stride_bytes));
    let index_bytes = count as u64 * size_of::<i64>() as u64;
    let source_at = add(sources.as_ptr() as u64, index_bytes);
    let destination_at = add(scratch.destinations.as_ptr() as u64, index_bytes);
    let pairs = PairsAt::split(
        IndexType::I64,
        (source_at, count as u64),
        (destination_at, count as u64),
    )?;
    let request = CopyRequest {
        direction: Direction::Gather,
        spec: CopySpec::dense(p.row_bytes, 0, 0)
            .host(RowLayout::dense(p.host_row_limit, p.host_stride_bytes))
            .device(RowLayout::dense(p.device_row_limit, p.device_stride_bytes)),
        host,
        device,
        pairs,
        count: None,
        map: None,
        out_of_range: None,
    };
    // SAFETY: rows and indices are as the caller guarantees; no slice of the rows exists.
    unsafe { copy_request(&request, &known, CpuOptions::default()) }?;
    Ok(())
}

/// Empties the tables of the requests in every layer. The kernel `hot_pool_clear`.
///
/// # Safety
/// That of [`resolve_on_cpu`].
pub(super) unsafe fn clear_on_cpu(p: &HotPoolParams) {
    let slots = p.slots as usize;
    for layer in 0..u64::from(p.layers) {
        // SAFETY: as the caller guarantees.
        for entry in 0..unsafe { batch_of(p) } {
            let request = match p.requests {
                0 => entry as i64,
                // SAFETY: as above.
                address => unsafe { signed(address, entry, p.request_bytes) },
            };
            if request as u64 >= p.tables.into() {
                continue;
            }
            let table = layer * u64::from(p.tables) + request as u64;
            // SAFETY: as above.
            unsafe { array_mut::<i32>(p.keys, table * p.keys_step, slots) }.fill(-1);
            if p.policy == POLICY_LRU {
                // SAFETY: as above.
                let order = unsafe { array_mut::<i16>(p.order, table * p.order_step, slots) };
                for (slot, place) in order.iter_mut().enumerate() {
                    *place = slot as i16;
                }
                continue;
            }
            let positions = p.position_limit as usize;
            // SAFETY: as above.
            unsafe { array_mut::<u32>(p.map, table * p.map_step, positions) }.fill(NO_SLOT);
            // SAFETY: as above.
            unsafe { array_mut::<u32>(p.used, table * u64::from(p.slots), slots) }.fill(0);
            // SAFETY: as above.
            unsafe { array_mut::<u32>(p.clocks, table * 2, 2) }.fill(0);
        }
    }
}
