// Compares every row-copying kernel with plain loops, for all sizes, counts, missing rows and
// offsets. The seed draws the other parameters.
#include <sys/mman.h>

#include <set>

#include "tests/testing/gather_case.h"

using namespace forerun;
using namespace forerun::test;

namespace {

constexpr u32 row_sizes[] = {1, 7, 8, 13, 16, 576, 584, 640, 656, 1152};
constexpr u32 counts[] = {0, 1, 31, 32, 33, 2048};
constexpr Missing missings[] = {Missing::none, Missing::some, Missing::all};

// The values that a kernel's cases have used, by name. A choice that is never drawn is a failure.
struct Seen {
    std::set<std::string> values;

    void add(const Case& c) {
        const auto put = [&](const char* what, u64 value) {
            values.insert(std::string(what) + " " + std::to_string(value));
        };
        put("direction", c.direction), put("absent", c.absent), put("map", c.map_update),
            put("count kind", u64(c.count_kind));
        put("index bytes", c.index_bytes), put("count bytes", c.count_bytes),
            put("map bytes", c.map_bytes), put("pairs", c.pairs);
        put("own indices", c.own_indices), put("many layers", c.layers > 1),
            put("tables", c.tables), put("reversed", c.reversed);
        put("runs", c.in_runs), put("tight", c.source_pad + c.destination_pad == 0),
            put("threads", c.threads), put("stage", c.stage_bytes);
        put("source pages", c.source_page_rows != 0);
        put("destination pages", c.destination_page_rows != 0);
    }
    static constexpr size_t all =
        2 + 2 + 3 + 4 + 2 + 2 + 2 + 2 + 2 + 2 + 2 + 2 + 2 + 2 + 3 + 4 + 2 + 2;
};

void every_case(const Kernel& kernel) {
    CheckedRows checked;
    Seen seen;
    u64 seed = u64(&kernel - kernels().data() + 1) * 10'000;  // other draws for each kernel
    u32 size = 0;
    for (const u32 row_bytes : row_sizes) {
        ++size;
        if (row_bytes % kernel.unit != 0) continue;
        for (const u32 count : counts) {
            u32 combination = 0;
            for (const Missing missing : missings) {
                for (const u32 base : {0u, 16u, 48u, kernel.unit}) {
                    ++seed;
                    // Run the large count for one in twelve combinations, in turn.
                    if (++combination % 12 != (size * 5 + kernel.rows) % 12 && count > 1000)
                        continue;
                    // The two highest bits of a hash are 0 for a quarter of the seeds.
                    if (!all_cases() && seed * 0x9e3779b97f4a7c15 >> 62 != 0) continue;
                    const Case c = draw(kernel, row_bytes, count, missing, base, seed * 7919);
                    seen.add(c);
                    run_case(c, checked);
                }
            }
        }
    }
    CHECK(seen.values.size() == Seen::all, "%zu of %zu choices were drawn", seen.values.size(),
          Seen::all);
    const u64 least =
        std::min({checked.copied, checked.zeroed, checked.skipped, checked.wrong_indices});
    CHECK(least > (all_cases() ? 100 : 25), "hardly any work was done: %llu", least);
    std::printf(
        "  %s: %llu launches, %llu rows copied, %llu zeroed, %llu skipped, %llu indices out of "
        "range\n",
        kernel.name, checked.cases, checked.copied, checked.zeroed, checked.skipped,
        checked.wrong_indices);
}

// The kernels of a version, or those with this many rows in flight.
void each(u32 version, u32 rows = 0) {
    u32 found = 0;
    for (const Kernel& kernel : kernels()) {
        if (kernel.version == version && (rows == 0 || kernel.rows == rows))
            every_case(kernel), ++found;
    }
    CHECK(found > 0, "no kernel of version %u", version);
}

TEST("v0 against plain loops") { each(0); }
TEST("v1 against plain loops") { each(1); }
TEST("v2 against plain loops") { each(2); }
TEST("v3 against plain loops") { each(3); }
TEST("v4 against plain loops") { each(4); }
TEST("v5 with one row in flight against plain loops") { each(5, 1); }
TEST("v5 with two rows in flight against plain loops") { each(5, 2); }
TEST("v6 against plain loops") { each(6); }

// Memory that is allocated only where it is touched.
struct Sparse {
    u64 bytes;
    u8* start;

    explicit Sparse(u64 bytes) : bytes(bytes) {
        void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        CHECK(mapped != MAP_FAILED, "no address space of %llu bytes", bytes);
        if (mapped == MAP_FAILED) std::exit(1);
        start = static_cast<u8*>(mapped);
    }
    ~Sparse() { munmap(start, bytes); }
};

void far_rows(const Kernel& kernel) {
    constexpr u64 row_bytes = 656;
    // Tests byte offsets near 2^31, 2^32 and 2^33, beyond signed and unsigned 32 bits.
    const i64 rows[] = {0,         3'273'603, 3'273'604,  3'273'605,  6'547'206,
                        6'547'207, 6'547'208, 13'094'412, 13'094'413, 13'094'414};
    constexpr u64 all_rows = 13'094'415, n = 10;
    Sparse source(all_rows * row_bytes), destination(all_rows * row_bytes);
    for (const u32 direction : {gather, scatter}) {
        Integers from(n, direction == gather ? 4 : 8), to(n, direction == gather ? 4 : 8);
        for (u64 i = 0; i < n; ++i) {
            from.set(i, rows[i]);
            to.set(i, rows[(i + 3) % n]);
            for (u64 b = 0; b < row_bytes; ++b)
                source.start[u64(rows[i]) * row_bytes + b] = u8(i * 17 + b * 3 + direction + 1);
        }
        GatherParams p = {};
        p.source = reinterpret_cast<u64>(source.start);
        p.destination = reinterpret_cast<u64>(destination.start);
        p.source_stride_bytes = p.destination_stride_bytes = p.row_bytes = row_bytes;
        p.source_rows = p.destination_rows = all_rows;
        p.source_index = from.address();
        p.destination_index = to.address();
        p.source_index_step = p.destination_index_step = 1;
        p.count = n;
        p.layers = 1;
        p.index_bytes = p.count_bytes = p.map_bytes = direction == gather ? 4 : 8;
        p.direction = direction;
        p.stage_bytes = kernel.version == 6 ? 512 : 0;
        const shim::Outcome outcome =
            shim::Machine::run(launch_of(kernel, n, 64, p.stage_bytes, 5), kernel.run, p);
        CHECK(outcome.ok(), "%s: %s", kernel.name, outcome.failure.c_str());
        for (u64 i = 0; i < n; ++i) {
            const bool same =
                std::memcmp(source.start + u64(rows[i]) * row_bytes,
                            destination.start + u64(rows[(i + 3) % n]) * row_bytes, row_bytes) == 0;
            CHECK(same, "%s: row %lld, direction %u", kernel.name, rows[i], direction);
        }
    }
}

TEST("rows past 2, 4 and 8 GiB") {
    for (const Kernel& kernel : kernels()) far_rows(kernel);
}

// One case of several blocks, with all its rows, under every kind of schedule.
TEST("schedules: all give the same bytes") {
    CheckedRows checked;
    for (const Kernel& kernel : kernels()) {
        Case c = draw(kernel, 48, 40, Missing::some, 16, 77);
        c.count_kind = Count::host;
        c.layers = 2;
        for (u64 seed = 0; seed < (all_cases() ? 24 : 6); ++seed) {
            c.seed = seed * 6151;
            run_case(c, checked);
        }
    }
    CHECK(checked.copied > (all_cases() ? 10'000 : 2'500), "%llu rows", checked.copied);
}

}  // namespace

int main(int count, char** arguments) { return forerun::test::run_all(count, arguments); }
