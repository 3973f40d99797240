//! Cursors between two uses: a thread that iterates over a keyspace again takes the cursor it left there.
//!
//! ```text
//!   thread 0   slot 0   [ cursor ]        take: one exchange of a word that nobody else is at
//!   thread 1   slot 1   [        ] ──> cursor in use ──> dropped: put back, if the state is still the same
//!   thread 2   slot 2   [ cursor ]
//!                 ^
//!                 └── who replaces the keyspace's state empties all slots: what is parked holds no old file or memtable
//! ```
//!
//! To begin anew is to count a reference to the state, which all threads count, and to take memory for a cursor a memtable
//! and run with its pages. A cursor that was parked has all that. A thread has at most [`MOST_PARKED`] of them, in as many
//! keyspaces, and none once it has ended.

use forerun_core::sync::atomic::{AtomicBool, Ordering};
use std::cell::RefCell;
use std::sync::{Arc, Weak};

use crossbeam_utils::atomic::AtomicCell;
use forerun_core::Owner;
use forerun_core::arch::prefetch_read;
use forerun_core::sync::thread_number;

use super::cursor::Cursor;
use super::space::Space;

/// Slots of a keyspace. Threads are spread over them; two that share one take turns and begin anew more often.
const SLOTS: usize = 16;

/// Cursors that a thread has parked at a time.
const MOST_PARKED: usize = 8;

/// Where a keyspace's cursors are parked.
pub(super) struct Parking {
    slots: [Slot; SLOTS],
    /// Whether nothing is to be parked any more.
    is_closed: AtomicBool,
}

/// Two lines apart, because processors fetch lines in pairs.
#[derive(Default)]
#[repr(align(128))]
struct Slot(AtomicCell<Option<Box<Cursor>>>);

impl Default for Parking {
    fn default() -> Parking {
        // Else a slot would be a lock.
        const { assert!(AtomicCell::<Option<Box<Cursor>>>::is_lock_free()) };
        Parking {
            slots: Default::default(),
            is_closed: AtomicBool::new(false),
        }
    }
}

impl Parking {
    /// Asks for this thread's slot, which [`take`](Self::take) reads.
    #[inline]
    pub(super) fn prefetch(&self) {
        prefetch_read(self.mine());
    }

    /// The cursor that this thread left, or one that shares the slot.
    #[inline]
    pub(super) fn take(&self) -> Option<Box<Cursor>> {
        self.mine().0.take()
    }

    /// Parks a cursor of this keyspace, unless the state that it has is another by now.
    ///
    /// It is put into the slot first and looked at second. Who replaces the state does that first and empties the slots
    /// second. Both exchange the slot's word, so one comes behind the other: either the cursor is found there, or it comes
    /// behind and, by the word, sees the new state. So none stays that has an old one.
    pub(super) fn park(space: &Arc<Space>, cursor: Box<Cursor>) {
        let parking = &space.parking;
        let state = cursor.state_address();
        let is_current =
            || std::ptr::eq(Arc::as_ptr(&space.state.load()), state) && !parking.is_closed();
        if !is_current() {
            return;
        }
        note_parked(space);
        let slot = &parking.mine().0;
        drop(slot.swap(Some(cursor)));
        if !is_current() {
            drop(slot.take());
        }
    }

    /// Drops what is parked: the state was replaced.
    pub(super) fn clear(&self) {
        self.slots.iter().for_each(|slot| drop(slot.0.take()));
    }

    /// Drops what is parked, for good. Cursors hold their keyspace, and so they must go before it can.
    pub(super) fn close(&self) {
        // Relaxed: the slots' words order it, as in `park`.
        self.is_closed.store(true, Ordering::Relaxed);
        self.clear();
    }

    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }

    fn mine(&self) -> &Slot {
        &self.slots[thread_number() % SLOTS]
    }
}

/// The keyspaces in which a thread has parked a cursor, in a ring.
struct Parked {
    owner: Owner,
    spaces: Vec<Weak<Space>>,
    next: usize,
}

impl Parked {
    fn new() -> Parked {
        Parked {
            owner: Owner::this_process(),
            spaces: Vec::new(),
            next: 0,
        }
    }
}

impl Drop for Parked {
    fn drop(&mut self) {
        // Cursors that were parked before a fork hold what is the parent's.
        if self.owner.is_this_process() {
            self.spaces.iter().for_each(forget);
        }
    }
}

thread_local!(static PARKED: RefCell<Parked> = RefCell::new(Parked::new()));

/// Notes that this thread is about to park a cursor in a keyspace. If it has too many, the oldest goes.
fn note_parked(space: &Arc<Space>) {
    let note = |parked: &RefCell<Parked>| {
        let mut parked = parked.borrow_mut();
        if !parked.owner.is_this_process() {
            *parked = Parked::new();
        }
        let is_noted = |noted: &Weak<Space>| std::ptr::eq(noted.as_ptr(), Arc::as_ptr(space));
        if parked.spaces.iter().any(is_noted) {
            return None;
        }
        let noted = Arc::downgrade(space);
        if parked.spaces.len() < MOST_PARKED {
            parked.spaces.push(noted);
            return None;
        }
        let next = parked.next;
        parked.next = (next + 1) % MOST_PARKED;
        Some(std::mem::replace(&mut parked.spaces[next], noted))
    };
    // What a thread parks that is ending is found by the next one with its slot, or by whoever replaces the state.
    if let Ok(Some(oldest)) = PARKED.try_with(note) {
        forget(&oldest);
    }
}

/// Drops what this thread has parked in a keyspace.
fn forget(space: &Weak<Space>) {
    if let Some(space) = space.upgrade() {
        drop(space.parking.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::fault::FaultIo;
    use crate::{Db, Keyspace, Options};

    fn store(keyspaces: usize) -> (Db, Vec<Keyspace>) {
        let options = Options {
            memory_limit_bytes: 1 << 20,
            pages: forerun_core::Pages::Small,
            ..Options::default()
        };
        let db = Db::open_with_io(Arc::new(FaultIo::new()), "/store", options).unwrap();
        let open = |i: usize| {
            let keyspace = db.keyspace(&i.to_string()).unwrap();
            keyspace.put(b"key", b"value").unwrap();
            keyspace
        };
        let keyspaces = (0..keyspaces).map(open).collect();
        (db, keyspaces)
    }

    /// How many cursors are parked.
    fn parked(keyspace: &Keyspace) -> usize {
        let slots = keyspace.space().parking.slots.iter();
        let is_taken = |slot: &&Slot| {
            let cursor = slot.0.take();
            let is_taken = cursor.is_some();
            slot.0.store(cursor);
            is_taken
        };
        slots.filter(is_taken).count()
    }

    #[test]
    fn a_thread_takes_up_its_cursor_until_the_state_is_another() {
        let (db, keyspaces) = store(1);
        let keyspace = &keyspaces[0];
        assert_eq!(keyspace.iter().count(), 1);
        assert_eq!(parked(keyspace), 1);
        let iter = keyspace.iter();
        assert_eq!(parked(keyspace), 0, "it is in use");
        // A second one at the same time is another.
        assert_eq!(keyspace.iter().count(), 1);
        assert_eq!(parked(keyspace), 1);
        drop(iter);
        assert_eq!(parked(keyspace), 1);
        let old = keyspace.iter();
        db.flush().unwrap();
        drop(old);
        assert_eq!(
            parked(keyspace),
            0,
            "it has the memtable that is in a run now"
        );
        assert_eq!(keyspace.iter().count(), 1);
        db.flush().unwrap();
        keyspace.put(b"other", b"value").unwrap();
        assert_eq!(parked(keyspace), 0, "it does not know the new memtable");
        assert_eq!(keyspace.iter().count(), 2);
        db.close().unwrap();
        assert_eq!(parked(keyspace), 0);
        assert_eq!(keyspace.iter().count(), 2);
        assert_eq!(parked(keyspace), 0, "the store is closed");
    }

    #[test]
    fn a_thread_parks_a_few_and_none_once_it_has_ended() {
        let (_db, keyspaces) = store(3 * MOST_PARKED);
        forerun_core::sync::thread::scope(|scope| {
            let scanner = scope.spawn(|| {
                for keyspace in keyspaces.iter().chain(&keyspaces) {
                    assert_eq!(keyspace.iter().count(), 1);
                    assert_eq!(parked(keyspace), 1);
                }
                let all: usize = keyspaces.iter().map(parked).sum();
                assert_eq!(all, MOST_PARKED);
            });
            scanner.join().unwrap();
        });
        assert_eq!(keyspaces.iter().map(parked).sum::<usize>(), 0);
    }
}
