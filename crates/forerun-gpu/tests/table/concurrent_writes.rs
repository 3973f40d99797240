//! Writers in many schedules: the invariants hold in any order.

use crate::{Order, Shim, cases, contents, homes, on_shim, row_of, rows_of, small};
use forerun_gpu::table::params::{ABSENT_INSERT, FOUND_ASSIGN_ROW, TableOp};
use forerun_gpu::table::{
    Backend, Candidates, Condition, Element, GpuEvictStrategy, GpuTable, Status, Width,
};
use std::collections::{BTreeMap, BTreeSet};

/// Every lane wants the same lock. Whichever lanes the hardware runs first, no lane may wait for a
/// lock while another lane of its warp holds it. The shim checks that.
#[test]
fn a_storm_on_one_bucket_ends_at_every_width() {
    for (seed, width) in Width::ALL
        .into_iter()
        .cycle()
        .take(cases(12).max(4) as usize)
        .enumerate()
    {
        let options = small(width, Candidates::One, 1);
        let Some(shim) = Shim::start(Order::Seeded(seed as u64)) else {
            return;
        };
        let mut table = GpuTable::on(shim.clone(), options).unwrap();
        let keys: Vec<u64> = (0..96).map(|i| i % 5).collect();
        let status = table
            .insert_or_assign(&keys, &rows_of(&keys, 0, 16), None)
            .unwrap();
        let inserted = status.iter().filter(|status| **status == Status::Inserted);
        assert_eq!(inserted.count(), 5);
        // A scan locks a bucket once for each warp, not once for each entry.
        let version = |table: &GpuTable| {
            let mut word = [0; 4];
            shim.read(table.state().words, &mut word).unwrap();
            u32::from_ne_bytes(word) >> 3
        };
        let before = version(&table);
        assert_eq!(table.erase_if(&Condition::ALL).unwrap(), 5);
        assert!(version(&table) - before <= width.slots().div_ceil(32));
        table.clear().unwrap();
        assert_eq!(table.size().unwrap(), 0);
    }
}

/// Two warps need the same two buckets, and the home of each one's key is the other one's spill
/// bucket. One of them gets both locks, even if they take turns at every access.
#[test]
fn writers_with_opposite_candidates_make_progress() {
    let options = small(Width::W16, Candidates::Two, 2);
    let mut homes = homes(options);
    let (first, home) = homes.next().unwrap();
    let (second, _) = homes.find(|(_, other)| *other != home).unwrap();
    for seed in 0..cases(48) {
        let Some(shim) = Shim::start(Order::OneWarp) else {
            return;
        };
        let mut table = GpuTable::on(shim.clone(), options).unwrap();
        let kernels = [first, second].map(|key| {
            let write = TableOp {
                table: *table.state(),
                count: 1,
                keys: shim.array(&key.to_ne_bytes()),
                rows_in: shim.array(&row_of(key, 1, 16)),
                actions: FOUND_ASSIGN_ROW | ABSENT_INSERT,
                ..TableOp::default()
            };
            ("table_write_w16", 1, write)
        });
        shim.beside(32, seed, &kernels);
        let all = contents(&mut table);
        for key in [first, second] {
            assert_eq!(all[&key].1, row_of(key, 1, 16), "seed {seed}");
        }
    }
}

#[test]
fn a_storm_of_duplicates_leaves_each_key_once() {
    for (seed, width) in Width::ALL
        .into_iter()
        .cycle()
        .take(cases(8).max(4) as usize)
        .enumerate()
    {
        let options = small(width, Candidates::Two, 4);
        let Some(mut table) = on_shim(Order::Seeded(seed as u64), options) else {
            return;
        };
        // 24 keys, each at 12 positions with different rows.
        let keys: Vec<u64> = (0..288).map(|i| (i * 7 % 24) * 1000).collect();
        let rows: Vec<u8> = keys
            .iter()
            .enumerate()
            .flat_map(|(i, key)| row_of(*key, i as u64, 16))
            .collect();
        let status = table.insert_or_assign(&keys, &rows, None).unwrap();
        let inserted = status.iter().filter(|status| **status == Status::Inserted);
        assert_eq!(inserted.count(), 24);
        let all = contents(&mut table);
        assert_eq!(all.len(), 24);
        for (key, (_, row)) in all {
            let mut given = keys.iter().enumerate().filter(|(_, other)| **other == key);
            let whole = given.any(|(i, _)| row == row_of(key, i as u64, 16));
            assert!(whole, "key {key} has none of its rows");
        }
    }
}

/// Keys that other tables reserve, and keys with equal digests, in batches that repeat all of them.
#[test]
fn a_storm_of_the_greatest_keys_and_of_equal_digests_loses_none() {
    for seed in 0..cases(12) {
        let width = Width::ALL[seed as usize % 4];
        let options = small(width, Candidates::Two, 4);
        let Some(mut table) = on_shim(Order::Seeded(seed), options) else {
            return;
        };
        let mut keys: Vec<u64> = vec![0, u64::MAX, u64::MAX - 1, u64::MAX - 2, u64::MAX - 3, 1];
        keys.extend(crate::lookups::equal_digests(&table, 24));
        keys.sort_unstable();
        keys.dedup();
        let storm = keys.repeat(6);
        let status = table
            .insert_or_assign(&storm, &rows_of(&storm, seed, 16), None)
            .unwrap();
        let inserted = status.iter().filter(|status| **status == Status::Inserted);
        assert_eq!(inserted.count(), keys.len());
        assert_eq!(contents(&mut table).len(), keys.len());
        let mut rows = vec![0; keys.len() * 16];
        assert!(
            table
                .find(&keys, &mut rows)
                .unwrap()
                .into_iter()
                .all(|found| found)
        );
        assert_eq!(rows, rows_of(&keys, seed, 16));
        // Each key can be erased once.
        let gone = table.erase(&storm).unwrap();
        assert_eq!(
            gone.iter()
                .filter(|status| **status == Status::Found)
                .count(),
            keys.len()
        );
        assert_eq!(table.size().unwrap(), 0);
        assert_eq!(table.contains(&keys).unwrap(), vec![false; keys.len()]);
    }
}

#[test]
fn sums_and_counts_lose_nothing() {
    for seed in 0..cases(8) {
        let options = small(Width::W32, Candidates::Two, 4).evict_strategy(GpuEvictStrategy::Lfu);
        let Some(mut table) = on_shim(Order::Seeded(seed), options) else {
            return;
        };
        let keys: Vec<u64> = (0..10).collect();
        let ones: Vec<u8> = [1u32; 4].iter().flat_map(|one| one.to_le_bytes()).collect();
        table
            .insert_or_assign(&keys, &ones.repeat(10), None)
            .unwrap();
        let storm: Vec<u64> = (0..200).map(|i| i * i % 11).collect();
        let flags = vec![1; storm.len()];
        let status = table
            .accumulate_or_assign(Element::I32, &storm, &ones.repeat(200), &flags, None)
            .unwrap();
        let mut times = BTreeMap::<u64, u32>::new();
        storm
            .iter()
            .for_each(|key| *times.entry(*key).or_default() += 1);
        assert_eq!(
            status.iter().filter(|s| **s == Status::Absent).count() as u32,
            times.get(&10).copied().unwrap_or(0)
        );
        for (key, (score, row)) in contents(&mut table) {
            let sum = 1 + times.get(&key).copied().unwrap_or(0);
            assert_eq!(score, u64::from(sum), "key {key}");
            assert_eq!(row, [sum.to_le_bytes(); 4].concat(), "key {key}");
        }
    }
}

/// An element of a row that began with `start` quarters, or just below the greatest integer, after
/// this many additions of `half`.
fn element_after(element: Element, start: u64, additions: u64) -> Vec<u8> {
    let steps = start + 2 * additions;
    match element {
        Element::F32 => (steps as f32 * 0.25).to_ne_bytes().to_vec(),
        Element::F64 => (steps as f64 * 0.25).to_ne_bytes().to_vec(),
        Element::I32 => (u32::MAX - 5)
            .wrapping_add(steps as u32)
            .to_ne_bytes()
            .to_vec(),
        Element::I64 => (u64::MAX - 5).wrapping_add(steps).to_ne_bytes().to_vec(),
    }
}

fn half(element: Element) -> Vec<u8> {
    match element {
        Element::F32 => 0.5_f32.to_ne_bytes().to_vec(),
        Element::F64 => 0.5_f64.to_ne_bytes().to_vec(),
        Element::I32 => 2_u32.to_ne_bytes().to_vec(),
        Element::I64 => 2_u64.to_ne_bytes().to_vec(),
    }
}

#[test]
fn elements_of_every_type_are_added() {
    const ROW_BYTES: u64 = 72;
    let all = [Element::F32, Element::F64, Element::I32, Element::I64];
    for (seed, element) in all.into_iter().enumerate() {
        let mut options = small(Width::ALL[seed], Candidates::Two, 4);
        options.row_bytes = ROW_BYTES;
        let Some(kernels) = on_shim(Order::Seeded(seed as u64), options) else {
            return;
        };
        let elements = ROW_BYTES / element.bytes();
        let row_after = |key: u64, additions: u64| -> Vec<u8> {
            let elements = (0..elements).map(|at| element_after(element, key + at, additions));
            elements.flatten().collect()
        };
        for mut table in [kernels, GpuTable::on_cpu(options).unwrap()] {
            let keys: Vec<u64> = (0..7).collect();
            let rows: Vec<u8> = keys.iter().flat_map(|key| row_after(*key, 0)).collect();
            table.insert_or_assign(&keys, &rows, None).unwrap();
            let storm: Vec<u64> = (0..90).map(|i| i * i % 9).collect();
            let added = half(element).repeat(elements as usize * storm.len());
            table
                .accumulate_or_assign(element, &storm, &added, &[1; 90], None)
                .unwrap();
            let contents = contents(&mut table);
            assert_eq!(contents.len(), keys.len());
            for key in keys {
                let additions = storm.iter().filter(|other| **other == key).count();
                let expected = row_after(key, additions as u64);
                assert_eq!(contents[&key].1, expected, "{element:?}, key {key}");
            }
        }
    }
}

/// With one candidate and distinct scores, the order of the keys makes no difference.
#[test]
fn each_bucket_keeps_its_greatest_scores_in_every_schedule() {
    for (seed, width) in Width::ALL
        .into_iter()
        .cycle()
        .take(cases(8).max(4) as usize)
        .enumerate()
    {
        let options = small(width, Candidates::One, 3);
        let Some(mut table) = on_shim(Order::Seeded(seed as u64), options) else {
            return;
        };
        let mut cpu = GpuTable::on_cpu(options).unwrap();
        for round in 0..4 {
            // More keys than the table holds, in one batch.
            let n = table.capacity();
            let keys: Vec<u64> = (0..n).map(|i| i + round * n).collect();
            let scores: Vec<u64> = keys
                .iter()
                .map(|key| key * 2_654_435_761 % 1_000_003)
                .collect();
            let rows = rows_of(&keys, 0, 16);
            let given = table.insert_and_evict(&keys, &rows, Some(&scores)).unwrap();
            cpu.insert_or_assign(&keys, &rows, Some(&scores)).unwrap();
            for (i, key) in given.keys.iter().enumerate() {
                assert_eq!(given.scores[i], key * 2_654_435_761 % 1_000_003);
                assert_eq!(given.rows[i * 16..][..16], row_of(*key, 0, 16));
            }
        }
        assert_eq!(contents(&mut table), contents(&mut cpu));
    }
}

#[test]
fn an_inserted_row_is_kept_or_evicted() {
    for seed in 0..cases(8) {
        let width = Width::ALL[seed as usize % 4];
        let options = small(width, Candidates::Two, 2);
        let Some(mut table) = on_shim(Order::Seeded(seed), options) else {
            return;
        };
        let mut inside = BTreeSet::new();
        for round in 0..4u64 {
            let n = table.capacity() * 2 / 3;
            let keys: Vec<u64> = (0..n).map(|i| round * 10_000 + i).collect();
            let scores: Vec<u64> = keys.iter().map(|key| key * 7919 % 1009).collect();
            let given = table
                .insert_and_evict(&keys, &rows_of(&keys, 0, 16), Some(&scores))
                .unwrap();
            inside.extend(keys);
            for (i, key) in given.keys.iter().enumerate() {
                assert!(
                    inside.remove(key),
                    "key {key} was evicted but was not in the table"
                );
                assert_eq!(given.rows[i * 16..][..16], row_of(*key, 0, 16));
                assert!(given.positions[i] < n);
            }
            let kept: BTreeSet<u64> = contents(&mut table).into_keys().collect();
            assert_eq!(kept, inside);
        }
        assert_eq!(table.size().unwrap(), table.capacity());
    }
}

#[test]
fn one_of_many_threads_locks_a_key() {
    for seed in 0..cases(12) {
        let options = small(Width::W16, Candidates::Two, 2);
        let Some(mut table) = on_shim(Order::Seeded(seed), options) else {
            return;
        };
        let keys: Vec<u64> = (0..8).collect();
        table
            .insert_or_assign(&keys, &rows_of(&keys, 0, 16), None)
            .unwrap();
        let storm: Vec<u64> = (0..80).map(|i| i % 10).collect();
        let status = table.lock(&storm).unwrap();
        for key in 0..10 {
            let mine = storm.iter().zip(&status).filter(|(k, _)| **k == key);
            let done = mine.filter(|(_, status)| **status == Status::Found).count();
            assert_eq!(done, usize::from(key < 8), "key {key}");
        }
        // Pinned entries stay, even against ten times the table's size of higher scores.
        let others: Vec<u64> = (100..420).collect();
        table
            .insert_or_assign(&others, &rows_of(&others, 0, 16), Some(&[9; 320]))
            .unwrap();
        let changed = table
            .insert_or_assign(&keys, &rows_of(&keys, 1, 16), None)
            .unwrap();
        assert_eq!(changed, [Status::Pinned; 8]);
        assert_eq!(table.erase(&keys).unwrap(), [Status::Pinned; 8]);
        let all = contents(&mut table);
        keys.iter()
            .for_each(|key| assert_eq!(all[key].1, row_of(*key, 0, 16)));
        assert_eq!(table.unlock(&keys).unwrap(), [Status::Found; 8]);
        assert_eq!(table.erase(&storm[..10]).unwrap()[..8], [Status::Found; 8]);
        assert_eq!(table.contains(&keys).unwrap(), [false; 8]);
    }
}

#[test]
fn the_latest_are_kept_by_time() {
    for (seed, strategy) in [GpuEvictStrategy::Lru, GpuEvictStrategy::EpochLru]
        .into_iter()
        .cycle()
        .take(4)
        .enumerate()
    {
        let options = small(Width::W16, Candidates::One, 1).evict_strategy(strategy);
        let Some(kernels) = on_shim(Order::Seeded(seed as u64), options) else {
            return;
        };
        for mut table in [kernels, GpuTable::on_cpu(options).unwrap()] {
            for epoch in 0..5u64 {
                let keys: Vec<u64> = (epoch * 16..epoch * 16 + 16).collect();
                let rows = rows_of(&keys, 0, 16);
                let batch = forerun_gpu::table::Batch {
                    epoch,
                    ..forerun_gpu::table::Batch::rows(&keys, &rows)
                };
                let operation = forerun_gpu::table::Operation::InsertOrAssign;
                table.apply(operation, &batch, Default::default()).unwrap();
                let kept: BTreeSet<u64> = contents(&mut table).into_keys().collect();
                assert_eq!(kept, keys.iter().copied().collect(), "{strategy:?}");
            }
            // A touched entry outlives the others if the strategy depends on time.
            if strategy == GpuEvictStrategy::Lru {
                table.find_and_update(&[70], &mut [0; 16], None).unwrap();
                let keys: Vec<u64> = (200..215).collect();
                table
                    .insert_or_assign(&keys, &rows_of(&keys, 0, 16), None)
                    .unwrap();
                assert_eq!(table.contains(&[70]).unwrap(), [true]);
            }
        }
    }
}
