//! A store used as a queue: an entry is taken from one end by a scan and deleted, and others are
//! put at the other end. A scan must not step over all that was taken before.

use crate::testing;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use forerun_db::io::fault::FaultIo;
use forerun_db::{Background, Db, KeyspaceOptions, Options};
use testing::counting::Counting;
use testing::{open, small_options};

/// Entries that are taken.
const POPS: u32 = 3_000;

/// Entries that are in the queue at all times.
const LENGTH: u32 = 100;

/// Comparisons for one entry: the search of a scan, the deletion, the put, and a bounded number of
/// steps.
const COMPARISONS_MAX: u64 = 1_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Delete {
    Key,
    /// Everything up to the key.
    Range,
}

/// Where the entries are when they are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Memtable,
    Runs,
    /// In runs, and new ones in the memtable.
    Both,
}

fn options() -> Options {
    small_options()
        .memory_limit_bytes(32 << 20)
        .memtable_bytes(8 << 20)
        .wal_segment_bytes(8 << 20)
        .background(Background::Caller)
}

/// A queue whose numbers ascend, or descend so that the last entry is taken.
struct Queue {
    db: Db,
    from_back: bool,
}

impl Queue {
    fn key(&self, number: u32) -> [u8; 4] {
        let number = if self.from_back {
            u32::MAX - 1 - number
        } else {
            number + 1
        };
        number.to_be_bytes()
    }

    fn put(&self, number: u32) {
        self.db.put(self.key(number), number.to_be_bytes()).unwrap();
    }

    fn first(&self) -> Option<Vec<u8>> {
        let mut iter = self.db.iter();
        let found = if self.from_back {
            iter.next_back()
        } else {
            iter.next()
        };
        found.map(|found| found.unwrap().1)
    }

    fn delete(&self, number: u32, how: Delete) {
        let key = self.key(number);
        match (how, self.from_back) {
            (Delete::Key, _) => self.db.delete(key),
            (Delete::Range, false) => self.db.delete_range([0; 4], self.key(number + 1)),
            (Delete::Range, true) => self.db.delete_range(key, [255; 4]),
        }
        .unwrap();
    }
}

#[test]
fn taking_an_entry_takes_as_many_steps_after_thousands_as_at_first() {
    for place in [Place::Memtable, Place::Runs, Place::Both] {
        for how in [Delete::Key, Delete::Range] {
            for from_back in [false, true] {
                let comparisons = Counting::default();
                let options = options().comparator(Arc::new(comparisons.clone()));
                let queue = Queue {
                    db: open(&FaultIo::new(), &options).unwrap(),
                    from_back,
                };
                let put_before = if place == Place::Runs { POPS } else { LENGTH };
                (0..put_before).for_each(|number| queue.put(number));
                if place != Place::Memtable {
                    queue.db.flush().unwrap();
                }
                let begun = comparisons.0.load(Relaxed);
                for number in 0..POPS {
                    let value = queue.first().unwrap();
                    assert_eq!(
                        value,
                        number.to_be_bytes(),
                        "{place:?}, {how:?}, {from_back}"
                    );
                    queue.delete(number, how);
                    if place != Place::Runs {
                        queue.put(number + LENGTH);
                    }
                }
                let each = (comparisons.0.load(Relaxed) - begun) / u64::from(POPS);
                assert!(
                    each < COMPARISONS_MAX,
                    "{place:?}, {how:?}, from back: {from_back}: {each} comparisons"
                );
            }
        }
    }
}

#[test]
fn an_empty_queue_is_found_empty_without_stepping_over_what_was_in_it() {
    for how in [Delete::Key, Delete::Range] {
        let comparisons = Counting::default();
        let options = options().comparator(Arc::new(comparisons.clone()));
        let queue = Queue {
            db: open(&FaultIo::new(), &options).unwrap(),
            from_back: false,
        };
        for number in 0..POPS {
            queue.put(number);
            queue.delete(number, how);
        }
        // Two scans find out.
        assert_eq!([queue.first(), queue.first()], [None, None]);
        for number in POPS..POPS + 100 {
            let begun = comparisons.0.load(Relaxed);
            assert_eq!(queue.first(), None);
            queue.put(number);
            assert_eq!(queue.first(), Some(number.to_be_bytes().to_vec()));
            queue.delete(number, how);
            let taken = comparisons.0.load(Relaxed) - begun;
            assert!(taken < 4 * COMPARISONS_MAX, "{how:?}: {taken} comparisons");
        }
    }
}

#[test]
fn a_new_memtable_keeps_what_scans_have_found_dead() {
    for name in ["", "jobs"] {
        for how in [Delete::Key, Delete::Range] {
            let case = format!("{name:?}, {how:?}");
            let comparisons = Counting::default();
            let comparator = Arc::new(comparisons.clone());
            let of_jobs = KeyspaceOptions::default().comparator(comparator.clone());
            let options = options().comparator(comparator).keyspace("jobs", of_jobs);
            let db = open(&FaultIo::new(), &options).unwrap();
            let jobs = if name.is_empty() {
                db.default_keyspace()
            } else {
                db.keyspace(name).unwrap()
            };
            let key = |number: u32| number.to_be_bytes();
            let put = |number: u32| jobs.put(key(number), b"").unwrap();
            (0..POPS + LENGTH).for_each(put);
            // It keeps compactions from dropping deleted entries.
            let before = db.snapshot();
            match how {
                Delete::Key => (0..POPS).for_each(|number| jobs.delete(key(number)).unwrap()),
                Delete::Range => jobs.delete_range(key(0), key(POPS)).unwrap(),
            }
            let check = |number: u32, when: &str| {
                let begun = comparisons.0.load(Relaxed);
                let first = jobs.iter().next().unwrap().unwrap().0;
                assert_eq!(first, key(number), "{case}, {when}");
                comparisons.0.load(Relaxed) - begun
            };
            // Two scans find out.
            check(POPS, "at first");
            check(POPS, "at first");
            for round in 0..8 {
                db.flush().unwrap();
                let flushed = check(POPS, "flushed");
                put(POPS + LENGTH + round);
                let written = check(POPS, "written");
                let most = flushed.max(written);
                assert!(most < COMPARISONS_MAX, "{case}: {most} comparisons");
            }
            db.flush().unwrap();
            put(70);
            check(70, "put again");
            db.flush().unwrap();
            check(70, "put again and flushed");
            jobs.delete(key(70)).unwrap();
            check(POPS, "deleted again");
            check(POPS, "deleted again");
            let mut ingestion = jobs.ingest();
            ingestion.add(key(50), b"").unwrap();
            ingestion.commit().unwrap();
            check(50, "ingested");
            let seen = before.keyspace(&jobs).iter().count();
            assert_eq!(seen, (POPS + LENGTH) as usize, "{case}");
        }
    }
}

#[test]
fn a_scan_finds_what_is_put_among_deleted_keys() {
    for from_back in [false, true] {
        let queue = Queue {
            db: open(&FaultIo::new(), &options()).unwrap(),
            from_back,
        };
        (0..=POPS).for_each(|number| queue.put(number));
        (0..POPS).for_each(|number| queue.delete(number, Delete::Key));
        let last = Some(POPS.to_be_bytes().to_vec());
        let old = queue.db.snapshot();
        for number in (0..POPS).step_by(97) {
            // Enough scans to know that all are deleted.
            for _ in 0..4 {
                assert_eq!(queue.first(), last);
            }
            let before = queue.db.snapshot();
            queue.put(number);
            assert_eq!(queue.first(), Some(number.to_be_bytes().to_vec()));
            assert_eq!(before.iter().count(), 1);
            assert_eq!(queue.db.iter().count(), 2);
            queue.delete(number, Delete::Key);
            assert_eq!(before.iter().rev().count(), 1);
        }
        assert_eq!(old.iter().count(), 1);
    }
}

#[test]
fn a_live_key_with_older_versions_is_found_among_deleted_ones_from_both_sides() {
    for how in [Delete::Key, Delete::Range] {
        for is_flushed in [false, true] {
            let queue = Queue {
                db: open(&FaultIo::new(), &options()).unwrap(),
                from_back: false,
            };
            (0..=2 * POPS).for_each(|number| queue.put(number));
            if is_flushed {
                queue.db.flush().unwrap();
            }
            match how {
                Delete::Key => (0..=2 * POPS).for_each(|number| queue.delete(number, how)),
                Delete::Range => queue.db.delete_range([0; 4], [255; 4]).unwrap(),
            }
            let live = queue.key(POPS).to_vec();
            let keys = |is_reversed: bool| -> Vec<_> {
                let key = |entry: forerun_db::Result<(Vec<u8>, Vec<u8>)>| entry.unwrap().0;
                let iter = queue.db.iter();
                if is_reversed {
                    iter.rev().map(key).collect()
                } else {
                    iter.map(key).collect()
                }
            };
            for round in 0..4 {
                assert!(keys(round % 2 == 0).is_empty());
            }
            for _ in 0..3 {
                queue.put(POPS);
                for round in 0..8 {
                    assert_eq!(keys(round % 4 < 2), [&live[..]], "{how:?}, {round}");
                }
            }
        }
    }
}

#[test]
fn a_scan_steps_over_few_of_the_versions_of_a_deleted_key() {
    let comparisons = Counting::default();
    let options = options().comparator(Arc::new(comparisons.clone()));
    let db = open(&FaultIo::new(), &options).unwrap();
    for number in 0..POPS {
        db.put(b"key", number.to_be_bytes()).unwrap();
    }
    db.put(b"last", b"").unwrap();
    db.delete_range(b"key", b"last").unwrap();
    let begun = comparisons.0.load(Relaxed);
    assert_eq!(db.iter().next().unwrap().unwrap().0, b"last");
    let taken = comparisons.0.load(Relaxed) - begun;
    assert!(taken < COMPARISONS_MAX, "{taken} comparisons");
}

#[test]
fn a_scan_of_an_older_snapshot_finds_what_was_deleted_later() {
    let queue = Queue {
        db: open(&FaultIo::new(), &options()).unwrap(),
        from_back: false,
    };
    (0..=POPS).for_each(|number| queue.put(number));
    let before = queue.db.snapshot();
    (0..POPS).for_each(|number| queue.delete(number, Delete::Key));
    let after = queue.db.snapshot();
    for _ in 0..4 {
        assert_eq!(queue.first(), Some(POPS.to_be_bytes().to_vec()));
        assert_eq!(after.iter().count(), 1);
    }
    assert_eq!(before.iter().count(), POPS as usize + 1);
    assert_eq!(before.iter().rev().count(), POPS as usize + 1);
}

#[test]
fn scans_beside_writers_find_every_entry_that_was_put_before_them() {
    const ENTRIES: u32 = 300;
    const DELETED: u32 = 400;
    let db = open(&FaultIo::new(), &options().background(Background::Threads)).unwrap();
    let key = |number: u32| number.to_be_bytes();
    db.put(key(u32::MAX), b"last").unwrap();
    for number in 0..DELETED {
        db.put(key(number), b"").unwrap();
        db.delete(key(number)).unwrap();
    }
    let (put, db) = (&AtomicU64::new(0), &db);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(move || {
                loop {
                    let number = put.load(Relaxed);
                    let mut iter = db.iter();
                    iter.next().unwrap().unwrap();
                    let mut back = db.iter();
                    back.next_back().unwrap().unwrap();
                    back.next_back();
                    if number >= u64::from(ENTRIES) {
                        break;
                    }
                }
            });
        }
        for number in 0..ENTRIES {
            let key = key(number.wrapping_mul(0x9e37_79b1) % DELETED);
            db.put(key, number.to_be_bytes()).unwrap();
            let first = db.iter().next().unwrap().unwrap();
            assert_eq!(first.0, key, "entry {number}");
            let mut back = db.iter();
            back.next_back().unwrap().unwrap();
            assert_eq!(back.next_back().unwrap().unwrap().0, key, "entry {number}");
            db.delete(key).unwrap();
            put.store(u64::from(number) + 1, Relaxed);
        }
    });
}
