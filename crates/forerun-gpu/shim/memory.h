// memory.cuh for the shim. Each access is also a point where another lane may run.
#pragma once
#include "machine.h"

namespace forerun {

template <typename T> T load(const T* from) {
    auto& machine = shim::Machine::current();
    machine.point();
    if (machine.launch().watch_loads)
        machine.launch().watch_loads(from, sizeof(T), machine.lane().thread);
    return shim::read_value(from);
}
template <typename T> void store(T* to, T value) {
    shim::Machine::current().point();
    shim::write_value<T>(to, value);
}
template <typename T> T load_global(const T* from) { return load(from); }
template <typename T> void store_global(T* to, T value) { store(to, value); }
template <typename T> T load_once(const T* from) { return load(from); }
template <typename T> void store_streaming(T* to, T value) { store(to, value); }

inline u8* dynamic_shared() { return shim::Machine::current().block().dynamic.get(); }

inline void prefetch(const void*) {}

}  // namespace forerun
