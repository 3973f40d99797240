//! The hash index through whole tables: growth, overwrites, and what happens without memory.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::versions::SEQUENCE_MAX;

fn table(limit_bytes: usize) -> MemTable {
    let config = MemTableConfig::default()
        .limit_bytes(limit_bytes)
        .hash_index(true)
        .pages(Pages::Small);
    MemTable::new(config).unwrap()
}

fn key(n: u32) -> [u8; 8] {
    (u64::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_be_bytes()
}

/// Writes keys in batches. Returns the next sequence number.
fn write(
    table: &MemTable,
    keys: std::ops::Range<u32>,
    batch: usize,
    mut sequence: u64,
    may_take: &dyn Fn(usize) -> bool,
) -> u64 {
    let keys: Vec<_> = keys.map(key).collect();
    for batch in keys.chunks(batch) {
        let ops = batch.iter().map(|key| Op::Put { key, value: key });
        let prepared = table.prepare_entries(ops).unwrap();
        prepared.grow_index(may_take);
        prepared.publish(sequence);
        sequence += batch.len() as u64;
    }
    sequence
}

/// Checks that some keys are found, alone and in a batch, and that as many others are not.
fn check(table: &MemTable, written: u32) {
    let keys: Vec<_> = (0..2 * written).map(key).collect();
    let expected = |i: usize| match i < written as usize {
        true => Lookup::Value(&keys[i]),
        false => Lookup::Missing,
    };
    for (i, key) in keys.iter().enumerate() {
        assert_eq!(table.get(key, SEQUENCE_MAX).unwrap(), expected(i));
    }
    let mut answers = 0;
    table.multi_get(&keys, SEQUENCE_MAX, Strategy::Index, |i, lookup| {
        assert_eq!(lookup.unwrap(), expected(i));
        answers += 1;
    });
    assert_eq!(answers, keys.len());
}

#[test]
fn every_key_is_found_however_large_the_index_and_the_batches_are() {
    for batch in [1, 7, 100, 20_000] {
        let table = table(64 << 20);
        let mut sequence = 1;
        for step in [0..1, 1..5, 5..80, 80..1000, 1000..20_000] {
            let end = step.end;
            sequence = write(&table, step, batch, sequence, &|_| true);
            check(&table, end);
        }
        let index = table.hash_index.as_ref().unwrap();
        assert!((20_000 / 8..20_000 / 4).contains(&index.buckets()));
    }
}

#[test]
fn no_bucket_lacks_an_entry_while_there_is_memory() {
    for batch in [1, 100, 30_000] {
        for _ in 0..4 {
            let table = table(64 << 20);
            let index = table.hash_index.as_ref().unwrap();
            let (mut sequence, mut written) = (1, 0);
            for end in [20, 50, 71, 73, 100, 150, 500, 5_000, 20_000, 60_000] {
                sequence = write(&table, written..end, batch, sequence, &|_| true);
                written = end;
                let (incomplete, spare) = index.incomplete_and_spare(table.list.arena());
                assert_eq!(incomplete, 0, "{written} keys in batches of {batch}");
                let buckets = index.buckets();
                assert!(
                    spare <= 8 + buckets / 10,
                    "{spare} spare lines, {buckets} buckets"
                );
            }
            check(&table, written);
        }
    }
}

#[test]
fn an_overwrite_takes_no_memory_in_the_index() {
    let table = table(64 << 20);
    let in_index = AtomicUsize::new(0);
    let count = |bytes| {
        in_index.fetch_add(bytes, Ordering::Relaxed);
        true
    };
    let mut sequence = write(&table, 0..5000, 10, 1, &count);
    let taken = in_index.load(Ordering::Relaxed);
    assert!(taken > 5000 * 6, "{taken} bytes");
    // Space for one batch of new keys may be made.
    for round in 0..5 {
        sequence = write(&table, 0..5000, 10, sequence, &count);
        assert_eq!(in_index.load(Ordering::Relaxed), taken, "round {round}");
    }
    check(&table, 5000);
    // An older snapshot walks to its version, or searches the list for it.
    for round in 0..6 {
        let snapshot = round * 5000 + 17;
        let found = |n: u32| table.get(&key(n), snapshot).unwrap() != Lookup::Missing;
        assert!(found(16) && (round > 0 || !found(17)), "round {round}");
    }
}

#[test]
fn without_memory_for_the_index_every_key_is_still_found() {
    for allowed in [0, 3] {
        let table = table(64 << 20);
        let asked = AtomicUsize::new(0);
        let refuse = |_| asked.fetch_add(1, Ordering::Relaxed) < allowed;
        write(&table, 0..3000, 50, 1, &refuse);
        let index = table.hash_index.as_ref().unwrap();
        assert!(index.buckets() < 64);
        check(&table, 3000);
        // It grows when there is memory again, and keeps what it lacks in mind.
        write(&table, 3000..6000, 50, 3001, &|_| true);
        assert!(index.buckets() > 64);
        check(&table, 6000);
    }
}

#[test]
fn a_table_that_is_full_answers_for_every_key_in_it() {
    let table = table(64 << 10);
    let mut written = 0;
    loop {
        let key = key(written);
        let op = Op::Put {
            key: &key,
            value: &key,
        };
        match table.prepare([op].into_iter()) {
            Ok(prepared) => prepared.publish(u64::from(written) + 1),
            Err(Error::MemoryLimit { .. }) => break,
            Err(error) => panic!("{error}"),
        }
        written += 1;
    }
    assert!(written > 500, "{written}");
    check(&table, written);
}

#[test]
fn writers_readers_and_the_growing_index_do_not_wait_for_each_other_for_long() {
    const THREADS: u32 = 4;
    const KEYS: u32 = 8_000;
    let table = table(64 << 20);
    forerun_core::sync::thread::scope(|scope| {
        for thread in 0..THREADS {
            let table = &table;
            scope.spawn(move || {
                for n in (thread..KEYS).step_by(THREADS as usize) {
                    let key = key(n);
                    let op = Op::Put {
                        key: &key,
                        value: &key,
                    };
                    let prepared = table.prepare([op].into_iter()).unwrap();
                    prepared.publish(u64::from(n) + 1);
                    for back in [0, 1, 10, 100, 1000] {
                        let Some(earlier) = n.checked_sub(back * THREADS) else {
                            break;
                        };
                        let bytes = self::key(earlier);
                        let found = table.get(&bytes, SEQUENCE_MAX).unwrap();
                        assert_eq!(found, Lookup::Value(&bytes));
                    }
                }
            });
        }
    });
    check(&table, KEYS);
}

#[test]
fn orders_that_may_equate_keys_and_checked_tables_have_no_hash_index() {
    struct Vague;
    impl Comparator for Vague {
        fn name(&self) -> &str {
            "vague"
        }
        fn compare(&self, a: &[u8], b: &[u8]) -> std::cmp::Ordering {
            a.to_ascii_lowercase().cmp(&b.to_ascii_lowercase())
        }
    }
    let has_index = |config: MemTableConfig| {
        let config = config.limit_bytes(1 << 20).pages(Pages::Small);
        MemTable::new(config).unwrap().hash_index.is_some()
    };
    let default = || MemTableConfig::default().hash_index(true);
    assert!(has_index(default()));
    assert!(!has_index(MemTableConfig::default()));
    assert!(has_index(default().comparator(Arc::new(ReverseBytewise))));
    assert!(!has_index(default().comparator(Arc::new(Vague))));
    assert!(!has_index(default().checks(MemoryChecks::Paranoid)));
    let vague = default().comparator(Arc::new(Vague)).limit_bytes(1 << 20);
    let table = MemTable::new(vague.pages(Pages::Small)).unwrap();
    let op = Op::Put {
        key: b"Key",
        value: b"1",
    };
    table.prepare([op].into_iter()).unwrap().publish(1);
    let keys = ["key", "KEY", "other"];
    table.multi_get(&keys, 1, Strategy::Index, |i, lookup| {
        assert_eq!(lookup.unwrap() == Lookup::Value(b"1"), i < 2);
    });
}
