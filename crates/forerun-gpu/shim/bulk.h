// bulk.cuh for the shim. Loads arrive one at a time while a lane waits at their barrier, and never
// earlier. A store reads shared memory when its lane waits for the read. Its destination holds
// poison until the lane waits for the write.
//
// The block keeps its barriers in a table, keyed by their addresses in shared memory. The shared
// memory itself holds poison, so a kernel cannot read a barrier. Missing calls of async_fence() are
// not detected.
#pragma once
#include "async.h"

namespace forerun {

namespace shim {

inline BarrierState& barrier_state(Barrier* barrier, const char* what, Site site) {
    auto& barriers = Machine::current().block().barriers;
    const auto found = barriers.find(barrier);
    if (found == barriers.end()) {
        Machine::current().fail("%s (%s:%d): no barrier was initialised at %p in this block", what,
                                site.file, site.line, static_cast<void*>(barrier));
    }
    return found->second;
}

inline const char* barrier_wait_name = "barrier_wait";

// A phase ends when no arrivals and no bytes are missing. The next one begins at once.
inline void complete_phase(BarrierState& state) {
    if (state.arrivals_left != 0 || state.bytes_left != 0) return;
    state.arrivals_left = state.arrivals;
    ++state.phase;
    for (Lane* lane : Machine::current().block().lanes) {
        if (lane->waits_for == barrier_wait_name) Machine::current().wake(*lane);
    }
}

inline void check_bulk(const char* what, Site site, const void* to, const void* from, u32 bytes) {
    if (bytes == 0 || bytes % 16 != 0 || reinterpret_cast<uintptr_t>(to) % 16 != 0 ||
        reinterpret_cast<uintptr_t>(from) % 16 != 0) {
        Machine::current().fail(
            "%s (%s:%d) of %u bytes from %p to %p: all three must be multiples of 16", what,
            site.file, site.line, bytes, from, to);
    }
}

}  // namespace shim

inline void barrier_init(Barrier* barrier, u32 arrivals) {
    shim::BarrierState state;
    state.arrivals = state.arrivals_left = arrivals;
    shim::Machine::current().block().barriers[barrier] = state;
}
inline void async_fence() {}

inline void barrier_expect(Barrier* barrier, u32 bytes, shim::Site site = shim::Site::here()) {
    shim::Machine::current().point();
    auto& state = shim::barrier_state(barrier, "barrier_expect", site);
    state.bytes_left += bytes;
    --state.arrivals_left;  // never 0: it is reset at once
    shim::complete_phase(state);
}
inline void barrier_wait(Barrier* barrier, u32 parity, shim::Site site = shim::Site::here()) {
    auto& machine = shim::Machine::current();
    machine.point();
    auto& state = shim::barrier_state(barrier, "barrier_wait", site);
    while (state.phase % 2 == parity) {
        if (state.loads.empty()) {
            machine.wait(shim::barrier_wait_name, site);
            continue;
        }
        std::swap(state.loads.back(), state.loads[machine.random().below(state.loads.size())]);
        state.loads.back().land();
        state.bytes_left -= state.loads.back().bytes;
        state.loads.pop_back();
        shim::complete_phase(state);
        machine.point();
    }
}

inline void bulk_load(void* to, const void* from, u32 bytes, Barrier* barrier,
                      shim::Site site = shim::Site::here()) {
    shim::check_bulk("bulk_load", site, to, from, bytes);
    auto& state = shim::barrier_state(barrier, "bulk_load", site);
    shim::start_copy(state.loads, to, from, bytes);
    for (shim::Lane* lane : shim::Machine::current().block().lanes) {
        if (lane->waits_for == shim::barrier_wait_name) shim::Machine::current().wake(*lane);
    }
}
inline void bulk_store(void* to, const void* from, u32 bytes,
                       shim::Site site = shim::Site::here()) {
    shim::check_bulk("bulk_store", site, to, from, bytes);
    auto& open = shim::Machine::current().lane().stores.open;
    shim::Machine::current().point();
    open.push_back(
        {static_cast<unsigned char*>(to), static_cast<const unsigned char*>(from), bytes, {}});
    std::memset(to, shim::poison, bytes);
}
inline void bulk_commit() { shim::Machine::current().lane().stores.commit(); }
template <u32 GROUPS> void bulk_wait_read() {
    // The maximum number of groups that have been read and not yet written. Beyond it, the oldest
    // groups are written now.
    constexpr size_t unwritten = 8;
    shim::Machine::current().point();
    auto& groups = shim::Machine::current().lane().stores;
    while (groups.closed.size() > GROUPS + unwritten) groups.land_oldest();
    for (size_t i = 0; i + GROUPS < groups.closed.size(); ++i) {
        for (auto& store : groups.closed[i]) store.take();
    }
}
template <u32 GROUPS> void bulk_wait() {
    shim::Machine::current().point();
    auto& groups = shim::Machine::current().lane().stores;
    while (groups.closed.size() > GROUPS) groups.land_oldest();
}

}  // namespace forerun
