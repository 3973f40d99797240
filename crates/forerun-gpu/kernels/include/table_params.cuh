// The one argument of every kernel of the hash table: the table, and what is to be done with a
// batch of keys.
//
//   TableOp ── TableState   where the arrays lie, how many buckets, how they are filled
//           └─ the batch    addresses of arrays with an entry a key; 0 where the operation has none
//
// Addresses are as the device sees them. docs/internals/gpu-table.md draws the arrays.
#pragma once
#include "word.cuh"

namespace forerun::table {

// How the score of an entry follows from what is done with it.
enum Policy : u32 {
    policy_lru,          // when it was last written or touched, in nanoseconds
    policy_lfu,          // how often, or the sum of the scores given
    policy_epoch_lru,    // epoch << 32 | when, in units of 2^20 ns
    policy_epoch_lfu,    // epoch << 32 | how often
    policy_custom,       // as given
};

// What a writer does with a key, by bits.
enum Action : u32 {
    found_assign_row = 1u << 0,
    found_add_row = 1u << 1,
    found_read_row = 1u << 2,
    found_score = 1u << 3,       // by the policy
    found_erase = 1u << 4,
    found_pin = 1u << 5,
    found_unpin = 1u << 6,
    absent_insert = 1u << 7,
    evicted_out = 1u << 8,       // what is evicted or refused goes to out_*
    by_flag = 1u << 9,           // flags[i] != 0: only if found; 0: only if absent
    score_as_given = 1u << 10,   // whatever the policy
};

// What became of a key.
enum Status : u8 {
    status_absent = 0,     // and nothing was done
    status_found = 1,
    status_inserted = 2,   // into a free slot
    status_evicted = 3,    // inserted in place of an entry of no greater score
    status_refused = 4,    // every candidate has a greater score, or is pinned
    status_pinned = 5,     // found, and not changed: it is pinned
};

// What a scan does with the entries that meet its condition.
enum Scan : u32 { scan_count, scan_export, scan_erase };

enum Element : u32 { element_f32, element_f64, element_i32, element_i64 };

// How a lookup goes: see table.list.
enum Lookup : u32 { lookup_by_load, lookup_narrow, lookup_wide };

// In the device's memory, one a table.
struct TableControl {
    u64 size;              //  0  entries; exact when no writer runs
    u64 pinned;            //  8  of them pinned
};

struct TableState {
    u64 digests;           //   0  u8 a slot, rows of `width`, aligned to 128
    u64 keys;              //   8  u64 a slot
    u64 scores;            //  16  u64 or u32 a slot
    u64 words;             //  24  u32 a bucket: lock, spilled, version
    u64 pins;              //  32  u32 for every 32 slots of a bucket, at least one a bucket
    u64 control;           //  40  a TableControl
    u64 rows;              //  48  rows of slots below `rows_split`
    u64 rows_host;         //  56  rows of the others, in pinned host memory
    u64 rows_split;        //  64  in slots
    u64 buckets;           //  72  even where there are two candidates
    u64 row_bytes;         //  80  0: no rows
    u64 row_stride_bytes;  //  88
    u32 width;             //  96  16, 32, 64 or 128 slots a bucket
    u32 candidates;        // 100  1 or 2 buckets a key
    u32 score_bytes;       // 104  4 or 8
    u32 policy;            // 108  a Policy
};
static_assert(sizeof(TableState) == 112, "src/table/params.rs has the same layout");

struct TableOp {
    TableState table;      //   0
    u64 count;             // 112  keys (the most, with count_at), or slots of a scan
    u64 keys;              // 120  u64 a key
    u64 rows_in;           // 128  rows, row_bytes apart
    u64 rows_out;          // 136
    u64 scores_in;         // 144  u64 a key
    u64 scores_out;        // 152
    u64 slots_out;         // 160  u64 a key: the slot, or ~0
    u64 pointers_out;      // 168  u64 a key: the row's address, or 0
    u64 status_out;        // 176  u8 a key: a Status
    u64 flags;             // 184  u8 a key
    u64 out_count;         // 192  u64: entries in out_*, added to
    u64 out_keys;          // 200  what was evicted, is missed, or was exported
    u64 out_rows;          // 208
    u64 out_scores;        // 216
    u64 out_places;        // 224  u64: the key's place in the batch, or its slot (export)
    u64 epoch;             // 232  of the epoch policies
    u64 first_slot;        // 240  of a scan
    u64 score_min;       // 248  a scan's condition: least <= score <= most,
    u64 score_max;        // 256
    u64 key_mask;          // 264  and key & mask == value
    u64 key_value;         // 272
    u32 actions;           // 280  of a writer: Action bits
    u32 scan;              // 284  a Scan
    u32 element;           // 288  an Element
    u32 lookup;            // 292  a Lookup
    u32 beside_writers;    // 296  rows are read again where a writer was at them meanwhile
    u32 unused;            // 300
    u64 count_at;          // 304  a u64 of the device that says how many of the keys there are; 0: all
};
static_assert(sizeof(TableOp) == 312, "src/table/params.rs has the same layout");

}  // namespace forerun::table
