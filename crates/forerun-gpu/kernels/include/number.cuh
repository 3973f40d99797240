// Arithmetic that C++ does not provide, and the device's clock.
//
//   high_product(a, b)    the upper 64 bits of a * b
//   mix(key)              the finaliser of MurmurHash3: every bit of the key affects every bit of the result
//   time_ns()             nanoseconds of a clock that all multiprocessors share; the device chooses the resolution
#pragma once
#include "target.cuh"
#include "word.cuh"

#if defined(FORERUN_SHIM)
#include "shim/number.h"
#else

namespace forerun {

FORERUN_DEVICE u64 high_product(u64 a, u64 b) { return __umul64hi(a, b); }

FORERUN_DEVICE u64 time_ns() {
    u64 now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

}  // namespace forerun

#endif

namespace forerun {

FORERUN_DEVICE u64 mix(u64 key) {
    key ^= key >> 33;
    key *= 0xff51afd7ed558ccdull;
    key ^= key >> 33;
    key *= 0xc4ceb9fe1a85ec53ull;
    return key ^ key >> 33;
}

}  // namespace forerun
