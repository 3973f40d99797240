// Chooses the entry that a new one replaces: the one with the lowest rank (score.cuh) of both
// buckets. On a tie, the home comes first, then the lowest slot.
//
//   a tile of half as many lanes as a bucket has slots, but at most a warp, reads a bucket's scores
//
//     W = 128, 8 bytes   | 1 KiB: each lane of the warp two times 16 bytes |      two keys at a time
//     W = 64,  8 bytes   | 512 B: each lane of the warp |                         four
//     W = 16,  8 bytes   | 128 B: eight lanes |                                   four of each tile
//
// The buckets are locked. All lanes of the warp make each call.
#pragma once
#include "bucket.cuh"
#include "score.cuh"
#include "tile.cuh"

namespace forerun::table {

FORERUN_DEVICE bool has_pin(const TableState& t, u64 slot) {
    return (load_relaxed(pin_at(t, slot)) & pin_bit(t, slot)) != 0;
}

template <u32 WIDTH> class Victims {
    static constexpr u32 lanes = WIDTH / 2 < warp_lanes ? WIDTH / 2 : warp_lanes;
    static constexpr u32 loads = WIDTH / 2 / lanes;  // of a lane, for one row of 8-byte scores
    // Keys of a tile. More would not fit in registers if a row is long.
    static constexpr u32 at_once = loads > 1 ? 2 : 4;

  public:
    const TableState& t;
    // The lane's own key: its place, and the words of its buckets.
    const Place& place;
    const HeldWords& words;
    const EvictOrder order;

    // The slot with the lowest rank, and that rank, for the key of each lane that wants it; no_slot
    // if all are pinned.
    FORERUN_DEVICE u64 least_slot(bool wants, u64& rank) const {
        const u32 own = rank_in_tile<lanes>();
        u32 keys = votes_of_tile<lanes>(wants);
        u64 slot = no_slot;
#pragma unroll 1
        while (any(all_lanes, keys != 0)) {
            u32 who[at_once];  // the lane in the tile that has the key
            Least found[at_once];
#pragma unroll
            for (u32 k = 0; k < at_once; ++k) {
                who[k] = keys == 0 ? nobody : lowest(keys);
                keys &= keys - 1;
            }
#pragma unroll 1
            for (u32 nth = 0; nth < t.candidates; ++nth) take_rows(found, who, nth, own);
#pragma unroll
            for (u32 k = 0; k < at_once; ++k) {
                const u64 least = least_of_tile<lanes>(found[k].rank);
                const u32 where =
                    least_of_tile<lanes>(found[k].rank == least ? found[k].where : nobody);
                if (who[k] != own || where == nobody) continue;
                rank = least;
                slot = (where < WIDTH ? place.home : place.spill) * WIDTH + where % WIDTH;
            }
        }
        return slot;
    }

  private:
    static constexpr u32 nobody = ~0u;

    // The lowest of the ranks that a lane has seen. `where` counts the spill's slots after the
    // home's.
    struct Least {
        u64 rank = ~0ull;
        u32 where = nobody;

        FORERUN_DEVICE void take(u64 other, u32 slot, bool pinned) {
            if (!pinned && (where == nobody || other < rank)) rank = other, where = slot;
        }
    };

    // Takes the scores of one bucket of each key.
    FORERUN_DEVICE void take_rows(Least (&found)[at_once], const u32 (&who)[at_once], u32 nth,
                                  u32 own) const {
        const u32 unit_slots = 16 / t.score_bytes;
        Bytes16 unit[at_once][loads];
        u64 row[at_once];
#pragma unroll
        for (u32 k = 0; k < at_once; ++k) {
            const u64 bucket = nth == 0 ? place.home : place.spill;
            row[k] = shuffle_in<lanes>(bucket, who[k] % lanes) * WIDTH;
#pragma unroll
            for (u32 n = 0; n < loads; ++n) {
                const u32 s = (n * lanes + own) * unit_slots;
                unit[k][n] = load_relaxed_if(who[k] != nobody && s < WIDTH,
                                             at<Bytes16>(t.scores + (row[k] + s) * t.score_bytes));
            }
        }
#pragma unroll
        for (u32 k = 0; k < at_once; ++k) {
            const u32 word =
                shuffle_in<lanes>(nth == 0 ? words.home : words.spill, who[k] % lanes);
            const bool pins = (word & word_pinned) != 0;
#pragma unroll
            for (u32 n = 0; n < loads; ++n) {
                const u32 s = (n * lanes + own) * unit_slots;
                if (who[k] == nobody || s >= WIDTH) continue;
                take_unit(found[k], unit[k][n], row[k] + s, nth * WIDTH + s, pins);
            }
        }
    }
    FORERUN_DEVICE void take_unit(Least& found, const Bytes16& unit, u64 slot, u32 where,
                                  bool pins) const {
        if (t.score_bytes == 4) {
            found.take(unit.x, where, pins && has_pin(t, slot));
            found.take(unit.y, where + 1, pins && has_pin(t, slot + 1));
            found.take(unit.z, where + 2, pins && has_pin(t, slot + 2));
            found.take(unit.w, where + 3, pins && has_pin(t, slot + 3));
            return;
        }
        const u64 first = unit.x | u64(unit.y) << 32, second = unit.z | u64(unit.w) << 32;
        found.take(order.rank(first), where, pins && has_pin(t, slot));
        found.take(order.rank(second), where + 1, pins && has_pin(t, slot + 1));
    }
};

}  // namespace forerun::table
