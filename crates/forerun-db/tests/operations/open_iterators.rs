//! Iterators that are open together over a cache much smaller than the store, while runs are
//! replaced, pages are evicted and iterators change threads; and iterators over files that cannot
//! be read.

use crate::testing;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use forerun_core::sync::thread;
use forerun_db::io::fault::{EIO, Fault, FaultIo};
use forerun_db::io::{Io, OpenMode};
use forerun_db::{Db, Error, Iter, Options, TreeOptions, Values};
use testing::random::Random;
use testing::{open, small_options, tiny_options};

type Bytes = Arc<[u8]>;
type Map = BTreeMap<Bytes, Bytes>;

const KEYS: u64 = 3_000;

impl Random {
    /// A long key, so that the store has deep trees. Seven in a row begin alike.
    fn key(&mut self) -> Vec<u8> {
        key(self.below(KEYS))
    }

    /// A value of a page and more, now and then.
    fn value(&mut self) -> Vec<u8> {
        let len = match self.below(60) {
            0 => 4_000 + self.below(12_000),
            _ => self.below(90),
        };
        (0..len).map(|_| self.below(256) as u8).collect()
    }
}

fn key(number: u64) -> Vec<u8> {
    let mut key = format!("{:04}", number / 7).repeat(24).into_bytes();
    key.push(b'a' + (number % 7) as u8);
    key
}

/// Several levels of small runs, of pages of 4 KiB.
fn options(cache_bytes: usize) -> Options {
    small_options()
        .memory_limit_bytes(16 << 20)
        .memtable_bytes(64 << 10)
        .cache_bytes(cache_bytes)
        .background(tiny_options().background)
        .run(tiny_options().run)
        .wal_segment_bytes(64 << 10)
        .tree(
            TreeOptions::default()
                .level0_runs(3)
                .level1_bytes(128 << 10)
                .level_factor(3)
                .run_bytes(48 << 10),
        )
}

/// Writes and deletes some keys, and ranges of them that span pages.
fn write_some(db: &Db, map: &mut Map, random: &mut Random, ops: u64) {
    for _ in 0..ops {
        let key = random.key();
        match random.below(300) {
            0 => {
                let mut end = key.clone();
                end[2] += random.below(4) as u8;
                if key < end {
                    db.delete_range(&key, &end).unwrap();
                    map.retain(|at, _| !(key[..] <= at[..] && at[..] < end[..]));
                }
            }
            1..60 => {
                db.delete(&key).unwrap();
                map.remove(&key[..]);
            }
            _ => {
                let value = random.value();
                db.put(&key, &value).unwrap();
                map.insert(key.into(), value.into());
            }
        }
    }
}

/// An open iterator, and the entries that it has still to return.
struct Open {
    iter: Iter,
    left: VecDeque<(Bytes, Bytes)>,
}

impl Open {
    fn new(db: &Db, map: &Map, random: &mut Random) -> Open {
        let bounds = match random.below(3) {
            0 => (Bound::Unbounded, Bound::Unbounded),
            1 => (Bound::Included(random.key()), Bound::Unbounded),
            _ => {
                let mut keys = [random.key(), random.key()];
                keys.sort();
                let [start, end] = keys;
                (Bound::Excluded(start), Bound::Included(end))
            }
        };
        let is_inside = |key: &[u8]| {
            let is_after = match &bounds.0 {
                Bound::Unbounded => true,
                Bound::Included(start) => key >= &start[..],
                Bound::Excluded(start) => key > &start[..],
            };
            is_after && !matches!(&bounds.1, Bound::Included(end) if key > &end[..])
        };
        let left = map.iter().filter(|(key, _)| is_inside(key));
        Open {
            left: left.map(|(k, v)| (Arc::clone(k), Arc::clone(v))).collect(),
            iter: db.range(bounds),
        }
    }

    /// Takes a step from either end. Returns whether there was an entry.
    fn step(&mut self, from_back: bool) -> bool {
        let (found, wanted) = if from_back {
            (self.iter.next_entry_back(), self.left.pop_back())
        } else {
            (self.iter.next_entry(), self.left.pop_front())
        };
        let found = found.unwrap().map(|entry| (entry.key, entry.value));
        let wanted = wanted.as_ref().map(|(key, value)| (&key[..], &value[..]));
        let text = |key: Option<(&[u8], _)>| key.map(|(key, _)| key.escape_ascii().to_string());
        assert!(
            found == wanted,
            "{:?} instead of {:?}",
            text(found),
            text(wanted)
        );
        wanted.is_some()
    }

    /// Takes some steps, mostly in one direction.
    fn walk(&mut self, random: &mut Random) {
        let mostly_back = random.below(2) == 0;
        for _ in 0..random.below(30) {
            self.step((random.below(5) == 0) != mostly_back);
        }
    }
}

#[test]
fn open_iterators_agree_with_maps_while_the_store_changes_beneath_them() {
    // Almost no page may be held, a few, and most.
    for (seed, cache_bytes) in [(1, 96 << 10), (2, 300 << 10), (3, 2 << 20)] {
        let mut random = Random(seed);
        let io = FaultIo::new();
        let db = open(&io, &options(cache_bytes)).unwrap();
        let mut map = Map::new();
        write_some(&db, &mut map, &mut random, 6_000);
        let mut iters: Vec<Open> = Vec::new();
        let mut values = Values::new();
        for round in 0..60 {
            write_some(&db, &mut map, &mut random, 30);
            if round % 5 == 0 {
                db.flush().unwrap();
            }
            if round % 20 == 10 {
                db.compact().unwrap();
            }
            for _ in 0..4 {
                iters.push(Open::new(&db, &map, &mut random));
            }
            // Other reads evict pages.
            let keys: Vec<_> = (0..40).map(|_| random.key()).collect();
            db.multi_get(&keys, &mut values).unwrap();
            match round % 3 {
                0 => {
                    let thirds = iters.len().div_ceil(3);
                    thread::scope(|scope| {
                        for (thread, iters) in iters.chunks_mut(thirds).enumerate() {
                            let mut random = Random(random.below(1 << 40) + thread as u64);
                            scope.spawn(move || {
                                iters.iter_mut().for_each(|iter| iter.walk(&mut random));
                            });
                        }
                    });
                }
                _ => iters.iter_mut().for_each(|iter| iter.walk(&mut random)),
            }
            while iters.len() > 60 {
                let mut iter = iters.swap_remove(random.below(iters.len() as u64) as usize);
                let from_back = random.below(2) == 0;
                while iter.step(from_back) {}
                assert!(!iter.step(!from_back), "it has ended");
            }
        }
        // The last owner of some is another thread.
        thread::scope(|scope| {
            scope.spawn(move || drop(iters));
        });
        // The roots of all runs may need more than the smallest cache.
        let used_bytes = db.stats().cache.used_bytes;
        assert!(used_bytes <= cache_bytes.max(300 << 10), "{used_bytes}");
        let mut iter = Open::new(&db, &map, &mut random);
        while iter.step(false) {}
        db.close().unwrap();
    }
}

#[test]
fn a_read_that_fails_ends_its_iterator_with_one_error_and_no_other() {
    let mut random = Random(9);
    let io = FaultIo::new();
    let options = options(96 << 10);
    let db = open(&io, &options).unwrap();
    let mut map = Map::new();
    write_some(&db, &mut map, &mut random, 5_000);
    db.flush().unwrap();
    let mut failures = 0;
    for case in 0..100 {
        let from_back = case % 2 == 1;
        let (mut iter, mut other) = (
            Open::new(&db, &map, &mut random),
            Open::new(&db, &map, &mut random),
        );
        let mut wanted = iter.left.iter();
        for _ in 0..case % 5 {
            other.step(false);
        }
        // A read of several leaves that fails is repeated for the leaf alone.
        let first = io.calls() + random.below(20);
        for call in first..first + 3 {
            io.fail_call(call, Fault::Fail(EIO));
        }
        let error = loop {
            let found = if from_back {
                iter.iter.next_entry_back()
            } else {
                iter.iter.next_entry()
            };
            let wanted = if from_back {
                wanted.next_back()
            } else {
                wanted.next()
            };
            match found {
                Ok(found) => {
                    let found = found.map(|entry| (entry.key, entry.value));
                    assert!(found == wanted.map(|(key, value)| (&key[..], &value[..])));
                    if found.is_none() {
                        break None;
                    }
                }
                Err(error) => break Some(error),
            }
        };
        if let Some(error) = &error {
            assert!(error.to_string().contains("cannot read"), "{error}");
            failures += 1;
        }
        assert!(iter.iter.next_entry().unwrap().is_none(), "it has ended");
        assert!(iter.iter.next_entry_back().unwrap().is_none());
        // Whatever calls are still to fail must not reach the others.
        while io.calls() < first + 3 {
            let _ = io.open("/none".as_ref(), OpenMode::Read);
        }
        while other.step(from_back) {}
    }
    assert!(failures > 50, "{failures} of 100");
}

#[test]
fn an_iterator_of_a_closed_store_returns_its_entries_or_one_error_that_names_a_file() {
    for (seed, files) in [(4, 1), (5, 3), (6, 1_000)] {
        let mut random = Random(seed);
        let io = FaultIo::new();
        let options = options(96 << 10).max_open_files(files);
        let db = open(&io, &options).unwrap();
        let mut map = Map::new();
        write_some(&db, &mut map, &mut random, 5_000);
        db.flush().unwrap();
        let mut iters: Vec<_> = (0..40).map(|_| Open::new(&db, &map, &mut random)).collect();
        for iter in iters.iter_mut().step_by(2) {
            iter.walk(&mut random);
        }
        db.close().unwrap();
        // The next opening removes runs, and compactions write others.
        let next = open(&io, &options).unwrap();
        write_some(&next, &mut map, &mut random, 3_000);
        next.compact().unwrap();
        let mut failures = 0;
        for (at, Open { mut iter, mut left }) in iters.into_iter().enumerate() {
            let error = loop {
                let (found, wanted) = match at % 3 {
                    0 => (iter.next_entry_back(), left.pop_back()),
                    _ => (iter.next_entry(), left.pop_front()),
                };
                match found {
                    Ok(found) => {
                        let found = found.map(|entry| (entry.key, entry.value));
                        let wanted = wanted.as_ref().map(|(key, value)| (&key[..], &value[..]));
                        assert!(found == wanted);
                        if found.is_none() {
                            break None;
                        }
                    }
                    Err(error) => break Some(error),
                }
            };
            if let Some(error) = error {
                assert!(matches!(&error, Error::Io { .. }), "{error}");
                assert!(error.to_string().contains(".run"), "{error}");
                failures += 1;
            }
            assert!(iter.next_entry().unwrap().is_none(), "it has ended");
        }
        let is_held = files == 1_000;
        assert_eq!(failures == 0, is_held, "{failures} with {files} open files");
        let mut iter = Open::new(&next, &map, &mut random);
        while iter.step(false) {}
        next.close().unwrap();
    }
}
