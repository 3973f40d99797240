// Uses every method of forerun::HashTable, on the CPU or a GPU, and compares with std::map. Prints
// "ok" at the end.
//
//   cpp_table FILE    FILE is written and removed
#include <forerun/hash_table.hpp>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#define EXPECT(condition)                                                     \
    do {                                                                      \
        if (!(condition)) {                                                   \
            std::fprintf(stderr, "line %d: %s\n", __LINE__, #condition);      \
            std::exit(1);                                                     \
        }                                                                     \
    } while (false)

namespace {

constexpr size_t dim = 4;
using Table = forerun::HashTable<int64_t, float, uint64_t, forerun::EvictStrategy::kCustomized>;

// Elements in the table's kind of memory, freed with the table.
template <typename T> class Array {
  public:
    template <typename AnyTable> Array(AnyTable& table, const std::vector<T>& from)
        : table_(table.handle()), n_(from.size()) {
        void* memory = nullptr;
        EXPECT(forerun_gpu_memory_alloc(table_, n_ * sizeof(T), &memory) == FORERUN_GPU_OK);
        at_ = static_cast<T*>(memory);
        const int copied = forerun_gpu_copy_in(table_, at_, from.data(), n_ * sizeof(T), nullptr);
        EXPECT(copied == FORERUN_GPU_OK);
    }
    operator T*() const { return at_; }
    std::vector<T> get() const {
        std::vector<T> all(n_);
        const int copied = forerun_gpu_copy_out(table_, all.data(), at_, n_ * sizeof(T), nullptr);
        EXPECT(copied == FORERUN_GPU_OK);
        return all;
    }

  private:
    forerun_gpu_table* table_;
    size_t n_;
    T* at_ = nullptr;
};
// std::vector<bool> has no array of bools.
using Founds = Array<uint8_t>;
bool* bools(const Founds& founds) { return reinterpret_cast<bool*>(static_cast<uint8_t*>(founds)); }

float value_of(int64_t key, size_t i, int stamp) { return float(key % 977 + int64_t(i)) + stamp; }
std::vector<float> rows_of(const std::vector<int64_t>& keys, int stamp) {
    std::vector<float> rows;
    for (const int64_t key : keys)
        for (size_t i = 0; i < dim; ++i) rows.push_back(value_of(key, i, stamp));
    return rows;
}
std::vector<int64_t> keys_from(int64_t first, size_t n) {
    std::vector<int64_t> keys(n);
    // Also negative ones, whose bits other tables reserve.
    for (size_t i = 0; i < n; ++i) keys[i] = (first + int64_t(i)) * (i % 2 ? -1 : 1);
    return keys;
}
std::vector<uint64_t> scores_from(uint64_t first, size_t n) {
    std::vector<uint64_t> scores(n);
    for (size_t i = 0; i < n; ++i) scores[i] = first + i;
    return scores;
}
forerun::HashTableOptions options_of(size_t capacity) {
    forerun::HashTableOptions options;
    options.init_capacity = options.max_capacity = capacity;
    options.max_hbm_for_vectors = size_t(1) << 30;
    options.dim = dim;
    return options;
}
template <typename Call> bool refused(Call call, const char* text) {
    try {
        call();
    } catch (const forerun::Error& error) {
        return std::strstr(error.what(), text) != nullptr && error.result() != FORERUN_GPU_OK;
    }
    return false;
}

// What the table holds, by an export.
std::map<int64_t, std::vector<float>> contents(const Table& table) {
    const size_t slots = table.capacity();
    const Array<int64_t> keys(table, std::vector<int64_t>(slots));
    const Array<float> values(table, std::vector<float>(slots * dim));
    const Array<uint64_t> scores(table, std::vector<uint64_t>(slots));
    const size_t n = table.export_batch(slots, 0, keys, values, scores);
    EXPECT(n == table.size());
    const auto all_keys = keys.get();
    const auto all_values = values.get();
    std::map<int64_t, std::vector<float>> all;
    for (size_t k = 0; k < n; ++k) {
        const auto row = all_values.begin() + std::ptrdiff_t(k * dim);
        const bool is_new = all.emplace(all_keys[k], std::vector<float>(row, row + dim)).second;
        EXPECT(is_new);
    }
    return all;
}
void expect_rows(const Table& table, const std::vector<int64_t>& keys, int stamp) {
    const auto all = contents(table);
    for (const int64_t key : keys) {
        const auto found = all.find(key);
        EXPECT(found != all.end());
        for (size_t i = 0; i < dim; ++i) EXPECT(found->second[i] == value_of(key, i, stamp));
    }
}

void every_operation_by_key() {
    Table table;
    table.init(options_of(1 << 13));
    table.init(options_of(1 << 5));  // the first one counts
    EXPECT(table.capacity() == 1 << 13 && table.dim() == dim && table.empty());
    EXPECT(table.max_bucket_size() == 128 && table.bucket_count() == 64);
    static_assert(Table::evict_strategy == forerun::EvictStrategy::kCustomized, "as declared");

    const size_t n = 500;
    const auto keys = keys_from(1, n), others = keys_from(10000, n);
    const Array<int64_t> d_keys(table, keys), d_others(table, others);
    const Array<float> d_rows(table, rows_of(keys, 1)), d_out(table, std::vector<float>(n * dim));
    const Array<uint64_t> d_scores(table, scores_from(10, n));
    const Array<uint64_t> d_scores_out(table, scores_from(0, n));
    const Founds d_founds(table, std::vector<uint8_t>(n, 7));
    const Array<float*> d_pointers(table, std::vector<float*>(n));

    table.insert_or_assign(n, d_keys, d_rows, d_scores);
    EXPECT(table.size() == n && table.load_factor() == float(n) / float(1 << 13));
    expect_rows(table, keys, 1);
    table.find(n, d_keys, d_out, bools(d_founds), d_scores_out);
    EXPECT(d_founds.get() == std::vector<uint8_t>(n, 1) && d_out.get() == rows_of(keys, 1));
    EXPECT(d_scores_out.get() == scores_from(10, n));
    table.contains(n, d_others, bools(d_founds));
    EXPECT(d_founds.get() == std::vector<uint8_t>(n, 0));

    // By address: present keys, then all.
    table.find(n, d_keys, d_pointers, bools(d_founds));
    float first[dim];
    const auto pointers = d_pointers.get();
    EXPECT(forerun_gpu_copy_out(table.handle(), first, pointers[3], sizeof first, nullptr) == 0);
    EXPECT(first[2] == value_of(keys[3], 2, 1));
    table.find_and_update(n, d_keys, d_pointers, bools(d_founds), d_scores);
    EXPECT(d_founds.get() == std::vector<uint8_t>(n, 1) && d_pointers.get() == pointers);
    table.find_or_insert(n, d_others, d_pointers, bools(d_founds), d_scores_out);
    EXPECT(d_founds.get() == std::vector<uint8_t>(n, 0) && table.size() == 2 * n);
    table.find_or_insert(n, d_others, d_pointers, bools(d_founds), d_scores_out);
    EXPECT(d_founds.get() == std::vector<uint8_t>(n, 1) && table.size() == 2 * n);
    const Array<float> d_given(table, rows_of(others, 9));
    table.find_or_insert(n, d_others, d_given);
    EXPECT(d_given.get() == std::vector<float>(n * dim, 0));

    // Missing keys.
    const Array<int64_t> d_missed(table, keys_from(0, n));
    const Array<size_t> d_indices(table, std::vector<size_t>(n)), d_size(table, {99});
    const auto absent = keys_from(77777, 2);
    std::vector<int64_t> mixed = keys;
    mixed[5] = absent[0], mixed[9] = absent[1];
    const Array<int64_t> d_mixed(table, mixed);
    table.find(n, d_mixed, d_out, d_missed, d_indices, d_size);
    const auto indices = d_indices.get();
    EXPECT(d_size.get()[0] == 2 && indices[0] + indices[1] == 14);
    EXPECT(d_missed.get()[0] == mixed[indices[0]]);

    // Rows, scores, both, sums.
    const Array<float> d_rows_2(table, rows_of(keys, 2));
    const Array<float> d_ones(table, std::vector<float>(n * dim, 1));
    table.assign_values(n, d_keys, d_rows_2);
    expect_rows(table, keys, 2);
    table.assign(n, d_keys, d_rows, d_scores);
    table.assign_scores(n, d_keys, d_scores_out);
    table.assign(n, d_keys, static_cast<const uint64_t*>(d_scores));
    expect_rows(table, keys, 1);
    const Founds d_accumulate(table, std::vector<uint8_t>(n, 1));
    table.accum_or_assign(n, d_keys, d_ones, bools(d_accumulate), d_scores);
    expect_rows(table, keys, 2);

    // Locked entries stay, and are not `true` twice.
    const Founds d_outcomes(table, std::vector<uint8_t>(n, 99));
    table.lock_keys(2, d_keys, d_outcomes);
    EXPECT(d_outcomes.get()[1] == FORERUN_GPU_FOUND && d_outcomes.get()[2] == 99);
    table.lock_keys(2, d_keys, d_outcomes);
    EXPECT(d_outcomes.get()[1] == FORERUN_GPU_ENTRY_IS_PINNED);
    table.find_and_update(n, d_keys, d_pointers, bools(d_founds), d_scores);
    EXPECT(d_founds.get() == std::vector<uint8_t>(n, 1));
    table.erase(n, d_keys);
    EXPECT(table.size() == n + 2);
    table.unlock_keys(2, d_keys, d_outcomes);
    table.erase(n, d_keys);
    EXPECT(table.size() == n);

    EXPECT(refused([&] { table.insert_or_assign(n, d_keys, nullptr); }, "rows"));
    const auto sum = [&] {
        table.accum_or_assign(n, d_keys, d_ones, bools(d_founds), nullptr, 0, true);
    };
    EXPECT(refused(sum, "strategy"));
    int64_t* locked[1] = {nullptr};
    const auto find = [&] {
        table.find_or_insert(n, d_keys, d_pointers, bools(d_founds), nullptr, 0, true, false,
                             locked);
    };
    EXPECT(refused(find, "locked_key_ptrs"));
    table.clear();
    EXPECT(table.empty());
}

void a_thread_sees_that_another_has_locked_keys() {
    Table table;
    table.init(options_of(1 << 10));
    const size_t n = 100;
    const auto keys = keys_from(1, n);
    const Array<int64_t> d_keys(table, keys);
    const Array<float> d_rows(table, rows_of(keys, 1));
    const Array<uint64_t> d_scores(table, std::vector<uint64_t>(n, 7));
    const Array<float*> d_pointers(table, std::vector<float*>(n));
    const Founds d_founds(table, std::vector<uint8_t>(n, 99));
    table.insert_or_assign(n, d_keys, d_rows, d_scores);
    const auto update = [&] {
        table.find_and_update(n, d_keys, d_pointers, bools(d_founds), d_scores);
    };
    std::atomic<bool> is_locked{false};
    std::thread locks([&] {
        table.lock_keys(n, d_keys);
        is_locked = true;
    });
    while (!is_locked) update();
    update();
    EXPECT(d_founds.get() == std::vector<uint8_t>(n, 1));
    locks.join();
}

void a_full_table_gives_what_it_evicts() {
    Table table;
    auto options = options_of(64);
    options.max_bucket_size = 64;
    table.init(options);
    const size_t n = 150;
    const auto keys = keys_from(1, n);
    const Array<int64_t> d_keys(table, keys), d_evicted(table, std::vector<int64_t>(n));
    const Array<float> d_rows(table, rows_of(keys, 1));
    const Array<float> d_evicted_rows(table, std::vector<float>(n * dim));
    const Array<uint64_t> d_scores(table, scores_from(5, n));
    const Array<uint64_t> d_evicted_scores(table, scores_from(0, n));
    const Array<size_t> d_counter(table, {0});
    const size_t evicted = table.insert_and_evict(n, d_keys, d_rows, d_scores, d_evicted,
                                                  d_evicted_rows, d_evicted_scores);
    EXPECT(evicted == n - 64 && table.size() == 64);
    std::map<int64_t, std::vector<float>> all = contents(table);
    const auto evicted_keys = d_evicted.get();
    for (size_t k = 0; k < evicted; ++k)
        EXPECT(all.emplace(evicted_keys[k], std::vector<float>()).second);
    EXPECT(all.size() == n);
    table.insert_and_evict(n, d_keys, d_rows, d_scores, d_evicted, d_evicted_rows,
                           d_evicted_scores, d_counter);
    EXPECT(d_counter.get()[0] > 0);
    // Whatever the scores are, they count as they are given.
    const Array<uint64_t> d_low(table, scores_from(0, 1));
    const Array<int64_t> d_first(table, {424242});
    table.insert_or_assign(1, d_first, d_rows, d_low, nullptr, true, true);
    EXPECT(contents(table).count(424242) == 0);
}

void conditions_are_data() {
    Table table;
    table.init(options_of(1 << 10));
    const size_t n = 100;
    const auto keys = keys_from(1, n);
    const Array<int64_t> d_keys(table, keys), d_out(table, std::vector<int64_t>(1 << 10));
    const Array<float> d_rows(table, rows_of(keys, 1));
    const Array<float> d_values(table, std::vector<float>(dim << 10));
    const Array<uint64_t> d_scores(table, scores_from(0, n));
    const Array<uint64_t> d_scores_out(table, scores_from(0, 1 << 10));
    const Array<size_t> d_counter(table, {55});
    table.insert_or_assign(n, d_keys, d_rows, d_scores);
    forerun::Condition low;
    low.score_max = 29;
    table.size_if(low, d_counter);
    EXPECT(d_counter.get()[0] == 30);
    table.export_batch_if(low, 1 << 10, 0, d_counter, d_out, d_values, d_scores_out);
    EXPECT(d_counter.get()[0] == 30 && d_scores_out.get()[0] < 30);
    table.export_batch(1 << 10, 0, d_counter, d_out, d_values);
    EXPECT(d_counter.get()[0] == n);
    EXPECT(table.erase_if(low) == 30 && table.size() == n - 30);
}

// Entries in memory.
struct File : forerun::BaseKVFile<int64_t, float, uint64_t> {
    std::vector<int64_t> keys;
    std::vector<float> values;
    std::vector<uint64_t> scores;
    size_t at = 0, writes = 0;

    size_t read(const size_t n, const size_t of_dim, int64_t* to, float* vectors,
                uint64_t* to_scores) override {
        const size_t count = std::min(n, keys.size() - at);
        std::copy_n(keys.begin() + std::ptrdiff_t(at), count, to);
        std::copy_n(values.begin() + std::ptrdiff_t(at * of_dim), count * of_dim, vectors);
        std::copy_n(scores.begin() + std::ptrdiff_t(at), count, to_scores);
        at += count;
        return count;
    }
    size_t write(const size_t n, const size_t of_dim, const int64_t* from, const float* vectors,
                 const uint64_t* from_scores) override {
        keys.insert(keys.end(), from, from + n);
        values.insert(values.end(), vectors, vectors + n * of_dim);
        scores.insert(scores.end(), from_scores, from_scores + n);
        ++writes;
        return n;
    }
};

void it_grows_saves_and_loads(const char* path) {
    Table table;
    auto options = options_of(1 << 9);
    options.max_capacity = 1 << 12;
    options.table_mode = forerun::TableMode::kMemory;
    table.init(options);
    const size_t n = 2000;
    const auto keys = keys_from(1, n);
    const Array<int64_t> d_keys(table, keys);
    const Array<float> d_rows(table, rows_of(keys, 3));
    const Array<uint64_t> d_scores(table, scores_from(1, n));
    table.insert_or_assign(n, d_keys, d_rows, d_scores);
    EXPECT(table.capacity() > 1 << 9 && table.size() == n);
    table.reserve(1 << 20);  // beyond the maximum
    EXPECT(table.capacity() <= 1 << 12);
    table.set_max_capacity(1 << 13);
    table.reserve(1 << 13);
    EXPECT(table.capacity() == 1 << 13);
    expect_rows(table, keys, 3);

    File file;
    EXPECT(table.save(&file, 100 * (16 + dim * sizeof(float))) == n);
    EXPECT(file.keys.size() == n && file.writes > 10);
    table.save(path);

    // Under another strategy too, scores are loaded as they are.
    forerun::HashTable<int64_t, float, uint64_t, forerun::EvictStrategy::kLru> other;
    other.init(options_of(1 << 13));
    EXPECT(other.load(&file, 1 << 12) == n && other.size() == n);
    const Array<int64_t> o_keys(other, keys);
    const Array<float> o_rows(other, std::vector<float>(n * dim));
    const Array<uint64_t> o_scores(other, scores_from(0, n));
    const Founds o_founds(other, std::vector<uint8_t>(n));
    other.find(n, o_keys, o_rows, bools(o_founds), o_scores);
    EXPECT(o_founds.get() == std::vector<uint8_t>(n, 1) && o_rows.get() == rows_of(keys, 3));
    EXPECT(o_scores.get() == scores_from(1, n));

    Table loaded;
    loaded.init(options_of(1 << 13));
    EXPECT(loaded.load(path) == n);
    expect_rows(loaded, keys, 3);
    EXPECT(refused([&] { other.load(path); }, "Customized"));
    EXPECT(std::remove(path) == 0);
    EXPECT(refused([&] { loaded.load(path); }, path));
}

void epochs_and_other_types() {
    forerun::HashTable<uint64_t, double, uint64_t, forerun::EvictStrategy::kEpochLfu> table;
    auto options = options_of(1 << 10);
    options.dim = 1;
    table.init(options);
    const Array<uint64_t> d_keys(table, {1, 2}), d_scores(table, {0, 0});
    const Array<double> d_rows(table, {0.5, 0.25});
    const Founds d_flags(table, {1, 1}), d_founds(table, {0, 0});
    table.set_global_epoch(7);
    table.insert_or_assign(2, d_keys, d_rows);
    table.set_global_epoch(8);
    table.accum_or_assign(1, d_keys, d_rows, bools(d_flags));
    table.find(2, d_keys, d_rows, bools(d_founds), d_scores);
    EXPECT((d_rows.get() == std::vector<double>{1.0, 0.25}));
    EXPECT(d_scores.get()[0] >> 32 == 8 && d_scores.get()[1] >> 32 == 7);
    table.set_global_epoch(uint64_t(1) << 32);
    EXPECT(refused([&] { table.insert_or_assign(2, d_keys, d_rows); }, "epoch"));
}

// On the CPU it is not used; on a GPU its lack of memory is an error.
class NoMemory : public forerun::BaseAllocator {
  public:
    int asked = 0;
    void alloc(const forerun::MemoryType, void**, size_t, unsigned int) override {
        ++asked;
        throw std::runtime_error("none");
    }
    void alloc_async(const forerun::MemoryType, void**, size_t, forerun::stream_type) override {}
    void free(const forerun::MemoryType, void*) override {}
    void free_async(const forerun::MemoryType, void*, forerun::stream_type) override {}
};

void an_allocator_is_asked() {
    NoMemory allocator;
    Table table, plain;
    plain.init(options_of(128));
    int32_t device = 0;
    EXPECT(forerun_gpu_device(plain.handle(), &device) == FORERUN_GPU_OK);
    const bool fails = refused([&] { table.init(options_of(128), &allocator); }, "cannot allocate");
    EXPECT(fails == (device != FORERUN_GPU_DEVICE_CPU) && allocator.asked == int(fails));
}

}  // namespace

// As programs written for HierarchicalKV name it.
namespace nv {
namespace merlin = ::forerun;
}
using Renamed = nv::merlin::HashTable<uint64_t, float>;
static_assert(Renamed::evict_strategy == nv::merlin::EvictStrategy::kLru, "the default");

int main(int count, char** arguments) {
    EXPECT(count == 2);
    every_operation_by_key();
    a_thread_sees_that_another_has_locked_keys();
    a_full_table_gives_what_it_evicts();
    conditions_are_data();
    it_grows_saves_and_loads(arguments[1]);
    epochs_and_other_types();
    an_allocator_is_asked();
    std::puts("ok");
    return 0;
}
