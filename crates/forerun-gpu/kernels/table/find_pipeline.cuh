// Finds slots with one warp per key, in a pipeline of three steps. HierarchicalKV uses this lookup
// for pointers in a full table.
//
//   a warp has 32 keys and takes them in turn; buckets have 128 slots, four digests per lane
//
//     turn      0        1        2        3        4
//     digests   key 0    key 1    key 2    key 3    key 4      cp.async of 4 bytes per lane, into two buffers
//     match              key 0    key 1    key 2    key 3      keys behind equal digests, cp.async, into two buffers
//     verify                      key 0    key 1    key 2      compare, write
//
// With two candidates, the pipeline runs a second time over the keys that were not found and whose
// home has spilled.
//
// It must not run concurrently with writers, because cp.async guarantees no memory order.
//
// Method: HierarchicalKV, pull request 251 (lookup_ptr_kernel_with_pipeline). As in that kernel, a
// warp has about one request of digests in flight at a time. Unlike that kernel, this one reserves
// no key.
#pragma once
#include "../include/async.cuh"
#include "find_thread.cuh"

namespace forerun::table {

constexpr u32 pipeline_warps = 4;
constexpr u32 pipeline_width = 128;

struct alignas(16) PipelineStage {
    u32 digests[2][warp_lanes];
    u64 keys[2][pipeline_width];
};

struct PipelineStages {
    PipelineStage of_warp[pipeline_warps];
};

class Pipeline {
  public:
    FORERUN_DEVICE Pipeline(const TableOp& op, PipelineStage& stage)
        : op(op), t(op.table), stage(stage) {}

    // Looks up keys first .. first + 31. At least one of them is below `count`.
    FORERUN_DEVICE void run(u64 first, u64 count) {
        const u64 i = first + lane_in_warp();
        const bool there = i < count;
        key = there ? load_once(at<u64>(op.keys) + i) : 0;
        place = place_of(t, key);
        slot = no_slot;
        const u32 mine = ballot(all_lanes, there);
        pass(mine, false);
        const bool again = there && slot == no_slot && has_spilled(t, place);
        const u32 left = ballot(all_lanes, again);
        if (left != 0) pass(left, true);
        if (there) give_slot(op, i, slot);
    }

  private:
    const TableOp& op;
    const TableState& t;
    PipelineStage& stage;
    // The lane's own key.
    u64 key = 0, slot = no_slot;
    Place place = {};

    // Searches one bucket of each of the warp's keys in the mask.
    FORERUN_DEVICE void pass(u32 keys, bool spill) {
        const u32 count = ones(keys);
        u32 to_load = keys, to_match = keys, to_verify = keys;
        u32 same = 0;  // which of the lane's four digests match the key to be verified
        for (u32 turn = 0; turn < count + 2; ++turn) {
            if (turn < count) {
                load_row(lowest(to_load), turn % 2, spill);
                to_load &= to_load - 1;
            }
            copy_async_commit();
            if (turn >= 2) {
                copy_async_wait<1>();  // the keys requested in the previous turn
                verify(lowest(to_verify), turn % 2, same, spill);
                to_verify &= to_verify - 1;
            }
            if (turn >= 1 && turn <= count) {
                copy_async_wait<1>();  // the digests requested in the previous turn
                same = match_row(lowest(to_match), (turn - 1) % 2, spill);
                to_match &= to_match - 1;
            }
            copy_async_commit();
        }
        copy_async_wait<0>();
    }

    FORERUN_DEVICE u64 bucket_of(u32 who, bool spill) const {
        return shuffle(all_lanes, spill ? place.spill : place.home, who);
    }

    FORERUN_DEVICE void load_row(u32 who, u32 buffer, bool spill) {
        const u64 first = bucket_of(who, spill) * pipeline_width + lane_in_warp() * 4;
        copy_async<4>(&stage.digests[buffer][lane_in_warp()], digests_at(t, first));
    }

    FORERUN_DEVICE u32 match_row(u32 who, u32 buffer, bool spill) {
        const u64 first = bucket_of(who, spill) * pipeline_width + lane_in_warp() * 4;
        const u32 same = match_4(load(&stage.digests[buffer][lane_in_warp()]),
                                 shuffle(all_lanes, place.digest, who));
        for (u32 left = same; left != 0; left &= left - 1) {
            copy_async<8>(&stage.keys[buffer][lane_in_warp() * 4 + lowest(left)],
                          key_at(t, first + lowest(left)));
        }
        return same;
    }

    FORERUN_DEVICE void verify(u32 who, u32 buffer, u32 same, bool spill) {
        const u64 first = bucket_of(who, spill) * pipeline_width + lane_in_warp() * 4;
        const u64 sought = shuffle(all_lanes, key, who);
        u64 found = no_slot;
        for (u32 left = same; left != 0; left &= left - 1) {
            if (load(&stage.keys[buffer][lane_in_warp() * 4 + lowest(left)]) == sought)
                found = first + lowest(left);
        }
        const u32 finder = ballot(all_lanes, found != no_slot);
        if (finder == 0) return;
        found = shuffle(all_lanes, found, lowest(finder));
        if (lane_in_warp() == who) slot = found;
    }
};

FORERUN_DEVICE void find_by_pipeline(const TableOp& op) {
    FORERUN_SHARED(PipelineStages, stages);
    const u64 count = shuffle(all_lanes, keys_in(op), 0);  // one answer per warp
    for (u64 first = warp_in_grid() * warp_lanes; first < count;
         first += warps_in_grid() * warp_lanes) {
        Pipeline(op, stages.of_warp[warp_in_block()]).run(first, count);
    }
}

// HierarchicalKV's rule: use the pipeline if buckets have 128 slots and more than 7/8 of all slots
// are in use, otherwise one thread per key.
FORERUN_DEVICE void find_by_seed_rule(const TableOp& op) {
    const u64 slots = op.table.buckets * op.table.width;
    // One answer per warp.
    const u64 size = shuffle(all_lanes, load_relaxed(&control_of(op.table)->size), 0);
    if (op.table.width == pipeline_width && size * 8 > slots * 7) {
        find_by_pipeline(op);
    } else {
        find_by_thread(op);
    }
}

}  // namespace forerun::table
