//! The only argument of every hot-pool kernel; `kernels/include/hot_pool_params.cuh` draws it field
//! by field, and defines the meaning of each, because the kernels give them meaning.
//!
//! The CPU's twin takes the same argument, with addresses of host memory.

use crate::layout::assert_layout;

/// See `kernels/include/hot_pool_params.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HotPoolParams {
    /// i32 per position of each request.
    pub positions: u64,
    /// i32 per position of each request.
    pub rows_out: u64,
    /// Table number of each request, or 0.
    pub requests: u64,
    /// Length of each request, or 0.
    pub lengths: u64,
    /// Address of the number of requests, or 0.
    pub batch_at: u64,
    /// i32 per slot.
    pub keys: u64,
    /// LRU: i16 per slot.
    pub order: u64,
    /// CLOCK: u32 per position.
    pub map: u64,
    /// CLOCK: u32 per slot.
    pub used: u64,
    /// CLOCK: two u32 per table.
    pub clocks: u64,
    /// i32 per slot, or 0.
    pub device_rows: u64,
    /// i64 per position, or 0.
    pub host_rows: u64,
    /// Host row 0.
    pub host: u64,
    /// Device row 0.
    pub device: u64,
    /// i64 per row of a plan.
    pub plan_sources: u64,
    /// i32 per row of a plan.
    pub plan_destinations: u64,
    /// i32 per request.
    pub plan_counts: u64,
    /// [`TEAM_BYTES`] per request.
    pub teams: u64,
    /// [`COUNTERS`] u64, or 0.
    pub counters: u64,
    /// Bytes from one row to the next.
    pub host_stride_bytes: u64,
    /// Bytes from one row to the next.
    pub device_stride_bytes: u64,
    /// Bytes from one layer to the next, for a replay.
    pub host_layer_bytes: u64,
    /// Bytes from one layer to the next, for a replay.
    pub device_layer_bytes: u64,
    /// Bytes of a row.
    pub row_bytes: u64,
    /// The first host row that is out of range.
    pub host_row_limit: u64,
    /// The first device row that is out of range.
    pub device_row_limit: u64,
    /// Elements from one request to the next.
    pub positions_step: u64,
    /// Elements from one request to the next.
    pub rows_out_step: u64,
    /// Elements from one table to the next.
    pub keys_step: u64,
    /// Elements from one table to the next.
    pub order_step: u64,
    /// Elements from one table to the next.
    pub map_step: u64,
    /// Elements from one table to the next.
    pub host_rows_step: u64,
    /// Elements from one request's plan to the next.
    pub plan_step: u64,
    /// Requests, or their maximum.
    pub batch: u32,
    /// Positions of a request.
    pub count: u32,
    /// Slots of a table.
    pub slots: u32,
    /// The first position that is out of range.
    pub position_limit: u32,
    /// Tables of a layer.
    pub tables: u32,
    /// Layers of a replay or a clear.
    pub layers: u32,
    /// 4 or 8.
    pub request_bytes: u32,
    /// 4 or 8.
    pub length_bytes: u32,
    /// 16, 8, 4 or 1.
    pub unit: u32,
    /// Blocks of a request.
    pub team: u32,
    /// The hash table of LRU has two to this power places.
    pub hash_bits: u32,
    /// [`POLICY_LRU`] or [`POLICY_CLOCK`].
    pub policy: u32,
}

/// The least recently used slot is evicted.
pub const POLICY_LRU: u32 = 0;
/// The hand takes the next slot that was not used since it last passed.
pub const POLICY_CLOCK: u32 = 1;
/// Bytes of a team.
pub const TEAM_BYTES: u64 = 16;
/// Counters: hits, misses, absent positions.
pub const COUNTERS: usize = 3;
/// The entry of a position that is in no slot.
pub const NO_SLOT: u32 = u32::MAX;

// `hot_pool_params.cuh` asserts the same numbers.
assert_layout!(HotPoolParams, 312 bytes:
    positions: 0, rows_out: 8, requests: 16, lengths: 24, batch_at: 32, keys: 40, order: 48,
    map: 56, used: 64, clocks: 72, device_rows: 80, host_rows: 88, host: 96, device: 104,
    plan_sources: 112, plan_destinations: 120, plan_counts: 128, teams: 136, counters: 144,
    host_stride_bytes: 152, device_stride_bytes: 160, host_layer_bytes: 168,
    device_layer_bytes: 176, row_bytes: 184, host_row_limit: 192, device_row_limit: 200,
    positions_step: 208, rows_out_step: 216, keys_step: 224, order_step: 232, map_step: 240,
    host_rows_step: 248, plan_step: 256, batch: 264, count: 268, slots: 272,
    position_limit: 276, tables: 280, layers: 284, request_bytes: 288, length_bytes: 292,
    unit: 296, team: 300, hash_bits: 304, policy: 308,
);
