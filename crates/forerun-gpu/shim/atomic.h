// atomic.cuh for the shim: a scheduling point, then the whole operation before any other lane runs.
// The shim provides all orderings and fences anyway; machine.h lists the defects that this hides.
#pragma once
#include "machine.h"

namespace forerun {

namespace shim {

template <typename T, typename Next> T atomically(T* to, Next next) {
    Machine::current().point();
    land_stores_at(to, sizeof(T));
    const T was = *to;
    *to = next(was);
    return was;
}
template <typename T> struct Same { using Type = T; };

}  // namespace shim

template <typename T> T atomic_add(T* to, typename shim::Same<T>::Type value) {
    return shim::atomically(to, [=](T was) { return T(was + value); });
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
    shim::land_stores_of(shim::Machine::current().lane());
    store_relaxed(to, value);
}

inline void fence() {
    shim::Machine::current().point();
    shim::land_stores_of(shim::Machine::current().lane());
}

}  // namespace forerun
