// A bucket's word: who may write, and whether something was written.
//
//   | version, 30 bits | spilled | locked |
//
// A writer takes the words of all candidates of its key, the lower bucket first, so that none waits
// for another in a circle; and gives them back with the version counted up. `spilled` is set with
// the first entry that goes to its second bucket from this one: where it is not, a key that is not
// in its home is nowhere. It stays until the table is cleared.
//
// A reader of a row looks at the word before it looks at the digests, and again when it has the
// row: if a writer was there, it reads again, with the lock. Nothing more is needed for finding
// slots: a key is stored before its digest, and its row before its key, so a digest with the key
// behind it says that both were there.
//
// A version comes back after 2^30 writes to one bucket while one read of a row goes on. No device
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
        if ((was & word_locked) == 0 && atomic_compare_exchange(word, was, was | word_locked) == was) break;
    }
    fence();  // what the last writer stored is seen from here on
}

FORERUN_DEVICE void unlock_bucket(const TableState& t, u64 bucket) {
    u32* const word = word_at(t, bucket);
    fence();  // what was stored is seen before the word is
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

// Where nothing was changed, so that no reader reads again.
FORERUN_DEVICE void unlock_unchanged(const TableState& t, const Place& place) {
    fence();
    atomic_and(word_at(t, place.home), ~word_locked);
    if (t.candidates == 2) atomic_and(word_at(t, place.spill), ~word_locked);
}

FORERUN_DEVICE bool has_spilled(const TableState& t, const Place& place) {
    return t.candidates == 2 && (load_relaxed(word_at(t, place.home)) & word_spilled) != 0;
}

}  // namespace forerun::table
