//! The hash index through whole tables: growth, overwrites, and what happens without memory.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use forerun_core::sync::{thread, time};

use super::*;
use crate::testing::random::Random;
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
    let expected = |i: usize| {
        if i < written as usize {
            Lookup::Value(&keys[i])
        } else {
            Lookup::Missing
        }
    };
    for (i, key) in keys.iter().enumerate() {
        assert_eq!(table.get(key, SEQUENCE_MAX).unwrap(), expected(i));
    }
    let mut answers = 0;
    table.multi_get(&keys, SEQUENCE_MAX, |i, lookup| {
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
fn a_late_older_version_does_not_hide_a_newer_one_that_found_no_space() {
    const KEYS: u32 = 3000;
    let table = table(64 << 20);
    let put = |value: &[u8], first: u64, may_take: &dyn Fn(usize) -> bool| {
        for n in 0..KEYS {
            let key = &key(n);
            let prepared = table.prepare_entries([Op::Put { key, value }].into_iter());
            let prepared = prepared.unwrap();
            prepared.grow_index(may_take);
            prepared.publish(first + u64::from(n));
        }
    };
    // Of two writers of a key, the one with the greater number may come first.
    put(b"newer", u64::from(KEYS) + 1, &|_| false);
    put(b"older", 1, &|_| true);
    let keys: Vec<_> = (0..KEYS).map(key).collect();
    for (snapshot, value) in [(SEQUENCE_MAX, &b"newer"[..]), (u64::from(KEYS), b"older")] {
        for key in &keys {
            let found = table.get(key, snapshot).unwrap();
            assert_eq!(found, Lookup::Value(value), "{key:?}");
        }
        table.multi_get(&keys, snapshot, |_, lookup| {
            assert_eq!(lookup.unwrap(), Lookup::Value(value));
        });
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
    thread::scope(|scope| {
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

/// Writes of several threads, numbered from 1 on. Some keys are written more often than others.
struct History(Vec<u32>);

impl History {
    const KEYS: u64 = 600;

    fn new(writes: u64, random: &mut Random) -> History {
        let key = |_| {
            let range = 1 + random.below(Self::KEYS);
            random.below(range) as u32
        };
        History((0..=writes).map(key).collect())
    }

    fn op<'k>(&self, sequence: u64, key: &'k [u8], value: &'k [u8]) -> Op<'k> {
        if sequence.is_multiple_of(7) {
            Op::Delete { key }
        } else {
            Op::Put { key, value }
        }
    }

    /// What a snapshot sees of a key: the number of the write, if it was not a deletion.
    fn expected(&self, n: u32, snapshot: u64) -> Option<u64> {
        let newest = (1..=snapshot).rev().find(|at| self.0[*at as usize] == n)?;
        (!newest.is_multiple_of(7)).then_some(newest)
    }

    fn check(&self, table: &MemTable, snapshot: u64, random: &mut Random) {
        let number = |lookup: Lookup<'_>| match lookup {
            Lookup::Value(value) => Some(u64::from_be_bytes(value.try_into().unwrap())),
            Lookup::Missing | Lookup::Deleted => None,
        };
        let numbers: Vec<_> = (0..20).map(|_| random.below(Self::KEYS) as u32).collect();
        let keys: Vec<_> = numbers.iter().copied().map(key).collect();
        for (n, key) in numbers.iter().zip(&keys).take(4) {
            let found = number(table.get(key, snapshot).unwrap());
            assert_eq!(found, self.expected(*n, snapshot), "key {n} at {snapshot}");
        }
        table.multi_get(&keys, snapshot, |i, lookup| {
            let (n, found) = (numbers[i], number(lookup.unwrap()));
            assert_eq!(found, self.expected(n, snapshot), "key {n} at {snapshot}");
        });
    }
}

#[test]
fn every_snapshot_sees_the_newest_write_before_it_while_threads_write_the_same_keys() {
    const THREADS: u64 = 4;
    const WRITES: u64 = 2500;
    let begun = time::now();
    for round in 0..9 {
        let history = History::new(WRITES + 10, &mut Random(round));
        let table = table(64 << 20);
        let (next, visible) = (AtomicU64::new(1), AtomicU64::new(0));
        let write = |random: &mut Random| {
            let len = 1 + random.below(8);
            let first = next.fetch_add(len, Ordering::Relaxed);
            if first > WRITES {
                return false;
            }
            let end = (first + len).min(WRITES + 1);
            let entries: Vec<_> = (first..end)
                .map(|at| (at, key(history.0[at as usize]), at.to_be_bytes()))
                .collect();
            let ops = entries.iter().map(|(at, k, v)| history.op(*at, k, v));
            let prepared = table.prepare_entries(ops).unwrap();
            // Memory is scarce in two of three rounds, and never there when the table is new.
            let is_granted = round % 3 == 0 || first > 300 && random.below(round % 3 + 1) == 0;
            prepared.grow_index(&|_| is_granted);
            prepared.publish(first);
            while visible.load(Ordering::Acquire) != first - 1 {
                let is_late = time::elapsed(begun) > Duration::from_secs(300);
                assert!(!is_late, "a writer is gone");
                thread::yield_now();
            }
            visible.store(end - 1, Ordering::Release);
            true
        };
        thread::scope(|scope| {
            for number in 0..THREADS {
                let (history, table, visible, write) = (&history, &table, &visible, &write);
                scope.spawn(move || {
                    let mut random = Random(round << 8 | number);
                    while write(&mut random) {
                        let last = visible.load(Ordering::Acquire);
                        history.check(table, last, &mut random);
                        let earlier = random.below(last + 1);
                        history.check(table, earlier, &mut random);
                    }
                });
            }
        });
        let mut random = Random(round);
        for _ in 0..200 {
            history.check(&table, random.below(WRITES + 1), &mut random);
        }
        let buckets = table.hash_index.as_ref().unwrap().buckets();
        assert!(buckets >= 32, "round {round}: {buckets} buckets");
    }
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
    table.multi_get(&keys, 1, |i, lookup| {
        assert_eq!(lookup.unwrap() == Lookup::Value(b"1"), i < 2);
    });
}

#[test]
fn a_closed_table_refuses_batches_and_answers_as_before() {
    let table = table(1 << 20);
    let mut next = write(&table, 0..900, 9, 1, &|_| true);
    // One is on its way when the table is closed, and takes no memory for the index any more.
    let op = |n: u32| (n..n + 100).map(key).collect::<Vec<_>>();
    let late = op(900);
    let ops = late.iter().map(|key| Op::Put { key, value: key });
    let prepared = table.prepare_entries(ops).unwrap();
    table.close();
    let used_bytes = table.stats().used_bytes;
    prepared.grow_index(&|_| true);
    prepared.publish(next);
    next += late.len() as u64;
    check(&table, 1000);
    let refused = op(1000);
    let ops = refused.iter().map(|key| Op::Put { key, value: key });
    match table.prepare(ops) {
        Err(Error::MemoryLimit {
            needed_bytes,
            used_bytes: used,
            ..
        }) => {
            assert!((4000..20_000).contains(&needed_bytes), "{needed_bytes}");
            assert_eq!(used, used_bytes);
        }
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("a closed table took a batch"),
    }
    assert_eq!(table.stats().used_bytes, used_bytes);
    check(&table, next as u32 - 1);
}
