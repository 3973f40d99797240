// Compares random reads with plain loops. The sum must be that of the requested words, and each
// request must read one whole piece.
#include <map>
#include <set>

#include "tests/testing/harness.h"
#include "number.cuh"
#include "shim/machine.h"
#include "word.cuh"

using namespace forerun;

namespace forerun {
struct RandomReadParams {
    u64 buffer, pieces, count, seed, sum;  // as in roofline.cu
};
}  // namespace forerun
#define KERNEL(name, ...) extern "C" void name(const forerun::RandomReadParams);
#include "roofline.list"
#undef KERNEL

namespace {

using Kernel = void (*)(RandomReadParams);

void check(Kernel kernel, u32 bytes, u64 words, u64 count, u32 blocks, u64 seed) {
    std::vector<u64> buffer(words);
    u64 sum = 0;
    RandomReadParams p = {reinterpret_cast<u64>(buffer.data()), words, 0, seed,
                          reinterpret_cast<u64>(&sum)};
    shim::Launch launch;
    launch.blocks = blocks;
    launch.threads = 64;
    launch.seed = seed;
    const shim::Outcome filled = shim::Machine::run(launch, random_reads_fill, p);
    CHECK(filled.ok(), "%s", filled.failure.c_str());

    p.pieces = words * 8 / bytes;
    p.count = count;
    std::set<u64> read;  // addresses of 16 bytes
    launch.watch_loads = [&](const void* address, u32 length, u32) {
        CHECK(length == 16, "a load of %u bytes", length);
        read.insert(reinterpret_cast<u64>(address) - p.buffer);
    };
    const shim::Outcome outcome = shim::Machine::run(launch, kernel, p);
    CHECK(outcome.ok(), "%s", outcome.failure.c_str());

    u64 expected = 0;
    std::set<u64> named;
    for (u64 r = 0; r < count; ++r) {
        const u64 piece = high_product(mix(seed + r), p.pieces);
        for (u64 b = 0; b < bytes; b += 8) expected += mix(piece * bytes / 8 + b / 8);
        for (u64 b = 0; b < bytes; b += 16) named.insert(piece * bytes + b);
    }
    CHECK(sum == expected, "%u bytes, %llu requests, %u blocks: the sum differs", bytes, count,
          blocks);
    CHECK(read == named, "%u bytes: %zu places were read, %zu are named", bytes, read.size(),
          named.size());
}

TEST("random reads read exactly the requested pieces, each one whole") {
    const std::map<u32, Kernel> kernels = {
        {32, random_reads_b32}, {64, random_reads_b64}, {128, random_reads_b128}};
    for (const auto& [bytes, kernel] : kernels) {
        check(kernel, bytes, 4096, 0, 1, 1);
        check(kernel, bytes, 4096, 777, 1, 2);
        check(kernel, bytes, 400, 2000, 3, 3);
        check(kernel, bytes, 16, 5, 2, 4);
    }
}

}  // namespace

int main(int count, char** arguments) { return forerun::test::run_all(count, arguments); }
