// Computes scores by the table's policy. src/table/score.rs does the same in Rust.
#pragma once
#include "layout.cuh"

namespace forerun::table {

constexpr u64 low_32 = 0xffffffffull;

// Saturates a score to the table's score width.
FORERUN_DEVICE u64 score_held(const TableState& t, u64 score) {
    return t.score_bytes == 4 && score > low_32 ? low_32 : score;
}

FORERUN_DEVICE u64 load_score(const TableState& t, u64 slot) {
    return t.score_bytes == 4 ? load_relaxed(at<u32>(t.scores) + slot)
                              : load_relaxed(at<u64>(t.scores) + slot);
}
FORERUN_DEVICE void store_score(const TableState& t, u64 slot, u64 score) {
    if (t.score_bytes == 4) {
        store_relaxed(at<u32>(t.scores) + slot, u32(score_held(t, score)));
    } else {
        store_relaxed(at<u64>(t.scores) + slot, score);
    }
}

// The order in which entries are evicted, the lowest rank first. The times of policy_epoch_lru
// begin again at 0 every 52 days, so its ranks have the time's distance from `oldest`, which is 50
// days ago and, in 32 bits, 39 hours ahead. An older time looks like one ahead: an entry that was
// not used for so long goes last among those of its epoch. For all other policies the rank is the
// score.
constexpr u32 time_shift = 20;
constexpr u32 time_ahead = 1u << 27;
struct EvictOrder {
    u32 oldest = 0;

    FORERUN_DEVICE u64 rank(u64 score) const {
        return (score & ~low_32) | u32(u32(score) - oldest);
    }
    FORERUN_DEVICE u64 score(u64 rank) const { return (rank & ~low_32) | u32(u32(rank) + oldest); }
};
// The same for all lanes of the warp, which make the call.
FORERUN_DEVICE EvictOrder evict_order(const TableState& t) {
    EvictOrder order;
    if (t.policy == policy_epoch_lru)
        order.oldest = shuffle(all_lanes, u32(time_ns() >> time_shift), 0) + time_ahead;
    return order;
}

FORERUN_DEVICE u64 score_given(const TableOp& op, u64 i, u64 otherwise) {
    return op.scores_in == 0 ? otherwise : load_global(at<u64>(op.scores_in) + i);
}

// The score of an entry that key i creates (`before` is 0) or finds.
FORERUN_DEVICE u64 score_of(const TableOp& op, u64 i, bool found, u64 before) {
    const u32 policy = (op.actions & score_as_given) != 0 ? u32(policy_custom) : op.table.policy;
    const u64 epoch = op.epoch << 32;
    u64 score = 0;
    if (policy == policy_lru) {
        score = time_ns();
    } else if (policy == policy_lfu) {
        const u64 add = score_given(op, i, 1);
        score = before + add < before ? ~0ull : before + add;
    } else if (policy == policy_epoch_lru) {
        score = epoch | (time_ns() >> time_shift & low_32);
    } else if (policy == policy_epoch_lfu) {
        const u64 add = score_given(op, i, 1), low = before & low_32;
        score = epoch | (add > low_32 - low ? low_32 : low + add);
    } else {
        score = score_given(op, i, found ? before : 0);
    }
    return score_held(op.table, score);
}

}  // namespace forerun::table
