//! Models of a lookup beside a writer, run by loom through every interleaving and every outcome that the memory model
//! allows: `RUSTFLAGS="--cfg loom" cargo test -p forerun-hash --release --lib loom_tests`.
//!
//! A segment has two buckets here, so the hashes choose theirs plainly: a top bit of 0 is at home in bucket 0.

use super::bucket::{SLOTS, Side};
use super::directory::View;
use super::lookup::{Moved, try_find};
use super::segment::{Segment, Spot};
use forerun_core::Pages;
use loom::sync::Arc;
use loom::thread;

fn model(body: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    // Three preemptions reach every order of the few steps that matter.
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.check(body);
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

/// A hash whose buckets are 0, at home, and 1.
fn wanderer() -> u64 {
    (1..)
        .find(|&hash| super::place::Geometry { len: 2 }.other(0, hash) == 1)
        .unwrap()
}

#[test]
fn an_entry_is_there_with_its_value_or_not_yet() {
    model(|| {
        let shared = segment();
        let segment = Arc::clone(&shared);
        let writer = thread::spawn(move || insert(&segment, 5, 50));
        assert!(matches!(find(&shared, 5), Some(None | Some(50))));
        writer.join().unwrap();
        assert_eq!(find(&shared, 5), Some(Some(50)));
    });
}

#[test]
fn a_slot_that_changes_hands_never_gives_the_old_key_the_new_value() {
    model(|| {
        let shared = segment();
        insert(&shared, 5, 50);
        let segment = Arc::clone(&shared);
        let writer = thread::spawn(move || {
            remove(&segment, 5);
            insert(&segment, 6, 60);
        });
        assert!(matches!(find(&shared, 5), None | Some(None | Some(50))));
        writer.join().unwrap();
        assert_eq!(
            (find(&shared, 5), find(&shared, 6)),
            (Some(None), Some(Some(60)))
        );
    });
}

#[test]
fn an_entry_that_moves_between_its_buckets_is_never_missed() {
    model(|| {
        let hash = wanderer();
        let shared = segment();
        insert(&shared, hash, 50);
        let segment = Arc::clone(&shared);
        let writer = thread::spawn(move || {
            let home = Spot { bucket: 0, slot: 0 };
            let away = Spot { bucket: 1, slot: 0 };
            segment.shift(home, away);
            segment.shift(away, home);
        });
        assert!(matches!(find(&shared, hash), None | Some(Some(50))));
        writer.join().unwrap();
        assert_eq!(find(&shared, hash), Some(Some(50)));
    });
}

#[test]
fn an_entry_that_comes_home_is_never_missed() {
    model(|| {
        let hash = wanderer();
        let shared = segment();
        insert(&shared, hash, 50);
        let (home, away) = (
            Spot { bucket: 0, slot: 0 },
            Spot {
                bucket: 1,
                slot: SLOTS - 1,
            },
        );
        shared.shift(home, away);
        assert_eq!(
            shared.buckets()[1].entry(SLOTS - 1).unwrap().side(),
            Side::Away
        );
        let segment = Arc::clone(&shared);
        let writer = thread::spawn(move || segment.shift(away, home));
        assert!(matches!(find(&shared, hash), None | Some(Some(50))));
        writer.join().unwrap();
        assert_eq!(find(&shared, hash), Some(Some(50)));
    });
}
