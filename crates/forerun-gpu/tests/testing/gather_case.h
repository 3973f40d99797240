// One launch of a row-copying kernel, the memory it works on, and the expected result from plain
// loops.
//
//   each side:   | guard 256 | base | layer | gap | layer | gap | ... | guard 256 |     all of it is compared byte by byte
//   a layer:     | row | pad | row | pad | ...          without pages
//                | row | pad | row | pad | page gap | row | pad | row | pad | page gap | ...
#pragma once
#include <algorithm>

#include "tests/testing/gather_kernels.h"
#include "tests/testing/harness.h"

namespace forerun::test {

enum class Missing { none, some, all };
enum class Count { host, device_less, device_more, device_negative };

// The parameters of a case. Everything but the first five lines is drawn from the case's seed.
struct Case {
    const Kernel* kernel;
    u32 row_bytes;
    u32 count;
    Missing missing;
    u32 base;  // bytes past a line at which both sides start

    Direction direction;
    Absent absent;
    MapUpdate map_update;
    Count count_kind;
    u32 index_bytes, count_bytes, map_bytes;
    bool pairs;         // [n, 2] instead of two arrays
    bool own_indices;   // per layer, instead of shared ones
    u32 layers;
    bool tables;        // of layers, instead of strides
    bool reversed;      // the destination's layers are in reverse order
    bool in_runs;       // neighbours stay neighbours
    u32 source_pad, destination_pad;  // units after each row
    u32 source_page_rows, destination_page_rows;  // 0: no pages
    u32 threads;
    u32 stage_bytes;
    bool counts_wrong;  // out_of_range is given
    u64 seed;
};

inline Case draw(const Kernel& kernel, u32 row_bytes, u32 count, Missing missing, u32 base,
                 u64 seed) {
    shim::Random random(seed);
    Case c = {};
    c.kernel = &kernel;
    c.row_bytes = row_bytes;
    c.count = count;
    c.missing = missing;
    c.base = base;
    c.direction = Direction(random.below(2));
    c.absent = Absent(random.below(2));
    c.map_update = MapUpdate(random.below(3));
    c.count_kind = Count(random.below(4));
    if (count > 1000 && c.count_kind == Count::device_negative) c.count_kind = Count::host;
    c.index_bytes = random.coin() ? 4 : 8;
    c.count_bytes = random.coin() ? 4 : 8;
    c.map_bytes = random.coin() ? 4 : 8;
    c.pairs = random.coin();
    c.own_indices = random.coin();
    c.layers = random.coin() ? 1 : count > 1000 ? 2 : 3;
    c.tables = random.coin();
    c.reversed = random.coin();
    c.in_runs = random.coin();
    c.source_pad = c.in_runs && random.coin() ? 0 : u32(random.below(3));
    c.destination_pad = c.in_runs && c.source_pad == 0 ? 0 : u32(random.below(3));
    c.threads = u32(32 << random.below(3));
    c.stage_bytes = u32(128 << random.below(4));
    c.counts_wrong = random.below(4) != 0;
    c.source_page_rows = random.below(3) == 0 ? u32(1 + random.below(5)) : 0;
    c.destination_page_rows = random.below(3) == 0 ? u32(1 + random.below(5)) : 0;
    c.seed = seed;
    return c;
}

// Integers of 4 or 8 bytes, as a kernel reads them.
class Integers {
  public:
    Integers(u64 count, u32 bytes)
        : bytes_(bytes), narrow_(bytes == 4 ? count : 0), wide_(bytes == 8 ? count : 0) {}
    void set(u64 at, i64 value) {
        if (bytes_ == 4) {
            narrow_.at(at) = i32(value);
        } else {
            wide_.at(at) = value;
        }
    }
    i64 get(u64 at) const { return bytes_ == 4 ? narrow_.at(at) : wide_.at(at); }
    u64 address() const {
        return bytes_ == 4 ? reinterpret_cast<u64>(narrow_.data())
                           : reinterpret_cast<u64>(wide_.data());
    }
    bool operator==(const Integers& other) const {
        return narrow_ == other.narrow_ && wide_ == other.wide_;
    }

  private:
    u32 bytes_;
    std::vector<i32> narrow_;
    std::vector<i64> wide_;
};

// Rows of one side in all layers, between guards.
struct Side {
    static constexpr u64 guard_bytes = 256;
    u64 rows, stride_bytes;
    u32 page_rows;
    u64 page_bytes, layer_bytes, base;
    u32 layers;
    std::vector<u8> bytes;
    u64 start;  // offset of the first layer: the next line after the guard, plus base

    // With pages, there are `at_least_rows` rows or as many more as fill the last page. The gap
    // follows each page, and each layer.
    Side(u64 at_least_rows, u64 stride_bytes, u32 page_rows, u64 gap_bytes, u32 layers, u64 base,
         u64 seed)
        : rows(page_rows == 0 ? at_least_rows
                              : (at_least_rows + page_rows - 1) / page_rows * page_rows),
          stride_bytes(stride_bytes),
          page_rows(page_rows),
          page_bytes(page_rows * stride_bytes + gap_bytes),
          layer_bytes((page_rows == 0 ? rows * stride_bytes : rows / page_rows * page_bytes) +
                      gap_bytes),
          base(base),
          layers(layers) {
        bytes.resize(2 * guard_bytes + 128 + base + layers * layer_bytes);
        shim::Random random(seed);
        for (size_t i = 0; i + 8 <= bytes.size(); i += 8) {
            const u64 word = random.next();
            std::memcpy(&bytes[i], &word, 8);
        }
        const u64 behind_guard = reinterpret_cast<u64>(bytes.data()) + guard_bytes;
        start = (behind_guard + 127) / 128 * 128 - reinterpret_cast<u64>(bytes.data()) + base;
    }
    u64 offset(u32 layer, u64 row) const {
        const u64 in_layer = page_rows == 0
                                 ? row * stride_bytes
                                 : row / page_rows * page_bytes + row % page_rows * stride_bytes;
        return start + layer * layer_bytes + in_layer;
    }
    u64 address() const { return reinterpret_cast<u64>(bytes.data()) + start; }
};

inline std::string describe(const Case& c) {
    char text[400];
    std::snprintf(text, sizeof text,
                  "%s row %u count %u missing %d base %u, direction %u absent %u map %u count kind "
                  "%d, widths %u/%u/%u pairs %d own %d, layers %u "
                  "tables %d reversed %d, runs %d pads %u/%u pages %u/%u, threads %u stage %u, "
                  "seed %llu",
                  c.kernel->name, c.row_bytes, c.count, int(c.missing), c.base, c.direction,
                  c.absent, c.map_update, int(c.count_kind), c.index_bytes, c.count_bytes,
                  c.map_bytes, c.pairs, c.own_indices, c.layers, c.tables, c.reversed, c.in_runs,
                  c.source_pad, c.destination_pad, c.source_page_rows, c.destination_page_rows,
                  c.threads, c.stage_bytes, c.seed);
    return text;
}

// The indices of a layer. Destinations do not repeat, and neither do sources if the map is checked.
inline std::vector<std::pair<i64, i64>> draw_pairs(const Case& c, u64 source_rows,
                                                   u64 destination_rows, shim::Random& random) {
    const u64 first_source = random.below(source_rows - c.count + 1),
              first_destination = random.below(destination_rows - c.count + 1);
    std::vector<std::pair<i64, i64>> pairs(c.count);
    std::vector<i64> sources(source_rows), destinations(destination_rows);
    for (u64 i = 0; i < source_rows; ++i) sources[i] = i64(i);
    for (u64 i = 0; i < destination_rows; ++i) destinations[i] = i64(i);
    for (u64 i = source_rows; i > 1; --i) std::swap(sources[i - 1], sources[random.below(i)]);
    for (u64 i = destination_rows; i > 1; --i)
        std::swap(destinations[i - 1], destinations[random.below(i)]);
    for (u64 i = 0; i < c.count; ++i) {
        pairs[i] = {sources[i], destinations[i]};
        if (c.in_runs) pairs[i] = {i64(first_source + i), i64(first_destination + i)};
        // repeats.
        if (c.map_update == map_keep && random.below(4) == 0)
            pairs[i].first = i64(random.below(source_rows));
        const i64 wrong[] = {-2, c.index_bytes == 4 ? INT32_MIN : INT64_MIN,
                             c.index_bytes == 4 ? INT32_MAX : INT64_MAX};
        if (c.missing == Missing::all) {
            pairs[i].first = -1;
            if (random.below(4) == 0) pairs[i].second = -1;
        } else if (c.missing == Missing::some) {
            if (random.below(4) == 0) pairs[i].first = -1;
            if (random.below(8) == 0) pairs[i].second = -1;
            if (random.below(16) == 0)
                pairs[i].first = random.coin() ? i64(source_rows) : wrong[random.below(3)];
            if (random.below(16) == 0)
                pairs[i].second = random.coin() ? i64(destination_rows) : wrong[random.below(3)];
        }
    }
    return pairs;
}

// Runs the case and compares all memory. Adds the work done to `copied` and the other counters, so
// that the caller can check that there was some.
struct CheckedRows {
    u64 cases = 0, copied = 0, zeroed = 0, skipped = 0, wrong_indices = 0;
};

inline void run_case(const Case& c, CheckedRows& checked) {
    shim::Random random(c.seed + 1);
    const u32 unit = c.kernel->unit;
    const u64 rows = c.count + 3;
    Side source(rows + 2, c.row_bytes + c.source_pad * unit, c.source_page_rows, unit * 3, c.layers,
                c.base, c.seed + 2);
    Side destination(rows, c.row_bytes + c.destination_pad * unit, c.destination_page_rows,
                     unit * 5, c.layers, c.base, c.seed + 3);

    const u32 index_layers = c.own_indices ? c.layers : 1;
    Integers first(index_layers * c.count * (c.pairs ? 2 : 1) + 2, c.index_bytes),
        second(index_layers * c.count + 1, c.index_bytes);
    std::vector<std::vector<std::pair<i64, i64>>> pairs;
    for (u32 layer = 0; layer < index_layers; ++layer) {
        pairs.push_back(draw_pairs(c, source.rows, destination.rows, random));
        for (u64 i = 0; i < c.count; ++i) {
            const u64 at = layer * c.count + i;
            first.set(c.pairs ? 2 * at : at, pairs[layer][i].first);
            if (c.pairs) {
                first.set(2 * at + 1, pairs[layer][i].second);
            } else {
                second.set(at, pairs[layer][i].second);
            }
        }
    }

    const u64 host_rows = c.direction == gather ? source.rows : destination.rows;
    Integers map(c.layers * (host_rows + 1), c.map_bytes);
    for (u64 i = 0; i < c.layers * (host_rows + 1); ++i) map.set(i, -7);
    Integers device_count(1, c.count_bytes);
    u64 n = c.count;
    if (c.count_kind == Count::device_less)
        n = c.count - std::min<u64>(c.count, 1 + random.below(c.count + 1));
    if (c.count_kind == Count::device_negative) n = 0;
    device_count.set(0, c.count_kind == Count::device_more       ? i64(c.count) + 5
                        : c.count_kind == Count::device_negative ? -4
                                                                 : i64(n));
    u64 out_of_range = 1000;
    std::vector<u64> source_table(c.layers), destination_table(c.layers);
    const auto layer_of = [&](u32 layer) { return c.reversed ? c.layers - 1 - layer : layer; };
    for (u32 layer = 0; layer < c.layers; ++layer) {
        source_table[layer] = source.address() + layer * source.layer_bytes;
        destination_table[layer] =
            destination.address() + layer_of(layer) * destination.layer_bytes;
    }

    GatherParams p = {};
    p.source = c.tables ? 0 : source.address();
    p.destination = c.tables ? 0 : destination_table[0];
    p.source_table = c.tables ? reinterpret_cast<u64>(source_table.data()) : 0;
    p.destination_table = c.tables ? reinterpret_cast<u64>(destination_table.data()) : 0;
    p.source_layer_bytes = i64(source.layer_bytes);
    p.destination_layer_bytes =
        c.reversed ? -i64(destination.layer_bytes) : i64(destination.layer_bytes);
    p.source_stride_bytes = source.stride_bytes;
    p.destination_stride_bytes = destination.stride_bytes;
    p.row_bytes = c.row_bytes;
    p.source_page_rows = source.page_rows;
    p.destination_page_rows = destination.page_rows;
    p.source_page_bytes = source.page_bytes;
    p.destination_page_bytes = destination.page_bytes;
    p.source_rows = source.rows;
    p.destination_rows = destination.rows;
    p.source_index = first.address();
    p.destination_index = c.pairs ? first.address() + c.index_bytes : second.address();
    p.source_index_step = c.pairs ? 2 : 1;
    p.destination_index_step = c.pairs ? 2 : 1;
    p.index_layer_step = c.own_indices ? c.count * (c.pairs ? 2 : 1) : 0;
    p.count = c.count;
    p.device_count = c.count_kind == Count::host ? 0 : device_count.address();
    p.map = c.map_update == map_keep ? 0 : map.address();
    p.map_layer_step = host_rows + 1;
    p.out_of_range = c.counts_wrong ? reinterpret_cast<u64>(&out_of_range) : 0;
    p.layers = c.layers;
    p.index_bytes = c.index_bytes;
    p.count_bytes = c.count_bytes;
    p.map_bytes = c.map_bytes;
    p.direction = c.direction;
    p.absent = c.absent;
    p.map_update = c.map_update;
    p.stage_bytes = c.kernel->version == 6 ? c.stage_bytes : 0;

    // The plain reference.
    std::vector<u8> expected = destination.bytes;
    Integers expected_map = map;
    u64 expected_wrong = 1000;
    for (u32 layer = 0; layer < c.layers; ++layer) {
        for (u64 i = 0; i < n; ++i) {
            const auto [s, d] = pairs[c.own_indices ? layer : 0][i];
            const bool s_there = s >= 0 && u64(s) < source.rows,
                       d_there = d >= 0 && u64(d) < destination.rows;
            const u64 wrong = (!s_there && s != -1) + (!d_there && d != -1);
            checked.wrong_indices += wrong;
            if (c.counts_wrong) expected_wrong += wrong;
            if (!d_there || (!s_there && c.absent == absent_skip)) {
                ++checked.skipped;
                continue;
            }
            const u64 to = destination.offset(layer_of(layer), u64(d));
            for (u64 b = 0; b < c.row_bytes; ++b)
                expected[to + b] = s_there ? source.bytes[source.offset(layer, u64(s)) + b] : 0;
            ++(s_there ? checked.copied : checked.zeroed);
            if (!s_there || c.map_update == map_keep) continue;
            const i64 host = c.direction == gather ? s : d, device = c.direction == gather ? d : s;
            expected_map.set(layer * (host_rows + 1) + u64(host),
                             c.map_update == map_set ? device : -1);
        }
    }

    const std::vector<u8> source_before = source.bytes;
    shim::Launch launch =
        launch_of(*c.kernel, u64(c.count) * c.layers, c.threads, c.stage_bytes, c.seed);
    if (c.count > 1000) launch.points_per_turn = 200;  // the small cases test the schedules
    const shim::Outcome outcome = shim::Machine::run(launch, c.kernel->run, p);
    ++checked.cases;
    CHECK(outcome.ok(), "%s\n    %s", outcome.failure.c_str(), describe(c).c_str());
    CHECK(destination.bytes == expected, "the destination differs, from byte %td of %zu on\n    %s",
          std::mismatch(expected.begin(), expected.end(), destination.bytes.begin()).first -
              expected.begin(),
          expected.size(), describe(c).c_str());
    CHECK(source.bytes == source_before, "the source was written\n    %s", describe(c).c_str());
    CHECK(map == expected_map, "the map differs\n    %s", describe(c).c_str());
    CHECK(out_of_range == expected_wrong, "%llu indices out of range, not %llu\n    %s",
          out_of_range - 1000, expected_wrong - 1000, describe(c).c_str());
}

}  // namespace forerun::test
