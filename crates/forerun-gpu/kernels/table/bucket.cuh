// A bucket's word: the write lock, and the version that shows whether something was written.
//
//   | version, 30 bits | spilled | locked |
//
// A writer locks the words of all candidates of its key, the lower bucket first, so that writers
// cannot deadlock. It unlocks them with the version incremented. The first entry of this home
// bucket that goes to its second bucket sets `spilled`. While it is not set, a key that is not in
// its home is not in the table. It stays set until the table is cleared.
//
// A reader of a row reads the word before it reads the digests, and again when it has the row. If a
// writer changed the bucket in between, it reads the row again under the lock. A search for slots
// relies only on the order of stores: a row is stored before its key, and a key before its digest,
// so a reader that sees a digest with its key behind it knows that both were stored.
//
// A version could only repeat if one bucket took 2^30 writes during one read of a row. No device
// does that.
#pragma once
#include "layout.cuh"

namespace forerun::table {

constexpr u32 word_locked = 1;
constexpr u32 word_spilled = 2;
constexpr u32 word_version = 4;

FORERUN_DEVICE void lock_bucket(const TableState& t, u64 bucket) {
    u32* const word = word_at(t, bucket);
    for (;;) {
        const u32 was = load_relaxed(word);
        if ((was & word_locked) == 0 &&
            atomic_compare_exchange(word, was, was | word_locked) == was)
            break;
    }
    fence();  // the last writer's stores are visible from here on
}

FORERUN_DEVICE void unlock_bucket(const TableState& t, u64 bucket) {
    u32* const word = word_at(t, bucket);
    fence();  // the stores are visible before the word is
    store_relaxed(word, load_relaxed(word) + word_version - word_locked);
}

FORERUN_DEVICE void lock_candidates(const TableState& t, const Place& place) {
    const bool in_order = place.home <= place.spill;
    lock_bucket(t, in_order ? place.home : place.spill);
    if (t.candidates == 2) lock_bucket(t, in_order ? place.spill : place.home);
}
FORERUN_DEVICE void unlock_candidates(const TableState& t, const Place& place) {
    unlock_bucket(t, place.home);
    if (t.candidates == 2) unlock_bucket(t, place.spill);
}

// Unlocks and keeps the version, so that no reader has to read again.
FORERUN_DEVICE void unlock_unchanged(const TableState& t, const Place& place) {
    fence();
    atomic_and(word_at(t, place.home), ~word_locked);
    if (t.candidates == 2) atomic_and(word_at(t, place.spill), ~word_locked);
}

FORERUN_DEVICE bool has_spilled(const TableState& t, const Place& place) {
    return t.candidates == 2 && (load_relaxed(word_at(t, place.home)) & word_spilled) != 0;
}

}  // namespace forerun::table
