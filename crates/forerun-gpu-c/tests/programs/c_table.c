// Uses every function of forerun_gpu.h, on the CPU or a GPU, and compares with plain arithmetic.
// Prints "ok" at the end.
//
//   c_table FILE    FILE is written and removed
#include <forerun_gpu.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPECT(condition)                                                              \
    do {                                                                               \
        if (!(condition)) {                                                            \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #condition, forerun_gpu_last_error()); \
            exit(1);                                                                   \
        }                                                                              \
    } while (0)
#define OK(call) EXPECT((call) == FORERUN_GPU_OK)
#define FAILS(call, result, text) \
    EXPECT((call) == (result) && strstr(forerun_gpu_last_error(), (text)) != NULL)

// An export of half of the slots needs room for as many entries.
enum { keys_max = 600, entries_max = 2048, row_words = 4, row_bytes = 16 };

static forerun_gpu_table* table;

static void* in_table(const void* from, size_t bytes) {
    void* memory = NULL;
    OK(forerun_gpu_memory_alloc(table, bytes, &memory));
    EXPECT(memory != NULL);
    if (from != NULL)
        OK(forerun_gpu_copy_in(table, memory, from, bytes, NULL));
    else
        OK(forerun_gpu_fill(table, memory, 0, bytes, NULL));
    return memory;
}
static void out_of_table(void* to, const void* from, size_t bytes) {
    OK(forerun_gpu_copy_out(table, to, from, bytes, NULL));
}
static uint64_t word(const uint64_t* at) {
    uint64_t value = 0;
    out_of_table(&value, at, 8);
    return value;
}
static uint64_t size(void) {
    uint64_t entries = 99;
    OK(forerun_gpu_size(table, &entries, NULL));
    return entries;
}
static int32_t row_word(uint64_t key, int i, int stamp) {
    return (int32_t)(key * 31 + (uint64_t)i * 7 + (uint64_t)stamp * 1000003);
}

// What the tests use, in the table's memory, and copies of it here.
static uint64_t keys[keys_max];
static int32_t rows[keys_max][row_words], found_rows[keys_max][row_words];
static uint8_t status[keys_max];
static uint64_t *d_keys, *d_scores, *d_count, *d_positions, *d_entry_keys, *d_entry_scores;
static void *d_rows, *d_rows_out, *d_entry_rows;
static uint8_t *d_status, *d_flags;

static void stamp_rows(int stamp) {
    for (int k = 0; k < keys_max; ++k)
        for (int i = 0; i < row_words; ++i) rows[k][i] = row_word(keys[k], i, stamp);
    OK(forerun_gpu_copy_in(table, d_rows, rows, sizeof rows, NULL));
}
static forerun_gpu_batch batch_of(uint64_t count) {
    forerun_gpu_batch batch = FORERUN_GPU_BATCH_INIT;
    batch.count = count;
    batch.keys = d_keys;
    batch.status_out = d_status;
    return batch;
}
static void expect_status(uint64_t first, uint64_t end, int expected) {
    out_of_table(status, d_status, sizeof status);
    for (uint64_t k = first; k < end; ++k) EXPECT(status[k] == expected);
}
// Checks that the keys from `first` to `end` have the rows of this stamp.
static void expect_rows(uint64_t first, uint64_t end, int stamp) {
    OK(forerun_gpu_fill(table, d_rows_out, 0xee, sizeof found_rows, NULL));
    forerun_gpu_batch batch = batch_of(keys_max);
    batch.rows_out = d_rows_out;
    OK(forerun_gpu_find(table, &batch, NULL));
    expect_status(first, end, FORERUN_GPU_FOUND);
    out_of_table(found_rows, d_rows_out, sizeof found_rows);
    for (uint64_t k = first; k < end; ++k)
        for (int i = 0; i < row_words; ++i)
            EXPECT(found_rows[k][i] == row_word(keys[k], i, stamp));
}

static void makes_tables(void) {
    forerun_gpu_options options;
    EXPECT(strlen(forerun_gpu_version()) >= 5 && strlen(forerun_gpu_last_error()) == 0);
    FAILS(forerun_gpu_options_init(NULL, 1, 1), FORERUN_GPU_INVALID_ARGUMENT, "null");
    OK(forerun_gpu_options_init(&options, 4096, row_bytes));
    EXPECT(options.struct_bytes == sizeof options && options.max_capacity == 4096);
    EXPECT(options.width == 128 && options.candidates == 1 && options.score_bytes == 8);
    EXPECT(options.device_row_bytes_max == UINT64_MAX && options.device == FORERUN_GPU_DEVICE_ANY);
    options.max_capacity = 1 << 14;
    options.evict_strategy = FORERUN_GPU_CUSTOMIZED;

    forerun_gpu_options wrong = options;
    wrong.width = 100;
    FAILS(forerun_gpu_table_create(&wrong, &table), FORERUN_GPU_INVALID_ARGUMENT, "width");
    wrong = options, wrong.capacity = 0, wrong.max_capacity = 0;
    FAILS(forerun_gpu_table_create(&wrong, &table), FORERUN_GPU_INVALID_ARGUMENT, "slots");
    wrong = options, wrong.struct_bytes = 4;
    FAILS(forerun_gpu_table_create(&wrong, &table), FORERUN_GPU_INVALID_ARGUMENT, "struct_bytes");
    wrong = options, wrong.device = 99;
    FAILS(forerun_gpu_table_create(&wrong, &table), FORERUN_GPU_NO_DEVICE, "");
    FAILS(forerun_gpu_table_create(&options, NULL), FORERUN_GPU_INVALID_ARGUMENT, "null");
    EXPECT(table == NULL);
    OK(forerun_gpu_table_create(&options, &table));

    int32_t device = 99;
    OK(forerun_gpu_device(table, &device));
    printf("device %d\n", device);
    uint64_t capacity = 0;
    OK(forerun_gpu_capacity(table, &capacity));
    EXPECT(capacity == 4096 && size() == 0);
}

static void makes_arrays(void) {
    for (uint64_t k = 0; k < keys_max; ++k) keys[k] = k % 2 ? UINT64_MAX - k : k * 1000;
    d_keys = in_table(keys, sizeof keys);
    d_rows = in_table(NULL, sizeof rows);
    d_rows_out = in_table(NULL, sizeof rows);
    uint64_t scores[keys_max];
    uint8_t flags[keys_max];
    for (uint64_t k = 0; k < keys_max; ++k) scores[k] = 100 + k, flags[k] = k < 300;
    d_scores = in_table(scores, sizeof scores);
    d_flags = in_table(flags, sizeof flags);
    d_status = in_table(NULL, sizeof status);
    d_count = in_table(NULL, 8);
    d_positions = in_table(NULL, 8 * entries_max);
    d_entry_keys = in_table(NULL, 8 * entries_max);
    d_entry_scores = in_table(NULL, 8 * entries_max);
    d_entry_rows = in_table(NULL, row_bytes * entries_max);
}

static void writes_by_key(void) {
    stamp_rows(1);
    forerun_gpu_batch batch = batch_of(300);
    FAILS(forerun_gpu_insert_or_assign(table, &batch, NULL), FORERUN_GPU_INVALID_ARGUMENT, "rows");
    batch.rows = d_rows, batch.scores = d_scores;
    OK(forerun_gpu_insert_or_assign(table, &batch, NULL));
    expect_status(0, 300, FORERUN_GPU_INSERTED);
    EXPECT(size() == 300);
    expect_rows(0, 300, 1);
    expect_status(300, keys_max, FORERUN_GPU_ABSENT);

    // The rest is inserted, and the rows of the first 300 are found.
    stamp_rows(2);
    batch = batch_of(keys_max);
    batch.rows = d_rows, batch.scores = d_scores, batch.rows_out = d_rows_out;
    OK(forerun_gpu_find_or_insert(table, &batch, NULL));
    expect_status(0, 300, FORERUN_GPU_FOUND);
    expect_status(300, keys_max, FORERUN_GPU_INSERTED);
    expect_rows(0, 300, 1);
    expect_rows(300, keys_max, 2);

    // Rows and scores, rows alone, scores alone, sums.
    stamp_rows(3);
    batch = batch_of(keys_max);
    batch.rows = d_rows, batch.scores = d_scores;
    OK(forerun_gpu_assign(table, &batch, NULL));
    expect_rows(0, keys_max, 3);
    stamp_rows(4);
    OK(forerun_gpu_assign_rows(table, &batch, NULL));
    OK(forerun_gpu_assign_scores(table, &batch, NULL));
    expect_rows(0, keys_max, 4);
    FAILS(forerun_gpu_accumulate_or_assign(table, &batch, NULL), FORERUN_GPU_INVALID_ARGUMENT,
          "flags");
    batch.flags = d_flags, batch.element = FORERUN_GPU_ELEMENT_I32;
    OK(forerun_gpu_accumulate_or_assign(table, &batch, NULL));
    batch.element = 9;
    FAILS(forerun_gpu_accumulate_or_assign(table, &batch, NULL), FORERUN_GPU_INVALID_ARGUMENT,
          "element");
    expect_rows(300, keys_max, 4);
    forerun_gpu_batch find = batch_of(300);
    find.rows_out = d_rows_out;
    OK(forerun_gpu_find_and_update(table, &find, NULL));
    out_of_table(found_rows, d_rows_out, sizeof found_rows);
    for (int k = 0; k < 300; ++k)
        for (int i = 0; i < row_words; ++i)
            EXPECT((uint32_t)found_rows[k][i] == 2 * (uint32_t)row_word(keys[k], i, 4));

    // Pinned entries stay as they are.
    batch = batch_of(2);
    OK(forerun_gpu_lock(table, &batch, NULL));
    OK(forerun_gpu_lock(table, &batch, NULL));
    expect_status(0, 2, FORERUN_GPU_ENTRY_IS_PINNED);
    batch = batch_of(4);
    OK(forerun_gpu_erase(table, &batch, NULL));
    EXPECT(size() == keys_max - 2);
    batch = batch_of(2);
    OK(forerun_gpu_unlock(table, &batch, NULL));
    OK(forerun_gpu_erase(table, &batch, NULL));
    EXPECT(size() == keys_max - 4);

    // The number of keys may be where the device reads it.
    const uint64_t four = 4;
    OK(forerun_gpu_copy_in(table, d_count, &four, 8, NULL));
    batch = batch_of(keys_max);
    batch.count_at = d_count, batch.rows = d_rows, batch.scores = d_scores;
    OK(forerun_gpu_restore(table, &batch, NULL));
    EXPECT(size() == keys_max);
    expect_rows(0, 4, 4);
}

static void looks_up_missing_keys_and_addresses(void) {
    OK(forerun_gpu_fill(table, d_count, 0, 8, NULL));
    forerun_gpu_batch batch = batch_of(3);
    const uint64_t asked[3] = {keys[7], 123456789, keys[8]};
    uint64_t* const d_asked = in_table(asked, sizeof asked);
    void** const d_pointers = in_table(NULL, sizeof(void*) * 3);
    batch.keys = d_asked, batch.pointers_out = d_pointers, batch.no_writers = 1;
    batch.scores_out = d_positions;  // any words
    batch.slots_out = d_entry_scores;
    const forerun_gpu_entries missed = {d_count, d_entry_keys, NULL, NULL, NULL};
    batch.entries_out = missed;
    OK(forerun_gpu_find(table, &batch, NULL));
    void* pointers[3];
    uint64_t slots[3];
    out_of_table(pointers, d_pointers, sizeof pointers);
    out_of_table(slots, d_entry_scores, sizeof slots);
    EXPECT(pointers[0] != NULL && pointers[1] == NULL && pointers[2] != NULL);
    EXPECT(slots[0] < 1 << 14 && slots[1] == UINT64_MAX && slots[2] != slots[0]);
    EXPECT(word(d_count) == 1 && word(d_entry_keys) == 123456789);
    EXPECT(word(d_positions) == 107);
    int32_t row[row_words];
    out_of_table(row, pointers[2], sizeof row);
    EXPECT((uint32_t)row[1] == 2 * (uint32_t)row_word(keys[8], 1, 4));
    OK(forerun_gpu_memory_free(table, d_asked));
    OK(forerun_gpu_memory_free(table, d_pointers));
    FAILS(forerun_gpu_memory_free(table, d_pointers), FORERUN_GPU_INVALID_ARGUMENT, "allocated");
    OK(forerun_gpu_memory_free(table, NULL));

    batch.keys = (const uint64_t*)((const char*)d_keys + 4);
    FAILS(forerun_gpu_find(table, &batch, NULL), FORERUN_GPU_INVALID_ARGUMENT, "multiple of 8");
    batch.keys = NULL;
    FAILS(forerun_gpu_find(table, &batch, NULL), FORERUN_GPU_INVALID_ARGUMENT, "null");
    FAILS(forerun_gpu_find(table, NULL, NULL), FORERUN_GPU_INVALID_ARGUMENT, "null");
    FAILS(forerun_gpu_find(NULL, &batch, NULL), FORERUN_GPU_INVALID_ARGUMENT, "null");
    batch.struct_bytes = 1 << 20;
    FAILS(forerun_gpu_find(table, &batch, NULL), FORERUN_GPU_INVALID_ARGUMENT, "struct_bytes");
}

static void scans_exports_and_evicts(void) {
    uint64_t capacity = 0;
    OK(forerun_gpu_capacity(table, &capacity));
    const forerun_gpu_condition low = {100, 199, 0, 0};
    OK(forerun_gpu_fill(table, d_count, 0, 8, NULL));
    OK(forerun_gpu_size_if(table, &low, d_count, NULL));
    EXPECT(word(d_count) == 100);
    OK(forerun_gpu_size_if(table, NULL, d_count, NULL));
    EXPECT(word(d_count) == 100 + keys_max);

    OK(forerun_gpu_fill(table, d_count, 0, 8, NULL));
    const forerun_gpu_entries out = {d_count, d_entry_keys, d_entry_rows, d_entry_scores,
                                     d_positions};
    uint64_t sum = 0, entries = 0;
    // In two halves.
    for (uint64_t first = 0; first < capacity; first += capacity / 2) {
        OK(forerun_gpu_fill(table, d_count, 0, 8, NULL));
        OK(forerun_gpu_export_batch(table, first, capacity / 2, &low, &out, NULL));
        const uint64_t n = word(d_count);
        uint64_t exported[keys_max];
        out_of_table(exported, d_entry_scores, sizeof exported);
        entries += n;
        for (uint64_t k = 0; k < n; ++k) sum += exported[k];
    }
    EXPECT(entries == 100 && sum == 100 * 100 + 99 * 100 / 2);
    FAILS(forerun_gpu_export_batch(table, 0, 1, NULL, NULL, NULL), FORERUN_GPU_INVALID_ARGUMENT,
          "null");

    OK(forerun_gpu_fill(table, d_count, 0, 8, NULL));
    OK(forerun_gpu_erase_if(table, &low, d_count, NULL));
    EXPECT(word(d_count) == 100 && size() == keys_max - 100);
    OK(forerun_gpu_clear(table, NULL));
    EXPECT(size() == 0);
}

static void a_full_table_gives_what_it_does_not_keep(void) {
    forerun_gpu_options options;
    OK(forerun_gpu_options_init(&options, 128, row_bytes));
    options.evict_strategy = FORERUN_GPU_CUSTOMIZED;
    forerun_gpu_table* const other = table;
    table = NULL;
    OK(forerun_gpu_table_create(&options, &table));
    makes_arrays();
    stamp_rows(5);
    forerun_gpu_batch batch = batch_of(128);
    batch.rows = d_rows, batch.scores = d_scores;
    OK(forerun_gpu_insert_or_assign(table, &batch, NULL));
    // 200 more, with greater scores: in one bucket, the last 128 stay.
    batch.keys = d_keys + 128, batch.scores = d_scores + 128, batch.count = 200;
    batch.rows = (char*)d_rows + 128 * row_bytes;
    const forerun_gpu_entries out = {d_count, d_entry_keys, d_entry_rows, d_entry_scores,
                                     d_positions};
    FAILS(forerun_gpu_insert_and_evict(table, &batch, NULL), FORERUN_GPU_INVALID_ARGUMENT,
          "evicted");
    batch.entries_out = out;
    OK(forerun_gpu_insert_and_evict(table, &batch, NULL));
    EXPECT(size() == 128 && word(d_count) == 200);
    // Every key is either in the table or among the evicted, with its row.
    uint64_t evicted[keys_max];
    int32_t evicted_rows[keys_max][row_words];
    out_of_table(evicted, d_entry_keys, sizeof evicted);
    out_of_table(evicted_rows, d_entry_rows, sizeof evicted_rows);
    forerun_gpu_batch find = batch_of(328);
    OK(forerun_gpu_find(table, &find, NULL));
    out_of_table(status, d_status, sizeof status);
    for (int k = 0; k < 328; ++k) {
        int times = 0;
        for (int e = 0; e < 200; ++e) {
            if (evicted[e] != keys[k]) continue;
            ++times;
            EXPECT(memcmp(evicted_rows[e], rows[k], row_bytes) == 0);
        }
        EXPECT(times + (status[k] == FORERUN_GPU_FOUND) == 1);
    }
    FAILS(forerun_gpu_reserve(table, 1024, NULL), FORERUN_GPU_INVALID_ARGUMENT, "maximum");
    forerun_gpu_table_destroy(table);
    table = other;
}

static void grows_saves_and_loads(const char* path) {
    makes_arrays();
    stamp_rows(6);
    forerun_gpu_batch batch = batch_of(keys_max);
    batch.rows = d_rows, batch.scores = d_scores;
    OK(forerun_gpu_insert_or_assign(table, &batch, NULL));
    uint64_t before = 0, after = 0, loaded = 0;
    OK(forerun_gpu_capacity(table, &before));
    OK(forerun_gpu_reserve_for(table, 4000, NULL));
    OK(forerun_gpu_capacity(table, &after));
    EXPECT(after > before);
    OK(forerun_gpu_reserve(table, 1 << 14, NULL));
    OK(forerun_gpu_capacity(table, &after));
    EXPECT(after == 1 << 14);
    OK(forerun_gpu_set_max_capacity(table, 1 << 15));
    OK(forerun_gpu_reserve(table, 1 << 15, NULL));
    expect_rows(0, keys_max, 6);
    OK(forerun_gpu_save(table, path, NULL));
    OK(forerun_gpu_clear(table, NULL));
    OK(forerun_gpu_load(table, path, &loaded, NULL));
    EXPECT(loaded == keys_max);
    expect_rows(0, keys_max, 6);
    OK(forerun_gpu_load(table, path, NULL, NULL));
    FAILS(forerun_gpu_load(table, "/absent/file", NULL, NULL), FORERUN_GPU_IO, "/absent/file");
    FILE* const file = fopen(path, "r+b");
    EXPECT(file != NULL && fseek(file, 100, SEEK_SET) == 0 && fputc('?', file) == '?');
    EXPECT(fclose(file) == 0);
    FAILS(forerun_gpu_load(table, path, NULL, NULL), FORERUN_GPU_CORRUPT_FILE, "checksum");
    FAILS(forerun_gpu_save(table, NULL, NULL), FORERUN_GPU_INVALID_ARGUMENT, "null");
    EXPECT(remove(path) == 0);
}

static void pools_bags(void) {
    forerun_gpu_options options;
    OK(forerun_gpu_options_init(&options, 1000, 8));
    forerun_gpu_table* const other = table;
    table = NULL;
    OK(forerun_gpu_table_create(&options, &table));
    const uint64_t known[3] = {5, 6, 7}, offsets[4] = {0, 2, 2, 5}, asked[5] = {5, 6, 7, 7, 8};
    const float of_known[3][2] = {{1, 2}, {3, 4}, {5, 6}}, weights[5] = {1, 1, 2, 1, 9};
    forerun_gpu_batch batch = FORERUN_GPU_BATCH_INIT;
    batch.count = 3, batch.keys = in_table(known, sizeof known);
    batch.rows = in_table(of_known, sizeof of_known);
    OK(forerun_gpu_insert_or_assign(table, &batch, NULL));
    forerun_gpu_bags bags = FORERUN_GPU_BAGS_INIT;
    bags.count = 5, bags.bags = 3, bags.keys = in_table(asked, sizeof asked);
    bags.offsets = in_table(offsets, sizeof offsets);
    bags.weights = in_table(weights, sizeof weights);
    bags.rows_out = in_table(NULL, 3 * 2 * sizeof(float));
    bags.found_out = in_table(NULL, 3 * 4);
    uint64_t bytes = 99;
    OK(forerun_gpu_pooled_sums_bytes(table, &bags, &bytes));
    EXPECT(bytes == 0);
    OK(forerun_gpu_find_pooled(table, &bags, NULL));
    float sums[3][2];
    uint32_t found[3];
    out_of_table(sums, bags.rows_out, sizeof sums);
    out_of_table(found, bags.found_out, sizeof found);
    EXPECT(sums[0][0] == 4 && sums[0][1] == 6 && sums[1][0] == 0 && sums[2][1] == 18);
    EXPECT(found[0] == 2 && found[1] == 0 && found[2] == 2);
    bags.row_format = 7;
    FAILS(forerun_gpu_find_pooled(table, &bags, NULL), FORERUN_GPU_INVALID_ARGUMENT, "row_format");
    forerun_gpu_table_destroy(table);
    table = other;
}

static void* no_memory(void* context, int32_t memory, size_t bytes) {
    (void)memory;
    (void)bytes;
    ++*(int*)context;
    return NULL;
}
static void never(void* context, int32_t memory, void* address) {
    (void)context;
    (void)memory;
    (void)address;
    exit(2);
}

static void asks_the_allocator_on_a_gpu(void) {
    int32_t device = 0;
    int asked = 0;
    OK(forerun_gpu_device(table, &device));
    const forerun_gpu_allocator allocator = {&asked, no_memory, never};
    forerun_gpu_options options;
    OK(forerun_gpu_options_init(&options, 1000, 8));
    options.allocator = &allocator;
    forerun_gpu_table* other = NULL;
    const forerun_gpu_result result = forerun_gpu_table_create(&options, &other);
    if (device == FORERUN_GPU_DEVICE_CPU) {
        EXPECT(result == FORERUN_GPU_OK && asked == 0);
    } else {
        EXPECT(result == FORERUN_GPU_OUT_OF_MEMORY && asked == 1 && other == NULL);
    }
    forerun_gpu_table_destroy(other);
}

int main(int count, char** arguments) {
    EXPECT(count == 2);
    makes_tables();
    makes_arrays();
    writes_by_key();
    looks_up_missing_keys_and_addresses();
    scans_exports_and_evicts();
    a_full_table_gives_what_it_does_not_keep();
    grows_saves_and_loads(arguments[1]);
    pools_bags();
    asks_the_allocator_on_a_gpu();
    forerun_gpu_table_destroy(table);
    forerun_gpu_table_destroy(NULL);
    puts("ok");
    return 0;
}
