// Loads that return an older value than the one in memory. They model the weak ordering of a GPU's
// loads.
//
//   Machine ── landings: | number, address, bytes, the value before, what it carries | ...
//
// Stores land, and atomic operations take place, in one order for all lanes. A load may ignore the
// latest landings at its place, except for those that the lane sees. The schedule decides for each
// load, so a lane may read a later store at one place before an earlier one at another.
//
//   a store carries    what has landed before the last fence of its lane; a release: before itself;
//                      an atomic operation: also what the value that it replaces carries
//   a lane sees        after a fence: what the values that it has read carry; after a warp_sync:
//                      also what the other lanes see
//
// So one lane's fence does not count for a store of another lane, and a fence acquires only from
// values that its own lane has read.
//
// A lane reads no older value of a place than one that it had read or stored there before, or that
// a lane had which it then met in a warp_sync.
//
// This is stronger than a real GPU: a store carries landings that its lane does not know of, and
// loads of shared memory return what has landed.
#pragma once
#include <algorithm>

#include "machine.h"

namespace forerun::shim {

inline bool overlap(const void* a, size_t a_bytes, const void* b, size_t b_bytes) {
    const auto x = reinterpret_cast<uintptr_t>(a), y = reinterpret_cast<uintptr_t>(b);
    return x < y + b_bytes && y < x + a_bytes;
}

// Replaces the bytes of a value read at `from` by those of a value at `other`, where they overlap.
inline void overlay(void* into, const void* from, uint32_t bytes, const void* other,
                    const unsigned char* value, uint32_t other_bytes) {
    if (!overlap(from, bytes, other, other_bytes)) return;
    const auto* const a = static_cast<const unsigned char*>(from);
    const auto* const b = static_cast<const unsigned char*>(other);
    const auto* const begin = std::max(a, b);
    const auto* const end = std::min(a + bytes, b + other_bytes);
    std::memcpy(static_cast<unsigned char*>(into) + (begin - a), value + (begin - b),
                size_t(end - begin));
}

inline Warp& warp_of(const Lane& lane) { return lane.block->warps[lane.thread / 32]; }

// A bit per byte of the place that the other one has too.
inline uint32_t bytes_in(const void* place, uint32_t bytes, const void* other,
                         uint32_t other_bytes) {
    uint32_t bits = 0;
    for (uint32_t b = 0; b < bytes; ++b) {
        if (overlap(static_cast<const unsigned char*>(place) + b, 1, other, other_bytes))
            bits |= 1u << b;
    }
    return bits;
}

// The lanes of a warp that must not read a value from before this landing.
inline uint32_t& known_to(Landing& landing, const Warp& warp) {
    return landing.known_to[warp.number % 8];
}

// Called before a store or an atomic operation of these lanes of a warp changes the place.
inline void note_landing(void* to, uint32_t bytes, uint64_t carries, const Warp& warp,
                         uint32_t lanes) {
    Machine& machine = Machine::current();
    const uint32_t max = machine.launch().loads_stale;
    if (max == 0 || machine.is_shared(to)) return;
    Landings& landings = machine.landings();
    if (landings.latest.size() >= max) landings.latest.pop_front();
    auto* const place = static_cast<unsigned char*>(to);
    Landing landing{place, bytes, ++landings.count, carries, {}, {}};
    known_to(landing, warp) = lanes;
    std::memcpy(landing.before, to, bytes);
    landings.latest.push_back(landing);
}

// The value in memory, without some of the latest landings.
inline void read_landed(void* into, const void* from, uint32_t bytes) {
    std::memcpy(into, from, bytes);
    Machine& machine = Machine::current();
    Lane& lane = machine.lane();
    auto& latest = machine.landings().latest;
    // Half of the loads return the oldest value that they may.
    bool is_stale = true, is_oldest = false, has_drawn = false;
    uint32_t left = (1u << bytes) - 1;  // the bytes whose store has not been reached yet
    for (auto landing = latest.rbegin(); landing != latest.rend(); ++landing) {
        // What an older one carries is older still.
        if (landing->number <= lane.sight.sees) return;
        if (!overlap(from, bytes, landing->to, landing->bytes)) continue;
        uint32_t& known = known_to(*landing, warp_of(lane));
        if (!has_drawn) is_oldest = machine.random().coin();
        has_drawn = true;
        is_stale = is_stale && (known & lane.bit()) == 0 && (is_oldest || machine.random().coin());
        if (is_stale) {
            overlay(into, from, bytes, landing->to, landing->before, landing->bytes);
            continue;
        }
        known |= lane.bit();
        const uint32_t here = left & bytes_in(from, bytes, landing->to, landing->bytes);
        if (here != 0) lane.sight.met = std::max(lane.sight.met, landing->carries);
        left &= ~here;
    }
}

// Called before an atomic operation, which reads the newest value.
inline void note_atomic(void* to, uint32_t bytes, bool changes) {
    Machine& machine = Machine::current();
    if (machine.launch().loads_stale == 0) return;
    Lane& lane = machine.lane();
    uint64_t carries = 0;
    for (Landing& landing : machine.landings().latest) {
        if (!overlap(to, bytes, landing.to, landing.bytes)) continue;
        known_to(landing, warp_of(lane)) |= lane.bit();
        carries = landing.carries;
    }
    lane.sight.met = std::max(lane.sight.met, carries);
    if (!changes) return;
    carries = std::max(carries, lane.sight.fenced);
    note_landing(to, bytes, carries, warp_of(lane), lane.bit());
}

inline void pass_fence(Lane& lane) {
    lane.sight.sees = std::max(lane.sight.sees, lane.sight.met);
    lane.sight.fenced = Machine::current().landings().count;
}
inline void pass_barrier(Lane& lane) {
    const uint64_t count = Machine::current().landings().count;
    lane.sight = {count, count, count};
}

// Lanes of the caller's warp synchronise.
inline void share_sight(const Lane& caller, uint32_t lanes) {
    Lane* const* const all = &caller.block->lanes[caller.thread / 32 * 32];
    uint64_t sees = 0;
    for (uint32_t rest = lanes; rest != 0; rest &= rest - 1)
        sees = std::max(sees, all[__builtin_ctz(rest)]->sight.sees);
    for (uint32_t rest = lanes; rest != 0; rest &= rest - 1)
        all[__builtin_ctz(rest)]->sight.sees = sees;
    for (Landing& landing : Machine::current().landings().latest) {
        uint32_t& known = known_to(landing, warp_of(caller));
        if ((known & lanes) != 0) known |= lanes;
    }
}

}  // namespace forerun::shim
