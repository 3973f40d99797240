// Finds the rows of bags of keys, dequantizes them and sums each bag. A warp takes a bag, 32 keys
// at a time: it searches for them as in key_search.cuh, and then all lanes add their rows, in the
// order of the keys.
//
//   a bag's keys   k0 ... k31 | k32 ...        one per lane: its slot, row address, weight, scale, bias
//
//   a row, in words of four bytes, each of 1, 2 or 4 values:
//     turn         | 0: lane 0, 1 ... 31 | 1: lane 0, 1 ... 31 | ...        a line of 128 bytes per turn
//     part         | up to eight values per lane, whose sums are in registers | next part ...
//
// The words of several rows are loaded before the first is added. Rows of more than one part have
// their sums in memory (`op.sums`, or the output if it is in f32), and each part's are loaded into
// registers and stored again for every 32 keys.
//
// Sums are rounded as forerun_core::pooling defines: the same bits as on a CPU.
//
// While writers run, the rows of 32 keys count only if no bucket's word has changed since before
// its digests were read. If one has, the bag begins again under locks: the first keys of those that
// are left, up to one that another warp has locked, are searched and added, then the next.
#pragma once
#include "../include/float.cuh"
#include "find_slots.cuh"

namespace forerun::table {

constexpr u32 lane_values = 8;  // of a part
constexpr u32 part_values = lane_values * warp_lanes;

// The values of a word, and how they are dequantized.
template <u32 FORMAT> struct WordOf {
    static constexpr u32 values = FORMAT == format_f32 ? 1 : FORMAT <= format_bf16 ? 2 : 4;
    static constexpr u32 turns = lane_values / values;

    FORERUN_DEVICE static float value(u32 word, u32 nth, float scale, float bias) {
        if constexpr (FORMAT == format_f32) {
            return float_of(word);
        } else if constexpr (FORMAT == format_f16) {
            return widen_f16(u16(word >> nth * 16));
        } else if constexpr (FORMAT == format_bf16) {
            return widen_bf16(u16(word >> nth * 16));
        } else if constexpr (FORMAT == format_qint8) {
            return product(float(i32(word << (24 - nth * 8)) >> 24), scale);
        } else {
            return sum(product(float(word >> nth * 8 & 0xff), scale), bias);
        }
    }
};

template <u32 WIDTH> class Pooler : KeySearch<WIDTH, 2> {
  public:
    using typename KeySearch<WIDTH, 2>::Cells;
    FORERUN_DEVICE Pooler(const TableOp& op, Cells& cells) : Search(op, cells) {
        const u32 format = op.row_format;
        log_values = format == format_f32 ? 0 : format <= format_bf16 ? 1 : 2;
        const u32 parameters = format == format_qint8 ? 4 : format == format_quint8 ? 8 : 0;
        dim = u32(t.row_bytes - parameters) >> (2 - log_values);
    }

    FORERUN_DEVICE void run() {
        // One answer per warp, even if writers change the size during the lookup.
        const bool narrow =
            WIDTH > narrow_slots && shuffle(all_lanes, u32(is_narrow(op)), 0) != 0;
        count = shuffle(all_lanes, keys_in(op), 0);
#pragma unroll 1
        for (bag = warp_in_grid(); bag < op.bags; bag += warps_in_grid()) {
#pragma unroll 1
            for (bool locks = false; !pool(narrow, locks);) locks = true;
        }
    }

  private:
    using Search = KeySearch<WIDTH, 2>;
    using Search::op;
    using Search::slot;
    using Search::t;

    u32 dim = 0, log_values = 0;  // of a row; of a word
    u64 count = 0;                // keys of the batch
    u64 bag = 0;
    u32 found = 0;
    float sums[lane_values] = {};  // of one part
    // Of the lane's own key.
    float weight = 0;

    FORERUN_DEVICE bool in_parts() const { return dim > part_values; }

    // An offset of the bags, but never beyond the keys.
    FORERUN_DEVICE u64 offset(u64 at_bag) const {
        const u64 given =
            shuffle(all_lanes, load_global(at<u64>(op.offsets) + at_bag), 0);
        return given < count ? given : count;
    }

    // Returns false if a writer changed a row meanwhile, which it cannot do under locks.
    FORERUN_DEVICE bool pool(bool narrow, bool locks) {
        const u64 first = offset(bag), end = offset(bag + 1);
        float divisor = end > first ? float(end - first) : 0;
        if (op.weights != 0) divisor = 0;
        found = 0;
#pragma unroll
        for (u32 v = 0; v < lane_values; ++v) sums[v] = 0;
        if (in_parts()) {
            for (u32 part = 0; part < dim; part += part_values) store_sums(part);
        }
        bool moved = false;
#pragma unroll 1
        for (u64 from = first; from < end && !moved; from += warp_lanes) {
            const u64 i = from + lane_in_warp();
            const bool there = i < end;
            const Place place = this->take(this->key_of(i, there));
            weight = there ? 1 : 0;
            if (op.weights != 0) {
                if (there) weight = float_of(load_global(at<u32>(op.weights) + i));
                if (op.pooling == pooling_mean) {
#pragma unroll 1
                    for (u32 k = 0; k < warp_lanes; ++k)
                        divisor = sum(divisor, shuffle(all_lanes, weight, k));
                }
            }
            attempt_together(there, [&](bool pending, u32) {
                return attempt(place, pending, narrow, locks, moved);
            });
        }
        if (!moved) give(divisor);
        return !moved;
    }

    // Adds the rows of pending keys. Returns whether the lane's key is done.
    FORERUN_DEVICE bool attempt(const Place& place, bool pending, bool narrow, bool locks,
                                bool& moved) {
        bool mine = pending;
        HeldWords words;
        if (locks) {
            mine = try_lock_in_order(t, pending, place, words);
            warp_sync(all_lanes);  // the locks' fences count for all lanes
        }
        slot = no_slot;
        this->template search<Versions::read>(place, mine, narrow && !locks);
        add_rows();
        if (op.concurrent_writers == 0) return true;
        fence();
        warp_sync(all_lanes);  // all lanes have read their parts of the rows
        if (!locks) {
            moved = any(all_lanes, this->has_moved());
            return true;
        }
        if (mine) unlock_candidates(t, place, words);
        return mine;
    }

    // Adds the rows that the lanes have found.
    FORERUN_DEVICE void add_rows() {
        const u64 row = slot == no_slot ? 0 : row_address(t, slot);
        const u32 rows = ballot(all_lanes, row != 0);
        found += ones(rows);
        if (rows == 0) return;
        float scale = 1, bias = 0;
        if (row != 0 && op.row_format >= format_qint8) scale = parameter(row, dim);
        if (row != 0 && op.row_format == format_quint8) bias = parameter(row, dim + 4);
        for (u32 part = 0; part < dim; part += part_values) {
            if (in_parts()) load_sums(part);
            switch (op.row_format) {
                case format_f32:
                    add_part<format_f32>(rows, row, part, scale, bias);  // slots: f32
                    break;
                case format_f16:
                    add_part<format_f16>(rows, row, part, scale, bias);  // slots: formats
                    break;
                case format_bf16:
                    add_part<format_bf16>(rows, row, part, scale, bias);  // slots: formats
                    break;
                case format_qint8:
                    add_part<format_qint8>(rows, row, part, scale, bias);  // slots: formats
                    break;
                default:
                    add_part<format_quint8>(rows, row, part, scale, bias);  // slots: formats
            }
            if (in_parts()) store_sums(part);
        }
    }

    // A float in a row, at any byte.
    FORERUN_DEVICE static float parameter(u64 row, u32 byte) {
        const u32* const words = at<u32>(row) + byte / 4;
        const u32 shift = byte % 4 * 8;
        u32 bits = load_relaxed(words) >> shift;
        if (shift != 0) bits |= load_relaxed(words + 1) << (32 - shift);
        return float_of(bits);
    }

    template <u32 FORMAT>
    FORERUN_DEVICE void add_part(u32 rows, u64 row, u32 part, float scale, float bias) {
        constexpr u32 turns = WordOf<FORMAT>::turns;
        constexpr u32 turn_values = WordOf<FORMAT>::values * warp_lanes;
        const u32 values = dim - part;
        if (values <= turn_values)
            return add<FORMAT, 1>(rows, row, part, scale, bias);  // slots: rows
        if constexpr (turns > 2) {
            if (values <= turn_values * 2)
                return add<FORMAT, 2>(rows, row, part, scale, bias);  // slots: longer
        }
        if constexpr (turns > 4) {
            if (values <= turn_values * 4)
                return add<FORMAT, 4>(rows, row, part, scale, bias);  // slots: longer
        }
        add<FORMAT, turns>(rows, row, part, scale, bias);  // slots: longer
    }

    // Adds a part of each row, in the order of the lanes whose bits are in `rows`.
    template <u32 FORMAT, u32 TURNS>
    FORERUN_DEVICE void add(u32 rows, u64 row, u32 part, float scale, float bias) {
        using Word = WordOf<FORMAT>;
        constexpr u32 at_once = TURNS == 8 ? 2 : 8 / TURNS;
        const u32 first = part / Word::values + lane_in_warp();
        const u32 words = (dim + Word::values - 1) / Word::values;
#pragma unroll 1
        for (u32 left = rows; left != 0;) {
            u32 word[at_once][TURNS], who[at_once];
            bool is_row[at_once];
#pragma unroll
            for (u32 k = 0; k < at_once; ++k) {
                is_row[k] = left != 0;
                who[k] = left != 0 ? lowest(left) : 0;
                left &= left - 1;
                const auto* const from = at<u32>(shuffle(all_lanes, row, who[k])) + first;
#pragma unroll
                for (u32 turn = 0; turn < TURNS; ++turn) {
                    const bool wanted = is_row[k] && first + turn * warp_lanes < words;
                    word[k][turn] = load_relaxed_or_zero(wanted, from + turn * warp_lanes);
                }
            }
#pragma unroll
            for (u32 k = 0; k < at_once; ++k) {
                if (!is_row[k]) continue;  // the same for all lanes
                const float by = shuffle(all_lanes, weight, who[k]);
                const float row_scale =
                    FORMAT >= format_qint8 ? shuffle(all_lanes, scale, who[k]) : 1;
                const float row_bias =
                    FORMAT == format_quint8 ? shuffle(all_lanes, bias, who[k]) : 0;
#pragma unroll
                for (u32 turn = 0; turn < TURNS; ++turn) {
#pragma unroll
                    for (u32 nth = 0; nth < Word::values; ++nth) {
                        float& to = sums[turn * Word::values + nth];
                        to = sum(to,
                                 product(Word::value(word[k][turn], nth, row_scale, row_bias), by));
                    }
                }
            }
        }
    }

    // The position in the row of the lane's value v of a part.
    FORERUN_DEVICE u32 position(u32 part, u32 v) const {
        const u32 turn = v >> log_values, nth = v & ((1u << log_values) - 1);
        return part + ((turn * warp_lanes + lane_in_warp()) << log_values) + nth;
    }
    FORERUN_DEVICE u32* sum_at(u32 value) const {
        return at<u32>(op.sums != 0 ? op.sums : op.rows_out) + bag * dim + value;
    }
    // Only this lane accesses its sums in memory.
    FORERUN_DEVICE void load_sums(u32 part) {
#pragma unroll
        for (u32 v = 0; v < lane_values; ++v) {
            const u32 value = position(part, v);
            if (value < dim) sums[v] = float_of(load_global(sum_at(value)));
        }
    }
    FORERUN_DEVICE void store_sums(u32 part) const {
#pragma unroll
        for (u32 v = 0; v < lane_values; ++v) {
            const u32 value = position(part, v);
            if (value < dim) store_global(sum_at(value), bits_of(sums[v]));
        }
    }

    // Outputs the bag's result.
    FORERUN_DEVICE void give(float divisor) {
        for (u32 part = 0; part < dim; part += part_values) {
            if (in_parts()) load_sums(part);
#pragma unroll
            for (u32 v = 0; v < lane_values; ++v) {
                const u32 value = position(part, v);
                float result = sums[v];
                if (op.pooling == pooling_mean)
                    result = divisor == 0 ? 0 : quotient(result, divisor);
                if (value < dim) give_value(bag * dim + value, result);
            }
        }
        if (op.found_out != 0 && lane_in_warp() == 0)
            store_global(at<u32>(op.found_out) + bag, found);
    }
    FORERUN_DEVICE void give_value(u64 to, float value) const {
        if (op.output == pooled_f32) {
            store_global(at<u32>(op.rows_out) + to, bits_without_payload(value));
        } else {
            store_global(at<u16>(op.rows_out) + to,
                         op.output == pooled_f16 ? round_f16(value) : round_bf16(value));
        }
    }
};

template <u32 WIDTH> FORERUN_DEVICE void find_pooled(const TableOp& op) {
    FORERUN_SHARED(typename Pooler<WIDTH>::Cells, cells);
    Pooler<WIDTH>(op, cells).run();
}

}  // namespace forerun::table
