// HierarchicalKV in the setting of `forerun-bench gpu-table`: LRU, rows in the GPU's memory,
// buckets of 128.
//
// The table is the peer's own code, included from a checkout (see README.md).
#include <memory>

#include "common.cuh"
#include "merlin_hashtable.cuh"

// What the results call the checkout.
#ifndef HKV_ENGINE
#define HKV_ENGINE "hierarchicalkv"
#endif

using namespace peers;

namespace {

using Table = nv::merlin::HashTable<uint64_t, float, uint64_t, nv::merlin::EvictStrategy::kLru,
                                    nv::merlin::Sm80>;

// By default each call takes the table's lock, for which it launches a kernel and waits. A caller
// that orders its own calls can do without.
enum class ApiLock { on, off };

std::unique_ptr<Table> made(const Setting& setting, ApiLock lock) {
    nv::merlin::HashTableOptions options;
    options.init_capacity = options.max_capacity = setting.slots;
    options.dim = setting.dim;
    options.max_hbm_for_vectors = setting.slots * setting.dim * sizeof(float);
    options.device_id = setting.device;
    options.api_lock = lock == ApiLock::on;
    // By default it makes one allocation per bucket, which takes minutes.
    options.num_of_buckets_per_alloc =
        std::max<uint64_t>(std::min<uint64_t>(1024, setting.slots / 128), 1);
    auto table = std::make_unique<Table>();
    table->init(options);
    return table;
}

// Fills the table as Forerun's bench does: to the requested load, or until four times as many keys
// as slots have been inserted.
void fill(Table& table, Keys& keys, const Setting& setting, double load,
          OnDevice<uint64_t>& keys_in, OnDevice<float>& rows) {
    const uint64_t target = uint64_t(double(setting.slots) * load);
    const uint64_t enough = load < 1 ? target : target - target / 10000;
    uint64_t size = 0;
    while (size < enough && keys.filled < setting.slots * 4) {
        // The last free slots of a full table are found by chance, which takes many keys.
        const uint64_t left = std::max<uint64_t>(target - std::min(size, target), 256);
        const uint64_t n = load < 1 ? std::min(left, setting.batch) : setting.batch;
        std::vector<uint64_t> part(n);
        for (uint64_t i = 0; i < n; ++i) part[i] = key_of(keys.filled + i);
        keys_in.put(part);
        table.insert_or_assign(n, keys_in.at, rows.at, nullptr, 0);
        PEERS_CHECK(cudaDeviceSynchronize());
        keys.filled += n;
        size = table.size(0);
    }
}

void run(const Setting& setting, double load, ApiLock lock) {
    const uint64_t n = setting.batch, values = n * setting.dim;
    std::unique_ptr<Table> table = made(setting, lock);
    OnDevice<uint64_t> keys_in(std::max<uint64_t>(n, 1 << 20)), evicted(n), evicted_scores(n),
        absent(n);
    OnDevice<float> rows(values), rows_out(values);
    OnDevice<float*> pointers(n);
    OnDevice<bool> found(std::max<uint64_t>(n, 1 << 20));
    OnDevice<size_t> evicted_count(1);
    PEERS_CHECK(cudaMemset(rows.at, 1, values * sizeof(float)));

    Keys keys;
    fill(*table, keys, setting, load, keys_in, rows);
    keys.choose([&](const std::vector<uint64_t>& part) {
        keys_in.put(part);
        table->contains(part.size(), keys_in.at, found.at, 0);
        PEERS_CHECK(cudaDeviceSynchronize());
        std::vector<char> is(part.size());
        PEERS_CHECK(cudaMemcpy(is.data(), found.at, part.size(), cudaMemcpyDeviceToHost));
        return is;
    });
    const auto share = [&] {
        std::vector<char> is(n);
        PEERS_CHECK(cudaMemcpy(is.data(), found.at, n, cudaMemcpyDeviceToHost));
        return double(std::count(is.begin(), is.end(), char(1))) / double(n);
    };
    const auto give = [&](const Keys::Call& call) { keys_in.put(call.keys); };
    const auto put_back = [&](const Keys::Call& call) {
        // New entries have replaced the oldest ones; the next new entries replace them in turn.
        if (load >= 1) return;
        absent.put(call.absent);
        table->erase(call.absent.size(), absent.at, 0);
        PEERS_CHECK(cudaDeviceSynchronize());
    };
    Timer timer;
    std::vector<Operation> lookups = {
        {"find_ptr",
         false,
         [&](cudaStream_t s) { table->find(n, keys_in.at, pointers.at, found.at, nullptr, s); },
         share,
         {}},
        {"find",
         false,
         [&](cudaStream_t s) { table->find(n, keys_in.at, rows_out.at, found.at, nullptr, s); },
         share,
         {}},
        {"contains",
         false,
         [&](cudaStream_t s) { table->contains(n, keys_in.at, found.at, s); },
         share,
         {}},
    };
    measure(setting, keys, lookups, timer, give, put_back);
    // Make the requested keys the youngest, so that new entries do not evict them.
    for (size_t from = 0; from < keys.sample.size(); from += n) {
        const std::vector<uint64_t> part(
            keys.sample.begin() + from,
            keys.sample.begin() + std::min(keys.sample.size(), from + n));
        keys_in.put(part);
        table->insert_or_assign(part.size(), keys_in.at, rows.at, nullptr, 0);
    }
    PEERS_CHECK(cudaDeviceSynchronize());
    std::vector<Operation> writers = {
        {"insert_or_assign",
         true,
         [&](cudaStream_t s) { table->insert_or_assign(n, keys_in.at, rows.at, nullptr, s); },
         nullptr,
         {}},
        {"insert_and_evict",
         true,
         [&](cudaStream_t s) {
             table->insert_and_evict(n, keys_in.at, rows.at, nullptr, evicted.at, rows_out.at,
                                     evicted_scores.at, evicted_count.at, s);
         },
         nullptr,
         // It appends behind what the counter says, without a bound.
         [&] { PEERS_CHECK(cudaMemsetAsync(evicted_count.at, 0, sizeof(size_t), timer.stream)); }},
        {"find_or_insert",
         true,
         [&](cudaStream_t s) { table->find_or_insert(n, keys_in.at, rows_out.at, nullptr, s); },
         nullptr,
         {}},
        {"find_or_insert_ptr",
         true,
         [&](cudaStream_t s) {
             table->find_or_insert(n, keys_in.at, pointers.at, found.at, nullptr, s);
         },
         share,
         {}},
        {"assign",
         false,
         [&](cudaStream_t s) { table->assign(n, keys_in.at, rows.at, nullptr, s); },
         nullptr,
         {}},
    };
    measure(setting, keys, writers, timer, give, put_back);
    const char* const engine = lock == ApiLock::on ? HKV_ENGINE : HKV_ENGINE "-unlocked";
    for (const std::vector<Operation>* all : {&lookups, &writers}) {
        for (const Operation& op : *all) print(setting, engine, "1x128", load, op);
    }
}

}  // namespace

int main(int count, char** words) {
    const Setting setting = parse(count, words);
    PEERS_CHECK(cudaSetDevice(setting.device));
    for (const double load : setting.loads) {
        for (const ApiLock lock : {ApiLock::on, ApiLock::off}) run(setting, load, lock);
    }
}
