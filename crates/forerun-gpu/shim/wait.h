// wait.cuh for the shim, which checks the rule for locks.
#pragma once
#include "machine.h"
#include "word.cuh"

namespace forerun {

inline void backoff(u32) { shim::Machine::current().pause(); }

inline void lock_tried(bool success) {
    auto& machine = shim::Machine::current();
    shim::Lane& lane = machine.lane();
    lane.locks += success ? 1 : 0;
    lane.failed_tries = success ? 0 : lane.failed_tries + 1;
    if (lane.failed_tries < 2) return;
    const uint32_t first = lane.thread / 32 * 32;
    const uint32_t end = std::min(first + 32, machine.launch().threads);
    for (uint32_t t = first; t < end; ++t) {
        if (lane.block->lanes[t]->locks != 0)
            machine.fail("tries again to get a lock, and has not met thread %u of its warp, which "
                         "holds one", t);
    }
}
inline void lock_released() { --shim::Machine::current().lane().locks; }

}  // namespace forerun
