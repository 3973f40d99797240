//! Readers beside writers, evictions and moves: no torn row, no lost write, no version that goes
//! backwards.

mod testing;

use forerun_db::Options;
use forerun_table::{
    Admission, Background, Dtype, EvictStrategy, Table, Update, WhenHostFull, WritePolicy,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};
use testing::{row, to_device, version_of};

const WORDS: usize = 9;
const KEYS: u64 = 2000;
const WRITERS: u64 = 2;
const RUN: Duration = Duration::from_millis(1200);

/// The versions that each key's writer has written, published after the write returns.
struct Promise {
    versions: Vec<AtomicU32>,
    ends: AtomicBool,
}

fn write(table: &Table, promise: &Promise, writer: u64) {
    let mut rng = SmallRng::seed_from_u64(writer);
    let mine: Vec<u64> = (0..KEYS).filter(|key| key % WRITERS == writer).collect();
    for version in 1u32.. {
        if promise.ends.load(Ordering::Relaxed) {
            break;
        }
        let len = rng.random_range(1..300);
        let keys: Vec<u64> = (0..len)
            .map(|_| mine[rng.random_range(0..mine.len())])
            .collect();
        let rows: Vec<u8> = keys
            .iter()
            .flat_map(|&key| row(WORDS, key, version))
            .collect();
        match version % 8 {
            0 => {
                let mut found = vec![false; len];
                table
                    .update(&keys, &rows, Update::Assign, &mut found)
                    .unwrap();
            }
            1 => table.import_rows(&keys, &rows).unwrap(),
            _ => table.insert(&keys, &rows).unwrap(),
        }
        if version % 8 != 0 {
            for key in keys {
                // Release: a reader that sees the version must find the row.
                promise.versions[key as usize].store(version, Ordering::Release);
            }
        }
    }
}

fn read(table: &Table, promise: &Promise, reader: u64, may_leave: bool) -> u64 {
    let mut rng = SmallRng::seed_from_u64(1000 + reader);
    let (mut rows, mut found) = (vec![0; 256 * WORDS * 8], [false; 256]);
    let (mut seen, mut now_seen) = (vec![0u32; KEYS as usize], Vec::new());
    let has_device = table.stats().device.is_some();
    let mut hits = 0;
    while !promise.ends.load(Ordering::Relaxed) {
        // Some keys more often than others, so that rows are promoted and demoted.
        let keys: Vec<u64> = (0..256)
            .map(|_| {
                let max = rng.random_range(0..KEYS);
                rng.random_range(0..=max)
            })
            .collect();
        let promised: Vec<u32> = keys
            .iter()
            .map(|&key| promise.versions[key as usize].load(Ordering::Acquire))
            .collect();
        if rng.random_ratio(1, 8) {
            table.prefetch(&keys[..64]).unwrap();
        }
        if has_device && rng.random() {
            to_device(table, &keys, &mut rows, &mut found).unwrap();
        } else {
            table.find(&keys, &mut rows, &mut found).unwrap();
        }
        for (at, row) in rows.chunks_exact(WORDS * 8).enumerate() {
            let key = keys[at];
            if !found[at] {
                assert!(may_leave || promised[at] == 0, "key {key} is lost");
                continue;
            }
            hits += 1;
            let version = version_of(row, key);
            assert!(
                version >= promised[at],
                "key {key}: {version} after {}",
                promised[at]
            );
            // Versions seen by earlier lookups only. If a key is in this batch twice, a lower tier
            // may answer one of the two later, with a newer row.
            let before = seen[key as usize];
            assert!(
                version >= before,
                "key {key}: {version} after {before} was seen"
            );
            now_seen.push((key as usize, version));
        }
        for (key, version) in now_seen.drain(..) {
            seen[key] = seen[key].max(version);
        }
    }
    hits
}

fn stress(table: &Table, may_leave: bool) {
    let promise = Promise {
        versions: (0..KEYS).map(|_| AtomicU32::new(0)).collect(),
        ends: AtomicBool::new(false),
    };
    let start = Instant::now();
    forerun_core::sync::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let promise = &promise;
            scope.spawn(move || {
                let _end = End(&promise.ends);
                write(table, promise, writer);
            });
        }
        for reader in 0..2 {
            let promise = &promise;
            scope.spawn(move || {
                let _end = End(&promise.ends);
                assert!(read(table, promise, reader, may_leave) > 0);
            });
        }
        while start.elapsed() < RUN && !promise.ends.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(100));
            table.flush().unwrap();
        }
        promise.ends.store(true, Ordering::Relaxed);
    });
    table.wait_idle();
    let stats = table.stats();
    assert!(stats.host_rows <= stats.host_capacity_rows, "{stats:?}");
    assert_eq!(stats.counts.failed_moves + stats.counts.failed_keys, 0);
    assert!(stats.counts.demoted_rows > 0, "nothing moved: {stats:?}");
    if !may_leave {
        for (key, promised) in promise.versions.iter().enumerate() {
            let promised = promised.load(Ordering::Relaxed);
            let (mut row, mut found) = ([0; WORDS * 8], [false]);
            table.find(&[key as u64], &mut row, &mut found).unwrap();
            assert!(promised == 0 || found[0] && version_of(&row, key as u64) >= promised);
        }
    }
}

/// Stops the other threads when a thread ends for any reason.
struct End<'e>(&'e AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn over_a_store(
    device_rows: usize,
    writes: WritePolicy,
    background: Background,
    strategy: EvictStrategy,
    admission: Admission,
) {
    let directory = tempfile::tempdir().unwrap();
    let options = Options::default()
        .memtable_bytes(4 << 20)
        .cache_bytes(1 << 20);
    let table = Table::builder(Dtype::I64, WORDS as u32)
        .device_capacity(device_rows)
        .host_capacity(300)
        .path(directory.path().join("rows"))
        .store_options(options)
        .writes(writes)
        .background(background)
        .evict_strategy(strategy)
        .admission(admission)
        .open()
        .unwrap();
    stress(&table, false);
    let counts = table.stats().counts;
    if device_rows > 0 {
        assert!(
            counts.device_hits > 0 && counts.device_demoted_rows > 0,
            "nothing moved: {counts:?}"
        );
    }
    table.close().unwrap();
}

#[test]
fn write_through_with_background_moves() {
    over_a_store(
        0,
        WritePolicy::WriteThrough,
        Background::Threads,
        EvictStrategy::Lfu,
        Admission::SecondTouch,
    );
}

#[test]
fn write_back_with_background_moves() {
    over_a_store(
        0,
        WritePolicy::WriteBack,
        Background::Threads,
        EvictStrategy::Lru,
        Admission::Always,
    );
}

#[test]
fn write_back_with_moves_by_callers() {
    over_a_store(
        0,
        WritePolicy::WriteBack,
        Background::Caller,
        EvictStrategy::Lfu,
        Admission::ByScore,
    );
}

#[test]
fn device_tier_with_write_through_and_background_moves() {
    over_a_store(
        100,
        WritePolicy::WriteThrough,
        Background::Threads,
        EvictStrategy::Lfu,
        Admission::SecondTouch,
    );
}

#[test]
fn device_tier_with_write_back_and_moves_by_callers() {
    over_a_store(
        16,
        WritePolicy::WriteBack,
        Background::Caller,
        EvictStrategy::Lru,
        Admission::Always,
    );
}

#[test]
fn without_a_store_evicted_rows_are_never_torn() {
    for device_rows in [0, 100] {
        let table = Table::builder(Dtype::I64, WORDS as u32)
            .device_capacity(device_rows)
            .host_capacity(300)
            .when_full(WhenHostFull::Evict)
            .open()
            .unwrap();
        stress(&table, true);
    }
}
