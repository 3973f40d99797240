//! Models of a lookup with a concurrent writer. Loom runs them through every interleaving and every
//! outcome that the memory model allows: `RUSTFLAGS="--cfg loom" cargo test -p forerun-hash
//! --release --lib loom_tests`.
//!
//! The reader runs on a spawned thread and the writer on the model's first one;
//! `loom_model::check` says why.
//!
//! A segment has two buckets here: a hash with top bit 0 has bucket 0 as its home.

use super::bucket::{SLOTS, Side};
use super::directory::View;
use super::lookup::{Moved, try_get};
use super::segment::{Segment, SlotRef};
use super::version::Shared;
use forerun_core::Pages;
use forerun_core::sync::loom_model;
use loom::sync::Arc;
use loom::thread;

/// Three preemptions suffice to reach every order of the few steps that matter.
fn model(body: impl Fn() + Send + Sync + 'static) {
    loom_model::check(3, body);
}

fn segment() -> Arc<Segment> {
    let segments = Segment::empty(&[0], 0, 2, Pages::Small).unwrap();
    // Threads of a model must share loom's own Arc.
    Arc::new(std::sync::Arc::into_inner(segments.into_iter().next().unwrap()).unwrap())
}

fn insert(segment: &Segment, hash: u64, value: u64) {
    let mut locked = segment.lock().unwrap();
    let free_slot = locked.free_slot_for(hash).unwrap();
    locked.put(free_slot, hash, value);
}

fn remove(segment: &Segment, hash: u64) {
    let mut locked = segment.lock().unwrap();
    let slot_ref = locked.find(hash).unwrap();
    locked.remove(slot_ref);
}

/// What a lookup finds; `None` if it has to retry.
fn find(segment: &Segment, hash: u64) -> Option<Option<u64>> {
    match try_get::<Shared>(View::from(segment), hash) {
        Ok(found) => Some(found),
        Err(Moved) => None,
    }
}

/// What a lookup on another thread finds while `write` runs on this one; `None` if it has to retry.
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

/// A hash whose home is bucket 0 and whose second bucket is 1.
fn hash_with_both_buckets() -> u64 {
    (1..)
        .find(|&hash| super::place::Geometry { len: 2 }.other(0, hash) == 1)
        .unwrap()
}

/// The value is written before the slot that publishes it.
#[test]
fn an_entry_is_found_with_its_value_or_not_at_all() {
    model(|| {
        let segment = segment();
        let found = find_beside(&segment, 5, |segment| insert(segment, 5, 50));
        assert!(matches!(found, Some(None | Some(50))));
        assert_eq!(find(&segment, 5), Some(Some(50)));
    });
}

/// Without the version, another key could take the slot between the reader's loads of slot and
/// value.
#[test]
fn a_reused_slot_never_gives_the_old_key_the_new_value() {
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

/// Without the version, the reader could check the home bucket while the entry is in its second,
/// and the second when it is home.
#[test]
fn an_entry_that_moves_between_its_buckets_is_never_missed() {
    model(|| {
        let hash = hash_with_both_buckets();
        let segment = segment();
        insert(&segment, hash, 50);
        let found = find_beside(&segment, hash, |segment| {
            let home = SlotRef { bucket: 0, slot: 0 };
            let away = SlotRef { bucket: 1, slot: 0 };
            segment.move_entry(home, away);
            segment.move_entry(away, home);
        });
        assert!(matches!(found, None | Some(Some(50))));
        assert_eq!(find(&segment, hash), Some(Some(50)));
    });
}

/// Without the version, the reader could check the home bucket while the entry is in its second,
/// and the counter when it is home.
#[test]
fn an_entry_that_moves_home_is_never_missed() {
    model(|| {
        let hash = hash_with_both_buckets();
        let segment = segment();
        insert(&segment, hash, 50);
        let home = SlotRef { bucket: 0, slot: 0 };
        let away = SlotRef {
            bucket: 1,
            slot: SLOTS - 1,
        };
        segment.move_entry(home, away);
        let entry = segment.buckets()[1].entry(SLOTS - 1).unwrap();
        assert_eq!(entry.side(), Side::Second);
        let found = find_beside(&segment, hash, |segment| segment.move_entry(away, home));
        assert!(matches!(found, None | Some(Some(50))));
        assert_eq!(find(&segment, hash), Some(Some(50)));
    });
}
