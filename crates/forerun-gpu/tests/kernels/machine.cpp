// The shim's own tests: small kernels, most of them with a planted bug, and the failure that the
// machine must report.
#include <sys/wait.h>
#include <unistd.h>

#include "async.cuh"
#include "atomic.cuh"
#include "bulk.cuh"
#include "tests/testing/harness.h"
#include "lane.cuh"
#include "memory.cuh"
#include "wait.cuh"

using namespace forerun;
using shim::Launch;
using shim::Machine;
using shim::Outcome;

namespace {

constexpr u64 seeds = 64;

struct Io {
    const u32* in;
    u32* out;
    u32 n;
};

Launch with_seed(u64 seed, u32 blocks = 1, u32 threads = 32, size_t shared_bytes = 0) {
    Launch launch;
    launch.blocks = blocks;
    launch.threads = threads;
    launch.shared_bytes = shared_bytes;
    launch.seed = seed;
    return launch;
}

void expect_failure(const Outcome& outcome, const char* words) {
    CHECK(outcome.failure.find(words) != std::string::npos, "expected '%s', got '%s'", words,
          outcome.failure.c_str());
}

// The number of seeds whose result differs from `expected`.
template <typename Kernel>
u32 wrong_over_seeds(Kernel kernel, const std::vector<u32>& in, const std::vector<u32>& expected,
                     u32 threads) {
    u32 wrong = 0;
    for (u64 seed = 0; seed < seeds; ++seed) {
        std::vector<u32> out(expected.size());
        const Outcome outcome = Machine::run(with_seed(seed, 1, threads, 1024), kernel,
                                             Io{in.data(), out.data(), threads});
        CHECK(outcome.ok(), "seed %llu: %s", static_cast<unsigned long long>(seed),
              outcome.failure.c_str());
        wrong += out != expected;
    }
    return wrong;
}

std::vector<u32> numbers(u32 n) {
    std::vector<u32> values(n);
    for (u32 i = 0; i < n; ++i) values[i] = i * 2654435761u + 1;
    return values;
}
std::vector<u32> rotated(const std::vector<u32>& in) {
    std::vector<u32> out(in.begin() + 1, in.end());
    out.push_back(in[0]);
    return out;
}

// Each thread passes its value to the thread below through shared memory.
template <bool SYNC> void pass_on(Io io) {
    u32* shared = reinterpret_cast<u32*>(dynamic_shared());
    const u32 t = thread_in_block();
    store(shared + t, load(io.in + t));
    if (SYNC) block_sync();
    store(io.out + t, load(shared + (t + 1) % io.n));
}

TEST("a race between lanes is found by some seed, and by none once it is mended") {
    const auto in = numbers(64);
    const u32 racy = wrong_over_seeds(pass_on<false>, in, rotated(in), 64);
    CHECK(racy > seeds / 4, "only %u of %llu seeds found it", racy,
          static_cast<unsigned long long>(seeds));
    CHECK(wrong_over_seeds(pass_on<true>, in, rotated(in), 64) == 0, "found where there is none");
}

// A read, a sum and a write, between which others may write.
template <bool ATOMIC> void count_up(Io io) {
    for (u32 i = 0; i < 4; ++i) {
        if (ATOMIC) {
            atomic_add(io.out, 1u);
        } else {
            store(io.out, load(io.out) + 1);
        }
    }
}
void count_up_plainly(Io io) { count_up<false>(io); }
void count_up_atomically(Io io) { count_up<true>(io); }

TEST("an update that is not atomic loses counts, an atomic one does not") {
    CHECK(wrong_over_seeds(count_up_plainly, {0}, {128}, 32) > seeds / 4, "not found");
    CHECK(wrong_over_seeds(count_up_atomically, {0}, {128}, 32) == 0, "an atomic sum is wrong");
}

// A lock by compare-and-swap, also between blocks.
void add_under_lock(Io io) {
    if (lane_in_warp() != 0) return;
    while (atomic_compare_exchange(io.out, 0u, 1u) != 0) {
    }
    store(io.out + 1, load(io.out + 1) + 1);
    store_release(io.out, 0u);
}

TEST("a lock between blocks holds, and spinning for it ends") {
    for (u64 seed = 0; seed < seeds; ++seed) {
        std::vector<u32> out(2);
        Launch launch = with_seed(seed, 8, 64);
        launch.resident = 4;
        const Outcome outcome = Machine::run(launch, add_under_lock, Io{nullptr, out.data(), 0});
        CHECK(outcome.ok() && out[1] == 16, "%u, %s", out[1], outcome.failure.c_str());
    }
}

void spin(Io io) {
    while (load_relaxed(io.out) == 0) {
    }
}

TEST("waiting for a value that never comes is reported as spinning") {
    u32 never = 0;
    Launch launch = with_seed(1);
    launch.turns_max = 10'000;
    expect_failure(Machine::run(launch, spin, Io{nullptr, &never, 0}),
                   "wait for each other in a loop");
}

// Copies 16 bytes per lane through shared memory. N copies of two may still be in flight when it
// reads the first.
template <u32 GROUPS, bool SYNC> void through_copies(Io io) {
    auto* shared = reinterpret_cast<u32*>(dynamic_shared());
    const u32 t = thread_in_block();
    for (u32 half = 0; half < 2; ++half) {
        copy_async<4>(shared + half * 32 + t, io.in + half * 32 + t);
        copy_async_commit();
    }
    copy_async_wait<GROUPS>();
    if (SYNC) warp_sync(all_lanes);
    store(io.out + t, load(shared + (t + 1) % 32));
    copy_async_wait<0>();
}
std::vector<u32> first_half_rotated() {
    auto in = numbers(64);
    in.resize(32);
    return rotated(in);
}

TEST("a missing wait for an asynchronous copy is found by every seed") {
    CHECK(wrong_over_seeds(through_copies<2, true>, numbers(64), first_half_rotated(), 32) == seeds,
          "not found");
    CHECK(wrong_over_seeds(through_copies<1, true>, numbers(64), first_half_rotated(), 32) == 0,
          "found where there is none");
}

TEST("a missing barrier after an asynchronous copy is found by some seed") {
    CHECK(wrong_over_seeds(through_copies<1, false>, numbers(64), first_half_rotated(), 32) >
              seeds / 4,
          "not found");
}

void leaves_copies(Io io) {
    copy_async<4>(dynamic_shared(), io.in);
    copy_async_commit();
}

TEST("leaving with copies in flight is reported") {
    const u32 in = 7;
    expect_failure(Machine::run(with_seed(1, 1, 1, 16), leaves_copies, Io{&in, nullptr, 0}),
                   "has not waited for");
}

// Half of the warp votes, the other half shuffles, both with the mask of all lanes.
void diverges(Io io) {
    if (lane_in_warp() < 16) {
        store(io.out, ballot(all_lanes, true));
    } else {
        store(io.out, shuffle(all_lanes, 1u, 0));
    }
}

TEST("lanes that diverge and name each other are reported, with both places") {
    u32 out = 0;
    const Outcome outcome = Machine::run(with_seed(3), diverges, Io{nullptr, &out, 0});
    expect_failure(outcome, "no lane can continue");
    const bool both = outcome.failure.find("in ballot (") != std::string::npos &&
                      outcome.failure.find("in shuffle (") != std::string::npos;
    const bool named = outcome.failure.find("for lanes 0xffffffff") != std::string::npos;
    CHECK(named, "%s", outcome.failure.c_str());
    CHECK(both || outcome.failure.find("and 24 more") != std::string::npos, "%s",
          outcome.failure.c_str());
}

void two_places(Io io) {
    u32 got;
    if (lane_in_warp() < 16) {
        got = shuffle(all_lanes, lane_in_warp(), 31);
    } else {
        got = shuffle(all_lanes, lane_in_warp(), 31);
    }
    store(io.out, got);
}

TEST("a shuffle from two places in the code is not one shuffle") {
    u32 out = 0;
    expect_failure(Machine::run(with_seed(4), two_places, Io{nullptr, &out, 0}),
                   "no lane can continue");
}

void leaves_early(Io io) {
    if (lane_in_warp() == 7) return;
    store(io.out, shuffle(all_lanes, 1u, 0));
}

TEST("a lane that is named after it has left is reported") {
    for (u64 seed = 0; seed < seeds; ++seed) {
        u32 out = 0;
        const Outcome outcome = Machine::run(with_seed(seed), leaves_early, Io{nullptr, &out, 0});
        CHECK(outcome.failure.find("left the kernel") != std::string::npos, "%s",
              outcome.failure.c_str());
    }
}

void reads_outside(Io io) {
    if (lane_in_warp() < 4) store(io.out, shuffle(0xfu, 1u, 9));
}
void names_others(Io io) {
    if (lane_in_warp() == 4) store(io.out, ballot(0xfu, true));
}

TEST("masks without the caller, and shuffles from outside the mask, are reported") {
    u32 out = 0;
    expect_failure(Machine::run(with_seed(5), reads_outside, Io{nullptr, &out, 0}),
                   "reads lane 9, which lanes 0x0000000f do not include");
    expect_failure(Machine::run(with_seed(5), names_others, Io{nullptr, &out, 0}),
                   "names lanes 0x0000000f and not its caller");
}

// Groups of eight lanes vote and add, each at its own pace: group g makes g + 1 rounds.
void in_groups(Io io) {
    const u32 group = lane_in_warp() / 8;
    const u32 mask = 0xffu << (group * 8);
    u32 sum = lane_in_warp();
    for (u32 turn = 0; turn <= group; ++turn) {
        for (u32 by = 4; by != 0; by /= 2) sum += shuffle_xor(mask, sum, by);
        if (ballot(mask, lane_in_warp() % 2 == 0) != (0x55u << (group * 8))) sum = 0;
    }
    store(io.out + thread_in_block(), sum);
}

TEST("groups of lanes meet independently") {
    std::vector<u32> expected(64);
    for (u32 t = 0; t < 64; ++t) {
        const u32 group = t % 32 / 8;
        u32 sum = 8 * group * 8 + 28;
        for (u32 turn = 0; turn < group; ++turn) sum *= 8;
        expected[t] = sum;
    }
    CHECK(wrong_over_seeds(in_groups, {}, expected, 64) == 0, "wrong sums");
}

void votes(Io io) {
    const u32 lane = lane_in_warp();
    u32 right = ballot(all_lanes, lane % 3 == 0) == 0x49249249u;
    right &= any(all_lanes, lane == 5) && !any(all_lanes, lane == 40);
    right &= shuffle(all_lanes, u64(lane) << 40, 9) == u64(9) << 40;
    right &= shuffle_up(all_lanes, lane, 1) == (lane == 0 ? 0 : lane - 1);
    right &= shuffle_xor(all_lanes, lane, 5) == (lane ^ 5);
    right &= shuffle_in<8>(lane, 3) == lane / 8 * 8 + 3;
    right &= ones(0xf0f0u) == 8 && lowest(0x50u) == 4;
    store(io.out + thread_in_block(), right);
}

TEST("votes and shuffles return what the hardware's do") {
    CHECK(wrong_over_seeds(votes, {}, std::vector<u32>(96, 1), 96) == 0,
          "a lane got something else");
}

// Threads of the second half leave before the barrier. It opens for the remaining ones.
void some_leave(Io io) {
    FORERUN_SHARED(u32, box);
    const u32 t = thread_in_block();
    if (t == 0) store(&box, 42u);
    if (t >= io.n / 2) return;
    block_sync();
    store(io.out + t, load(&box));
}

TEST(
    "a block's barrier opens for the threads that have not left, and the block shares its "
    "variables") {
    std::vector<u32> expected(64, 0);
    for (u32 t = 0; t < 32; ++t) expected[t] = 42;
    CHECK(wrong_over_seeds(some_leave, {}, expected, 64) == 0, "wrong");
}

void uneven_barrier(Io io) {
    if (lane_in_warp() == 0) {
        warp_sync(all_lanes);
    } else {
        block_sync();
    }
    store(io.out, 1u);
}

TEST("a barrier at which some threads are missing is reported") {
    u32 out = 0;
    expect_failure(Machine::run(with_seed(6), uneven_barrier, Io{nullptr, &out, 0}),
                   "in block_sync (");
}

enum Bulk { right, no_wait, no_read_wait, no_expect, unaligned, no_init, left_behind };

// One thread loads 64 bytes into shared memory and stores them again.
template <Bulk MISTAKE> void bulk(Io io) {
    auto* barrier = reinterpret_cast<Barrier*>(dynamic_shared());
    u8* stage = dynamic_shared() + 64;
    if (MISTAKE != no_init) barrier_init(barrier, 1);
    async_fence();
    for (u32 turn = 0; turn < 2; ++turn) {
        if (turn == 1 && MISTAKE != no_read_wait) bulk_wait_read<0>();
        if (MISTAKE != no_expect) barrier_expect(barrier, 64);
        bulk_load(stage,
                  reinterpret_cast<const u8*>(io.in) + turn * 64 + (MISTAKE == unaligned ? 8 : 0),
                  64, barrier);
        if (MISTAKE == left_behind) return;
        if (MISTAKE != no_wait) barrier_wait(barrier, turn);
        bulk_store(io.out + turn * 16, stage, 64);
        bulk_commit();
    }
    bulk_wait<0>();
    if (MISTAKE == no_wait) barrier_wait(barrier, 1);
}
template <Bulk MISTAKE> Outcome run_bulk(u64 seed, bool* as_in = nullptr) {
    alignas(16) u32 in[36], out[32] = {};
    for (u32 i = 0; i < 36; ++i) in[i] = i + 100;
    const Outcome outcome = Machine::run(with_seed(seed, 1, 1, 128), bulk<MISTAKE>, Io{in, out, 0});
    if (as_in != nullptr) *as_in = std::memcmp(in, out, sizeof out) == 0;
    return outcome;
}

TEST("bulk copies move every byte, and each missing step is found") {
    for (u64 seed = 0; seed < seeds; ++seed) {
        bool as_in = false;
        const Outcome outcome = run_bulk<right>(seed, &as_in);
        CHECK(outcome.ok() && as_in, "%s", outcome.failure.c_str());
        run_bulk<no_read_wait>(seed, &as_in);
        CHECK(!as_in, "overwriting shared memory during a read went unnoticed");
        const Outcome early = run_bulk<no_wait>(seed, &as_in);
        CHECK(!early.ok() || !as_in, "storing before the load went unnoticed");
    }
    expect_failure(run_bulk<no_expect>(1), "no lane can continue");
    expect_failure(run_bulk<unaligned>(1), "multiples of 16");
    expect_failure(run_bulk<no_init>(1), "no barrier was initialised");
    expect_failure(run_bulk<left_behind>(1), "in flight to the barrier");
}

void overruns(Io io) { store(dynamic_shared() + io.n, u8(1)); }
void misaligned(Io) { store(reinterpret_cast<u32*>(dynamic_shared() + 2), 1u); }

// Whether the process is ended when a kernel does something forbidden.
bool is_stopped(void (*kernel)(Io), u32 n) {
    const pid_t child = fork();
    if (child == 0) {
        std::fclose(stderr);
        close(2);
        _exit(Machine::run(with_seed(1, 1, 1, 64), kernel, Io{nullptr, nullptr, n}).ok() ? 0 : 2);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return status != 0;
}

TEST("the sanitizers watch the lanes' memory") {
#if defined(FORERUN_ASAN)
    CHECK(!is_stopped(overruns, 63), "stopped inside its shared memory");
    CHECK(is_stopped(overruns, 64), "one byte beyond shared memory went unnoticed");
    CHECK(is_stopped(misaligned, 0), "a misaligned store went unnoticed");
#else
    std::printf("  compiled without sanitizers: not tested\n");
    (void)is_stopped, (void)overruns, (void)misaligned;
#endif
}

void atomics(Io io) {
    atomic_add(io.out, thread_in_block());
    atomic_xor(io.out + 1, 1u << lane_in_warp() % 16);
    atomic_xor(io.out + 2, 1u << thread_in_block() % 31);
    atomic_compare_exchange(io.out + 3, 7u, thread_in_block());
    atomic_compare_exchange(io.out + 3, 6u, 5u);
    store_relaxed(io.out + 4, 9u);
    fence();
    if (load_relaxed(io.out + 4) == 9) atomic_exchange(io.out + 5, 8u);
}

TEST("each atomic does what its name says") {
    std::vector<u32> out = {0, 0, 0, 6, 0, 0};
    CHECK(Machine::run(with_seed(9, 1, 64), atomics, Io{nullptr, out.data(), 0}).ok(),
          "did not end");
    // Of 64 threads, four change each of 16 bits; two change each of 31, and two more the lowest.
    CHECK((out == std::vector<u32>{64 * 63 / 2, 0, 3, 5, 9, 8}), "%u %x %x %u %u %u", out[0],
          out[1], out[2], out[3], out[4], out[5]);
}

void order_of_arrival(Io io) {
    store(io.out + atomic_add(const_cast<u32*>(io.in), 1u),
          block_in_grid() * 64 + thread_in_block());
}

TEST("a seed is one schedule, and seeds differ") {
    std::vector<std::vector<u32>> seen;
    for (u64 seed = 0; seed < 8; ++seed) {
        std::vector<u32> twice[2];
        for (auto& out : twice) {
            u32 next = 0;
            out.resize(256);
            CHECK(Machine::run(with_seed(seed, 4, 64), order_of_arrival, Io{&next, out.data(), 0})
                      .ok(),
                  "did not end");
        }
        CHECK(twice[0] == twice[1], "seed %llu ran two ways",
              static_cast<unsigned long long>(seed));
        seen.push_back(twice[0]);
    }
    u32 different = 0;
    for (u32 i = 1; i < 8; ++i) different += seen[i] != seen[0];
    CHECK(different >= 6, "%u of 7", different);
}

}  // namespace

// Each lane takes one lock and increments a count. With ROUNDS, it follows the rule of wait.cuh.
template <bool ROUNDS> void count_under_lock(Io io) {
    u32* const lock = io.out;
    const auto attempt = [&] {
        const bool locked = atomic_compare_exchange(lock, 0u, 1u) == 0;
        lock_tried(locked);
        if (!locked) return false;
        store_relaxed(io.out + 1, load_relaxed(io.out + 1) + 1);
        fence();
        lock_released();
        store_relaxed(lock, 0u);
        return true;
    };
    if (ROUNDS) {
        attempt_until_done(all_lanes, true, attempt);
    } else {
        while (!attempt()) backoff(0);
    }
}

TEST("lanes that spin beside a lane with the lock are found, and attempts in rounds are not") {
    u32 found = 0;
    for (u64 seed = 0; seed < seeds; ++seed) {
        u32 words[2] = {0, 0};
        const Io io{nullptr, words, 0};
        const Outcome spins = Machine::run(with_seed(seed, 2, 64), count_under_lock<false>, io);
        found += spins.failure.find("tries again to get a lock") != std::string::npos;
        words[0] = words[1] = 0;
        const Outcome rounds = Machine::run(with_seed(seed, 2, 64), count_under_lock<true>, io);
        CHECK(rounds.ok() && words[1] == 128, "%u: %s", words[1], rounds.failure.c_str());
    }
    CHECK(found > 0, "no seed found it");
}

int main(int count, char** arguments) { return forerun::test::run_all(count, arguments); }
