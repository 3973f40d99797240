// The row-copying kernels, one per line of gather.list. The columns of the line select one of the
// functions below.
#include "gather/aligned_rows.cuh"
#include "gather/bulk_rows.cuh"
#include "gather/row.cuh"
#include "gather/thread_row.cuh"
#include "gather/warp_row.cuh"

namespace forerun {

template <u32 VERSION, u32 UNIT, u32 ROWS, u32 ALIGN>
FORERUN_DEVICE void copy_rows(const GatherParams& p) {
    if constexpr (VERSION <= 1) {
        thread_per_row<UNIT>(p);
    } else if constexpr (VERSION == 2) {
        warp_per_row<UNIT, false>(p);
    } else if constexpr (VERSION == 3) {
        warp_per_row<UNIT, true>(p);
    } else if constexpr (VERSION == 4) {
        warp_over_rows<UNIT>(p);
    } else if constexpr (VERSION == 5) {
        aligned_rows<UNIT, ROWS, ALIGN>(p);
    } else {
        static_assert(VERSION == 6, "versions are 0 to 6");
#if FORERUN_HOPPER
        bulk_rows(p);
#endif
    }
}

}  // namespace forerun

#define KERNEL(name, version, unit, rows, align, threads, registers)                     \
    FORERUN_KERNEL(threads) name(const forerun::GatherParams p) {                        \
        forerun::copy_rows<version, unit, rows, align>(p);                               \
    }
#if FORERUN_HOPPER
#define KERNEL90(...) KERNEL(__VA_ARGS__)
#else
#define KERNEL90(...)
#endif

#include "gather.list"
#undef KERNEL
#undef KERNEL90
