//! The flags in a bucket's word: what they say, and that they are set for the right bucket.

use crate::{Order, Shim, contents, crowd_around_zero, on_shim, row_of, rows_of, small};
use forerun_gpu::table::{Backend, Candidates, GpuTable, Status, Width};

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
