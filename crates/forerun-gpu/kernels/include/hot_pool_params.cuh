// The only argument of every hot-pool kernel, passed by value. src/hot_pool/params.rs declares the
// same layout; both sides assert its size and the offset of every field.
//
//   request b of the batch       table t = requests[b]; out of range: every answer is -1
//     positions[b, i]            i32: the position that the request reads, or -1
//     rows_out [b, i]            i32: the device row that holds it after the launch, or -1
//   table t
//     keys       [t, slot]       i32: the position in the slot, or -1
//     device_rows[t, slot]       i32: the slot's row; without this array it is t * slots + slot
//     host_rows  [t, position]   i64: the position's row in host memory; without it, the position
//     order      [t, place]      LRU: i16: the slots, the least recently used first
//     map        [t, position]   CLOCK: u32: the position's slot, or ~0
//     used       [t, slot]       CLOCK: u32: time of the last use, or 0 once the hand has passed
//     clocks     [t]             CLOCK: u32 hand, u32 time, which counts the launches
//   plan of request b            the rows that the launch fetches, in order of their first position
//     plan_sources[b, m]         i64: host row
//     plan_destinations[b, m]    i32: device row
//     plan_counts[b]             i32
//
// A position is absent, and its answer -1, if it is negative, too large, or has no host row. Each
// absent position except -1 is counted.
//
// With `lengths`, tables obey the contract of SGLang's HiSparse kernel (its pull request 20343):
//
//   length <= slots              position p is in slot p; nothing is searched, changed or fetched
//   otherwise                    position length - 1, the newest, is in slot `slots`, which is never
//                                evicted; the others are searched among slots 0 .. slots - 1
//   positions from length on     are absent
#pragma once
#include "word.cuh"

namespace forerun::hot_pool {

enum Policy : u32 { policy_lru, policy_clock };

// In device memory, one per request of the batch; zeros before and after each launch.
struct Team {
    u32 arrived;    //  0  blocks that have begun
    u32 published;  //  4  rows of the plan and one more, once it is complete
    u32 left;       //  8  blocks that have finished
    u32 unused;     // 12
};
static_assert(sizeof(Team) == 16, "src/hot_pool/params.rs has the same size");

// The u64 counters, in device memory, for all requests.
enum Counter : u32 {
    counter_hits,    // different positions that were in a slot
    counter_misses,  // different positions that were fetched
    counter_absent,  // positions that have no row
};

struct HotPoolParams {
    u64 positions;            //   0
    u64 rows_out;             //   8
    u64 requests;             //  16  table numbers, request_bytes wide; 0: request b has table b
    u64 lengths;              //  24  length_bytes wide, or 0
    u64 batch_at;             //  32  address of an i32, the number of requests; 0: `batch`
    u64 keys;                 //  40
    u64 order;                //  48
    u64 map;                  //  56
    u64 used;                 //  64
    u64 clocks;               //  72
    u64 device_rows;          //  80  or 0
    u64 host_rows;            //  88  or 0
    u64 host;                 //  96  host row 0, as the device sees it
    u64 device;               // 104  device row 0
    u64 plan_sources;         // 112
    u64 plan_destinations;    // 120
    u64 plan_counts;          // 128
    u64 teams;                // 136  a Team per request of the batch
    u64 counters;             // 144  a u64 per Counter, or 0
    u64 host_stride_bytes;    // 152  from one row to the next
    u64 device_stride_bytes;  // 160
    u64 host_layer_bytes;     // 168  of a replay: from one layer to the next
    u64 device_layer_bytes;   // 176
    u64 row_bytes;            // 184
    u64 host_row_limit;       // 192  the first host row that is out of range
    u64 device_row_limit;     // 200
    u64 positions_step;       // 208  elements from one request to the next
    u64 rows_out_step;        // 216
    u64 keys_step;            // 224  elements from one table to the next, also of device_rows
    u64 order_step;           // 232
    u64 map_step;             // 240
    u64 host_rows_step;       // 248
    u64 plan_step;            // 256
    u32 batch;                // 264  requests, or their maximum
    u32 count;                // 268  positions of a request, at most `slots`
    u32 slots;                // 272  of a table; LRU: at most 32,768
    u32 position_limit;       // 276  the first position that is out of range, at most 2^31 - 1
    u32 tables;               // 280  tables of a layer
    u32 layers;               // 284  of a replay: layers to fetch; of a clear: layers of tables
    u32 request_bytes;        // 288  4 or 8
    u32 length_bytes;         // 292  4 or 8
    u32 unit;                 // 296  16, 8, 4 or 1: divides rows, strides and addresses
    u32 team;                 // 300  blocks of a request
    u32 hash_bits;            // 304  LRU: 2^hash_bits places, at least twice `count`
    u32 policy;               // 308  a Policy
};

static_assert(sizeof(HotPoolParams) == 312, "src/hot_pool/params.rs has the same layout");
#define AT(field, offset) FORERUN_ASSERT_OFFSET(HotPoolParams, field, offset)
AT(positions, 0); AT(rows_out, 8); AT(requests, 16); AT(lengths, 24); AT(batch_at, 32);
AT(keys, 40); AT(order, 48); AT(map, 56); AT(used, 64); AT(clocks, 72); AT(device_rows, 80);
AT(host_rows, 88); AT(host, 96); AT(device, 104); AT(plan_sources, 112);
AT(plan_destinations, 120); AT(plan_counts, 128); AT(teams, 136); AT(counters, 144);
AT(host_stride_bytes, 152); AT(device_stride_bytes, 160); AT(host_layer_bytes, 168);
AT(device_layer_bytes, 176); AT(row_bytes, 184); AT(host_row_limit, 192);
AT(device_row_limit, 200); AT(positions_step, 208); AT(rows_out_step, 216); AT(keys_step, 224);
AT(order_step, 232); AT(map_step, 240); AT(host_rows_step, 248); AT(plan_step, 256);
AT(batch, 264); AT(count, 268); AT(slots, 272); AT(position_limit, 276); AT(tables, 280);
AT(layers, 284); AT(request_bytes, 288); AT(length_bytes, 292); AT(unit, 296); AT(team, 300);
AT(hash_bits, 304); AT(policy, 308);
#undef AT

}  // namespace forerun::hot_pool
