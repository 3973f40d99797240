// The C interface of Forerun's GPU hash table: u64 keys, rows of bytes, eviction by score.
//
//   forerun_gpu_options options;
//   forerun_gpu_options_init(&options, 1 << 20, 64);           // slots, bytes per row
//   forerun_gpu_table* table;
//   if (forerun_gpu_table_create(&options, &table) != FORERUN_GPU_OK)
//       fail(forerun_gpu_last_error());
//   forerun_gpu_batch batch = FORERUN_GPU_BATCH_INIT;
//   batch.count = n, batch.keys = keys, batch.rows = rows;     // device memory
//   forerun_gpu_insert_or_assign(table, &batch, stream);       // enqueued, not waited for
//
// docs/guide/gpu-table.md describes the operations, and which of them may run at the same time.
//
// A table is on a GPU, or in a process without one, on the CPU:
//
//   on a GPU    arrays are device memory of the table's device, or pinned host memory. A stream is
//               a cudaStream_t or CUstream of its primary context, or NULL for the default stream.
//               An operation is one launch: it neither waits nor allocates, and may be captured
//               into a CUDA graph. Functions that wait say so.
//   on the CPU  arrays are ordinary memory, calls are done when they return, streams do not matter.
//
// Until the stream has run an operation, its arrays must stay allocated, nothing else may write
// what it reads, and nothing else may use what it writes. rows_out may be rows, and scores_out may
// be scores. Addresses are checked as far as possible: null, alignment, and whether the first and
// the last byte are in memory that the device can use.
//
// All functions may be called from several threads. No function changes the calling thread's
// current device. A function that fails changes nothing, unless the device failed or a file was
// being read or written.
#ifndef FORERUN_GPU_H
#define FORERUN_GPU_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// What functions return.
typedef int32_t forerun_gpu_result;
enum {
    FORERUN_GPU_OK = 0,
    FORERUN_GPU_INVALID_ARGUMENT = 1,  // an option, an address, an array that is missing
    FORERUN_GPU_OUT_OF_MEMORY = 2,
    FORERUN_GPU_NO_DEVICE = 3,         // no driver, no device, or none with this number
    FORERUN_GPU_DEVICE_FAILED = 4,     // the driver's error, or a fork of a process that uses CUDA
    FORERUN_GPU_IO = 5,                // the system's error for a file
    FORERUN_GPU_CORRUPT_FILE = 6,
    FORERUN_GPU_PINNED = 7,            // a larger table has no room for all pinned entries
    FORERUN_GPU_PANIC = 8,             // a defect of the library
};

// The message of this thread's last failure, "" before the first. It stays valid until the next
// failure of this thread.
const char* forerun_gpu_last_error(void);

// "0.1.0".
const char* forerun_gpu_version(void);

// How the score of an entry is computed. The lowest is evicted first.
enum {
    FORERUN_GPU_LRU = 0,         // the time of the last write or update
    FORERUN_GPU_LFU = 1,         // the number of uses, or the sum of given scores
    FORERUN_GPU_EPOCH_LRU = 2,   // the batch's epoch, then the time, of the last 50 days
    FORERUN_GPU_EPOCH_LFU = 3,   // the batch's epoch, then the uses
    FORERUN_GPU_CUSTOMIZED = 4,  // the score that the batch gives
};

// Kinds of memory for an allocator.
enum {
    FORERUN_GPU_DEVICE_MEMORY = 0,
    FORERUN_GPU_PINNED_HOST_MEMORY = 1,  // for rows beyond device_row_bytes_max
};

// Allocates a table's memory, also its staging memory. It is never called for an operation on a
// stream, and any thread may call it. A table on the CPU does not use it.
typedef struct forerun_gpu_allocator {
    // Passed to both functions.
    void* context;
    // Returns at least `bytes` bytes at a multiple of 256 on which no work is pending, or NULL.
    void* (*allocate)(void* context, int32_t memory, size_t bytes);
    // The device has no work on the memory.
    void (*deallocate)(void* context, int32_t memory, void* address);
} forerun_gpu_allocator;

// Where a table is, instead of the number of a device.
enum {
    // The device of the calling thread's current context, otherwise the first; without a GPU, the
    // CPU.
    FORERUN_GPU_DEVICE_ANY = -1,
    FORERUN_GPU_DEVICE_CPU = -2,
};

// The options of a table. forerun_gpu_options_init sets all of them.
typedef struct forerun_gpu_options {
    size_t struct_bytes;            // sizeof(forerun_gpu_options)
    uint64_t capacity;              // slots, rounded up to whole buckets
    uint64_t max_capacity;          // what forerun_gpu_reserve may reach; capacity
    uint64_t row_bytes;             // 0 for a table of keys and scores only
    uint64_t device_row_bytes_max;  // other rows are in pinned host memory; UINT64_MAX
    uint32_t width;                 // slots per bucket: 16, 32, 64 or 128; 128
    uint32_t candidates;            // candidate buckets per key: 1 or 2; 1
    uint32_t evict_strategy;        // FORERUN_GPU_LRU
    uint32_t score_bytes;           // 4 (counts and given scores only) or 8; 8
    int32_t device;                 // its number; FORERUN_GPU_DEVICE_ANY
    uint32_t reserved;              // 0
    // Copied, as a struct; NULL: the driver allocates.
    const forerun_gpu_allocator* allocator;
} forerun_gpu_options;

typedef struct forerun_gpu_table forerun_gpu_table;

// Sets the defaults, for this many slots and bytes per row.
forerun_gpu_result forerun_gpu_options_init(forerun_gpu_options* options, uint64_t capacity,
                                            uint64_t row_bytes);
// Creates a table. Waits.
forerun_gpu_result forerun_gpu_table_create(const forerun_gpu_options* options,
                                            forerun_gpu_table** table);
// Destroys a table, after all work of the device; NULL is no table.
void forerun_gpu_table_destroy(forerun_gpu_table* table);

// The number of the table's device, or FORERUN_GPU_DEVICE_CPU.
forerun_gpu_result forerun_gpu_device(const forerun_gpu_table* table, int32_t* device);
// Number of slots.
forerun_gpu_result forerun_gpu_capacity(const forerun_gpu_table* table, uint64_t* capacity);
// Number of entries, after the work on the stream. Waits.
forerun_gpu_result forerun_gpu_size(const forerun_gpu_table* table, uint64_t* size, void* stream);
// Grows the table to at least this many slots, up to max_capacity. Addresses and slots of entries
// become invalid. Waits for the stream; no other stream may use the table.
forerun_gpu_result forerun_gpu_reserve(forerun_gpu_table* table, uint64_t capacity, void* stream);
// Grows the table if it may, and if this many new keys might fill a bucket. A table that has
// reached max_capacity does not wait. Otherwise like forerun_gpu_reserve.
forerun_gpu_result forerun_gpu_reserve_for(forerun_gpu_table* table, uint64_t keys, void* stream);
// Sets the capacity up to which the table may grow. A table does not shrink.
forerun_gpu_result forerun_gpu_set_max_capacity(forerun_gpu_table* table, uint64_t max_capacity);
// Writes all entries to a file, after the work on the stream. Waits.
forerun_gpu_result forerun_gpu_save(forerun_gpu_table* table, const char* path, void* stream);
// Inserts the entries of a saved table with their scores, after the work on the stream, and sets
// `entries`, unless NULL, to their number. Waits.
forerun_gpu_result forerun_gpu_load(forerun_gpu_table* table, const char* path, uint64_t* entries,
                                    void* stream);

// Outcomes of an operation for a key: values of status_out.
enum {
    FORERUN_GPU_ABSENT = 0,
    FORERUN_GPU_FOUND = 1,
    FORERUN_GPU_INSERTED = 2,
    FORERUN_GPU_EVICTED = 3,          // inserted in place of an entry whose score was not greater
    FORERUN_GPU_REFUSED = 4,          // the buckets are full of greater scores or pinned entries
    FORERUN_GPU_ENTRY_IS_PINNED = 5,  // found, but not changed
};

// Types of the elements that forerun_gpu_accumulate_or_assign adds up. Integers wrap.
enum {
    FORERUN_GPU_ELEMENT_F32 = 0,
    FORERUN_GPU_ELEMENT_F64 = 1,
    FORERUN_GPU_ELEMENT_I32 = 2,
    FORERUN_GPU_ELEMENT_I64 = 3,
};

// Output for entries. Number n is written at position n of each array.
typedef struct forerun_gpu_entries {
    uint64_t* count;      // their number is added; set it to 0 first. NULL: no output
    uint64_t* keys;
    void* rows;           // optional
    uint64_t* scores;     // optional
    uint64_t* positions;  // optional: the key's position in the batch, or its slot (export)
} forerun_gpu_entries;

// Keys and the arrays that go with them, one element per key. Only keys are needed by every
// operation; optional arrays are NULL. Keys may repeat.
typedef struct forerun_gpu_batch {
    size_t struct_bytes;       // sizeof(forerun_gpu_batch)
    uint64_t count;            // keys, or their maximum if count_at is set
    const uint64_t* count_at;  // the number of keys, read when the operation runs
    const uint64_t* keys;
    const void* rows;          // input
    const uint64_t* scores;    // input; of a strategy that does not use them, ignored
    const uint8_t* flags;      // of forerun_gpu_accumulate_or_assign
    uint64_t epoch;            // of the epoch strategies, up to 2^32 - 1
    void* rows_out;            // of absent keys unchanged
    uint64_t* scores_out;      // of absent keys unchanged
    uint64_t* slots_out;       // UINT64_MAX: absent
    void** pointers_out;       // addresses of rows in the table; NULL: absent
    uint8_t* status_out;       // FORERUN_GPU_ABSENT, ...
    forerun_gpu_entries entries_out;  // room for an entry per key, after those that are counted
    uint32_t element;          // of forerun_gpu_accumulate_or_assign
    uint32_t no_writers;       // a promise: during this lookup, no operation changes entries
} forerun_gpu_batch;

#define FORERUN_GPU_BATCH_INIT                                                                  \
    { sizeof(forerun_gpu_batch), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, { 0, 0, 0, 0, 0 }, 0, 0 }

// Sets the rows of keys. An absent key is inserted, if necessary in place of the entry with the
// lowest score in its full buckets.
forerun_gpu_result forerun_gpu_insert_or_assign(forerun_gpu_table* table,
                                                const forerun_gpu_batch* batch, void* stream);
// The same, and gives to entries_out what the table does not keep: evicted and refused entries.
forerun_gpu_result forerun_gpu_insert_and_evict(forerun_gpu_table* table,
                                                const forerun_gpu_batch* batch, void* stream);
// Gives the rows of present keys to rows_out and pointers_out. Inserts absent keys with `rows`, or
// with zeros if that is NULL.
forerun_gpu_result forerun_gpu_find_or_insert(forerun_gpu_table* table,
                                              const forerun_gpu_batch* batch, void* stream);
// Adds rows to those of present keys whose flag is not 0, and inserts absent keys whose flag is 0.
forerun_gpu_result forerun_gpu_accumulate_or_assign(forerun_gpu_table* table,
                                                    const forerun_gpu_batch* batch, void* stream);
// Sets rows and scores of present keys.
forerun_gpu_result forerun_gpu_assign(forerun_gpu_table* table, const forerun_gpu_batch* batch,
                                      void* stream);
// Sets rows of present keys and keeps their scores.
forerun_gpu_result forerun_gpu_assign_rows(forerun_gpu_table* table, const forerun_gpu_batch* batch,
                                           void* stream);
// Updates the scores of present keys by the strategy.
forerun_gpu_result forerun_gpu_assign_scores(forerun_gpu_table* table,
                                             const forerun_gpu_batch* batch, void* stream);
// Gives the rows of present keys to rows_out and pointers_out, and updates their scores.
forerun_gpu_result forerun_gpu_find_and_update(forerun_gpu_table* table,
                                               const forerun_gpu_batch* batch, void* stream);
// Pins entries: only forerun_gpu_clear changes, erases or evicts them until they are unlocked.
forerun_gpu_result forerun_gpu_lock(forerun_gpu_table* table, const forerun_gpu_batch* batch,
                                    void* stream);
forerun_gpu_result forerun_gpu_unlock(forerun_gpu_table* table, const forerun_gpu_batch* batch,
                                      void* stream);
// Erases entries that are not pinned.
forerun_gpu_result forerun_gpu_erase(forerun_gpu_table* table, const forerun_gpu_batch* batch,
                                     void* stream);
// forerun_gpu_insert_or_assign with the given scores under every strategy.
forerun_gpu_result forerun_gpu_restore(forerun_gpu_table* table, const forerun_gpu_batch* batch,
                                       void* stream);

// Looks up keys: gives rows_out, scores_out, slots_out, pointers_out and status_out (found or
// absent), and to entries_out the keys and positions of absent ones. An address in pointers_out
// belongs to its key until the key is erased or evicted, or the table is cleared or grown.
forerun_gpu_result forerun_gpu_find(const forerun_gpu_table* table, const forerun_gpu_batch* batch,
                                    void* stream);

// Formats of rows for forerun_gpu_find_pooled.
enum {
    FORERUN_GPU_ROW_F32 = 0,
    FORERUN_GPU_ROW_F16 = 1,
    FORERUN_GPU_ROW_BF16 = 2,
    FORERUN_GPU_ROW_QINT8 = 3,   // i8 values, then an f32 scale
    FORERUN_GPU_ROW_QUINT8 = 4,  // u8 values, then scale and bias
};
enum { FORERUN_GPU_SUM = 0, FORERUN_GPU_MEAN = 1 };
// Types of pooled rows.
enum { FORERUN_GPU_POOLED_F32 = 0, FORERUN_GPU_POOLED_F16 = 1, FORERUN_GPU_POOLED_BF16 = 2 };

// Bags of keys. Bag b has the keys from offsets[b] to offsets[b + 1].
typedef struct forerun_gpu_bags {
    size_t struct_bytes;  // sizeof(forerun_gpu_bags)
    uint64_t count;       // as in forerun_gpu_batch
    const uint64_t* count_at;
    const uint64_t* keys;
    uint64_t bags;
    const uint64_t* offsets;  // bags + 1
    const float* weights;     // optional: one per key
    void* rows_out;           // one pooled row per bag
    uint32_t* found_out;      // optional: keys of each bag that were found
    float* sums;              // forerun_gpu_pooled_sums_bytes bytes, overwritten
    uint32_t row_format;
    uint32_t pooling;
    uint32_t output;
    uint32_t no_writers;  // as in forerun_gpu_batch
} forerun_gpu_bags;

#define FORERUN_GPU_BAGS_INIT \
    { sizeof(forerun_gpu_bags), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

// Adds up the rows of each bag's keys, dequantized; absent keys count as zeros.
forerun_gpu_result forerun_gpu_find_pooled(const forerun_gpu_table* table,
                                           const forerun_gpu_bags* bags, void* stream);
// The bytes of `sums` that such a lookup needs; usually 0.
forerun_gpu_result forerun_gpu_pooled_sums_bytes(const forerun_gpu_table* table,
                                                 const forerun_gpu_bags* bags, uint64_t* bytes);

// Entries with score_min <= score <= score_max and (key & key_mask) == key_value.
typedef struct forerun_gpu_condition {
    uint64_t score_min;
    uint64_t score_max;
    uint64_t key_mask;
    uint64_t key_value;
} forerun_gpu_condition;

// Adds to `count`, in the table's kind of memory, the number of entries that meet a condition.
forerun_gpu_result forerun_gpu_size_if(forerun_gpu_table* table,
                                       const forerun_gpu_condition* condition, uint64_t* count,
                                       void* stream);
// Erases those that are not pinned, and adds their number to `count`.
forerun_gpu_result forerun_gpu_erase_if(forerun_gpu_table* table,
                                        const forerun_gpu_condition* condition, uint64_t* count,
                                        void* stream);
// Gives the entries in `slots` slots from `first_slot` on. `condition`: NULL for all.
forerun_gpu_result forerun_gpu_export_batch(forerun_gpu_table* table, uint64_t first_slot,
                                            uint64_t slots, const forerun_gpu_condition* condition,
                                            const forerun_gpu_entries* entries, void* stream);
// Removes all entries, also pinned ones.
forerun_gpu_result forerun_gpu_clear(forerun_gpu_table* table, void* stream);

// The table's kind of memory, for programs that do not use CUDA's run time: device memory, or
// ordinary memory for a table on the CPU. Freeing waits for all work of the device. What is not
// freed is freed with the table.
forerun_gpu_result forerun_gpu_memory_alloc(forerun_gpu_table* table, size_t bytes, void** memory);
forerun_gpu_result forerun_gpu_memory_free(forerun_gpu_table* table, void* memory);
// Sets bytes, in the order of the stream.
forerun_gpu_result forerun_gpu_fill(const forerun_gpu_table* table, void* memory, uint8_t byte,
                                    size_t bytes, void* stream);
// Copies from ordinary memory to the table's kind, or back, in the order of the stream. Waits.
forerun_gpu_result forerun_gpu_copy_in(const forerun_gpu_table* table, void* to, const void* from,
                                       size_t bytes, void* stream);
forerun_gpu_result forerun_gpu_copy_out(const forerun_gpu_table* table, void* to, const void* from,
                                        size_t bytes, void* stream);

#ifdef __cplusplus
}
#endif

#endif  // FORERUN_GPU_H
