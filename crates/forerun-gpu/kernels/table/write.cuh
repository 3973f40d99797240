// All operations that change entries by key: one tile per key, under the locks of the key's
// buckets.
//
//   lock home, spill ─ digests of both, one load per lane each
//     ├─ found: read, assign, add, score, pin, erase
//     └─ absent: a free slot, otherwise the lowest score of both
//   unlock, which increments the versions
//
// A new entry is written as:  row ─ fence ─ score, key ─ fence ─ digest. An evicted entry first has
// its digest reclaimed. A tile takes its keys in order, so a single tile does exactly what
// src/table/cpu.rs does.
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
        const u64 count = tile.from(keys_in(op), 0);  // one answer per tile
        for (u64 i = tile.in_grid(); i < count; i += tile.tiles()) write(i);
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
    Bytes16 home = {}, spill = {};

    FORERUN_DEVICE bool does(u32 action) const { return (op.actions & action) != 0; }
    FORERUN_DEVICE u64 row() const { return row_address(t, slot); }
    FORERUN_DEVICE u64 row_in() const { return op.rows_in + i * t.row_bytes; }
    FORERUN_DEVICE u64 row_out() const { return op.rows_out + i * t.row_bytes; }

    FORERUN_DEVICE void write(u64 number) {
        i = number;
        key = load_global(at<u64>(op.keys) + i);
        place = place_of(t, key);
        if (tile.rank == 0) lock_candidates(t, place);
        tile.sync();

        home = load_digests(t, place.home * WIDTH + tile.rank * chunk_slots);
        slot = slot_in<WIDTH>(t, tile, place.home, home, place.digest, key);
        if (t.candidates == 2 && slot == no_slot) {
            spill = load_digests(t, place.spill * WIDTH + tile.rank * chunk_slots);
            if (has_spilled(t, place))
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
        if (tile.rank == 0) unlock_candidates(t, place);
    }

    FORERUN_DEVICE bool any_pins() const { return load_relaxed(&control_of(t)->pinned) != 0; }
    FORERUN_DEVICE bool is_pinned(u64 of) const {
        return (load_relaxed(pin_at(t, of)) & pin_bit(t, of)) != 0;
    }

    FORERUN_DEVICE Status meet() {
        if (does(found_read_row)) copy_row(tile, row_out(), row(), t.row_bytes);
        const bool pinned = any_pins() && is_pinned(slot);
        // Every lane has seen the pin and read its part of the row before either changes.
        tile.sync();
        if (pinned && !does(found_unpin)) {
            if (tile.rank == 0 && op.scores_out != 0)
                store_global(at<u64>(op.scores_out) + i, load_score(t, slot));
            return does(found_assign_row | found_add_row | found_score | found_erase | found_pin)
                       ? status_pinned
                       : status_found;
        }
        if (does(found_assign_row)) copy_row(tile, row(), row_in(), t.row_bytes);
        if (does(found_add_row)) add_row(tile, op.element, row(), row_in(), t.row_bytes);
        if (tile.rank != 0) return status_found;

        if (does(found_score)) store_score(t, slot, score_of(op, i, true, load_score(t, slot)));
        if (op.scores_out != 0) store_global(at<u64>(op.scores_out) + i, load_score(t, slot));
        if (does(found_pin)) {
            atomic_or(pin_at(t, slot), pin_bit(t, slot));
            atomic_add(&control_of(t)->pinned, u64(1));
        }
        if (does(found_unpin) && pinned) {
            atomic_and(pin_at(t, slot), ~pin_bit(t, slot));
            atomic_add(&control_of(t)->pinned, ~0ull);
        }
        if (does(found_erase)) {
            store_relaxed(digest_at(t, slot), u8(digest_reclaimed));
            --added;
        }
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
        if (tile.rank == 0) store_relaxed(digest_at(t, slot), u8(digest_reclaimed));
        fence();
        // The old row has been output, and from here on no reader finds the old key in this slot.
        tile.sync();
        put(score, slot / WIDTH == place.spill && t.candidates == 2);
        return status_evicted;
    }

    // The slot with the lowest score of both rows. On a tie, the home's slot comes first, then the
    // lowest slot. no_slot if all are pinned.
    FORERUN_DEVICE u64 least_slot(u64& least) const {
        const bool pins = any_pins();
        u64 mine = ~0ull;
        u32 where = ~0u;
        const u32 each = t.score_bytes == 4 ? 4 : 2;  // scores per load
        for (u32 c = 0; c < t.candidates; ++c) {
            const u64 first = (c == 0 ? place.home : place.spill) * WIDTH;
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
            copy_row(tile, row(), row_in(), t.row_bytes);
            if (op.rows_out != 0) copy_row(tile, row_out(), row_in(), t.row_bytes);
        } else {
            zero_row(tile, row(), t.row_bytes);
        }
        fence();
        tile.sync();
        if (tile.rank != 0) return;
        store_score(t, slot, score);
        store_relaxed(key_at(t, slot), key);
        if (spills)
            store_relaxed(word_at(t, place.home),
                          load_relaxed(word_at(t, place.home)) | word_spilled);
        if (op.scores_out != 0) store_global(at<u64>(op.scores_out) + i, score);
        fence();
        store_relaxed(digest_at(t, slot), u8(place.digest));
    }

    // Outputs an entry that the table does not keep. The output has space for one per key.
    FORERUN_DEVICE void give(u64 of_key, u64 score, u64 from) {
        u64 to = tile.rank == 0 ? atomic_add(at<u64>(op.out_count), u64(1)) : 0;
        to = tile.from(to, 0);
        if (op.out_rows != 0 && from != 0)
            copy_row(tile, op.out_rows + to * t.row_bytes, from, t.row_bytes);
        if (tile.rank != 0) return;
        store_global(at<u64>(op.out_keys) + to, of_key);
        if (op.out_scores != 0) store_global(at<u64>(op.out_scores) + to, score);
        if (op.out_places != 0) store_global(at<u64>(op.out_places) + to, i);
    }
};

}  // namespace forerun::table
