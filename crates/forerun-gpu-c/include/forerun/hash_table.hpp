// A C++ class over forerun_gpu.h with the names of HierarchicalKV's nv::merlin::HashTable (compared
// with its commit ae24eec). C++17, no CUDA headers needed.
//
//   forerun::HashTable<int64_t, float, uint64_t, forerun::EvictStrategy::kLru> table;
//   forerun::HashTableOptions options;
//   options.init_capacity = options.max_capacity = 1 << 20;
//   options.dim = 16;
//   table.init(options);
//   table.insert_or_assign(n, keys, values, nullptr, stream);   // device memory; enqueued
//
// A program that uses HierarchicalKV may say  namespace nv { namespace merlin = ::forerun; }
//
// What differs:
//   - Keys have 8 bytes, none is reserved, and they may repeat: unique_key is ignored, as are
//     max_load_factor, block sizes, io_by_cpu, the memory pools and api_lock. Scores have 8 bytes.
//   - Only init, reserve, size, load_factor, empty, save, load and the forms that return a number
//     wait, and an insertion that may have to grow the table: it asks for the size first. Calls
//     that HierarchicalKV's lock keeps apart may overlap on different streams; the guide
//     docs/guide/gpu-table.md says which may.
//   - missed_indices and missed_size are size_type, not int. The count of evicted entries is added
//     to d_evicted_counter, which the caller sets to 0, as for HierarchicalKV.
//   - Conditions are data (forerun::Condition), not device functors: erase_if, export_batch_if,
//     size_if. for_each is absent.
//   - lock_keys and unlock_keys give outcomes (FORERUN_GPU_FOUND: done) and take no addresses of
//     keys. A locked entry can still be found.
//   - ignore_evict_strategy is only for insert_or_assign, and needs scores.
//   - accum_or_assign adds numbers of 4 and 8 bytes, not half or bfloat16.
//   - find_or_insert gives zeros, not unspecified values, to new rows by address.
//   - An allocator's memory must be aligned to 256 bytes, as cudaMalloc's is; alloc_async and
//     free_async are not called.
//   - A failure throws forerun::Error.
//   - Without a GPU the table is on the CPU, with arrays in ordinary memory.
#ifndef FORERUN_HASH_TABLE_HPP
#define FORERUN_HASH_TABLE_HPP

#include <forerun_gpu.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <mutex>
#include <stdexcept>
#include <type_traits>
#include <vector>

// What cudaStream_t points to.
struct CUstream_st;

namespace forerun {

using stream_type = ::CUstream_st*;

// A call that failed, with its message.
class Error : public std::runtime_error {
  public:
    Error(forerun_gpu_result result, const char* text)
        : std::runtime_error(text), result_(result) {}
    // FORERUN_GPU_INVALID_ARGUMENT, ...
    forerun_gpu_result result() const noexcept { return result_; }

  private:
    forerun_gpu_result result_;
};

struct EvictStrategy {
    enum EvictStrategyEnum {
        kLru = FORERUN_GPU_LRU,
        kLfu = FORERUN_GPU_LFU,
        kEpochLru = FORERUN_GPU_EPOCH_LRU,
        kEpochLfu = FORERUN_GPU_EPOCH_LFU,
        kCustomized = FORERUN_GPU_CUSTOMIZED,
    };
};

enum class TableMode {
    kThroughput = 0,  // one candidate bucket per key
    kMemory = 1,      // two
};

enum MemoryType { Device, Pinned, Host, Managed };

class BaseAllocator {
  public:
    BaseAllocator() = default;
    BaseAllocator(const BaseAllocator&) = delete;
    BaseAllocator& operator=(const BaseAllocator&) = delete;
    virtual ~BaseAllocator() = default;

    virtual void alloc(const MemoryType type, void** memory, size_t bytes,
                       unsigned int pinned_flags = 0) = 0;
    virtual void alloc_async(const MemoryType type, void** memory, size_t bytes,
                             stream_type stream) = 0;
    virtual void free(const MemoryType type, void* memory) = 0;
    virtual void free_async(const MemoryType type, void* memory, stream_type stream) = 0;
};

struct HashTableOptions {
    size_t init_capacity = 0;
    size_t max_capacity = 0;         // 0: init_capacity
    size_t max_hbm_for_vectors = 0;  // in bytes; other rows are in pinned host memory
    size_t max_bucket_size = 128;    // 16, 32, 64 or 128
    size_t dim = 64;
    float max_load_factor = 0.5f;    // ignored, as are the next two
    int block_size = 128;
    int io_block_size = 1024;
    int device_id = -1;              // -1: the current device; without a GPU, the CPU
    bool io_by_cpu = false;          // ignored
    bool api_lock = true;            // ignored
    TableMode table_mode = TableMode::kThroughput;
};

// Where HashTable::save writes and HashTable::load reads. Arrays are in ordinary memory.
template <class K, class V, class S> class BaseKVFile {
  public:
    virtual ~BaseKVFile() = default;
    // Both return the number of entries. Reading 0 ends a load.
    virtual size_t read(const size_t n, const size_t dim, K* keys, V* vectors, S* scores) = 0;
    virtual size_t write(const size_t n, const size_t dim, const K* keys, const V* vectors,
                         const S* scores) = 0;
};

// Entries with a score in a range and given bits of the key; all by default.
struct Condition {
    uint64_t score_min = 0;
    uint64_t score_max = std::numeric_limits<uint64_t>::max();
    uint64_t key_mask = 0;
    uint64_t key_value = 0;
};

template <typename K, typename V, typename S = uint64_t, int Strategy = EvictStrategy::kLru>
class HashTable {
    static_assert(std::is_integral<K>::value && sizeof(K) == 8, "keys are integers of 8 bytes");
    static_assert(std::is_same<S, uint64_t>::value, "scores are uint64_t");
    static_assert(std::is_trivially_copyable<V>::value, "rows are copied as bytes");
    static_assert(sizeof(size_t) == 8 && sizeof(bool) == 1, "the arrays have these elements");
    static_assert(Strategy >= EvictStrategy::kLru && Strategy <= EvictStrategy::kCustomized,
                  "an EvictStrategy");

  public:
    using size_type = size_t;
    using key_type = K;
    using value_type = V;
    using score_type = S;
    using allocator_type = BaseAllocator;
    static constexpr int evict_strategy = Strategy;

    HashTable() = default;
    HashTable(const HashTable&) = delete;
    HashTable& operator=(const HashTable&) = delete;
    // Waits for all work of the device.
    ~HashTable() { forerun_gpu_table_destroy(table_); }

    // Creates the table. The allocator must live as long as it.
    void init(const HashTableOptions& options, allocator_type* allocator = nullptr) {
        if (table_ != nullptr) return;
        if (options.dim > SIZE_MAX / sizeof(V)) refuse("dim: a row is larger than memory");
        const forerun_gpu_allocator callbacks = {allocator, &allocate, &deallocate};
        forerun_gpu_options given;
        check(forerun_gpu_options_init(&given, options.init_capacity, options.dim * sizeof(V)));
        given.max_capacity = std::max(options.max_capacity, options.init_capacity);
        given.device_row_bytes_max = options.max_hbm_for_vectors;
        given.width = uint32_t(options.max_bucket_size);
        given.candidates = options.table_mode == TableMode::kMemory ? 2 : 1;
        given.evict_strategy = Strategy;
        given.device = options.device_id < 0 ? int32_t(FORERUN_GPU_DEVICE_ANY) : options.device_id;
        if (allocator != nullptr) given.allocator = &callbacks;
        check(forerun_gpu_table_create(&given, &table_));
        options_ = options;
        max_capacity_ = given.max_capacity;
    }

    void insert_or_assign(const size_type n, const key_type* keys, const value_type* values,
                          const score_type* scores = nullptr, stream_type stream = 0,
                          bool /*unique_key*/ = true, bool ignore_evict_strategy = false) {
        grow_for(n, stream);
        const auto batch = with_rows(n, keys, values, scores);
        check(ignore_evict_strategy ? forerun_gpu_restore(table_, &batch, stream)
                                    : forerun_gpu_insert_or_assign(table_, &batch, stream));
    }

    void insert_and_evict(const size_type n, const key_type* keys, const value_type* values,
                          const score_type* scores, key_type* evicted_keys,
                          value_type* evicted_values, score_type* evicted_scores,
                          size_type* d_evicted_counter, stream_type stream = 0,
                          bool /*unique_key*/ = true, bool ignore_evict_strategy = false) {
        expect_strategy(ignore_evict_strategy);
        grow_for(n, stream);
        auto batch = with_rows(n, keys, values, scores);
        batch.entries_out =
            entries(d_evicted_counter, evicted_keys, evicted_values, evicted_scores);
        check(forerun_gpu_insert_and_evict(table_, &batch, stream));
    }
    // Returns the number of evicted entries. Waits.
    size_type insert_and_evict(const size_type n, const key_type* keys, const value_type* values,
                               const score_type* scores, key_type* evicted_keys,
                               value_type* evicted_values, score_type* evicted_scores,
                               stream_type stream = 0, bool unique_key = true,
                               bool ignore_evict_strategy = false) {
        return counted(stream, [&](size_type* counter) {
            insert_and_evict(n, keys, values, scores, evicted_keys, evicted_values,
                             evicted_scores, counter, stream, unique_key, ignore_evict_strategy);
        });
    }

    void accum_or_assign(const size_type n, const key_type* keys,
                         const value_type* value_or_deltas, const bool* accum_or_assigns,
                         const score_type* scores = nullptr, stream_type stream = 0,
                         bool ignore_evict_strategy = false) {
        expect_strategy(ignore_evict_strategy);
        grow_for(n, stream);
        auto batch = with_rows(n, keys, value_or_deltas, scores);
        batch.flags = reinterpret_cast<const uint8_t*>(accum_or_assigns);
        batch.element = element();
        check(forerun_gpu_accumulate_or_assign(table_, &batch, stream));
    }

    void find_or_insert(const size_type n, const key_type* keys, value_type* values,
                        score_type* scores = nullptr, stream_type stream = 0,
                        bool /*unique_key*/ = true, bool ignore_evict_strategy = false) {
        expect_strategy(ignore_evict_strategy);
        grow_for(n, stream);
        auto batch = with_rows(n, keys, values, scores);
        batch.rows_out = values, batch.scores_out = scores;
        check(forerun_gpu_find_or_insert(table_, &batch, stream));
    }
    // Gives addresses of rows, nullptr for refused keys, and which keys were present before.
    void find_or_insert(const size_type n, const key_type* keys, value_type** values, bool* founds,
                        score_type* scores = nullptr, stream_type stream = 0,
                        bool /*unique_key*/ = true, bool ignore_evict_strategy = false,
                        key_type** locked_key_ptrs = nullptr) {
        expect_strategy(ignore_evict_strategy);
        if (locked_key_ptrs != nullptr) refuse("locked_key_ptrs: there are no addresses of keys");
        grow_for(n, stream);
        if (founds != nullptr) contains(n, keys, founds, stream);
        auto batch = with_keys(n, keys, scores);
        batch.pointers_out = reinterpret_cast<void**>(values), batch.scores_out = scores;
        check(forerun_gpu_find_or_insert(table_, &batch, stream));
    }

    void assign(const size_type n, const key_type* keys, const value_type* values,
                const score_type* scores = nullptr, stream_type stream = 0,
                bool /*unique_key*/ = true) {
        const auto batch = with_rows(n, keys, values, scores);
        check(forerun_gpu_assign(table_, &batch, stream));
    }
    void assign(const size_type n, const key_type* keys, const score_type* scores = nullptr,
                stream_type stream = 0, bool unique_key = true) {
        assign_scores(n, keys, scores, stream, unique_key);
    }
    void assign_scores(const size_type n, const key_type* keys, const score_type* scores = nullptr,
                       stream_type stream = 0, bool /*unique_key*/ = true) {
        const auto batch = with_keys(n, keys, scores);
        check(forerun_gpu_assign_scores(table_, &batch, stream));
    }
    void assign_values(const size_type n, const key_type* keys, const value_type* values,
                       stream_type stream = 0, bool /*unique_key*/ = true) {
        const auto batch = with_rows(n, keys, values, nullptr);
        check(forerun_gpu_assign_rows(table_, &batch, stream));
    }

    void find(const size_type n, const key_type* keys, value_type* values, bool* founds,
              score_type* scores = nullptr, stream_type stream = 0) const {
        auto batch = with_keys(n, keys, nullptr);
        batch.rows_out = values, batch.scores_out = scores, batch.status_out = bytes(founds);
        check(forerun_gpu_find(table_, &batch, stream));
    }
    // Gives the keys that are absent, their positions, and their number.
    void find(const size_type n, const key_type* keys, value_type* values, key_type* missed_keys,
              size_type* missed_indices, size_type* missed_size, score_type* scores = nullptr,
              stream_type stream = 0) const {
        check(forerun_gpu_fill(table_, missed_size, 0, sizeof(size_type), stream));
        auto batch = with_keys(n, keys, nullptr);
        batch.rows_out = values, batch.scores_out = scores;
        batch.entries_out = entries(missed_size, missed_keys, nullptr, nullptr);
        batch.entries_out.positions = words(missed_indices);
        check(forerun_gpu_find(table_, &batch, stream));
    }
    // Gives addresses of rows, nullptr for absent keys.
    void find(const size_type n, const key_type* keys, value_type** values, bool* founds,
              score_type* scores = nullptr, stream_type stream = 0,
              bool /*unique_key*/ = true) const {
        auto batch = with_keys(n, keys, nullptr);
        batch.pointers_out = reinterpret_cast<void**>(values);
        batch.scores_out = scores, batch.status_out = bytes(founds);
        check(forerun_gpu_find(table_, &batch, stream));
    }
    void find_and_update(const size_type n, const key_type* keys, value_type** values,
                         bool* founds, score_type* scores = nullptr, stream_type stream = 0,
                         bool /*unique_key*/ = true) {
        auto batch = with_keys(n, keys, scores);
        batch.pointers_out = reinterpret_cast<void**>(values), batch.scores_out = scores;
        // The outcome of a locked key is not a bool.
        if (founds != nullptr && has_locked_.load(std::memory_order_relaxed))
            contains(n, keys, founds, stream);
        else
            batch.status_out = bytes(founds);
        check(forerun_gpu_find_and_update(table_, &batch, stream));
    }
    void contains(const size_type n, const key_type* keys, bool* founds,
                  stream_type stream = 0) const {
        auto batch = with_keys(n, keys, nullptr);
        batch.status_out = bytes(founds);
        check(forerun_gpu_find(table_, &batch, stream));
    }

    void lock_keys(const size_type n, const key_type* keys, uint8_t* outcomes = nullptr,
                   stream_type stream = 0) {
        has_locked_.store(true, std::memory_order_relaxed);
        auto batch = with_keys(n, keys, nullptr);
        batch.status_out = outcomes;
        check(forerun_gpu_lock(table_, &batch, stream));
    }
    void unlock_keys(const size_type n, const key_type* keys, uint8_t* outcomes = nullptr,
                     stream_type stream = 0) {
        auto batch = with_keys(n, keys, nullptr);
        batch.status_out = outcomes;
        check(forerun_gpu_unlock(table_, &batch, stream));
    }

    void erase(const size_type n, const key_type* keys, stream_type stream = 0) {
        const auto batch = with_keys(n, keys, nullptr);
        check(forerun_gpu_erase(table_, &batch, stream));
    }
    // Returns the number of entries that it has erased. Waits.
    size_type erase_if(const Condition& condition, stream_type stream = 0) {
        const auto given = raw(condition);
        return counted(stream, [&](size_type* counter) {
            check(forerun_gpu_erase_if(table_, &given, words(counter), stream));
        });
    }
    void clear(stream_type stream = 0) { check(forerun_gpu_clear(table_, stream)); }

    // Gives the entries in n slots from `offset` on, and their number.
    void export_batch(size_type n, const size_type offset, size_type* d_counter, key_type* keys,
                      value_type* values, score_type* scores = nullptr,
                      stream_type stream = 0) const {
        export_batch_if(Condition(), n, offset, d_counter, keys, values, scores, stream);
    }
    // Returns their number. Waits.
    size_type export_batch(const size_type n, const size_type offset, key_type* keys,
                           value_type* values, score_type* scores = nullptr,
                           stream_type stream = 0) const {
        return counted(stream, [&](size_type* counter) {
            export_batch(n, offset, counter, keys, values, scores, stream);
        });
    }
    void export_batch_if(const Condition& condition, size_type n, const size_type offset,
                         size_type* d_counter, key_type* keys, value_type* values,
                         score_type* scores = nullptr, stream_type stream = 0) const {
        const auto given = raw(condition);
        const auto out = entries(d_counter, keys, values, scores);
        check(forerun_gpu_fill(table_, d_counter, 0, sizeof(size_type), stream));
        check(forerun_gpu_export_batch(table_, offset, n, &given, &out, stream));
    }

    bool empty(stream_type stream = 0) const { return size(stream) == 0; }
    size_type size(stream_type stream = 0) const {
        uint64_t size = 0;
        check(forerun_gpu_size(table_, &size, stream));
        return size;
    }
    void size_if(const Condition& condition, size_type* d_counter, stream_type stream = 0) const {
        const auto given = raw(condition);
        check(forerun_gpu_fill(table_, d_counter, 0, sizeof(size_type), stream));
        check(forerun_gpu_size_if(table_, &given, words(d_counter), stream));
    }
    size_type capacity() const {
        uint64_t capacity = 0;
        check(forerun_gpu_capacity(table_, &capacity));
        return capacity;
    }
    // Does nothing beyond max_capacity.
    void reserve(const size_type new_capacity, stream_type stream = 0) {
        if (new_capacity <= max_capacity_)
            check(forerun_gpu_reserve(table_, new_capacity, stream));
    }
    float load_factor(stream_type stream = 0) const {
        return float(double(size(stream)) / double(capacity()));
    }
    void set_max_capacity(size_type new_max_capacity) {
        check(forerun_gpu_set_max_capacity(table_, new_max_capacity));
        max_capacity_ = new_max_capacity;
    }
    size_type dim() const noexcept { return options_.dim; }
    size_type max_bucket_size() const noexcept { return options_.max_bucket_size; }
    size_type bucket_count() const { return capacity() / max_bucket_size(); }
    // Of the epoch strategies, up to 2^32 - 1, for later operations.
    void set_global_epoch(const uint64_t epoch) {
        epoch_.store(epoch, std::memory_order_relaxed);
    }

    // Writes all entries, max_workspace_size bytes at a time, and returns their number. Waits.
    size_type save(BaseKVFile<K, V, S>* file, const size_t max_workspace_size = 1 << 20,
                   stream_type stream = 0) const {
        Workspace work(*this, max_workspace_size);
        size_type all = 0;
        for (size_type first = 0; first < capacity(); first += work.n) {
            const size_type n = export_batch(work.n, first, work.keys, work.values, work.scores,
                                             stream);
            if (n == 0) continue;
            work.copy_out(n, stream);
            all += file->write(n, dim(), work.host_keys.data(), work.host_values.data(),
                               work.host_scores.data());
        }
        return all;
    }
    // Inserts entries with their scores until the file has no more, and returns their number.
    size_type load(BaseKVFile<K, V, S>* file, const size_t max_workspace_size = 1 << 20,
                   stream_type stream = 0) {
        Workspace work(*this, max_workspace_size);
        size_type all = 0;
        for (;;) {
            const size_type n = file->read(work.n, dim(), work.host_keys.data(),
                                           work.host_values.data(), work.host_scores.data());
            if (n == 0) return all;
            if (n > work.n) refuse("the file has read more entries than it was asked for");
            work.copy_in(n, stream);
            insert_or_assign(n, work.keys, work.values, work.scores, stream, true, true);
            all += n;
        }
    }
    // Forerun's own file. Waits.
    void save(const char* path, stream_type stream = 0) const {
        check(forerun_gpu_save(table_, path, stream));
    }
    size_type load(const char* path, stream_type stream = 0) {
        uint64_t entries = 0;
        check(forerun_gpu_load(table_, path, &entries, stream));
        return entries;
    }

    // The table for the functions of forerun_gpu.h.
    forerun_gpu_table* handle() const noexcept { return table_; }

  private:
    // One u64 in the table's kind of memory, for the forms that return a number.
    struct Counter {
        std::mutex mutex;
        void* memory = nullptr;  // freed with the table
    };

    // Memory on both sides for n entries.
    struct Workspace {
        const HashTable& table;
        size_type n;
        key_type* keys = nullptr;
        value_type* values = nullptr;
        score_type* scores = nullptr;
        std::vector<key_type> host_keys;
        std::vector<value_type> host_values;
        std::vector<score_type> host_scores;

        Workspace(const HashTable& of, size_t bytes)
            : table(of),
              n(std::max<size_t>(1, bytes / (16 + of.dim() * sizeof(V)))),
              host_keys(n),
              host_values(n * of.dim()),
              host_scores(n) {
            try {
                keys = table.template allocated<key_type>(n);
                values = table.template allocated<value_type>(n * of.dim());
                scores = table.template allocated<score_type>(n);
            } catch (...) {
                free();
                throw;
            }
        }
        Workspace(const Workspace&) = delete;
        Workspace& operator=(const Workspace&) = delete;
        ~Workspace() { free(); }

        void free() noexcept {
            for (void* memory : {static_cast<void*>(keys), static_cast<void*>(values),
                                 static_cast<void*>(scores)})
                forerun_gpu_memory_free(table.table_, memory);
        }
        void copy_out(size_type count, stream_type stream) {
            const size_t row = table.dim() * sizeof(V);
            check(forerun_gpu_copy_out(table.table_, host_keys.data(), keys, count * 8, stream));
            check(forerun_gpu_copy_out(table.table_, host_values.data(), values, count * row,
                                       stream));
            check(forerun_gpu_copy_out(table.table_, host_scores.data(), scores, count * 8,
                                       stream));
        }
        void copy_in(size_type count, stream_type stream) {
            const size_t row = table.dim() * sizeof(V);
            check(forerun_gpu_copy_in(table.table_, keys, host_keys.data(), count * 8, stream));
            check(forerun_gpu_copy_in(table.table_, values, host_values.data(), count * row,
                                      stream));
            check(forerun_gpu_copy_in(table.table_, scores, host_scores.data(), count * 8,
                                      stream));
        }
    };

    forerun_gpu_table* table_ = nullptr;
    HashTableOptions options_;
    size_type max_capacity_ = 0;
    // Relaxed: both stand for themselves. A thread that knows that set_global_epoch or lock_keys has
    // returned sees the new value; for a call beside them either is right, and no order of two
    // threads' calls would follow from a stronger one. Flags of a find_and_update beside the first
    // lock_keys may hold FORERUN_GPU_ENTRY_IS_PINNED.
    std::atomic<uint64_t> epoch_{0};
    std::atomic<bool> has_locked_{false};
    mutable Counter counter_;

    static void check(forerun_gpu_result result) {
        if (result != FORERUN_GPU_OK) throw Error(result, forerun_gpu_last_error());
    }
    [[noreturn]] static void refuse(const char* why) {
        throw Error(FORERUN_GPU_INVALID_ARGUMENT, why);
    }
    static void expect_strategy(bool ignore_evict_strategy) {
        if (ignore_evict_strategy) refuse("only insert_or_assign can ignore the strategy");
    }

    static void* allocate(void* context, int32_t memory, size_t bytes) {
        void* given = nullptr;
        try {
            static_cast<BaseAllocator*>(context)->alloc(type_of(memory), &given, bytes);
        } catch (...) {
            return nullptr;  // the library reports the lack of memory
        }
        return given;
    }
    static void deallocate(void* context, int32_t memory, void* given) {
        try {
            static_cast<BaseAllocator*>(context)->free(type_of(memory), given);
        } catch (...) {
            // A table that is destroyed has nobody to tell.
        }
    }
    static MemoryType type_of(int32_t memory) {
        return memory == FORERUN_GPU_DEVICE_MEMORY ? MemoryType::Device : MemoryType::Pinned;
    }

    template <typename T> T* allocated(size_t n) const {
        void* memory = nullptr;
        check(forerun_gpu_memory_alloc(table_, n * sizeof(T), &memory));
        return static_cast<T*>(memory);
    }

    template <typename Count> size_type counted(stream_type stream, Count count) const {
        const std::lock_guard<std::mutex> lock(counter_.mutex);
        if (counter_.memory == nullptr) counter_.memory = allocated<size_type>(1);
        size_type found = 0;
        check(forerun_gpu_fill(table_, counter_.memory, 0, sizeof(found), stream));
        count(static_cast<size_type*>(counter_.memory));
        check(forerun_gpu_copy_out(table_, &found, counter_.memory, sizeof(found), stream));
        return found;
    }

    void grow_for(size_type n, stream_type stream) {
        check(forerun_gpu_reserve_for(table_, n, stream));
    }

    static uint8_t* bytes(bool* founds) { return reinterpret_cast<uint8_t*>(founds); }
    static uint64_t* words(size_type* sizes) { return reinterpret_cast<uint64_t*>(sizes); }
    static forerun_gpu_condition raw(const Condition& condition) {
        return {condition.score_min, condition.score_max, condition.key_mask,
                condition.key_value};
    }
    static forerun_gpu_entries entries(size_type* count, key_type* keys, value_type* values,
                                       score_type* scores) {
        return {words(count), reinterpret_cast<uint64_t*>(keys), values, scores, nullptr};
    }
    forerun_gpu_batch with_keys(size_type n, const key_type* keys, const score_type* scores) const {
        forerun_gpu_batch batch = FORERUN_GPU_BATCH_INIT;
        batch.count = n;
        batch.keys = reinterpret_cast<const uint64_t*>(keys);
        batch.scores = scores;
        batch.epoch = epoch_.load(std::memory_order_relaxed);
        return batch;
    }
    forerun_gpu_batch with_rows(size_type n, const key_type* keys, const value_type* values,
                                const score_type* scores) const {
        auto batch = with_keys(n, keys, scores);
        batch.rows = values;
        return batch;
    }

    static constexpr uint32_t element() {
        static_assert((std::is_floating_point<V>::value || std::is_integral<V>::value) &&
                          (sizeof(V) == 4 || sizeof(V) == 8),
                      "float, double and integers of 4 and 8 bytes are added up");
        if (std::is_floating_point<V>::value)
            return sizeof(V) == 4 ? FORERUN_GPU_ELEMENT_F32 : FORERUN_GPU_ELEMENT_F64;
        return sizeof(V) == 4 ? FORERUN_GPU_ELEMENT_I32 : FORERUN_GPU_ELEMENT_I64;
    }
};

}  // namespace forerun

#endif  // FORERUN_HASH_TABLE_HPP
