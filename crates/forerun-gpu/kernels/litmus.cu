// Litmus tests: which of a writer's stores in global memory a reader sees, with the memory orders
// that the table relies on (table/bucket.cuh) and without them.
//
//   cell i     | x, alone on a line of 128 bytes | y, the same |          both 0 at first
//   half of the blocks write the cells, the others read them, all in the same order; which half
//   alternates, because the blocks that start first tend to stay ahead
//
//   publish    writer: x = 1, release: y = 1             reader: y, fence, x
//   row        writer: y = 1, fence, x = 1, fence, y = 2 reader: y, fence, x, fence, y
//   lanes      as row, but the writer's neighbour in its warp stores x: the lanes meet before and
//              after it, and it has a fence of its own before it
//
//   outcome    0: nothing of the writer    1: all of it    2: forbidden    3: the writer was active
//
// With the orders, no reader may see outcome 2. Without them, a device may or may not show it. A
// test that can never show it proves nothing, so the shim shows it.
#include "include/atomic.cuh"
#include "include/lane.cuh"

namespace forerun {

// src/study/litmus.rs declares the same layout.
struct LitmusParams {
    u64 cells;     //  0  address
    u64 count;     //  8  number of cells, a multiple of 32
    u64 outcomes;  // 16  four u64 to add to
    u64 writers;   // 24  0: even blocks write, 1: odd ones
};
static_assert(sizeof(LitmusParams) == 32, "src/study/litmus.rs has the same layout");

namespace litmus {

constexpr u32 line_words = 128 / 4;

template <bool ORDERED> FORERUN_DEVICE void order() {
    if constexpr (ORDERED) fence();
}

template <bool ORDERED> struct Publish {
    FORERUN_DEVICE static void write(u32* x, u32* y) {
        store_relaxed(x, 1u);
        if constexpr (ORDERED) {
            store_release(y, 1u);
        } else {
            store_relaxed(y, 1u);
        }
    }
    FORERUN_DEVICE static u32 read(const u32* x, const u32* y) {
        const u32 published = load_relaxed(y);
        order<ORDERED>();
        const u32 row = load_relaxed(x);
        return published == 0 ? (row == 0 ? 0 : 3) : row == 1 ? 1 : 2;
    }
};

template <bool ORDERED> struct Row {
    FORERUN_DEVICE static void write(u32* x, u32* y) {
        store_relaxed(y, 1u);
        order<ORDERED>();
        store_relaxed(x, 1u);
        order<ORDERED>();
        store_relaxed(y, 2u);
    }
    FORERUN_DEVICE static u32 read(const u32* x, const u32* y) {
        const u32 before = load_relaxed(y);
        order<ORDERED>();
        const u32 row = load_relaxed(x);
        order<ORDERED>();
        const u32 after = load_relaxed(y);
        if (before != after || before == 1) return 3;
        return row == before / 2 ? row : 2;
    }
};

template <bool ORDERED> struct Lanes : Row<ORDERED> {
    // All lanes of the warp make the call.
    FORERUN_DEVICE static void write(u32* x, u32* y) {
        store_relaxed(y, 1u);
        order<ORDERED>();
        const u64 neighbours = shuffle_xor(all_lanes, reinterpret_cast<u64>(x), 1);
        warp_sync(all_lanes);
        order<ORDERED>();
        store_relaxed(at<u32>(neighbours), 1u);
        warp_sync(all_lanes);
        order<ORDERED>();
        store_relaxed(y, 2u);
    }
};

template <u32 TEST, bool ORDERED> struct Chosen : Publish<ORDERED> {};
template <bool ORDERED> struct Chosen<1, ORDERED> : Row<ORDERED> {};
template <bool ORDERED> struct Chosen<2, ORDERED> : Lanes<ORDERED> {};

template <u32 TEST, bool ORDERED> FORERUN_DEVICE void run_litmus(const LitmusParams& p) {
    const u64 pairs = blocks_in_grid() / 2, threads = pairs * threads_in_block();
    const u64 first = u64(block_in_grid() / 2) * threads_in_block() + thread_in_block();
    const bool writes = block_in_grid() % 2 == p.writers;
    for (u64 i = first; i < p.count; i += threads) {
        u32* const x = at<u32>(p.cells) + i * 2 * line_words;
        u32* const y = x + line_words;
        if (writes) {
            Chosen<TEST, ORDERED>::write(x, y);
        } else {
            atomic_add(at<u64>(p.outcomes) + Chosen<TEST, ORDERED>::read(x, y), u64(1));
        }
    }
}

}  // namespace litmus
}  // namespace forerun

#define KERNEL(name, test, ordered, threads, registers)                                \
    FORERUN_KERNEL_WITHIN(threads, registers) name(const forerun::LitmusParams p) {    \
        forerun::litmus::run_litmus<test, (ordered) != 0>(p);                          \
    }
#include "litmus.list"
#undef KERNEL
