// Every definition of kernels/include, used once. It is compiled for each device and for the host,
// to check that both have all definitions and that the assembler accepts each instruction. It is
// never run.
#include "include/async.cuh"
#include "include/atomic.cuh"
#include "include/bulk.cuh"
#include "include/lane.cuh"
#include "include/memory.cuh"

namespace forerun {

template <typename T> FORERUN_DEVICE void every_access(u64 address) {
    T* const memory = at<T>(address);
    store(memory + 1, load(memory));
    store_global(memory + 2, load_global(memory));
    store_streaming(memory + 3, load_once(memory));
}

template <typename T> FORERUN_DEVICE void every_atomic(u64 address) {
    T* const memory = at<T>(address);
    T sum = atomic_add(memory, T(1)) + atomic_xor(memory, T(2)) + atomic_exchange(memory, T(3)) +
            atomic_compare_exchange(memory, T(4), T(5)) + atomic_or(memory, T(6));
    store_relaxed(memory + 1, load_relaxed(memory) + sum);
    sum += load_relaxed_if(u32(sum), memory);
    if constexpr (sizeof(T) == 4) sum += load_relaxed_or_zero(sum, memory);
    if constexpr (sizeof(T) == 4) sum += atomic_min(memory, sum);
    store_release(memory + 2, sum);
    fence();
}

template <typename T> FORERUN_DEVICE T every_shuffle(T value) {
    const u32 mask = ballot(all_lanes, value != 0);
    value += shuffle(all_lanes, value, 3) + shuffle_up(all_lanes, value, 1);
    value += shuffle_xor(all_lanes, value, 4) + shuffle_in<8>(value, 5) + highest(mask | 1);
    value += least_of_warp(ones(mask));
    return value + any(all_lanes, mask != 0) + ones(mask) + (mask == 0 ? 0 : lowest(mask));
}

}  // namespace forerun

FORERUN_KERNEL(64) every_word(forerun::u64 address) {
    using namespace forerun;
    FORERUN_SHARED(u32, shared);
    every_access<u8>(address);
    every_access<u16>(address);
    every_access<u32>(address);
    every_access<i32>(address);
    every_access<u64>(address);
    every_access<i64>(address);
    every_access<Bytes16>(address);
    every_atomic<u32>(address);
    every_atomic<u64>(address);
    store(at<u32>(address), every_shuffle(lane_in_warp()) + warp_in_block());
    store(at<u64>(address), every_shuffle(thread_in_grid()) + warp_in_grid() + warps_in_grid());

    store(at<Bytes16>(address), load_relaxed_if(lane_in_warp(), at<Bytes16>(address)));

    u8* const stage = dynamic_shared();
    copy_async<4>(stage, at<u8>(address));
    copy_async<8>(stage + 8, at<u8>(address));
    copy_async<16>(stage + 16, at<u8>(address));
    copy_async_commit();
    copy_async_wait<1>();
    copy_async_wait<0>();
    if (thread_in_block() == 0) shared = block_in_grid();
    warp_sync(all_lanes);
    block_sync();
    store(at<u32>(address), shared);

#if FORERUN_HOPPER
    auto* const barrier = reinterpret_cast<Barrier*>(stage + 64);
    barrier_init(barrier, 1);
    async_fence();
    barrier_expect(barrier, 16);
    bulk_load(stage, at<u8>(address), 16, barrier);
    barrier_wait(barrier, 0);
    bulk_store(at<u8>(address), stage, 16);
    bulk_commit();
    bulk_wait_read<0>();
    bulk_wait<0>();
#endif
}
