// Operations on all slots: counting, exporting and erasing by a condition, and clearing.
#pragma once
#include "bucket.cuh"
#include "row.cuh"
#include "score.cuh"

namespace forerun::table {

FORERUN_DEVICE bool meets(const TableOp& op, u64 slot) {
    const TableState& t = op.table;
    if (load_relaxed(digest_at(t, slot)) <= digest_reclaimed) return false;
    const u64 score = load_score(t, slot);
    return op.score_min <= score && score <= op.score_max &&
           (load_relaxed(key_at(t, slot)) & op.key_mask) == op.key_value;
}

// One thread per slot. It checks again under the lock, so that it erases no entry that was inserted
// in between.
FORERUN_DEVICE u64 erase_if(const TableOp& op, u64 slot) {
    const TableState& t = op.table;
    const u64 bucket = slot / t.width;
    lock_bucket(t, bucket);
    const bool pinned = (load_relaxed(pin_at(t, slot)) & pin_bit(t, slot)) != 0;
    const bool erases = meets(op, slot) && !pinned;
    if (erases) store_relaxed(digest_at(t, slot), u8(digest_reclaimed));
    unlock_bucket(t, bucket);
    return erases;
}

// Slots first_slot .. first_slot + count - 1. The lanes of a warp share one addition to the
// counter.
FORERUN_DEVICE void scan_slots(const TableOp& op) {
    const TableState& t = op.table;
    const u64 step = warps_in_grid() * warp_lanes;
    const Tile<1> alone;
    for (u64 first = warp_in_grid() * warp_lanes; first < op.count; first += step) {
        const u64 slot = op.first_slot + first + lane_in_warp();
        bool chosen = first + lane_in_warp() < op.count && meets(op, slot);
        if (op.scan == scan_erase && chosen) chosen = erase_if(op, slot) != 0;
        const u32 who = ballot(all_lanes, chosen);
        if (who == 0) continue;
        u64 to = 0;
        if (lane_in_warp() == 0) {
            to = atomic_add(at<u64>(op.out_count), u64(ones(who)));
            if (op.scan == scan_erase) atomic_add(&control_of(t)->size, ~u64(ones(who)) + 1);
        }
        to = shuffle(all_lanes, to, 0) + ones(who & ((1u << lane_in_warp()) - 1));
        if (!chosen || op.scan != scan_export) continue;
        if (op.out_keys != 0)
            store_global(at<u64>(op.out_keys) + to, load_relaxed(key_at(t, slot)));
        if (op.out_scores != 0) store_global(at<u64>(op.out_scores) + to, load_score(t, slot));
        if (op.out_places != 0) store_global(at<u64>(op.out_places) + to, slot);
        if (op.out_rows != 0)
            copy_row(alone, op.out_rows + to * t.row_bytes, row_address(t, slot), t.row_bytes);
    }
}

// One thread per bucket, under its lock. Pinned entries are removed too.
FORERUN_DEVICE void clear_buckets(const TableOp& op) {
    const TableState& t = op.table;
    const u64 step = u64(blocks_in_grid()) * threads_in_block();
    const u32 pin_words = t.width < 32 ? 1 : t.width / 32;
    for (u64 bucket = thread_in_grid(); bucket < t.buckets; bucket += step) {
        lock_bucket(t, bucket);
        u64 live = 0, pinned = 0;
        for (u32 s = 0; s < t.width; s += chunk_slots) {
            const u64 slot = bucket * t.width + s;
            live += chunk_slots - ones(free_in(load_digests(t, slot)));
            store_global(reinterpret_cast<Bytes16*>(digest_at(t, slot)), Bytes16{0, 0, 0, 0});
        }
        for (u32 p = 0; p < pin_words; ++p)
            pinned += ones(atomic_exchange(at<u32>(t.pins) + bucket * pin_words + p, 0u));
        atomic_and(word_at(t, bucket), ~word_spilled);
        unlock_bucket(t, bucket);
        if (live != 0) atomic_add(&control_of(t)->size, ~live + 1);
        if (pinned != 0) atomic_add(&control_of(t)->pinned, ~pinned + 1);
    }
}

}  // namespace forerun::table
