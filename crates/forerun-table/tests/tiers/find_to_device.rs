//! Lookups whose rows end in device memory: a GPU's if there is one, otherwise the CPU's.
//! (`model.rs` compares them with a map, `stress.rs` runs them beside writers.)

use crate::testing;

use forerun_db::io::fault::{EIO, Fault, FaultIo};
use forerun_db::{Background, Db, Options, ReadBackend};
use forerun_gpu::gather::StagingShape;
use forerun_gpu::{DeviceBuffer, Gpu};
use forerun_table::{Admission, Dtype, Error, Table};
use proptest::collection::vec;
use proptest::prelude::*;
use std::sync::Arc;
use testing::{find, find_to_device, rows, to_device, version_of};

const WORDS: usize = 4;

/// A table without a store. A device of 1 row has one bucket of 16.
fn in_memory(words: usize) -> Table {
    Table::builder(Dtype::I64, words as u32)
        .device_capacity(1)
        .host_capacity(1000)
        .background(Background::Caller)
        .open()
        .unwrap()
}

#[test]
fn rows_of_every_tier_arrive_at_their_positions() {
    let directory = tempfile::tempdir().unwrap();
    let table = Table::builder(Dtype::I64, WORDS as u32)
        .device_capacity(16)
        .path(directory.path().join("rows"))
        .admission(Admission::Always)
        .background(Background::Caller)
        .open()
        .unwrap();
    match table.gpu() {
        Some(gpu) => println!("on {}", gpu.info()),
        None => assert!(Gpu::open(0).unwrap_err().is_absent()),
    }
    let keys: Vec<u64> = (0..30).collect();
    table.import_rows(&keys, &rows(WORDS, &keys, 1)).unwrap();
    table.prefetch(&[0, 1, 2]).unwrap();
    find(&table, &[3, 4]);
    // One key of each tier twice, one once, and one that is nowhere.
    let asked = [9, 4, 0, 99, 3, 1, 9, 8, 0, 4];
    let before = table.stats().counts;
    for (key, answer) in asked.iter().zip(find_to_device(&table, &asked)) {
        let version = answer.unwrap().map(|row| version_of(&row, *key));
        assert_eq!(version, (*key != 99).then_some(1), "key {key}");
    }
    let after = table.stats().counts;
    let hits = [
        after.device_hits - before.device_hits,
        after.host_hits - before.host_hits,
        after.store_hits - before.store_hits,
        after.misses - before.misses,
    ];
    assert_eq!(hits, [3, 3, 3, 1]);
    // The lookup promoted the rows that it found below, as any lookup does.
    find_to_device(&table, &[9]);
    assert_eq!(table.stats().counts.store_hits, after.store_hits);
}

#[test]
fn rows_beyond_the_staging_size_are_copied_in_pieces() {
    // A row of 96 KiB: a piece holds two and is never quite full.
    const WIDE: usize = 12 << 10;
    let shape = StagingShape::of(WIDE * 8);
    assert_eq!(shape.piece_rows, 2);
    let table = in_memory(WIDE);
    let keys: Vec<u64> = (0..40).collect();
    table.insert(&keys, &rows(WIDE, &keys, 3)).unwrap();
    let asked: Vec<u64> = (0..60).map(|n| n * 7 % 50).collect();
    assert!(asked.len() > 2 * shape.pieces * shape.piece_rows);
    for _ in 0..2 {
        for (key, answer) in asked.iter().zip(find_to_device(&table, &asked)) {
            let version = answer.unwrap().map(|row| version_of(&row, *key));
            assert_eq!(version, (*key < 40).then_some(3), "key {key}");
        }
    }
}

const KEYS: u64 = 2000;

/// A table with small tiers over many pages, none of them cached, of a disk that can be made to
/// fail.
fn over_pages(io: &FaultIo) -> Table {
    let options = Options::default()
        .cache_bytes(0)
        .background(Background::Caller)
        .reads(ReadBackend::Sync);
    let db = Db::open_with_io(Arc::new(io.clone()), "store", options).unwrap();
    let table = Table::builder(Dtype::I64, WORDS as u32)
        .device_capacity(16)
        .host_capacity(50)
        .db(db.clone())
        .admission(Admission::Always)
        .background(Background::Caller)
        .open()
        .unwrap();
    let keys: Vec<u64> = (0..KEYS).collect();
    table.import_rows(&keys, &rows(WORDS, &keys, 1)).unwrap();
    db.flush().unwrap();
    table
}

/// Looks up keys: each is answered, unless the store failed for it. Returns the keys for which it
/// failed.
fn all_but_failed(table: &Table, asked: &[u64]) -> Vec<u64> {
    let before = table.stats().counts.failed_keys;
    let mut failed = Vec::new();
    for (&key, answer) in asked.iter().zip(find_to_device(table, asked)) {
        match answer {
            Ok(row) => {
                let version = row.map(|row| version_of(&row, key));
                assert_eq!(version, (key < KEYS).then_some(1), "key {key}");
            }
            Err(error) => {
                assert!(matches!(error, Error::Store(_)), "{error}");
                failed.push(key);
            }
        }
    }
    let after = table.stats().counts.failed_keys;
    assert_eq!(after - before, failed.len() as u64);
    failed
}

#[test]
fn rows_in_memory_are_delivered_while_the_disk_fails() {
    let io = FaultIo::new();
    let table = over_pages(&io);
    table.prefetch(&(0..40).collect::<Vec<u64>>()).unwrap();
    let next = io.calls();
    (next..next + 10_000).for_each(|call| io.fail_call(call, Fault::Fail(EIO)));
    let asked: Vec<u64> = (0..KEYS).rev().chain([7, 1900, 7]).collect();
    let failed = all_but_failed(&table, &asked);
    assert!(failed.iter().all(|&key| key >= 40), "{failed:?}");
    assert!(failed.len() > KEYS as usize / 2, "{}", failed.len());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn a_failing_disk_fails_only_the_affected_keys(
        calls in vec(0u64..40, 1..30),
        above in vec(0..KEYS, 0..40),
        asked in vec(0..KEYS + 100, 1..300),
    ) {
        let io = FaultIo::new();
        let table = over_pages(&io);
        table.prefetch(&above).unwrap();
        let next = io.calls();
        calls.iter().for_each(|call| io.fail_call(next + call, Fault::Fail(EIO)));
        for _ in 0..3 {
            all_but_failed(&table, &asked);
        }
    }
}

#[test]
fn an_empty_request_gets_an_empty_answer() {
    let table = in_memory(WORDS);
    assert_eq!(to_device(&table, &[], &mut [], &mut []).unwrap(), 0);
    assert_eq!(table.stats().counts.find_batches, 1);
}

#[test]
fn mismatched_buffers_are_refused_before_any_lookup() {
    let table = in_memory(WORDS);
    table.insert(&[1], &rows(WORDS, &[1], 1)).unwrap();
    let mut found = [true; 2];
    for bytes in [0, 63, 65, 128] {
        let error = to_device(&table, &[1, 2], &mut vec![0; bytes], &mut found).unwrap_err();
        assert!(
            matches!(error, Error::Length { len, needed: 64, .. } if len == bytes),
            "{error}"
        );
    }
    let error = to_device(&table, &[1], &mut [0; 32], &mut found).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("flags for 1 key: 2 given, 1 needed"),
        "{error}"
    );
    assert_eq!((found, table.stats().counts.find_batches), ([true; 2], 0));

    let without = Table::builder(Dtype::I64, 1).open().unwrap();
    let error = without.find_to_device(&[1], &mut [0; 8][..], &mut [false]);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("find_to_device needs a device"), "{error}");
    assert!(without.gpu().is_none());

    let closed = table.clone();
    table.close().unwrap();
    let error = to_device(&closed, &[1], &mut [0; 32], &mut [false]).unwrap_err();
    assert!(matches!(error, Error::Closed), "{error}");
}

/// With a GPU, its memory and the CPU's must not be confused. Without one, the test checks that
/// opening reports that.
#[test]
fn rows_go_to_the_tiers_own_kind_of_memory() {
    let (mut rows, mut found) = ([0; 8 * WORDS], [false]);
    let on_cpu = Table::builder(Dtype::I64, WORDS as u32)
        .device_capacity(1)
        .device(forerun_table::DeviceChoice::Cpu)
        .open()
        .unwrap();
    on_cpu.insert(&[1], &testing::rows(WORDS, &[1], 1)).unwrap();
    assert!(on_cpu.gpu().is_none());
    let hits = on_cpu.find_to_device(&[1], &mut rows[..], &mut found);
    assert_eq!((hits.unwrap(), version_of(&rows, 1)), (1, 1));
    let gpu = match Gpu::open(0) {
        Ok(gpu) => gpu,
        Err(error) => return assert!(error.is_absent(), "{error}"),
    };
    let buffer = DeviceBuffer::new(&gpu, 4 + 8 * WORDS).unwrap();
    let part = buffer.slice(4..4 + 8 * WORDS).unwrap();
    let error = on_cpu.find_to_device(&[1], part.clone(), &mut found);
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("is on the CPU") && error.contains("GPU 0"),
        "{error}"
    );
    let on_gpu = in_memory(WORDS);
    let error = on_gpu.find_to_device(&[1], &mut rows[..], &mut found);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("ordinary memory"), "{error}");
    // From any byte offset, from either tier.
    on_gpu.insert(&[1], &testing::rows(WORDS, &[1], 2)).unwrap();
    for _ in 0..2 {
        assert_eq!(
            on_gpu
                .find_to_device(&[1], part.clone(), &mut found)
                .unwrap(),
            1
        );
        buffer.read(4, &mut rows).unwrap();
        assert_eq!(version_of(&rows, 1), 2);
        buffer.fill(0).unwrap();
        on_gpu.prefetch(&[1]).unwrap();
    }
}
