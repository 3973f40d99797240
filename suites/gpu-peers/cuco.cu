// cuCollections' static_map in the setting of `forerun-bench gpu-table`: u64 keys to u64 values,
// which take the place of the addresses that find_ptr returns. It uses open addressing, evicts
// nothing and slows down as it fills, so loads above 0.95 are left out.
//
// The map is the peer's own code, included from a checkout (see README.md).
#include <cuco/static_map.cuh>
#include <cuda/std/tuple>
#include <thrust/device_ptr.h>

#include "common.cuh"

using namespace peers;

namespace {

constexpr uint64_t empty_key = ~0ull, empty_value = ~0ull, erased_key = ~0ull - 1;

// Makes pairs whose value is the key, which is enough to check that the right one was found.
__global__ void pair_up(cuco::pair<uint64_t, uint64_t>* to, const uint64_t* keys, uint64_t n) {
    const uint64_t i = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < n) to[i] = cuco::pair<uint64_t, uint64_t>(keys[i], keys[i]);
}

void run(const Setting& setting, double load) {
    const uint64_t n = setting.batch, capacity = std::max<uint64_t>(n, 1 << 20);
    auto map = cuco::static_map(
        cuco::extent<std::size_t>(setting.slots), cuco::empty_key<uint64_t>(empty_key),
        cuco::empty_value<uint64_t>(empty_value), cuco::erased_key<uint64_t>(erased_key));
    OnDevice<uint64_t> keys_in(capacity), absent(n), values(n);
    OnDevice<cuco::pair<uint64_t, uint64_t>> pairs(capacity);
    OnDevice<bool> found(capacity);
    Timer timer;
    const auto pair = [&](uint64_t count, cudaStream_t stream) {
        pair_up<<<unsigned((count + 255) / 256), 256, 0, stream>>>(pairs.at, keys_in.at, count);
    };
    Keys keys;
    const uint64_t target = uint64_t(double(setting.slots) * load);
    while (keys.filled < target) {
        std::vector<uint64_t> part(std::min(n, target - keys.filled));
        for (uint64_t i = 0; i < part.size(); ++i) part[i] = key_of(keys.filled + i);
        keys_in.put(part);
        pair(part.size(), 0);
        map.insert_async(pairs.at, pairs.at + part.size());
        PEERS_CHECK(cudaDeviceSynchronize());
        keys.filled += part.size();
    }
    keys.choose([&](const std::vector<uint64_t>& part) {
        keys_in.put(part);
        map.contains_async(keys_in.at, keys_in.at + part.size(), found.at);
        PEERS_CHECK(cudaDeviceSynchronize());
        std::vector<char> is(part.size());
        PEERS_CHECK(cudaMemcpy(is.data(), found.at, part.size(), cudaMemcpyDeviceToHost));
        return is;
    });
    const auto share_found = [&] {
        std::vector<char> is(n);
        PEERS_CHECK(cudaMemcpy(is.data(), found.at, n, cudaMemcpyDeviceToHost));
        return double(std::count(is.begin(), is.end(), char(1))) / double(n);
    };
    const auto share_values = [&] {
        std::vector<uint64_t> all(n);
        values.take(all.data(), n);
        return double(n - uint64_t(std::count(all.begin(), all.end(), empty_value))) / double(n);
    };
    const auto give = [&](const Keys::Call& call) {
        keys_in.put(call.keys);
        pair(n, 0);
        PEERS_CHECK(cudaDeviceSynchronize());
    };
    const auto put_back = [&](const Keys::Call& call) {
        absent.put(call.absent);
        map.erase_async(absent.at, absent.at + call.absent.size());
        PEERS_CHECK(cudaDeviceSynchronize());
    };
    const auto on = [](cudaStream_t stream) { return cuda::stream_ref(stream); };
    std::vector<Operation> lookups = {
        {"find_ptr",
         false,
         [&](cudaStream_t s) { map.find_async(keys_in.at, keys_in.at + n, values.at, on(s)); },
         share_values,
         {}},
        {"contains",
         false,
         [&](cudaStream_t s) { map.contains_async(keys_in.at, keys_in.at + n, found.at, on(s)); },
         share_found,
         {}},
    };
    measure(setting, keys, lookups, timer, give, put_back);
    std::vector<Operation> writers = {
        {"insert_or_assign",
         true,
         [&](cudaStream_t s) { map.insert_or_assign_async(pairs.at, pairs.at + n, on(s)); },
         nullptr,
         {}},
    };
    measure(setting, keys, writers, timer, give, put_back);
    for (const std::vector<Operation>* all : {&lookups, &writers}) {
        for (const Operation& op : *all) print(setting, "cucollections", "open", load, op);
    }
}

}  // namespace

int main(int count, char** words) {
    Setting setting = parse(count, words);
    PEERS_CHECK(cudaSetDevice(setting.device));
    setting.dim = 2;  // its values are of 8 bytes
    for (const double load : setting.loads) {
        if (load <= 0.95) run(setting, load);
    }
}
