// Rows of the table, copied in and out and added to by the lanes of a tile.
//
//   the table's side    words of four bytes, alone or four at a time, relaxed: readers and writers
//                       may meet there
//   the caller's side   16 bytes, 4 or 1, as its address and the length allow; no other thread
//                       uses it
//
// A row of the table begins at a multiple of four bytes, and its last word is its own: the stride
// is a multiple of four.
#pragma once
#include "tile.cuh"

namespace forerun::table {

// The unit that divides all of these addresses and lengths: 16, 4 or 1.
FORERUN_DEVICE u32 unit_of(u64 bits) { return (bits & 15) == 0 ? 16 : (bits & 3) == 0 ? 4 : 1; }

FORERUN_DEVICE u32 words_of(u64 bytes) { return u32((bytes + 3) / 4); }
// Bytes of word w that belong to a row of this length.
FORERUN_DEVICE u32 bytes_of_word(u64 bytes, u32 w) {
    const u64 left = bytes - u64(w) * 4;
    return left < 4 ? u32(left) : 4;
}

// From the caller to the table.
template <u32 LANES>
FORERUN_DEVICE void copy_in(const Tile<LANES>& tile, u64 row, u64 from, u64 bytes) {
    const u32 unit = unit_of(row | from | bytes);
    if (unit == 16) {
        for (u32 u = tile.rank; u < u32(bytes / 16); u += LANES)
            store_relaxed(at<Bytes16>(row) + u, load_global(at<Bytes16>(from) + u));
    } else if (unit == 4) {
        for (u32 w = tile.rank; w < u32(bytes / 4); w += LANES)
            store_relaxed(at<u32>(row) + w, load_global(at<u32>(from) + w));
    } else {
        for (u32 w = tile.rank; w < words_of(bytes); w += LANES) {
            u32 word = 0;
            for (u32 b = 0; b < bytes_of_word(bytes, w); ++b)
                word |= u32(load_global(at<u8>(from) + w * 4 + b)) << b * 8;
            store_relaxed(at<u32>(row) + w, word);
        }
    }
}

// From the table to the caller.
template <u32 LANES>
FORERUN_DEVICE void copy_out(const Tile<LANES>& tile, u64 to, u64 row, u64 bytes) {
    const u32 unit = unit_of(to | row | bytes);
    if (unit == 16) {
        for (u32 u = tile.rank; u < u32(bytes / 16); u += LANES)
            store_global(at<Bytes16>(to) + u, load_relaxed(at<Bytes16>(row) + u));
    } else if (unit == 4) {
        for (u32 w = tile.rank; w < u32(bytes / 4); w += LANES)
            store_global(at<u32>(to) + w, load_relaxed(at<u32>(row) + w));
    } else {
        for (u32 w = tile.rank; w < words_of(bytes); w += LANES) {
            const u32 word = load_relaxed(at<u32>(row) + w);
            for (u32 b = 0; b < bytes_of_word(bytes, w); ++b)
                store_global(at<u8>(to) + w * 4 + b, u8(word >> b * 8));
        }
    }
}

// From the caller to the caller.
template <u32 LANES>
FORERUN_DEVICE void copy_through(const Tile<LANES>& tile, u64 to, u64 from, u64 bytes) {
    if (unit_of(to | from | bytes) == 1) {
        for (u64 b = tile.rank; b < bytes; b += LANES)
            store_global(at<u8>(to) + b, load_global(at<u8>(from) + b));
    } else {
        for (u64 w = tile.rank; w < bytes / 4; w += LANES)
            store_global(at<u32>(to) + w, load_global(at<u32>(from) + w));
    }
}

template <u32 LANES> FORERUN_DEVICE void zero_row(const Tile<LANES>& tile, u64 row, u64 bytes) {
    for (u32 w = tile.rank; w < words_of(bytes); w += LANES) store_relaxed(at<u32>(row) + w, 0u);
}
// The same on the caller's side.
template <u32 LANES> FORERUN_DEVICE void zero_out(const Tile<LANES>& tile, u64 to, u64 bytes) {
    for (u64 b = tile.rank; b < bytes; b += LANES) store_global(at<u8>(to) + b, u8(0));
}

// An element of the table's row, which is one word or two.
template <typename T> FORERUN_DEVICE T load_element(u64 row, u64 e) {
    union {
        T value;
        u32 words[sizeof(T) / 4];
    } both;
    for (u32 w = 0; w < sizeof(T) / 4; ++w)
        both.words[w] = load_relaxed(at<u32>(row) + e * (sizeof(T) / 4) + w);
    return both.value;
}
template <typename T> FORERUN_DEVICE void store_element(u64 row, u64 e, T value) {
    union {
        T value;
        u32 words[sizeof(T) / 4];
    } both;
    both.value = value;
    for (u32 w = 0; w < sizeof(T) / 4; ++w)
        store_relaxed(at<u32>(row) + e * (sizeof(T) / 4) + w, both.words[w]);
}
template <typename T, u32 LANES>
FORERUN_DEVICE void add_elements(const Tile<LANES>& tile, u64 to, u64 from, u64 bytes) {
    for (u64 e = tile.rank; e < bytes / sizeof(T); e += LANES)
        store_element(to, e, T(load_element<T>(to, e) + load(at<T>(from) + e)));
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
