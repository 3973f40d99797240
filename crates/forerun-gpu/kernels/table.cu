// The hash table's kernels, one per line of table.list. The columns of the line select one of the
// functions below.
#include "table/find_pooled.cuh"
#include "table/find_rows.cuh"
#include "table/find_slots.cuh"
#include "table/find_thread.cuh"
#include "table/scan.cuh"
#include "table/write.cuh"

namespace forerun::table {

template <u32 KIND, u32 WIDTH> FORERUN_DEVICE void run_table(const TableOp& op) {
    if constexpr (KIND == 0) {
        find_by_thread(op);
    } else if constexpr (KIND == 3) {
        find_slots<WIDTH>(op);
    } else if constexpr (KIND == 4) {
        find_rows<WIDTH>(op);
    } else if constexpr (KIND == 5) {
        write_keys<WIDTH>(op);
    } else if constexpr (KIND == 6) {
        scan_slots(op);
    } else if constexpr (KIND == 7) {
        clear_buckets(op);
    } else {
        static_assert(KIND == 8, "kinds are 0 and 3 to 8");
        find_pooled<WIDTH>(op);
    }
}

}  // namespace forerun::table

#define KERNEL(name, kind, width, threads, registers)         \
    FORERUN_KERNEL_WITHIN(threads, registers) name(const forerun::table::TableOp op) { \
        forerun::table::run_table<kind, width>(op);                  \
    }
#include "table.list"
#undef KERNEL
