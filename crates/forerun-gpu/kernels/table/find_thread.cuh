// Finds slots with one thread per key. A thread reads 16 digests at a time, in search order, and
// stops at the first empty slot.
//
// It makes at most width / 16 loads of digests per bucket, in sequence, and loads one key
// for each equal digest.
#pragma once
#include "bucket.cuh"
#include "slot_answer.cuh"

namespace forerun::table {

FORERUN_DEVICE u64 slot_by_thread(const TableOp& op, u64 bucket, const Place& place, u64 key) {
    const TableState& t = op.table;
    for (u32 turn = 0; turn < t.width; turn += chunk_slots) {
        const u64 first = bucket * t.width + (place.start ^ turn);
        const Bytes16 chunk = load_digests(t, first);
        const u32 same = match_16(chunk, place.digest);
        if (same != 0 && op.concurrent_writers != 0) fence();  // see bucket.cuh, "publish"
        for (u32 left = same; left != 0; left &= left - 1) {
            const u64 slot = first + lowest(left);
            if (load_relaxed(key_at(t, slot)) == key) return slot;
        }
        if (empty_in(chunk) != 0) break;
    }
    return no_slot;
}

FORERUN_DEVICE void find_by_thread(const TableOp& op) {
    const TableState& t = op.table;
    const u64 step = u64(blocks_in_grid()) * threads_in_block(), count = keys_in(op);
    for (u64 i = thread_in_grid(); i < count; i += step) {
        const u64 key = load_once(at<u64>(op.keys) + i);
        const Place place = place_of(t, key);
        u64 slot = slot_by_thread(op, place.home, place, key);  // slots: home
        if (slot == no_slot && has_spilled(t, place))
            slot = slot_by_thread(op, place.spill, place, key);  // slots: spill
        give_slot(op, i, slot);
    }
}

}  // namespace forerun::table
