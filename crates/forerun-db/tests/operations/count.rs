//! Counting entries: exact, and without reading the runs of the deepest level.

use crate::testing;

use forerun_db::io::fault::FaultIo;
use forerun_db::{Db, Error};
use testing::{open, run_files, small_options};

/// Offset of the first page of a run.
const FIRST_PAGE: usize = 32;

fn key(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

fn put(db: &Db, keys: impl Iterator<Item = u32>) {
    keys.for_each(|number| db.put(key(number), b"value").unwrap());
}

/// A store with the even keys below 2000 in one run of several pages. Its first page is damaged, so
/// a call that reads it fails.
fn compacted() -> (FaultIo, Db) {
    let io = FaultIo::new();
    let db = open(&io, &small_options()).unwrap();
    put(&db, (0..2000).step_by(2));
    db.compact().unwrap();
    db.close().unwrap();
    let runs = run_files(&io);
    assert_eq!(runs.len(), 1);
    io.overwrite(&runs[0], FIRST_PAGE, b"damage");
    let db = open(&io, &small_options()).unwrap();
    (io, db)
}

fn is_damage<T>(result: Result<T, Error>) -> bool {
    matches!(result, Err(Error::CorruptFile { .. }))
}

#[test]
fn the_deepest_level_is_counted_from_its_metadata() {
    let (_io, db) = compacted();
    assert!(db.iter().any(is_damage), "the damage is found");
    assert_eq!(db.count().unwrap(), 1000);
    // New keys, existing ones, and deletions of both kinds, on pages that are not damaged.
    put(&db, 1500..1600);
    (1700..1720).for_each(|number| db.delete(key(number)).unwrap());
    assert_eq!(db.count().unwrap(), 1000 + 50 - 10);
    let before = db.snapshot();
    db.flush().unwrap();
    assert_eq!(db.count().unwrap(), 1040, "flushed");
    // Several versions of a key, of which a snapshot sees an older one.
    put(&db, 1700..1720);
    assert_eq!((db.count().unwrap(), before.count().unwrap()), (1060, 1040));
    let keyspace = db.keyspace("other").unwrap();
    keyspace.put(b"key", b"value").unwrap();
    assert_eq!((db.count().unwrap(), keyspace.count().unwrap()), (1060, 1));
}

#[test]
fn a_count_that_needs_a_damaged_page_fails() {
    // An older snapshot does not see all of the run.
    let io = FaultIo::new();
    let db = open(&io, &small_options()).unwrap();
    put(&db, 0..1000);
    let snapshot = db.snapshot();
    put(&db, 1000..2000);
    db.compact().unwrap();
    assert_eq!(snapshot.count().unwrap(), 1000);
    drop(snapshot);
    // A range deletion covers a part of the run.
    let (_io, db) = compacted();
    db.delete_range(key(1900), key(1950)).unwrap();
    assert!(is_damage(db.count()));
    // A key on the damaged page was written again.
    let (_io, db) = compacted();
    put(&db, 0..1);
    assert!(is_damage(db.count()));
}

#[test]
fn a_count_stops_when_its_caller_says_so() {
    // All entries stay in the memtable, which is read.
    let options = small_options().memory_limit_bytes(16 << 20);
    let db = open(&FaultIo::new(), &options.memtable_bytes(8 << 20)).unwrap();
    put(&db, 0..10_000);
    let mut asked = 0;
    let counted = db.count_while(|| {
        asked += 1;
        asked < 2
    });
    assert!(matches!(counted, Err(Error::Interrupted)), "{counted:?}");
    assert_eq!(asked, 2);
    assert_eq!(db.count_while(|| true).unwrap(), 10_000);
}
