// The hash table's kernels as a device for Rust. tests/table/shim.rs is the other side.
#include "table_params.cuh"
#include "tests/testing/kernel_server.h"

#define KERNEL(name, ...) extern "C" void name(const forerun::table::TableOp);
#include "table.list"
#include "table_study.list"
#undef KERNEL

int main() {
    forerun::test::serve<forerun::table::TableOp>({
#define KERNEL(name, ...) {#name, name},
#include "table.list"
#include "table_study.list"
#undef KERNEL
    });
}
