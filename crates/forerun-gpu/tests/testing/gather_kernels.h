// The kernels under test, from the lines of gather.list and gather_study.list.
#pragma once
#include "gather_params.cuh"
#include "shim/machine.h"

#define KERNEL(name, ...) extern "C" void name(const forerun::GatherParams);
#define KERNEL90 KERNEL
#include "gather.list"
#include "gather_study.list"
#undef KERNEL

namespace forerun::test {

struct Kernel {
    const char* name;
    u32 version, unit, rows, align, threads;
    void (*run)(GatherParams);

    bool thread_per_row() const { return version <= 1; }
    bool any_grid() const { return version >= 4; }
};

inline const std::vector<Kernel>& kernels() {
    static const std::vector<Kernel> all = {
#define KERNEL(name, version, unit, rows, align, threads, registers) \
    {#name, version, unit, rows, align, threads, name},
#include "gather.list"
#include "gather_study.list"
#undef KERNEL
    };
    return all;
}
#undef KERNEL90

constexpr u32 v6_stages = 8, v6_head_bytes = 32;  // as in bulk_rows.cuh

// A grid for `items` rows: enough blocks to cover them, or a few blocks if any grid works.
inline shim::Launch launch_of(const Kernel& kernel, u64 items, u32 threads, u32 stage_bytes,
                              u64 seed) {
    shim::Launch launch;
    launch.seed = seed;
    launch.threads = threads;
    const u64 a_block = kernel.thread_per_row() ? threads : threads / 32;
    const u64 covering = items == 0 ? 1 : (items + a_block - 1) / a_block;
    launch.blocks = kernel.any_grid() ? u32(1 + seed % 3) : u32(covering);
    if (kernel.version == 6)
        launch.shared_bytes = size_t(threads / 32) * v6_stages * (v6_head_bytes + stage_bytes);
    return launch;
}

}  // namespace forerun::test
