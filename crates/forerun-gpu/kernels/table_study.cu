// The hash table's kernels that only measurements choose, one per line of table_study.list. The
// kind of the line selects one of the functions below.
#include "table/find_pipeline.cuh"

namespace forerun::table {

template <u32 KIND> FORERUN_DEVICE void run_table_study(const TableOp& op) {
    if constexpr (KIND == 1) {
        find_by_pipeline(op);
    } else {
        static_assert(KIND == 2, "kinds are 1 and 2");
        find_by_seed_rule(op);
    }
}

}  // namespace forerun::table

#define KERNEL(name, kind, width, threads, registers)         \
    FORERUN_KERNEL_WITHIN(threads, registers) name(const forerun::table::TableOp op) { \
        forerun::table::run_table_study<kind>(op);                  \
    }
#include "table_study.list"
#undef KERNEL
