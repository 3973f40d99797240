// V0 and V1: one thread copies a whole row, one unit at a time. V0 is V1 with a unit of one byte.
//
// Neighbouring threads read from different rows, so requests are never coalesced: each unit is a
// request over the link.
#pragma once
#include "row.cuh"

namespace forerun {

template <u32 UNIT> FORERUN_DEVICE void thread_per_row(const GatherParams& p) {
    const u64 n = pair_count(p);
    const u64 item = thread_in_grid();
    if (item >= n * p.layers) return;
    const u32 layer = u32(item / n);
    const Pair pair = pair_at(p, layer, item % n);
    const Row row = row_of(p, layer_of(p, layer), pair, true);
    if (row.action == Action::none) return;

    auto* to = at<Unit<UNIT>>(row.to);
    const auto* from = at<Unit<UNIT>>(row.from);
    const u32 units = u32(p.row_bytes / UNIT);
    if (row.action == Action::copy) {
        for (u32 u = 0; u < units; ++u) store_global(to + u, load_global(from + u));
    } else {
        for (u32 u = 0; u < units; ++u) store_global(to + u, Unit<UNIT>{});
    }
    update_map(p, layer, pair, row.action);
}

}  // namespace forerun
