//! Models of concurrent readers and writers. Loom runs them through every interleaving and every
//! outcome that the memory model allows: `RUSTFLAGS="--cfg loom" cargo test -p forerun-cache
//! --release --lib loom_tests`.
//!
//! The index, its segments and the epochs are the real ones. An item is a cell that loom checks for
//! races, because it cannot check the bytes of a block. The reader runs on a spawned thread and the
//! writer on the model's first one; `loom_model::check` says why.
//!
//! A segment has two buckets here. A hash's home is bit 16, its tag the bits below.

#![allow(
    unsafe_code,
    reason = "the cells that stand for items are read and written as items are"
)]

use super::item_bucket::ItemRef;
use super::key_buckets::KeyBuckets;
use super::{Index, Replaced};
use crate::budget::Budget;
use crate::epoch::{Epochs, Pinned};
use crate::generation::Flushes;
use forerun_core::Pages;
use forerun_core::sync::loom_model;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

/// Two preemptions suffice to reach every order of the few steps that matter.
fn model(body: impl Fn() + Send + Sync + 'static) {
    loom_model::check(2, body);
}

/// The contents of a cell: the key, which is also the hash, and a version of the value.
type Item = (u64, u32);

const CELLS: usize = 12;

struct Fixture {
    index: Index,
    epochs: Epochs,
    /// The writer's pins are separate. If the reader took a pin that the writer has dropped, that
    /// would order more than in the real cache, where the two threads use different pins.
    writers: Epochs,
    flushes: Flushes,
    cells: [UnsafeCell<Item>; CELLS],
}

// SAFETY: the cells are shared the way items are, which is what the models verify.
unsafe impl Sync for Fixture {}
// SAFETY: as above.
unsafe impl Send for Fixture {}

fn at(cell: usize) -> ItemRef {
    ItemRef::from_offset(cell * ItemRef::UNIT_BYTES)
}

impl Fixture {
    fn new() -> Arc<Fixture> {
        let budget = std::sync::Arc::new(Budget::new(1 << 30));
        Arc::new(Fixture {
            index: Index::new(Pages::Small, &budget, 1 << 30).unwrap(),
            epochs: Epochs::new(),
            writers: Epochs::new(),
            flushes: Flushes::new(),
            cells: std::array::from_fn(|_| UnsafeCell::new((u64::MAX, 0))),
        })
    }

    fn write(&self, cell: usize, item: Item) {
        // SAFETY: only this thread uses the cell; loom checks it.
        self.cells[cell].with_mut(|cell| unsafe { *cell = item });
    }

    fn read(&self, item: ItemRef) -> Item {
        let cell = item.offset_bytes() / ItemRef::UNIT_BYTES;
        // SAFETY: no thread writes an item that a reader may find; loom checks it.
        self.cells[cell].with(|cell| unsafe { *cell })
    }

    /// Stores an item of a new key.
    fn insert(&self, cell: usize, item: Item) {
        self.write(cell, item);
        let pinned = self.writers.pin();
        let mut locked = self.index.lock(&pinned, item.0);
        assert!(locked.insert(KeyBuckets::new(item.0), at(cell)));
    }

    /// Stores an item and replaces any former one, as `Cache::update` does. Its version is the
    /// flush count.
    fn set(&self, cell: usize, key: u64) {
        let pinned = self.writers.pin();
        loop {
            let flushes = self.flushes.count();
            self.write(cell, (key, flushes as u32));
            let mut locked = self.index.lock(&pinned, key);
            if self.flushes.count() != flushes {
                continue;
            }
            let matches = |item| self.read(item).0 == key;
            match locked.segment().find(KeyBuckets::new(key), matches) {
                Some((slot_ref, _)) => locked.replace(slot_ref, at(cell)),
                None => assert!(locked.insert(KeyBuckets::new(key), at(cell))),
            }
            return;
        }
    }

    /// The version that a reader finds.
    fn find(&self, pinned: &Pinned<'_>, key: u64) -> Option<u32> {
        let segment = self.index.directory(pinned).segment(key);
        let matches = |item| self.read(item).0 == key;
        let (_, item) = segment.find(KeyBuckets::new(key), matches)?;
        Some(self.read(item).1)
    }

    /// Replaces or removes the item of a key, and reuses its cell if no reader can hold it.
    fn replace_and_reuse(&self, key: u64, new: Option<(usize, u32)>, again: Item) {
        if let Some((cell, version)) = new {
            self.write(cell, (key, version));
        }
        let old = {
            let pinned = self.writers.pin();
            let mut locked = self.index.lock(&pinned, key);
            let matches = |item| self.read(item).0 == key;
            let (slot_ref, old) = locked
                .segment()
                .find(KeyBuckets::new(key), matches)
                .unwrap();
            match new {
                Some((cell, _)) => locked.replace(slot_ref, at(cell)),
                None => locked.remove(slot_ref),
            }
            old
        };
        let retired = self.epochs.retire();
        if self.epochs.oldest() > retired {
            self.write(old.offset_bytes() / ItemRef::UNIT_BYTES, again);
        }
    }
}

/// What a reader on another thread finds while `write` runs on this thread.
fn find_beside(world: &Arc<Fixture>, key: u64, write: impl FnOnce(&Fixture)) -> Option<u32> {
    let shared = Arc::clone(world);
    let reader = thread::spawn(move || {
        let pinned = shared.epochs.pin();
        shared.find(&pinned, key)
    });
    write(world);
    reader.join().unwrap()
}

/// The item is written before the slot that points to it.
#[test]
fn an_item_is_found_whole_or_not_yet() {
    model(|| {
        let world = Fixture::new();
        let found = find_beside(&world, 7, |world| world.insert(0, (7, 1)));
        assert!(matches!(found, None | Some(1)));
    });
}

/// Without the pin, or with a pin that is checked too early, the cell would be written while the
/// reader reads it.
#[test]
fn a_moved_item_is_reused_only_when_no_reader_holds_it() {
    model(|| {
        let world = Fixture::new();
        world.insert(0, (7, 1));
        let found = find_beside(&world, 7, |world| {
            world.replace_and_reuse(7, Some((1, 1)), (8, 9))
        });
        assert_eq!(found, Some(1));
    });
}

#[test]
fn a_removed_item_is_reused_for_another_key_only_when_no_reader_holds_it() {
    model(|| {
        let world = Fixture::new();
        world.insert(0, (7, 1));
        let found = find_beside(&world, 7, |world| world.replace_and_reuse(7, None, (8, 9)));
        assert!(matches!(found, None | Some(1)));
    });
}

/// Both keys have the same tag, home and slot.
#[test]
fn a_reused_slot_never_gives_the_old_key_the_new_value() {
    model(|| {
        let other = 7 | 1 << 40;
        let world = Fixture::new();
        world.insert(0, (7, 1));
        let found = find_beside(&world, 7, |world| {
            world.replace_and_reuse(7, None, (7, 3));
            world.insert(1, (other, 2));
        });
        assert!(matches!(found, None | Some(1)));
    });
}

/// The item would be missed if its slot were cleared before the item is counted, or if it were
/// counted before it is written.
#[test]
fn an_item_that_is_displaced_is_never_missed() {
    model(|| {
        let world = Fixture::new();
        world.insert(0, (7, 1));
        let found = find_beside(&world, 7, |world| {
            let pinned = world.writers.pin();
            let locked = world.index.lock(&pinned, 7);
            assert!(locked.displace_one(0).is_some());
        });
        assert_eq!(found, Some(1));
        let pinned = world.epochs.pin();
        assert_eq!(world.find(&pinned, 7), Some(1));
    });
}

/// The new segments are filled before they are published, and the old one stays until its readers
/// are done.
#[test]
fn an_item_is_never_missed_while_its_segment_is_split() {
    model(|| {
        let world = Fixture::new();
        // Half as many items as slots, with both values of the next bit.
        let key = |n: u64| n << 62 | n;
        (0..8).for_each(|n| world.insert(n as usize, (key(n), 1)));
        let found = find_beside(&world, key(5), |world| {
            let mut replaced = Vec::new();
            {
                let pinned = world.writers.pin();
                let split = world.index.split(
                    &pinned,
                    key(5),
                    |_| {},
                    |item| world.read(item).0,
                    |out: Replaced| replaced.push(out),
                );
                assert_eq!(split, Ok(()));
            }
            let retired = world.epochs.retire();
            if world.epochs.oldest() > retired {
                replaced
                    .into_iter()
                    .for_each(|out| world.index.release(out));
            } else {
                // The model ends before its reader does, so leak what the reader may hold.
                replaced.into_iter().for_each(std::mem::forget);
            }
        });
        assert_eq!(found, Some(1));
    });
}

/// Without the second read of the count, under the lock, the item from before the flush would
/// replace the one from after it.
#[test]
fn an_item_stored_after_a_flush_is_not_replaced_by_one_from_before() {
    model(|| {
        let world = Fixture::new();
        let shared = Arc::clone(&world);
        let beside = thread::spawn(move || shared.set(0, 7));
        world.flushes.increment();
        world.set(1, 7);
        beside.join().unwrap();
        let pinned = world.epochs.pin();
        let flushes = world.flushes.count() as u32;
        assert_eq!(world.find(&pinned, 7), Some(flushes));
    });
}
