// The only argument of every hash-table kernel. It describes the table, and the operation on a
// batch of keys.
//
//   TableOp ── TableState   addresses of the arrays, number of buckets, layout
//           └─ the batch    addresses of arrays with one entry per key; 0 if unused
//
// Addresses are device addresses. docs/internals/gpu-table.md draws the arrays.
#pragma once
#include "word.cuh"

namespace forerun::table {

// How the score of an entry is computed.
enum Policy : u32 {
    policy_lru,          // time of the last write or touch, in nanoseconds
    policy_lfu,          // number of uses, or the sum of the given scores
    policy_epoch_lru,    // epoch << 32 | time in units of 2^20 ns
    policy_epoch_lfu,    // epoch << 32 | number of uses
    policy_custom,       // given by the caller
};

// What a writer does with a key: a set of bits.
enum Action : u32 {
    found_assign_row = 1u << 0,
    found_add_row = 1u << 1,
    found_read_row = 1u << 2,
    found_score = 1u << 3,       // computed by the policy
    found_erase = 1u << 4,
    found_pin = 1u << 5,
    found_unpin = 1u << 6,
    absent_insert = 1u << 7,
    evicted_out = 1u << 8,       // evicted and refused entries go to out_*
    by_flag = 1u << 9,           // flags[i] != 0: only if found; 0: only if absent
    score_as_given = 1u << 10,   // whatever the policy is
};

// The outcome for a key.
enum Status : u8 {
    status_absent = 0,     // nothing was done
    status_found = 1,
    status_inserted = 2,   // into a free slot
    status_evicted = 3,    // inserted in place of an entry whose score was not greater
    status_refused = 4,    // every candidate has a greater score, or is pinned
    status_pinned = 5,     // found but not changed, because it is pinned
};

// The action of a scan on the entries that match its condition. scan_clock only stores the device's
// clock, in nanoseconds, to out_count.
enum Scan : u32 { scan_count, scan_export, scan_erase, scan_clock };

enum Element : u32 { element_f32, element_f64, element_i32, element_i64 };

// The format of rows, what becomes of a bag's rows, and the type of the result: see
// forerun_core::pooling, which defines the arithmetic.
enum RowFormat : u32 { format_f32, format_f16, format_bf16, format_qint8, format_quint8 };
enum Pooling : u32 { pooling_sum, pooling_mean };
enum PooledDtype : u32 { pooled_f32, pooled_f16, pooled_bf16 };

// How a lookup with tiles searches: see find_slots.cuh and key_search.cuh.
enum Lookup : u32 { lookup_by_load, lookup_narrow, lookup_wide };

// In device memory, one per table.
struct TableControl {
    u64 size;              //  0  number of entries; exact while no writer runs
    u64 pinned;            //  8  number of pinned entries
};

struct TableState {
    u64 digests;           //   0  u8 per slot, rows of `width`, aligned to 128
    u64 keys;              //   8  u64 per slot
    u64 scores;            //  16  u64 or u32 per slot
    u64 words;             //  24  u32 per bucket: lock, flags, version
    u64 pins;              //  32  u32 per 32 slots of a bucket, at least one per bucket
    u64 control;           //  40  a TableControl
    u64 rows;              //  48  rows of slots below `rows_split`
    u64 rows_host;         //  56  rows of the other slots, in pinned host memory
    u64 rows_split;        //  64  in slots
    u64 buckets;           //  72  even with two candidates
    u64 row_bytes;         //  80  0: no rows
    u64 row_stride_bytes;  //  88
    u32 width;             //  96  16, 32, 64 or 128 slots per bucket
    u32 candidates;        // 100  1 or 2 buckets per key
    u32 score_bytes;       // 104  4 or 8
    u32 policy;            // 108  a Policy
};
static_assert(sizeof(TableState) == 112, "src/table/params.rs has the same layout");
#define AT(field, offset) FORERUN_ASSERT_OFFSET(TableState, field, offset)
AT(digests, 0); AT(keys, 8); AT(scores, 16); AT(words, 24); AT(pins, 32); AT(control, 40);
AT(rows, 48); AT(rows_host, 56); AT(rows_split, 64); AT(buckets, 72); AT(row_bytes, 80);
AT(row_stride_bytes, 88); AT(width, 96); AT(candidates, 100); AT(score_bytes, 104);
AT(policy, 108);
#undef AT

struct TableOp {
    TableState table;      //   0
    u64 count;             // 112  keys (their maximum if count_at is set), or slots of a scan
    u64 keys;              // 120  u64 per key
    u64 rows_in;           // 128  rows, one every row_bytes
    u64 rows_out;          // 136  of a pooled lookup: a pooled row per bag
    u64 scores_in;         // 144  u64 per key
    u64 scores_out;        // 152
    u64 slots_out;         // 160  u64 per key: the slot, or ~0
    u64 pointers_out;      // 168  u64 per key: the row's address, or 0
    u64 status_out;        // 176  u8 per key: a Status
    u64 flags;             // 184  u8 per key
    u64 out_count;         // 192  u64: number of entries in out_*, incremented
    u64 out_keys;          // 200  the evicted, missing or exported entries
    u64 out_rows;          // 208
    u64 out_scores;        // 216
    u64 out_places;        // 224  u64: the key's position in the batch, or its slot (export)
    u64 epoch;             // 232  for the epoch policies
    u64 first_slot;        // 240  of a scan
    u64 score_min;         // 248  a scan's condition: least <= score <= most,
    u64 score_max;         // 256
    u64 key_mask;          // 264  and key & mask == value
    u64 key_value;         // 272
    u32 actions;           // 280  of a writer: Action bits
    u32 scan;              // 284  a Scan
    u32 element;           // 288  an Element
    u32 lookup;            // 292  a Lookup
    u32 concurrent_writers; // 296  rows are read again if a writer changed them during the lookup
    u32 row_format;        // 300  of a pooled lookup: a RowFormat
    u64 count_at;          // 304  address of the number of keys, a u64; 0: `count` keys
    u64 bags;              // 312  number of bags
    u64 offsets;           // 320  u64 per bag and one more: where its keys begin and end
    u64 weights;           // 328  float per key
    u64 found_out;         // 336  u32 per bag: number of its keys that were found
    u64 sums;              // 344  float per value of each pooled row: memory for sums, if needed
    u32 pooling;           // 352  a Pooling
    u32 output;            // 356  a PooledDtype
};
static_assert(sizeof(TableOp) == 360, "src/table/params.rs has the same layout");
#define AT(field, offset) FORERUN_ASSERT_OFFSET(TableOp, field, offset)
AT(table, 0); AT(count, 112); AT(keys, 120); AT(rows_in, 128); AT(rows_out, 136);
AT(scores_in, 144); AT(scores_out, 152); AT(slots_out, 160); AT(pointers_out, 168);
AT(status_out, 176); AT(flags, 184); AT(out_count, 192); AT(out_keys, 200); AT(out_rows, 208);
AT(out_scores, 216); AT(out_places, 224); AT(epoch, 232); AT(first_slot, 240); AT(score_min, 248);
AT(score_max, 256); AT(key_mask, 264); AT(key_value, 272); AT(actions, 280); AT(scan, 284);
AT(element, 288); AT(lookup, 292); AT(concurrent_writers, 296); AT(row_format, 300);
AT(count_at, 304); AT(bags, 312); AT(offsets, 320); AT(weights, 328); AT(found_out, 336);
AT(sums, 344); AT(pooling, 352); AT(output, 356);
#undef AT

}  // namespace forerun::table
