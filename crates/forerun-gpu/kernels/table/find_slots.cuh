// Finds slots. A lane's answer is its key's slot, or the address of the slot's row.
//
// By default, the kernel chooses by the load of the table, which it reads from the table itself.
//
// The grid has as many blocks as run at a time. Each warp takes 32 keys in turn:
//
//   turn        0                 1                 2
//   keys        of turns 0 and 1  of turn 2         of turn 3        requested
//   digests     of turn 1         of turn 2         of turn 3        prefetched into L2
//   search      turn 0            turn 1            turn 2           digests, then keys of the table
#pragma once
#include "find_thread.cuh"
#include "key_search.cuh"
#include "slot_answer.cuh"

namespace forerun::table {

FORERUN_DEVICE bool is_filled_to(const TableOp& op, u32 sixteenths) {
    const u64 slots = op.table.buckets * op.table.width;
    return load_relaxed(&control_of(op.table)->size) * 16 <= slots * sixteenths;
}
// Returns whether to search half a row first. The default is to do so while the table is at most
// 13/16 full. Up to that load, a narrow search reads fewer bytes (counted; see
// docs/internals/gpu-table.md).
FORERUN_DEVICE bool is_narrow(const TableOp& op) {
    if (op.lookup != lookup_by_load) return op.lookup == lookup_narrow;
    return is_filled_to(op, 13);
}
// Returns whether to give each key a thread of its own: where that was measured to be faster, with
// two candidates of 128 slots that are at most 3/4 full and with many keys.
FORERUN_DEVICE bool prefers_threads(const TableOp& op) {
    return op.lookup == lookup_by_load && op.table.candidates == 2 && op.out_count == 0 &&
           keys_in(op) >= 1u << 16 && is_filled_to(op, 12);
}

// The part that the lookups with tiles share: they take 32 keys per turn, and list the missed keys.
template <u32 WIDTH, u32 IN_FLIGHT> class KeyFinder : protected KeySearch<WIDTH, IN_FLIGHT> {
  protected:
    using Search = KeySearch<WIDTH, IN_FLIGHT>;
    using Search::key;
    using Search::op;
    using Search::slot;

    using typename Search::Cells;
    using Search::Search;

    // Calls `find(i, there, place, narrow)` once per 32 keys. `i` is the position of the lane's own
    // key.
    template <typename Find> FORERUN_DEVICE void each_turn(Find find) {
        // One answer per warp, even if writers change the number or the size during the lookup.
        const u64 count = shuffle(all_lanes, keys_in(op), 0);
        const u64 step = warps_in_grid() * warp_lanes;
        u64 i = warp_in_grid() * warp_lanes + lane_in_warp();
        u64 now = this->key_of(i, i < count), next = this->key_of(i + step, i + step < count);
        // After the first keys are requested: they need not wait for the load.
        const bool narrow =
            WIDTH > narrow_slots && shuffle(all_lanes, u32(is_narrow(op)), 0) != 0;
#pragma unroll 1
        for (; i - lane_in_warp() < count; i += step) {
            const u64 later = this->key_of(i + 2 * step, i + 2 * step < count);
            if (i + step < count) this->prefetch_digests(place_of(this->t, next), narrow);
            const bool there = i < count;
            find(i, there, this->take(now), narrow);
            if (there) give_slot(op, i, slot);
            if (op.out_count != 0) give_missed(i, there && slot == no_slot);  // slots: missed
            now = next;
            next = later;
        }
    }

  private:
    FORERUN_DEVICE void give_missed(u64 i, bool is_missed) const {
        const u32 missed = ballot(all_lanes, is_missed);
        if (missed == 0) return;
        u64 to = 0;
        if (lane_in_warp() == 0) to = atomic_add(at<u64>(op.out_count), u64(ones(missed)));
        to = shuffle(all_lanes, to, 0) + ones(missed & ((1u << lane_in_warp()) - 1));
        if (!is_missed) return;
        if (op.out_keys != 0) store_global(at<u64>(op.out_keys) + to, key);
        if (op.out_places != 0) store_global(at<u64>(op.out_places) + to, i);
    }
};

template <u32 WIDTH> class SlotFinder : KeyFinder<WIDTH, 4> {
  public:
    using typename KeyFinder<WIDTH, 4>::Cells;
    using KeyFinder<WIDTH, 4>::KeyFinder;

    FORERUN_DEVICE void run() {
        this->each_turn([&](u64, bool there, const Place& place, bool narrow) {
            this->template search<Versions::ignored>(place, there, narrow);
        });
    }
};

template <u32 WIDTH> FORERUN_DEVICE void find_slots(const TableOp& op) {
    FORERUN_SHARED(typename SlotFinder<WIDTH>::Cells, cells);
    if constexpr (WIDTH == 128) {
        if (shuffle(all_lanes, u32(prefers_threads(op)), 0) != 0)
            return find_by_thread(op);  // slots: thread
    }
    SlotFinder<WIDTH>(op, cells).run();
}

}  // namespace forerun::table
