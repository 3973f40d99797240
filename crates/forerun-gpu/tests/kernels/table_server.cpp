// The hash table's kernels as a device for Rust: commands arrive on standard input, answers leave
// on standard output. tests/table/shim.rs is the other side.
//
//   a bytes u64                      -> address u64        allocates poisoned memory, whose ends the
//                                                          sanitizer guards
//   f address                                              frees it
//   z address, bytes                                       writes zeros
//   w address, bytes, the bytes                            writes
//   r address, bytes                 -> the bytes          reads
//   l threads, shared bytes, resident u32; seed u64; grids u32; for each: name[32], blocks u32,
//     a TableOp                      -> length u32, text   the failure; length 0: none
//
// Several grids in one `l` run at the same time, as on several streams.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

#include "shim/machine.h"
#include "table_params.cuh"

using namespace forerun;

#define KERNEL(name, ...) extern "C" void name(const forerun::table::TableOp);
#include "table.list"
#include "table_study.list"
#undef KERNEL

namespace {

using Entry = void (*)(table::TableOp);
const std::map<std::string, Entry> kernels = {
#define KERNEL(name, ...) {#name, name},
#include "table.list"
#include "table_study.list"
#undef KERNEL
};

void take(void* to, size_t bytes) {
    // The other side has ended.
    if (bytes != 0 && std::fread(to, 1, bytes, stdin) != bytes) std::exit(0);
}
template <typename T> T take() {
    T value;
    take(&value, sizeof value);
    return value;
}
void give(const void* from, size_t bytes) { std::fwrite(from, 1, bytes, stdout); }

void launch() {
    shim::Launch launch;
    launch.threads = take<u32>();
    launch.shared_bytes = take<u32>();
    launch.resident = take<u32>();
    launch.seed = take<u64>();
    launch.stores_held = launch.seed % 4 == 0 ? 0 : u32(launch.seed * 7 % 29) + 2;
    const u32 count = take<u32>();
    u32 warps = 0;
    std::vector<shim::Machine::Grid> grids;
    std::string failure;
    for (u32 g = 0; g < count; ++g) {
        char name[33] = {};
        take(name, 32);
        const u32 blocks = take<u32>();
        warps += blocks * launch.threads / 32;
        const auto op = take<table::TableOp>();
        const auto found = kernels.find(name);
        if (found == kernels.end()) {
            failure = std::string("no kernel ") + name;
        } else {
            grids.push_back({blocks, [op, entry = found->second] { entry(op); }});
        }
    }
    // A warp on its own never reads an older value.
    if (warps > 1 && launch.seed / 4 % 2 == 1) launch.loads_stale = 256;
    if (failure.empty()) failure = shim::Machine::run_beside(launch, std::move(grids)).failure;
    const u32 length = u32(failure.size());
    give(&length, sizeof length);
    give(failure.data(), length);
}

}  // namespace

int main() {
    for (;;) {
        const char command = take<char>();
        if (command == 'a') {
            const u64 bytes = take<u64>();
            auto* const memory = ::operator new(bytes, std::align_val_t(256));
            std::memset(memory, shim::poison, bytes);
            const u64 address = reinterpret_cast<u64>(memory);
            give(&address, sizeof address);
        } else if (command == 'l') {
            launch();
        } else {
            void* const address = reinterpret_cast<void*>(take<u64>());
            if (command == 'f') {
                ::operator delete(address, std::align_val_t(256));
                continue;
            }
            const u64 bytes = take<u64>();
            if (command == 'z') std::memset(address, 0, bytes);
            if (command == 'w') take(address, bytes);
            if (command == 'r') give(address, bytes);
        }
        std::fflush(stdout);
    }
}
