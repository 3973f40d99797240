// V5: a warp copies ROWS rows at a time, in requests that begin on a line of host memory.
//
//   a row of 656 bytes that starts 112 into a line, unit 16, ALIGN 128:
//
//     line    0        1        2        3        4        5        6
//             |.......#|########|########|########|########|########|
//     load 0  |      31 lanes, from lane 7 on: 400 B      |                  requests of 512 bytes, each on lines of
//     load 1  |                                   |  16 lanes: 256 B |       its own; lanes outside the row are off
//
// If the requests began at the row's start, as in V2 to V4, the first one would touch 5 lines and
// the second would fetch the fifth again. The side across the link is aligned: the source of a
// gather, the destination of a scatter. The other side, in the device's own memory, is accessed one
// unit at a time at the row's own offset.
//
// Indices: lane l of a warp resolves row l of its group, and the other lanes get it by shuffle. The
// indices of the next group are requested before this group's rows, so that they arrive together.
// So is row 0 of its layer, if that is another one: tables and indices may be in host memory.
//
// Shifting lanes to a line boundary comes from zero-copy graph traversal (EMOGI, VLDB 2020).
#pragma once
#include "row.cuh"

namespace forerun {

// Requests in flight per row: the whole row up to 1,024 - ALIGN bytes at 16 bytes per lane.
constexpr u32 held_per_row = 2;

template <u32 UNIT, u32 ROWS> struct Held {
    Unit<UNIT> unit[ROWS][held_per_row];
};

// The position of this lane's unit of request `k` in the row. The lane is off unless it is below
// `units`.
template <u32 UNIT, u32 ALIGN> FORERUN_DEVICE u32 place_in_row(u64 anchor, u32 k) {
    const u32 lead = u32(anchor % ALIGN) / UNIT;
    // For lanes before the row's start, this wraps to a number greater than the units of any row.
    return k * warp_lanes + lane_in_warp() - lead;
}

template <u32 UNIT, u32 ROWS, u32 ALIGN>
FORERUN_DEVICE void copy_aligned(const GatherParams& p, const Row (&rows)[ROWS]) {
    const u32 units = u32(p.row_bytes / UNIT);
    // Enough requests for a row that starts anywhere in a line.
    const u32 requests = (units + ALIGN / UNIT - 1 + warp_lanes - 1) / warp_lanes;
    for (u32 first = 0; first < requests; first += held_per_row) {
        Held<UNIT, ROWS> held = {};  // zeros, for rows that are to be zeroed
#pragma unroll
        for (u32 r = 0; r < ROWS; ++r) {
#pragma unroll
            for (u32 k = 0; k < held_per_row; ++k) {
                const u32 u = place_in_row<UNIT, ALIGN>(
                    p.direction == gather ? rows[r].from : rows[r].to, first + k);
                if (rows[r].action == Action::copy && u < units)
                    held.unit[r][k] = load_once(at<Unit<UNIT>>(rows[r].from) + u);
            }
        }
#pragma unroll
        for (u32 r = 0; r < ROWS; ++r) {
#pragma unroll
            for (u32 k = 0; k < held_per_row; ++k) {
                const u32 u = place_in_row<UNIT, ALIGN>(
                    p.direction == gather ? rows[r].from : rows[r].to, first + k);
                if (rows[r].action != Action::none && u < units)
                    store_global(at<Unit<UNIT>>(rows[r].to) + u, held.unit[r][k]);
            }
        }
    }
}

template <u32 UNIT, u32 ROWS, u32 ALIGN> FORERUN_DEVICE void aligned_rows(const GatherParams& p) {
    static_assert(ALIGN <= UNIT * warp_lanes, "a request of all lanes covers a line or more");
    const u64 n = pair_count(p);
    const auto words_of_lane = [&](const Walk& walk) {
        const u64 i = walk.item * ROWS + lane_in_warp();
        return walk.more() && lane_in_warp() < ROWS && i < n ? pair_words(p, walk.layer, i)
                                                             : no_pair_words;
    };

    Walk walk(warp_in_grid(), (n + ROWS - 1) / ROWS, p.layers);
    PairWords words = words_of_lane(walk);
    LayerStart next = {};
    if (walk.more()) next = layer_of(p, walk.layer);
    while (walk.more()) {
        const u32 layer = walk.layer;
        const LayerStart here = next;
        const Pair mine = pair_of(p, words);
        walk.advance(warps_in_grid());
        words = words_of_lane(walk);
        if (walk.more() && walk.layer != layer) next = layer_of(p, walk.layer);

        // Lanes beyond ROWS hold no pair and count nothing.
        const Row resolved = row_of(p, here, mine, true);
        Row rows[ROWS];
#pragma unroll
        for (u32 r = 0; r < ROWS; ++r) {
            rows[r].from = shuffle(all_lanes, resolved.from, r);
            rows[r].to = shuffle(all_lanes, resolved.to, r);
            rows[r].action = Action(shuffle(all_lanes, u32(resolved.action), r));
        }
        copy_aligned<UNIT, ROWS, ALIGN>(p, rows);
        update_map(p, layer, mine, resolved.action);
    }
}

}  // namespace forerun
