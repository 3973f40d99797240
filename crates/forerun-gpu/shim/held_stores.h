// Stores that a warp has made and that have not reached memory yet. They model the weak ordering of
// a GPU's stores.
//
//   Warp ── held: | address, bytes, lanes | ...     the oldest first
//
// A store is visible at once to the lane that made it. It is visible to the rest of the device when
// it lands, at a moment that the schedule chooses. Stores to different places land in any order;
// stores to one place land in program order. A fence or a release lands the lane's stores. After a
// warp_sync, the stores that one of its lanes had made before are stores of all of its lanes, so
// that a fence by any of them lands them.
#pragma once
#include "machine.h"
#include "stale_loads.h"

namespace forerun::shim {

// Lands one store, or an older one to the same place.
inline void land_store(Warp& warp, size_t which) {
    auto& held = warp.held;
    for (size_t older = 0; older < which; ++older) {
        if (overlap(held[older].to, held[older].bytes, held[which].to, held[which].bytes))
            which = older;
    }
    const HeldStore& store = held[which];
    note_landing(store.to, store.bytes, store.carries, warp, store.lanes);
    std::memcpy(store.to, store.value, store.bytes);
    held.erase(held.begin() + long(which));
}

// Lands the stores that the lane has made or has synchronised with.
inline void land_stores_of(const Lane& lane) {
    Warp& warp = warp_of(lane);
    for (size_t i = 0; i < warp.held.size();) {
        if ((warp.held[i].lanes & lane.bit()) != 0) {
            land_store(warp, i);
            i = 0;
        } else {
            ++i;
        }
    }
}

inline void hold_store(void* to, const void* value, uint32_t bytes, uint64_t carries) {
    Machine& machine = Machine::current();
    const uint32_t max = machine.launch().stores_held;
    Warp& warp = warp_of(machine.lane());
    if (max == 0) {
        note_landing(to, bytes, carries, warp, machine.lane().bit());
        std::memcpy(to, value, bytes);
        return;
    }
    if (warp.held.size() >= max) land_store(warp, machine.random().below(warp.held.size()));
    HeldStore store{static_cast<unsigned char*>(to), bytes, machine.lane().bit(), carries, {}};
    std::memcpy(store.value, value, bytes);
    warp.held.push_back(store);
}

// The value that the lane reads: memory as it is or was, overlaid with its own stores.
inline void read_held(void* into, const void* from, uint32_t bytes) {
    read_landed(into, from, bytes);
    const Lane& lane = Machine::current().lane();
    for (const HeldStore& store : warp_of(lane).held) {
        if ((store.lanes & lane.bit()) != 0)
            overlay(into, from, bytes, store.to, store.value, store.bytes);
    }
}

// An atomic operation acts on memory, so it first lands the lane's stores to that place.
inline void land_stores_at(const void* place, uint32_t bytes) {
    Warp& warp = warp_of(Machine::current().lane());
    for (size_t i = 0; i < warp.held.size();) {
        const HeldStore& store = warp.held[i];
        const bool own = (store.lanes & Machine::current().lane().bit()) != 0;
        if (own && overlap(place, bytes, store.to, store.bytes)) {
            land_store(warp, i);
            i = 0;
        } else {
            ++i;
        }
    }
}

// Lanes that synchronise take over each other's stores.
inline void share_stores(Warp& warp, uint32_t lanes) {
    for (HeldStore& store : warp.held) {
        if ((store.lanes & lanes) != 0) store.lanes |= lanes;
    }
}

// Touches the place, so that the sanitizers see an access of this type there.
template <typename T> void touch(const T* place) {
    const T value = *place;
    asm volatile("" : : "m"(value));
}

template <typename T> T read_value(const T* from) {
    touch(from);
    T value;
    read_held(&value, from, sizeof(T));
    return value;
}

template <typename T> void write_value(T* to, T value, uint64_t carries) {
    touch(to);
    hold_store(to, &value, sizeof(T), carries);
}
template <typename T> void write_value(T* to, T value) {
    write_value(to, value, Machine::current().lane().sight.fenced);
}

}  // namespace forerun::shim
