//! The flags in a bucket's word: what they say, and that they are set for the right bucket.

use crate::{Order, Shim, contents, crowd_around_zero, on_shim, row_of, rows_of, small};
use forerun_gpu::table::{
    Answers, Backend, Batch, Candidates, Condition, GpuEvictStrategy, GpuTable, LookupMode,
    Operation, Status, Width,
};

const SPILLED: u32 = 2;
const PINNED: u32 = 4;

/// The words of all buckets.
fn words(shim: &Shim, table: &GpuTable) -> Vec<u32> {
    let mut bytes = vec![0; table.state().buckets as usize * 4];
    shim.read(table.state().words, &mut bytes).unwrap();
    let words = bytes.as_chunks::<4>().0.iter();
    words.map(|word| u32::from_ne_bytes(*word)).collect()
}

fn has(words: &[u32], flag: u32) -> bool {
    words.iter().any(|word| word & flag != 0)
}

/// A bucket's word says whether it has pinned entries; the table's count only informs.
#[test]
fn pins_are_known_by_their_bucket() {
    for width in Width::ALL {
        let options = small(width, Candidates::Two, 2);
        let Some(shim) = Shim::start(Order::Seeded(1)) else {
            return;
        };
        let mut table = GpuTable::on(shim.clone(), options).unwrap();
        let keys: Vec<u64> = (0..6).collect();
        let rows = rows_of(&keys, 0, 16);
        table.insert_or_assign(&keys, &rows, None).unwrap();
        assert_eq!(table.lock(&keys).unwrap(), [Status::Found; 6]);
        shim.write(table.state().control + 8, &[0; 8]).unwrap();
        assert_eq!(table.erase(&keys).unwrap(), [Status::Pinned; 6]);
        let others: Vec<u64> = (100..100 + table.capacity() * 3 / 2).collect();
        let scores = vec![9; others.len()];
        table
            .insert_or_assign(&others, &rows_of(&others, 0, 16), Some(&scores))
            .unwrap();
        assert_eq!(table.contains(&keys).unwrap(), [true; 6]);
        // The words show no pins once the last one is gone.
        let words = |table: &GpuTable| {
            let mut words = [0; 8];
            shim.read(table.state().words, &mut words).unwrap();
            [words[0] & 4, words[4] & 4]
        };
        assert_ne!(words(&table), [0, 0]);
        assert_eq!(table.unlock(&keys).unwrap(), [Status::Found; 6]);
        assert_eq!(words(&table), [0, 0]);
    }
}

/// The pins of a wide bucket are in several words, and its flag stands for all of them.
#[test]
fn a_bucket_has_pins_until_the_last_one_is_gone() {
    for width in [Width::W64, Width::W128] {
        let Some(mut table) = on_shim(Order::OneWarp, small(width, Candidates::One, 1)) else {
            return;
        };
        let keys: Vec<u64> = (0..12).collect();
        table
            .insert_or_assign(&keys, &rows_of(&keys, 0, 16), None)
            .unwrap();
        assert_eq!(table.lock(&keys).unwrap(), [Status::Found; 12]);
        for gone in 1..=keys.len() {
            let (unlocked, pinned) = keys.split_at(gone);
            assert_eq!(
                table.unlock(&unlocked[gone - 1..]).unwrap(),
                [Status::Found]
            );
            let erased = table.erase(pinned).unwrap();
            assert_eq!(
                erased,
                vec![Status::Pinned; pinned.len()],
                "{width:?}, {gone}"
            );
        }
        assert_eq!(table.erase(&keys).unwrap(), [Status::Found; 12]);
    }
}

/// A key whose home is crowded is pinned in its second candidate, where it is found, kept and
/// unpinned.
#[test]
fn a_key_is_pinned_in_its_spill_bucket() {
    for width in Width::ALL {
        let options = small(width, Candidates::Two, 2);
        let Some(shim) = Shim::start(Order::OneWarp) else {
            return;
        };
        let mut table = GpuTable::on(shim.clone(), options).unwrap();
        let crowd = crowd_around_zero(options);
        table
            .insert_or_assign(&crowd, &rows_of(&crowd, 0, 16), None)
            .unwrap();
        assert!(!has(&words(&shim, &table), SPILLED));
        table
            .insert_or_assign(&[0], &row_of(0, 0, 16), None)
            .unwrap();
        assert!(has(&words(&shim, &table), SPILLED));

        assert_eq!(table.lock(&[0]).unwrap(), [Status::Found]);
        assert_eq!(table.erase(&[0]).unwrap(), [Status::Pinned]);
        // Its score is the lowest, and every other entry is replaced.
        let others: Vec<u64> = (1000..1020 + table.capacity()).collect();
        let scores = vec![9; others.len()];
        table
            .insert_or_assign(&others, &rows_of(&others, 0, 16), Some(&scores))
            .unwrap();
        let all = contents(&mut table);
        assert_eq!(all.len() as u64, table.capacity());
        assert_eq!(all.values().filter(|(score, _)| *score == 0).count(), 1);
        assert_eq!(all[&0].1, row_of(0, 0, 16), "{width:?}");

        assert_eq!(table.unlock(&[0]).unwrap(), [Status::Found]);
        assert!(!has(&words(&shim, &table), PINNED));
        assert_eq!(table.erase(&[0]).unwrap(), [Status::Found]);
    }
}

/// Otherwise each search for an absent key would go on to a bucket with nothing to find.
#[test]
fn a_clear_removes_the_flags_of_every_bucket() {
    for width in Width::ALL {
        let Some(shim) = Shim::start(Order::Seeded(u64::from(width.slots()))) else {
            return;
        };
        let options = small(width, Candidates::Two, 6);
        let mut table = GpuTable::on(shim.clone(), options).unwrap();
        let keys: Vec<u64> = (0..table.capacity()).collect();
        table
            .insert_or_assign(&keys, &rows_of(&keys, 0, 16), None)
            .unwrap();
        table.lock(&keys[..9]).unwrap();
        let before = words(&shim, &table);
        assert!(has(&before, SPILLED) && has(&before, PINNED), "{before:?}");
        table.clear().unwrap();
        assert!(!has(&words(&shim, &table), SPILLED | PINNED));
        table
            .insert_or_assign(&keys[..9], &rows_of(&keys[..9], 1, 16), None)
            .unwrap();
        assert_eq!(table.erase(&keys[..9]).unwrap(), [Status::Found; 9]);
    }
}

/// Readers of a bucket read again if its version has changed, so it changes only with a row, a key
/// or a digest.
#[test]
fn a_version_counts_only_changes_of_rows_keys_and_digests() {
    for width in Width::ALL {
        let options = small(width, Candidates::Two, 4);
        let Some(shim) = Shim::start(Order::Seeded(u64::from(width.slots()))) else {
            return;
        };
        let mut table = GpuTable::on(shim.clone(), options).unwrap();
        // Entries that nothing replaces, and free slots.
        let keys: Vec<u64> = (0..u64::from(width.slots())).collect();
        let rows = rows_of(&keys, 0, 16);
        let scores = vec![1000; keys.len()];
        table.insert_or_assign(&keys, &rows, Some(&scores)).unwrap();
        let before = words(&shim, &table);
        assert!(before.iter().any(|word| word >> 3 > 0), "{before:?}");

        let absent: Vec<u64> = (5000..5040).collect();
        let absent_rows = rows_of(&absent, 0, 16);
        let lower = vec![999; keys.len()];
        let none = vec![Status::Absent; absent.len()];
        assert_eq!(
            table.assign(&absent, &absent_rows, None).unwrap(),
            none,
            "{width:?}"
        );
        assert_eq!(table.erase(&absent).unwrap(), none);
        let of_scores = Batch::of(&keys).with_scores(&lower);
        table
            .apply(Operation::AssignScores, &of_scores, Answers::default())
            .unwrap();
        let nothing = Condition {
            key_mask: u64::MAX,
            key_value: 1 << 50,
            ..Condition::ALL
        };
        assert_eq!(table.erase_if(&nothing).unwrap(), 0);
        assert_eq!(words(&shim, &table), before, "{width:?}");

        // One entry changes, and with it the version of its bucket alone.
        let mut slot = [0];
        let answers = Answers {
            slots: Some(&mut slot),
            ..Answers::default()
        };
        table.lookup(LookupMode::ByLoad, &[7], answers).unwrap();
        let bucket = slot[0] / u64::from(width.slots());
        let mut expected = before;
        let changes: [&dyn Fn(&mut GpuTable); 3] = [
            &|table: &mut GpuTable| drop(table.assign(&[7], &row_of(7, 1, 16), None).unwrap()),
            &|table: &mut GpuTable| drop(table.erase(&[7]).unwrap()),
            &|table: &mut GpuTable| {
                assert_eq!(
                    table.erase_if(&Condition::ALL).unwrap(),
                    keys.len() as u64 - 1
                )
            },
        ];
        for change in &changes[..2] {
            change(&mut table);
            expected[bucket as usize] += 8;
            assert_eq!(words(&shim, &table), expected, "{width:?}");
        }
        changes[2](&mut table);
        let after = words(&shim, &table);
        assert!(
            after
                .iter()
                .zip(&expected)
                .any(|(after, before)| after > before),
            "{width:?}"
        );
    }
}

#[test]
fn a_refused_entry_leaves_the_version_of_its_bucket() {
    let options = small(Width::W16, Candidates::One, 1);
    let Some(shim) = Shim::start(Order::OneWarp) else {
        return;
    };
    let mut table = GpuTable::on(shim.clone(), options).unwrap();
    let keys: Vec<u64> = (0..16).collect();
    let rows = rows_of(&keys, 0, 16);
    table
        .insert_or_assign(&keys, &rows, Some(&[9; 16]))
        .unwrap();
    let before = words(&shim, &table);
    let status = table.insert_or_assign(&[50], &row_of(50, 0, 16), Some(&[8]));
    assert_eq!(status.unwrap(), [Status::Refused]);
    assert_eq!(words(&shim, &table), before);
    let status = table.insert_or_assign(&[50], &row_of(50, 0, 16), Some(&[10]));
    assert_eq!(status.unwrap(), [Status::Evicted]);
    assert_eq!(words(&shim, &table), [before[0] + 8]);
}

/// The clock of an epoch-LRU score has 32 bits. After it has begun again at 0, new entries still
/// replace the oldest ones. The kernels' clock begins at 0, so scores from just below the end of
/// the range are a little older.
#[test]
fn epoch_lru_evicts_the_oldest_across_the_wrap_of_its_clock() {
    for width in Width::ALL {
        let options = small(width, Candidates::One, 1).evict_strategy(GpuEvictStrategy::EpochLru);
        let Some(mut table) = on_shim(Order::OneWarp, options) else {
            return;
        };
        let keys: Vec<u64> = (0..table.capacity()).collect();
        let rows = rows_of(&keys, 0, 16);
        // Key 5 is the oldest of epoch 1, and key 6 the second.
        let age = |key: &u64| match key {
            5 => 3_000_000,
            6 => 2_000_000,
            key => 1 + key,
        };
        let scores: Vec<u64> = keys
            .iter()
            .map(|key| 1 << 32 | ((1 << 32) - age(key)))
            .collect();
        let batch = Batch::rows(&keys, &rows).with_scores(&scores);
        table
            .apply(Operation::Restore, &batch, Answers::default())
            .unwrap();
        for (new, gone) in [(1000, 5), (1001, 6)] {
            let row = row_of(new, 0, 16);
            let keys = [new];
            let batch = Batch {
                epoch: 1,
                ..Batch::rows(&keys, &row)
            };
            let given = table
                .apply(Operation::InsertAndEvict, &batch, Answers::default())
                .unwrap();
            assert_eq!(given.keys, [gone], "{width:?}");
            let expected = 1 << 32 | ((1 << 32) - age(&gone));
            assert_eq!(given.scores, [expected], "{width:?}");
        }
    }
}
