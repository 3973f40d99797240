// Compares the matrix product with three plain loops. The numbers are integers, so that the order
// of additions makes no difference.
#include "tests/testing/harness.h"
#include "shim/machine.h"
#include "word.cuh"

using namespace forerun;

namespace forerun {
struct ProductParams {
    u64 a, b, c, n;  // as in busy.cu
};
}  // namespace forerun
extern "C" void busy_product(const forerun::ProductParams);

namespace {

void multiply(u32 n, u32 blocks, u64 seed) {
    std::vector<float> a(n * n), b(n * n), c(n * n, -1.0f);
    for (u32 i = 0; i < n * n; ++i) a[i] = float(i * 7 % 13) - 6, b[i] = float(i * 5 % 11) - 5;
    const ProductParams p = {reinterpret_cast<u64>(a.data()), reinterpret_cast<u64>(b.data()),
                             reinterpret_cast<u64>(c.data()), n};
    shim::Launch launch;
    launch.blocks = blocks;
    launch.threads = 256;
    launch.seed = seed;
    const shim::Outcome outcome = shim::Machine::run(launch, busy_product, p);
    CHECK(outcome.ok(), "%s", outcome.failure.c_str());
    u32 wrong = 0;
    for (u32 i = 0; i < n; ++i) {
        for (u32 j = 0; j < n; ++j) {
            float sum = 0;
            for (u32 k = 0; k < n; ++k) sum += a[i * n + k] * b[k * n + j];
            wrong += c[i * n + j] != sum;
        }
    }
    CHECK(wrong == 0, "%u of %u numbers differ, n %u, blocks %u, seed %llu", wrong, n * n, n,
          blocks, seed);
}

TEST("the product equals the plain one, with any grid and schedule") {
    for (u64 seed = 0; seed < 4; ++seed) multiply(64, 1, seed);
    multiply(128, 4, 9);
    multiply(128, 3, 10);
}

}  // namespace

int main(int count, char** arguments) { return forerun::test::run_all(count, arguments); }
