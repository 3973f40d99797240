// Implements all operations that change entries by key. A warp has 32 keys at a time, one per
// lane, and works under the locks of the keys' buckets.
//
//   each lane      a key, if it has none ─ lock home and spill
//   all lanes      search for the keys whose locks are held, and for free slots: key_search.cuh
//     found        read, assign, add, score, pin, erase
//     absent       a free slot, otherwise the slot with the lowest rank: see victim.cuh
//   all lanes      rows
//   each lane      score, key, digest ─ unlock, and increment the version of what has changed
//
// A new entry is written as:  row, score, key ─ release: digest.
//
// A lane without its locks keeps its key for the next round, in which the others have their next
// keys. So keys that share a bucket cost their lanes a round, not the warp. If the launch has only
// one warp, the warp processes keys that share a bucket in batch order, and does exactly what
// src/table/cpu.rs does.
#pragma once
#include "key_search.cuh"
#include "row.cuh"
#include "score.cuh"
#include "victim.cuh"

namespace forerun::table {

template <u32 WIDTH> class Writer : KeySearch<WIDTH, 4, Free::noted> {
    using Search = KeySearch<WIDTH, 4, Free::noted>;

  public:
    using typename Search::Cells;
    using Search::Search;

    FORERUN_DEVICE void run() {
        count = shuffle(all_lanes, keys_in(op), 0);  // one answer per warp
        attempt_refilled([&](bool pending) { return refill(pending); },
                         [&](bool pending) { return write(pending); });
        // The sum is modulo 2^64, so it can represent a decrease.
        const u64 all_added = sum_of_warp(added);
        if (lane_in_warp() == 0 && all_added != 0)
            atomic_add(&control_of(t)->size, all_added);
    }

  private:
    using Search::key;
    using Search::lanes;
    using Search::op;
    using Search::slot;
    using Search::t;

    u64 added = 0;
    u64 count = 0;  // keys of the batch
    u64 taken = 0;  // keys that the warp has taken
    // The lane's own key.
    u64 i = 0;
    Place place = {};
    HeldWords words;

    FORERUN_DEVICE bool does(u32 action) const { return (op.actions & action) != 0; }
    FORERUN_DEVICE u64 row() const { return row_address(t, slot); }
    FORERUN_DEVICE u64 row_in() const { return op.rows_in + i * t.row_bytes; }
    FORERUN_DEVICE u64 row_out() const { return op.rows_out + i * t.row_bytes; }

    // The position in the batch of the warp's nth key: 32 neighbours, then the next 32 beyond those
    // of the other warps.
    FORERUN_DEVICE u64 position(u64 nth) const {
        return (nth / warp_lanes * warps_in_grid() + warp_in_grid()) * warp_lanes +
               nth % warp_lanes;
    }
    // Gives the lanes whose keys are done the next ones. Returns whether the lane has a key.
    FORERUN_DEVICE bool refill(bool pending) {
        const u32 idle = ballot(all_lanes, !pending);
        if (idle == 0 || position(taken) >= count) return pending;
        // The only warp processes its keys in batch order.
        if (idle != all_lanes && warps_in_grid() == 1) return pending;
        if (!pending) {
            i = position(taken + ones(idle & ((1u << lane_in_warp()) - 1)));
            pending = i < count;
            place = this->take(this->key_of(i, pending));
            if (pending) {
                // They arrive while the words are locked.
                this->prefetch_digests(place, false);
                if (t.candidates == 2) prefetch(digests_at(t, place.spill * WIDTH));
            }
        }
        taken += ones(idle);
        return pending;
    }

    // Returns whether the lane got the locks. If so, its key is done.
    FORERUN_DEVICE bool write(bool pending) {
        const bool locked = lock(pending);
        warp_sync(all_lanes);
        fence();  // each lane stores parts of rows, which must not be seen before the row's lock

        const bool flag = locked && does(by_flag) && load_global(at<u8>(op.flags) + i) != 0;
        const bool may_insert = locked && does(absent_insert) && !flag;
        const u64 free = search_locked(locked, may_insert);
        const bool meets = locked && slot != no_slot && (flag || !does(by_flag));
        const bool inserts = may_insert && slot == no_slot;
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
            status = take_slot(inserts, free, score, status);
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
            // A version says that a row, a key or a digest has changed, and only in that bucket.
            if (puts || (changes && does(found_assign_row | found_add_row | found_erase)))
                set_word_of_slot(word_of_slot() + word_version);
            unlock_candidates(t, place, words);
        }
        return locked;
    }

    // Searches for the lane's key. If it is absent and may be inserted, returns a free slot: of the
    // home until few of its slots are free, then of the bucket with more free slots. In that
    // bucket, the first in search order.
    FORERUN_DEVICE u64 search_locked(bool locked, bool may_insert) {
        constexpr u32 few = WIDTH * 3 / 16;
        u64 free = no_slot, row = place.home * WIDTH;
        u32 in_home = 0;
        bool wanted = locked;
        slot = no_slot;
#pragma unroll 1
        for (u32 nth = 0; nth < t.candidates && any(all_lanes, wanted); ++nth) {
            this->template probe<lanes, false>(row, wanted);  // slots: row
            if (wanted) wanted = slot == no_slot;
            if (does(absent_insert)) {
                const Marks<lanes> marks = this->free_marks(wanted);  // slots: free
                const u32 here = marks.count();  // slots: free
                if (here > in_home && in_home <= few)
                    free = row + marks.first_from(place.start);  // slots: free
                if (nth == 0) in_home = here;
            }
            const bool spills = (words.home & word_spilled) != 0 || (may_insert && in_home <= few);
            wanted = wanted && spills;
            row = place.spill * WIDTH;
        }
        return free;
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

    // Chooses a slot for the new entry of each lane that inserts: the free one, if there is one.
    // Outputs the evicted entry, or the new one if it is refused. Returns the lane's status.
    FORERUN_DEVICE Status take_slot(bool inserts, u64 free, u64 score, Status status) {
        const bool is_full = inserts && free == no_slot;
        if (inserts) slot = free;
        if (inserts && !is_full) {
            ++added;
            status = status_inserted;
        }
        if (!any(all_lanes, is_full)) return status;
        const Victims<WIDTH> victims{t, place, words, evict_order(t)};
        u64 rank = 0;
        const u64 victim = victims.least_slot(is_full, rank);  // slots: victim
        const bool refused = is_full && (victim == no_slot || victims.order.rank(score) < rank);
        if (is_full && !refused) slot = victim;
        if (is_full) status = refused ? status_refused : status_evicted;
        if (does(evicted_out))
            give(is_full, refused, refused ? score : victims.order.score(rank));
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
    FORERUN_SHARED(typename Writer<WIDTH>::Cells, cells);
    Writer<WIDTH>(op, cells).run();
}

}  // namespace forerun::table
