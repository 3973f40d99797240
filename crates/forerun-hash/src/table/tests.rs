//! What only the inside of a table can show: where entries lie, and what happens to keys that nobody
//! could choose without the seed.

use super::bucket::{Cell, Identity, SLOTS, Side};
use super::*;
use forerun_core::hashing::Permutation;

const SEED: u64 = 42;

fn table(capacity: usize) -> HashTable {
    let options = Options {
        capacity,
        seed: Some(SEED),
        ..Options::default()
    };
    HashTable::with_options(options).unwrap()
}

/// Shares of the entries that are away, and of the absent keys whose lookup needs a second line.
fn second_lines(table: &HashTable) -> (f64, f64) {
    let guard = epoch::pin();
    let (mut entries, mut away, mut counted, mut cells) = (0, 0, 0, 0);
    for segment in table.directory(&guard).segments() {
        for bucket in segment.buckets() {
            for entry in (0..SLOTS).filter_map(|slot| bucket.entry(slot)) {
                entries += 1;
                away += usize::from(entry.side() == Side::Away);
            }
            cells += 8;
            counted += (0..8)
                .filter(|&bits| bucket.may_be_away(Cell::new(bits)))
                .count();
        }
    }
    (
        away as f64 / f64::from(entries),
        counted as f64 / f64::from(cells),
    )
}

#[test]
fn most_hits_take_one_line_and_misses_fewer_than_hits() {
    for (load, most_away, most_counted) in [(0.5, 0.06, 0.02), (0.7, 0.15, 0.06), (0.9, 0.31, 0.14)]
    {
        let table = table(100_000);
        for key in 0..(table.slots() as f64 * load) as u64 {
            table.insert(key, key).unwrap();
        }
        let (away, counted) = second_lines(&table);
        assert!(
            away < most_away && counted < most_counted,
            "load {load}: {away}, {counted}"
        );
    }
}

#[test]
fn batches_of_every_length_answer_as_single_keys_do_with_and_without_fetching_ahead() {
    // Too large for the caches; one segment of a few blocks; fewer entries than a block has keys.
    for entries in [300_000, 3_000, 40] {
        let table = table(entries);
        for key in 0..(table.slots() as f64 * 0.9) as u64 {
            table.insert(key, key + 1).unwrap();
        }
        let present = table.len() as u64;
        let lens = (0..=200).chain([255, 256, 257, 1000, 5000]);
        for (nth, len) in lens.enumerate() {
            // Batches of present keys, of absent ones, and of both by turns.
            let absent = |at: u64| nth % 3 == 1 || nth % 3 == 2 && at.is_multiple_of(3);
            let keys: Vec<u64> = (0..len as u64)
                .map(|at| (at * 7919 + nth as u64) % present + u64::from(absent(at)) * present)
                .collect();
            let (mut values, mut found) = (vec![7; len], vec![nth % 2 == 0; len]);
            let hits = table.find_batch(&keys, &mut values, &mut found);
            assert_eq!(hits, found.iter().filter(|&&found| found).count());
            for (at, &key) in keys.iter().enumerate() {
                let value = table.get(key);
                assert_eq!(value, (key < present).then_some(key + 1));
                assert_eq!(
                    (found[at], values[at]),
                    (value.is_some(), value.unwrap_or(7)),
                    "key {at} of {len}, {entries} entries"
                );
            }
        }
    }
}

#[test]
fn counters_return_to_zero_when_the_entries_that_are_away_are_gone() {
    let table = table(10_000);
    let keys = 0..(table.slots() as f64 * 0.9) as u64;
    for key in keys.clone() {
        table.insert(key, key).unwrap();
    }
    assert!(second_lines(&table).1 > 0.05);
    for key in keys {
        assert_eq!(table.remove(key), Some(key));
    }
    assert_eq!(second_lines(&table).1, 0.0);
}

#[test]
fn every_segment_holds_the_hashes_of_its_prefix_and_grows_by_itself() {
    let table = table(0);
    let guard = epoch::pin();
    for key in 0..200_000 {
        table.insert(key, !key).unwrap();
    }
    let directory = table.directory(&guard);
    for segment in directory.segments() {
        segment.lock().unwrap().for_each(|hash, value| {
            let key = table.permutation.key(hash);
            assert_eq!(value, !key);
            assert!(std::ptr::eq(
                &raw const **directory.segment(hash),
                &raw const **segment
            ));
        });
    }
    let entries: u64 = directory.segments().map(|segment| segment.entries()).sum();
    assert_eq!(entries, 200_000);
}

/// Keys that share both buckets in a table of `SEED`, however many buckets there are up to 2^20: their
/// hashes begin alike, with 01 and zeroes, and so do the products from which the second buckets are made.
fn crowd(count: u64) -> Vec<u64> {
    let permutation = Permutation::from_seed(SEED);
    let same_products = (0..).filter_map(|n: u64| {
        // The remainder whose product with the odd constant is small: its inverse times n.
        let remainder = n.wrapping_mul(super::place::ODD_INVERSE);
        (remainder >> 44 == 0).then_some(remainder)
    });
    same_products
        .take(count as usize)
        .map(|remainder| permutation.key(1 << 62 | remainder))
        .collect()
}

#[test]
fn a_key_that_has_no_place_in_a_nearly_empty_table_is_refused_and_changes_nothing() {
    let table = table(0);
    let keys = crowd(12);
    let mut refused = 0;
    for &key in &keys {
        match table.insert(key, key) {
            Ok(None) => {}
            Err(Error::Crowded { key: named }) => {
                assert_eq!(named, key);
                refused += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(
        refused,
        keys.len() - 2 * SLOTS,
        "two buckets take {} keys",
        2 * SLOTS
    );
    assert_eq!(table.len(), 2 * SLOTS);
    assert_eq!(table.slots(), 1024, "it did not grow in vain");
    assert_eq!(
        keys.iter()
            .filter(|&&key| table.get(key) == Some(key))
            .count(),
        2 * SLOTS
    );
    // Any other key is as welcome as before.
    assert_eq!(table.insert(7, 7), Ok(None));
}

#[test]
fn an_identity_tells_the_two_sides_of_a_remainder_apart() {
    let identity = Identity::home(u64::MAX);
    assert_ne!(identity, identity.on(Side::Away));
    assert_eq!(identity.on(Side::Away).on(Side::Home), identity);
    assert_eq!(identity.on(Side::Away).remainder(), identity.remainder());
    assert_ne!(Identity::home(0), Identity::home(1));
}
