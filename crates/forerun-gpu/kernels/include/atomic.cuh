// Atomics at device scope, and fences. Each operation returns the previous value.
//
//   atomic_add, _min, _max, _and, _or, _xor, _exchange      u32 and u64, relaxed
//   atomic_compare_exchange                           u32 and u64; Bytes16 on Hopper; relaxed
//   load_relaxed, load_acquire, store_relaxed, store_release      u32 and u64
//   load_relaxed, store_relaxed                                   Bytes16, word by word
//   fence(), fence_system()                           acquire and release: earlier accesses are
//                                                     visible before later ones, to the device's
//                                                     threads, or to the host's as well
#pragma once
#include "memory.cuh"

#if defined(FORERUN_SHIM)
#include "shim/atomic.h"
#else

namespace forerun {

template <typename T> FORERUN_DEVICE T atomic_add(T* to, T value) { return atomicAdd(to, value); }
template <typename T> FORERUN_DEVICE T atomic_min(T* to, T value) { return atomicMin(to, value); }
template <typename T> FORERUN_DEVICE T atomic_max(T* to, T value) { return atomicMax(to, value); }
template <typename T> FORERUN_DEVICE T atomic_and(T* to, T value) { return atomicAnd(to, value); }
template <typename T> FORERUN_DEVICE T atomic_or(T* to, T value) { return atomicOr(to, value); }
template <typename T> FORERUN_DEVICE T atomic_xor(T* to, T value) { return atomicXor(to, value); }
template <typename T> FORERUN_DEVICE T atomic_exchange(T* to, T value) {
    return atomicExch(to, value);
}
template <typename T> FORERUN_DEVICE T atomic_compare_exchange(T* to, T expected, T value) {
    return atomicCAS(to, expected, value);
}

#if FORERUN_HOPPER
FORERUN_DEVICE Bytes16 atomic_compare_exchange(Bytes16* to, Bytes16 expected, Bytes16 value) {
    Bytes16 was;
    asm volatile(
        "{\n .reg .b64 low, high;\n .reg .b128 was, expected, value;\n"
        " mov.b64 low, {%5, %6};\n mov.b64 high, {%7, %8};\n mov.b128 expected, {low, high};\n"
        " mov.b64 low, {%9, %10};\n mov.b64 high, {%11, %12};\n mov.b128 value, {low, high};\n"
        " atom.global.relaxed.gpu.cas.b128 was, [%4], expected, value;\n"
        " mov.b128 {low, high}, was;\n mov.b64 {%0, %1}, low;\n mov.b64 {%2, %3}, high;\n}"
        : "=r"(was.x), "=r"(was.y), "=r"(was.z), "=r"(was.w)
        : "l"(to), "r"(expected.x), "r"(expected.y), "r"(expected.z), "r"(expected.w), "r"(value.x),
          "r"(value.y), "r"(value.z), "r"(value.w)
        : "memory");
    return was;
}
#endif

#define FORERUN_ORDERED(T, TYPE, CONSTRAINT)                                                       \
    FORERUN_DEVICE T load_relaxed(const T* from) {                                                 \
        T value;                                                                                   \
        asm volatile("ld.relaxed.gpu." TYPE " %0, [%1];"                                           \
                     : "=" CONSTRAINT(value)                                                       \
                     : "l"(from)                                                                   \
                     : "memory");                                                                  \
        return value;                                                                              \
    }                                                                                              \
    FORERUN_DEVICE T load_acquire(const T* from) {                                                 \
        T value;                                                                                   \
        asm volatile("ld.acquire.gpu." TYPE " %0, [%1];"                                           \
                     : "=" CONSTRAINT(value)                                                       \
                     : "l"(from)                                                                   \
                     : "memory");                                                                  \
        return value;                                                                              \
    }                                                                                              \
    FORERUN_DEVICE void store_relaxed(T* to, T value) {                                            \
        asm volatile("st.relaxed.gpu." TYPE " [%0], %1;" ::"l"(to), CONSTRAINT(value) : "memory"); \
    }                                                                                              \
    FORERUN_DEVICE void store_release(T* to, T value) {                                            \
        asm volatile("st.release.gpu." TYPE " [%0], %1;" ::"l"(to), CONSTRAINT(value) : "memory"); \
    }
FORERUN_ORDERED(u32, "u32", "r")
FORERUN_ORDERED(u64, "u64", "l")
#undef FORERUN_ORDERED

FORERUN_DEVICE Bytes16 load_relaxed(const Bytes16* from) {
    Bytes16 value;
    asm volatile("ld.relaxed.gpu.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(from)
                 : "memory");
    return value;
}

FORERUN_DEVICE void store_relaxed(Bytes16* to, Bytes16 value) {
    asm volatile("st.relaxed.gpu.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(value.x),
                 "r"(value.y), "r"(value.z), "r"(value.w)
                 : "memory");
}

FORERUN_DEVICE void fence() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
FORERUN_DEVICE void fence_system() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

}  // namespace forerun

#endif
