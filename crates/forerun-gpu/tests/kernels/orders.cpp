// The shim's memory orders: stores land late (shim/held_stores.h), and loads return older values
// (shim/stale_loads.h). An order that a kernel lacks shows in some schedule.
#include "atomic.cuh"
#include "lane.cuh"
#include "tests/testing/harness.h"
#include "wait.cuh"

using namespace forerun;
using shim::Launch;
using shim::Machine;
using shim::Outcome;

namespace {

constexpr u64 seeds = 64;

Launch with_seed(u64 seed, u32 blocks) {
    Launch launch;
    launch.blocks = blocks;
    launch.threads = 32;
    launch.seed = seed;
    return launch;
}

// Block 0 sends two words to block 1. Lane 1 stores one of them.
enum class Order { none, fence, release, fence_without_sync, no_acquire };
template <Order ORDER> void send(u32* out) {
    const u32 lane = thread_in_block();
    if (block_in_grid() == 0) {
        if (lane == 1) store_global(out + 1, 7u);
        if (ORDER != Order::fence_without_sync) warp_sync(all_lanes);
        if (lane != 0) return;
        store_global(out, 5u);
        if (ORDER != Order::none && ORDER != Order::release) fence();
        if (ORDER == Order::release) {
            store_release(out + 32, 1u);
        } else {
            store_relaxed(out + 32, 1u);
        }
        // Other work, so that the lane does not end.
        for (u32 i = 0; i < 40; ++i) store_relaxed(out + 48, i);
    } else if (lane == 0) {
        while (load_relaxed(out + 32) == 0) backoff(0);
        if (ORDER != Order::no_acquire) fence();
        out[64] = load_relaxed(out) + load_relaxed(out + 1);
    }
}
template <Order ORDER> u32 wrong_sends(u32 loads_stale = 0) {
    u32 wrong = 0;
    for (u64 seed = 0; seed < seeds; ++seed) {
        u32 words[65] = {};
        Launch launch = with_seed(seed, 2);
        launch.stores_held = 8;
        launch.loads_stale = loads_stale;
        const Outcome outcome = Machine::run(launch, send<ORDER>, +words);
        CHECK(outcome.ok(), "%s", outcome.failure.c_str());
        wrong += words[64] != 12;
    }
    return wrong;
}

TEST("stores land late, and a missing fence, release or warp_sync shows") {
    CHECK(wrong_sends<Order::none>() > 0, "no seed shows the missing fence");
    // Lane 1 soon ends, which lands its store. With some seed, the failure comes first.
    CHECK(wrong_sends<Order::fence_without_sync>() > 0, "no seed shows the missing warp_sync");
    CHECK(wrong_sends<Order::fence>() == 0, "a fence orders the stores before it");
    CHECK(wrong_sends<Order::release>() == 0, "a release orders the stores before it");
}

TEST("loads return older values, and a missing acquire shows") {
    CHECK(wrong_sends<Order::no_acquire>() == 0, "found in loads that are made in order");
    CHECK(wrong_sends<Order::no_acquire>(64) > 0, "no seed shows the missing acquire");
    CHECK(wrong_sends<Order::fence>(64) == 0, "a fence orders the loads after it");
    CHECK(wrong_sends<Order::release>(64) == 0, "a fence acquires what a release published");
}

// Block 0 counts in one word. Block 1 reads it, and counts the values that are older than the one
// that it has read before, and those that are older than the one in memory.
void follow(u32* out) {
    if (lane_in_warp() != 0) return;
    if (block_in_grid() == 0) {
        for (u32 n = 1; n <= 50; ++n) store_relaxed(out, n);
        return;
    }
    for (u32 n = 0, last = 0; n < 50; ++n) {
        const u32 newest = out[0], seen = load_relaxed(out);
        out[1] += seen < last ? 1 : 0;
        out[2] += seen < newest ? 1 : 0;
        last = seen;
    }
}

TEST("a place is not read older than before") {
    u32 older = 0;
    for (u64 seed = 0; seed < seeds; ++seed) {
        u32 words[3] = {};
        Launch launch = with_seed(seed, 2);
        launch.stores_held = u32(seed % 5);
        launch.loads_stale = 64;
        CHECK(Machine::run(launch, follow, +words).ok(), "it ends");
        CHECK(words[1] == 0, "%u values older than before", words[1]);
        older += words[2];
    }
    CHECK(older > 0, "nothing was tested");
}

// Block 0 publishes a word. Block 1 passes the flag on without a fence, block 2 reads the word.
template <bool EXCHANGE> void pass_flag_on(u32* out) {
    if (lane_in_warp() != 0) return;
    const u32 block = block_in_grid();
    if (block == 0) {
        store_relaxed(out, 5u);
        store_release(out + 32, 1u);
        return;
    }
    while (load_relaxed(out + 32) != block) backoff(0);
    if (block == 2) {
        fence();
        out[64] = load_relaxed(out);
    } else if (EXCHANGE) {
        atomic_exchange(out + 32, 2u);
    } else {
        store_relaxed(out + 32, 2u);
    }
}
template <bool EXCHANGE> u32 words_missed() {
    u32 missed = 0;
    for (u64 seed = 0; seed < seeds; ++seed) {
        u32 words[65] = {};
        Launch launch = with_seed(seed, 3);
        launch.resident = 3;
        launch.loads_stale = 64;
        const Outcome outcome = Machine::run(launch, pass_flag_on<EXCHANGE>, +words);
        CHECK(outcome.ok(), "%s", outcome.failure.c_str());
        missed += words[64] != 5;
    }
    return missed;
}

TEST("an exchange passes on what the value before it published, and a store does not") {
    CHECK(words_missed<true>() == 0, "an exchange continues the release sequence");
    CHECK(words_missed<false>() > 0, "no seed shows that a store ends it");
}

TEST("a lane reads its own stores before they land, and an atomic takes place after them") {
    struct Own {
        static void run(u32* out) {
            u32* const word = out + thread_in_block();
            store_relaxed(word, 3u);
            store_global(reinterpret_cast<u8*>(word) + 1, u8(1));
            const u32 seen = load_relaxed(word);
            const u32 was = atomic_add(word, 1u);
            store_relaxed(word, seen == 0x103 && was == 0x103 ? load_relaxed(word) : 0u);
        }
    };
    for (u64 seed = 0; seed < seeds; ++seed) {
        u32 words[32] = {};
        Launch launch = with_seed(seed, 1);
        launch.stores_held = 1 + u32(seed % 9);
        CHECK(Machine::run(launch, Own::run, +words).ok(), "it ends");
        for (u32 word : words) CHECK(word == 0x104, "%x", word);
    }
}

}  // namespace
