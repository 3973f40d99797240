// The row-copying kernels that only measurements choose, one per line of gather_study.list. The
// columns of the line select one of the functions below.
#include "gather/bulk_rows.cuh"
#include "gather/row.cuh"
#include "gather/thread_row.cuh"
#include "gather/warp_row.cuh"

namespace forerun {

template <u32 VERSION, u32 UNIT> FORERUN_DEVICE void copy_rows_by(const GatherParams& p) {
    if constexpr (VERSION <= 1) {
        thread_per_row<UNIT>(p);
    } else if constexpr (VERSION == 2) {
        warp_per_row<UNIT, false>(p);
    } else if constexpr (VERSION == 3) {
        warp_per_row<UNIT, true>(p);
    } else if constexpr (VERSION == 4) {
        warp_over_rows<UNIT>(p);
    } else {
        static_assert(VERSION == 6, "version 5 is in gather.list");
#if FORERUN_HOPPER
        bulk_rows(p);
#endif
    }
}

}  // namespace forerun

#define KERNEL(name, version, unit, rows, align, threads, registers)                     \
    FORERUN_KERNEL(threads) name(const forerun::GatherParams p) {                        \
        forerun::copy_rows_by<version, unit>(p);                                         \
    }
#if FORERUN_HOPPER
#define KERNEL90(...) KERNEL(__VA_ARGS__)
#else
#define KERNEL90(...)
#endif

#include "gather_study.list"
#undef KERNEL
#undef KERNEL90
