// atomic.cuh for the shim: a scheduling point, then the whole operation before any other lane runs.
// held_stores.h and stale_loads.h describe what fences and releases do.
#pragma once
#include "machine.h"

namespace forerun {

namespace shim {

template <typename T, typename Next> T atomically(T* to, Next next) {
    Machine::current().point();
    land_stores_at(to, sizeof(T));
    const T was = *to, now = next(was);
    note_atomic(to, sizeof(T), now != was);
    *to = now;
    return was;
}
template <typename T> struct Same { using Type = T; };

}  // namespace shim

template <typename T> T atomic_add(T* to, typename shim::Same<T>::Type value) {
    return shim::atomically(to, [=](T was) { return T(was + value); });
}
template <typename T> T atomic_or(T* to, typename shim::Same<T>::Type value) {
    return shim::atomically(to, [=](T was) { return T(was | value); });
}
template <typename T> T atomic_xor(T* to, typename shim::Same<T>::Type value) {
    return shim::atomically(to, [=](T was) { return T(was ^ value); });
}
template <typename T> T atomic_exchange(T* to, typename shim::Same<T>::Type value) {
    return shim::atomically(to, [=](T) { return value; });
}
template <typename T>
T atomic_compare_exchange(T* to, typename shim::Same<T>::Type expected,
                          typename shim::Same<T>::Type value) {
    return shim::atomically(to, [=](T was) { return was == expected ? value : was; });
}
inline u32 atomic_min(u32* to, u32 value) {
    return shim::atomically(to, [=](u32 was) { return was < value ? was : value; });
}

template <typename T> T load_relaxed(const T* from) {
    static_assert(sizeof(T) >= 4, "accesses of other sizes would race with these");
    shim::Machine::current().point();
    return shim::read_value(from);
}
template <typename T> T load_relaxed_if(u32 wanted, const T* from) {
    T value;
    std::memset(&value, shim::poison, sizeof value);
    return wanted != 0 ? load_relaxed(from) : value;
}
inline u32 load_relaxed_or_zero(u32 wanted, const u32* from) {
    return wanted != 0 ? load_relaxed(from) : 0;
}
template <typename T> void store_relaxed(T* to, typename shim::Same<T>::Type value) {
    static_assert(sizeof(T) >= 4, "accesses of other sizes would race with these");
    shim::Machine::current().point();
    shim::write_value<T>(to, value);
}
template <typename T> void store_release(T* to, typename shim::Same<T>::Type value) {
    static_assert(sizeof(T) >= 4, "accesses of other sizes would race with these");
    auto& machine = shim::Machine::current();
    shim::land_stores_of(machine.lane());
    const uint64_t landed = machine.landings().count;
    machine.point();
    shim::write_value<T>(to, value, landed);
}

inline void fence() {
    shim::Machine::current().point();
    shim::Lane& lane = shim::Machine::current().lane();
    shim::land_stores_of(lane);
    shim::pass_fence(lane);
}

}  // namespace forerun
