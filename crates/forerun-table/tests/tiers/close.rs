//! Writes that run beside close: each is flushed or refused.

use crate::testing;

use forerun_table::{Dtype, Error, Table, Update, WritePolicy};
use std::path::Path;
use testing::{rows, versions};

const WORDS: usize = 2;
const KEYS: u64 = 100_000;

fn open(path: &Path) -> Table {
    Table::builder(Dtype::I64, WORDS as u32)
        .host_capacity(2 * KEYS as usize)
        .path(path)
        .writes(WritePolicy::WriteBack)
        .open()
        .unwrap()
}

/// The keys of a batch that were written, according to the write's result.
fn written(keys: &[u64], answer: Result<(), Error>) -> Vec<u64> {
    match answer {
        Ok(()) => keys.to_vec(),
        Err(Error::Closed) => Vec::new(),
        Err(Error::Keys(failures)) => {
            let mut written = keys.to_vec();
            for (at, key, error) in failures.iter() {
                assert_eq!(keys[at], key);
                assert!(matches!(error, Error::Closed | Error::Store(_)), "{error}");
                written[at] = u64::MAX;
            }
            written.retain(|&key| key != u64::MAX);
            written
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn an_insert_during_close_is_flushed_or_refused() {
    for round in 0..3 {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rows");
        let table = open(&path);
        let keys: Vec<u64> = (0..KEYS).collect();
        let written = std::thread::scope(|scope| {
            let (writer, keys) = (table.clone(), &keys);
            let writing = scope.spawn(move || {
                let rows = rows(WORDS, keys, 1);
                written(keys, writer.insert(keys, &rows))
            });
            // Close in the middle of the batch.
            while table.host_len() < 1000 * (round + 1) && !writing.is_finished() {
                std::hint::spin_loop();
            }
            table.close().unwrap();
            writing.join().unwrap()
        });
        assert!(!written.is_empty());
        let table = open(&path);
        let found = versions(&table, &written);
        let lost = found.iter().filter(|version| version.is_none()).count();
        assert_eq!(lost, 0, "of {} rows that were written", written.len());
    }
}

#[test]
fn an_update_during_close_is_flushed_or_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rows");
    let table = open(&path);
    let keys: Vec<u64> = (0..KEYS / 2).collect();
    table.insert(&keys, &rows(WORDS, &keys, 1)).unwrap();
    table.flush().unwrap();
    let (found, answer) = std::thread::scope(|scope| {
        let (writer, keys) = (table.clone(), &keys);
        let writing = scope.spawn(move || {
            let mut found = vec![false; keys.len()];
            let rows = rows(WORDS, keys, 2);
            let answer = writer.update(keys, &rows, Update::Assign, &mut found);
            (found, answer)
        });
        while table.stats().host_dirty_rows < 1000 && !writing.is_finished() {
            std::hint::spin_loop();
        }
        table.close().unwrap();
        writing.join().unwrap()
    });
    if let Err(error) = answer {
        assert!(matches!(error, Error::Keys(_)), "{error}");
    }
    let table = open(&path);
    for ((key, version), found) in keys.iter().zip(versions(&table, &keys)).zip(found) {
        assert_eq!(version, Some(if found { 2 } else { 1 }), "key {key}");
    }
}

#[test]
fn a_table_can_be_reached_while_a_handle_is_there_and_is_closed_with_the_last() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rows");
    let table = open(&path);
    let weak = table.downgrade();
    weak.upgrade()
        .unwrap()
        .insert(&[7], &rows(WORDS, &[7], 3))
        .unwrap();
    drop(table);
    assert!(weak.upgrade().is_none());
    assert_eq!(versions(&open(&path), &[7]), [Some(3)]);
}
