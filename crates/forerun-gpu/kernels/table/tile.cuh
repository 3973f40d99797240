// A tile is a group of neighbouring lanes of a warp that work together.
//
// All lanes of the warp make each call, so that its tiles stay together.
#pragma once
#include "../include/lane.cuh"

namespace forerun::table {

template <u32 LANES> FORERUN_DEVICE u32 rank_in_tile() {
    static_assert(LANES >= 1 && LANES <= warp_lanes && (LANES & (LANES - 1)) == 0,
                  "a power of two of lanes");
    return lane_in_warp() % LANES;
}

// Bit k is the vote of lane k of the tile.
template <u32 LANES> FORERUN_DEVICE u32 votes_of_tile(bool yes) {
    const u32 first = lane_in_warp() - rank_in_tile<LANES>();
    return ballot(all_lanes, yes) >> first & (~0u >> (warp_lanes - LANES));
}
template <u32 LANES, typename T> FORERUN_DEVICE T least_of_tile(T value) {
    if constexpr (LANES == warp_lanes && sizeof(T) == 8) {
        // Two instructions, where the exchange below takes five steps.
        const u32 high = least_of_warp(u32(value >> 32));
        const u32 low = least_of_warp(u32(value >> 32) == high ? u32(value) : ~0u);
        return T(high) << 32 | low;
    } else if constexpr (LANES == warp_lanes) {
        return least_of_warp(value);
    } else {
#pragma unroll
        for (u32 by = 1; by < LANES; by *= 2) {
            const T other = shuffle_xor(all_lanes, value, by);
            if (other < value) value = other;
        }
        return value;
    }
}

FORERUN_DEVICE u64 sum_of_warp(u64 value) {
#pragma unroll
    for (u32 by = 1; by < warp_lanes; by *= 2) value += shuffle_xor(all_lanes, value, by);
    return value;
}

}  // namespace forerun::table
