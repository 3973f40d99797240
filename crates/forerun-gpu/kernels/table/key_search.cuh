// The search that lookups and writers share. A warp takes 32 keys and hashes one per lane. A tile
// of lanes compares a row of digests, 16 slots per lane. Each lane then compares the keys behind
// the digests that equal its own key's.
//
//   lane            0  1  2  3  4  5  6  7 | 8 ...          its own key: hash, bucket, slot
//   tile, W = 128   all eight                 | ...         in turn, the row of each lane's key: one
//                                                           aligned request, IN_FLIGHT at a time
//
//   cells           in shared memory, a row for each two keys, a word for each 16 slots:
//                   | marks of the first key's slots, 4 bits of each byte | of the second's, 4 bits |
//
//   match    tiles: digests of up to IN_FLIGHT keys ─ marks of the equal ones ─▶ cells
//   verify   lanes: cells ─▶ the marks of the own key ─ up to four keys behind them ─ compare
//
//   narrow   half a row of 128 digests: the one in which the key's search begins; then the other,
//            for keys that are not found and met no empty slot
//   row      the home's row, then the spill's, for keys whose home has spilled
//
// A search for an absent key reads a stored key only if a digest, one of 254 values, matches by
// chance. Verifying takes the same instructions for 32 keys as for one.
//
// .ci/lib/slots.py counts the instructions that a warp issues per key. `// slots: NAME` at the end
// of a line names the part of a search to which the line, and what it calls, belongs.
#pragma once
#include "bucket.cuh"
#include "marks.cuh"

namespace forerun::table {

constexpr u32 search_warps = 4;    // warps of a block, at most
constexpr u32 narrow_slots = 64;   // of a narrow search at a time
constexpr u32 keys_at_once = 4;    // stored keys that a lane requests at a time

// Whether a search also notes which slots are free, for writers.
enum class Free { ignored, noted };

template <u32 WIDTH, Free FREE> struct SearchCells {
    static constexpr u32 words = WIDTH < warp_lanes ? warp_lanes : WIDTH;
    static constexpr u32 kinds = FREE == Free::noted ? 2 : 1;
    alignas(16) u32 of_warp[search_warps][kinds][words];
};

// Whether the search reads the words of the buckets before their digests, so that a reader can
// detect whether a writer has changed a bucket since then.
enum class Versions { ignored, read };

// IN_FLIGHT is the maximum number of rows that a tile requests at a time.
template <u32 WIDTH, u32 IN_FLIGHT, Free FREE = Free::ignored> class KeySearch {
  public:
    using Cells = SearchCells<WIDTH, FREE>;
    FORERUN_DEVICE KeySearch(const TableOp& op, Cells& cells)
        : op(op), t(op.table), cells(cells.of_warp[warp_in_block()][0]) {}

  protected:
    static constexpr u32 lanes = WIDTH / chunk_slots;
    const TableOp& op;
    const TableState& t;
    u32* const cells;
    // The lane's own key, and the slot where it was found.
    u64 key = 0, slot = no_slot;
    u32 pattern = 0;  // its digest, four times
    u32 word = 0;     // of the bucket that was searched last, if versions are read

    FORERUN_DEVICE u64 key_of(u64 i, bool there) const {
        return there ? load_once(at<u64>(op.keys) + i) : 0;
    }
    // Makes a key the lane's own, and returns its place.
    FORERUN_DEVICE Place take(u64 own_key) {
        key = own_key;
        slot = no_slot;
        const Place place = place_of(t, key);
        pattern = place.digest * 0x01010101u;
        return place;
    }
    // Brings the digests of a key's home, with which its search will begin, into the L2 cache. A
    // request brings at least two sectors.
    FORERUN_DEVICE void prefetch_digests(const Place& place, bool narrow) const {
        const u64 row = place.home * WIDTH;
        prefetch(digests_at(t, row + (narrow ? place.start : 0)));
        if (WIDTH > narrow_slots && !narrow) prefetch(digests_at(t, row + narrow_slots));
    }

    // Whether a writer changed the bucket in which the key was found.
    FORERUN_DEVICE bool has_moved() const {
        if (slot == no_slot) return false;
        const u32 now = load_relaxed(word_at(t, slot / WIDTH));
        return ((now ^ word) & ~(word_spilled | word_pinned)) != 0 || (word & word_locked) != 0;
    }

    // Searches for the keys of the lanes that set `wants`. All lanes of the warp make the call.
    template <Versions VERSIONS>
    FORERUN_DEVICE void search(const Place& place, bool wants, bool narrow) {
        u64 row = place.home * WIDTH;
        bool wanted = wants;
        read_version<VERSIONS>(place.home, wanted);
        // The home, then the spill.
#pragma unroll 1
        for (u32 round = 0; round < t.candidates; ++round) {
            if (WIDTH > narrow_slots && narrow && round == 0) {
                search_halves(row, place.start & narrow_slots, wanted);  // slots: narrow
            } else if (any(all_lanes, wanted)) {
                probe<lanes, false>(row, wanted);  // slots: row
            }
            if (round + 1 == t.candidates) return;
            wanted = wants && slot == no_slot;
            if (wanted) wanted = (load_relaxed(word_at(t, place.home)) & word_spilled) != 0;
            read_version<VERSIONS>(place.spill, wanted);
            row = place.spill * WIDTH;
        }
    }

    FORERUN_DEVICE void search_halves(u64 row, u64 half, bool wanted) {
        if constexpr (WIDTH > narrow_slots) {
#pragma unroll 1
            for (u32 halves = 0; halves < 2 && any(all_lanes, wanted); ++halves) {
                wanted = probe<narrow_slots / chunk_slots, true>(row + half, wanted);
                half ^= narrow_slots;
            }
        }
    }

    // Reads the lane's word before everything that any lane reads later: see bucket.cuh, "read a
    // row".
    template <Versions VERSIONS> FORERUN_DEVICE void read_version(u64 bucket, bool wanted) {
        if constexpr (VERSIONS == Versions::read) {
            if (op.concurrent_writers == 0) return;
            if (wanted) word = load_relaxed(word_at(t, bucket));
            fence();
            warp_sync(all_lanes);
        }
    }

    // Searches the 16 * LANES slots from `first` on for the key of each lane that sets `wanted`.
    // Returns true if the lane's key was wanted and not found and, if EMPTY is set, none of these
    // slots is empty.
    template <u32 LANES, bool EMPTY> FORERUN_DEVICE bool probe(u64 first, bool wanted) {
        const u32 rank = lane_in_warp() % LANES, tile = lane_in_warp() - rank;
        const u32 keys = ballot(all_lanes, wanted) >> tile;  // bit k: that of the tile's lane k
        warp_sync(all_lanes);  // all have read the cells of the search before
        bool is_full = true;
#pragma unroll 1
        for (u32 k = 0; k < LANES; k += IN_FLIGHT)
            is_full &= match<LANES, EMPTY>(first, keys >> k, k, rank, tile);  // slots: some
        // The digests are read before the keys and the words: see bucket.cuh, "publish". Each lane
        // has read some, and its fence counts for all once they have met.
        if (op.concurrent_writers != 0) fence();
        warp_sync(all_lanes);
        verify(first, Marks<LANES>::of(cells, wanted));
        return wanted && slot == no_slot && is_full;
    }

    // Of the row that was searched last: which slots are free, for the lane's own key.
    FORERUN_DEVICE Marks<lanes> free_marks(bool wanted) const {
        static_assert(FREE == Free::noted, "only writers need it");
        return Marks<lanes>::of(cells + Cells::words, wanted);
    }

  private:
    // Matches the tile's keys from k0 on, whose bits are the lowest of `keys`. If the lane's own
    // key is one of them, returns whether none of its slots is empty.
    template <u32 LANES, bool EMPTY>
    FORERUN_DEVICE bool match(u64 first, u32 keys, u32 k0, u32 rank, u32 tile) {
        constexpr u32 some = LANES < IN_FLIGHT ? LANES : IN_FLIGHT;
        static_assert(some == 1 || some % 2 == 0, "two keys share a row of cells");
        Bytes16 chunk[some];
#pragma unroll
        for (u32 k = 0; k < some; ++k) {
            const u64 from = shuffle_in<LANES>(first, k0 + k) | rank * chunk_slots;
            chunk[k] = load_relaxed_if(keys & 1u << k, at<Bytes16>(t.digests + from));
        }
        bool is_full = true;
        u32 marks = 0, free = 0;  // of two keys
#pragma unroll
        for (u32 k = 0; k < some; ++k) {
            const bool wanted = (keys & 1u << k) != 0;
            const u32 equal = marks_of(chunk[k], shuffle_in<LANES>(pattern, k0 + k));
            marks |= (wanted ? equal : 0) >> k % 2 * 4;
            if (FREE == Free::noted && (op.actions & absent_insert) != 0)
                free |= free_marks_of(chunk[k]) >> k % 2 * 4;  // slots: free
            if constexpr (EMPTY) {
                const u32 empty = ballot(all_lanes, has_empty(chunk[k])) >> tile;
                if (rank == k0 + k) is_full = (empty & ((1u << LANES) - 1)) == 0;
            }
            if (some == 1 || k % 2 == 1) {
                u32* const to = cells + Marks<LANES>::row_of(tile + k0 + k) + rank;
                store(to, marks);
                if (FREE == Free::noted) store(to + Cells::words, free);
                marks = free = 0;
            }
        }
        return is_full;
    }

    // Compares the lane's own key with those in its marked slots.
    template <u32 LANES> FORERUN_DEVICE void verify(u64 first, Marks<LANES> marks) {
#pragma unroll 1
        do {
            u64 stored[keys_at_once];
            u32 from[keys_at_once];  // no_mark if there are fewer
#pragma unroll
            for (u32 n = 0; n < keys_at_once; ++n) {
                from[n] = marks.take();
                stored[n] = load_relaxed_if(from[n] != no_mark, key_at(t, first + from[n]));
            }
#pragma unroll
            for (u32 n = 0; n < keys_at_once; ++n) {
                if (from[n] != no_mark && stored[n] == key) slot = first + from[n];
            }
            if (slot != no_slot) marks.clear();
        } while (any(all_lanes, !marks.is_empty()));
    }
};

}  // namespace forerun::table
