// Fetches the rows of a plan, and lets several blocks do so for one request.
//
//   block of a request     arrived 0              1, 2, ..
//                          the leader resolves    wait for the plan
//                          publishes    ------->
//                          fetches its share      fetch their share
//                          left + 1               left + 1        the last one clears the team
//
// The first block to arrive leads, so the others wait for a block that runs, in whatever order
// blocks start and however few run at a time. src/hot_pool/loom_tests.rs checks these orders:
//
//   published    release by the leader after its block has met; a fence after the others have read
//                it. Weaker: they may read an older plan.
//   arrived,     relaxed: a block does not use what the others do before they count; the end of the
//   left         launch orders the cleared team before the next one
//
// Rows are copied by the code of the gather (kernels/gather/aligned_rows.cuh).
#pragma once
#include "../gather/aligned_rows.cuh"
#include "../include/wait.cuh"
#include "request.cuh"

namespace forerun::hot_pool {

FORERUN_DEVICE Team* team_of(const HotPoolParams& p, u32 entry) {
    return at<Team>(p.teams) + entry;
}

// The block's number in its team, in order of arrival.
FORERUN_DEVICE u32 join(const HotPoolParams& p, u32 entry, BlockState& shared) {
    if (p.team == 1) return 0;
    if (thread_in_block() == 0)
        store(&shared.member, atomic_add(&team_of(p, entry)->arrived, 1u));
    block_sync();
    return load(&shared.member);
}

FORERUN_DEVICE void publish_plan(const HotPoolParams& p, u32 entry, u32 misses) {
    block_sync();
    if (thread_in_block() != 0) return;
    store_global(at<i32>(p.plan_counts) + entry, i32(misses));
    add_to(p, counter_misses, misses);
    if (p.team == 1) return;
    fence();
    store_release(&team_of(p, entry)->published, misses + 1);
}

// Waits for the plan and returns its length. One thread waits, and its block for it.
FORERUN_DEVICE u32 await_plan(const HotPoolParams& p, u32 entry, BlockState& shared) {
    if (thread_in_block() == 0) {
        u32 published = 0;
        for (u32 tries = 0; published == 0; ++tries) {
            if (tries != 0) backoff(tries);
            published = load_relaxed(&team_of(p, entry)->published);
        }
        fence();
        store(&shared.published, published);
    }
    block_sync();
    return load(&shared.published) - 1;
}

FORERUN_DEVICE void leave(const HotPoolParams& p, u32 entry) {
    if (p.team == 1) return;
    block_sync();
    if (thread_in_block() != 0) return;
    Team* const team = team_of(p, entry);
    if (atomic_add(&team->left, 1u) + 1 != p.team) return;
    store_relaxed(&team->arrived, 0u);
    store_relaxed(&team->published, 0u);
    store_relaxed(&team->left, 0u);
}

// Copies the rows m = warp * rows_each, ... of a plan with `count` rows, as one of `warps` warps.
template <u32 UNIT>
FORERUN_DEVICE void copy_rows(const HotPoolParams& p, u64 entry, u32 count, u64 layer, u64 warp,
                              u64 warps) {
    constexpr u32 rows_each = 2, align = UNIT == 1 ? 32 : 128;
    const i64* const sources = at<i64>(p.plan_sources) + entry * p.plan_step;
    const i32* const destinations = at<i32>(p.plan_destinations) + entry * p.plan_step;
    const u64 host = p.host + layer * p.host_layer_bytes;
    const u64 device = p.device + layer * p.device_layer_bytes;
    GatherParams copy = {};
    copy.row_bytes = p.row_bytes;
    copy.direction = gather;
    for (u64 first = warp * rows_each; first < count; first += warps * rows_each) {
        const u64 m = first + lane_in_warp();
        Row mine = {0, 0, forerun::Action::none};
        if (lane_in_warp() < rows_each && m < count) {
            const i64 source = load_global(sources + m);
            const i64 destination = load_global(destinations + m);
            if (u64(source) < p.host_row_limit && u64(destination) < p.device_row_limit) {
                mine.from = host + u64(source) * p.host_stride_bytes;
                mine.to = device + u64(destination) * p.device_stride_bytes;
                mine.action = forerun::Action::copy;
            }
        }
        Row rows[rows_each];
#pragma unroll
        for (u32 k = 0; k < rows_each; ++k) {
            rows[k].from = shuffle(all_lanes, mine.from, k);
            rows[k].to = shuffle(all_lanes, mine.to, k);
            rows[k].action = forerun::Action(shuffle(all_lanes, u32(mine.action), k));
        }
        copy_aligned<UNIT, rows_each, align>(copy, rows);
    }
}

FORERUN_DEVICE void copy_by_unit(const HotPoolParams& p, u64 entry, u32 count, u64 layer, u64 warp,
                                 u64 warps) {
    if (p.unit == 16) {
        copy_rows<16>(p, entry, count, layer, warp, warps);
    } else if (p.unit == 8) {
        copy_rows<8>(p, entry, count, layer, warp, warps);
    } else if (p.unit == 4) {
        copy_rows<4>(p, entry, count, layer, warp, warps);
    } else {
        copy_rows<1>(p, entry, count, layer, warp, warps);
    }
}

}  // namespace forerun::hot_pool
