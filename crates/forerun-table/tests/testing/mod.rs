//! Rows that show whether they are torn, and comparison of a table with a map.

#![allow(dead_code, reason = "each test program uses some of it")]

use forerun_gpu::DeviceBuffer;
use forerun_table::{Error, Table};
use std::collections::HashMap;

/// A row of `words` words, each of which holds key and version.
pub fn row(words: usize, key: u64, version: u32) -> Vec<u8> {
    let word = (u64::from(version) << 32 | key & 0xffff_ffff).to_le_bytes();
    word.repeat(words)
}

/// The concatenated rows of some keys, all with the same version.
pub fn rows(words: usize, keys: &[u64], version: u32) -> Vec<u8> {
    let rows = keys.iter().flat_map(|&key| row(words, key, version));
    rows.collect()
}

/// The version of a key's row.
///
/// # Panics
/// If the row is torn or belongs to another key.
pub fn version_of(row: &[u8], key: u64) -> u32 {
    let (words, rest) = row.as_chunks::<8>();
    assert!(rest.is_empty());
    assert!(words.iter().all(|word| *word == words[0]), "torn: {row:?}");
    let word = u64::from_le_bytes(words[0]);
    assert_eq!(word & 0xffff_ffff, key & 0xffff_ffff, "another key's row");
    (word >> 32) as u32
}

/// The answer for each key of a batch.
pub type Answers = Vec<Result<Option<Vec<u8>>, Error>>;

/// Looks up keys: `None` if the key is missing, `Err` if it failed.
pub fn find(table: &Table, keys: &[u64]) -> Answers {
    answers(table, keys, |rows, found| table.find(keys, rows, found))
}

/// Like [`find`], with rows that end in the memory of the device tier.
pub fn find_to_device(table: &Table, keys: &[u64]) -> Answers {
    answers(table, keys, |rows, found| {
        to_device(table, keys, rows, found)
    })
}

/// [`Table::find_to_device`]. If the tier is on a GPU, it uses a buffer there, copied from `rows`
/// and back.
pub fn to_device(
    table: &Table,
    keys: &[u64],
    rows: &mut [u8],
    found: &mut [bool],
) -> Result<usize, Error> {
    let Some(gpu) = table.gpu() else {
        return table.find_to_device(keys, rows, found);
    };
    let buffer = DeviceBuffer::from_slice(&gpu, rows).unwrap();
    let answer = table.find_to_device(keys, &buffer, found);
    buffer.read(0, rows).unwrap();
    answer
}

fn answers(
    table: &Table,
    keys: &[u64],
    find: impl FnOnce(&mut [u8], &mut [bool]) -> Result<usize, Error>,
) -> Answers {
    let row_bytes = table.row().bytes();
    let mut rows = vec![0xa5; keys.len() * row_bytes];
    let mut found = vec![true; keys.len()];
    let answer = find(&mut rows, &mut found);
    let mut all: Answers = rows
        .chunks_exact(row_bytes)
        .zip(&found)
        .map(|(row, &found)| {
            if !found {
                assert!(row.iter().all(|&byte| byte == 0xa5), "written without need");
            }
            Ok(found.then(|| row.to_vec()))
        })
        .collect();
    let hits = found.iter().filter(|&&found| found).count();
    match answer {
        Ok(reported) => assert_eq!(reported, hits),
        Err(Error::Keys(failures)) => {
            assert_eq!(failures.served(), hits);
            for (at, key, error) in failures.iter() {
                assert_eq!(keys[at], key);
                assert!(!found[at], "failed and found");
                all[at] = Err(error.clone());
            }
        }
        Err(error) => panic!("{error}"),
    }
    all
}

/// The versions of the rows of these keys; `None` if a key is missing.
///
/// # Panics
/// If a lookup fails, or a row is torn or belongs to another key.
pub fn versions(table: &Table, keys: &[u64]) -> Vec<Option<u32>> {
    let answers = find(table, keys).into_iter().zip(keys);
    answers
        .map(|(answer, &key)| answer.unwrap().map(|row| version_of(&row, key)))
        .collect()
}

/// Compares the table's rows of all these keys with the map's.
pub fn check_all(table: &Table, model: &HashMap<u64, Vec<u8>>, keys: &[u64]) {
    for (key, answer) in keys.iter().zip(find(table, keys)) {
        assert_eq!(answer.unwrap().as_ref(), model.get(key), "key {key}");
    }
    let mut found = vec![false; keys.len()];
    table.contains(keys, &mut found).unwrap();
    for (key, found) in keys.iter().zip(found) {
        assert_eq!(found, model.contains_key(key), "key {key}");
    }
}
