//! The only argument of every row-copying kernel; `kernels/include/gather_params.cuh` draws it
//! field by field.
//!
//! That file also defines the meaning of each field, of indices that are not a row, and of the slot
//! map, because the kernels give them meaning. Addresses are the device's.

use crate::layout::assert_layout;

/// See `kernels/include/gather_params.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GatherParams {
    /// Address of row 0 of layer 0.
    pub source: u64,
    /// Address of row 0 of layer 0.
    pub destination: u64,
    /// Address of `layers` addresses, or 0 if layers are `source_layer_bytes` apart.
    pub source_table: u64,
    /// Address of `layers` addresses, or 0 if layers are `destination_layer_bytes` apart.
    pub destination_table: u64,
    /// Bytes from one layer to the next.
    pub source_layer_bytes: i64,
    /// Bytes from one layer to the next.
    pub destination_layer_bytes: i64,
    /// Bytes from one row to the next.
    pub source_stride_bytes: u64,
    /// Bytes from one row to the next.
    pub destination_stride_bytes: u64,
    /// A multiple of the kernel's unit, like all addresses and strides.
    pub row_bytes: u64,
    /// Bytes from one page to the next, with `source_page_rows`.
    pub source_page_bytes: u64,
    /// Bytes from one page to the next, with `destination_page_rows`.
    pub destination_page_bytes: u64,
    /// Rows of a layer: the first index that is out of range. At most 2^32 with pages.
    pub source_rows: u64,
    /// Rows of a layer: the first index that is out of range. At most 2^32 with pages.
    pub destination_rows: u64,
    /// Address of the first index.
    pub source_index: u64,
    /// Address of the first index.
    pub destination_index: u64,
    /// In indices: 1 for a separate array, 2 inside `[n, 2]` pairs.
    pub source_index_step: u64,
    /// In indices: 1 for a separate array, 2 inside `[n, 2]` pairs.
    pub destination_index_step: u64,
    /// In indices: 0 if all layers share their indices.
    pub index_layer_step: u64,
    /// Pairs of a layer, or their maximum if `device_count` is given.
    pub count: u64,
    /// Address of a signed count on the device, or 0.
    pub device_count: u64,
    /// Address of layer 0's map, or 0 with [`MAP_KEEP`].
    pub map: u64,
    /// In entries, from one layer's map to the next.
    pub map_layer_step: u64,
    /// Address of a `u64` that counts indices out of range other than -1, or 0.
    pub out_of_range: u64,
    /// Number of layers, at least 1.
    pub layers: u32,
    /// 4 or 8.
    pub index_bytes: u32,
    /// 4 or 8.
    pub count_bytes: u32,
    /// 4 or 8.
    pub map_bytes: u32,
    /// [`GATHER`] or [`SCATTER`]: shows which side is the host's.
    pub direction: u32,
    /// [`ABSENT_SKIP`] or [`ABSENT_ZERO`].
    pub absent: u32,
    /// [`MAP_KEEP`], [`MAP_SET`] or [`MAP_CLEAR`].
    pub map_update: u32,
    /// V6: bytes of one stage in shared memory, a multiple of 128; otherwise 0.
    pub stage_bytes: u32,
    /// Rows of a page, or 0 if all rows are `source_stride_bytes` apart.
    pub source_page_rows: u32,
    /// Rows of a page, or 0 if all rows are `destination_stride_bytes` apart.
    pub destination_page_rows: u32,
}

/// Host to device: the source is the host's.
pub const GATHER: u32 = 0;
/// Device to host: the destination is the host's.
pub const SCATTER: u32 = 1;
/// A pair without a source row leaves its destination as it is.
pub const ABSENT_SKIP: u32 = 0;
/// A pair without a source row fills its destination with zeros.
pub const ABSENT_ZERO: u32 = 1;
/// The slot map is not changed.
pub const MAP_KEEP: u32 = 0;
/// `map[host row] = device row` for each row copied.
pub const MAP_SET: u32 = 1;
/// `map[host row] = -1` for each row copied.
pub const MAP_CLEAR: u32 = 2;

// `gather_params.cuh` asserts the same numbers.
assert_layout!(GatherParams, 224 bytes:
    source: 0, destination: 8, source_table: 16, destination_table: 24, source_layer_bytes: 32,
    destination_layer_bytes: 40, source_stride_bytes: 48, destination_stride_bytes: 56,
    row_bytes: 64, source_page_bytes: 72, destination_page_bytes: 80, source_rows: 88,
    destination_rows: 96, source_index: 104, destination_index: 112, source_index_step: 120,
    destination_index_step: 128, index_layer_step: 136, count: 144, device_count: 152, map: 160,
    map_layer_step: 168, out_of_range: 176, layers: 184, index_bytes: 188, count_bytes: 192,
    map_bytes: 196, direction: 200, absent: 204, map_update: 208, stage_bytes: 212,
    source_page_rows: 216, destination_page_rows: 220,
);
