// Reads 32, 64 or 128 bytes at random places of a buffer. The rate of these reads is an upper bound
// for any lookup.
//
//   a group of 2, 4 or 8 lanes   | 16 B | 16 B | ...    one aligned request; each group has eight in flight
//   request r                    piece  mix(seed + r) * pieces >> 64  of the buffer, whose pieces are as long as requests
//   word w of the buffer         mix(w)
//
// No address depends on an earlier read, so only memory limits the rate. The kernel sums everything
// that it reads. The sum keeps the compiler from removing the reads and proves that they happened.
#include "include/atomic.cuh"
#include "include/lane.cuh"
#include "include/memory.cuh"
#include "include/number.cuh"

namespace forerun {

// src/study/random_reads.rs declares the same layout.
struct RandomReadParams {
    u64 buffer;  //  0
    u64 pieces;  //  8  in the buffer; for the filling kernel, words
    u64 count;   // 16  requests
    u64 seed;    // 24
    u64 sum;     // 32  address of a u64 to add to
};
static_assert(sizeof(RandomReadParams) == 40, "src/study/random_reads.rs has the same layout");

FORERUN_DEVICE void fill_words(const RandomReadParams& p) {
    const u64 step = u64(blocks_in_grid()) * threads_in_block();
    for (u64 w = thread_in_grid(); w < p.pieces; w += step)
        store_global(at<u64>(p.buffer) + w, mix(w));
}

template <u32 BYTES> FORERUN_DEVICE void read_at_random(const RandomReadParams& p) {
    constexpr u32 lanes = BYTES / 16, in_flight = 8;
    const u64 group = thread_in_grid() / lanes,
              groups = u64(blocks_in_grid()) * threads_in_block() / lanes;
    const u32 rank = thread_in_block() % lanes;
    u64 sum = 0;
    for (u64 first = group; first < p.count; first += groups * in_flight) {
        Bytes16 got[in_flight];
#pragma unroll
        for (u32 k = 0; k < in_flight; ++k) {
            const u64 r = first + k * groups;
            got[k] = {0, 0, 0, 0};
            if (r < p.count)
                got[k] = load_once(at<Bytes16>(p.buffer) +
                                   high_product(mix(p.seed + r), p.pieces) * lanes + rank);
        }
#pragma unroll
        for (u32 k = 0; k < in_flight; ++k)
            sum += (got[k].x | u64(got[k].y) << 32) + (got[k].z | u64(got[k].w) << 32);
    }
#pragma unroll
    for (u32 by = 1; by < warp_lanes; by *= 2) sum += shuffle_xor(all_lanes, sum, by);
    if (lane_in_warp() == 0 && sum != 0) atomic_add(at<u64>(p.sum), sum);
}

template <u32 BYTES> FORERUN_DEVICE void run_random_reads(const RandomReadParams& p) {
    if constexpr (BYTES == 0) {
        fill_words(p);
    } else {
        static_assert(BYTES == 32 || BYTES == 64 || BYTES == 128,
                      "requests of a sector, two or a line");
        read_at_random<BYTES>(p);
    }
}

}  // namespace forerun

#define KERNEL(name, bytes, threads, registers)                                               \
    FORERUN_KERNEL_WITHIN(threads, registers) name(const forerun::RandomReadParams p) {       \
        forerun::run_random_reads<bytes>(p);                                                  \
    }
#include "roofline.list"
#undef KERNEL
