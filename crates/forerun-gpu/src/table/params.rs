//! The one argument of every kernel of the hash table: what `kernels/include/table_params.cuh`
//! draws, field by field.
//!
//! The meaning of each field stands there, since the kernels are what gives them meaning. Addresses
//! are as the device sees them.

use std::mem::{offset_of, size_of};

/// See `kernels/include/table_params.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableState {
    /// u8 a slot.
    pub digests: u64,
    /// u64 a slot.
    pub keys: u64,
    /// u64 or u32 a slot.
    pub scores: u64,
    /// u32 a bucket: lock, spilled, version.
    pub words: u64,
    /// A bit a slot, in u32.
    pub pins: u64,
    /// Two u64: entries, and how many of them are pinned.
    pub control: u64,
    /// Rows of slots below `rows_split`.
    pub rows: u64,
    /// Rows of the other slots, in host memory.
    pub rows_host: u64,
    /// In slots.
    pub rows_split: u64,
    /// How many; even where a key has two candidates.
    pub buckets: u64,
    /// Bytes of a row, 0 for none.
    pub row_bytes: u64,
    /// From one row to the next.
    pub row_stride_bytes: u64,
    /// Slots a bucket.
    pub width: u32,
    /// Buckets a key.
    pub candidates: u32,
    /// 4 or 8.
    pub score_bytes: u32,
    /// As [`Policy`](super::Policy) is numbered.
    pub policy: u32,
}

/// See `kernels/include/table_params.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableOp {
    /// The table.
    pub table: TableState,
    /// Keys (the most of them, with `count_at`), or slots of a scan.
    pub count: u64,
    /// u64 a key.
    pub keys: u64,
    /// `row_bytes` a key, or 0.
    pub rows_in: u64,
    /// `row_bytes` a key, or 0.
    pub rows_out: u64,
    /// u64 a key, or 0.
    pub scores_in: u64,
    /// u64 a key, or 0.
    pub scores_out: u64,
    /// u64 a key, or 0.
    pub slots_out: u64,
    /// u64 a key, or 0.
    pub pointers_out: u64,
    /// u8 a key, or 0.
    pub status_out: u64,
    /// u8 a key, with [`BY_FLAG`].
    pub flags: u64,
    /// A u64 that is added to, or 0.
    pub out_count: u64,
    /// u64 an entry, or 0.
    pub out_keys: u64,
    /// `row_bytes` an entry, or 0.
    pub out_rows: u64,
    /// u64 an entry, or 0.
    pub out_scores: u64,
    /// u64 an entry, or 0.
    pub out_places: u64,
    /// Of the epoch policies.
    pub epoch: u64,
    /// Of a scan.
    pub first_slot: u64,
    /// Of a scan.
    pub score_min: u64,
    /// Of a scan.
    pub score_max: u64,
    /// Of a scan.
    pub key_mask: u64,
    /// Of a scan.
    pub key_value: u64,
    /// Of a writer: bits from [`FOUND_ASSIGN_ROW`] on.
    pub actions: u32,
    /// [`SCAN_COUNT`], [`SCAN_EXPORT`] or [`SCAN_ERASE`].
    pub scan: u32,
    /// As [`Element`](super::Element) is numbered.
    pub element: u32,
    /// [`LOOKUP_BY_LOAD`], [`LOOKUP_NARROW`] or [`LOOKUP_WIDE`].
    pub lookup: u32,
    /// Not 0: rows are read again where a writer was at them meanwhile.
    pub beside_writers: u32,
    /// Nothing.
    pub unused: u32,
    /// A u64 that says how many of the keys there are, or 0.
    pub count_at: u64,
}

/// The row of a key that is found becomes the given one.
pub const FOUND_ASSIGN_ROW: u32 = 1 << 0;
/// The given row's elements are added to it.
pub const FOUND_ADD_ROW: u32 = 1 << 1;
/// It is given away, as it was before.
pub const FOUND_READ_ROW: u32 = 1 << 2;
/// Its score follows the policy.
pub const FOUND_SCORE: u32 = 1 << 3;
/// It goes.
pub const FOUND_ERASE: u32 = 1 << 4;
/// Nothing changes or evicts it from here on.
pub const FOUND_PIN: u32 = 1 << 5;
/// Until this.
pub const FOUND_UNPIN: u32 = 1 << 6;
/// A key that is not found is put in.
pub const ABSENT_INSERT: u32 = 1 << 7;
/// What the table does not keep is given away.
pub const EVICTED_OUT: u32 = 1 << 8;
/// By each key's flag: only if found, or only if absent.
pub const BY_FLAG: u32 = 1 << 9;
/// Scores are the given ones, whatever the policy.
pub const SCORE_AS_GIVEN: u32 = 1 << 10;

/// Entries are counted.
pub const SCAN_COUNT: u32 = 0;
/// Entries are copied out.
pub const SCAN_EXPORT: u32 = 1;
/// Entries are erased, unless pinned.
pub const SCAN_ERASE: u32 = 2;

/// As full as the table is.
pub const LOOKUP_BY_LOAD: u32 = 0;
/// A sector first.
pub const LOOKUP_NARROW: u32 = 1;
/// The row at once.
pub const LOOKUP_WIDE: u32 = 2;

// The kernels assert the same sizes; the offsets are numbered there.
const _: () = assert!(size_of::<TableState>() == 112 && size_of::<TableOp>() == 312);
const _: () = assert!(offset_of!(TableState, buckets) == 72 && offset_of!(TableState, width) == 96);
const _: () = assert!(offset_of!(TableOp, count) == 112 && offset_of!(TableOp, out_count) == 192);
const _: () = assert!(offset_of!(TableOp, epoch) == 232 && offset_of!(TableOp, actions) == 280);
const _: () = assert!(offset_of!(TableOp, beside_writers) == 296);
const _: () = assert!(offset_of!(TableOp, count_at) == 304);
