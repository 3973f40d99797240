//! Growth: every entry moves to the larger table, in every kind of table.

use crate::{Order, Shim, contents, on_shim, proptest_config, row_of, rows_of, small};
use forerun_gpu::table::params::TableOp;
use forerun_gpu::table::{
    Backend, BufferKind, Candidates, GpuEvictStrategy, GpuTable, ScoreBytes, Status, TableError,
    TableLaunch, TableOptions, Width,
};
use forerun_gpu::{Gpu, GpuError};
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

fn table() -> GpuTable {
    GpuTable::on_cpu(small(Width::W32, Candidates::Two, 8)).unwrap()
}

/// A table on the CPU, and one whose kernels run on the host if there is a compiler.
fn tables(options: TableOptions, seed: u64) -> Vec<GpuTable> {
    let kernels = on_shim(Order::Seeded(seed), options);
    let cpu = GpuTable::on_cpu(options).unwrap();
    kernels.into_iter().chain([cpu]).collect()
}

/// Inserts keys until every slot is taken, with scores that differ.
fn fill(table: &mut GpuTable) {
    let row_bytes = table.options().row_bytes;
    let n = table.capacity();
    for first in (0..).step_by(n as usize) {
        let keys: Vec<u64> = (first..first + n).collect();
        let scores: Vec<u64> = keys.iter().map(|key| key * 7919 % 100_003).collect();
        table
            .insert_or_assign(&keys, &rows_of(&keys, 0, row_bytes), Some(&scores))
            .unwrap();
        if table.size().unwrap() == n {
            return;
        }
    }
}

/// So many that some bucket of a table with one more gets more entries than it has slots.
const BUCKETS: u64 = 48;

#[test]
fn a_full_table_loses_nothing_when_it_grows_by_a_little() {
    for (seed, width) in [Width::W16, Width::W32].into_iter().enumerate() {
        let mut options = small(width, Candidates::One, BUCKETS);
        options.row_bytes = [16, 6][seed];
        for mut table in tables(options, seed as u64) {
            fill(&mut table);
            let before = contents(&mut table);
            let capacity = table.capacity();
            table.set_max_capacity(capacity * 16).unwrap();
            table.reserve(capacity + 1).unwrap();
            assert!(table.capacity() > capacity);
            assert!(contents(&mut table) == before, "{:?}", table.options());
            // They are where lookups find them.
            let keys: Vec<u64> = before.keys().copied().collect();
            let mut rows = vec![0; keys.len() * options.row_bytes as usize];
            assert!(table.find(&keys, &mut rows).unwrap().iter().all(|is| *is));
            assert!(rows == rows_of(&keys, 0, options.row_bytes));
        }
    }
}

/// Where the table cannot grow further, full buckets evict, but not what is pinned.
#[test]
fn pinned_entries_of_a_full_table_survive_a_growth_that_evicts() {
    for (seed, width) in [Width::W16, Width::W32].into_iter().enumerate() {
        let options = small(width, Candidates::One, BUCKETS);
        for mut table in tables(options, seed as u64) {
            fill(&mut table);
            let before = contents(&mut table);
            // The lowest scores, which go first.
            let mut by_score: Vec<u64> = before.keys().copied().collect();
            by_score.sort_unstable_by_key(|key| before[key].0);
            let pinned = &by_score[..6];
            assert_eq!(table.lock(pinned).unwrap(), [Status::Found; 6]);
            let max = table.capacity() + u64::from(width.slots());
            table.set_max_capacity(max).unwrap();
            table.reserve(max).unwrap();
            assert_eq!(table.capacity(), max);
            let after = contents(&mut table);
            assert!(after.len() < before.len(), "nothing was evicted or tested");
            assert!(after.iter().all(|(key, entry)| before[key] == *entry));
            for key in pinned {
                assert_eq!(after.get(key), before.get(key), "{width:?}, key {key}");
            }
            assert_eq!(table.erase(pinned).unwrap(), [Status::Pinned; 6]);
            assert_eq!(table.unlock(pinned).unwrap(), [Status::Found; 6]);
            assert_eq!(table.erase(pinned).unwrap(), [Status::Found; 6]);
        }
    }
}

/// The table stays as it is, and evicts what is not pinned.
#[test]
fn a_table_whose_pinned_entries_have_no_room_in_a_larger_one_does_not_grow() {
    let options = small(Width::W16, Candidates::One, BUCKETS);
    let max = 16 * (BUCKETS + 1);
    for mut table in tables(options, 1) {
        fill(&mut table);
        let before = contents(&mut table);
        let keys: Vec<u64> = before.keys().copied().collect();
        assert!(
            table
                .lock(&keys)
                .unwrap()
                .iter()
                .all(|s| *s == Status::Found)
        );
        table.set_max_capacity(max).unwrap();
        let error = table.reserve(max).unwrap_err();
        assert!(
            matches!(error, TableError::Pinned { capacity } if capacity == max),
            "{error}"
        );
        assert!(error.to_string().contains("784 slots"), "{error}");
        // An insertion would also like a larger table.
        let refused = table
            .insert_or_assign(&[1 << 40], &row_of(1, 0, 16), Some(&[u64::MAX]))
            .unwrap();
        assert_eq!(refused, [Status::Refused]);
        assert_eq!(table.capacity(), 16 * BUCKETS);
        assert!(contents(&mut table) == before);
    }
}

proptest! {
    #![proptest_config(proptest_config(24))]
    /// On a device, the kernels move the entries; on the CPU, a loop does.
    #[test]
    fn a_table_on_a_device_grows_like_one_on_the_cpu(
        width in prop::sample::select(Width::ALL.to_vec()),
        candidates in prop::sample::select(vec![Candidates::One, Candidates::Two]),
        row_bytes in prop::sample::select(vec![0u64, 4, 6, 16, 33, 528]),
        strategy in prop::sample::select(vec![
            (GpuEvictStrategy::Customized, ScoreBytes::Four),
            (GpuEvictStrategy::Customized, ScoreBytes::Eight),
            (GpuEvictStrategy::Lfu, ScoreBytes::Four),
            (GpuEvictStrategy::Lru, ScoreBytes::Eight),
            (GpuEvictStrategy::EpochLru, ScoreBytes::Eight),
            (GpuEvictStrategy::EpochLfu, ScoreBytes::Eight),
        ]),
        host_rows in any::<bool>(),
        keys in prop::collection::btree_set(any::<u64>(), 0..160),
        pinned in 0usize..4,
        capacity in 129u64..1000,
        seed in any::<u64>(),
    ) {
        let mut options = TableOptions::new(128, row_bytes)
            .width(width)
            .candidates(candidates)
            .evict_strategy(strategy.0)
            .score_bytes(strategy.1);
        if host_rows {
            options = options.device_row_bytes_max(40 * row_bytes);
        }
        let keys: Vec<u64> = keys.into_iter().collect();
        let scores: Vec<u64> = keys.iter().map(|key| key % 1_000_003).collect();
        let rows = rows_of(&keys, seed, row_bytes);
        for mut table in tables(options, seed % 1000) {
            table.insert_or_assign(&keys, &rows, Some(&scores)).unwrap();
            let before = contents(&mut table);
            let pinned: Vec<u64> = before.keys().copied().take(pinned).collect();
            table.lock(&pinned).unwrap();
            table.set_max_capacity(1 << 14).unwrap();
            table.reserve(capacity).unwrap();
            prop_assert!(table.capacity() >= capacity);
            prop_assert!(contents(&mut table) == before);
            prop_assert_eq!(table.erase(&pinned).unwrap(), vec![Status::Pinned; pinned.len()]);
        }
    }
}

#[test]
fn reserve_moves_every_entry_with_its_score() {
    let mut options = small(Width::W32, Candidates::Two, 8);
    options.max_capacity = 2000;
    let mut table = GpuTable::on_cpu(options).unwrap();
    let keys: Vec<u64> = (0..200).collect();
    table
        .insert_or_assign(&keys, &rows_of(&keys, 0, 16), Some(&keys))
        .unwrap();
    let before = contents(&mut table);
    table.reserve(1000).unwrap();
    assert!(table.capacity() >= 1000 && contents(&mut table) == before);
    let refused = table.reserve(2001);
    assert!(matches!(
        refused,
        Err(TableError::BeyondMax {
            capacity: 2001,
            max: 2000
        })
    ));
}

#[test]
fn the_maximum_of_a_table_can_be_changed() {
    let mut table = table();
    assert!(table.is_empty().unwrap());
    let capacity = table.capacity();
    assert!(table.reserve(capacity * 2).is_err());
    table.set_max_capacity(capacity * 4).unwrap();
    let keys: Vec<u64> = (0..capacity * 2).collect();
    table
        .insert_or_assign(&keys, &rows_of(&keys, 0, 16), Some(&keys))
        .unwrap();
    assert!(!table.is_empty().unwrap() && table.capacity() > capacity);
    // Below the capacity it only keeps the table from growing.
    let grown = table.capacity();
    table.set_max_capacity(1).unwrap();
    table
        .insert_or_assign(&keys, &rows_of(&keys, 1, 16), Some(&keys))
        .unwrap();
    assert_eq!(table.capacity(), grown);
    let refused = table.set_max_capacity(u64::MAX);
    assert!(matches!(refused, Err(TableError::Capacity { .. })));
}

#[test]
fn a_growable_table_grows_before_it_evicts() {
    let mut options = small(Width::W32, Candidates::Two, 8);
    options.max_capacity = 3000;
    let mut table = GpuTable::on_cpu(options).unwrap();
    table
        .insert_or_assign(&[1_000_000], &row_of(7, 0, 16), Some(&[1]))
        .unwrap();
    table.lock(&[1_000_000]).unwrap();
    let mut capacities = vec![table.capacity()];
    for batch in 0..24u64 {
        let keys: Vec<u64> = (batch * 100..batch * 100 + 100).collect();
        let given = table
            .insert_and_evict(&keys, &rows_of(&keys, 0, 16), Some(&keys))
            .unwrap();
        assert!(given.is_empty(), "batch {batch}");
        if *capacities.last().unwrap() != table.capacity() {
            capacities.push(table.capacity());
        }
    }
    // 256 slots, doubled up to the maximum. Every entry and the pin are still there.
    assert_eq!(capacities, [256, 512, 1024, 2048, 3008]);
    assert_eq!(contents(&mut table).len(), 2401);
    assert_eq!(table.erase(&[1_000_000]).unwrap(), [Status::Pinned]);
    let keys: Vec<u64> = (10_000..14_000).collect();
    let given = table
        .insert_and_evict(&keys, &rows_of(&keys, 0, 16), Some(&keys))
        .unwrap();
    assert_eq!(
        (table.capacity(), given.len()),
        (3008, 6401 - table.size().unwrap() as usize)
    );
    assert_eq!(table.contains(&[1_000_000]).unwrap(), [true]);

    let mut fixed = GpuTable::on_cpu(small(Width::W32, Candidates::Two, 8)).unwrap();
    let given = fixed
        .insert_and_evict(&keys, &rows_of(&keys, 0, 16), Some(&keys))
        .unwrap();
    assert_eq!((fixed.capacity(), given.len()), (256, 3744));
}

/// A device whose free memory other programs may take.
struct Crowded {
    shim: Arc<Shim>,
    /// The longest allocation that succeeds.
    bytes_max: AtomicU64,
    refused: AtomicU64,
}

impl Backend for Crowded {
    fn allocate(&self, bytes: u64, kind: BufferKind) -> Result<u64, TableError> {
        // Relaxed: only one thread uses the table.
        if bytes > self.bytes_max.load(Ordering::Relaxed) {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return Err(TableError::Gpu(GpuError::OutOfMemory {
                bytes: bytes as usize,
                memory: "device memory",
            }));
        }
        self.shim.allocate(bytes, kind)
    }
    fn free(&self, address: u64) {
        self.shim.free(address);
    }
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), TableError> {
        self.shim.write(address, bytes)
    }
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), TableError> {
        self.shim.read(address, bytes)
    }
    fn launch(&self, launch: TableLaunch, op: &TableOp) -> Result<(), TableError> {
        self.shim.launch(launch, op)
    }
    fn blocks_max(&self) -> u32 {
        self.shim.blocks_max()
    }
    fn gpu(&self) -> Option<&Gpu> {
        None
    }
}

#[test]
fn a_table_that_gets_no_memory_to_grow_evicts_and_tries_again_when_told() {
    let Some(shim) = Shim::start(Order::OneWarp) else {
        return;
    };
    // Staging memory needs 64 KiB; the rows of the larger table need more.
    let crowded = Arc::new(Crowded {
        shim,
        bytes_max: AtomicU64::new(1 << 16),
        refused: AtomicU64::new(0),
    });
    let refused = || crowded.refused.load(Ordering::Relaxed);
    let options = small(Width::W32, Candidates::One, 8)
        .row_bytes(256)
        .max_capacity(1 << 12);
    let mut table = GpuTable::on(crowded.clone(), options).unwrap();
    let insert = |table: &mut GpuTable, batch: u64| {
        let keys: Vec<u64> = (batch * 60..batch * 60 + 60).collect();
        let rows = rows_of(&keys, 0, 256);
        let status = table.insert_or_assign(&keys, &rows, Some(&keys)).unwrap();
        assert!(status.iter().all(|status| status.is_present()), "{batch}");
    };
    for batch in 0..8 {
        insert(&mut table, batch);
    }
    assert_eq!((table.capacity(), refused()), (256, 1));
    assert!(
        table.size().unwrap() > 200,
        "it evicts only from full buckets"
    );
    // Whoever asks for a size is told.
    let error = table.reserve(512).unwrap_err();
    assert!(
        error.to_string().contains("bytes of device memory"),
        "{error}"
    );
    assert_eq!(refused(), 2);
    // Memory is free again.
    crowded.bytes_max.store(u64::MAX, Ordering::Relaxed);
    let before = contents(&mut table);
    insert(&mut table, 8);
    assert_eq!(table.capacity(), 256);
    table.set_max_capacity(1 << 12).unwrap();
    insert(&mut table, 9);
    assert!(table.capacity() >= 512);
    let after = contents(&mut table);
    let kept = before
        .iter()
        .filter(|(key, entry)| after.get(key) == Some(entry));
    assert!(
        kept.count() + 60 >= before.len(),
        "batch 8 evicts at most 60"
    );
}
