// The row-copying kernels, one per line of gather.list. The columns of the line are the parameters
// of the function.
#include "gather/aligned_rows.cuh"
#include "gather/row.cuh"

#define KERNEL(name, version, unit, rows, align, threads, registers)                     \
    FORERUN_KERNEL(threads) name(const forerun::GatherParams p) {                        \
        forerun::aligned_rows<unit, rows, align>(p);                                     \
    }
#include "gather.list"
#undef KERNEL
