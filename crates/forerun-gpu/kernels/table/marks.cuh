// A mark for each slot of a row, or of half a row, as one lane holds them.
//
//   word i, of 32 slots:  bit 8b + 4 + j: slot 4j + b          bit 8b + j: slot 16 + 4j + b
//                         of digests:  byte b of word j of the first, then of the second chunk of 16
//
// Two neighbouring lanes share a row of cells in shared memory, a word for each chunk. The first
// lane's marks are the bits 8b + 4 + j of the words, the second lane's the bits 8b + j.
#pragma once
#include "layout.cuh"

namespace forerun::table {

constexpr u32 no_mark = ~0u;

// LANES chunks of 16 slots.
template <u32 LANES> struct Marks {
    static constexpr u32 words = (LANES + 1) / 2;
    u32 of_32[words];

    // The first cell of the row of a lane's key. With rows of eight words, those of the four tiles
    // that are stored at the same time are in different banks.
    FORERUN_DEVICE static u32 row_of(u32 lane) {
        if constexpr (LANES == 1) return lane;
        const u32 row = lane / 2;
        return (LANES == 8 ? row ^ (row >> 2 & 3) : row) * LANES;
    }

    // The marks of the lane's own key; none if they are not wanted.
    FORERUN_DEVICE static Marks of(const u32* cells, bool wanted) {
        const u32 up = LANES > 1 ? lane_in_warp() % 2 * 4 : 0;
        const u32 high = wanted ? 0xf0f0f0f0u : 0;
        const u32* const row = cells + row_of(lane_in_warp());
        Marks marks;
#pragma unroll
        for (u32 i = 0; i < words; ++i) {
            marks.of_32[i] = load(row + 2 * i) << up & high;
            if constexpr (LANES > 1)
                marks.of_32[i] |= (load(row + 2 * i + 1) << up & high) >> 4;
        }
        return marks;
    }

    FORERUN_DEVICE bool is_empty() const {
        u32 all = 0;
#pragma unroll
        for (u32 i = 0; i < words; ++i) all |= of_32[i];
        return all == 0;
    }
    FORERUN_DEVICE u32 count() const {
        u32 all = 0;
#pragma unroll
        for (u32 i = 0; i < words; ++i) all += ones(of_32[i]);
        return all;
    }

    // Removes a mark and returns its slot; no_mark if there is none.
    FORERUN_DEVICE u32 take() {
        u32 which = 0, left = 0;
#pragma unroll
        for (u32 i = words; i-- > 0;) {
            if (of_32[i] != 0) which = i, left = of_32[i];
        }
        // No branch, so that the lanes stay together.
        const u32 bit = highest(left);
#pragma unroll
        for (u32 i = 0; i < words; ++i) {
            if (i == which) of_32[i] = left & ~(1u << (bit & 31));
        }
        const u32 slot = which * 32 + (~bit & 4) * 4 + (bit & 3) * 4 + bit / 8;
        return left == 0 ? no_mark : slot;
    }
    FORERUN_DEVICE void clear() {
#pragma unroll
        for (u32 i = 0; i < words; ++i) of_32[i] = 0;
    }

    // The first marked slot in the order of a search that begins at `start`; no_mark if there is
    // none.
    FORERUN_DEVICE u32 first_from(u32 start) const {
        // The sectors in this order. They change places by halves, because the index of an array in
        // registers must be a constant.
        Marks turned = *this;
#pragma unroll
        for (u32 step = 1; step < words; step *= 2) {
            const bool swaps = (start / sector_slots & step) != 0;
#pragma unroll
            for (u32 i = 0; i < words; ++i) {
                if ((i & step) != 0) continue;
                const u32 low = turned.of_32[i], high = turned.of_32[i | step];
                turned.of_32[i] = swaps ? high : low;
                turned.of_32[i | step] = swaps ? low : high;
            }
        }
        u32 which = 0, left = 0;
#pragma unroll
        for (u32 i = words; i-- > 0;) {
            if (turned.of_32[i] != 0) which = i, left = turned.of_32[i];
        }
        if (left == 0) return no_mark;
        const bool is_second = (left & 0xf0f0f0f0u) == 0;
        const u32 chunk = is_second ? left << 4 : left;
        u32 word = 0;
#pragma unroll
        for (u32 j = 4; j-- > 0;) {
            if ((chunk & 0x10101010u << j) != 0) word = j;
        }
        const u32 byte = lowest(chunk & 0x10101010u << word) / 8;
        return ((which * 32) ^ start) + (is_second ? 16 : 0) + word * 4 + byte;
    }
};

}  // namespace forerun::table
