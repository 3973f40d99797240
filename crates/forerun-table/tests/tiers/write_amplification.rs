//! A table with a small budget of memory writes each row a few times only, in any order of keys.

use forerun_table::{Background, Dtype, Table};

const BUDGET: usize = 2 << 20;
const DIM: u32 = 128;
const ROW_BYTES: usize = 4 * DIM as usize;

/// A number for each number, in no order: SplitMix64.
fn mix(number: u64) -> u64 {
    let mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Rows of numbers, which cannot be compressed.
fn rows(numbers: &[u64]) -> Vec<u8> {
    let words = |number: &u64| {
        let first = number * ROW_BYTES as u64;
        (first..).take(ROW_BYTES / 8).map(mix)
    };
    let words = numbers.iter().flat_map(words);
    words.flat_map(u64::to_le_bytes).collect()
}

/// Loads ten times the budget. Returns how many bytes that writes, the log included, for each of
/// the rows and keys.
fn written_for_each(key: impl Fn(u64) -> u64) -> f64 {
    let directory = tempfile::tempdir().unwrap();
    let builder = Table::builder(Dtype::F32, DIM)
        .memory_bytes(BUDGET)
        .background(Background::Caller)
        .path(directory.path().join("rows"));
    // Flushes and compactions in the calling thread are the same each time.
    let options = builder
        .default_store_options()
        .background(Background::Caller);
    let table = builder.store_options(options).open().unwrap();
    let numbers: Vec<u64> = (0..(10 * BUDGET / ROW_BYTES) as u64).collect();
    for numbers in numbers.chunks(1024) {
        let keys: Vec<u64> = numbers.iter().map(|number| key(*number)).collect();
        table.insert(&keys, &rows(numbers)).unwrap();
    }
    table.wait_idle();
    assert_eq!(table.count().unwrap(), numbers.len() as u64);
    let store = table.stats().store.unwrap();
    let tree = store.tree;
    let written_bytes = store.log_written_bytes
        + tree.flushed_bytes
        + tree.compaction_written_bytes
        + tree.ingested_bytes;
    assert!(tree.flushes > 40, "{tree:?}");
    written_bytes as f64 / (numbers.len() * (8 + ROW_BYTES)) as f64
}

#[test]
fn a_load_of_ten_times_the_memory_writes_at_most_eight_times_its_bytes() {
    for written in [written_for_each(|number| number), written_for_each(mix)] {
        assert!(written <= 8.0, "{written}");
    }
}
