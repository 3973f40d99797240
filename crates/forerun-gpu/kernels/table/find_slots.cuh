// Finds slots. A lane's answer is its key's slot, or the address of the slot's row.
//
// By default, the kernel chooses a narrow or a wide search by the load of the table, which it reads
// from the table itself.
#pragma once
#include "key_search.cuh"
#include "slot_answer.cuh"

namespace forerun::table {

// Returns whether to search one sector first. The default is to do so while the table is at most
// 7/8 full. Up to that load, a narrow search reads fewer bytes at every bucket width (counted; see
// docs/internals/gpu-table.md).
FORERUN_DEVICE bool is_narrow(const TableOp& op) {
    if (op.lookup != lookup_by_load) return op.lookup == lookup_narrow;
    return load_relaxed(&control_of(op.table)->size) * 8 <= op.table.buckets * op.table.width * 7;
}

// The part that the lookups with tiles share: they take 32 keys per turn, and list the missed keys.
template <u32 WIDTH, u32 IN_FLIGHT> class KeyFinder : protected KeySearch<WIDTH, IN_FLIGHT> {
  protected:
    using Search = KeySearch<WIDTH, IN_FLIGHT>;
    using Search::key;
    using Search::op;
    using Search::slot;

    using Search::Search;

    // Calls `find(i, there, narrow)` once per 32 keys. `i` is the position of the lane's own key.
    template <typename Find> FORERUN_DEVICE void each_turn(Find find) {
        // One answer per warp, even if writers change the size during the lookup.
        const u64 count = shuffle(all_lanes, keys_in(op), 0);
        const bool narrow =
            WIDTH > sector_slots && shuffle(all_lanes, u32(is_narrow(op)), 0) != 0;
        for (u64 first = warp_in_grid() * warp_lanes; first < count;
             first += warps_in_grid() * warp_lanes) {
            const u64 i = first + lane_in_warp();
            const bool there = i < count;
            find(i, there, narrow);
            if (there) give_slot(op, i, slot);
            if (op.out_count != 0) give_missed(i, there && slot == no_slot);  // slots: missed
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
    using KeyFinder<WIDTH, 4>::KeyFinder;

    FORERUN_DEVICE void run() {
        this->each_turn([&](u64 i, bool there, bool narrow) {
            const Place place = this->take(i, there);
            this->template search<Versions::ignored>(place, there, narrow);
        });
    }
};

template <u32 WIDTH> FORERUN_DEVICE void find_slots(const TableOp& op) {
    FORERUN_SHARED(SearchCells, cells);
    SlotFinder<WIDTH>(op, cells.of_warp[warp_in_block()]).run();
}

}  // namespace forerun::table
