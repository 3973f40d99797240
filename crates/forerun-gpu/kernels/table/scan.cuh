// Operations on all slots: counting, exporting and erasing by a condition, and clearing.
#pragma once
#include "bucket.cuh"
#include "row.cuh"
#include "tile.cuh"
#include "score.cuh"

namespace forerun::table {

FORERUN_DEVICE bool meets(const TableOp& op, u64 slot) {
    const TableState& t = op.table;
    if (load_digest(t, slot) <= digest_reclaimed) return false;
    const u64 score = load_score(t, slot);
    return op.score_min <= score && score <= op.score_max &&
           (load_relaxed(key_at(t, slot)) & op.key_mask) == op.key_value;
}

// Erases the lanes' chosen slots. Returns whether the lane's own slot was erased. One lane locks a
// bucket for all of the warp's slots in it. Each lane checks its slot again under the lock, because
// a writer may have replaced the entry in between.
FORERUN_DEVICE bool erase_chosen(const TableOp& op, u64 slot, bool chosen) {
    const TableState& t = op.table;
    const u64 own = slot / t.width;
    bool erased = false;
    for (u32 left = ballot(all_lanes, chosen); left != 0;) {
        const u32 leader = lowest(left);
        const u64 bucket = shuffle(all_lanes, own, leader);
        u32 held = 0;
        for (u32 tries = 0;; ++tries) {
            const bool locked = lane_in_warp() == leader && try_lock_bucket(t, bucket, held);
            if (any(all_lanes, locked)) break;
            backoff(tries);
        }
        warp_sync(all_lanes);
        const bool mine = chosen && own == bucket;
        if (mine && meets(op, slot) && (load_relaxed(pin_at(t, slot)) & pin_bit(t, slot)) == 0) {
            // Other lanes may change the same word. The lane needs no fence of its own before that:
            // a reader that sees the digest before the lock finds nothing, as from then on.
            const u32 change = load_digest(t, slot) ^ digest_reclaimed;
            atomic_xor(digests_at(t, slot), change << digest_shift(slot));
            erased = true;
        }
        const bool changes = any(all_lanes, mine && erased);
        warp_sync(all_lanes);
        if (lane_in_warp() == leader)
            unlock_bucket(t, bucket, changes ? held + word_version : held);
        left &= ~ballot(all_lanes, mine);
    }
    return erased;
}

// Scans slots first_slot .. first_slot + count - 1. A warp makes one addition to the counter for
// all its lanes.
FORERUN_DEVICE void scan_slots(const TableOp& op) {
    const TableState& t = op.table;
    if (op.scan == scan_clock) {
        if (thread_in_grid() == 0) store_global(at<u64>(op.out_count), time_ns());
        return;
    }
    const u64 step = warps_in_grid() * warp_lanes;
    u64 counted = 0;
    for (u64 first = warp_in_grid() * warp_lanes; first < op.count; first += step) {
        const u64 slot = op.first_slot + first + lane_in_warp();
        bool chosen = first + lane_in_warp() < op.count && meets(op, slot);
        if (op.scan == scan_count) {
            counted += chosen ? 1 : 0;
            continue;
        }
        if (op.scan == scan_erase) chosen = erase_chosen(op, slot, chosen);  // slots: erase
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
        if (op.out_rows == 0) continue;
        const u64 row_to = op.out_rows + to * t.row_bytes;
        copy_out_alone(t, op.out_rows, row_to, row_address(t, slot));  // slots: export
    }
    // One addition per warp. With one per turn, the counter would limit the speed.
    counted = sum_of_warp(counted);
    if (lane_in_warp() == 0 && counted != 0) atomic_add(at<u64>(op.out_count), counted);
}

// Clears one bucket, including its pinned entries. Returns whether the thread got the lock.
FORERUN_DEVICE bool clear_bucket(const TableState& t, u64 bucket) {
    const u32 pin_words = t.width < 32 ? 1 : t.width / 32;
    u32 held = 0;
    if (!try_lock_bucket(t, bucket, held)) return false;
    u64 live = 0, pinned = 0;
    for (u32 s = 0; s < t.width; s += chunk_slots) {
        const u64 slot = bucket * t.width + s;
        live += chunk_slots - ones(free_in(load_digests(t, slot)));  // slots: chunk
        store_relaxed(reinterpret_cast<Bytes16*>(digests_at(t, slot)), Bytes16{0, 0, 0, 0});
    }
    for (u32 p = 0; p < pin_words; ++p)
        pinned += ones(atomic_exchange(at<u32>(t.pins) + bucket * pin_words + p, 0u));
    unlock_bucket(t, bucket, (held & ~(word_spilled | word_pinned)) + word_version);
    if (live != 0) atomic_add(&control_of(t)->size, ~live + 1);
    if (pinned != 0) atomic_add(&control_of(t)->pinned, ~pinned + 1);
    return true;
}

// One thread per bucket.
FORERUN_DEVICE void clear_buckets(const TableOp& op) {
    const TableState& t = op.table;
    const u64 step = warps_in_grid() * warp_lanes;
    for (u64 first = warp_in_grid() * warp_lanes; first < t.buckets; first += step) {
        const u64 bucket = first + lane_in_warp();
        attempt_until_done(all_lanes, bucket < t.buckets,
                           [&] { return clear_bucket(t, bucket); });
    }
}

}  // namespace forerun::table
