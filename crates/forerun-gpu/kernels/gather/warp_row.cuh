// V2, V3 and V4: a warp copies a row. One load of all lanes covers 32 units, beginning at the row's
// start.
//
//   unit 16, 656 bytes:   |<----- 512: 32 lanes ----->|<- 144: 9 lanes ->|
//
//   V2   load, store, load, store: the second request waits for the first, because the compiler may
//        not move a load across a store that might write what it reads
//   V3   load, load, store, store: both requests are in flight at once (up to `in_flight`;
//        longer rows take several rounds)
//   V4   V3 in a loop over the rows: any grid works, so the launch can be limited to a few
//        multiprocessors
#pragma once
#include "row.cuh"

namespace forerun {

constexpr u32 in_flight = 4;  // requests of V3 and V4: 2,048 bytes of a row at 16 bytes per lane

template <u32 UNIT> FORERUN_DEVICE void zero_row(const GatherParams& p, const Row& row) {
    const u32 units = u32(p.row_bytes / UNIT);
    for (u32 u = lane_in_warp(); u < units; u += warp_lanes)
        store_global(at<Unit<UNIT>>(row.to) + u, Unit<UNIT>{});
}

template <u32 UNIT> FORERUN_DEVICE void copy_in_turn(const GatherParams& p, const Row& row) {
    const u32 units = u32(p.row_bytes / UNIT);
    for (u32 u = lane_in_warp(); u < units; u += warp_lanes) {
        store_global(at<Unit<UNIT>>(row.to) + u, load_global(at<Unit<UNIT>>(row.from) + u));
    }
}

template <u32 UNIT> FORERUN_DEVICE void copy_loads_first(const GatherParams& p, const Row& row) {
    const u32 units = u32(p.row_bytes / UNIT);
    for (u32 first = lane_in_warp(); first < units; first += warp_lanes * in_flight) {
        Unit<UNIT> held[in_flight];
#pragma unroll
        for (u32 k = 0; k < in_flight; ++k) {
            const u32 u = first + warp_lanes * k;
            if (u < units) held[k] = load_global(at<Unit<UNIT>>(row.from) + u);
        }
#pragma unroll
        for (u32 k = 0; k < in_flight; ++k) {
            const u32 u = first + warp_lanes * k;
            if (u < units) store_global(at<Unit<UNIT>>(row.to) + u, held[k]);
        }
    }
}

template <u32 UNIT, bool LOADS_FIRST>
FORERUN_DEVICE void warp_does(const GatherParams& p, u32 layer, u64 i) {
    const Pair pair = pair_at(p, layer, i);
    const Row row = row_of(p, layer_of(p, layer), pair, lane_in_warp() == 0);
    if (row.action == Action::zero) {
        zero_row<UNIT>(p, row);
    } else if (row.action == Action::copy) {
        if constexpr (LOADS_FIRST) {
            copy_loads_first<UNIT>(p, row);
        } else {
            copy_in_turn<UNIT>(p, row);
        }
    }
    if (lane_in_warp() == 0) update_map(p, layer, pair, row.action);
}

template <u32 UNIT, bool LOADS_FIRST> FORERUN_DEVICE void warp_per_row(const GatherParams& p) {
    const u64 n = pair_count(p);
    const u64 item = warp_in_grid();
    if (item < n * p.layers) warp_does<UNIT, LOADS_FIRST>(p, u32(item / n), item % n);
}

template <u32 UNIT> FORERUN_DEVICE void warp_over_rows(const GatherParams& p) {
    for (Walk walk(warp_in_grid(), pair_count(p), p.layers); walk.more();
         walk.advance(warps_in_grid())) {
        warp_does<UNIT, true>(p, walk.layer, walk.item);
    }
}

}  // namespace forerun
