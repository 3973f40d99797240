// Shared code of the adapters: the setting from the command line, the keys of `forerun-bench
// gpu-table`, the two clocks, and a line of JSON per result, with the names of
// crates/forerun-bench/src/gpu_table/result_row.rs.
//
//   inserted keys     key_of(0), key_of(1), ...     until the table has the requested load
//   requested keys    present: a sample that is spread evenly over the time of insertion;
//                     absent: keys that were never inserted
#pragma once
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace peers {

[[noreturn]] inline void fail(const std::string& what) {
    std::fprintf(stderr, "%s\n", what.c_str());
    std::exit(1);
}
inline void check(cudaError_t error, const char* what) {
    if (error != cudaSuccess) fail(std::string(what) + ": " + cudaGetErrorString(error));
}
#define PEERS_CHECK(call) ::peers::check((call), #call)

struct Setting {
    int device = 0;
    uint64_t slots = 128ull << 20;
    uint32_t dim = 8;
    std::vector<double> loads = {0.5, 0.75, 1.0};
    double hit_rate = 0.6;
    uint64_t batch = 1ull << 20;
    int rounds = 11;

    uint64_t hits() const { return std::min(batch, uint64_t(double(batch) * hit_rate + 0.5)); }
};

inline Setting parse(int count, char** words) {
    Setting setting;
    for (int i = 1; i + 1 < count; i += 2) {
        const std::string name = words[i], value = words[i + 1];
        if (name == "--device") setting.device = std::stoi(value);
        else if (name == "--slots") setting.slots = std::stoull(value);
        else if (name == "--dim") setting.dim = uint32_t(std::stoul(value));
        else if (name == "--hit-rate") setting.hit_rate = std::stod(value);
        else if (name == "--batch") setting.batch = std::stoull(value);
        else if (name == "--rounds") setting.rounds = std::stoi(value);
        else if (name == "--load") {
            setting.loads.clear();
            for (size_t from = 0; from <= value.size();) {
                const size_t to = std::min(value.find(',', from), value.size());
                setting.loads.push_back(std::stod(value.substr(from, to - from)));
                from = to + 1;
            }
        } else fail("no option " + name);
    }
    if (count % 2 == 0) fail(std::string("no value for ") + words[count - 1]);
    return setting;
}

// Keys are distinct and in random order, the same as in
// crates/forerun-bench/src/gpu_table/keys.rs.
inline uint64_t key_of(uint64_t i) {
    uint64_t key = i * 0x9e3779b97f4a7c15ull;
    key = key << 23 | key >> 41;
    return key * 0xd6e8feb86659fd93ull;
}

template <typename T> struct OnDevice {
    T* at = nullptr;
    explicit OnDevice(uint64_t count) {
        PEERS_CHECK(cudaMalloc(&at, std::max<uint64_t>(count, 1) * sizeof(T)));
    }
    ~OnDevice() { cudaFree(at); }
    OnDevice(const OnDevice&) = delete;
    void put(const std::vector<T>& all) {
        PEERS_CHECK(cudaMemcpy(at, all.data(), all.size() * sizeof(T), cudaMemcpyHostToDevice));
    }
    void take(T* to, uint64_t count) const {
        PEERS_CHECK(cudaMemcpy(to, at, count * sizeof(T), cudaMemcpyDeviceToHost));
    }
};

// The keys of calls.
class Keys {
  public:
    uint64_t filled = 0;           // number of inserted keys
    std::vector<uint64_t> sample;  // of them, those that are present

    // `there` returns which keys of a list are present.
    template <typename There> void choose(There there) {
        const uint64_t wanted = std::min<uint64_t>(std::max<uint64_t>(filled / 8, 1), 1ull << 24),
                       step = uint64_t(double(filled) * 0.61803398875) | 1;
        std::vector<uint64_t> chosen(wanted);
        uint64_t at = 0;
        for (uint64_t& key : chosen) at = (at + step) % filled, key = key_of(at);
        std::sort(chosen.begin(), chosen.end());
        chosen.erase(std::unique(chosen.begin(), chosen.end()), chosen.end());
        sample.clear();
        for (size_t from = 0; from < chosen.size(); from += 1 << 20) {
            const std::vector<uint64_t> part(
                chosen.begin() + from, chosen.begin() + std::min(chosen.size(), from + (1 << 20)));
            const std::vector<char> is = there(part);
            for (size_t i = 0; i < part.size(); ++i) {
                if (is[i]) sample.push_back(part[i]);
            }
        }
        std::shuffle(sample.begin(), sample.end(), random);
        if (sample.empty()) fail("the table keeps no keys at this load");
    }

    struct Call {
        std::vector<uint64_t> keys, absent;
    };
    Call call(const Setting& setting) {
        Call made;
        for (uint64_t i = 0; i < setting.hits(); ++i)
            made.keys.push_back(sample[next++ % sample.size()]);
        for (uint64_t i = setting.hits(); i < setting.batch; ++i)
            made.absent.push_back(key_of(never++));
        made.keys.insert(made.keys.end(), made.absent.begin(), made.absent.end());
        std::shuffle(made.keys.begin(), made.keys.end(), random);
        return made;
    }

  private:
    uint64_t next = 0, never = 1ull << 40;
    std::mt19937_64 random{0x5eed};
};

struct CallTimes {
    double device = 0, wall = 0;  // seconds
};

class Timer {
  public:
    Timer() {
        PEERS_CHECK(cudaStreamCreate(&stream));
        PEERS_CHECK(cudaEventCreate(&start));
        PEERS_CHECK(cudaEventCreate(&end));
    }
    cudaStream_t stream;

    // Times a call by events of its stream, and by the host's clock until the wait ends.
    template <typename Work> CallTimes time(Work work) {
        PEERS_CHECK(cudaDeviceSynchronize());
        const auto from = std::chrono::steady_clock::now();
        PEERS_CHECK(cudaEventRecord(start, stream));
        work(stream);
        PEERS_CHECK(cudaEventRecord(end, stream));
        PEERS_CHECK(cudaStreamSynchronize(stream));
        CallTimes took;
        took.wall = std::chrono::duration<double>(std::chrono::steady_clock::now() - from).count();
        float ms = 0;
        PEERS_CHECK(cudaEventElapsedTime(&ms, start, end));
        took.device = double(ms) * 1e-3;
        return took;
    }

  private:
    cudaEvent_t start, end;
};

struct Operation {
    std::string name;
    bool inserts;                           // inserts absent keys
    std::function<void(cudaStream_t)> run;  // on the call's keys
    // The share of keys that the last run found, if the operation reports it.
    std::function<double()> found;
    // Runs before each call and is not timed.
    std::function<void()> prepare;
    std::vector<CallTimes> took;
    double share = 0;
};

// The median.
inline double median(std::vector<double> all) {
    std::sort(all.begin(), all.end());
    const size_t n = all.size();
    return n % 2 == 1 ? all[n / 2] : (all[n / 2 - 1] + all[n / 2]) / 2;
}

inline void print(const Setting& setting, const char* engine, const char* form, double load,
                  const Operation& op) {
    cudaDeviceProp device;
    PEERS_CHECK(cudaGetDeviceProperties(&device, setting.device));
    std::vector<double> rates, walls;
    for (const CallTimes& took : op.took) {
        rates.push_back(double(setting.batch) / took.device);
        walls.push_back(double(setting.batch) / took.wall);
    }
    std::printf(
        "{\"engine\":\"%s\",\"device\":\"%s\",\"op\":\"%s\",\"slots\":%llu,\"buckets\":\"%s\","
        "\"dim\":%u,\"load\":%.4f,"
        "\"hit_rate\":%.4f,\"batch\":%llu,\"skew\":\"uniform\",\"found\":%.4f,\"rounds\":%zu,"
        "\"keys_per_second\":%.1f,"
        "\"keys_per_second_min\":%.1f,\"keys_per_second_max\":%.1f,\"keys_per_second_wall\":%.1f}"
        "\n",
        engine, device.name, op.name.c_str(), (unsigned long long)setting.slots, form, setting.dim,
        load, setting.hit_rate, (unsigned long long)setting.batch, op.share, op.took.size(),
        median(rates), *std::min_element(rates.begin(), rates.end()),
        *std::max_element(rates.begin(), rates.end()), median(walls));
    std::fflush(stdout);
}

// Runs every operation once untimed and checks the share of found keys. Then measures the
// operations in alternating rounds.
template <typename Give, typename PutBack>
void measure(const Setting& setting, Keys& keys, std::vector<Operation>& operations, Timer& timer,
             Give give, PutBack put_back) {
    for (int round = -1; round < setting.rounds; ++round) {
        for (size_t turn = 0; turn < operations.size(); ++turn) {
            Operation& op = operations[(turn + size_t(round + 1)) % operations.size()];
            const Keys::Call call = keys.call(setting);
            give(call);
            if (op.prepare) op.prepare();
            const CallTimes took = timer.time(op.run);
            if (round < 0) {
                op.share = op.found ? op.found() : setting.hit_rate;
                if (std::abs(op.share - setting.hit_rate) > 0.02)
                    fail(op.name + " found a wrong share of the keys");
            } else {
                op.took.push_back(took);
            }
            if (op.inserts) put_back(call);
        }
    }
}

}  // namespace peers
