//! The only argument of every hash-table kernel; `kernels/include/table_params.cuh` draws it field
//! by field.
//!
//! That file also defines the meaning of each field, because the kernels give them meaning.
//! Addresses are the device's.

use crate::layout::assert_layout;

/// See `kernels/include/table_params.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableState {
    /// u8 per slot.
    pub digests: u64,
    /// u64 per slot.
    pub keys: u64,
    /// u64 or u32 per slot.
    pub scores: u64,
    /// u32 per bucket: lock, flags, version.
    pub words: u64,
    /// One bit per slot, in u32.
    pub pins: u64,
    /// Two u64: number of entries, and number of pinned entries.
    pub control: u64,
    /// Rows of slots below `rows_split`.
    pub rows: u64,
    /// Rows of the other slots, in host memory.
    pub rows_host: u64,
    /// In slots.
    pub rows_split: u64,
    /// Number of buckets, even with two candidates per key.
    pub buckets: u64,
    /// Bytes per row, 0 for none.
    pub row_bytes: u64,
    /// Bytes from one row to the next.
    pub row_stride_bytes: u64,
    /// Slots per bucket.
    pub width: u32,
    /// Buckets per key.
    pub candidates: u32,
    /// 4 or 8.
    pub score_bytes: u32,
    /// The number of a [`GpuEvictStrategy`](super::GpuEvictStrategy).
    pub policy: u32,
}

/// See `kernels/include/table_params.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableOp {
    /// The table.
    pub table: TableState,
    /// Number of keys (the maximum if `count_at` is set), or slots of a scan.
    pub count: u64,
    /// u64 per key.
    pub keys: u64,
    /// `row_bytes` per key, or 0.
    pub rows_in: u64,
    /// `row_bytes` per key, or 0.
    pub rows_out: u64,
    /// u64 per key, or 0.
    pub scores_in: u64,
    /// u64 per key, or 0.
    pub scores_out: u64,
    /// u64 per key, or 0.
    pub slots_out: u64,
    /// u64 per key, or 0.
    pub pointers_out: u64,
    /// u8 per key, or 0.
    pub status_out: u64,
    /// u8 per key, with [`BY_FLAG`].
    pub flags: u64,
    /// A u64 to add to, or 0.
    pub out_count: u64,
    /// u64 per entry, or 0.
    pub out_keys: u64,
    /// `row_bytes` per entry, or 0.
    pub out_rows: u64,
    /// u64 per entry, or 0.
    pub out_scores: u64,
    /// u64 per entry, or 0.
    pub out_places: u64,
    /// For the epoch strategies.
    pub epoch: u64,
    /// For a scan.
    pub first_slot: u64,
    /// For a scan.
    pub score_min: u64,
    /// For a scan.
    pub score_max: u64,
    /// For a scan.
    pub key_mask: u64,
    /// For a scan.
    pub key_value: u64,
    /// For a writer: bits from [`FOUND_ASSIGN_ROW`] on.
    pub actions: u32,
    /// [`SCAN_COUNT`], [`SCAN_EXPORT`], [`SCAN_ERASE`] or [`SCAN_CLOCK`].
    pub scan: u32,
    /// The number of an [`Element`](super::Element).
    pub element: u32,
    /// [`LOOKUP_BY_LOAD`], [`LOOKUP_NARROW`] or [`LOOKUP_WIDE`].
    pub lookup: u32,
    /// If not 0, rows are read again if a writer changed them during the lookup.
    pub concurrent_writers: u32,
    /// For a pooled lookup: the number of a [`RowFormat`](super::RowFormat).
    pub row_format: u32,
    /// Address of a u64 with the number of keys, or 0.
    pub count_at: u64,
    /// Number of bags.
    pub bags: u64,
    /// u64 per bag and one more.
    pub offsets: u64,
    /// f32 per key, or 0.
    pub weights: u64,
    /// u32 per bag, or 0.
    pub found_out: u64,
    /// f32 per value of each pooled row, or 0: see
    /// [`PooledArrays::sums`](super::PooledArrays::sums).
    pub sums: u64,
    /// The number of a [`Pooling`](super::Pooling).
    pub pooling: u32,
    /// The number of a [`PooledDtype`](super::PooledDtype).
    pub output: u32,
}

/// Sets the row of a found key.
pub const FOUND_ASSIGN_ROW: u32 = 1 << 0;
/// Adds the given row's elements to the row of a found key.
pub const FOUND_ADD_ROW: u32 = 1 << 1;
/// Outputs the row of a found key as it was before.
pub const FOUND_READ_ROW: u32 = 1 << 2;
/// Updates the score of a found key by the strategy.
pub const FOUND_SCORE: u32 = 1 << 3;
/// Erases a found key.
pub const FOUND_ERASE: u32 = 1 << 4;
/// Pins a found key: nothing changes or evicts it.
pub const FOUND_PIN: u32 = 1 << 5;
/// Unpins a found key.
pub const FOUND_UNPIN: u32 = 1 << 6;
/// Inserts an absent key.
pub const ABSENT_INSERT: u32 = 1 << 7;
/// Outputs the entries that the table does not keep.
pub const EVICTED_OUT: u32 = 1 << 8;
/// Acts by each key's flag: only if found, or only if absent.
pub const BY_FLAG: u32 = 1 << 9;
/// Uses the given scores under every strategy.
pub const SCORE_AS_GIVEN: u32 = 1 << 10;

/// Counts entries.
pub const SCAN_COUNT: u32 = 0;
/// Copies entries out.
pub const SCAN_EXPORT: u32 = 1;
/// Erases entries unless they are pinned.
pub const SCAN_ERASE: u32 = 2;
/// Reads the device's clock.
pub const SCAN_CLOCK: u32 = 3;

/// Chooses by the table's load.
pub const LOOKUP_BY_LOAD: u32 = 0;
/// One sector first.
pub const LOOKUP_NARROW: u32 = 1;
/// The whole row at once.
pub const LOOKUP_WIDE: u32 = 2;

// `table_params.cuh` asserts the same numbers.
assert_layout!(TableState, 112 bytes:
    digests: 0, keys: 8, scores: 16, words: 24, pins: 32, control: 40, rows: 48, rows_host: 56,
    rows_split: 64, buckets: 72, row_bytes: 80, row_stride_bytes: 88, width: 96,
    candidates: 100, score_bytes: 104, policy: 108,
);
assert_layout!(TableOp, 360 bytes:
    table: 0, count: 112, keys: 120, rows_in: 128, rows_out: 136, scores_in: 144,
    scores_out: 152, slots_out: 160, pointers_out: 168, status_out: 176, flags: 184,
    out_count: 192, out_keys: 200, out_rows: 208, out_scores: 216, out_places: 224, epoch: 232,
    first_slot: 240, score_min: 248, score_max: 256, key_mask: 264, key_value: 272,
    actions: 280, scan: 284, element: 288, lookup: 292, concurrent_writers: 296,
    row_format: 300, count_at: 304, bags: 312, offsets: 320, weights: 328, found_out: 336,
    sums: 344, pooling: 352, output: 356,
);
