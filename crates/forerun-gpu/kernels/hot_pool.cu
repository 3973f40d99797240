// The hot pool's kernels, one per line of hot_pool.list. Each launch serves a batch of requests.
#include "hot_pool/clock.cuh"
#include "hot_pool/fetch.cuh"
#include "hot_pool/lru.cuh"

namespace forerun::hot_pool {

// Resolves positions to rows, and fetches the rows that are missing. `team` blocks per request.
template <u32 POLICY> FORERUN_DEVICE void resolve(const HotPoolParams& p) {
    FORERUN_SHARED(BlockState, shared);
    const u32 entry = block_in_grid() / p.team;
    if (entry >= batch_of(p)) return;  // the batch of a graph is padded
    const u32 member = join(p, entry, shared);
    u32 misses = 0;
    if (member != 0) {
        misses = await_plan(p, entry, shared);
    } else {
        const Request r = request_of(p, entry);
        const auto publish = [&](u32 misses) { publish_plan(p, entry, misses); };
        if (!r.is_known || r.is_in_order) {
            publish(0);
            write_rows(p, r, [](u32) { return no_slot; });
        } else if constexpr (POLICY == policy_lru) {
            misses = resolve_lru(p, r, shared, publish);
        } else {
            misses = resolve_clock(p, r, shared, publish);
        }
    }
    copy_by_unit(p, entry, misses, 0, u64(member) * warps_in_block() + warp_in_block(),
                 u64(p.team) * warps_in_block());
    leave(p, entry);
}

// Fetches the rows of recorded plans in each of the layers: those that share the positions of the
// layer that was resolved. Any grid.
FORERUN_DEVICE void replay(const HotPoolParams& p) {
    const u32 batch = batch_of(p);
    for (u32 layer = 0; layer < p.layers; ++layer) {
        for (u32 entry = 0; entry < batch; ++entry) {
            const i32 given = load_global(at<i32>(p.plan_counts) + entry);
            const u32 misses = given < 0 ? 0 : u32(given) < p.count ? u32(given) : p.count;
            copy_by_unit(p, entry, misses, layer, warp_in_grid(), warps_in_grid());
        }
    }
}

// Empties the tables of the requests in every layer. A block per layer and request.
FORERUN_DEVICE void clear(const HotPoolParams& p) {
    const u32 layer = block_in_grid() / p.batch, entry = block_in_grid() % p.batch;
    Request r = request_of(p, entry);
    if (entry >= batch_of(p) || !r.is_known || layer >= p.layers) return;
    r.table += u64(layer) * p.tables;
    const u32 first = thread_in_block(), step = threads_in_block();
    for (u32 slot = first; slot < p.slots; slot += step) {
        store_global(keys_of(p, r) + slot, -1);
        if (p.policy == policy_lru) {
            store_global(at<i16>(p.order) + r.table * p.order_step + slot, i16(slot));
        } else {
            store_global(at<u32>(p.used) + r.table * p.slots + slot, 0u);
        }
    }
    if (p.policy == policy_lru) return;
    for (u32 position = first; position < p.position_limit; position += step)
        store_global(at<u32>(p.map) + r.table * p.map_step + position, no_slot);
    for (u32 word = first; word < 2; word += step)
        store_global(at<u32>(p.clocks) + r.table * 2 + word, 0u);
}

template <u32 KIND> FORERUN_DEVICE void run(const HotPoolParams& p) {
    if constexpr (KIND == 1) {
        resolve<policy_lru>(p);
    } else if constexpr (KIND == 2) {
        resolve<policy_clock>(p);
    } else if constexpr (KIND == 3) {
        replay(p);
    } else {
        static_assert(KIND == 4, "kinds are 1 to 4");
        clear(p);
    }
}

}  // namespace forerun::hot_pool

#define KERNEL(name, kind, threads, registers)                                                    \
    FORERUN_KERNEL_WITHIN(threads, registers) name(const forerun::hot_pool::HotPoolParams p) {    \
        forerun::hot_pool::run<kind>(p);                                                          \
    }
#include "hot_pool.list"
#undef KERNEL
