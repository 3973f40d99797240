//! Models of a lookup beside a writer, run by loom through every interleaving and every outcome that the memory model
//! allows: `RUSTFLAGS="--cfg loom" cargo test -p forerun-hash --release --lib loom_tests`.
//!
//! The reader is a model's spawned thread and the writer its first one. Loom looks for other orders of a load and the
//! last store to the same place, but of a store only and the access right before it: a writer that came second would
//! hide the reader's loads behind its own, and such a model runs once.
//!
//! A segment has two buckets here, so the hashes choose theirs plainly: a top bit of 0 is at home in bucket 0.

use super::bucket::{SLOTS, Side};
use super::directory::View;
use super::lookup::{Moved, try_find};
use super::segment::{Segment, Spot};
use forerun_core::Pages;
use loom::sync::Arc;
use loom::thread;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Interleavings and outcomes that a model must have tried.
const RUNS_MIN: usize = 5;

fn model(body: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    // Three preemptions reach every order of the few steps that matter.
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    let runs = std::sync::Arc::new(AtomicUsize::new(0));
    let counted = std::sync::Arc::clone(&runs);
    builder.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        body();
    });
    // A model that runs once shows nothing.
    assert!(runs.load(Ordering::Relaxed) > RUNS_MIN);
}

fn segment() -> Arc<Segment> {
    let segments = Segment::empty(&[0], 0, 2, Pages::Small).unwrap();
    // Loom's own Arc: it is what the threads of a model share.
    Arc::new(std::sync::Arc::into_inner(segments.into_iter().next().unwrap()).unwrap())
}

fn insert(segment: &Segment, hash: u64, value: u64) {
    let mut locked = segment.lock().unwrap();
    let room = locked.make_room(hash).unwrap();
    locked.put(room, hash, value);
}

fn remove(segment: &Segment, hash: u64) {
    let mut locked = segment.lock().unwrap();
    let spot = locked.find(hash).unwrap();
    locked.remove(spot);
}

/// What a lookup finds, if it is not told to look again.
fn find(segment: &Segment, hash: u64) -> Option<Option<u64>> {
    match try_find(View::from(segment), hash) {
        Ok(found) => Some(found),
        Err(Moved) => None,
    }
}

/// What a lookup on another thread finds while `write` runs on this one, if it is not told to look again.
fn find_beside(
    segment: &Arc<Segment>,
    hash: u64,
    write: impl FnOnce(&Segment),
) -> Option<Option<u64>> {
    let shared = Arc::clone(segment);
    let reader = thread::spawn(move || find(&shared, hash));
    write(segment);
    reader.join().unwrap()
}

/// A hash whose buckets are 0, at home, and 1.
fn wanderer() -> u64 {
    (1..)
        .find(|&hash| super::place::Geometry { len: 2 }.other(0, hash) == 1)
        .unwrap()
}

/// The value is written before the slot that makes it found.
#[test]
fn an_entry_is_there_with_its_value_or_not_yet() {
    model(|| {
        let segment = segment();
        let found = find_beside(&segment, 5, |segment| insert(segment, 5, 50));
        assert!(matches!(found, Some(None | Some(50))));
        assert_eq!(find(&segment, 5), Some(Some(50)));
    });
}

/// Without the version: slot read, taken by another key, value read.
#[test]
fn a_slot_that_changes_hands_never_gives_the_old_key_the_new_value() {
    model(|| {
        let segment = segment();
        insert(&segment, 5, 50);
        let found = find_beside(&segment, 5, |segment| {
            remove(segment, 5);
            insert(segment, 6, 60);
        });
        assert!(matches!(found, None | Some(None | Some(50))));
        assert_eq!(
            (find(&segment, 5), find(&segment, 6)),
            (Some(None), Some(Some(60)))
        );
    });
}

/// Without the version: home read while the entry is away, the second bucket when it is home again.
#[test]
fn an_entry_that_moves_between_its_buckets_is_never_missed() {
    model(|| {
        let hash = wanderer();
        let segment = segment();
        insert(&segment, hash, 50);
        let found = find_beside(&segment, hash, |segment| {
            let home = Spot { bucket: 0, slot: 0 };
            let away = Spot { bucket: 1, slot: 0 };
            segment.shift(home, away);
            segment.shift(away, home);
        });
        assert!(matches!(found, None | Some(Some(50))));
        assert_eq!(find(&segment, hash), Some(Some(50)));
    });
}

/// Without the version: home read while the entry is away, its counter when it is home.
#[test]
fn an_entry_that_comes_home_is_never_missed() {
    model(|| {
        let hash = wanderer();
        let segment = segment();
        insert(&segment, hash, 50);
        let home = Spot { bucket: 0, slot: 0 };
        let away = Spot {
            bucket: 1,
            slot: SLOTS - 1,
        };
        segment.shift(home, away);
        let entry = segment.buckets()[1].entry(SLOTS - 1).unwrap();
        assert_eq!(entry.side(), Side::Away);
        let found = find_beside(&segment, hash, |segment| segment.shift(away, home));
        assert!(matches!(found, None | Some(Some(50))));
        assert_eq!(find(&segment, hash), Some(Some(50)));
    });
}
