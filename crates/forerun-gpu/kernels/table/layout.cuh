// The slots in which a key's entry can be, computed from the key alone.
//
//   h = mix(key)
//
//   one candidate    home = h * buckets >> 64
//   two              half = buckets / 2:   a = h * half >> 64        b = half + (h * phi mod 2^64) * half >> 64
//                    bit 8 of h selects home; the other is spill
//   digest           bits 0-7 of h, but never 0 (empty) nor 1 (reclaimed)
//   start            bits 9-10 of h: the sector of 32 slots in which the search of a row begins;
//                    the slot of turn n is start ^ n
//
//   a row of 128 digests, start 1:   | sector 0 | sector 1 | sector 2 | sector 3 |
//                      searched as        2nd        1st        4th        3rd
//
// So a search goes through one half of the row before it enters the other.
//
// A slot that was used never becomes empty again, only reclaimed, until the table is cleared. An
// entry takes the first free slot in its search order. So a search may end at the first empty slot.
#pragma once
#include "../include/atomic.cuh"
#include "../include/lane.cuh"
#include "../include/memory.cuh"
#include "../include/number.cuh"
#include "../include/table_params.cuh"

namespace forerun::table {

constexpr u32 digest_empty = 0;
constexpr u32 digest_reclaimed = 1;
constexpr u32 chunk_slots = 16;   // digests per load
constexpr u32 sector_slots = 32;  // minimum digests per request
constexpr u64 no_slot = ~0ull;

struct Place {
    u64 home, spill;  // buckets; equal with one candidate
    u32 digest;
    u32 start;        // slot
};

// Number of keys in the batch, as given by the host or by the device, but never more than the
// arrays hold.
FORERUN_DEVICE u64 keys_in(const TableOp& op) {
    if (op.count_at == 0) return op.count;
    const u64 there = load_relaxed(at<u64>(op.count_at));
    return there < op.count ? there : op.count;
}

FORERUN_DEVICE Place place_of(const TableState& t, u64 key) {
    const u64 h = mix(key);
    const u32 low = u32(h) & 0xff;
    Place place;
    place.digest = low <= digest_reclaimed ? low + 128 : low;
    place.start = u32(h >> 9) * sector_slots & (t.width - 1) & ~(sector_slots - 1);
    if (t.candidates == 1) {
        place.home = place.spill = high_product(h, t.buckets);
    } else {
        const u64 half = t.buckets / 2;
        const u64 a = high_product(h, half);
        const u64 b = half + high_product(h * 0x9e3779b97f4a7c15ull, half);
        const bool swap = (h >> 8 & 1) != 0;
        place.home = swap ? b : a;
        place.spill = swap ? a : b;
    }
    return place;
}

FORERUN_DEVICE u64 row_address(const TableState& t, u64 slot) {
    return slot < t.rows_split ? t.rows + slot * t.row_stride_bytes
                               : t.rows_host + (slot - t.rows_split) * t.row_stride_bytes;
}
// The digests are accessed in words of four, because accesses of different sizes would race.
FORERUN_DEVICE u32* digests_at(const TableState& t, u64 slot) {
    return at<u32>(t.digests) + slot / 4;
}
FORERUN_DEVICE u32 digest_shift(u64 slot) { return u32(slot % 4) * 8; }
FORERUN_DEVICE u32 load_digest(const TableState& t, u64 slot) {
    return load_relaxed(digests_at(t, slot)) >> digest_shift(slot) & 0xff;
}
FORERUN_DEVICE u64* key_at(const TableState& t, u64 slot) { return at<u64>(t.keys) + slot; }
FORERUN_DEVICE u32* word_at(const TableState& t, u64 bucket) { return at<u32>(t.words) + bucket; }
FORERUN_DEVICE TableControl* control_of(const TableState& t) { return at<TableControl>(t.control); }

// The word and the bit of a slot's pin.
FORERUN_DEVICE u32* pin_at(const TableState& t, u64 slot) {
    return at<u32>(t.pins) + (t.width < 32 ? slot / t.width : slot / 32);
}
FORERUN_DEVICE u32 pin_bit(const TableState& t, u64 slot) {
    return 1u << (t.width < 32 ? slot % t.width : slot % 32);
}

FORERUN_DEVICE Bytes16 load_digests(const TableState& t, u64 slot) {
    return load_relaxed(reinterpret_cast<const Bytes16*>(digests_at(t, slot)));
}

// Clears bit 7 of each byte that is 0. The other bits are arbitrary. The sum carries into no
// neighbouring byte, so the result is exact. It has to be: while writers run, a lookup must not
// take a slot with a different digest.
FORERUN_DEVICE u32 not_zero_4(u32 word) {
    return ((word & 0x7f7f7f7fu) + 0x7f7f7f7fu) | word;
}
// Marks the slots of a chunk whose digests, in the bits of `mask`, are the pattern's. Bit 8b + 4 +
// j stands for byte b of word j.
FORERUN_DEVICE u32 marks_of(const Bytes16& chunk, u32 pattern, u32 mask = ~0u) {
    const u32 x = not_zero_4((chunk.x ^ pattern) & mask);
    const u32 y = not_zero_4((chunk.y ^ pattern) & mask);
    const u32 z = not_zero_4((chunk.z ^ pattern) & mask);
    const u32 w = not_zero_4((chunk.w ^ pattern) & mask);
    const u32 low = (y & 0x80808080u) | (x >> 1 & 0x7f7f7f7fu);
    const u32 high = (w & 0x80808080u) | (z >> 1 & 0x7f7f7f7fu);
    return ~((high & 0xc0c0c0c0u) | (low >> 2 & 0x3f3f3f3fu)) & 0xf0f0f0f0u;
}
// The same for the slots that are empty or reclaimed.
FORERUN_DEVICE u32 free_marks_of(const Bytes16& chunk) {
    static_assert(digest_empty == 0 && digest_reclaimed == 1, "they differ in bit 0");
    return marks_of(chunk, 0, 0xfefefefeu);
}
// Returns whether a digest is 0. Only a byte that is 0 causes a borrow.
FORERUN_DEVICE bool has_empty(const Bytes16& chunk) {
    const u32 x = (chunk.x - 0x01010101u) & ~chunk.x, y = (chunk.y - 0x01010101u) & ~chunk.y;
    const u32 z = (chunk.z - 0x01010101u) & ~chunk.z, w = (chunk.w - 0x01010101u) & ~chunk.w;
    return ((x | y | z | w) & 0x80808080u) != 0;
}

// Bit b: byte b of the word equals `digest`.
FORERUN_DEVICE u32 match_4(u32 word, u32 digest) {
    const u32 equal = ~(not_zero_4(word ^ digest * 0x01010101u) | 0x7f7f7f7fu);
    return (equal >> 7) * 0x10204080u >> 28;
}
// Bit b: slot b of the chunk has that digest.
FORERUN_DEVICE u32 match_16(const Bytes16& chunk, u32 digest) {
    return match_4(chunk.x, digest) | match_4(chunk.y, digest) << 4 |
           match_4(chunk.z, digest) << 8 | match_4(chunk.w, digest) << 12;
}
FORERUN_DEVICE u32 empty_in(const Bytes16& chunk) { return match_16(chunk, digest_empty); }
FORERUN_DEVICE u32 free_in(const Bytes16& chunk) {
    return match_16(chunk, digest_empty) | match_16(chunk, digest_reclaimed);
}

}  // namespace forerun::table
