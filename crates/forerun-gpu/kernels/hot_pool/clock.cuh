// CLOCK: a hand passes over a table's slots and takes those that were not used since it last came.
//
//   map[position]    its slot, or no_slot; during a launch also is_claimed | i: missing, first asked for as i
//   used[slot]       0: not used since the hand passed; otherwise the time of the last use
//
//   slots    0 1 2 3 4 5 6 7          the hand clears what was used before this launch,
//                ^ hand ->            passes over what this launch uses, and takes what is clear
//
// A launch looks only at the positions' entries and at the slots that the hand passes, so a table
// can have any number of slots. The smallest i claims a position, and missing positions take slots
// in order of i: as for LRU, there is one outcome, which src/hot_pool/twin.rs computes too.
//
// CLOCK is F. J. Corbato's (A Paging Experiment with the Multics System, 1968).
#pragma once
#include "request.cuh"

namespace forerun::hot_pool {

constexpr u32 is_claimed = 1u << 31;

struct Clock {
    u32 *map, *used, *hand, *time;

    FORERUN_DEVICE Clock(const HotPoolParams& p, const Request& r) {
        map = at<u32>(p.map) + r.table * p.map_step;
        used = at<u32>(p.used) + r.table * p.slots;
        hand = at<u32>(p.clocks) + r.table * 2;
        time = hand + 1;
    }
    FORERUN_DEVICE u32 slot_of(u32 position) const {
        const u32 slot = load_relaxed(map + position);
        return slot < is_claimed ? slot : no_slot;
    }
};

// The time of this launch. When the number wraps, all slots are clear again.
FORERUN_DEVICE u32 next_time(const HotPoolParams& p, Clock& clock) {
    const u32 now = load_relaxed(clock.time) + 1;
    if (now == 0) {
        for (u32 slot = thread_in_block(); slot < p.slots; slot += threads_in_block())
            store_relaxed(clock.used + slot, 0u);
    }
    block_sync();
    return now == 0 ? 1 : now;
}

// Marks hits as used, and claims missing positions.
FORERUN_DEVICE void claim_positions(const HotPoolParams& p, const Request& r, Clock& clock,
                                    u32 now) {
    u32 hits = 0;
    for (u32 i = thread_in_block(); i < p.count; i += threads_in_block()) {
        const u32 position = position_of(p, r, i);
        if (!is_searched(r, position)) continue;
        const u32 was = atomic_min(clock.map + position, is_claimed | i);
        if (was < is_claimed) hits += atomic_exchange(clock.used + was, now) != now;
    }
    add_to(p, counter_hits, hits);
    block_sync();
}

// Writes the plan's sources, and in place of its destinations the i of each miss. Returns its
// length.
FORERUN_DEVICE u32 list_misses(const HotPoolParams& p, const Request& r, Clock& clock,
                               BlockState& shared) {
    i64* const sources = at<i64>(p.plan_sources) + r.entry * p.plan_step;
    i32* const destinations = at<i32>(p.plan_destinations) + r.entry * p.plan_step;
    u32 misses = 0;
    for (u32 start = 0; start < p.count; start += threads_in_block()) {
        const u32 i = start + thread_in_block();
        i64 host_row = -1;
        if (i < p.count) {
            const u32 position = position_of(p, r, i);
            if (is_searched(r, position) &&
                load_relaxed(clock.map + position) == (is_claimed | i)) {
                host_row = host_row_of(p, r, position);
                if (host_row < 0) store_relaxed(clock.map + position, no_slot);
            }
        }
        u32 total;
        const u32 m = misses + rank_in_block(shared, host_row >= 0, total);
        if (host_row >= 0) {
            store_global(sources + m, host_row);
            store_global(destinations + m, i32(i));
        }
        misses += total;
    }
    block_sync();
    return misses;
}

// Moves the hand until each miss has a slot. This launch uses at most `count` slots, which are no
// more than there are, so two rounds are enough: the first clears every slot that it leaves.
FORERUN_DEVICE void take_slots(const HotPoolParams& p, const Request& r, Clock& clock,
                               BlockState& shared, u32 misses, u32 now) {
    i32* const keys = keys_of(p, r);
    i32* const destinations = at<i32>(p.plan_destinations) + r.entry * p.plan_step;
    const u32 width = threads_in_block() < p.slots ? threads_in_block() : p.slots;
    u32 hand = load_relaxed(clock.hand), taken = 0;
    for (u64 passed = 0; taken < misses && passed < u64(p.slots) * 2; passed += width) {
        const u32 slot = u32((u64(hand) + thread_in_block()) % p.slots);
        const bool is_passed = thread_in_block() < width;
        const u32 use = is_passed ? load_relaxed(clock.used + slot) : now;
        const u32 wanted = misses - taken;
        u32 total;
        const u32 before = rank_in_block(shared, use == 0, total);
        if (use == 0 && before < wanted) {
            const u32 m = taken + before;
            const u32 position = position_of(p, r, u32(load_global(destinations + m)));
            const i32 old = load_global(keys + slot);
            if (old >= 0) store_relaxed(clock.map + old, no_slot);
            store_global(keys + slot, i32(position));
            store_relaxed(clock.map + position, slot);
            store_relaxed(clock.used + slot, now);
            store_global(destinations + m, row_of_slot(p, r, slot));
            if (before + 1 == wanted) store(&shared.hand, (slot + 1) % p.slots);
        } else if (use != now && before < wanted) {
            store_relaxed(clock.used + slot, 0u);
        }
        block_sync();
        hand = total >= wanted ? load(&shared.hand) : u32((u64(hand) + width) % p.slots);
        taken += total < wanted ? total : wanted;
        block_sync();
    }
    if (thread_in_block() == 0) {
        store_relaxed(clock.hand, hand);
        store_relaxed(clock.time, now);
    }
}

// The work of a request's leader. `publish(misses)` is called when the plan is complete.
template <typename Publish>
FORERUN_DEVICE u32 resolve_clock(const HotPoolParams& p, const Request& r, BlockState& shared,
                                 Publish publish) {
    Clock clock(p, r);
    const u32 now = next_time(p, clock);
    claim_positions(p, r, clock, now);
    const u32 misses = list_misses(p, r, clock, shared);
    take_slots(p, r, clock, shared, misses, now);
    publish(misses);
    write_rows(p, r, [&](u32 position) { return clock.slot_of(position); });
    return misses;
}

}  // namespace forerun::hot_pool
