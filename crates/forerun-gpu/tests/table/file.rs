//! Saved tables are portable between the CPU and the kernels, and are rejected if damaged.

use crate::{Order, contents, on_shim, rows_of, small};
use forerun_gpu::table::{
    Answers, Batch, Candidates, GpuEvictStrategy, GpuTable, Operation, Status, TableError,
    TableOptions, Width,
};

fn filled() -> GpuTable {
    let mut table = GpuTable::on_cpu(small(Width::W32, Candidates::Two, 4)).unwrap();
    let keys: Vec<u64> = (0..40).chain([u64::MAX]).collect();
    table
        .insert_or_assign(&keys, &rows_of(&keys, 0, 16), Some(&keys))
        .unwrap();
    table
}

#[test]
fn a_saved_table_moves_between_cpu_and_kernels() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (folder.path().join("first"), folder.path().join("second"));
    let mut table = filled();
    let expected = contents(&mut table);
    table.save(&first).unwrap();
    let other = small(Width::W128, Candidates::One, 1);
    if let Some(mut kernels) = on_shim(Order::Seeded(3), other) {
        assert_eq!(kernels.load(&first).unwrap(), 41);
        assert_eq!(contents(&mut kernels), expected);
        kernels.save(&second).unwrap();
        let mut back = GpuTable::on_cpu(*table.options()).unwrap();
        assert_eq!(back.load(&second).unwrap(), 41);
        assert_eq!(contents(&mut back), expected);
    }
}

#[test]
fn every_damaged_byte_and_every_cut_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("table");
    filled().save(&path).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let load = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        let mut table = GpuTable::on_cpu(small(Width::W32, Candidates::Two, 4)).unwrap();
        table.load(&path)
    };
    assert_eq!(load(&bytes).unwrap(), 41);
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x20;
        let said = load(&damaged).unwrap_err();
        assert!(matches!(said, TableError::File { .. }), "byte {at}: {said}");
        let cut = load(&bytes[..at]).unwrap_err();
        assert!(matches!(cut, TableError::File { .. }), "cut at {at}: {cut}");
    }
}

#[test]
fn a_file_of_another_kind_of_table_is_refused_with_both_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("table");
    filled().save(&path).unwrap();
    let options = TableOptions::new(100, 16).evict_strategy(GpuEvictStrategy::Lfu);
    let said = GpuTable::on_cpu(options).unwrap().load(&path).unwrap_err();
    assert!(
        said.to_string()
            .contains("Some(Customized); this table has 16 bytes, Lfu"),
        "{said}"
    );
    assert!(matches!(
        filled().load(&folder.path().join("none")),
        Err(TableError::Io { .. })
    ));
}

/// A full bucket of 32 keys, each a score younger than the one before. All scores are in the future
/// by this much.
fn full_by_time(mut table: GpuTable, ahead: u64) -> GpuTable {
    let keys: Vec<u64> = (0..32).collect();
    let rows = rows_of(&keys, 0, 16);
    // One at a time, so that each has its time.
    for (key, row) in keys.iter().zip(rows.chunks(16)) {
        table.insert_or_assign(&[*key], row, None).unwrap();
    }
    let mut scores = vec![0; keys.len()];
    let answers = Answers {
        scores: Some(&mut scores),
        ..Answers::default()
    };
    table.lookup(Default::default(), &keys, answers).unwrap();
    for score in &mut scores {
        // The epoch stays what it is.
        *score = match table.options().evict_strategy {
            GpuEvictStrategy::EpochLru => u64::from((*score as u32).wrapping_add(ahead as u32)),
            _ => *score + ahead,
        };
    }
    let batch = Batch::rows(&keys, &rows).with_scores(&scores);
    table
        .apply(Operation::Restore, &batch, Answers::default())
        .unwrap();
    table
}

/// After a file has been loaded, new entries replace the oldest ones, whatever the clock of the
/// machine that saved it.
#[test]
fn a_loaded_table_by_time_accepts_new_keys() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("table");
    const HOUR_NS: u64 = 3_600_000_000_000;
    for strategy in [GpuEvictStrategy::Lru, GpuEvictStrategy::EpochLru] {
        let options = small(Width::W32, Candidates::One, 1).evict_strategy(strategy);
        let cpu = || GpuTable::on_cpu(options).unwrap();
        let kernels = || on_shim(Order::OneWarp, options);
        let ahead = match strategy {
            GpuEvictStrategy::Lru => HOUR_NS,
            _ => HOUR_NS >> 20,
        };
        // The kernels' clock begins at 0, the CPU's in 1970.
        let saved = [
            Some(full_by_time(cpu(), ahead)),
            kernels().map(|table| full_by_time(table, 0)),
        ];
        for mut saved in saved.into_iter().flatten() {
            saved.save(&path).unwrap();
            for mut loaded in [Some(cpu()), kernels()].into_iter().flatten() {
                assert_eq!(loaded.load(&path).unwrap(), 32);
                let keys: Vec<u64> = (100..110).collect();
                let status = loaded
                    .insert_or_assign(&keys, &rows_of(&keys, 0, 16), None)
                    .unwrap();
                assert_eq!(status, [Status::Evicted; 10], "{strategy:?}");
                // Within a millisecond, epoch-LRU does not distinguish them.
                let latest = match strategy {
                    GpuEvictStrategy::Lru => &keys[..],
                    _ => &keys[9..],
                };
                let found = loaded.contains(latest).unwrap();
                assert!(found.iter().all(|found| *found), "{strategy:?}");
            }
        }
    }
}

#[test]
fn a_file_without_a_clock_has_no_score_later_than_now() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("table");
    let options = small(Width::W32, Candidates::One, 1).evict_strategy(GpuEvictStrategy::Lru);
    let mut ahead = full_by_time(GpuTable::on_cpu(options).unwrap(), 1 << 50);
    ahead.save(&path).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    assert_ne!(bytes[24..32], [0; 8]);
    bytes[24..32].fill(0);
    let checksum = crc32c::crc32c(&bytes[..32]);
    bytes[32..36].copy_from_slice(&checksum.to_le_bytes());
    std::fs::write(&path, bytes).unwrap();
    let mut loaded = GpuTable::on_cpu(options).unwrap();
    assert_eq!(loaded.load(&path).unwrap(), 32);
    let status = loaded.insert_or_assign(&[100], &rows_of(&[100], 0, 16), None);
    assert_eq!(status.unwrap(), [Status::Evicted]);
    assert_eq!(loaded.contains(&[100]).unwrap(), [true]);
}
