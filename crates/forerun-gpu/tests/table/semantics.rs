//! The table on the CPU behaves as documented.

use crate::{Order, contents, on_shim, row_of, rows_of, small};
use forerun_gpu::table::{
    Answers, Batch, Candidates, Condition, Element, Entries, GpuEvictStrategy, GpuTable, Operation,
    ScoreBytes, Status, TableError, TableOptions, Width,
};
use proptest::prelude::*;
use std::collections::BTreeMap;

fn table() -> GpuTable {
    GpuTable::on_cpu(small(Width::W32, Candidates::Two, 8)).unwrap()
}

#[test]
fn every_u64_is_a_key() {
    let mut table = table();
    let keys = [
        0,
        1,
        u64::MAX,
        u64::MAX - 1,
        u64::MAX - 2,
        u64::MAX - 3,
        1 << 63,
    ];
    let mut rows = vec![0; 7 * 16];
    assert_eq!(table.find(&keys, &mut rows).unwrap(), [false; 7]);
    table
        .insert_or_assign(&keys, &rows_of(&keys, 3, 16), None)
        .unwrap();
    assert_eq!(table.find(&keys, &mut rows).unwrap(), [true; 7]);
    assert_eq!(rows, rows_of(&keys, 3, 16));
    assert_eq!(table.erase(&keys[2..4]).unwrap(), [Status::Found; 2]);
    assert_eq!(
        table.contains(&keys[1..5]).unwrap(),
        [true, false, false, true]
    );
}

#[test]
fn a_table_on_a_device_is_changed_beside_lookups_unless_it_can_grow() {
    let options = small(Width::W32, Candidates::Two, 8);
    let keys: Vec<u64> = (0..40).collect();
    let rows = rows_of(&keys, 3, 16);
    let insert = |table: &GpuTable| {
        let scores = vec![1; keys.len()];
        let batch = Batch {
            scores: Some(&scores),
            ..Batch::rows(&keys, &rows)
        };
        let operation = Operation::InsertOrAssign;
        table.apply_beside_lookups(operation, &batch, Answers::default())
    };
    let refused = |table: &GpuTable| {
        assert!(!table.writes_beside_lookups());
        let error = insert(table).unwrap_err();
        assert!(matches!(error, TableError::NeedsExclusiveAccess), "{error}");
    };
    refused(&table());
    let growing = options.max_capacity(options.capacity * 2);
    if let Some(growing) = on_shim(Order::Seeded(1), growing) {
        refused(&growing);
    }
    let Some(mut table) = on_shim(Order::Seeded(1), options) else {
        return;
    };
    assert!(table.writes_beside_lookups());
    insert(&table).unwrap();
    let mut found = vec![0; rows.len()];
    assert_eq!(table.find(&keys, &mut found).unwrap(), vec![true; 40]);
    assert_eq!(found, rows);
    assert_eq!(contents(&mut table).len(), 40);
}

#[test]
fn find_or_insert_returns_present_rows_and_inserts_missing_ones() {
    let mut table = table();
    table
        .insert_or_assign(&[1], &row_of(1, 0, 16), None)
        .unwrap();
    let mut rows = rows_of(&[1, 2], 9, 16);
    let status = table.find_or_insert(&[1, 2], &mut rows, None).unwrap();
    assert_eq!(status, [Status::Found, Status::Inserted]);
    assert_eq!(rows, [row_of(1, 0, 16), row_of(2, 9, 16)].concat());
    let (pointers, status) = table.find_or_insert_ptr(&[3, 2], None).unwrap();
    assert_eq!(status, [Status::Inserted, Status::Found]);
    assert_eq!(pointers, table.find_ptr(&[3, 2]).unwrap());
    let all = contents(&mut table);
    assert_eq!((&all[&3].1, &all[&2].1), (&vec![0; 16], &row_of(2, 9, 16)));
}

/// Without input rows, an inserted row is zeros, and so is the answer.
#[test]
fn the_answer_for_a_key_inserted_without_a_row_is_zeros() {
    let options = small(Width::W32, Candidates::Two, 8);
    let kernels = on_shim(Order::OneWarp, options);
    let tables = kernels.into_iter().chain([table()]);
    for mut table in tables {
        let mut rows = [9; 16];
        let answers = Answers {
            rows: Some(&mut rows),
            ..Answers::default()
        };
        table
            .apply(Operation::FindOrInsert, &Batch::of(&[5]), answers)
            .unwrap();
        assert_eq!(rows, [0; 16]);
    }
}

#[test]
fn accumulate_adds_to_present_rows_and_inserts_missing_ones() {
    let mut table = table();
    let halves: Vec<u8> = [0.5f32; 4].iter().flat_map(|x| x.to_ne_bytes()).collect();
    table
        .insert_or_assign(&[1, 2], &halves.repeat(2), None)
        .unwrap();
    let status = table
        .accumulate_or_assign(
            Element::F32,
            &[1, 1, 2, 3, 4],
            &halves.repeat(5),
            &[1, 1, 0, 1, 0],
            None,
        )
        .unwrap();
    assert_eq!(
        status,
        [
            Status::Found,
            Status::Found,
            Status::Found,
            Status::Absent,
            Status::Inserted
        ]
    );
    let all = contents(&mut table);
    let of = |key: u64| f32::from_ne_bytes(all[&key].1[12..].try_into().unwrap());
    assert_eq!((of(1), of(2), of(4), all.len()), (1.5, 0.5, 0.5, 3));
}

#[test]
fn assignments_change_only_present_rows() {
    let mut table = table();
    table
        .insert_or_assign(&[1], &row_of(1, 0, 16), Some(&[5]))
        .unwrap();
    let apply = |table: &mut GpuTable, operation, batch: &Batch<'_>| {
        table.apply(operation, batch, Answers::default()).unwrap();
        contents(table)
    };
    let rows = rows_of(&[1, 2], 1, 16);
    let batch = Batch::rows(&[1, 2], &rows).with_scores(&[7, 7]);
    let all = apply(&mut table, Operation::AssignRows, &batch);
    assert_eq!(all, [(1, (5, row_of(1, 1, 16)))].into());
    let all = apply(&mut table, Operation::AssignScores, &batch);
    assert_eq!(all, [(1, (7, row_of(1, 1, 16)))].into());
    let rows = rows_of(&[1, 2], 2, 16);
    let batch = Batch::rows(&[1, 2], &rows).with_scores(&[8, 8]);
    let all = apply(&mut table, Operation::Assign, &batch);
    assert_eq!(all, [(1, (8, row_of(1, 2, 16)))].into());
}

/// Tables of one bucket: one whose kernels run on the host if there is a compiler, and one on the
/// CPU.
fn small_tables(strategy: GpuEvictStrategy, score_bytes: ScoreBytes) -> Vec<GpuTable> {
    let options = small(Width::W16, Candidates::One, 1)
        .evict_strategy(strategy)
        .score_bytes(score_bytes);
    let kernels = on_shim(Order::OneWarp, options);
    let cpu = GpuTable::on_cpu(options).unwrap();
    kernels.into_iter().chain([cpu]).collect()
}

/// The score of key 1 after it was inserted or assigned in these epochs with these scores.
fn score_after(table: &mut GpuTable, batches: &[(u64, Option<u64>)]) -> u64 {
    for (epoch, score) in batches {
        let given = score.map(|score| [score]);
        let batch = Batch {
            keys: &[1],
            rows: Some(&[0; 16]),
            scores: given.as_ref().map(|given| &given[..]),
            flags: None,
            epoch: *epoch,
        };
        table
            .apply(Operation::InsertOrAssign, &batch, Answers::default())
            .unwrap();
    }
    contents(table)[&1].0
}

#[test]
fn scores_follow_their_policies() {
    use GpuEvictStrategy::{Customized, EpochLfu, EpochLru, Lfu, Lru};
    use ScoreBytes::{Eight, Four};
    const MAX: u64 = u64::MAX;
    const LOW_32: u64 = u32::MAX as u64;
    type Batches<'a> = &'a [(u64, Option<u64>)];
    let cases: [(_, _, Batches<'_>, u64); 9] = [
        (Lfu, Eight, &[(0, None), (0, Some(5)), (0, None)], 7),
        (Lfu, Eight, &[(0, None), (0, Some(MAX))], MAX),
        (Lfu, Four, &[(0, None), (0, Some(MAX))], LOW_32),
        (EpochLfu, Eight, &[(1, Some(4)), (7, None)], 7 << 32 | 5),
        (
            EpochLfu,
            Eight,
            &[(1, Some(4)), (2, Some(LOW_32 - 3))],
            2 << 32 | LOW_32,
        ),
        (EpochLfu, Eight, &[(3, Some(MAX))], 3 << 32 | LOW_32),
        (Customized, Eight, &[(0, Some(9)), (0, None)], 9),
        (Customized, Four, &[(0, Some(1 << 40))], LOW_32),
        (Customized, Eight, &[(0, Some(1 << 40))], 1 << 40),
    ];
    for (strategy, score_bytes, batches, expected) in cases {
        for mut table in small_tables(strategy, score_bytes) {
            let score = score_after(&mut table, batches);
            assert_eq!(score, expected, "{:?}, {batches:?}", table.options());
        }
    }
    for mut table in small_tables(EpochLru, Eight) {
        assert_eq!(score_after(&mut table, &[(3, None)]) >> 32, 3);
    }
    for mut table in small_tables(Lru, Eight) {
        let before = score_after(&mut table, &[(0, None)]);
        assert!(score_after(&mut table, &[(0, None)]) > before);
    }
}

#[test]
fn an_entry_with_the_greatest_score_is_replaced_by_another_one() {
    for (score_bytes, greatest) in [
        (ScoreBytes::Four, u64::from(u32::MAX)),
        (ScoreBytes::Eight, u64::MAX),
    ] {
        for mut table in small_tables(GpuEvictStrategy::Customized, score_bytes) {
            let keys: Vec<u64> = (0..16).collect();
            let rows = rows_of(&keys, 0, 16);
            let status = table
                .insert_or_assign(&keys, &rows, Some(&[greatest; 16]))
                .unwrap();
            assert_eq!(status, [Status::Inserted; 16]);
            let late = rows_of(&[20, 21], 0, 16);
            let status = table
                .insert_or_assign(&[20, 21], &late, Some(&[greatest - 1, greatest]))
                .unwrap();
            assert_eq!(
                status,
                [Status::Refused, Status::Evicted],
                "{score_bytes:?}"
            );
            let all = contents(&mut table);
            assert_eq!(all.len(), 16);
            assert_eq!(all[&21], (greatest, row_of(21, 0, 16)));
        }
    }
}

#[test]
fn a_batch_larger_than_the_table_keeps_its_greatest_scores() {
    let mut table = table();
    let keys: Vec<u64> = (0..5000).collect();
    let scores: Vec<u64> = keys.iter().map(|key| key * 31 % 5003).collect();
    let given = table
        .insert_and_evict(&keys, &rows_of(&keys, 0, 16), Some(&scores))
        .unwrap();
    let kept = contents(&mut table);
    assert_eq!(
        (kept.len() as u64, given.len()),
        (table.capacity(), 5000 - kept.len())
    );
    let least = kept.values().map(|(score, _)| *score).min().unwrap();
    assert!(least > 4500, "{least}");
}

#[test]
fn conditions_choose_what_is_counted_exported_and_erased() {
    let mut table = table();
    let keys: Vec<u64> = (0..100).collect();
    table
        .insert_or_assign(&keys, &rows_of(&keys, 0, 16), Some(&keys))
        .unwrap();
    table.lock(&[10]).unwrap();
    let even_tens = Condition {
        scores: 10..=19,
        key_mask: 1,
        key_value: 0,
    };
    assert_eq!(table.size_if(&even_tens).unwrap(), 5);
    let mut out = Entries::default();
    assert_eq!(
        table
            .export_batch_if(0..u64::MAX, &even_tens, &mut out)
            .unwrap(),
        5
    );
    let mut found = out.keys.clone();
    found.sort_unstable();
    assert_eq!(found, [10, 12, 14, 16, 18]);
    for (i, slot) in out.positions.iter().enumerate() {
        assert_eq!(table.row(*slot).unwrap(), out.rows[i * 16..][..16]);
    }
    assert_eq!(table.erase_if(&even_tens).unwrap(), 4); // 10 is pinned
    assert_eq!(table.size().unwrap(), 96);
    assert!(matches!(table.row(256), Err(TableError::NoSuchSlot { .. })));
}

#[test]
fn addresses_of_updated_rows_are_those_of_the_lookup() {
    // Addresses exist on a device only.
    let options = small(Width::W32, Candidates::Two, 8);
    let Some(mut table) = on_shim(Order::OneWarp, options) else {
        return;
    };
    let keys: Vec<u64> = (0..50).collect();
    table
        .insert_or_assign(&keys, &rows_of(&keys, 0, 16), Some(&keys))
        .unwrap();
    let asked: Vec<u64> = (40..60).collect();
    let scores = vec![1000; 20];
    let (pointers, status) = table.find_and_update_ptr(&asked, Some(&scores)).unwrap();
    assert_eq!(pointers, table.find_ptr(&asked).unwrap());
    for (i, status) in status.into_iter().enumerate() {
        let is_there = i < 10;
        assert_eq!(status == Status::Found, is_there);
        assert_eq!(pointers[i] != 0, is_there);
    }
    let mut found = vec![0; 10];
    let answers = Answers {
        scores: Some(&mut found),
        ..Answers::default()
    };
    table
        .lookup(Default::default(), &asked[..10], answers)
        .unwrap();
    assert_eq!(found, [1000; 10]);
}

#[test]
fn wrong_batches_and_options_are_refused_by_name() {
    let mut table = table();
    let said = |error: TableError| error.to_string();
    let short = table.insert_or_assign(&[1, 2], &[0; 16], None).unwrap_err();
    assert_eq!(said(short), "rows: 16 bytes for 2 keys, 32 expected");
    let scores = table
        .insert_or_assign(&[1], &[0; 16], Some(&[1, 2]))
        .unwrap_err();
    assert_eq!(said(scores), "scores: 2 scores for 1 key, 1 expected");
    let none = table
        .apply(Operation::Assign, &Batch::of(&[1]), Answers::default())
        .unwrap_err();
    assert_eq!(said(none), "assign needs rows");
    assert!(table.find(&[1], &mut [0; 15]).is_err());
    let epoch = Batch {
        epoch: 1 << 32,
        ..Batch::of(&[1])
    };
    let epoch = table
        .apply(Operation::Erase, &epoch, Answers::default())
        .unwrap_err();
    assert!(matches!(epoch, TableError::Epoch { .. }));
    let mut odd = GpuTable::on_cpu(TableOptions::new(1, 6)).unwrap();
    let odd = odd
        .accumulate_or_assign(Element::F32, &[1], &[0; 6], &[1], None)
        .unwrap_err();
    assert_eq!(
        said(odd),
        "rows of 6 bytes do not consist of elements of 4 bytes"
    );
    let of = |options| GpuTable::on_cpu(options).unwrap_err();
    assert!(matches!(
        of(TableOptions::new(0, 1)),
        TableError::Capacity { .. }
    ));
    assert!(matches!(
        of(TableOptions::new(1, 1 << 31)),
        TableError::RowTooLong { .. }
    ));
    let narrow = TableOptions::new(1, 1).score_bytes(ScoreBytes::Four);
    assert!(matches!(
        of(narrow),
        TableError::NarrowScores {
            evict_strategy: GpuEvictStrategy::Lru
        }
    ));
    assert!(matches!(
        of(TableOptions::new(1 << 40, 1 << 10)),
        TableError::OutOfMemory { .. }
    ));
}

proptest! {
    #[test]
    fn a_table_with_free_slots_behaves_like_a_map(
        steps in prop::collection::vec((0u64..300, 0u8..4, any::<u64>()), 0..400),
        width in prop::sample::select(Width::ALL.to_vec()),
    ) {
        let mut table =
            GpuTable::on_cpu(small(width, Candidates::Two, 2048 / u64::from(width.slots())))
                .unwrap();
        let mut map = BTreeMap::new();
        for (key, what, stamp) in steps {
            match what {
                0 => {
                    table.erase(&[key]).unwrap();
                    map.remove(&key);
                }
                1 => {
                    let mut row = [0; 16];
                    let found = table.find(&[key], &mut row).unwrap()[0];
                    prop_assert_eq!(found.then(|| row.to_vec()), map.get(&key).cloned());
                }
                _ => {
                    table.insert_or_assign(&[key], &row_of(key, stamp, 16), None).unwrap();
                    map.insert(key, row_of(key, stamp, 16));
                }
            }
        }
        let all: BTreeMap<_, _> = contents(&mut table).into_iter()
            .map(|(key, (_, row))| (key, row)).collect();
        prop_assert_eq!(all, map);
    }
}
