// The row-copying kernels of the fake driver: a plain loop, which runs when the launch does.
#pragma once
#include <cstdint>
#include <cstring>

#include "../../kernels/include/gather_params.cuh"

inline void fake_gather(const forerun::GatherParams& p) {
    const auto index_of = [](uint64_t base, uint64_t at, uint32_t bytes) {
        int32_t narrow = 0;
        int64_t wide = 0;
        const void* from = reinterpret_cast<const void*>(base + at * bytes);
        if (bytes == 4) return std::memcpy(&narrow, from, 4), int64_t(narrow);
        return std::memcpy(&wide, from, 8), wide;
    };
    const auto layer_of = [](uint64_t base, uint64_t table, int64_t step, uint32_t layer) {
        return table == 0 ? base + uint64_t(int64_t(layer) * step)
                          : reinterpret_cast<const uint64_t*>(table)[layer];
    };
    const auto offset_of = [](uint64_t row, uint64_t stride, uint32_t page_rows, uint64_t page) {
        return page_rows == 0 ? row * stride : row / page_rows * page + row % page_rows * stride;
    };
    uint64_t count = p.count;
    if (p.device_count != 0) {
        const int64_t wanted = index_of(p.device_count, 0, p.count_bytes);
        count = wanted < 0 ? 0 : uint64_t(wanted) < count ? uint64_t(wanted) : count;
    }
    for (uint32_t layer = 0; layer < p.layers; ++layer) {
        for (uint64_t i = 0; i < count; ++i) {
            const uint64_t first = layer * p.index_layer_step;
            const int64_t s =
                index_of(p.source_index, first + i * p.source_index_step, p.index_bytes);
            const int64_t d =
                index_of(p.destination_index, first + i * p.destination_index_step, p.index_bytes);
            const bool s_there = uint64_t(s) < p.source_rows;
            const bool d_there = uint64_t(d) < p.destination_rows;
            if (p.out_of_range != 0) {
                *reinterpret_cast<uint64_t*>(p.out_of_range) +=
                    uint64_t(!s_there && s != -1) + uint64_t(!d_there && d != -1);
            }
            if (!d_there || (!s_there && p.absent == forerun::absent_skip)) continue;
            void* to = reinterpret_cast<void*>(
                layer_of(p.destination, p.destination_table, p.destination_layer_bytes, layer) +
                offset_of(uint64_t(d), p.destination_stride_bytes, p.destination_page_rows,
                          p.destination_page_bytes));
            if (!s_there) {
                std::memset(to, 0, p.row_bytes);
                continue;
            }
            std::memcpy(to,
                        reinterpret_cast<const void*>(
                            layer_of(p.source, p.source_table, p.source_layer_bytes, layer) +
                            offset_of(uint64_t(s), p.source_stride_bytes, p.source_page_rows,
                                      p.source_page_bytes)),
                        p.row_bytes);
            if (p.map_update == forerun::map_keep) continue;
            const int64_t host = p.direction == forerun::gather ? s : d;
            const int64_t device = p.direction == forerun::gather ? d : s;
            const int64_t value = p.map_update == forerun::map_set ? device : -1;
            const uint64_t entry = layer * p.map_layer_step + uint64_t(host);
            if (p.map_bytes == 4) {
                reinterpret_cast<int32_t*>(p.map)[entry] = int32_t(value);
            } else {
                reinterpret_cast<int64_t*>(p.map)[entry] = value;
            }
        }
    }
}
