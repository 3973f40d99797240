//! Tests that need the internals of the index: full buckets, counters, splits.

use super::item_bucket::{ItemRef, SLOTS};
use super::key_buckets::{BUCKETS, KeyBuckets};
use super::{Index, SplitError};
use crate::budget::Budget;
use crate::epoch::Epochs;
use forerun_core::Pages;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use std::collections::HashMap;
use std::sync::Arc;

fn index(limit_bytes: usize) -> (Index, Epochs) {
    let budget = Arc::new(Budget::new(limit_bytes));
    (
        Index::new(Pages::Small, &budget, limit_bytes).unwrap(),
        Epochs::new(),
    )
}

fn item(n: usize) -> ItemRef {
    ItemRef::from_offset(n * ItemRef::UNIT_BYTES)
}

#[test]
fn keys_with_equal_tag_and_home_are_distinguished_until_both_buckets_are_full() {
    let (index, epochs) = index(1 << 20);
    let pinned = epochs.pin();
    let hash = 0x1234_5678_9abc_def0;
    let mut locked = index.lock(&pinned, hash);
    let key_buckets = KeyBuckets::new(hash);
    let taken = (0..100)
        .take_while(|&n| locked.insert(key_buckets, item(n)))
        .count();
    assert_eq!(taken, 2 * SLOTS);
    let find = |n| {
        locked
            .segment()
            .find(key_buckets, |candidate| candidate == item(n))
    };
    assert!((0..taken).all(|n| find(n).is_some()) && find(taken).is_none());
    // Removing them clears the counters, so that a miss reads one bucket.
    for n in 0..taken {
        let (slot_ref, _) = locked
            .segment()
            .find(key_buckets, |candidate| candidate == item(n))
            .unwrap();
        locked.remove(slot_ref);
    }
    assert!(!locked.segment().buckets()[key_buckets.home].has_overflow(key_buckets.tag));
    drop(locked);
    let split = index.split(&pinned, hash, |_| {}, |_| hash, |_| {});
    assert_eq!(
        split,
        Err(SplitError::Crowded),
        "a nearly empty segment is not split"
    );
}

#[test]
fn a_segment_fills_most_of_its_slots_and_displacing_loses_no_item() {
    let (index, epochs) = index(1 << 20);
    let pinned = epochs.pin();
    let mut rng = SmallRng::seed_from_u64(1);
    let mut locked = index.lock(&pinned, 0);
    let mut inserted = Vec::new();
    loop {
        let key_buckets = KeyBuckets::new(rng.random());
        if !locked.insert(key_buckets, item(inserted.len())) {
            break;
        }
        inserted.push(key_buckets);
    }
    let load = inserted.len() as f64 / (BUCKETS * SLOTS) as f64;
    assert!(load > 0.8, "{load}");
    for (n, &key_buckets) in inserted.iter().enumerate() {
        assert!(
            locked
                .segment()
                .find(key_buckets, |candidate| candidate == item(n))
                .is_some()
        );
    }
    let away = locked
        .segment()
        .entries()
        .filter(|(_, entry)| entry.is_displaced)
        .count();
    assert!(
        (away as f64) < 0.35 * inserted.len() as f64,
        "{away} of {}",
        inserted.len()
    );
}

#[test]
fn random_insertions_removals_and_splits_agree_with_a_map() {
    let (index, epochs) = index(8 << 20);
    let mut rng = SmallRng::seed_from_u64(2);
    let (mut map, mut hashes) = (HashMap::new(), Vec::new());
    let mut hash_of: Vec<u64> = Vec::new();
    for _ in 0..60_000 {
        let pinned = epochs.pin();
        if rng.random_bool(0.7) || hashes.is_empty() {
            let (hash, n) = (rng.random::<u64>(), hash_of.len());
            hash_of.push(hash);
            while !index
                .lock(&pinned, hash)
                .insert(KeyBuckets::new(hash), item(n))
            {
                let of = |item: ItemRef| hash_of[item.offset_bytes() / ItemRef::UNIT_BYTES];
                // Replaced parts are leaked: this test does not count memory.
                let split = index.split(&pinned, hash, |_| {}, of, std::mem::forget);
                assert_eq!(split, Ok(()));
            }
            map.insert(hash, n);
            hashes.push(hash);
        } else {
            let hash = *hashes.choose(&mut rng).unwrap();
            let mut locked = index.lock(&pinned, hash);
            let wanted = map.remove(&hash);
            let matches = |candidate| Some(candidate) == wanted.map(item);
            let found = locked.segment().find(KeyBuckets::new(hash), matches);
            assert_eq!(found.is_some(), wanted.is_some());
            found
                .into_iter()
                .for_each(|(slot_ref, _)| locked.remove(slot_ref));
        }
    }
    let pinned = epochs.pin();
    for (&hash, &n) in &map {
        let segment = index.directory(&pinned).segment(hash);
        assert!(
            segment
                .find(KeyBuckets::new(hash), |candidate| candidate == item(n))
                .is_some()
        );
    }
    let (mut part, mut entries) = (Some(0), 0);
    while let Some(hash) = part {
        let segment = index.directory(&pinned).segment(hash);
        entries += segment.entries().count();
        part = segment.next_after(hash);
    }
    assert_eq!(entries, map.len());
}

#[test]
fn a_released_segment_is_no_longer_charged() {
    let budget = Arc::new(Budget::new(1 << 20));
    let index = Index::new(Pages::Small, &budget, 1 << 20).unwrap();
    let epochs = Epochs::new();
    let mut rng = SmallRng::seed_from_u64(3);
    let hashes: Vec<u64> = (0..1500).map(|_| rng.random()).collect();
    for (n, &hash) in hashes.iter().enumerate() {
        assert!(
            index
                .lock(&epochs.pin(), hash)
                .insert(KeyBuckets::new(hash), item(n))
        );
    }
    let one = budget.used_bytes();
    let mut replaced = Vec::new();
    let of = |item: ItemRef| hashes[item.offset_bytes() / ItemRef::UNIT_BYTES];
    let split = index.split(&epochs.pin(), 0, |_| {}, of, |out| replaced.push(out));
    assert_eq!(split, Ok(()));
    assert!(
        budget.used_bytes() > 3 * one,
        "three segments until the old one is released"
    );
    replaced.into_iter().for_each(|out| index.release(out));
    assert!(budget.used_bytes() < 2 * one + 1000);
}
