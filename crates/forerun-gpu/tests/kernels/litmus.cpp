// The litmus tests on the shim, whose warps delay their stores and read older values. With the
// orders, the forbidden outcome never appears. Without them it does, which shows that the tests can
// detect it.
#include "tests/testing/harness.h"
#include "shim/machine.h"
#include "word.cuh"

using namespace forerun;

namespace forerun {
struct LitmusParams {
    u64 cells, count, outcomes, writers;  // as in litmus.cu
};
}  // namespace forerun
#define KERNEL(name, ...) extern "C" void name(const forerun::LitmusParams);
#include "litmus.list"
#undef KERNEL

namespace {

using Kernel = void (*)(LitmusParams);

struct Outcomes {
    u64 of[4] = {};
};

Outcomes outcomes_of(Kernel kernel) {
    Outcomes sum;
    for (u64 seed = 0; seed < 400; ++seed) {
        constexpr u64 count = 96;
        std::vector<u32> cells(count * 64);
        shim::Launch launch;
        launch.blocks = 4;
        launch.threads = 32;
        launch.seed = seed;
        launch.stores_held = 12;
        launch.loads_stale = seed / 2 % 2 * 64;
        Outcomes found;
        const LitmusParams p = {reinterpret_cast<u64>(cells.data()), count,
                                reinterpret_cast<u64>(found.of), seed % 2};
        const shim::Outcome outcome = shim::Machine::run(launch, kernel, p);
        CHECK(outcome.ok(), "%s", outcome.failure.c_str());
        u64 readers = 0;
        for (u32 k = 0; k < 4; ++k) readers += found.of[k], sum.of[k] += found.of[k];
        CHECK(readers == count, "%llu cells of %llu were read", readers, count);
    }
    return sum;
}

void check(const char* name, Kernel ordered, Kernel weak) {
    const Outcomes good = outcomes_of(ordered), bad = outcomes_of(weak);
    CHECK(good.of[2] == 0, "%s: %llu forbidden outcomes", name, good.of[2]);
    CHECK(good.of[0] != 0 && good.of[1] != 0, "%s: %llu readers saw nothing, %llu all", name,
          good.of[0], good.of[1]);
    CHECK(bad.of[2] != 0, "%s: the forbidden outcome does not show without the orders", name);
}

TEST("what is published is there, and shows that it is not without the order") {
    check("publish", litmus_publish, litmus_publish_weak);
}
TEST("a row under an unchanged word is whole, and shows that it is not without the orders") {
    check("row", litmus_row, litmus_row_weak);
}
TEST("a row that another lane stored is whole, and shows that it is not without the orders") {
    check("lanes", litmus_lanes, litmus_lanes_weak);
}

}  // namespace

int main(int count, char** arguments) { return forerun::test::run_all(count, arguments); }
