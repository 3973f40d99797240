// float.cuh for the shim. The tests are compiled without fused operations (-ffp-contract=off).
#pragma once
#include <cmath>
#include <cstring>

#include "word.cuh"

namespace forerun {

inline float sum(float a, float b) { return a + b; }
inline float product(float a, float b) { return a * b; }
inline float quotient(float a, float b) { return a / b; }

inline float float_of(u32 bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}
inline u32 bits_of(float value) {
    u32 bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

// By the definition of the format.
inline float widen_f16(u16 half) {
    const int exponent = half >> 10 & 0x1f, fraction = half & 0x3ff;
    const float magnitude = exponent == 0x1f ? (fraction == 0 ? INFINITY : NAN)
                            : exponent == 0  ? std::ldexp(float(fraction), -24)
                                             : std::ldexp(float(1024 + fraction), exponent - 25);
    return (half & 0x8000) != 0 ? -magnitude : magnitude;
}
// The nearest multiple of the unit of the last place, in the default rounding mode.
inline u16 nearest_f16(float value) {
    const u16 sign = std::signbit(value) ? 0x8000 : 0;
    const double magnitude = std::fabs(double(value));
    if (magnitude == 0) return sign;
    if (magnitude >= 65520) return sign | 0x7c00;
    int exponent = 0;
    std::frexp(magnitude, &exponent);  // magnitude = [0.5, 1) * 2^exponent
    const int unit = exponent - 11 < -24 ? -24 : exponent - 11;
    const double rounded = std::nearbyint(std::ldexp(magnitude, -unit));
    // The leading bit of a normal number, 1024, and a carry to 2048, add to the exponent.
    return u16(sign | ((unit + 24) * 1024 + int(rounded)));
}

}  // namespace forerun
