// lane.cuh for the shim: thread indices, and the calls in which lanes meet.
//
// A warp's call is a Meeting: each lane of its mask deposits a value and continues when all have
// done so. As on the hardware, calls that exchange values must meet at the same place in the
// sources. A plain warp_sync meets any other one.
#pragma once
#include "machine.h"
#include "word.cuh"

namespace forerun {

namespace shim {

constexpr const char* warp_sync_name = "warp_sync";

// All lanes of a warp are in one call. If none holds a lock, earlier failed attempts no longer
// count: this warp blocks no other lane.
inline void note_warp_met(const Lane& lane) {
    const auto& lanes = lane.block->lanes;
    const u32 first = lane.thread / 32 * 32, end = std::min(first + 32, u32(lanes.size()));
    for (u32 t = first; t < end; ++t) {
        if (lanes[t]->locks != 0) return;
    }
    for (u32 t = first; t < end; ++t) lanes[t]->failed_tries = 0;
}

inline Meeting& meet(const char* what, Site site, u32 mask, bool exchanges, const void* value,
                     size_t bytes) {
    Machine& machine = Machine::current();
    machine.point();
    Lane& lane = machine.lane();
    if ((mask & lane.bit()) == 0)
        machine.fail("%s (%s:%d) names lanes 0x%08x and not its caller", what, site.file, site.line,
                     mask);
    Warp& warp = lane.block->warps[lane.thread / 32];
    if ((mask & ~warp.present) != 0) {
        machine.fail(
            "%s (%s:%d) names lanes 0x%08x, of which 0x%08x have left the kernel or never existed",
            what, site.file, site.line, mask, mask & ~warp.present);
    }

    Meeting* meeting = nullptr;
    for (auto& other : warp.meetings) {
        const bool same = other->mask == mask && Site::same_text(other->what, what) &&
                          (!exchanges || other->site == site);
        if (same && !other->complete() && (other->arrived & lane.bit()) == 0) meeting = other.get();
    }
    if (meeting == nullptr) {
        if (warp.ended.empty()) warp.ended.push_back(std::make_unique<Meeting>());
        warp.meetings.push_back(std::move(warp.ended.back()));
        warp.ended.pop_back();
        meeting = warp.meetings.back().get();
        meeting->what = what;
        meeting->site = site;
        meeting->mask = mask;
        meeting->arrived = meeting->gone = 0;
    }
    if (bytes != 0) std::memcpy(meeting->values[lane.in_warp()], value, bytes);
    meeting->arrived |= lane.bit();
    if (meeting->complete() && mask == warp.present) note_warp_met(lane);
    // Of all warp-wide calls, only this one orders memory.
    if (meeting->complete() && Site::same_text(what, warp_sync_name)) {
        share_stores(warp, mask);
        share_sight(lane, mask);
    }
    if (meeting->complete()) {
        for (u32 rest = mask & ~lane.bit(); rest != 0; rest &= rest - 1) {
            machine.wake(*lane.block->lanes[lane.thread / 32 * 32 + u32(__builtin_ctz(rest))]);
        }
    } else {
        machine.wait(what, site, mask);
    }
    return *meeting;
}

// Each lane calls this once it has its result.
inline void depart(Meeting& meeting) {
    Lane& lane = Machine::current().lane();
    meeting.gone |= lane.bit();
    if (meeting.gone != meeting.mask) return;
    Warp& warp = lane.block->warps[lane.thread / 32];
    for (auto& other : warp.meetings) {
        if (other.get() == &meeting) {
            std::swap(other, warp.meetings.back());
            warp.ended.push_back(std::move(warp.meetings.back()));
            warp.meetings.pop_back();
            return;
        }
    }
}

template <typename T> T exchange(const char* what, Site site, u32 mask, T value, u32 from) {
    static_assert(sizeof(T) <= 8, "a shuffle moves 4 or 8 bytes");
    Meeting& meeting = meet(what, site, mask, true, &value, sizeof(T));
    if ((mask >> from & 1) == 0) {
        Machine::current().fail("%s (%s:%d) reads lane %u, which lanes 0x%08x do not include", what,
                                site.file, site.line, from, mask);
    }
    T result;
    std::memcpy(&result, meeting.values[from], sizeof(T));
    depart(meeting);
    return result;
}

// The lanes of the mask that say yes.
inline u32 vote(const char* what, Site site, u32 mask, bool yes) {
    Meeting& meeting = meet(what, site, mask, true, &yes, sizeof yes);
    u32 result = 0;
    for (u32 rest = mask; rest != 0; rest &= rest - 1) {
        bool other;
        std::memcpy(&other, meeting.values[__builtin_ctz(rest)], sizeof other);
        if (other) result |= rest & (~rest + 1);
    }
    depart(meeting);
    return result;
}

}  // namespace shim

inline u32 thread_in_block() { return shim::Machine::current().lane().thread; }
inline u32 threads_in_block() { return shim::Machine::current().launch().threads; }
inline u32 block_in_grid() { return shim::Machine::current().block().index; }
inline u32 blocks_in_grid() { return shim::Machine::current().block().grid; }

inline void block_sync(shim::Site site = shim::Site::here()) {
    auto& machine = shim::Machine::current();
    machine.point();
    shim::Block& block = machine.block();
    shim::land_stores_of(machine.lane());
    if (++block.at_barrier == block.live) {
        machine.release_barrier(block);
    } else {
        machine.wait(shim::Machine::barrier_name, site);
    }
    shim::pass_barrier(machine.lane());
}
inline void warp_sync(u32 mask, shim::Site site = shim::Site::here()) {
    shim::depart(shim::meet(shim::warp_sync_name, site, mask, false, nullptr, 0));
}

inline u32 ballot(u32 mask, bool yes, shim::Site site = shim::Site::here()) {
    return shim::vote("ballot", site, mask, yes);
}
inline bool any(u32 mask, bool yes, shim::Site site = shim::Site::here()) {
    return shim::vote("any", site, mask, yes) != 0;
}

template <typename T> T shuffle(u32 mask, T value, u32 from, shim::Site site = shim::Site::here()) {
    return shim::exchange("shuffle", site, mask, value, from % 32);
}
template <u32 LANES, typename T>
T shuffle_in(T value, u32 from, shim::Site site = shim::Site::here()) {
    const u32 first = thread_in_block() % 32 / LANES * LANES;
    return shim::exchange("shuffle_in", site, 0xffffffffu, value, first + from % LANES);
}
template <typename T>
T shuffle_up(u32 mask, T value, u32 by, shim::Site site = shim::Site::here()) {
    const u32 lane = thread_in_block() % 32;
    return shim::exchange("shuffle_up", site, mask, value, lane < by ? lane : lane - by);
}
template <typename T>
T shuffle_xor(u32 mask, T value, u32 by, shim::Site site = shim::Site::here()) {
    return shim::exchange("shuffle_xor", site, mask, value, (thread_in_block() % 32) ^ (by % 32));
}

inline u32 least_of_warp(u32 value, shim::Site site = shim::Site::here()) {
    shim::Meeting& meeting = shim::meet("least_of_warp", site, ~0u, true, &value, sizeof value);
    for (const auto& given : meeting.values) {
        u32 other;
        std::memcpy(&other, given, sizeof other);
        value = std::min(value, other);
    }
    shim::depart(meeting);
    return value;
}

inline u32 ones(u32 mask) { return u32(__builtin_popcount(mask)); }
inline u32 lowest(u32 mask) { return u32(__builtin_ctz(mask)); }
inline u32 highest(u32 mask) { return mask == 0 ? ~0u : 31 - u32(__builtin_clz(mask)); }

}  // namespace forerun
