// Chooses the slot for a new entry: a free one, or else the one with the lowest score.
//
//   free    a slot of the home until few of its slots are free, then of the bucket with more free
//           slots. In that bucket, the first free slot in search order.
//   least   the lowest score of both buckets. On a tie, the home comes first, then the lowest slot.
//
// Tiles of lanes read the rows of their lanes' keys, whose buckets are locked. All lanes of the
// warp make each call.
#pragma once
#include "bucket.cuh"
#include "tile.cuh"

namespace forerun::table {

FORERUN_DEVICE bool has_pin(const TableState& t, u64 slot) {
    return (load_relaxed(pin_at(t, slot)) & pin_bit(t, slot)) != 0;
}

template <u32 WIDTH> class Victims {
    static constexpr u32 lanes = WIDTH / chunk_slots;
    static constexpr u32 at_once = lanes == 1 ? 2 : 4;  // loads of scores in flight

  public:
    const TableState& t;
    // The lane's own key: its place, and the words of its buckets.
    const Place& place;
    const HeldWords& words;

    // A free slot for the key of each lane that wants one; no_slot if there is none.
    FORERUN_DEVICE u64 free_slot(bool wants) const {
        const u32 rank = rank_in_tile<lanes>();
        const u32 keys = votes_of_tile<lanes>(wants);
        u64 slot = no_slot;
#pragma unroll 1
        for (u32 k = 0; k < lanes; ++k) {
            const u32 wanted = keys >> k & 1;
            if (!any(all_lanes, wanted != 0)) continue;
            const u64 home = shuffle_in<lanes>(place.home, k);
            const u64 spill = shuffle_in<lanes>(place.spill, k);
            const Bytes16 home_digests = load_chunk(wanted, home, rank);
            const Bytes16 spill_digests = load_chunk(t.candidates == 2 ? wanted : 0, spill, rank);
            const u32 home_mask = free_in(home_digests);
            const u32 spill_mask = t.candidates == 2 ? free_in(spill_digests) : 0;
            const u32 free_home = sum_of_tile<lanes>(ones(home_mask));
            const u32 free_spill = sum_of_tile<lanes>(ones(spill_mask));
            const bool spills = free_home <= WIDTH * 3 / 16 && free_spill > free_home;
            const u32 mine = spills ? spill_mask : home_mask;
            const u32 start = shuffle_in<lanes>(place.start, k);
            const u32 own = ((rank * chunk_slots - start) & (WIDTH - 1)) + lowest(mine | 1u << 31);
            const u32 turn = least_of_tile<lanes>(mine == 0 ? ~0u : own);
            if (wants && rank == k && turn != ~0u)
                slot = (spills ? spill : home) * WIDTH + ((turn + start) & (WIDTH - 1));
        }
        return slot;
    }

    // The slot with the lowest score, and that score, for the key of each lane that wants it;
    // no_slot if all are pinned.
    FORERUN_DEVICE u64 least_slot(bool wants, u64& least) const {
        const u32 rank = rank_in_tile<lanes>();
        const u32 keys = votes_of_tile<lanes>(wants);
        u64 slot = no_slot;
#pragma unroll 1
        for (u32 k = 0; k < lanes; ++k) {
            const u32 wanted = keys >> k & 1;
            if (!any(all_lanes, wanted != 0)) continue;
            const u64 home = shuffle_in<lanes>(place.home, k);
            const u64 spill = shuffle_in<lanes>(place.spill, k);
            const u32 home_word = shuffle_in<lanes>(words.home, k);
            const u32 spill_word = shuffle_in<lanes>(words.spill, k);
            Least found;
            if (wanted != 0) {
                take_row(found, home, rank, 0, (home_word & word_pinned) != 0);
                if (t.candidates == 2)
                    take_row(found, spill, rank, WIDTH, (spill_word & word_pinned) != 0);
            }
            const u64 score = least_of_tile<lanes>(found.score);
            const u32 where = least_of_tile<lanes>(found.score == score ? found.where : ~0u);
            if (wants && rank == k && where != ~0u) {
                least = score;
                slot = (where < WIDTH ? home : spill) * WIDTH + where % WIDTH;
            }
        }
        return slot;
    }

  private:
    // The lowest of the scores that a lane has seen. `where` counts the spill's slots after the
    // home's.
    struct Least {
        u64 score = ~0ull;
        u32 where = ~0u;

        FORERUN_DEVICE void take(u64 other, u32 slot, bool pinned) {
            if (!pinned && (where == ~0u || other < score)) score = other, where = slot;
        }
    };

    FORERUN_DEVICE Bytes16 load_chunk(u32 wanted, u64 bucket, u32 rank) const {
        const u64 first = bucket * WIDTH + rank * chunk_slots;
        return load_relaxed_if(wanted, reinterpret_cast<const Bytes16*>(digests_at(t, first)));
    }

    FORERUN_DEVICE void take_row(Least& found, u64 bucket, u32 rank, u32 before, bool pins) const {
        const u64 first = bucket * WIDTH;
        if (t.score_bytes == 4) {
#pragma unroll 2
            for (u32 s = rank * 4; s < WIDTH; s += lanes * 4) {
                const Bytes16 four = load_relaxed(at<Bytes16>(t.scores + (first + s) * 4));
                found.take(four.x, before + s, pins && has_pin(t, first + s));
                found.take(four.y, before + s + 1, pins && has_pin(t, first + s + 1));
                found.take(four.z, before + s + 2, pins && has_pin(t, first + s + 2));
                found.take(four.w, before + s + 3, pins && has_pin(t, first + s + 3));
            }
            return;
        }
#pragma unroll 1
        for (u32 from = 0; from < WIDTH; from += lanes * 2 * at_once) {
            Bytes16 two[at_once];
#pragma unroll
            for (u32 k = 0; k < at_once; ++k) {
                const u64 at_slot = first + from + k * lanes * 2 + rank * 2;
                two[k] = load_relaxed(at<Bytes16>(t.scores + at_slot * 8));
            }
#pragma unroll
            for (u32 k = 0; k < at_once; ++k) {
                const u32 s = from + k * lanes * 2 + rank * 2;
                found.take(two[k].x | u64(two[k].y) << 32, before + s,
                           pins && has_pin(t, first + s));
                found.take(two[k].z | u64(two[k].w) << 32, before + s + 1,
                           pins && has_pin(t, first + s + 1));
            }
        }
    }
};

}  // namespace forerun::table
