// Finds rows. The warp searches as in find_slots.cuh, and then copies the rows and scores of all
// its keys at once.
//
// While writers run, a copied row is valid only if its bucket's word has not changed since before
// the digests were read. If it has, the lane locks the key's buckets, searches again and copies the
// row again.
#pragma once
#include "find_slots.cuh"
#include "row.cuh"
#include "score.cuh"

namespace forerun::table {

template <u32 WIDTH> class RowFinder : KeyFinder<WIDTH, 2> {
  public:
    using typename KeyFinder<WIDTH, 2>::Cells;
    using KeyFinder<WIDTH, 2>::KeyFinder;

    FORERUN_DEVICE void run() {
        this->each_turn([&](u64 i, bool there, const Place& place, bool narrow) {
            // The first attempt is made without locks.
            attempt_together(there, [&](bool pending, u32 round) {
                return attempt(i, place, pending, round, narrow);
            });
        });
    }

  private:
    using Search = KeySearch<WIDTH, 2>;
    using Search::op;
    using Search::slot;
    using Search::t;

    // Returns whether the lane has its answer.
    FORERUN_DEVICE bool attempt(u64 i, const Place& place, bool pending, u32 round, bool narrow) {
        bool mine = pending;
        HeldWords words;
        if (round != 0) {
            mine = pending && try_lock_candidates(t, place, words);
            warp_sync(all_lanes);  // the locks' fences count for all lanes
        }
        if (mine) slot = no_slot;
        this->template search<Versions::read>(place, mine, narrow && round == 0);
        give_row(i, mine);
        // An earlier attempt may have copied part of a row that is gone by now. Overwrite it with
        // zeros.
        if (round != 0 && any(all_lanes, mine && slot == no_slot)) zero(i, mine && slot == no_slot);
        if (op.concurrent_writers == 0) return true;
        fence();
        warp_sync(all_lanes);  // all lanes have their parts of the rows
        if (round == 0) return !this->has_moved();
        if (mine) unlock_candidates(t, place, words);
        return mine;
    }

    FORERUN_DEVICE void give_row(u64 i, bool mine) const {
        const bool found = mine && slot != no_slot;
        const u64 row_out = op.rows_out + i * t.row_bytes;
        if (op.rows_out != 0)
            copy_out<2>(t, op.rows_out, found ? row_out : 0, found ? row_address(t, slot) : 0);
        if (op.scores_out != 0 && found)
            store_global(at<u64>(op.scores_out) + i, load_score(t, slot));
    }

    FORERUN_DEVICE void zero(u64 i, bool gone) const {
        if (op.rows_out != 0) zero_out(t, gone ? op.rows_out + i * t.row_bytes : 0);
        if (op.scores_out != 0 && gone) store_global(at<u64>(op.scores_out) + i, 0ull);
    }
};

template <u32 WIDTH> FORERUN_DEVICE void find_rows(const TableOp& op) {
    FORERUN_SHARED(typename RowFinder<WIDTH>::Cells, cells);
    RowFinder<WIDTH>(op, cells).run();
}

}  // namespace forerun::table
