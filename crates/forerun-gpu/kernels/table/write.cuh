// Implements all operations that change entries by key. A warp takes 32 keys at a time, one per
// lane, and works under the locks of the keys' buckets.
//
//   each lane      lock home and spill ─ a lane that fails tries again in the next round
//   all lanes      search for the keys whose locks are held: see key_search.cuh
//     found        read, assign, add, score, pin, erase
//     absent       a free slot, otherwise the slot with the lowest score: see victim.cuh
//   all lanes      rows
//   each lane      score, key, digest ─ unlock, which increments the versions
//
// A new entry is written as:  row, score, key ─ release: digest.
//
// Lanes of a warp whose keys share a bucket lock it in different rounds. If the launch has only one
// warp, the warp processes keys that share a bucket in batch order, and does exactly what
// src/table/cpu.rs does.
#pragma once
#include "key_search.cuh"
#include "row.cuh"
#include "score.cuh"
#include "victim.cuh"

namespace forerun::table {

// Rows that the search of a tile has in flight. More would exceed the register limit. The prefetch
// hides the latency.
constexpr u32 writer_in_flight = 1;

template <u32 WIDTH> class Writer : KeySearch<WIDTH, writer_in_flight> {
  public:
    using KeySearch<WIDTH, writer_in_flight>::KeySearch;

    FORERUN_DEVICE void run() {
        const u64 count = shuffle(all_lanes, keys_in(op), 0);  // one answer per warp
        for (u64 first = warp_in_grid() * warp_lanes; first < count;
             first += warps_in_grid() * warp_lanes) {
            i = first + lane_in_warp();
            place = this->take(i, i < count);
            if (i < count) {
                // Prefetch for all 32 keys: the search below has one row per tile in flight.
                prefetch(digests_at(t, place.home * WIDTH));
                if (t.candidates == 2) prefetch(digests_at(t, place.spill * WIDTH));
            }
            attempt_together(i < count, [&](bool pending, u32) { return write(pending); });
        }
        // The sum is modulo 2^64, so it can represent a decrease.
        const u64 all_added = sum_of_warp(added);
        if (lane_in_warp() == 0 && all_added != 0)
            atomic_add(&control_of(t)->size, all_added);
    }

  private:
    using Search = KeySearch<WIDTH, writer_in_flight>;
    using Search::key;
    using Search::op;
    using Search::slot;
    using Search::t;

    u64 added = 0;
    // The lane's own key.
    u64 i = 0;
    Place place = {};
    HeldWords words;

    FORERUN_DEVICE bool does(u32 action) const { return (op.actions & action) != 0; }
    FORERUN_DEVICE u64 row() const { return row_address(t, slot); }
    FORERUN_DEVICE u64 row_in() const { return op.rows_in + i * t.row_bytes; }
    FORERUN_DEVICE u64 row_out() const { return op.rows_out + i * t.row_bytes; }

    // Returns whether the lane got the locks. If so, its key is done.
    FORERUN_DEVICE bool write(bool pending) {
        const bool locked = lock(pending);
        warp_sync(all_lanes);
        fence();  // each lane stores parts of rows, which must not be seen before the row's lock
        slot = no_slot;
        this->template search<Versions::ignored>(place, locked, false);

        const bool flag = locked && does(by_flag) && load_global(at<u8>(op.flags) + i) != 0;
        const bool meets = locked && slot != no_slot && (flag || !does(by_flag));
        const bool inserts = locked && slot == no_slot && does(absent_insert) && !flag;
        Status status = slot != no_slot ? status_found : status_absent;

        if (does(found_read_row) && op.rows_out != 0)
            copy_out<1>(t, op.rows_out, meets ? row_out() : 0, meets ? row() : 0);
        const bool pinned = meets && is_pinned();
        const bool changes = meets && (!pinned || does(found_unpin));
        if (meets && !changes) {
            if (op.scores_out != 0)
                store_global(at<u64>(op.scores_out) + i, load_score(t, slot));
            if (does(found_assign_row | found_add_row | found_score | found_erase | found_pin))
                status = status_pinned;
        }
        u64 score = 0;
        if (any(all_lanes, inserts)) {
            if (inserts) score = score_of(op, i, false, 0);
            status = take_slot(inserts, score, status);
        }
        const bool puts = inserts && slot != no_slot;

        warp_sync(all_lanes);  // everything that is replaced has been read
        write_rows(changes, puts);
        warp_sync(all_lanes);  // what a lane releases below covers its row
        if (puts) put(score);
        if (changes) change(pinned);
        if (locked) {
            if (op.slots_out != 0) store_global(at<u64>(op.slots_out) + i, slot);
            if (op.pointers_out != 0)
                store_global(at<u64>(op.pointers_out) + i, slot == no_slot ? 0 : row());
            if (op.status_out != 0) store_global(at<u8>(op.status_out) + i, u8(status));
            unlock_candidates(t, place, words);
        }
        return locked;
    }

    FORERUN_DEVICE bool lock(bool pending) {
        // In the only warp, a key waits for all keys before it.
        if (warps_in_grid() == 1) return try_lock_in_order(t, pending, place, words);
        return pending && try_lock_candidates(t, place, words);
    }

    // These return values: a reference to one of two members would keep both in memory, not in
    // registers.
    FORERUN_DEVICE bool at_home() const { return slot / WIDTH == place.home; }
    FORERUN_DEVICE u32 word_of_slot() const { return at_home() ? words.home : words.spill; }
    FORERUN_DEVICE void set_word_of_slot(u32 word) {
        words = {at_home() ? word : words.home, at_home() ? words.spill : word};
    }

    FORERUN_DEVICE bool is_pinned() const {
        return (word_of_slot() & word_pinned) != 0 && has_pin(t, slot);
    }
    // The caller holds the lock, which also guards the bucket's pins.
    FORERUN_DEVICE void pin() {
        u32* const bits = pin_at(t, slot);
        store_relaxed(bits, load_relaxed(bits) | pin_bit(t, slot));
        set_word_of_slot(word_of_slot() | word_pinned);
        atomic_add(&control_of(t)->pinned, u64(1));
    }
    FORERUN_DEVICE void unpin() {
        u32* const bits = pin_at(t, slot);
        store_relaxed(bits, load_relaxed(bits) & ~pin_bit(t, slot));
        u32 left = 0;
        for (u32 s = 0; s < WIDTH; s += 32)
            left |= load_relaxed(pin_at(t, slot / WIDTH * WIDTH + s));
        if (left == 0) set_word_of_slot(word_of_slot() & ~word_pinned);
        atomic_add(&control_of(t)->pinned, ~0ull);
    }
    FORERUN_DEVICE u32 digests_with(u32 digest) const {
        const u32 shift = digest_shift(slot);
        return (load_relaxed(digests_at(t, slot)) & ~(0xffu << shift)) | digest << shift;
    }

    // Changes the lane's entry, except for its row.
    FORERUN_DEVICE void change(bool pinned) {
        if (does(found_erase)) {
            store_relaxed(digests_at(t, slot), digests_with(digest_reclaimed));
            --added;
        }
        if (does(found_score)) store_score(t, slot, score_of(op, i, true, load_score(t, slot)));
        if (op.scores_out != 0) store_global(at<u64>(op.scores_out) + i, load_score(t, slot));
        if (does(found_pin)) pin();
        if (does(found_unpin) && pinned) unpin();
    }
    // Writes the lane's new entry, except for its row.
    FORERUN_DEVICE void put(u64 score) {
        if (t.candidates == 2 && !at_home()) words.home |= word_spilled;
        store_score(t, slot, score);
        store_relaxed(key_at(t, slot), key);
        store_release(digests_at(t, slot), digests_with(place.digest));
        if (op.scores_out != 0) store_global(at<u64>(op.scores_out) + i, score);
    }

    FORERUN_DEVICE void write_rows(bool changes, bool puts) {
        const bool writes = puts || (changes && does(found_assign_row));
        if (op.rows_in != 0) {
            if (any(all_lanes, writes)) copy_in(t, op.rows_in, writes ? row() : 0, row_in());
            if (op.rows_out != 0 && any(all_lanes, puts))
                copy_through(t, op.rows_in | op.rows_out, puts ? row_out() : 0, row_in());
        } else if (any(all_lanes, puts)) {
            zero_rows(t, puts ? row() : 0);
            if (op.rows_out != 0) zero_out(t, puts ? row_out() : 0);
        }
        const bool adds = changes && does(found_add_row);
        if (any(all_lanes, adds)) add_rows(t, op.element, adds ? row() : 0, row_in());
    }

    // Chooses a slot for the new entry of each lane that inserts. Outputs the evicted entry, or the
    // new one if it is refused. Returns the lane's status.
    FORERUN_DEVICE Status take_slot(bool inserts, u64 score, Status status) {
        Victims<WIDTH> victims{t, place, words};
        const u64 free = victims.free_slot(inserts);
        const bool is_full = inserts && free == no_slot;
        if (inserts) slot = free;
        if (inserts && !is_full) {
            ++added;
            status = status_inserted;
        }
        if (!any(all_lanes, is_full)) return status;
        u64 least = 0;
        const u64 victim = victims.least_slot(is_full, least);
        const bool refused = is_full && (victim == no_slot || score < least);
        if (is_full && !refused) slot = victim;
        if (is_full) status = refused ? status_refused : status_evicted;
        if (does(evicted_out)) give(is_full, refused, refused ? score : least);
        return status;
    }

    // Outputs an entry for each lane that sets `gives`: its new entry, or the one in its slot. The
    // output has space for one entry per key.
    FORERUN_DEVICE void give(bool gives, bool is_new, u64 score) {
        const u32 who = ballot(all_lanes, gives);
        u64 to = 0;
        if (lane_in_warp() == 0) to = atomic_add(at<u64>(op.out_count), u64(ones(who)));
        to = shuffle(all_lanes, to, 0) + ones(who & ((1u << lane_in_warp()) - 1));
        if (op.out_rows != 0) {
            const u64 row_to = op.out_rows + to * t.row_bytes;
            copy_out<1>(t, op.out_rows, gives && !is_new ? row_to : 0,
                     gives && !is_new ? row() : 0);
            if (op.rows_in != 0 && any(all_lanes, gives && is_new)) {
                copy_through(t, op.rows_in | op.out_rows, gives && is_new ? row_to : 0, row_in());
            }
        }
        if (!gives) return;
        store_global(at<u64>(op.out_keys) + to, is_new ? key : load_relaxed(key_at(t, slot)));
        if (op.out_scores != 0) store_global(at<u64>(op.out_scores) + to, score);
        if (op.out_places != 0) store_global(at<u64>(op.out_places) + to, i);
    }
};

template <u32 WIDTH> FORERUN_DEVICE void write_keys(const TableOp& op) {
    FORERUN_SHARED(SearchCells, cells);
    Writer<WIDTH>(op, cells.of_warp[warp_in_block()]).run();
}

}  // namespace forerun::table
