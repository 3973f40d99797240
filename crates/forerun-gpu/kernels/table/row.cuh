// Copies of and additions to rows by the lanes of a tile, in the widest units that addresses and
// length allow.
#pragma once
#include "tile.cuh"

namespace forerun::table {

// The unit that divides all of these addresses and lengths: 16, 4 or 1.
FORERUN_DEVICE u32 unit_of(u64 bits) { return (bits & 15) == 0 ? 16 : (bits & 3) == 0 ? 4 : 1; }

template <typename T, u32 LANES>
FORERUN_DEVICE void copy_units(const Tile<LANES>& tile, u64 to, u64 from, u32 units) {
    for (u32 u = tile.rank; u < units; u += LANES)
        store_global(at<T>(to) + u, load_relaxed(at<T>(from) + u));
}

template <u32 LANES>
FORERUN_DEVICE void copy_row(const Tile<LANES>& tile, u64 to, u64 from, u64 bytes) {
    const u32 unit = unit_of(to | from | bytes);
    if (unit == 16) {
        copy_units<Bytes16>(tile, to, from, u32(bytes / 16));
    } else if (unit == 4) {
        copy_units<u32>(tile, to, from, u32(bytes / 4));
    } else {
        copy_units<u8>(tile, to, from, u32(bytes));
    }
}

template <u32 LANES> FORERUN_DEVICE void zero_row(const Tile<LANES>& tile, u64 to, u64 bytes) {
    for (u64 b = tile.rank; b < bytes; b += LANES) store_global(at<u8>(to) + b, u8(0));
}

template <typename T, u32 LANES>
FORERUN_DEVICE void add_elements(const Tile<LANES>& tile, u64 to, u64 from, u64 bytes) {
    for (u64 e = tile.rank; e < bytes / sizeof(T); e += LANES)
        store(at<T>(to) + e, T(load(at<T>(to) + e) + load(at<T>(from) + e)));
}
// The caller holds the bucket's lock. Integers wrap.
template <u32 LANES>
FORERUN_DEVICE void add_row(const Tile<LANES>& tile, u32 element, u64 to, u64 from, u64 bytes) {
    switch (element) {
        case element_f32: return add_elements<float>(tile, to, from, bytes);
        case element_f64: return add_elements<double>(tile, to, from, bytes);
        case element_i32: return add_elements<u32>(tile, to, from, bytes);
        default: return add_elements<u64>(tile, to, from, bytes);
    }
}

}  // namespace forerun::table
