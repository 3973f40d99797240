// The search that lookups and writers share. A warp takes 32 keys and hashes one per lane. A tile
// of lanes compares a row of digests, 16 slots per lane.
//
//   lane            0  1  2  3  4  5  6  7 | 8 ...          its own key: hash, bucket, slot
//   tile, W = 128   all eight                 | ...         in turn, the row of each lane's key: one
//                                                           aligned request, IN_FLIGHT at a time
//
//   narrow   tiles of two lanes: the sector of the home in which the search begins
//   row      the home's row; after narrow, for keys that are not found and met no empty slot
//            the spill's row, for keys whose home has spilled
//
//   in each: digests of up to IN_FLIGHT keys per tile ─ keys behind equal digests ─ compare ─ the
//   lane that finds a key writes its slot into the cell of the key's lane, in shared memory
//
// A search for an absent key reads a stored key only if a digest, one of 254 values, matches by
// chance.
//
// .ci/lib/slots.py counts the instructions that a warp issues per key. `// slots: NAME` at the end
// of a line names the part of a search to which the line, and what it calls, belongs.
#pragma once
#include "bucket.cuh"

namespace forerun::table {

constexpr u32 search_warps = 4;  // warps of a block, at most
struct SearchCells {
    u32 of_warp[search_warps][warp_lanes];
};

// Whether the search reads the words of the buckets before their digests, so that a reader can
// detect whether a writer has changed a bucket since then.
enum class Versions { ignored, read };

// IN_FLIGHT is the maximum number of rows that a tile requests at a time.
template <u32 WIDTH, u32 IN_FLIGHT> class KeySearch {
  public:
    FORERUN_DEVICE KeySearch(const TableOp& op, u32* cells) : op(op), t(op.table), cells(cells) {}

  protected:
    static constexpr u32 lanes = WIDTH / chunk_slots;
    const TableOp& op;
    const TableState& t;
    u32* const cells;
    // The lane's own key, and the slot where it was found.
    u64 key = 0, slot = no_slot;
    u32 pattern = 0;  // its digest, four times
    u32 word = 0;     // of the bucket that was searched last, if versions are read

    // Makes key i the lane's own, and returns its place.
    FORERUN_DEVICE Place take(u64 i, bool there) {
        key = there ? load_once(at<u64>(op.keys) + i) : 0;
        slot = no_slot;
        const Place place = place_of(t, key);
        pattern = place.digest * 0x01010101u;
        return place;
    }

    // Whether a writer changed the bucket in which the key was found.
    FORERUN_DEVICE bool has_moved() const {
        if (slot == no_slot) return false;
        const u32 now = load_relaxed(word_at(t, slot / WIDTH));
        return (now | word_spilled) != (word | word_spilled) || (word & word_locked) != 0;
    }

    // Searches for the keys of the lanes that set `wants`. All lanes of the warp make the call.
    template <Versions VERSIONS>
    FORERUN_DEVICE void search(const Place& place, bool wants, bool narrow) {
        u64 row = place.home * WIDTH;
        bool wanted = wants;
        read_version<VERSIONS>(place.home, wanted);
        if constexpr (WIDTH > sector_slots) {
            if (narrow) wanted = probe<2, true>(row + place.start, wanted);  // slots: narrow
        }
        // The home, then the spill.
#pragma unroll 1
        for (u32 rounds = t.candidates; rounds != 0; --rounds) {
            if (any(all_lanes, wanted)) probe<lanes, false>(row, wanted);  // slots: row
            wanted = wants && slot == no_slot;
            if (rounds == 2) {
                if (wanted) wanted = (load_relaxed(word_at(t, place.home)) & word_spilled) != 0;
                read_version<VERSIONS>(place.spill, wanted);
            }
            row = place.spill * WIDTH;
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
        // The cells hold the low half of a slot number. Their initial value is that of no searched
        // slot.
        const u32 none = u32(first) ^ 0x80000000u;
        store(cells + lane_in_warp(), none);
        warp_sync(all_lanes);
        bool is_full = true;
#pragma unroll 1
        for (u32 k = 0; k < LANES; k += IN_FLIGHT)
            is_full &= probe_some<LANES, EMPTY>(first, keys >> k, k, rank, tile);  // slots: some
        warp_sync(all_lanes);
        const u32 found = load(cells + lane_in_warp());
        if (wanted && found != none) slot = first + (found - u32(first));
        return wanted && found == none && is_full;
    }

    // Searches for the tile's keys from k0 on, whose bits are the lowest of `keys`. If the lane's
    // own key is one of them, returns whether none of its slots is empty.
    template <u32 LANES, bool EMPTY>
    FORERUN_DEVICE bool probe_some(u64 first, u32 keys, u32 k0, u32 rank, u32 tile) {
        constexpr u32 some = LANES < IN_FLIGHT ? LANES : IN_FLIGHT;
        Bytes16 chunk[some];
        u64 from[some];  // the first slot of the lane's chunk, then the slot to compare
#pragma unroll
        for (u32 k = 0; k < some; ++k) {
            from[k] = shuffle_in<LANES>(first, k0 + k) | rank * chunk_slots;
            const auto* const digests = at<Bytes16>(t.digests + from[k]);
            chunk[k] = load_relaxed_if(keys & 1u << k, digests);
        }
        // The digests are read before the keys and the words: see bucket.cuh, "publish".
        if (op.concurrent_writers != 0) fence();
        u32 same[some];
        u64 candidate[some];
        bool is_full = true;
#pragma unroll
        for (u32 k = 0; k < some; ++k) {
            const u32 marks = marks_of(chunk[k], shuffle_in<LANES>(pattern, k0 + k));
            same[k] = (keys & 1u << k) != 0 ? marks : 0;
            from[k] |= slot_of_mark(same[k]);
            candidate[k] = load_relaxed_if(same[k], key_at(t, from[k]));
            if constexpr (EMPTY) {
                const u32 empty = ballot(all_lanes, has_empty(chunk[k])) >> tile;
                if (rank == k0 + k) is_full = (empty & ((1u << LANES) - 1)) == 0;
            }
        }
        u64 sought[some];
        u32 left = 0;
#pragma unroll
        for (u32 k = 0; k < some; ++k) {
            sought[k] = shuffle_in<LANES>(key, k0 + k);
            const bool found = same[k] != 0 && candidate[k] == sought[k];
            if (found) store(cells + tile + k0 + k, u32(from[k]));
            same[k] = found ? 0 : without_mark(same[k]);
            left |= same[k];
        }
        // A lane's second and further equal digests of a key, for two keys at a time.
        if (any(all_lanes, left != 0)) {  // slots: second
#pragma unroll
            for (u32 k = 0; k < some; k += 2) {
                const u32 k1 = k + 1 < some ? k + 1 : k;
                u32 marks = same[k] | (k1 == k ? 0 : same[k1] >> 4);  // slots: second
                for (; marks != 0; marks = without_mark(marks)) {  // slots: second
                    const bool is_k1 = (highest(marks) & 4) == 0;  // slots: second
                    const u64 chunk_at = is_k1 ? from[k1] : from[k];  // slots: second
                    const u64 key_sought = is_k1 ? sought[k1] : sought[k];  // slots: second
                    const u64 at = (chunk_at & ~u64(15)) | slot_of_mark(marks);  // slots: second
                    if (load_relaxed(key_at(t, at)) == key_sought)  // slots: second
                        store(cells + tile + k0 + (is_k1 ? k1 : k), u32(at));  // slots: second
                }
            }
        }
        return is_full;
    }
};

}  // namespace forerun::table
