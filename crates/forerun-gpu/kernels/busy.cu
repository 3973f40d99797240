// A matrix product that keeps the multiprocessors busy while something else is measured: c = a * b,
// all n x n of f32 in row-major order; n is a multiple of 64. It must be bound by arithmetic, but
// need not be fast.
//
// A block of 256 threads computes a tile of 64 x 64, and a thread 4 x 4 of it, from shared memory:
//
//              b: 16 x 64               thread (x, y) = (t % 16, t / 16)
//   a: 64 x 16 [ tile of c ]            rows y * 4 .., columns x * 4 ..
//
// Blocks stride over the tiles, so any grid works. With one block per tile, blocks of other kernels
// can run in between.
#include "include/lane.cuh"
#include "include/memory.cuh"

namespace forerun {

// src/study/product.rs declares the same layout.
struct ProductParams {
    u64 a;        //  0
    u64 b;        //  8
    u64 c;        // 16
    u64 n;        // 24
};
static_assert(sizeof(ProductParams) == 32, "src/study/product.rs has the same layout");

constexpr u32 tile = 64;
constexpr u32 depth = 16;
constexpr u32 each = 4;

struct Tiles {
    // transposed; the extra columns put neighbours into different banks.
    float a[depth][tile + each];
    float b[depth][tile];
};

FORERUN_DEVICE void product_tile(const ProductParams& p, Tiles& shared, u32 row, u32 column) {
    const float* const a = at<float>(p.a);
    const float* const b = at<float>(p.b);
    const u32 t = thread_in_block();
    const u32 x = t % 16 * each, y = t / 16 * each;
    float sum[each][each] = {};
    for (u32 k = 0; k < u32(p.n); k += depth) {
#pragma unroll
        for (u32 i = 0; i < tile * depth; i += 256) {
            const u32 w = i + t;
            shared.a[w % depth][w / depth] = load(a + u64(row + w / depth) * p.n + k + w % depth);
            shared.b[w / tile][w % tile] = load(b + u64(k + w / tile) * p.n + column + w % tile);
        }
        block_sync();
#pragma unroll
        for (u32 d = 0; d < depth; ++d) {
#pragma unroll
            for (u32 i = 0; i < each; ++i) {
#pragma unroll
                for (u32 j = 0; j < each; ++j) sum[i][j] += shared.a[d][y + i] * shared.b[d][x + j];
            }
        }
        block_sync();
    }
    float* const c = at<float>(p.c);
#pragma unroll
    for (u32 i = 0; i < each; ++i) {
#pragma unroll
        for (u32 j = 0; j < each; ++j)
            store(c + u64(row + y + i) * p.n + column + x + j, sum[i][j]);
    }
}

FORERUN_DEVICE void multiply(const ProductParams& p) {
    FORERUN_SHARED(Tiles, shared);
    const u32 across = u32(p.n / tile);
    for (u32 i = block_in_grid(); i < across * across; i += blocks_in_grid()) {
        product_tile(p, shared, i / across * tile, i % across * tile);
    }
}

}  // namespace forerun

#define KERNEL(name, threads, registers)                                                          \
    FORERUN_KERNEL_WITHIN(threads, registers) name(const forerun::ProductParams p) {              \
        forerun::multiply(p);                                                                     \
    }
#include "busy.list"
#undef KERNEL
