// Copies from global to shared memory that run while the thread continues (cp.async, from sm_80).
//
//   copy_async<N>(to, from)     N = 4, 8 or 16 bytes, both sides aligned to N
//   copy_async_commit()         the thread's copies so far are one group
//   copy_async_wait<N>()        all but the thread's N newest groups have landed, for this thread
//
// Other threads see them after they have synchronised with the waiting thread (warp_sync,
// block_sync).
#pragma once
#include "memory.cuh"

#if defined(FORERUN_SHIM)
#include "shim/async.h"
#else

namespace forerun {

template <u32 BYTES> FORERUN_DEVICE void copy_async(void* to, const void* from) {
    static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "cp.async copies 4, 8 or 16 bytes");
    if constexpr (BYTES == 16) {  // only copies of 16 bytes can bypass the L1 cache
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)),
                     "l"(from)
                     : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared_address(to)),
                     "l"(from), "n"(BYTES)
                     : "memory");
    }
}
FORERUN_DEVICE void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <u32 GROUPS> FORERUN_DEVICE void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(GROUPS) : "memory");
}

}  // namespace forerun

#endif
