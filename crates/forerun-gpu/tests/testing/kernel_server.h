// Kernels as a device for Rust: commands arrive on standard input, answers leave on standard
// output. tests/testing/shim_process.rs is the other side.
//
//   a bytes u64                      -> address u64        allocates poisoned memory, whose ends the
//                                                          sanitizer guards
//   f address                                              frees it
//   z address, bytes                                       writes zeros
//   w address, bytes, the bytes                            writes
//   r address, bytes                 -> the bytes          reads
//   l threads, shared bytes, resident u32; seed u64; grids u32; for each: name[32], blocks u32,
//     the kernel's argument          -> length u32, text   the failure; length 0: none
//
// Several grids in one `l` run at the same time, as on several streams.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

#include "shim/machine.h"
#include "word.cuh"

namespace forerun::test {

template <typename Params> using Kernels = std::map<std::string, void (*)(Params)>;

inline void take(void* to, size_t bytes) {
    // The other side has ended.
    if (bytes != 0 && std::fread(to, 1, bytes, stdin) != bytes) std::exit(0);
}
template <typename T> T take() {
    T value;
    take(&value, sizeof value);
    return value;
}
inline void give(const void* from, size_t bytes) { std::fwrite(from, 1, bytes, stdout); }

template <typename Params> void launch(const Kernels<Params>& kernels) {
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
        const auto params = take<Params>();
        const auto found = kernels.find(name);
        if (found == kernels.end()) {
            failure = std::string("no kernel ") + name;
        } else {
            grids.push_back({blocks, [params, entry = found->second] { entry(params); }});
        }
    }
    // A warp on its own never reads an older value.
    if (warps > 1 && launch.seed / 4 % 2 == 1) launch.loads_stale = 256;
    if (failure.empty()) failure = shim::Machine::run_beside(launch, std::move(grids)).failure;
    const u32 length = u32(failure.size());
    give(&length, sizeof length);
    give(failure.data(), length);
}

// Answers until the other side ends.
template <typename Params> [[noreturn]] void serve(const Kernels<Params>& kernels) {
    for (;;) {
        const char command = take<char>();
        if (command == 'a') {
            const u64 bytes = take<u64>();
            auto* const memory = ::operator new(bytes, std::align_val_t(256));
            std::memset(memory, shim::poison, bytes);
            const u64 address = reinterpret_cast<u64>(memory);
            give(&address, sizeof address);
        } else if (command == 'l') {
            launch(kernels);
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

}  // namespace forerun::test
