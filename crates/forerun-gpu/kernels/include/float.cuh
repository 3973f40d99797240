// Arithmetic on floats in which every step is rounded to nearest even and none is fused, so that it
// gives the same bits as forerun_core::pooling on a CPU. Which NaN a step returns is unspecified.
//
//   sum, product, quotient        of two floats
//   float_of(bits), bits_of(float)
//   widen_f16, widen_bf16         16 bits to a float, exactly
//   round_f16, round_bf16         a float to the nearest 16 bits; a NaN to the positive quiet one
#pragma once
#include "target.cuh"
#include "word.cuh"

#if defined(FORERUN_SHIM)
#include "shim/float.h"
#else

namespace forerun {

// The compiler never fuses these intrinsics.
FORERUN_DEVICE float sum(float a, float b) { return __fadd_rn(a, b); }
FORERUN_DEVICE float product(float a, float b) { return __fmul_rn(a, b); }
FORERUN_DEVICE float quotient(float a, float b) { return __fdiv_rn(a, b); }

FORERUN_DEVICE float float_of(u32 bits) { return __uint_as_float(bits); }
FORERUN_DEVICE u32 bits_of(float value) { return __float_as_uint(value); }

FORERUN_DEVICE float widen_f16(u16 half) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
    return value;
}
// Not of a NaN.
FORERUN_DEVICE u16 nearest_f16(float value) {
    u16 half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
    return half;
}

}  // namespace forerun

#endif

namespace forerun {

FORERUN_DEVICE bool is_nan(float value) { return (bits_of(value) & 0x7fffffffu) > 0x7f800000u; }

FORERUN_DEVICE u32 bits_without_payload(float value) {
    return is_nan(value) ? 0x7fc00000u : bits_of(value);
}
FORERUN_DEVICE u16 round_f16(float value) {
    return is_nan(value) ? u16(0x7e00) : nearest_f16(value);
}
FORERUN_DEVICE float widen_bf16(u16 half) { return float_of(u32(half) << 16); }
FORERUN_DEVICE u16 round_bf16(float value) {
    const u32 bits = bits_of(value);
    return is_nan(value) ? u16(0x7fc0) : u16((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace forerun
