// The only argument of every row-copying kernel, passed by value. src/gather/params.rs declares the
// same layout; both sides assert its size and the offset of every field.
//
//   for layer in 0..layers, for i in 0..n:                        n = device_count ? clamp(*device_count, 0, count) : count
//     s = source_index     [layer * index_layer_step + i * source_index_step]          signed, 4 or 8 bytes
//     d = destination_index[layer * index_layer_step + i * destination_index_step]
//     from = source_of(layer)      + offset of row s
//     to   = destination_of(layer) + offset of row d
//
//   offset of row r = r * stride_bytes                                                   without pages
//                   = r / page_rows * page_bytes + r % page_rows * stride_bytes          with pages
//
//   | s                    | d                       | what happens                                        |
//   |----------------------|-------------------------|-----------------------------------------------------|
//   | 0 .. source_rows     | 0 .. destination_rows   | row_bytes bytes go from `from` to `to`; map updated |
//   | negative or too large| 0 .. destination_rows   | nothing, or `to` is zeroed (`absent`)               |
//   | any                  | negative or too large   | nothing                                             |
//
// An index of -1 means "no row". Any other index outside its range is an error, which the host
// cannot detect before the launch. The kernels access nothing outside the ranges. If out_of_range
// is set, they increment *out_of_range once per bad index in every layer that uses the index, so a
// pair can add two.
//
// source_of(layer) is source_table[layer] if there is a table, otherwise source + layer *
// source_layer_bytes; likewise for the destination. The map is one array of map_bytes-wide integers
// per layer, indexed by the *host's* row: the source in a gather, the destination in a scatter.
// `map_set` stores the device's row there; `map_clear` stores -1 (the row is no longer on the
// device). The kernels write only the entries of copied rows. Nothing reads the map during the
// launch: readers wait for the launch to end. The caller clears the entries of device rows that a
// copy overwrites.
//
// If two copies have the same destination row, or a destination overlaps a source, that row is
// unspecified (a mix of both).
#pragma once
#include "word.cuh"

namespace forerun {

enum Direction : u32 { gather = 0, scatter = 1 };               // host to device, device to host
// The treatment of a destination whose source is absent.
enum Absent : u32 { absent_skip = 0, absent_zero = 1 };
enum MapUpdate : u32 { map_keep = 0, map_set = 1, map_clear = 2 };

struct GatherParams {
    u64 source;                    //   0  address of row 0 of layer 0, as the device sees it
    u64 destination;               //   8
    u64 source_table;              //  16  `layers` addresses, or 0: see source_layer_bytes
    u64 destination_table;         //  24
    i64 source_layer_bytes;        //  32
    i64 destination_layer_bytes;   //  40
    u64 source_stride_bytes;       //  48  from one row to the next, within a page if there are any
    u64 destination_stride_bytes;  //  56
    u64 row_bytes;                 //  64  a multiple of the unit, like addresses, strides and pages
    u64 source_page_bytes;         //  72  from one page to the next, if there are pages
    u64 destination_page_bytes;    //  80
    u64 source_rows;               //  88  rows of a layer: the first index that is out of range
    u64 destination_rows;          //  96
    u64 source_index;              // 104  address of the first index
    u64 destination_index;         // 112
    u64 source_index_step;         // 120  in indices: 1 for a separate array, 2 inside [n, 2] pairs
    u64 destination_index_step;    // 128
    u64 index_layer_step;          // 136  in indices: 0 if all layers share their indices
    u64 count;                     // 144  pairs of a layer, or their maximum
    u64 device_count;              // 152  address of a signed count on the device, or 0
    u64 map;                       // 160  address of layer 0's map, or 0 with map_keep
    u64 map_layer_step;            // 168  in entries
    u64 out_of_range;              // 176  address of a u64 counter, or 0
    u32 layers;                    // 184
    u32 index_bytes;               // 188  4 or 8
    u32 count_bytes;               // 192  4 or 8
    u32 map_bytes;                 // 196  4 or 8
    u32 direction;                 // 200  a Direction: says which side is the host's
    u32 absent;                    // 204  an Absent
    u32 map_update;                // 208  a MapUpdate
    u32 stage_bytes;               // 212  V6: bytes of a stage, a multiple of 128; else 0
    u32 source_page_rows;          // 216  rows of a page, or 0 for no pages; with pages, a layer
    u32 destination_page_rows;     // 220  has at most 2^32 rows
};

static_assert(sizeof(GatherParams) == 224, "src/gather/params.rs has the same layout");
#define AT(field, offset) FORERUN_ASSERT_OFFSET(GatherParams, field, offset)
AT(source, 0); AT(destination, 8); AT(source_table, 16); AT(destination_table, 24);
AT(source_layer_bytes, 32); AT(destination_layer_bytes, 40); AT(source_stride_bytes, 48);
AT(destination_stride_bytes, 56); AT(row_bytes, 64); AT(source_page_bytes, 72);
AT(destination_page_bytes, 80); AT(source_rows, 88); AT(destination_rows, 96);
AT(source_index, 104); AT(destination_index, 112); AT(source_index_step, 120);
AT(destination_index_step, 128); AT(index_layer_step, 136); AT(count, 144); AT(device_count, 152);
AT(map, 160); AT(map_layer_step, 168); AT(out_of_range, 176); AT(layers, 184);
AT(index_bytes, 188); AT(count_bytes, 192); AT(map_bytes, 196); AT(direction, 200);
AT(absent, 204); AT(map_update, 208); AT(stage_bytes, 212); AT(source_page_rows, 216);
AT(destination_page_rows, 220);
#undef AT

}  // namespace forerun
