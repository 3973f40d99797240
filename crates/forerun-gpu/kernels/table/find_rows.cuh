// Finding rows with tiles: one tile of lanes per key, four keys in flight per tile, and one aligned
// request per probe.
//
//   a warp, width 128:   tile 0: keys 0 4 8 12    tile 1: keys 1 5 9 13    tile 2: ...    tile 3: ...
//
//   round 0   home, the sector in which the search begins (narrow), or the row (wide)
//   round 1   home, the rest of the row (narrow)           for keys that are not found and met no empty slot
//   round 2   spill, the row                               for keys whose home has spilled
//
//   in each: digests of all four ─ keys behind equal digests of all four ─ compare
//
// Rows: each lane copies 16 bytes of each of the tile's four rows at a time with cp.async, and
// loads the next 64 bytes while it stores the last. A row counts only if its bucket's word has not
// changed since before the digests were read.
#pragma once
#include "../include/async.cuh"
#include "find_slots.cuh"
#include "write.cuh"

namespace forerun::table {

template <u32 WIDTH> class RowFinder {
  public:
    static constexpr u32 lanes = WIDTH / 16;
    static constexpr u32 tiles_a_warp = warp_lanes / lanes;
    // Keys per tile; with tiles of one lane, 32 tiles share the warp.
    static constexpr u32 in_flight = lanes == 1 ? 1 : 4;

    FORERUN_DEVICE explicit RowFinder(const TableOp& op)
        : op(op),
          t(op.table),
          count(tile.from(keys_in(op), 0)),
          narrow(WIDTH > sector_slots && tile.from(u32(is_narrow(op)), 0) != 0) {}

    FORERUN_DEVICE void run() {
        constexpr u32 group = tiles_a_warp * in_flight;
        for (u64 first = warp_in_grid() * group; first < count; first += warps_in_grid() * group) {
            begin(first + tile.first / lanes);
            search();
            copy_rows();
            give_scores();
            if (checks()) check_rows();
            finish();
        }
    }

  private:
    const TableOp& op;
    const TableState& t;
    const Tile<lanes> tile;
    const u64 count;    // number of keys; like `narrow`, the same for all lanes of the tile
    // The same for all lanes of the tile, even if writers change the size during the lookup.
    const bool narrow;

    // The keys in flight. Bit k of a mask stands for key k.
    u64 base = 0;              // number of key 0; the others are tiles_a_warp apart
    u64 key[in_flight];
    u64 bucket[in_flight];     // being searched: its home, then its spill
    // The digest in 8 bits; above them, the slot at which the search begins.
    u32 mark[in_flight];
    u64 slot[in_flight];       // where it was found
    u32 word[in_flight];       // of its home; at the end, of the bucket where it was found
    u32 there = 0, pending = 0;

    FORERUN_DEVICE u64 number(u32 k) const { return base + k * tiles_a_warp; }
    FORERUN_DEVICE static bool has(u32 mask, u32 k) { return (mask >> k & 1) != 0; }
    FORERUN_DEVICE bool checks() const { return op.concurrent_writers != 0; }

    FORERUN_DEVICE void begin(u64 first) {
        base = first;
        there = 0;
#pragma unroll
        for (u32 k = 0; k < in_flight; ++k) {
            key[k] = 0;
            slot[k] = no_slot;
            if (number(k) < count) {
                key[k] = load_once(at<u64>(op.keys) + number(k));
                there |= 1u << k;
            }
        }
#pragma unroll
        for (u32 k = 0; k < in_flight; ++k) {
            const Place place = place_of(t, key[k]);
            bucket[k] = place.home;
            mark[k] = place.digest | place.start << 8;
        }
        pending = there;
    }

    FORERUN_DEVICE void search() {
        if (checks()) read_versions(pending);
        u32 open = pending;  // keys that met no empty slot so far
        for (u32 round = narrow ? 0 : 1; round < 3 && pending != 0; ++round) {
            u32 keys = pending;
            if (round == 1) keys &= open;
            if (round == 2) {
                if (t.candidates == 1) return;
                read_words(keys);
                keys &= spilled();
                to_spill(keys);
                if (checks()) read_versions(keys);
            }
            if (keys != 0) open &= probe(keys, round);
        }
    }

    // One lane reads the words for all, so that the lanes agree on them.
    FORERUN_DEVICE void read_words(u32 keys) {
#pragma unroll
        for (u32 k = 0; k < in_flight; ++k) {
            const bool reads = has(keys, k) && tile.rank == 0;
            const u32 now = reads ? load_relaxed(word_at(t, bucket[k])) : 0;
            if (has(keys, k)) word[k] = tile.from(now, 0);
        }
    }
    // The same, before everything that the lanes read later.
    FORERUN_DEVICE void read_versions(u32 keys) {
        read_words(keys);
        fence();
        tile.sync();
    }
    FORERUN_DEVICE void to_spill(u32 keys) {
#pragma unroll
        for (u32 k = 0; k < in_flight; ++k) {
            if (has(keys, k)) bucket[k] = place_of(t, key[k]).spill;
        }
    }
    FORERUN_DEVICE u32 spilled() const {
        u32 keys = 0;
#pragma unroll
        for (u32 k = 0; k < in_flight; ++k)
            keys |= u32(has(pending, k) && (word[k] & word_spilled) != 0) << k;
        return keys;
    }

    FORERUN_DEVICE u64 first_slot(u32 k) const {
        return bucket[k] * WIDTH + tile.rank * chunk_slots;
    }
    FORERUN_DEVICE bool takes_part(u32 keys, u32 k, u32 round) const {
        if (!has(keys, k)) return false;
        if (!narrow || round == 2) return true;
        return (tile.rank * chunk_slots / sector_slots == (mark[k] >> 8) / sector_slots) ==
               (round == 0);
    }

    // The keys that met no empty slot.
    FORERUN_DEVICE u32 probe(u32 keys, u32 round) {
        Bytes16 chunk[in_flight];
        u32 same[in_flight];
        u64 candidate[in_flight];
#pragma unroll
        for (u32 k = 0; k < in_flight; ++k) {
            // If nothing is loaded, the chunk is full, with a digest that no key has.
            chunk[k] = {0x01010101u, 0x01010101u, 0x01010101u, 0x01010101u};
            if (takes_part(keys, k, round)) chunk[k] = load_digests(t, first_slot(k));
        }
#pragma unroll
        for (u32 k = 0; k < in_flight; ++k) {
            same[k] = match_16(chunk[k], (mark[k] & 0xff));
            candidate[k] = 0;
            if (same[k] != 0)
                candidate[k] = load_relaxed(key_at(t, first_slot(k) + lowest(same[k])));
        }
        u32 open = 0;
#pragma unroll
        for (u32 k = 0; k < in_flight; ++k) {
            u64 found = no_slot;
            while (same[k] != 0 && found == no_slot) {
                if (candidate[k] == key[k]) found = first_slot(k) + lowest(same[k]);
                same[k] &= same[k] - 1;
                if (same[k] != 0 && found == no_slot)
                    candidate[k] = load_relaxed(key_at(t, first_slot(k) + lowest(same[k])));
            }
            const u32 who = tile.vote(found != no_slot);
            if (who != 0) {
                slot[k] = tile.from(found, lowest(who));
                pending &= ~(1u << k);
            }
            open |= u32(tile.vote(empty_in(chunk[k]) != 0) == 0) << k;
        }
        return open;
    }

    // Rows of found keys. A cell of shared memory holds 16 bytes that only one lane uses, so no
    // lane waits for another.
    FORERUN_DEVICE void copy_rows() {
        if (op.rows_out == 0) return;
        const u64 bits = op.rows_out | t.rows | t.rows_host | t.row_stride_bytes | t.row_bytes;
        if (unit_of(bits) != 16) {
#pragma unroll
            for (u32 k = 0; k < in_flight; ++k) {
                if (slot[k] != no_slot)
                    copy_out(tile, row_out(k), row_address(t, slot[k]), t.row_bytes);
            }
            return;
        }
        const u32 units = u32(t.row_bytes / 16);
        if (checks()) return copy_rows_relaxed(units);
        u32 turn = 0;
        for (u32 first = 0; first < units; first += lanes, ++turn) {
            ask(first + tile.rank, units, turn % 2);
            if (turn != 0) {
                copy_async_wait<1>();
                give(first - lanes + tile.rank, units, (turn - 1) % 2);
            }
        }
        copy_async_wait<0>();
        if (turn != 0) give((turn - 1) * lanes + tile.rank, units, (turn - 1) % 2);
    }

    // cp.async has no order that a writer's stores could have with it.
    FORERUN_DEVICE void copy_rows_relaxed(u32 units) {
        for (u32 unit = tile.rank; unit < units; unit += lanes) {
            Bytes16 part[in_flight];
#pragma unroll
            for (u32 k = 0; k < in_flight; ++k) {
                if (slot[k] != no_slot)
                    part[k] = load_relaxed(at<Bytes16>(row_address(t, slot[k])) + unit);
            }
#pragma unroll
            for (u32 k = 0; k < in_flight; ++k) {
                if (slot[k] != no_slot) store_streaming(at<Bytes16>(row_out(k)) + unit, part[k]);
            }
        }
    }

    FORERUN_DEVICE Bytes16* cell(u32 half, u32 k) const {
        return reinterpret_cast<Bytes16*>(dynamic_shared()) +
               (half * in_flight + k) * threads_in_block() + thread_in_block();
    }
    FORERUN_DEVICE u64 row_out(u32 k) const { return op.rows_out + number(k) * t.row_bytes; }
    FORERUN_DEVICE void ask(u32 unit, u32 units, u32 half) const {
#pragma unroll
        for (u32 k = 0; k < in_flight; ++k) {
            if (slot[k] != no_slot && unit < units)
                copy_async<16>(cell(half, k), at<Bytes16>(row_address(t, slot[k])) + unit);
        }
        copy_async_commit();
    }
    FORERUN_DEVICE void give(u32 unit, u32 units, u32 half) const {
#pragma unroll
        for (u32 k = 0; k < in_flight; ++k) {
            if (slot[k] != no_slot && unit < units)
                store_streaming(at<Bytes16>(row_out(k)) + unit, load(cell(half, k)));
        }
    }

    // Rows that were copied while a writer changed their bucket are copied again under the bucket's
    // lock.
    FORERUN_DEVICE void check_rows() {
        fence();
        tile.sync();  // all lanes have their parts of the rows
        u32 moved = 0;
#pragma unroll
        for (u32 k = 0; k < in_flight; ++k) {
            if (slot[k] == no_slot || tile.rank != 0) continue;
            const u32 now = load_relaxed(word_at(t, slot[k] / WIDTH));
            const bool same = (now | word_spilled) == (word[k] | word_spilled);
            moved |= u32(!same || (word[k] & word_locked) != 0) << k;
        }
        moved = tile.from(moved, 0);
        const u32 warp = lanes_of_warp();
        if (!any(warp, moved != 0)) return;
#pragma unroll
        for (u32 k = 0; k < in_flight; ++k)
            attempt_until_done(warp, has(moved, k), [&] { return find_again(k); });
    }
    // Whether the tile got the locks and has found the key again, or not.
    FORERUN_DEVICE bool find_again(u32 k) {
        const Place place = place_of(t, key[k]);
        HeldWords words;
        const bool locked = tile.rank == 0 && try_lock_candidates(t, place, words);
        if (tile.from(u32(locked), 0) == 0) return false;
        words = {tile.from(words.home, 0), tile.from(words.spill, 0)};
        tile.sync();
        const u32 from = tile.rank * chunk_slots;
        slot[k] = slot_in<WIDTH>(t, tile, place.home, load_digests(t, place.home * WIDTH + from),
                                 place.digest, key[k]);
        if (slot[k] == no_slot && t.candidates == 2 && (words.home & word_spilled) != 0) {
            slot[k] =
                slot_in<WIDTH>(t, tile, place.spill, load_digests(t, place.spill * WIDTH + from),
                               place.digest, key[k]);
        }
        // A part of a row that is gone may have been written to the answer: nothing of it stays.
        const bool found = slot[k] != no_slot;
        if (op.rows_out != 0) {
            if (found) {
                copy_out(tile, row_out(k), row_address(t, slot[k]), t.row_bytes);
            } else {
                zero_out(tile, row_out(k), t.row_bytes);
            }
        }
        if (op.scores_out != 0 && tile.rank == 0) {
            store_global(at<u64>(op.scores_out) + number(k), found ? load_score(t, slot[k]) : 0);
        }
        tile.sync();
        if (tile.rank == 0) unlock_unchanged(t, place, words);
        return true;
    }

    FORERUN_DEVICE void give_scores() {
        if (op.scores_out == 0 || tile.rank != 0) return;
#pragma unroll
        for (u32 k = 0; k < in_flight; ++k) {
            if (slot[k] != no_slot)
                store_global(at<u64>(op.scores_out) + number(k), load_score(t, slot[k]));
        }
    }

    FORERUN_DEVICE void finish() {
        if (tile.rank != 0) return;
#pragma unroll
        for (u32 k = 0; k < in_flight; ++k) {
            if (!has(there, k)) continue;
            const bool found = slot[k] != no_slot;
            if (op.pointers_out != 0)
                store_global(at<u64>(op.pointers_out) + number(k),
                             found ? row_address(t, slot[k]) : 0);
            if (op.slots_out != 0) store_global(at<u64>(op.slots_out) + number(k), slot[k]);
            if (op.status_out != 0)
                store_global(at<u8>(op.status_out) + number(k),
                             u8(found ? status_found : status_absent));
        }
        if (op.out_count != 0) give_missed();
    }
    FORERUN_DEVICE void give_missed() {
        u32 missed = 0;
#pragma unroll
        for (u32 k = 0; k < in_flight; ++k) missed += u32(has(there, k) && slot[k] == no_slot);
        if (missed == 0) return;
        u64 to = atomic_add(at<u64>(op.out_count), u64(missed));
#pragma unroll
        for (u32 k = 0; k < in_flight; ++k) {
            if (!has(there, k) || slot[k] != no_slot) continue;
            if (op.out_keys != 0) store_global(at<u64>(op.out_keys) + to, key[k]);
            if (op.out_places != 0) store_global(at<u64>(op.out_places) + to, number(k));
            ++to;
        }
    }
};

}  // namespace forerun::table
