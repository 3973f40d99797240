// A tile is a group of neighbouring lanes of a warp that read a bucket's row together, 16 slots
// each.
//
//   width  16: 1 lane     32: 2     64: 4     128: 8 lanes; one load of all lanes is the whole row,
//                                             and one request
//
// All lanes of the warp make each call, so that its tiles stay together.
#pragma once
#include "../include/lane.cuh"

namespace forerun::table {

template <u32 LANES> FORERUN_DEVICE u32 rank_in_tile() {
    static_assert(LANES >= 1 && LANES <= 8 && (LANES & (LANES - 1)) == 0,
                  "a power of two of lanes");
    return lane_in_warp() % LANES;
}

// Bit k is the vote of lane k of the tile.
template <u32 LANES> FORERUN_DEVICE u32 votes_of_tile(bool yes) {
    const u32 first = lane_in_warp() - rank_in_tile<LANES>();
    return ballot(all_lanes, yes) >> first & ((1u << LANES) - 1);
}
template <u32 LANES, typename T> FORERUN_DEVICE T sum_of_tile(T value) {
#pragma unroll
    for (u32 by = 1; by < LANES; by *= 2) value += shuffle_xor(all_lanes, value, by);
    return value;
}
template <u32 LANES, typename T> FORERUN_DEVICE T least_of_tile(T value) {
#pragma unroll
    for (u32 by = 1; by < LANES; by *= 2) {
        const T other = shuffle_xor(all_lanes, value, by);
        if (other < value) value = other;
    }
    return value;
}

FORERUN_DEVICE u64 sum_of_warp(u64 value) {
#pragma unroll
    for (u32 by = 1; by < warp_lanes; by *= 2) value += shuffle_xor(all_lanes, value, by);
    return value;
}

}  // namespace forerun::table
