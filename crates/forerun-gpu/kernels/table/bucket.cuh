// A bucket's word holds its write lock, and a version that shows whether a writer changed the
// bucket.
//
//   | version, 29 bits | pinned | spilled | locked |
//
// A writer locks the words of all candidates of its key. It never waits while it holds one: if it
// does not get both, it releases the first and tries again later (wait.cuh). When it unlocks them,
// it increments the version of the bucket of which it has changed a row, a key or a digest; scores
// alone make no reader read again. When a key whose home is this bucket is first inserted into its
// other bucket, the writer sets `spilled`. While the bit is clear, a key that is not in its home is
// not in the table. The bit stays set until the table is cleared. `pinned` says that an entry of
// the bucket is pinned.
//
// Attempts make progress. Each one locks the lower bucket first. So of all attempts that hold one
// lock, the one with the greatest bucket can fail only because another attempt holds both of its
// locks.
//
// Memory orders, which src/table/loom_tests.rs checks as loom models:
//
//   lock        each lane: atomic or, fence ─ the lanes meet; each: fence ─ all lanes make the
//               changes ─ the lanes meet; each: fence, store of the word, also of one whose bucket
//               has not changed. The fences before the changes keep them from being seen before the
//               lock.
//   publish     row, score, key ─ release: digest. A search that sees the digest and then, after a
//               fence, its own key knows that both belong to one entry. Without the fence it could
//               see the key of an entry that was erased long before. The lane that reads the digest
//               makes the fence, then the lanes meet, and another lane reads the key. Searches that
//               run while there is no writer need no fence.
//   read a row  one lane: word, fence ─ the lanes meet; all: digests, keys, row, fence ─ the lanes
//               meet; the one lane: word. If a writer changed the bucket in between, the row is
//               read again under the lock. One lane's words count for all lanes, so that they copy
//               the same version.
//
// Writers store everything that readers see in relaxed words of the size that the readers load.
//
// A version repeats only after 2^29 writes to one bucket during one read of a row. No device
// reaches that rate.
#pragma once
#include "../include/wait.cuh"
#include "layout.cuh"

namespace forerun::table {

constexpr u32 word_locked = 1;
constexpr u32 word_spilled = 2;
constexpr u32 word_pinned = 4;
constexpr u32 word_version = 8;

// The words of a key's candidates, without the lock bit. The lock's holder may change the flags and
// the versions.
struct HeldWords {
    u32 home = 0, spill = 0;
};

// One trip to L2. If the word is locked, nothing changes.
FORERUN_DEVICE bool try_lock_word(u32* word, u32& was) {
    was = atomic_or(word, word_locked);
    return (was & word_locked) == 0;
}

// Locks one bucket, or does nothing.
FORERUN_DEVICE bool try_lock_bucket(const TableState& t, u64 bucket, u32& held) {
    const bool locked = try_lock_word(word_at(t, bucket), held);
    lock_tried(locked);
    if (locked) fence();  // the last writer's stores are visible from here on
    return locked;
}
FORERUN_DEVICE void unlock_bucket(const TableState& t, u64 bucket, u32 held) {
    fence();  // the stores are visible before the word is
    store_relaxed(word_at(t, bucket), held);
    lock_released();
}

// Locks all candidates of a key, or none.
FORERUN_DEVICE bool try_lock_candidates(const TableState& t, const Place& place, HeldWords& held) {
    const bool in_order = place.home <= place.spill;
    u32* const home = word_at(t, place.home);
    u32* const spill = word_at(t, place.spill);
    u32 first = 0, second = 0;
    bool locked = try_lock_word(in_order ? home : spill, first);
    if (locked && t.candidates == 2 && !try_lock_word(in_order ? spill : home, second)) {
        // Nothing was changed under this lock. An exchange, unlike a store, continues the last
        // writer's release sequence, on which the next lock of the bucket relies.
        atomic_exchange(in_order ? home : spill, first);
        locked = false;
    }
    lock_tried(locked);
    if (!locked) return false;
    fence();  // the last writers' stores are visible from here on
    held.home = in_order ? first : second;
    held.spill = in_order ? second : first;
    return true;
}
FORERUN_DEVICE void unlock_candidates(const TableState& t, const Place& place,
                                      const HeldWords& held) {
    // The stores are visible before the words are. Where nothing was stored, the fence keeps what
    // was read from being that of the next lock's holder.
    fence();
    store_relaxed(word_at(t, place.home), held.home);
    if (t.candidates == 2) store_relaxed(word_at(t, place.spill), held.spill);
    lock_released();
}

// Each lane with a pending key tries to lock its candidates. Those up to the first lane that fails
// keep their locks, so that the lanes' keys are processed in order, even those that share a bucket.
// All lanes of the warp make the call. Returns whether the lane has its locks.
FORERUN_DEVICE bool try_lock_in_order(const TableState& t, bool pending, const Place& place,
                                      HeldWords& held) {
    bool locked = pending && try_lock_candidates(t, place, held);
    const u32 failed = ballot(all_lanes, pending && !locked);
    if (failed == 0) return locked;
    if (locked && lane_in_warp() > lowest(failed)) {
        unlock_candidates(t, place, held);
        locked = false;
    }
    // If the first key failed, a later key of this warp may have had the lock. No key of this warp
    // holds a lock now.
    const bool is_first = lowest(failed) == lowest(ballot(all_lanes, pending));
    if (is_first && lane_in_warp() == lowest(failed))
        locked = try_lock_candidates(t, place, held);
    return locked;
}

FORERUN_DEVICE bool has_spilled(const TableState& t, const Place& place) {
    return t.candidates == 2 && (load_relaxed(word_at(t, place.home)) & word_spilled) != 0;
}

}  // namespace forerun::table
