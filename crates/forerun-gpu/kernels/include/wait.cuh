// Locks in global memory, taken so that no warp can hang.
//
//   attempt_until_done(warp, pending, attempt)   rounds, in which each lane whose work is pending makes one attempt;
//                                                all lanes of the warp make the call
//   attempt_together(pending, attempt)           the same, but all lanes of the warp make the attempt, each for its own
//                                                work, and those whose work is not pending help
//   attempt_refilled(refill, attempt)            the same, and before each attempt a lane that has done its work may get new
//   backoff(tries)                               sleeps, longer with each try
//   lock_tried(success), lock_released()         tell the shim, which checks the rule below; nothing on the device
//
// The rule: after a failed try, a lane does not try again before all lanes of its warp have met,
// none of them with a lock. An attempt therefore never waits: it gets its locks, works and releases
// them, or it gives up. Otherwise a lane with the lock could wait, where the branches of its warp
// join, for the lanes that try to get it. Warps that hold no lock sleep; a warp that holds one
// never waits for another warp.
#pragma once
#include "lane.cuh"

#if defined(FORERUN_SHIM)
#include "shim/wait.h"
#else

namespace forerun {

FORERUN_DEVICE void backoff(u32 tries) {
    const u32 ns = (32u << (tries < 6 ? tries : 6)) + (u32(warp_in_grid()) * 37 & 63);
    asm volatile("nanosleep.u32 %0;" ::"r"(ns));
}
FORERUN_DEVICE void lock_tried(bool) {}
FORERUN_DEVICE void lock_released() {}

}  // namespace forerun

#endif

namespace forerun {

// `attempt` returns whether the lane's work is done.
template <typename Attempt>
FORERUN_DEVICE void attempt_until_done(u32 warp, bool pending, Attempt attempt) {
    u32 before = 0, tries = 0;
    for (;;) {
        const u32 left = ballot(warp, pending);
        if (left == 0) return;
        // Wait only for locks of other warps: this warp's have been released.
        if (left == before) backoff(tries++);
        before = left;
        if (pending && attempt()) pending = false;
    }
}

// `attempt(pending, round)` returns whether the lane's work is done. Rounds count from 0.
template <typename Attempt> FORERUN_DEVICE void attempt_together(bool pending, Attempt attempt) {
    u32 before = 0, tries = 0;
    for (u32 round = 0;; ++round) {
        const u32 left = ballot(all_lanes, pending);
        if (left == 0) return;
        if (left == before) backoff(tries++);
        before = left;
        if (attempt(pending, round)) pending = false;
    }
}

// `refill(pending)` returns whether the lane has work, its own or new; `attempt(pending)` whether
// its work is done. A lane that fails does not keep the others from their next work.
template <typename Refill, typename Attempt>
FORERUN_DEVICE void attempt_refilled(Refill refill, Attempt attempt) {
    bool pending = false;
    u32 tries = 0;
    for (;;) {
        pending = refill(pending);
        const u32 before = ballot(all_lanes, pending);
        if (before == 0) return;
        if (attempt(pending)) pending = false;
        tries = ballot(all_lanes, pending) == before ? tries + 1 : 0;
        if (tries != 0) backoff(tries - 1);
    }
}

}  // namespace forerun
