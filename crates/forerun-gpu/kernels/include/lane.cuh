// Thread indices, and synchronisation of the lanes of a warp and the threads of a block. Everything
// is one-dimensional.
//
// A mask names the participating lanes. Each of them makes the same call with the same mask. A call
// that exchanges values must be the same line of code for all of them.
#pragma once
#include "target.cuh"
#include "word.cuh"

#if defined(FORERUN_SHIM)
#include "shim/lane.h"
#else

namespace forerun {

FORERUN_DEVICE u32 thread_in_block() { return threadIdx.x; }
FORERUN_DEVICE u32 threads_in_block() { return blockDim.x; }
FORERUN_DEVICE u32 block_in_grid() { return blockIdx.x; }
FORERUN_DEVICE u32 blocks_in_grid() { return gridDim.x; }

FORERUN_DEVICE void block_sync() { __syncthreads(); }
FORERUN_DEVICE void warp_sync(u32 mask) { __syncwarp(mask); }

FORERUN_DEVICE u32 ballot(u32 mask, bool yes) { return __ballot_sync(mask, yes); }
FORERUN_DEVICE bool any(u32 mask, bool yes) { return __any_sync(mask, yes); }

// The value of lane `from`, or of the lane `by` below or across. A lane without such a
// neighbour gets its own value.
template <typename T> FORERUN_DEVICE T shuffle(u32 mask, T value, u32 from) {
    return __shfl_sync(mask, value, from);
}
// The value of lane `from` of the caller's group of LANES neighbours. All lanes of the warp make
// the call.
template <u32 LANES, typename T> FORERUN_DEVICE T shuffle_in(T value, u32 from) {
    return __shfl_sync(0xffffffffu, value, from, LANES);
}
template <typename T> FORERUN_DEVICE T shuffle_up(u32 mask, T value, u32 by) {
    return __shfl_up_sync(mask, value, by);
}
template <typename T> FORERUN_DEVICE T shuffle_xor(u32 mask, T value, u32 by) {
    return __shfl_xor_sync(mask, value, by);
}

// The least value of the warp's lanes, all of which make the call.
FORERUN_DEVICE u32 least_of_warp(u32 value) { return __reduce_min_sync(0xffffffffu, value); }

FORERUN_DEVICE u32 ones(u32 mask) { return __popc(mask); }
FORERUN_DEVICE u32 lowest(u32 mask) { return __ffs(mask) - 1; }  // the mask must not be 0
// ~0 if the mask is 0.
FORERUN_DEVICE u32 highest(u32 mask) {
    u32 bit;
    asm("bfind.u32 %0, %1;" : "=r"(bit) : "r"(mask));
    return bit;
}

}  // namespace forerun

#endif

namespace forerun {

constexpr u32 warp_lanes = 32;
constexpr u32 all_lanes = 0xffffffffu;

FORERUN_DEVICE u32 lane_in_warp() { return thread_in_block() % warp_lanes; }
FORERUN_DEVICE u32 warp_in_block() { return thread_in_block() / warp_lanes; }
FORERUN_DEVICE u32 warps_in_block() { return threads_in_block() / warp_lanes; }

FORERUN_DEVICE u64 thread_in_grid() {
    return u64(block_in_grid()) * threads_in_block() + thread_in_block();
}
FORERUN_DEVICE u64 warp_in_grid() {
    return u64(block_in_grid()) * warps_in_block() + warp_in_block();
}
FORERUN_DEVICE u64 warps_in_grid() { return u64(blocks_in_grid()) * warps_in_block(); }

}  // namespace forerun
