//! A memtable's cursor against a sorted list, while entries are added.

use std::sync::Arc;

use forerun_core::Pages;
use forerun_db::Op;
use forerun_db::memtable::{
    Bytewise, Comparator, MemTable, MemTableConfig, MemoryChecks, ReverseBytewise,
};

/// Puts a value, or deletes the key.
fn write(table: &MemTable, key: &[u8], value: Option<&[u8]>, sequence: u64) {
    let op = match value {
        Some(value) => Op::Put { key, value },
        None => Op::Delete { key },
    };
    table.prepare([op].into_iter()).unwrap().publish(sequence);
}

#[test]
fn a_cursor_turns_around_anywhere_while_entries_are_added() {
    for checks in [MemoryChecks::Off, MemoryChecks::Paranoid] {
        for comparator in [
            Arc::new(Bytewise) as Arc<dyn Comparator>,
            Arc::new(ReverseBytewise),
        ] {
            let config = MemTableConfig::default()
                .limit_bytes(64 << 20)
                .comparator(Arc::clone(&comparator))
                .checks(checks)
                .pages(Pages::Small);
            let table = MemTable::new(config).unwrap();
            let mut expected: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
            let mut sequence = 0;
            for number in 0..600_u32 {
                let key = (number * 7 % 400).to_be_bytes().to_vec();
                let value = (number % 9 > 0).then(|| vec![number as u8; number as usize % 50]);
                sequence += 1;
                write(&table, &key, value.as_deref(), sequence);
                expected.retain(|entry| entry.0 != key);
                expected.extend(value.map(|value| (key, value)));
            }
            expected.sort_by(|a, b| comparator.compare(&a.0, &b.0));
            let mut cursor = table.cursor(sequence);
            let mut at = 250;
            let entry = cursor.seek(&expected[at].0).unwrap();
            assert_eq!(entry.map(|entry| entry.key), Some(&expected[at].0[..]));
            for steps in [
                -1, 1, -2, 1, -40_i32, 5, -1, -1, -1, 1, -70, 90, -3, 2, -133,
            ] {
                for _ in 0..steps.unsigned_abs() {
                    let entry = if steps < 0 {
                        cursor.prev()
                    } else {
                        cursor.next()
                    };
                    at = at.wrapping_add_signed(steps.signum() as isize);
                    let entry = entry.unwrap().expect("an entry is left");
                    let (key, value) = &expected[at];
                    assert_eq!((entry.key, entry.value), (&key[..], &value[..]));
                    // The cursor sees neither a new version of a key nor a new key after it.
                    let other = &expected[at - 1].0;
                    for key in [other.clone(), [&other[..], &[0]].concat()] {
                        sequence += 1;
                        write(&table, &key, Some(b"new"), sequence);
                    }
                }
            }
        }
    }
}
