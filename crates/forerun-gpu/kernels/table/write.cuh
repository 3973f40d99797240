// All operations that change entries by key: one tile per key, under the locks of the key's
// buckets.
//
//   lock home and spill, or try again ─ digests of both, one load per lane each
//     ├─ found: read, assign, add, score, pin, erase
//     └─ absent: a free slot, otherwise the lowest score of both
//   unlock, which increments the versions
//
// A new entry is written as:  row, score, key ─ release: digest. The lane whose digests include the
// slot's stores score, key and digest. A tile takes its keys in order, so a single tile does
// exactly what src/table/cpu.rs does.
#pragma once
#include "bucket.cuh"
#include "row.cuh"
#include "score.cuh"

namespace forerun::table {

// The slot of a bucket's row that has the key, or no_slot.
template <u32 WIDTH>
FORERUN_DEVICE u64 slot_in(const TableState& t, const Tile<WIDTH / 16>& tile, u64 bucket,
                           const Bytes16& chunk, u32 digest, u64 key) {
    u64 found = no_slot;
    for (u32 left = match_16(chunk, digest); left != 0 && found == no_slot; left &= left - 1) {
        const u64 slot = bucket * WIDTH + tile.rank * chunk_slots + lowest(left);
        if (load_relaxed(key_at(t, slot)) == key) found = slot;
    }
    const u32 who = tile.vote(found != no_slot);
    return who == 0 ? no_slot : tile.from(found, lowest(who));
}

template <u32 WIDTH> class Writer {
  public:
    static constexpr u32 lanes = WIDTH / 16;

    FORERUN_DEVICE explicit Writer(const TableOp& op) : op(op), t(op.table) {}

    FORERUN_DEVICE void run() {
        const u32 warp = lanes_of_warp();
        const u64 count = shuffle(warp, keys_in(op), 0);  // one answer per warp
        const u32 tile_in_warp = lane_in_warp() / lanes;
        // All tiles of a warp take as many turns, so that its lanes meet.
        for (u64 first = tile.in_grid() - tile_in_warp; first < count; first += tile.tiles()) {
            i = first + tile_in_warp;
            if (i < count) {
                key = load_global(at<u64>(op.keys) + i);
                place = place_of(t, key);
            }
            attempt_until_done(warp, i < count, [&] { return write(); });
        }
        if (tile.rank == 0 && added != 0) atomic_add(&control_of(t)->size, added);
    }

  private:
    const TableOp& op;
    const TableState& t;
    const Tile<lanes> tile;
    u64 added = 0;  // modulo 2^64, so it can be negative

    // The current key.
    u64 i = 0, key = 0, slot = no_slot;
    Place place = {};
    HeldWords words;
    Bytes16 home = {}, spill = {};

    FORERUN_DEVICE bool does(u32 action) const { return (op.actions & action) != 0; }
    FORERUN_DEVICE u64 row() const { return row_address(t, slot); }
    FORERUN_DEVICE u64 row_in() const { return op.rows_in + i * t.row_bytes; }
    FORERUN_DEVICE u64 row_out() const { return op.rows_out + i * t.row_bytes; }

    // Whether the tile got the locks and has dealt with the key.
    FORERUN_DEVICE bool write() {
        const bool locked = tile.rank == 0 && try_lock_candidates(t, place, words);
        if (tile.from(u32(locked), 0) == 0) return false;
        words = {tile.from(words.home, 0), tile.from(words.spill, 0)};
        tile.sync();

        home = load_digests(t, place.home * WIDTH + tile.rank * chunk_slots);
        slot = slot_in<WIDTH>(t, tile, place.home, home, place.digest, key);
        if (t.candidates == 2 && slot == no_slot) {
            spill = load_digests(t, place.spill * WIDTH + tile.rank * chunk_slots);
            if ((words.home & word_spilled) != 0)
                slot = slot_in<WIDTH>(t, tile, place.spill, spill, place.digest, key);
        }
        const bool flag = does(by_flag) && load_global(at<u8>(op.flags) + i) != 0;
        Status status = status_absent;
        if (slot != no_slot) {
            status = does(by_flag) && !flag ? status_found : meet();
        } else if (does(absent_insert) && !flag) {
            status = insert();
        }
        if (tile.rank == 0) {
            if (op.slots_out != 0) store_global(at<u64>(op.slots_out) + i, slot);
            if (op.pointers_out != 0)
                store_global(at<u64>(op.pointers_out) + i, slot == no_slot ? 0 : row());
            if (op.status_out != 0) store_global(at<u8>(op.status_out) + i, u8(status));
        }
        tile.sync();
        if (tile.rank == 0) unlock_candidates(t, place, words);
        return true;
    }

    // By value: a reference to one of two members would put both into memory.
    FORERUN_DEVICE bool at_home() const { return slot / WIDTH == place.home; }
    FORERUN_DEVICE u32 word_of_slot() const { return at_home() ? words.home : words.spill; }
    FORERUN_DEVICE void set_word_of_slot(u32 word) {
        words = {at_home() ? word : words.home, at_home() ? words.spill : word};
    }
    // The chunk of the lane that has the slot.
    FORERUN_DEVICE Bytes16 chunk_of_slot() const {
        const bool in_home = at_home();
        return {in_home ? home.x : spill.x, in_home ? home.y : spill.y,
                in_home ? home.z : spill.z, in_home ? home.w : spill.w};
    }
    FORERUN_DEVICE bool owns_slot() const { return slot % WIDTH / chunk_slots == tile.rank; }
    FORERUN_DEVICE bool is_pinned(u64 of) const {
        return (load_relaxed(pin_at(t, of)) & pin_bit(t, of)) != 0;
    }
    // Under the lock, which also guards the bucket's pins.
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

    FORERUN_DEVICE Status meet() {
        if (does(found_read_row) && op.rows_out != 0)
            copy_out(tile, row_out(), row(), t.row_bytes);
        const bool pinned = (word_of_slot() & word_pinned) != 0 && is_pinned(slot);
        // Every lane has seen the pin and read its part of the row before either changes.
        tile.sync();
        if (pinned && !does(found_unpin)) {
            if (tile.rank == 0 && op.scores_out != 0)
                store_global(at<u64>(op.scores_out) + i, load_score(t, slot));
            return does(found_assign_row | found_add_row | found_score | found_erase | found_pin)
                       ? status_pinned
                       : status_found;
        }
        if (does(found_assign_row)) copy_in(tile, row(), row_in(), t.row_bytes);
        if (does(found_add_row)) add_row(tile, op.element, row(), row_in(), t.row_bytes);
        if (does(found_erase) && owns_slot()) {
            store_relaxed(digests_at(t, slot),
                          digests_with(chunk_of_slot(), slot, digest_reclaimed));
        }
        if (tile.rank != 0) return status_found;

        if (does(found_score)) store_score(t, slot, score_of(op, i, true, load_score(t, slot)));
        if (op.scores_out != 0) store_global(at<u64>(op.scores_out) + i, load_score(t, slot));
        if (does(found_pin)) pin();
        if (does(found_unpin) && pinned) unpin();
        if (does(found_erase)) --added;
        return status_found;
    }

    FORERUN_DEVICE Status insert() {
        u64 score = tile.rank == 0 ? score_of(op, i, false, 0) : 0;
        score = tile.from(score, 0);
        const u32 free_home = tile.sum(ones(free_in(home)));
        const u32 free_spill = t.candidates == 2 ? tile.sum(ones(free_in(spill))) : 0;
        if (free_home + free_spill == 0) return insert_in_place(score);

        // Use the home until few of its slots are free, then the bucket with more free slots.
        const bool spills = free_home <= WIDTH * 3 / 16 && free_spill > free_home;
        slot = first_free(spills ? place.spill : place.home, spills ? spill : home);
        put(score, spills);
        ++added;
        return status_inserted;
    }

    // The first free slot in search order.
    FORERUN_DEVICE u64 first_free(u64 bucket, const Bytes16& chunk) const {
        const u32 mine = free_in(chunk);
        const u32 turn =
            mine == 0 ? ~0u
                      : ((tile.rank * chunk_slots - place.start) & (WIDTH - 1)) + lowest(mine);
        return bucket * WIDTH + ((tile.least(turn) + place.start) & (WIDTH - 1));
    }

    FORERUN_DEVICE Status insert_in_place(u64 score) {
        u64 least;
        slot = least_slot(least);
        if (slot == no_slot || score < least) {
            slot = no_slot;
            if (does(evicted_out)) give(key, score, op.rows_in == 0 ? 0 : row_in());
            return status_refused;
        }
        if (does(evicted_out)) give(load_relaxed(key_at(t, slot)), least, row());
        tile.sync();  // the old row has been output
        put(score, slot / WIDTH == place.spill && t.candidates == 2);
        return status_evicted;
    }

    // The slot with the lowest score of both rows. On a tie, the home's slot comes first, then the
    // lowest slot. no_slot if all are pinned.
    FORERUN_DEVICE u64 least_slot(u64& least) const {
        u64 mine = ~0ull;
        u32 where = ~0u;
        const u32 each = t.score_bytes == 4 ? 4 : 2;  // scores per load
        for (u32 c = 0; c < t.candidates; ++c) {
            const u64 first = (c == 0 ? place.home : place.spill) * WIDTH;
            const bool pins = ((c == 0 ? words.home : words.spill) & word_pinned) != 0;
#pragma unroll 2
            for (u32 s = tile.rank * each; s < WIDTH; s += lanes * each) {
                const Bytes16 loaded =
                    load_relaxed(at<Bytes16>(t.scores + (first + s) * t.score_bytes));
                const u64 a = t.score_bytes == 4 ? loaded.x : loaded.x | u64(loaded.y) << 32;
                const u64 b = t.score_bytes == 4 ? loaded.y : loaded.z | u64(loaded.w) << 32;
                take_lesser(mine, where, a, c * WIDTH + s, pins && is_pinned(first + s));
                take_lesser(mine, where, b, c * WIDTH + s + 1, pins && is_pinned(first + s + 1));
                if (t.score_bytes == 4) {
                    take_lesser(mine, where, loaded.z, c * WIDTH + s + 2,
                                pins && is_pinned(first + s + 2));
                    take_lesser(mine, where, loaded.w, c * WIDTH + s + 3,
                                pins && is_pinned(first + s + 3));
                }
            }
        }
        least = tile.least(mine);
        const u32 of_least = tile.least(mine == least ? where : ~0u);
        if (of_least == ~0u) return no_slot;
        return (of_least < WIDTH ? place.home : place.spill) * WIDTH + of_least % WIDTH;
    }
    FORERUN_DEVICE static void take_lesser(u64& least, u32& where, u64 score, u32 slot,
                                           bool pinned) {
        if (!pinned && (where == ~0u || score < least)) least = score, where = slot;
    }

    FORERUN_DEVICE void put(u64 score, bool spills) {
        if (op.rows_in != 0) {
            copy_in(tile, row(), row_in(), t.row_bytes);
            if (op.rows_out != 0) copy_through(tile, row_out(), row_in(), t.row_bytes);
        } else {
            zero_row(tile, row(), t.row_bytes);
            if (op.rows_out != 0) zero_out(tile, row_out(), t.row_bytes);
        }
        tile.sync();  // the release below covers the row
        if (tile.rank == 0 && spills) words.home |= word_spilled;
        if (!owns_slot()) return;
        store_score(t, slot, score);
        store_relaxed(key_at(t, slot), key);
        store_release(digests_at(t, slot), digests_with(chunk_of_slot(), slot, place.digest));
        if (op.scores_out != 0) store_global(at<u64>(op.scores_out) + i, score);
    }

    // Outputs an entry that the table does not keep. The output has space for one per key.
    FORERUN_DEVICE void give(u64 of_key, u64 score, u64 from) {
        u64 to = tile.rank == 0 ? atomic_add(at<u64>(op.out_count), u64(1)) : 0;
        to = tile.from(to, 0);
        if (op.out_rows != 0 && from != 0) {
            const u64 row_to = op.out_rows + to * t.row_bytes;
            if (slot == no_slot) {
                copy_through(tile, row_to, from, t.row_bytes);
            } else {
                copy_out(tile, row_to, from, t.row_bytes);
            }
        }
        if (tile.rank != 0) return;
        store_global(at<u64>(op.out_keys) + to, of_key);
        if (op.out_scores != 0) store_global(at<u64>(op.out_scores) + to, score);
        if (op.out_places != 0) store_global(at<u64>(op.out_places) + to, i);
    }
};

}  // namespace forerun::table
