//! Tests of the hash table. They compare the kernels, run on the host, with the table on the CPU,
//! and that table with plain maps.

#![cfg(unix)]

#[path = "table/bucket_words.rs"]
mod bucket_words;
#[path = "table/concurrent_reads.rs"]
mod concurrent_reads;
#[path = "table/concurrent_scans.rs"]
mod concurrent_scans;
#[path = "table/concurrent_writes.rs"]
mod concurrent_writes;
#[path = "table/cpu_equivalence.rs"]
mod cpu_equivalence;
#[path = "table/file.rs"]
mod file;
#[path = "table/growth.rs"]
mod growth;
#[path = "table/lookups.rs"]
mod lookups;
#[path = "table/pooled.rs"]
mod pooled;
#[path = "testing/race.rs"]
mod race;
#[path = "table/retention.rs"]
mod retention;
#[path = "table/semantics.rs"]
mod semantics;
#[path = "table/shim.rs"]
mod shim;
#[path = "testing/shim_process.rs"]
mod shim_process;
#[path = "table/stream_table.rs"]
mod stream_table;
#[path = "table/streams.rs"]
mod streams;
mod testing;

use forerun_gpu::table::{
    Candidates, Entries, GpuEvictStrategy, GpuTable, ScoreBytes, TableError, TableOptions, Width,
};
use proptest::test_runner::Config as ProptestConfig;
use shim::{Order, Shim};
use std::collections::HashMap;

/// Whether all cases of each test run. By default a part of them does: the sanitizers make a lane a
/// thousand times as slow as on a device.
fn all_cases() -> bool {
    std::env::var_os("FORERUN_ALL_CASES").is_some()
}

/// How many of a test's `all` cases run: all of them, or an eighth.
fn cases(all: u64) -> u64 {
    if all_cases() { all } else { all.div_ceil(8) }
}

/// [`cases`] of a property test, unless `PROPTEST_CASES` sets their number.
fn proptest_config(all: u64) -> ProptestConfig {
    let mut config = ProptestConfig::default();
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = cases(all) as u32;
    }
    config
}

/// A row that identifies its key and its stamp. All its words agree.
fn row_of(key: u64, stamp: u64, row_bytes: u64) -> Vec<u8> {
    let word = key.rotate_left(17) ^ stamp.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    word.to_le_bytes()
        .into_iter()
        .cycle()
        .take(row_bytes as usize)
        .collect()
}

fn rows_of(keys: &[u64], stamp: u64, row_bytes: u64) -> Vec<u8> {
    keys.iter()
        .flat_map(|key| row_of(*key, stamp, row_bytes))
        .collect()
}

/// A table whose kernels run on the host, or `None` without a compiler.
fn on_shim(order: Order, options: TableOptions) -> Option<GpuTable> {
    let shim = Shim::start(order)?;
    Some(GpuTable::on(shim, options).expect("the options make sense"))
}

fn small(width: Width, candidates: Candidates, buckets: u64) -> TableOptions {
    TableOptions::new(u64::from(width.slots()) * buckets, 16)
        .width(width)
        .candidates(candidates)
        .evict_strategy(GpuEvictStrategy::Customized)
        .score_bytes(ScoreBytes::Eight)
}

/// All keys from 0 on, with the buckets that they get in an empty table.
fn homes(options: TableOptions) -> impl Iterator<Item = (u64, u64)> {
    let mut table = GpuTable::on_cpu(options).expect("the options make sense");
    (0..).map(move |key| {
        table.clear().expect("it is on the CPU");
        table
            .insert_or_assign(&[key], &row_of(key, 0, options.row_bytes), None)
            .expect("it has one row");
        let digests = table.arrays().expect("it is on the CPU").0;
        let slot = digests.iter().position(|digest| *digest != 0);
        let slot = slot.expect("the key is there") as u64;
        (key, slot / u64::from(options.width.slots()))
    })
}

/// Keys that take so many slots of key 0's home that key 0 is then inserted into its other
/// candidate.
fn crowd_around_zero(options: TableOptions) -> Vec<u64> {
    let mut all = homes(options);
    let (_, home) = all.next().expect("it has no end");
    let here = all.filter(|(_, other)| *other == home).map(|(key, _)| key);
    here.take(options.width.slots() as usize * 13 / 16)
        .collect()
}

/// All entries by key. Panics if a key appears twice or if the reported size is wrong.
fn contents(table: &mut GpuTable) -> HashMap<u64, (u64, Vec<u8>)> {
    let row_bytes = table.options().row_bytes as usize;
    let mut all = HashMap::new();
    let mut take = |entries: &Entries| {
        for (i, key) in entries.keys.iter().enumerate() {
            let row = entries.rows[i * row_bytes..][..row_bytes].to_vec();
            let before = all.insert(*key, (entries.scores[i], row));
            assert_eq!(before, None, "key {key} is there twice");
        }
        Ok::<(), TableError>(())
    };
    table.for_each(&mut take).expect("it can be read");
    assert_eq!(table.size().expect("it can be read"), all.len() as u64);
    all
}
