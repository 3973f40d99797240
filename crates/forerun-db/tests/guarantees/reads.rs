//! Readers and the page cache: the answers are right.

use std::time::Duration;

use forerun_db::io::fault::FaultIo;
use forerun_db::{Db, KeyspaceOptions, Options, Values, WriteBatch};

use crate::testing::{open, tiny_options};
use crate::{holds, many_runs};

#[test]
fn an_iterator_that_goes_backward_shows_the_newest_version() {
    holds(|| {
        // A flush would drop the older versions, so all of them must fit a memtable.
        let options = tiny_options().memtable_bytes(16 << 10);
        let db = open(&FaultIo::new(), &options).unwrap();
        (0..20_u8).for_each(|i| db.put(b"key", &[i]).unwrap());
        let last = db.iter().next_back().unwrap().unwrap();
        last == (b"key".to_vec(), vec![19])
    });
}

#[test]
fn a_range_ends_before_its_excluded_end() {
    holds(|| {
        let db = open(&FaultIo::new(), &tiny_options()).unwrap();
        db.put(b"a", b"value").unwrap();
        db.put(b"b", b"value").unwrap();
        db.range("a".."b").count() == 1
    });
}

#[test]
fn a_prefix_may_end_with_the_highest_byte() {
    holds(|| {
        let db = open(&FaultIo::new(), &tiny_options()).unwrap();
        db.put(b"a\xff1", b"value").unwrap();
        db.prefix(b"a\xff").count() == 1
    });
}

#[test]
fn a_batch_answers_a_repeated_key_every_time() {
    holds(|| {
        let db = open(&FaultIo::new(), &tiny_options()).unwrap();
        db.put(b"key", b"value").unwrap();
        db.flush().unwrap();
        let mut values = Values::new();
        db.multi_get(&["key", "key"], &mut values).unwrap();
        (0..2).all(|place| values.get(place).unwrap() == Some(b"value"))
    });
}

#[test]
fn a_memtable_finds_every_key_after_its_index_has_grown() {
    holds(|| {
        let options = tiny_options().memtable_bytes(64 << 10);
        let db = open(&FaultIo::new(), &options).unwrap();
        let keys: Vec<_> = (0..100_u32).map(u32::to_be_bytes).collect();
        keys.iter().for_each(|key| db.put(key, b"value").unwrap());
        keys.iter().all(|key| db.get(key).unwrap().is_some())
    });
}

/// Whether a key can be read this many seconds after it was put into a memtable of a keyspace with
/// a time to live of ten seconds.
fn is_there_after(seconds: u64) -> bool {
    let io = FaultIo::new();
    io.set_unix_time_s(Some(1_000));
    let db = open(&io, &tiny_options()).unwrap();
    let options = KeyspaceOptions::default().ttl(Duration::from_secs(10));
    let mortal = db.keyspace_with("mortal", options).unwrap();
    mortal.put(b"key", b"value").unwrap();
    io.set_unix_time_s(Some(1_000 + seconds));
    mortal.get(b"key").unwrap().is_some()
}

#[test]
fn entries_expire_in_a_memtable() {
    holds(|| !is_there_after(11));
}

#[test]
fn entries_live_exactly_their_ttl() {
    holds(|| is_there_after(10));
}

#[test]
fn expired_entries_stay_expired_when_the_clock_is_set_back() {
    holds(|| {
        let io = FaultIo::new();
        io.set_unix_time_s(Some(1_000));
        let db = open(&io, &tiny_options()).unwrap();
        let options = KeyspaceOptions::default().ttl(Duration::from_secs(10));
        let mortal = db.keyspace_with("mortal", options).unwrap();
        mortal.put(b"key", b"value").unwrap();
        io.set_unix_time_s(Some(1_011));
        assert!(mortal.get(b"key").unwrap().is_none(), "it has expired");
        io.set_unix_time_s(Some(1_001));
        mortal.get(b"key").unwrap().is_none()
    });
}

#[test]
fn a_batch_is_visible_whole_or_not_at_all() {
    holds(|| {
        let options = tiny_options()
            .memory_limit_bytes(8 << 20)
            .memtable_bytes(4 << 20);
        let db = open(&FaultIo::new(), &options).unwrap();
        let is_whole = |db: &Db| {
            let mut values = Values::new();
            db.multi_get(&["a", "b"], &mut values).unwrap();
            values.get(0).unwrap() == values.get(1).unwrap()
        };
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for i in 0..20_000_u32 {
                    let mut batch = WriteBatch::new();
                    batch.put(b"a", &i.to_le_bytes()).unwrap();
                    batch.put(b"b", &i.to_le_bytes()).unwrap();
                    db.write(&batch, options.durability).unwrap();
                }
            });
            let mut is_always = true;
            while !writer.is_finished() {
                is_always &= is_whole(&db);
            }
            is_always
        })
    });
}

/// Small pages and the smallest possible cache.
fn few_pages() -> Options {
    many_runs().cache_bytes(64 << 10)
}

fn value(number: u64) -> Vec<u8> {
    number
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .to_le_bytes()
        .repeat(16)
}

/// Several runs have a page of each number, and together more pages than the cache holds.
#[test]
fn each_lookup_of_a_batch_gets_the_value_of_its_key() {
    holds(|| {
        const KEYS: u64 = 3_000;
        let (io, options) = (FaultIo::new(), few_pages());
        let db = open(&io, &options).unwrap();
        for number in (0..KEYS).map(|i| i * 1_007 % KEYS) {
            db.put(&number.to_be_bytes(), &value(number)).unwrap();
        }
        db.flush().unwrap();
        drop(db);
        let db = open(&io, &options).unwrap();
        let mut values = Values::new();
        (0..30_u64).all(|round| {
            let numbers: Vec<u64> = (0..200).map(|i| (round * 577 + i * 1_009) % KEYS).collect();
            let keys: Vec<[u8; 8]> = numbers.iter().map(|number| number.to_be_bytes()).collect();
            db.multi_get(&keys, &mut values).unwrap();
            let mut places = numbers.iter().enumerate();
            places.all(|(place, number)| {
                values
                    .get(place)
                    .is_ok_and(|of| of == Some(&value(*number)[..]))
            })
        })
    });
}
