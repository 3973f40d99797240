// A tile: neighbouring lanes of a warp that work on one key, each on 16 slots of a bucket's row.
//
//   width  16: 1 lane     32: 2     64: 4     128: 8 lanes; one load of all lanes is the whole row, and one request
//
// All lanes of a tile make each call. The tiles of a warp may diverge.
#pragma once
#include "layout.cuh"

namespace forerun::table {

template <u32 LANES> struct Tile {
    static_assert(LANES >= 1 && LANES <= 8 && (LANES & (LANES - 1)) == 0,
                  "a power of two of lanes");
    u32 rank, first, mask;

    FORERUN_DEVICE Tile()
        : rank(lane_in_warp() % LANES),
          first(lane_in_warp() - rank),
          mask(((1u << LANES) - 1) << first) {}

    // Number of the tile in the grid, and the number of tiles.
    FORERUN_DEVICE u64 in_grid() const { return thread_in_grid() / LANES; }
    FORERUN_DEVICE u64 tiles() const { return u64(blocks_in_grid()) * threads_in_block() / LANES; }

    FORERUN_DEVICE void sync() const {
        if constexpr (LANES > 1) warp_sync(mask);
    }
    // Bit r: the lane of rank r votes yes.
    FORERUN_DEVICE u32 vote(bool yes) const {
        if constexpr (LANES == 1) return yes ? 1u : 0u;
        return (ballot(mask, yes) & mask) >> first;
    }
    template <typename T> FORERUN_DEVICE T from(T value, u32 of_rank) const {
        if constexpr (LANES == 1) return value;
        return shuffle(mask, value, first + of_rank);
    }
    template <typename T> FORERUN_DEVICE T sum(T value) const {
#pragma unroll
        for (u32 by = 1; by < LANES; by *= 2) value += shuffle_xor(mask, value, by);
        return value;
    }
    template <typename T> FORERUN_DEVICE T least(T value) const {
#pragma unroll
        for (u32 by = 1; by < LANES; by *= 2) {
            const T other = shuffle_xor(mask, value, by);
            if (other < value) value = other;
        }
        return value;
    }
};

}  // namespace forerun::table
