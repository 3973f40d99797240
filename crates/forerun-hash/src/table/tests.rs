//! Tests that need the internals of a table: where entries lie, and keys that no caller could
//! choose without the seed.

use super::bucket::{Identity, OverflowCounter, SLOTS, Side};
use super::*;
use forerun_core::hashing::Permutation;

const SEED: u64 = 42;

fn table(capacity: usize) -> HashTable {
    let options = HashTableOptions {
        capacity,
        seed: Some(SEED),
        ..HashTableOptions::default()
    };
    HashTable::with_options(options).unwrap()
}

/// The share of entries in their second bucket, and the share of absent keys whose lookup reads a
/// second line.
fn second_lines(table: &HashTable) -> (f64, f64) {
    let guard = table.pin_epoch();
    let (mut entries, mut second, mut nonzero, mut counters) = (0, 0, 0, 0);
    for segment in table.directory(&guard).segments() {
        for bucket in segment.buckets() {
            for entry in (0..SLOTS).filter_map(|slot| bucket.entry(slot)) {
                entries += 1;
                second += usize::from(entry.side() == Side::Second);
            }
            counters += 8;
            nonzero += (0..8)
                .filter(|&bits| bucket.has_overflow(OverflowCounter::new(bits)))
                .count();
        }
    }
    (
        second as f64 / f64::from(entries),
        nonzero as f64 / f64::from(counters),
    )
}

#[test]
fn most_hits_take_one_line_and_misses_fewer_than_hits() {
    for (load, max_away, max_counted) in [(0.5, 0.06, 0.02), (0.7, 0.15, 0.06), (0.9, 0.31, 0.14)] {
        let table = table(100_000);
        for key in 0..(table.slots() as f64 * load) as u64 {
            table.insert(key, key).unwrap();
        }
        let (away, counted) = second_lines(&table);
        assert!(
            away < max_away && counted < max_counted,
            "load {load}: {away}, {counted}"
        );
    }
}

#[test]
fn batches_of_every_length_agree_with_single_lookups_with_and_without_prefetching() {
    // Larger than the CPU's caches; one segment of a few blocks; fewer entries than a block has
    // keys.
    for entries in [300_000, 3_000, 40] {
        let table = table(entries);
        for key in 0..(table.slots() as f64 * 0.9) as u64 {
            table.insert(key, key + 1).unwrap();
        }
        let present = table.len() as u64;
        let frozen = self::table(entries);
        for key in 0..present {
            frozen.insert(key, key + 1).unwrap();
        }
        let frozen = frozen.freeze();
        let lens = (0..=200).chain([255, 256, 257, 1000, 5000]);
        for (nth, len) in lens.enumerate() {
            // Batches of present keys, of absent keys, and of both in alternation.
            let absent = |at: u64| nth % 3 == 1 || nth % 3 == 2 && at.is_multiple_of(3);
            let keys: Vec<u64> = (0..len as u64)
                .map(|at| (at * 7919 + nth as u64) % present + u64::from(absent(at)) * present)
                .collect();
            let (mut values, mut found) = (vec![7; len], vec![nth % 2 == 0; len]);
            let hits = table.find(&keys, &mut values, &mut found);
            assert_eq!(hits, found.iter().filter(|&&found| found).count());
            let (mut same_values, mut same_found) = (vec![7; len], vec![nth % 3 == 0; len]);
            assert_eq!(frozen.find(&keys, &mut same_values, &mut same_found), hits);
            assert_eq!((&same_values, &same_found), (&values, &found));
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
fn overflow_counters_return_to_zero_when_displaced_entries_are_removed() {
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
fn every_segment_holds_the_hashes_of_its_prefix_and_grows_on_its_own() {
    let table = table(0);
    let guard = table.pin_epoch();
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

/// Keys that share both buckets in a table with `SEED` of any size up to 2^20 buckets. Their hashes
/// have a common prefix, 01 and then zeroes, and so do the products that determine the second
/// buckets.
fn crowd(count: u64) -> Vec<u64> {
    let permutation = Permutation::from_seed(SEED);
    let same_products = (0..).filter_map(|n: u64| {
        // The remainder whose product with the odd constant is small: n times the inverse.
        let remainder = n.wrapping_mul(super::place::ODD_INVERSE);
        (remainder >> 44 == 0).then_some(remainder)
    });
    same_products
        .take(count as usize)
        .map(|remainder| permutation.key(1 << 62 | remainder))
        .collect()
}

#[test]
fn a_key_that_does_not_fit_in_a_nearly_empty_table_is_refused_and_changes_nothing() {
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
    assert_eq!(table.slots(), 1024, "it did not grow");
    assert_eq!(
        keys.iter()
            .filter(|&&key| table.get(key) == Some(key))
            .count(),
        2 * SLOTS
    );
    // Other keys can still be inserted.
    assert_eq!(table.insert(7, 7), Ok(None));
}

#[test]
fn identities_distinguish_the_two_sides_of_a_remainder() {
    let identity = Identity::home(u64::MAX);
    assert_ne!(identity, identity.on(Side::Second));
    assert_eq!(identity.on(Side::Second).on(Side::Home), identity);
    assert_eq!(identity.on(Side::Second).remainder(), identity.remainder());
    assert_ne!(Identity::home(0), Identity::home(1));
}
