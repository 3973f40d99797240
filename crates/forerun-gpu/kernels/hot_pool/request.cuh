// What every part of a hot-pool kernel needs: the arrays of a request and its table, the rows that
// positions and slots stand for, and ranks within a block.
#pragma once
#include "../gather/row.cuh"
#include "../include/hot_pool_params.cuh"

namespace forerun::hot_pool {

constexpr u32 no_slot = ~0u;

// What the threads of a block share, besides the search's own arrays.
struct BlockState {
    u32 of_warp[32];  // flags of each warp
    u32 member;       // the block's number in its team
    u32 published;    // what the leader has published
    u32 hand;
};

// How many threads before this one have the flag, and how many there are in the block.
FORERUN_DEVICE u32 rank_in_block(BlockState& shared, bool flag, u32& total) {
    const u32 mask = ballot(all_lanes, flag);
    if (lane_in_warp() == 0) store(&shared.of_warp[warp_in_block()], ones(mask));
    block_sync();
    u32 before = 0, all = 0;
    for (u32 warp = 0; warp < warps_in_block(); ++warp) {
        const u32 flags = load(&shared.of_warp[warp]);
        if (warp < warp_in_block()) before += flags;
        all += flags;
    }
    block_sync();
    total = all;
    return before + ones(mask & ((1u << lane_in_warp()) - 1));
}

struct Request {
    u64 entry;        // in the batch
    u64 table;
    u32 limit;        // the first position that is absent
    i64 length;       // -1: none
    bool is_known;    // there is such a table
    bool is_in_order; // position p is in slot p
};

FORERUN_DEVICE Request request_of(const HotPoolParams& p, u32 entry) {
    Request r = {};
    r.entry = entry;
    const i64 table =
        p.requests == 0 ? i64(entry) : signed_of(p.requests, entry, p.request_bytes);
    r.is_known = u64(table) < p.tables;
    r.table = r.is_known ? u64(table) : 0;
    r.limit = p.position_limit;
    r.length = -1;
    if (p.lengths != 0) {
        const i64 given = signed_of(p.lengths, entry, p.length_bytes);
        r.length = given < 0 ? 0 : given;
        if (r.length < i64(r.limit)) r.limit = u32(r.length);
        r.is_in_order = r.length <= i64(p.slots);
    }
    return r;
}

// The number of requests in this launch.
FORERUN_DEVICE u32 batch_of(const HotPoolParams& p) {
    if (p.batch_at == 0) return p.batch;
    const i32 given = load_global(at<i32>(p.batch_at));
    return given < 0 ? 0 : u32(given) < p.batch ? u32(given) : p.batch;
}

FORERUN_DEVICE u32 position_of(const HotPoolParams& p, const Request& r, u32 i) {
    return u32(load_global(at<i32>(p.positions) + r.entry * p.positions_step + i));
}
// Whether the position must be searched for: it is present, and not the newest of a length.
FORERUN_DEVICE bool is_searched(const Request& r, u32 position) {
    return position < r.limit && i64(position) != r.length - 1;
}

FORERUN_DEVICE i32* keys_of(const HotPoolParams& p, const Request& r) {
    return at<i32>(p.keys) + r.table * p.keys_step;
}

// The row of a slot, or -1 if that is not a device row.
FORERUN_DEVICE i32 row_of_slot(const HotPoolParams& p, const Request& r, u32 slot) {
    const i64 row = p.device_rows == 0
                        ? i64(r.table * p.slots + slot)
                        : load_global(at<i32>(p.device_rows) + r.table * p.keys_step + slot);
    return u64(row) < p.device_row_limit ? i32(row) : -1;
}
// The host row of a position, or -1 if it has none.
FORERUN_DEVICE i64 host_row_of(const HotPoolParams& p, const Request& r, u32 position) {
    const i64 row = p.host_rows == 0
                        ? i64(position)
                        : load_global(at<i64>(p.host_rows) + r.table * p.host_rows_step + position);
    return u64(row) < p.host_row_limit ? row : -1;
}

FORERUN_DEVICE void add_to(const HotPoolParams& p, Counter counter, u32 more) {
    if (p.counters != 0 && more != 0) atomic_add(at<u64>(p.counters) + counter, u64(more));
}

// Writes the answers. `slot_of(position)` is the slot of a position that was searched for.
template <typename SlotOf>
FORERUN_DEVICE void write_rows(const HotPoolParams& p, const Request& r, SlotOf slot_of) {
    i32* const out = at<i32>(p.rows_out) + r.entry * p.rows_out_step;
    u32 absent = 0;
    for (u32 i = thread_in_block(); i < p.count; i += threads_in_block()) {
        const u32 position = position_of(p, r, i);
        u32 slot = no_slot;
        if (r.is_known && position < r.limit) {
            if (r.is_in_order) {
                slot = position;
            } else {
                slot = is_searched(r, position) ? slot_of(position) : p.slots;
            }
        }
        absent += slot == no_slot && position != ~0u;
        store_global(out + i, slot == no_slot ? -1 : row_of_slot(p, r, slot));
    }
    add_to(p, counter_absent, absent);
}

}  // namespace forerun::hot_pool
