// Two tables of WarpSpeed in the setting of `forerun-bench gpu-table`: two-choice and double
// hashing with tags, each with the tile and bucket of the library's own bench. They map u64 keys
// to u64 values, which take the place of the addresses that find_ptr returns. They evict nothing,
// and that bench ends at a load of 0.9, so higher ones are left out.
//
// The tables are the peer's own code, included from a checkout (see README.md).
#define COUNT_PROBES 0
#define LOAD_CHEAP 0  // locks, and lookups beside writers

#include <string>
#include <warpSpeed/tables/p2_hashing_metadata.cuh>
#include <warpSpeed/tables/double_hashing_metadata.cuh>

#include "common.cuh"

using namespace peers;

namespace {

constexpr unsigned tile_lanes = 4, bucket_slots = 32, threads = 256;
constexpr uint64_t absent_value = 0;

using Tile = cooperative_groups::thread_block_tile<tile_lanes>;

__device__ Tile this_tile() {
    return cooperative_groups::tiled_partition<tile_lanes>(
        cooperative_groups::this_thread_block());
}

// 0 marks an empty slot there.
__device__ uint64_t stored(uint64_t key) { return key + 1; }

template <typename Table>
__global__ void look_up(Table* table, const uint64_t* keys, uint64_t n, uint64_t* values) {
    const Tile tile = this_tile();
    const uint64_t i = gallatin::utils::get_tile_tid(tile);
    if (i >= n) return;
    uint64_t value = absent_value;
    const bool is = table->find_with_reference(tile, stored(keys[i]), value);
    if (tile.thread_rank() == 0) values[i] = is ? value : absent_value;
}

template <typename Table>
__global__ void upsert(Table* table, const uint64_t* keys, uint64_t n) {
    const Tile tile = this_tile();
    const uint64_t i = gallatin::utils::get_tile_tid(tile);
    if (i >= n) return;
    // A value that is the key is enough to check that the right one was found.
    const uint64_t key = stored(keys[i]);
    table->upsert_replace(tile, key, key);
}

template <typename Table>
__global__ void take_out(Table* table, const uint64_t* keys, uint64_t n) {
    const Tile tile = this_tile();
    const uint64_t i = gallatin::utils::get_tile_tid(tile);
    if (i < n) table->remove(tile, stored(keys[i]));
}

unsigned blocks(uint64_t n) { return unsigned((n * tile_lanes + threads - 1) / threads); }

template <typename Table> void run(const Setting& setting, double load, const char* engine) {
    const uint64_t n = setting.batch, capacity = std::max<uint64_t>(n, 1 << 20);
    Table* table = Table::generate_on_device(setting.slots, 42);
    PEERS_CHECK(cudaGetLastError());
    OnDevice<uint64_t> keys_in(capacity), absent(n), values(capacity);
    Timer timer;
    const auto find = [&](uint64_t count, cudaStream_t stream) {
        look_up<<<blocks(count), threads, 0, stream>>>(table, keys_in.at, count, values.at);
    };
    const auto insert = [&](uint64_t count, cudaStream_t stream) {
        upsert<<<blocks(count), threads, 0, stream>>>(table, keys_in.at, count);
    };
    Keys keys;
    const uint64_t target = uint64_t(double(setting.slots) * load);
    while (keys.filled < target) {
        std::vector<uint64_t> part(std::min(n, target - keys.filled));
        for (uint64_t i = 0; i < part.size(); ++i) part[i] = key_of(keys.filled + i);
        keys_in.put(part);
        insert(part.size(), 0);
        PEERS_CHECK(cudaDeviceSynchronize());
        keys.filled += part.size();
    }
    // Which of the first `count` keys that were looked up last are there.
    const auto there = [&](uint64_t count) {
        std::vector<uint64_t> all(count);
        values.take(all.data(), count);
        std::vector<char> is(count);
        for (uint64_t i = 0; i < count; ++i) is[i] = all[i] != absent_value;
        return is;
    };
    keys.choose([&](const std::vector<uint64_t>& part) {
        keys_in.put(part);
        find(part.size(), 0);
        PEERS_CHECK(cudaDeviceSynchronize());
        return there(part.size());
    });
    const auto give = [&](const Keys::Call& call) { keys_in.put(call.keys); };
    const auto put_back = [&](const Keys::Call& call) {
        if (call.absent.empty()) return;
        absent.put(call.absent);
        take_out<<<blocks(call.absent.size()), threads>>>(table, absent.at, call.absent.size());
        PEERS_CHECK(cudaDeviceSynchronize());
    };
    const auto share_found = [&] {
        const std::vector<char> is = there(n);
        return double(std::count(is.begin(), is.end(), char(1))) / double(n);
    };
    std::vector<Operation> lookups = {
        {"find_ptr", false, [&](cudaStream_t s) { find(n, s); }, share_found, {}},
    };
    measure(setting, keys, lookups, timer, give, put_back);
    std::vector<Operation> writers = {
        {"insert_or_assign", true, [&](cudaStream_t s) { insert(n, s); }, nullptr, {}},
    };
    measure(setting, keys, writers, timer, give, put_back);
    for (const std::vector<Operation>* all : {&lookups, &writers}) {
        for (const Operation& op : *all) print(setting, engine, "32 slots", load, op);
    }
    Table::free_on_device(table);
}

}  // namespace

int main(int count, char** words) {
    using warpSpeed::tables::md_double_generic;
    using warpSpeed::tables::md_p2_generic;
    Setting setting = parse(count, words);
    PEERS_CHECK(cudaSetDevice(setting.device));
    setting.dim = 2;  // its values are of 8 bytes
    for (const double load : setting.loads) {
        if (load > 0.9) continue;
        run<md_p2_generic<uint64_t, uint64_t, tile_lanes, bucket_slots>>(
            setting, load, "warpspeed-two-choice");
        run<md_double_generic<uint64_t, uint64_t, tile_lanes, bucket_slots>>(
            setting, load, "warpspeed-double");
    }
}
