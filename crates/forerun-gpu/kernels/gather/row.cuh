// Computes the bytes that a pair of indices refers to, and iterates over the work.
//
//   work of a launch:   layer 0: pair 0 1 2 ... n-1 | layer 1: pair 0 1 ... n-1 | ...
//
// `Walk` strides over it without a division. It subtracts whole layers instead, at most `layers`
// times per kernel.
#pragma once
#include "../include/atomic.cuh"
#include "../include/gather_params.cuh"
#include "../include/lane.cuh"
#include "../include/memory.cuh"

namespace forerun {

enum class Action : u32 { none, copy, zero };

struct Pair {
    i64 source, destination;
};

// The pair's words as loaded. Nothing uses them before `pair_of`, so the lane does not wait for the
// loads until then.
struct PairWords {
    // 4-byte indices: the high words are absent.
    u32 source_low, source_high, destination_low, destination_high;
};

constexpr PairWords no_pair_words = {~0u, ~0u, ~0u, ~0u};

struct Row {
    u64 from, to;
    Action action;
};

FORERUN_DEVICE i64 signed_of(u64 base, u64 at_index, u32 bytes) {
    return bytes == 4 ? i64(load_global(at<i32>(base) + at_index))
                      : load_global(at<i64>(base) + at_index);
}

// Number of pairs in a layer.
FORERUN_DEVICE u64 pair_count(const GatherParams& p) {
    if (p.device_count == 0) return p.count;
    const i64 wanted = signed_of(p.device_count, 0, p.count_bytes);
    return wanted < 0 ? 0 : u64(wanted) < p.count ? u64(wanted) : p.count;
}

FORERUN_DEVICE PairWords pair_words(const GatherParams& p, u32 layer, u64 i) {
    const u64 first = layer * p.index_layer_step;
    const auto* source =
        at<u32>(p.source_index + (first + i * p.source_index_step) * p.index_bytes);
    const auto* destination =
        at<u32>(p.destination_index + (first + i * p.destination_index_step) * p.index_bytes);
    PairWords words = {};
    words.source_low = load_global(source);
    words.destination_low = load_global(destination);
    if (p.index_bytes == 8) {
        words.source_high = load_global(source + 1);
        words.destination_high = load_global(destination + 1);
    }
    return words;
}

FORERUN_DEVICE Pair pair_of(const GatherParams& p, PairWords words) {
    if (p.index_bytes == 4) return {i64(i32(words.source_low)), i64(i32(words.destination_low))};
    return {i64(u64(words.source_high) << 32 | words.source_low),
            i64(u64(words.destination_high) << 32 | words.destination_low)};
}

FORERUN_DEVICE Pair pair_at(const GatherParams& p, u32 layer, u64 i) {
    return pair_of(p, pair_words(p, layer, i));
}

// Row 0 of a layer on both sides.
struct LayerStart {
    u64 source, destination;
};

FORERUN_DEVICE u64 layer_address(u64 base, u64 table, i64 step_bytes, u32 layer) {
    return table == 0 ? base + u64(i64(layer) * step_bytes) : load_global(at<u64>(table) + layer);
}

FORERUN_DEVICE LayerStart layer_of(const GatherParams& p, u32 layer) {
    return {layer_address(p.source, p.source_table, p.source_layer_bytes, layer),
            layer_address(p.destination, p.destination_table, p.destination_layer_bytes, layer)};
}

// The offset of an existing row in its layer. With pages, row numbers fit 32 bits, whose division
// takes a fraction of the instructions.
FORERUN_DEVICE u64 row_offset(u64 row, u64 stride_bytes, u32 page_rows, u64 page_bytes) {
    if (page_rows == 0) return row * stride_bytes;
    const u32 page = u32(row) / page_rows;
    return page * page_bytes + (u32(row) - page * page_rows) * stride_bytes;
}

// The request of a pair. `counts` is true for exactly one of the lanes that have the same pair.
FORERUN_DEVICE Row row_of(const GatherParams& p, LayerStart layer, Pair pair, bool counts) {
    // Converted to unsigned, negative indices are too large as well.
    const bool source_there = u64(pair.source) < p.source_rows;
    const bool destination_there = u64(pair.destination) < p.destination_rows;
    if (counts && p.out_of_range != 0) {
        const u64 wrong = u64(!source_there && pair.source != -1) +
                          u64(!destination_there && pair.destination != -1);
        if (wrong != 0) atomic_add(at<u64>(p.out_of_range), wrong);
    }
    Row row = {0, 0, Action::none};
    if (destination_there && (source_there || p.absent == absent_zero)) {
        row.action = source_there ? Action::copy : Action::zero;
        row.to = layer.destination +
                 row_offset(u64(pair.destination), p.destination_stride_bytes,
                            p.destination_page_rows, p.destination_page_bytes);
        if (source_there) {
            row.from = layer.source + row_offset(u64(pair.source), p.source_stride_bytes,
                                                 p.source_page_rows, p.source_page_bytes);
        }
    }
    return row;
}

// Updates the slot map's entry of a copied row. One lane per row calls it.
FORERUN_DEVICE void update_map(const GatherParams& p, u32 layer, Pair pair, Action action) {
    if (p.map_update == map_keep || action != Action::copy) return;
    const i64 host = p.direction == gather ? pair.source : pair.destination;
    const i64 device = p.direction == gather ? pair.destination : pair.source;
    const i64 value = p.map_update == map_set ? device : -1;
    const u64 entry = layer * p.map_layer_step + u64(host);
    if (p.map_bytes == 4) {
        store_global(at<i32>(p.map) + entry, i32(value));
    } else {
        store_global(at<i64>(p.map) + entry, value);
    }
}

// Iterates over every `stride`-th item from `first` on. A layer has `each_layer` items.
struct Walk {
    u64 each_layer, item;
    u32 layer, layers;

    FORERUN_DEVICE Walk(u64 first, u64 each_layer, u32 layers)
        : each_layer(each_layer), item(first), layer(0), layers(layers) {
        if (each_layer == 0) layer = layers;
        skip_finished_layers();
    }
    FORERUN_DEVICE bool more() const { return layer < layers; }
    FORERUN_DEVICE void advance(u64 stride) {
        item += stride;
        skip_finished_layers();
    }

  private:
    FORERUN_DEVICE void skip_finished_layers() {
        while (layer < layers && item >= each_layer) {
            item -= each_layer;
            ++layer;
        }
    }
};

}  // namespace forerun
