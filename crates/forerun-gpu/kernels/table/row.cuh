// Copies rows and adds to them with all lanes of a warp. Each lane passes the addresses of its own
// key's rows.
//
//   rows of two units     | row 0: 0 1 | row 1: 0 1 | row 2: 0 1 | ...
//   lane, in turn 0            0 1          2 3          4 5         a row of u units takes u turns
//
//   the table's side    relaxed words of four bytes, one or four at a time: readers and writers
//                       may meet there
//   the caller's side   16 bytes, 4 or 1, as its address and the length allow; no other thread
//                       uses it
//
// A row of the table begins at a multiple of four bytes, and its last word is its own: the stride
// is a multiple of four. Neighbouring lanes access neighbouring units, so the hardware merges
// contiguous accesses into one request.
#pragma once
#include "layout.cuh"

namespace forerun::table {

// The unit that divides all of these addresses and lengths: 16, 4 or 1.
FORERUN_DEVICE u32 unit_of(u64 bits) { return (bits & 15) == 0 ? 16 : (bits & 3) == 0 ? 4 : 1; }

// The row, and the unit of that row, that the lane handles in a turn.
struct RowTurn {
    u32 row, unit;
    const u32 units, rows_on, units_on;

    FORERUN_DEVICE explicit RowTurn(u32 units)
        : row(lane_in_warp() / units),
          unit(lane_in_warp() % units),
          units(units),
          rows_on(warp_lanes / units),
          units_on(warp_lanes % units) {}

    FORERUN_DEVICE void next() {
        row += rows_on;
        unit += units_on;
        if (unit >= units) unit -= units, ++row;
    }
};

template <typename U> struct TableSide {
    using Unit = U;
    FORERUN_DEVICE static U load(u32 wanted, u64 row, u32 unit, u64) {
        return load_relaxed_if(wanted, at<U>(row) + unit);
    }
    FORERUN_DEVICE static void store(u64 row, u32 unit, u64, U value) {
        store_relaxed(at<U>(row) + unit, value);
    }
};
template <typename U> struct CallerSide {
    FORERUN_DEVICE static U load(u32 wanted, u64 row, u32 unit, u64) {
        U value = {};
        if (wanted != 0) value = load_global(at<U>(row) + unit);
        return value;
    }
    FORERUN_DEVICE static void store(u64 row, u32 unit, u64, U value) {
        store_streaming(at<U>(row) + unit, value);
    }
};
// One word of a row. The row may begin at any address, and its last word may have fewer than four
// bytes.
struct CallerBytes {
    FORERUN_DEVICE static u32 bytes_of(u32 unit, u64 bytes) {
        const u64 left = bytes - u64(unit) * 4;
        return left < 4 ? u32(left) : 4;
    }
    FORERUN_DEVICE static u32 load(u32 wanted, u64 row, u32 unit, u64 bytes) {
        u32 word = 0;
        if (wanted == 0) return word;
        for (u32 b = 0; b < bytes_of(unit, bytes); ++b)
            word |= u32(load_global(at<u8>(row) + u64(unit) * 4 + b)) << b * 8;
        return word;
    }
    FORERUN_DEVICE static void store(u64 row, u32 unit, u64 bytes, u32 word) {
        for (u32 b = 0; b < bytes_of(unit, bytes); ++b)
            store_global(at<u8>(row) + u64(unit) * 4 + b, u8(word >> b * 8));
    }
};

// Copies the rows of the lanes whose `to` is not 0, AT_ONCE turns at a time.
template <u32 AT_ONCE, typename U, typename From, typename To>
FORERUN_DEVICE void copy_units(u64 to, u64 from, u64 bytes) {
    if (bytes == 0) return;
    RowTurn turn(u32((bytes + sizeof(U) - 1) / sizeof(U)));
#pragma unroll 1
    for (u32 first = 0; first < turn.units; first += AT_ONCE) {
        U part[AT_ONCE];
        u64 target[AT_ONCE];
        u32 unit[AT_ONCE];
#pragma unroll
        for (u32 k = 0; k < AT_ONCE; ++k) {
            const u64 source = shuffle(all_lanes, from, turn.row % warp_lanes);
            target[k] = shuffle(all_lanes, to, turn.row % warp_lanes);
            if (first + k >= turn.units) target[k] = 0;
            unit[k] = turn.unit;
            part[k] = From::load(target[k] != 0, source, unit[k], bytes);
            turn.next();
        }
#pragma unroll
        for (u32 k = 0; k < AT_ONCE; ++k) {
            if (target[k] != 0) To::store(target[k], unit[k], bytes, part[k]);
        }
    }
}

using TableUnits = TableSide<Bytes16>;
using TableWords = TableSide<u32>;
using CallerUnits = CallerSide<Bytes16>;
using CallerWords = CallerSide<u32>;

// In the functions below, `base` is the address of the caller's first row. It and `row_bytes`
// determine the alignment of all of the caller's rows.
FORERUN_DEVICE u64 bits_of(const TableState& t, u64 base) {
    return base | t.rows | t.rows_host | t.row_stride_bytes | t.row_bytes;
}

// From the table to the caller.
template <u32 AT_ONCE>
FORERUN_DEVICE void copy_out(const TableState& t, u64 base, u64 to, u64 row) {
    const u64 bytes = t.row_bytes;
    switch (unit_of(bits_of(t, base))) {
        case 16:
            copy_units<AT_ONCE, Bytes16, TableUnits, CallerUnits>(to, row, bytes);  // slots: units
            break;
        case 4:
            copy_units<AT_ONCE, u32, TableWords, CallerWords>(to, row, bytes);  // slots: words
            break;
        default:
            copy_units<AT_ONCE, u32, TableWords, CallerBytes>(to, row, bytes);  // slots: words
    }
}
// From the caller to the table.
FORERUN_DEVICE void copy_in(const TableState& t, u64 base, u64 row, u64 from) {
    const u64 bytes = t.row_bytes;
    switch (unit_of(bits_of(t, base))) {
        case 16:
            copy_units<1, Bytes16, CallerUnits, TableUnits>(row, from, bytes);  // slots: units
            break;
        case 4:
            copy_units<1, u32, CallerWords, TableWords>(row, from, bytes);  // slots: words
            break;
        default:
            copy_units<1, u32, CallerBytes, TableWords>(row, from, bytes);  // slots: words
    }
}
// From the caller to the caller.
FORERUN_DEVICE void copy_through(const TableState& t, u64 bases, u64 to, u64 from) {
    if (unit_of(bases | t.row_bytes) != 1)
        return copy_units<1, u32, CallerSide<u32>, CallerSide<u32>>(to, from, t.row_bytes);
    copy_units<1, u32, CallerBytes, CallerBytes>(to, from, t.row_bytes);
}

struct NoSource {
    FORERUN_DEVICE static u32 load(u32, u64, u32, u64) { return 0; }
};
FORERUN_DEVICE void zero_rows(const TableState& t, u64 row) {
    copy_units<1, u32, NoSource, TableSide<u32>>(row, 0, t.row_bytes);
}
// The same on the caller's side.
FORERUN_DEVICE void zero_out(const TableState& t, u64 to) {
    copy_units<1, u32, NoSource, CallerBytes>(to, 0, t.row_bytes);
}

// From the table to the caller, by one lane alone.
FORERUN_DEVICE void copy_out_alone(const TableState& t, u64 base, u64 to, u64 row) {
    const u32 unit = unit_of(bits_of(t, base));
    if (unit == 16) {
        for (u32 u = 0; u < u32(t.row_bytes / 16); ++u)
            store_global(at<Bytes16>(to) + u, load_relaxed(at<Bytes16>(row) + u));
    } else {
        for (u32 w = 0; w < u32((t.row_bytes + 3) / 4); ++w)
            CallerBytes::store(to, w, t.row_bytes, load_relaxed(at<u32>(row) + w));
    }
}

// Accesses an element of the table's row as one word or two.
template <typename T> FORERUN_DEVICE T load_element(u64 row, u64 e) {
    union {
        T value;
        u32 words[sizeof(T) / 4];
    } both;
    for (u32 w = 0; w < sizeof(T) / 4; ++w)
        both.words[w] = load_relaxed(at<u32>(row) + e * (sizeof(T) / 4) + w);
    return both.value;
}
template <typename T> FORERUN_DEVICE void store_element(u64 row, u64 e, T value) {
    union {
        T value;
        u32 words[sizeof(T) / 4];
    } both;
    both.value = value;
    for (u32 w = 0; w < sizeof(T) / 4; ++w)
        store_relaxed(at<u32>(row) + e * (sizeof(T) / 4) + w, both.words[w]);
}
template <typename T> FORERUN_DEVICE void add_elements(u64 to, u64 from, u64 bytes) {
    RowTurn turn(u32(bytes / sizeof(T)));
#pragma unroll 1
    for (u32 n = 0; n < turn.units; ++n) {
        const u64 source = shuffle(all_lanes, from, turn.row);
        const u64 target = shuffle(all_lanes, to, turn.row);
        if (target != 0) {
            const T sum = T(load_element<T>(target, turn.unit) + load(at<T>(source) + turn.unit));
            store_element(target, turn.unit, sum);
        }
        turn.next();
    }
}
// The lanes whose `row` is not 0 hold the locks of its bucket. Integers wrap.
FORERUN_DEVICE void add_rows(const TableState& t, u32 element, u64 row, u64 from) {
    if (t.row_bytes == 0) return;
    switch (element) {
        case element_f32: return add_elements<float>(row, from, t.row_bytes);
        case element_f64: return add_elements<double>(row, from, t.row_bytes);
        case element_i32: return add_elements<u32>(row, from, t.row_bytes);
        default: return add_elements<u64>(row, from, t.row_bytes);
    }
}

}  // namespace forerun::table
