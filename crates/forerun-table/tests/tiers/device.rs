//! The device tier: promotion, demotion, and writes that are visible through it.

use crate::testing;

use forerun_table::{
    Admission, Background, Builder, Dtype, EvictStrategy, Table, Update, WhenHostFull, WritePolicy,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::path::Path;
use testing::{find, versions};

const WORDS: usize = 2;

/// One bucket of 16 rows on the device, over a store. All moves happen on the calling thread, after
/// the answer.
fn builder(directory: &Path) -> Builder {
    Table::builder(Dtype::I64, WORDS as u32)
        .device_capacity(16)
        .path(directory.join("rows"))
        .background(Background::Caller)
}

fn rows(keys: &[u64], version: u32) -> Vec<u8> {
    testing::rows(WORDS, keys, version)
}

/// Rows that a lookup of these keys finds on the device, in the host tier and in the store.
fn hits(table: &Table, keys: &[u64]) -> [u64; 3] {
    let before = table.stats().counts;
    assert!(versions(table, keys).iter().all(Option::is_some));
    let after = table.stats().counts;
    [
        after.device_hits - before.device_hits,
        after.host_hits - before.host_hits,
        after.store_hits - before.store_hits,
    ]
}

#[test]
fn rows_are_promoted_one_tier_on_every_second_lookup() {
    let directory = tempfile::tempdir().unwrap();
    let table = builder(directory.path()).open().unwrap();
    // A single key, because two keys may share a place in the ghosts and replace each other.
    table.import_rows(&[5], &rows(&[5], 1)).unwrap();
    assert_eq!(hits(&table, &[5]), [0, 0, 1]);
    assert_eq!(hits(&table, &[5]), [0, 0, 1]);
    assert_eq!(hits(&table, &[5]), [0, 1, 0]);
    assert_eq!(hits(&table, &[5]), [0, 1, 0]);
    assert_eq!(hits(&table, &[5]), [1, 0, 0]);
    let stats = table.stats();
    assert_eq!(stats.device_hit_rate(), 0.2);
    assert_eq!(stats.counts.promoted_rows, 1);
    assert_eq!(stats.counts.device_promoted_rows, 1);
    assert_eq!(stats.moved_bytes(), 2 * 8 * WORDS as u64);
    let device = stats.device.unwrap();
    assert_eq!((device.rows, device.capacity_rows), (1, 16));
    assert!(device.is_gpu || device.name == "CPU");
}

#[test]
fn a_row_evicted_from_the_device_moves_to_the_host_tier() {
    for strategy in [EvictStrategy::Lfu, EvictStrategy::Lru] {
        let directory = tempfile::tempdir().unwrap();
        let table = builder(directory.path())
            .host_capacity(50)
            .admission(Admission::Always)
            .evict_strategy(strategy)
            .open()
            .unwrap();
        let keys: Vec<u64> = (0..1000).collect();
        table.import_rows(&keys, &rows(&keys, 1)).unwrap();
        table.prefetch(&keys[..16]).unwrap();
        assert_eq!(table.device_len(), 16);
        // Other rows fill the host tier. The rows that the device has copies of are evicted first.
        assert_eq!(hits(&table, &keys[100..150]), [0, 0, 50]);
        assert_eq!(hits(&table, &keys[..16]), [16, 0, 0]);
        table.prefetch(&[500]).unwrap();
        assert_eq!(table.stats().counts.device_demoted_rows, 1);
        assert_eq!(hits(&table, &keys[..16]), [15, 1, 0], "{strategy:?}");
        assert_eq!(table.find_ptr(&[500]).unwrap().len(), 1);
    }
}

#[test]
fn writes_are_visible_whatever_the_device_held() {
    for writes in [WritePolicy::WriteThrough, WritePolicy::WriteBack] {
        let directory = tempfile::tempdir().unwrap();
        let table = builder(directory.path()).writes(writes).open().unwrap();
        let keys: Vec<u64> = (0..12).collect();
        table.insert(&keys, &rows(&keys, 1)).unwrap();
        table.prefetch(&keys).unwrap();
        assert_eq!(hits(&table, &keys), [12, 0, 0]);

        // A repeated key: the last row stays.
        let twice = [rows(&[3], 7), rows(&[3], 8)].concat();
        table.insert(&[3, 3], &twice).unwrap();
        assert_eq!(versions(&table, &[3]), [Some(8)]);
        let mut found = [false; 2];
        table
            .update(&[4, 99], &rows(&[4, 99], 5), Update::Assign, &mut found)
            .unwrap();
        assert_eq!(found, [true, false]);
        assert_eq!(versions(&table, &[4, 99]), [Some(5), None]);
        assert_eq!(
            hits(&table, &keys),
            [12, 0, 0],
            "they are still on the device"
        );

        table.erase(&[5]).unwrap();
        table.import_rows(&[6], &rows(&[6], 9)).unwrap();
        assert_eq!(versions(&table, &[5, 6]), [None, Some(9)]);
        assert_eq!(table.device_len(), 10);
        table.close().unwrap();
        let table = builder(directory.path()).open().unwrap();
        assert_eq!(
            versions(&table, &[3, 4, 5, 6]),
            [Some(8), Some(5), None, Some(9)]
        );
    }
}

#[test]
fn updating_a_row_held_only_on_the_device_reads_no_disk() {
    let directory = tempfile::tempdir().unwrap();
    let table = builder(directory.path())
        .host_capacity(20)
        .evict_strategy(EvictStrategy::Customized)
        .admission(Admission::Always)
        .open()
        .unwrap();
    let keys: Vec<u64> = (0..200).collect();
    let scores: Vec<u64> = keys.iter().map(|&key| 1000 - key).collect();
    table
        .import_rows_with_scores(&keys, &rows(&keys, 1), &scores)
        .unwrap();
    table.prefetch(&[199]).unwrap();
    // All of these have higher scores.
    table.prefetch(&keys[..15]).unwrap();
    find(&table, &keys[50..100]);
    assert_eq!(hits(&table, &[199]), [1, 0, 0]);
    let reads = |table: &Table| table.stats().store.unwrap().lookup_keys;
    let before = reads(&table);
    table
        .update(&[199], &rows(&[199], 2), Update::Assign, &mut [false])
        .unwrap();
    assert_eq!(reads(&table), before);
    assert_eq!(versions(&table, &[199]), [Some(2)]);
    // The row has kept its score.
    let all = table.export(1000).unwrap().next().unwrap().unwrap();
    assert_eq!((all.keys[199], all.scores[199]), (199, 801));
}

#[test]
fn without_a_store_the_device_has_copies_and_nothing_outlives_the_host_tier() {
    let table = Table::builder(Dtype::I64, WORDS as u32)
        .device_capacity(16)
        .when_full(WhenHostFull::Evict)
        .host_capacity(100)
        .background(Background::Caller)
        .open()
        .unwrap();
    let keys: Vec<u64> = (0..100).collect();
    table.insert(&keys, &rows(&keys, 1)).unwrap();
    table.prefetch(&keys[..10]).unwrap();
    assert_eq!(hits(&table, &keys), [10, 90, 0]);
    let others: Vec<u64> = (1000..1095).collect();
    table.insert(&others, &rows(&others, 1)).unwrap();
    // The host tier does not see uses on the device. These rows stay there nevertheless.
    assert_eq!(hits(&table, &keys[..10]), [10, 0, 0]);
    assert_eq!(table.host_len(), 100);
    table.erase(&keys).unwrap();
    assert_eq!(table.device_len(), 0);
}

#[test]
fn row_addresses_are_valid_and_block_writers() {
    let directory = tempfile::tempdir().unwrap();
    let table = builder(directory.path()).open().unwrap();
    table.insert(&[1, 2], &rows(&[1, 2], 1)).unwrap();
    table.prefetch(&[2]).unwrap();
    let pointers = table.find_ptr(&[1, 2, 3]).unwrap();
    assert_eq!((pointers[0], pointers[2]), (0, 0));
    assert_ne!(pointers[1], 0);
    std::thread::scope(|scope| {
        let (sent, written) = std::sync::mpsc::channel();
        let other = table.clone();
        scope.spawn(move || {
            other.insert(&[2], &rows(&[2], 2)).unwrap();
            sent.send(()).unwrap();
        });
        // It cannot have written, however long that takes.
        assert!(
            written
                .recv_timeout(std::time::Duration::from_millis(30))
                .is_err()
        );
        drop(pointers);
        written.recv().unwrap();
    });
    assert_eq!(versions(&table, &[2]), [Some(2)]);
}

#[test]
fn the_device_ends_up_with_the_most_used_rows() {
    const ROWS: u64 = 2000;
    for strategy in [EvictStrategy::Lfu, EvictStrategy::Lru] {
        let directory = tempfile::tempdir().unwrap();
        let table = builder(directory.path())
            .device_capacity(100)
            .host_capacity(400)
            .evict_strategy(strategy)
            .open()
            .unwrap();
        let keys: Vec<u64> = (0..ROWS).collect();
        table.import_rows(&keys, &rows(&keys, 1)).unwrap();
        // Approximates Zipf's law with exponent 1: the logarithm of the key is uniform.
        let mut rng = SmallRng::seed_from_u64(7);
        let mut draw = || ((ROWS as f64).powf(rng.random::<f64>()) - 1.0) as u64;
        let lookups = |draw: &mut dyn FnMut() -> u64, batches: usize| {
            for _ in 0..batches {
                let keys: Vec<u64> = (0..64).map(|_| draw()).collect();
                assert!(
                    versions(&table, &keys)
                        .iter()
                        .all(|version| *version == Some(1))
                );
            }
        };
        lookups(&mut draw, 300);
        let before = table.stats().counts;
        lookups(&mut draw, 300);
        let after = table.stats().counts;
        let share = |after: u64, before: u64| (after - before) as f64 / (300.0 * 64.0);
        let device = share(after.device_hits, before.device_hits);
        let memory = device + share(after.host_hits, before.host_hits);
        // The hit rates of the best static choice of that many rows: log 101 / log 2000 and log 501
        // / log 2000.
        assert!(device > 0.8 * 0.61, "{strategy:?}: {device} on the device");
        assert!(memory > 0.85 * 0.82, "{strategy:?}: {memory} in memory");
    }
}
