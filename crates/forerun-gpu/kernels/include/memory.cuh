// Loads and stores of 1, 2, 4, 8 and 16 bytes, plain and hinted, and the block's dynamic shared memory.
//
//   load, store        what the language does
//   load_once          ld.global.nc.L1::no_allocate: read through the non-coherent path, and leave no line in the first
//                      cache. For memory that nobody writes while the kernel runs (a row that is read once). Host memory
//                      may be read so too: what the host wrote before the launch is seen, what it writes during it is a
//                      race with or without the hint.
//   store_streaming    st.global.cs: likely not read again soon
//
// L2Fetch widens what a load brings into the second cache: a hint, of use where neighbours are read soon after.
//
// What a kernel stores to host memory is the host's to read once the kernel has ended and the host has waited for it
// (event or stream); nothing here orders it earlier.
#pragma once
#include "target.cuh"
#include "word.cuh"

namespace forerun {

struct alignas(16) Bytes16 {
    u32 x, y, z, w;
};

enum class L2Fetch { line_part, bytes_64, bytes_128, bytes_256 };

// The integer, or block, of so many bytes.
template <u32 BYTES> struct UnitOf;
template <> struct UnitOf<1> { using Type = u8; };
template <> struct UnitOf<2> { using Type = u16; };
template <> struct UnitOf<4> { using Type = u32; };
template <> struct UnitOf<8> { using Type = u64; };
template <> struct UnitOf<16> { using Type = Bytes16; };
template <u32 BYTES> using Unit = typename UnitOf<BYTES>::Type;

// An address from the host's side, as a pointer.
template <typename T> FORERUN_DEVICE T* at(u64 address) { return reinterpret_cast<T*>(address); }

}  // namespace forerun

#if defined(FORERUN_SHIM)
#include "shim/memory.h"
#else

namespace forerun {

template <typename T> FORERUN_DEVICE T load(const T* from) { return *from; }
template <typename T> FORERUN_DEVICE void store(T* to, T value) { *to = value; }

// One function a width and hint; the compiler has built-ins for only some of these.
#define FORERUN_LOAD_ONCE(T, C, TYPE, CONSTRAINT, FETCH, HINT)                                                        \
    template <> FORERUN_DEVICE T load_once<FETCH, T>(const T* from) {                                                 \
        C value;                                                                                                      \
        asm volatile("ld.global.nc.L1::no_allocate" HINT "." TYPE " %0, [%1];" : "=" CONSTRAINT(value) : "l"(from));  \
        return T(value);                                                                                              \
    }
#define FORERUN_LOAD_ONCE_16(FETCH, HINT)                                                                             \
    template <> FORERUN_DEVICE Bytes16 load_once<FETCH, Bytes16>(const Bytes16* from) {                               \
        Bytes16 value;                                                                                                \
        asm volatile("ld.global.nc.L1::no_allocate" HINT ".v4.u32 {%0, %1, %2, %3}, [%4];"                            \
                     : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)                                     \
                     : "l"(from));                                                                                    \
        return value;                                                                                                 \
    }
#define FORERUN_LOADS(FETCH, HINT)                    \
    FORERUN_LOAD_ONCE(u8, u16, "u8", "h", FETCH, HINT)   \
    FORERUN_LOAD_ONCE(u16, u16, "u16", "h", FETCH, HINT) \
    FORERUN_LOAD_ONCE(u32, u32, "u32", "r", FETCH, HINT) \
    FORERUN_LOAD_ONCE(u64, u64, "u64", "l", FETCH, HINT) \
    FORERUN_LOAD_ONCE_16(FETCH, HINT)

template <L2Fetch FETCH = L2Fetch::line_part, typename T> FORERUN_DEVICE T load_once(const T* from);
FORERUN_LOADS(L2Fetch::line_part, "")
FORERUN_LOADS(L2Fetch::bytes_64, ".L2::64B")
FORERUN_LOADS(L2Fetch::bytes_128, ".L2::128B")
FORERUN_LOADS(L2Fetch::bytes_256, ".L2::256B")

#undef FORERUN_LOADS
#undef FORERUN_LOAD_ONCE_16
#undef FORERUN_LOAD_ONCE

FORERUN_DEVICE void store_streaming(u8* to, u8 value) { asm volatile("st.global.cs.u8 [%0], %1;" ::"l"(to), "h"(u16(value)) : "memory"); }
FORERUN_DEVICE void store_streaming(u16* to, u16 value) { asm volatile("st.global.cs.u16 [%0], %1;" ::"l"(to), "h"(value) : "memory"); }
FORERUN_DEVICE void store_streaming(u32* to, u32 value) { asm volatile("st.global.cs.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory"); }
FORERUN_DEVICE void store_streaming(u64* to, u64 value) { asm volatile("st.global.cs.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory"); }
FORERUN_DEVICE void store_streaming(Bytes16* to, Bytes16 value) {
    asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w)
                 : "memory");
}

// The launch says how much of it there is. Aligned to 128 bytes.
FORERUN_DEVICE u8* dynamic_shared() {
    extern __shared__ __align__(128) unsigned char forerun_dynamic_shared[];
    return forerun_dynamic_shared;
}

// The 32-bit address that instructions on shared memory take.
FORERUN_DEVICE u32 shared_address(const void* pointer) { return u32(__cvta_generic_to_shared(pointer)); }

}  // namespace forerun

#endif
