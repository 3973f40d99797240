// Bulk copies between global and shared memory by a multiprocessor's copy unit, and the barrier in
// shared memory that counts their bytes (cp.async.bulk and mbarrier, from sm_90).
//
//   one thread                               the barrier: arrivals left | bytes left | phase 0, 1, 0, ...
//     barrier_init(&b, 1); async_fence();
//     barrier_expect(&b, bytes);             one arrival, and this many bytes are to come
//     bulk_load(shared, global, bytes, &b);  its bytes are subtracted as they arrive
//     barrier_wait(&b, 0);                   waits for the end of phase 0: all arrivals and bytes
//     barrier_wait(&b, 1);                   the next wait is for phase 1
//
//     bulk_store(global, shared, bytes); bulk_commit();     the thread's stores so far are one group
//     bulk_wait_read<N>();                   all but its N newest groups have been read: their shared memory is free
//     bulk_wait<N>();                        all but its N newest groups have been written
//
// Sizes and addresses are multiples of 16. Call async_fence() between writing shared memory and
// storing it.
#pragma once
#include "memory.cuh"

namespace forerun {

struct alignas(8) Barrier {
    u64 state;
};

}  // namespace forerun

#if defined(FORERUN_SHIM)
#include "shim/bulk.h"
#elif FORERUN_HOPPER

namespace forerun {

FORERUN_DEVICE void barrier_init(Barrier* barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
                 "r"(arrivals)
                 : "memory");
}
// Orders what threads did to shared memory, barriers included, before the later accesses of the
// copy unit.
FORERUN_DEVICE void async_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

FORERUN_DEVICE void barrier_expect(Barrier* barrier, u32 bytes) {
    asm volatile(
        "{\n .reg .b64 token;\n mbarrier.arrive.expect_tx.shared::cta.b64 token, [%0], %1;\n}" ::
            "r"(shared_address(barrier)),
        "r"(bytes)
        : "memory");
}
FORERUN_DEVICE void barrier_wait(Barrier* barrier, u32 parity) {
    u32 over;
    do {  // each try sleeps in hardware for a while
        asm volatile(
            "{\n .reg .pred over;\n mbarrier.try_wait.parity.shared::cta.b64 over, [%1], %2;\n "
            "selp.u32 %0, 1, 0, over;\n}"
            : "=r"(over)
            : "r"(shared_address(barrier)), "r"(parity)
            : "memory");
    } while (!over);
}

FORERUN_DEVICE void bulk_load(void* to, const void* from, u32 bytes, Barrier* barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(shared_address(to)),
        "l"(from), "r"(bytes), "r"(shared_address(barrier))
        : "memory");
}
FORERUN_DEVICE void bulk_store(void* to, const void* from, u32 bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
                 "r"(shared_address(from)), "r"(bytes)
                 : "memory");
}
FORERUN_DEVICE void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <u32 GROUPS> FORERUN_DEVICE void bulk_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(GROUPS) : "memory");
}
template <u32 GROUPS> FORERUN_DEVICE void bulk_wait() {
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(GROUPS) : "memory");
}

}  // namespace forerun

#endif
