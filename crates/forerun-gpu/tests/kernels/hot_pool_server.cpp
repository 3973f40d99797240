// The hot pool's kernels as a device for Rust. tests/hot_pool.rs is the other side.
#include "hot_pool_params.cuh"
#include "tests/testing/kernel_server.h"

#define KERNEL(name, ...) extern "C" void name(const forerun::hot_pool::HotPoolParams);
#include "hot_pool.list"
#undef KERNEL

int main() {
    forerun::test::serve<forerun::hot_pool::HotPoolParams>({
#define KERNEL(name, ...) {#name, name},
#include "hot_pool.list"
#undef KERNEL
    });
}
