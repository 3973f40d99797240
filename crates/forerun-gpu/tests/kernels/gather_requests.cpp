// The link traffic of the warps, counted from the addresses that their lanes read: lines of 128
// bytes, and requests.
#include <map>
#include <set>

#include "tests/testing/gather_case.h"

using namespace forerun;
using namespace forerun::test;

namespace {

constexpr u64 line_bytes = 128, row_bytes = 656, rows = 64;

struct Asked {
    // Summed over requests: a line that two requests share counts twice.
    double lines_a_row = 0;
    double requests_a_row = 0;
    bool aligned = true;         // each lane reads at its own position in a line
};

// Gathers 64 neighbouring rows and groups the reads by row and by the request's position in it.
// Positions count from the row's start or, with aligned requests, from its line.
Asked ask(const char* name, u64 align) {
    const Kernel* kernel = nullptr;
    for (const Kernel& other : kernels()) {
        if (std::strcmp(other.name, name) == 0) kernel = &other;
    }
    CHECK(kernel != nullptr, "no kernel %s", name);
    if (kernel == nullptr) return {};

    std::vector<u8> source(rows * row_bytes + line_bytes), destination(rows * row_bytes + 16);
    const u64 start =
        (reinterpret_cast<u64>(source.data()) + line_bytes - 1) / line_bytes * line_bytes;
    Integers index(rows, 4);
    for (u64 i = 0; i < rows; ++i) index.set(i, i64(i));
    GatherParams p = {};
    p.source = start;
    p.destination = (reinterpret_cast<u64>(destination.data()) + 15) / 16 * 16;
    p.source_stride_bytes = p.destination_stride_bytes = p.row_bytes = row_bytes;
    p.source_rows = p.destination_rows = p.count = rows;
    p.source_index = p.destination_index = index.address();
    p.source_index_step = p.destination_index_step = 1;
    p.layers = 1;
    p.index_bytes = p.count_bytes = p.map_bytes = 4;
    p.direction = gather;

    Asked asked;
    const u64 span = 32 * kernel->unit;
    std::map<std::pair<u64, u64>, std::set<u64>> lines;  // of each row and request
    shim::Launch launch = launch_of(*kernel, rows, 64, 0, 3);
    launch.watch_loads = [&](const void* pointer, u32 bytes, u32 thread) {
        const u64 address = reinterpret_cast<u64>(pointer);
        // An index.
        if (address < start || address >= start + rows * row_bytes || bytes != kernel->unit) return;
        const u64 row = (address - start) / row_bytes;
        const u64 row_start = start + row * row_bytes;
        const u64 from = align == 0 ? row_start : row_start / align * align;
        lines[{row, (address - from) / span}].insert(address / line_bytes);
        asked.aligned &= address % line_bytes == thread % 32 * kernel->unit % line_bytes;
    };
    const shim::Outcome outcome = shim::Machine::run(launch, kernel->run, p);
    CHECK(outcome.ok(), "%s", outcome.failure.c_str());
    for (const auto& [request, touched] : lines) asked.lines_a_row += double(touched.size()) / rows;
    asked.requests_a_row = double(lines.size()) / rows;
    return asked;
}

TEST("requests from a row's start touch 6.875 lines per row of 656 bytes, aligned ones 6") {
    for (const char* name : {"gather_v2_u16", "gather_v3_u16", "gather_v4_u16"}) {
        const Asked asked = ask(name, 0);
        CHECK(asked.lines_a_row == 6.875 && asked.requests_a_row == 2 && !asked.aligned,
              "%s: %f lines", name, asked.lines_a_row);
    }
    for (const char* name : {"gather_v5_r1_a128_u16", "gather_v5_r2_a128_u16"}) {
        const Asked asked = ask(name, 128);
        CHECK(asked.lines_a_row == 6 && asked.requests_a_row == 2 && asked.aligned, "%s: %f lines",
              name, asked.lines_a_row);
    }
    for (const char* name : {"gather_v5_r2_a128_u8", "gather_v5_r2_a128_u4"}) {
        const Asked asked = ask(name, 128);
        CHECK(asked.lines_a_row == 6 && asked.aligned, "%s: %f lines", name, asked.lines_a_row);
    }
}

}  // namespace
