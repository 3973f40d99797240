// async.cuh for the shim. Copied bytes arrive when the lane waits for them, not before. Until then,
// the destination holds poison.
#pragma once
#include "machine.h"

namespace forerun {

namespace shim {

inline void start_copy(std::vector<Copy>& copies, void* to, const void* from, u32 bytes) {
    Machine& machine = Machine::current();
    machine.point();
    copies.push_back(
        {static_cast<unsigned char*>(to), static_cast<const unsigned char*>(from), bytes, {}});
    if (machine.random().coin()) copies.back().take();
    std::memset(to, poison, bytes);
}

}  // namespace shim

template <u32 BYTES>
void copy_async(void* to, const void* from, shim::Site site = shim::Site::here()) {
    static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "cp.async copies 4, 8 or 16 bytes");
    if (reinterpret_cast<uintptr_t>(to) % BYTES != 0 ||
        reinterpret_cast<uintptr_t>(from) % BYTES != 0) {
        shim::Machine::current().fail(
            "copy_async (%s:%d) of %u bytes from %p to %p: not aligned to that size", site.file,
            site.line, BYTES, from, to);
    }
    shim::start_copy(shim::Machine::current().lane().copies.open, to, from, BYTES);
}
inline void copy_async_commit() { shim::Machine::current().lane().copies.commit(); }
template <u32 GROUPS> void copy_async_wait() {
    shim::Machine::current().point();
    auto& groups = shim::Machine::current().lane().copies;
    while (groups.closed.size() > GROUPS) groups.land_oldest();
}

}  // namespace forerun
