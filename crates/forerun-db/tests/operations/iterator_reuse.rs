//! Iterators that a thread starts repeatedly see the latest writes, and hold no old memtables or
//! runs.

use crate::testing;

use std::collections::BTreeMap;

use forerun_db::io::fault::FaultIo;
use testing::{open, options_with_orders, run_files, tiny_options};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

fn key(i: u8) -> Vec<u8> {
    vec![b'k'; usize::from(i % 5)]
        .into_iter()
        .chain([i])
        .collect()
}

fn value(i: u8) -> Vec<u8> {
    vec![i; usize::from(i) * 3]
}

#[test]
fn a_new_iterator_sees_writes_made_since_the_last() {
    let io = FaultIo::new();
    let db = open(&io, &options_with_orders()).unwrap();
    let keyspaces: Vec<_> = (0..20)
        .map(|i| db.keyspace(&format!("{i}")).unwrap())
        .collect();
    let mut maps = vec![Map::new(); 20];
    for round in 0..600_usize {
        // More keyspaces than a thread keeps cursors for, a few of them used often; now and then
        // the runs change.
        let number = if round % 3 == 0 {
            round % 20
        } else {
            round % 4
        };
        let (keyspace, map) = (&keyspaces[number], &mut maps[number]);
        let first = key((round % 40) as u8);
        keyspace.put(&first, &value(round as u8)).unwrap();
        map.insert(first, value(round as u8));
        if round % 50 == 7 {
            let start = key((round % 30) as u8);
            keyspace.delete_range(&start, b"d").unwrap_or_default();
            map.retain(|key, _| !(start[..] <= key[..] && &key[..] < b"d"));
        }
        if round % 97 == 0 {
            db.flush().unwrap();
        }
        let start = key((round * 7 % 40) as u8);
        let mut iter = keyspace.range(start.clone()..);
        let mut wanted = map.range(start..);
        for _ in 0..round % 5 {
            let found = iter.next_entry().unwrap();
            let found = found.map(|entry| (entry.key, entry.value));
            assert_eq!(
                found,
                wanted.next().map(|(key, value)| (&key[..], &value[..]))
            );
            let found = iter.next_entry_back().unwrap();
            let found = found.map(|entry| (entry.key, entry.value));
            assert_eq!(
                found,
                wanted
                    .next_back()
                    .map(|(key, value)| (&key[..], &value[..]))
            );
        }
    }
}

#[test]
fn pooled_cursors_hold_no_old_files_or_memory() {
    let io = FaultIo::new();
    let db = open(&io, &tiny_options()).unwrap();
    let keyspace = db.keyspace("x").unwrap();
    for round in 0..20_u8 {
        for i in 0..20_u8 {
            keyspace.put(&[i], &[round; 100]).unwrap();
        }
        assert_eq!(keyspace.iter().count(), 20);
    }
    keyspace.compact().unwrap();
    assert_eq!(db.stats().memtables, 1);
    assert_eq!(
        run_files(&io).len(),
        keyspace.stats().levels.iter().map(|level| level.runs).sum()
    );
}
