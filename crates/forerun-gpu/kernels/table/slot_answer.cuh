// Writes the answers of a lookup that finds slots.
#pragma once
#include "bucket.cuh"

namespace forerun::table {

FORERUN_DEVICE void give_slot(const TableOp& op, u64 i, u64 slot) {
    const bool found = slot != no_slot;
    if (op.pointers_out != 0)
        store_global(at<u64>(op.pointers_out) + i, found ? row_address(op.table, slot) : 0);
    if (op.slots_out != 0) store_global(at<u64>(op.slots_out) + i, slot);
    if (op.status_out != 0)
        store_global(at<u8>(op.status_out) + i, u8(found ? status_found : status_absent));
}

}  // namespace forerun::table
