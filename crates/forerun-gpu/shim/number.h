// number.cuh for the shim. Each reading of the clock is a nanosecond later than the previous one,
// in any launch.
#pragma once
#include "machine.h"
#include "word.cuh"

namespace forerun {

namespace shim {

inline u64 clock_ns = 0;

}  // namespace shim

inline u64 high_product(u64 a, u64 b) { return u64(static_cast<unsigned __int128>(a) * b >> 64); }

inline u64 time_ns() {
    shim::Machine::current().point();
    return ++shim::clock_ns;
}

}  // namespace forerun
