// Loads and stores of 1, 2, 4, 8 and 16 bytes, and the block's dynamic shared memory.
//
//   load, store                  plain C++, for any memory: the compiler may reorder them
//   load_global, store_global    global memory, in program order
//   load_once                    the same, without allocating a line in L1 (ld.global.L1::no_allocate)
//   store_streaming              the same, for data that is unlikely to be read soon (st.global.cs)
//   prefetch                     brings the line into the L2 cache
//
// load_once is not ld.global.nc: a read through that path may be delayed until after later stores.
// ptxas did so to save registers, which defeated "all loads, then all stores".
//
// The host may read what a kernel stores to host memory once the kernel has ended and the host has
// waited for it (event or stream). Nothing here makes it visible earlier.
#pragma once
#include "target.cuh"
#include "word.cuh"

namespace forerun {

struct alignas(16) Bytes16 {
    u32 x, y, z, w;
};

// The integer or block of this many bytes.
template <u32 BYTES> struct UnitOf;
template <> struct UnitOf<1> { using Type = u8; };
template <> struct UnitOf<2> { using Type = u16; };
template <> struct UnitOf<4> { using Type = u32; };
template <> struct UnitOf<8> { using Type = u64; };
template <> struct UnitOf<16> { using Type = Bytes16; };
template <u32 BYTES> using Unit = typename UnitOf<BYTES>::Type;

// Converts an address from the host's side to a pointer.
template <typename T> FORERUN_DEVICE T* at(u64 address) { return reinterpret_cast<T*>(address); }

}  // namespace forerun

#if defined(FORERUN_SHIM)
#include "shim/memory.h"
#else

namespace forerun {

template <typename T> FORERUN_DEVICE T load(const T* from) { return *from; }
template <typename T> FORERUN_DEVICE void store(T* to, T value) { *to = value; }

// Instructions by width. `volatile` and "memory" keep them in order among other memory accesses.
#define FORERUN_LOAD(NAME, OP)                                                \
    FORERUN_DEVICE void NAME(const u8* from, u8& to) {                        \
        u16 wide;                                                             \
        asm volatile(OP ".u8 %0, [%1];" : "=h"(wide) : "l"(from) : "memory"); \
        to = u8(wide);                                                        \
    }                                                                         \
    FORERUN_DEVICE void NAME(const u16* from, u16& to) {                      \
        asm volatile(OP ".u16 %0, [%1];" : "=h"(to) : "l"(from) : "memory");  \
    }                                                                         \
    FORERUN_DEVICE void NAME(const u32* from, u32& to) {                      \
        asm volatile(OP ".u32 %0, [%1];" : "=r"(to) : "l"(from) : "memory");  \
    }                                                                         \
    FORERUN_DEVICE void NAME(const u64* from, u64& to) {                      \
        asm volatile(OP ".u64 %0, [%1];" : "=l"(to) : "l"(from) : "memory");  \
    }                                                                         \
    FORERUN_DEVICE void NAME(const Bytes16* from, Bytes16& to) {              \
        asm volatile(OP ".v4.u32 {%0, %1, %2, %3}, [%4];"                     \
                     : "=r"(to.x), "=r"(to.y), "=r"(to.z), "=r"(to.w)         \
                     : "l"(from)                                              \
                     : "memory");                                             \
    }
#define FORERUN_STORE(NAME, OP)                                                                  \
    FORERUN_DEVICE void NAME(u8* to, u8 value) {                                                 \
        asm volatile(OP ".u8 [%0], %1;" ::"l"(to), "h"(u16(value)) : "memory");                  \
    }                                                                                            \
    FORERUN_DEVICE void NAME(u16* to, u16 value) {                                               \
        asm volatile(OP ".u16 [%0], %1;" ::"l"(to), "h"(value) : "memory");                      \
    }                                                                                            \
    FORERUN_DEVICE void NAME(u32* to, u32 value) {                                               \
        asm volatile(OP ".u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");                      \
    }                                                                                            \
    FORERUN_DEVICE void NAME(u64* to, u64 value) {                                               \
        asm volatile(OP ".u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");                      \
    }                                                                                            \
    FORERUN_DEVICE void NAME(Bytes16* to, Bytes16 value) {                                       \
        asm volatile(OP ".v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(value.x), "r"(value.y), \
                     "r"(value.z), "r"(value.w)                                                  \
                     : "memory");                                                                \
    }

namespace instruction {

FORERUN_LOAD(load, "ld.global")
FORERUN_LOAD(load_once, "ld.global.L1::no_allocate")
FORERUN_STORE(store, "st.global")
FORERUN_STORE(store_streaming, "st.global.cs")

}  // namespace instruction

#undef FORERUN_LOAD
#undef FORERUN_STORE

// Signed and unsigned integers, and Bytes16.
template <typename T> FORERUN_DEVICE T load_global(const T* from) {
    Unit<sizeof(T)> value;
    instruction::load(reinterpret_cast<const Unit<sizeof(T)>*>(from), value);
    return T(value);
}
template <typename T> FORERUN_DEVICE T load_once(const T* from) {
    Unit<sizeof(T)> value;
    instruction::load_once(reinterpret_cast<const Unit<sizeof(T)>*>(from), value);
    return T(value);
}
template <typename T> FORERUN_DEVICE void store_global(T* to, T value) {
    instruction::store(reinterpret_cast<Unit<sizeof(T)>*>(to), Unit<sizeof(T)>(value));
}
template <typename T> FORERUN_DEVICE void store_streaming(T* to, T value) {
    instruction::store_streaming(reinterpret_cast<Unit<sizeof(T)>*>(to), Unit<sizeof(T)>(value));
}

FORERUN_DEVICE void prefetch(const void* from) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}

// The launch determines its size. It is aligned to 128 bytes.
FORERUN_DEVICE u8* dynamic_shared() {
    extern __shared__ __align__(128) unsigned char forerun_dynamic_shared[];
    return forerun_dynamic_shared;
}

// The 32-bit address that instructions for shared memory take.
FORERUN_DEVICE u32 shared_address(const void* pointer) {
    return u32(__cvta_generic_to_shared(pointer));
}

}  // namespace forerun

#endif
