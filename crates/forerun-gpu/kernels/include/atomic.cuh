// Atomics at device scope, and fences. Each operation returns the previous value.
//
//   atomic_add, _or, _xor, _exchange                  u32 and u64, relaxed
//   atomic_compare_exchange                           u32 and u64; relaxed
//   atomic_min                                        u32; relaxed
//   load_relaxed, store_relaxed, store_release                    u32 and u64
//   load_relaxed, store_relaxed                                   Bytes16, word by word
//   load_relaxed_if(wanted, from)                                 u32, u64, Bytes16; no branch
//   load_relaxed_or_zero(wanted, from)                            u32; no branch
//   fence()                                           acquire and release: earlier accesses are
//                                                     visible before later ones, to the device's
//                                                     threads
#pragma once
#include "memory.cuh"

#if defined(FORERUN_SHIM)
#include "shim/atomic.h"
#else

namespace forerun {

template <typename T> FORERUN_DEVICE T atomic_add(T* to, T value) { return atomicAdd(to, value); }
template <typename T> FORERUN_DEVICE T atomic_or(T* to, T value) { return atomicOr(to, value); }
template <typename T> FORERUN_DEVICE T atomic_xor(T* to, T value) { return atomicXor(to, value); }
template <typename T> FORERUN_DEVICE T atomic_exchange(T* to, T value) {
    return atomicExch(to, value);
}
template <typename T> FORERUN_DEVICE T atomic_compare_exchange(T* to, T expected, T value) {
    return atomicCAS(to, expected, value);
}
FORERUN_DEVICE u32 atomic_min(u32* to, u32 value) { return atomicMin(to, value); }

#define FORERUN_ORDERED(T, TYPE, CONSTRAINT)                                                       \
    FORERUN_DEVICE T load_relaxed(const T* from) {                                                 \
        T value;                                                                                   \
        asm volatile("ld.relaxed.gpu." TYPE " %0, [%1];"                                           \
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

// These load only if `wanted` is not 0; otherwise the result is arbitrary and the address need not
// be valid. They do not branch, so that the lanes of a warp stay together.
FORERUN_DEVICE Bytes16 load_relaxed_if(u32 wanted, const Bytes16* from) {
    Bytes16 value;
    asm volatile(
        "{\n .reg .pred wanted;\n setp.ne.u32 wanted, %5, 0;\n"
        " @wanted ld.relaxed.gpu.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
        : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
        : "l"(from), "r"(wanted)
        : "memory");
    return value;
}
FORERUN_DEVICE u32 load_relaxed_if(u32 wanted, const u32* from) {
    u32 value;
    asm volatile(
        "{\n .reg .pred wanted;\n setp.ne.u32 wanted, %2, 0;\n"
        " @wanted ld.relaxed.gpu.u32 %0, [%1];\n}"
        : "=r"(value)
        : "l"(from), "r"(wanted)
        : "memory");
    return value;
}
FORERUN_DEVICE u64 load_relaxed_if(u32 wanted, const u64* from) {
    u64 value;
    asm volatile(
        "{\n .reg .pred wanted;\n setp.ne.u32 wanted, %2, 0;\n"
        " @wanted ld.relaxed.gpu.u64 %0, [%1];\n}"
        : "=l"(value)
        : "l"(from), "r"(wanted)
        : "memory");
    return value;
}

// The result is 0 if it is not wanted. An arbitrary result keeps its register in use from one load
// to the next, which only loops without many loads can afford.
FORERUN_DEVICE u32 load_relaxed_or_zero(u32 wanted, const u32* from) {
    u32 value;
    asm volatile(
        "{\n .reg .pred wanted;\n .reg .u32 loaded;\n setp.ne.u32 wanted, %2, 0;\n"
        " mov.u32 loaded, 0;\n @wanted ld.relaxed.gpu.u32 loaded, [%1];\n"
        " mov.u32 %0, loaded;\n}"
        : "=r"(value)
        : "l"(from), "r"(wanted)
        : "memory");
    return value;
}

FORERUN_DEVICE void store_relaxed(Bytes16* to, Bytes16 value) {
    asm volatile("st.relaxed.gpu.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(value.x),
                 "r"(value.y), "r"(value.z), "r"(value.w)
                 : "memory");
}

FORERUN_DEVICE void fence() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

}  // namespace forerun

#endif
