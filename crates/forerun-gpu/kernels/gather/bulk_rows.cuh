// V6: the copy unit moves rows through shared memory; they never pass through registers (Hopper).
//
//   a warp:  32 pairs, one per lane -> runs -> pieces of at most stage_bytes -> a ring of stages
//
//   stage        0      1      2      3      4      5      6      7
//             [store] [store][load ][load ][load ][load ][load ][load ]     the loads of the last `lag` pieces are in
//                ^ being read   ^ the next to be stored      ^ newest       flight, the stores of the two before are being read
//
// A run is one row, or neighbouring pairs of the list whose rows are adjacent in both memories: one
// operation then carries several rows. Lane 0 operates the ring. The other lanes wait for it where
// the next pairs are distributed.
//
// Shared memory of a block: `stages` x (StageHead) per warp, for all warps; then `stages` x
// stage_bytes per warp, for all warps. src/gather/params.rs has the same formula for the host.
#pragma once
#include "../include/bulk.cuh"
#include "row.cuh"
#include "warp_row.cuh"

#if FORERUN_HOPPER

namespace forerun {

constexpr u32 stages = 8;
constexpr u32 lag = 6;

struct alignas(16) StageHead {
    Barrier loaded;
    u64 to;
    u32 bytes;
};
static_assert(sizeof(StageHead) == 32, "src/gather/params.rs relies on it");

// Pieces in the order of their loads: piece i is in stage i % stages.
struct Ring {
    StageHead* head;
    u8* data;
    u32 stage_bytes;
    u32 loaded, stored;  // pieces so far, modulo 2^32, which `stages` divides

    FORERUN_DEVICE explicit Ring(const GatherParams& p)
        : stage_bytes(p.stage_bytes), loaded(0), stored(0) {
        head = reinterpret_cast<StageHead*>(dynamic_shared()) + warp_in_block() * stages;
        data = dynamic_shared() + warps_in_block() * stages * sizeof(StageHead) +
               u64(warp_in_block()) * stages * stage_bytes;
    }

    FORERUN_DEVICE void begin() {
        for (u32 s = 0; s < stages; ++s) barrier_init(&head[s].loaded, 1);
        async_fence();
    }

    FORERUN_DEVICE void copy(u64 from, u64 to, u64 bytes) {
        while (bytes != 0) {
            const u32 piece_bytes = bytes < stage_bytes ? u32(bytes) : stage_bytes;
            copy_piece(from, to, piece_bytes);
            from += piece_bytes;
            to += piece_bytes;
            bytes -= piece_bytes;
        }
    }

    FORERUN_DEVICE void finish() {
        while (stored != loaded) store_oldest();
        bulk_wait<0>();
    }

  private:
    FORERUN_DEVICE void copy_piece(u64 from, u64 to, u32 bytes) {
        if (loaded - stored == lag) store_oldest();
        // The stage's last store belongs to the piece `stages` ago. Later pieces have committed
        // stages - lag groups so far. Once all groups except those have been read, the group of
        // that store has been read too.
        bulk_wait_read<stages - lag>();
        StageHead& stage = head[loaded % stages];
        stage.to = to;
        stage.bytes = bytes;
        barrier_expect(&stage.loaded, bytes);
        bulk_load(data + u64(loaded % stages) * stage_bytes, at<u8>(from), bytes, &stage.loaded);
        ++loaded;
    }

    FORERUN_DEVICE void store_oldest() {
        StageHead& stage = head[stored % stages];
        barrier_wait(&stage.loaded, stored / stages % 2);
        bulk_store(at<u8>(stage.to), data + u64(stored % stages) * stage_bytes, stage.bytes);
        bulk_commit();
        ++stored;
    }
};

// The lanes whose row does not start where the row of the lane below ends.
FORERUN_DEVICE u32 run_starts(const GatherParams& p, const Row& row) {
    const u64 from_below = shuffle_up(all_lanes, row.from, 1);
    const u64 to_below = shuffle_up(all_lanes, row.to, 1);
    const bool copies_below = shuffle_up(all_lanes, u32(row.action), 1) == u32(Action::copy);
    const bool goes_on = lane_in_warp() != 0 && row.action == Action::copy && copies_below &&
                         row.from == from_below + p.row_bytes && row.to == to_below + p.row_bytes;
    return ballot(all_lanes, !goes_on);
}

FORERUN_DEVICE void bulk_rows(const GatherParams& p) {
    const u64 n = pair_count(p);
    const u32 lane = lane_in_warp();
    Walk walk(warp_in_grid(), (n + warp_lanes - 1) / warp_lanes, p.layers);
    if (!walk.more()) return;

    Ring ring(p);
    if (lane == 0) ring.begin();
    for (; walk.more(); walk.advance(warps_in_grid())) {
        const u64 i = walk.item * warp_lanes + lane;
        const Pair pair = i < n ? pair_at(p, walk.layer, i) : pair_of(p, no_pair_words);
        const Row row = row_of(p, layer_of(p, walk.layer), pair, true);
        const u32 starts = run_starts(p, row);
        const u32 copies = ballot(all_lanes, row.action == Action::copy);

        for (u32 left = copies & starts; left != 0; left &= left - 1) {
            const u32 leader = lowest(left);
            const u64 from = shuffle(all_lanes, row.from, leader);
            const u64 to = shuffle(all_lanes, row.to, leader);
            const u32 after = leader == warp_lanes - 1 ? 0 : starts >> (leader + 1);
            const u32 rows = after == 0 ? warp_lanes - leader : lowest(after) + 1;
            if (lane == 0) ring.copy(from, to, rows * p.row_bytes);
        }
        for (u32 left = ballot(all_lanes, row.action == Action::zero); left != 0;
             left &= left - 1) {
            zero_row<16>(p, {0, shuffle(all_lanes, row.to, lowest(left)), Action::zero});
        }
        update_map(p, walk.layer, pair, row.action);
    }
    if (lane == 0) ring.finish();
}

}  // namespace forerun

#endif
