// Exact LRU: a table's slots in order of use.
//
//   shared memory   | keys: u32 | first: u32 |     hash table of the request's different positions
//                   | order: u16 per slot    |     untouched slots from the front, hits from the back
//
//   first[h]        the first i with this position; then, with the bit `has_slot`, its slot
//
//   1  positions enter the hash table, and the smallest i remains
//   2  the slots, oldest first: those whose position is in the hash table are hits
//   3  each missing position, in order of i, takes the next untouched slot; without one, as in a
//      table that has a position twice, it is absent
//   4  the new order: untouched, loaded, hits, each as they were
//
// The order is that of SGLang's HiSparse kernel, so both can use the same tables. Each step has one
// outcome, whatever the schedule, so the CPU's twin (src/hot_pool/twin.rs) computes the same bytes.
#pragma once
#include "request.cuh"

namespace forerun::hot_pool {

constexpr u32 no_key = ~0u;
constexpr u32 has_slot = 1u << 31;  // in `first`; ~0 has it too: the position is absent

struct Search {
    u32 *keys, *first;
    u16* order;
    u32 bits;

    FORERUN_DEVICE explicit Search(const HotPoolParams& p) : bits(p.hash_bits) {
        keys = reinterpret_cast<u32*>(dynamic_shared());
        first = keys + entries();
        order = reinterpret_cast<u16*>(first + entries());
    }
    FORERUN_DEVICE u32 entries() const { return 1u << bits; }
    // Multiplicative hashing: the upper bits depend on every bit of the position.
    FORERUN_DEVICE u32 home(u32 position) const { return position * 2654435769u >> (32 - bits); }
    FORERUN_DEVICE u32 next(u32 h) const { return (h + 1) & (entries() - 1); }

    // At least half of the entries stay free, so both searches end.
    FORERUN_DEVICE void insert(u32 position, u32 i) {
        u32 h = home(position);
        for (;; h = next(h)) {
            const u32 was = atomic_compare_exchange(keys + h, no_key, position);
            if (was == no_key || was == position) break;
        }
        atomic_min(first + h, i);
    }
    // The entry of a position, or no_key.
    FORERUN_DEVICE u32 find(u32 position) const {
        for (u32 h = home(position);; h = next(h)) {
            const u32 key = load(keys + h);
            if (key == position) return h;
            if (key == no_key) return no_key;
        }
    }
    FORERUN_DEVICE u32 slot_of(u32 position) const {
        const u32 h = find(position);  // no_key if the array has changed since
        const u32 slot = h == no_key ? no_slot : load(first + h);
        return slot == no_slot ? no_slot : slot & ~has_slot;
    }
};

FORERUN_DEVICE void enter_positions(const HotPoolParams& p, const Request& r, Search& search) {
    for (u32 h = thread_in_block(); h < search.entries(); h += threads_in_block()) {
        store(search.keys + h, no_key);
        store(search.first + h, no_key);
    }
    block_sync();
    for (u32 i = thread_in_block(); i < p.count; i += threads_in_block()) {
        const u32 position = position_of(p, r, i);
        if (is_searched(r, position)) search.insert(position, i);
    }
    block_sync();
}

FORERUN_DEVICE i16* order_of(const HotPoolParams& p, const Request& r) {
    return at<i16>(p.order) + r.table * p.order_step;
}

// Divides the slots into hits and others, and returns the number of hits.
FORERUN_DEVICE u32 divide_slots(const HotPoolParams& p, const Request& r, Search& search,
                                BlockState& shared) {
    const i32* const keys = keys_of(p, r);
    const i16* const order = order_of(p, r);
    u32 hits = 0;
    for (u32 start = 0; start < p.slots; start += threads_in_block()) {
        const u32 place = start + thread_in_block();
        u32 slot = 0, h = no_key;
        if (place < p.slots) {
            slot = u32(u16(load_global(order + place)));
            // Whatever the order holds, nothing outside the table is accessed.
            if (slot >= p.slots) slot = p.slots - 1;
            const i32 key = load_global(keys + slot);
            if (key >= 0) h = search.find(u32(key));
            if (h != no_key) store(search.first + h, has_slot | slot);
        }
        u32 total;
        const u32 before = hits + rank_in_block(shared, h != no_key, total);
        if (h != no_key) {
            store(search.order + (p.slots - 1 - before), u16(slot));
        } else if (place < p.slots) {
            store(search.order + (place - before), u16(slot));
        }
        hits += total;
    }
    block_sync();
    return hits;
}

// Gives each missing position a slot, writes the plan, and returns its length.
FORERUN_DEVICE u32 assign_slots(const HotPoolParams& p, const Request& r, Search& search,
                                BlockState& shared, u32 others) {
    i32* const keys = keys_of(p, r);
    i64* const sources = at<i64>(p.plan_sources) + r.entry * p.plan_step;
    i32* const destinations = at<i32>(p.plan_destinations) + r.entry * p.plan_step;
    u32 misses = 0;
    for (u32 start = 0; start < p.count; start += threads_in_block()) {
        const u32 i = start + thread_in_block();
        u32 position = 0, h = no_key;
        i64 host_row = -1;
        bool is_first = false;
        if (i < p.count) {
            position = position_of(p, r, i);
            if (is_searched(r, position)) {
                h = search.find(position);
                is_first = h != no_key && load(search.first + h) == i;
            }
            if (is_first) host_row = host_row_of(p, r, position);
        }
        u32 total;
        const u32 m = misses + rank_in_block(shared, host_row >= 0, total);
        if (host_row >= 0 && m < others) {
            const u32 slot = load(search.order + m);
            store(search.first + h, has_slot | slot);
            store_global(keys + slot, i32(position));
            store_global(sources + m, host_row);
            store_global(destinations + m, row_of_slot(p, r, slot));
        } else if (is_first) {
            store(search.first + h, no_slot);
        }
        misses = misses + total < others ? misses + total : others;
        block_sync();
    }
    return misses;
}

FORERUN_DEVICE void write_order(const HotPoolParams& p, const Request& r, const Search& search,
                                u32 hits, u32 misses) {
    i16* const order = order_of(p, r);
    const u32 others = p.slots - hits, kept = others - misses;
    for (u32 i = thread_in_block(); i < p.slots; i += threads_in_block()) {
        const u32 from = i < kept ? misses + i : i < others ? i - kept : p.slots - 1 - (i - others);
        store_global(order + i, i16(load(search.order + from)));
    }
}

// The work of a request's leader. `publish(misses)` is called when the plan is complete.
template <typename Publish>
FORERUN_DEVICE u32 resolve_lru(const HotPoolParams& p, const Request& r, BlockState& shared,
                               Publish publish) {
    Search search(p);
    enter_positions(p, r, search);
    const u32 hits = divide_slots(p, r, search, shared);
    const u32 misses = assign_slots(p, r, search, shared, p.slots - hits);
    publish(misses);
    write_rows(p, r, [&](u32 position) { return search.slot_of(position); });
    write_order(p, r, search, hits, misses);
    if (thread_in_block() == 0) add_to(p, counter_hits, hits);
    return misses;
}

}  // namespace forerun::hot_pool
