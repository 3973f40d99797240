//! Cursors kept for reuse: a thread that iterates over a keyspace again takes the cursor it left
//! there.
//!
//! ```text
//!   thread 0   slot 0   [ cursor ]     take: one exchange of a word that no other thread touches
//!   thread 1   slot 1   [        ] --> cursor in use --> dropped: put back, if the super version
//!   thread 2   slot 2   [ cursor ]                       is still the same
//!                 ^
//!                 └── replacing the super version empties all slots, so that the pool holds no
//!                     old file or memtable
//! ```
//!
//! A new cursor costs a reference to the super version, on a counter that all threads share, and
//! memory for a cursor over each memtable and run with its pages. A pooled cursor has all that. A
//! thread pools at most [`POOLED_MAX`] cursors, one per keyspace, and none after it has ended.

use forerun_core::sync::atomic::{AtomicBool, Ordering};
use std::cell::RefCell;
use std::sync::{Arc, Weak};

use crossbeam_utils::atomic::AtomicCell;
use forerun_core::Owner;
use forerun_core::arch::prefetch_read;
use forerun_core::sync::thread_number;

use super::cursor::Cursor;
use super::keyspace_data::KeyspaceData;

/// Slots of a keyspace. Threads are spread over them; two that share a slot take turns and make new
/// cursors more often.
const SLOTS: usize = 16;

/// The maximum number of cursors that a thread keeps pooled.
const POOLED_MAX: usize = 8;

/// The pooled cursors of a keyspace.
pub(super) struct CursorPool {
    slots: [Slot; SLOTS],
    /// Whether the pool takes no more cursors.
    is_closed: AtomicBool,
}

/// Two cache lines apart, because CPUs fetch lines in pairs.
#[derive(Default)]
#[repr(align(128))]
struct Slot(AtomicCell<Option<Box<Cursor>>>);

impl Default for CursorPool {
    fn default() -> CursorPool {
        // Otherwise each slot would be a lock.
        const { assert!(AtomicCell::<Option<Box<Cursor>>>::is_lock_free()) };
        CursorPool {
            slots: Default::default(),
            is_closed: AtomicBool::new(false),
        }
    }
}

impl CursorPool {
    /// Prefetches this thread's slot, which [`take`](Self::take) reads.
    #[inline]
    pub(super) fn prefetch(&self) {
        prefetch_read(self.own_slot());
    }

    /// Takes the cursor that this thread left, or one from a thread that shares the slot.
    #[inline]
    pub(super) fn take(&self) -> Option<Box<Cursor>> {
        self.own_slot().0.take()
    }

    /// Returns a cursor to the pool, unless the keyspace has a newer super version.
    ///
    /// The cursor goes into the slot first, and the version is checked second. A thread that
    /// replaces the super version does that first and empties the slots second. Both exchange the
    /// slot's word, so one of them comes second: either the cursor is found in the slot, or its
    /// owner comes second and, through the word, sees the new super version. So no cursor over an
    /// old version stays pooled.
    pub(super) fn put(keyspace: &Arc<KeyspaceData>, cursor: Box<Cursor>) {
        let pool = &keyspace.cursors;
        let version = cursor.super_version_address();
        let is_current =
            || std::ptr::eq(Arc::as_ptr(&keyspace.version.load()), version) && !pool.is_closed();
        if !is_current() {
            return;
        }
        note_pooled(keyspace);
        let slot = &pool.own_slot().0;
        drop(slot.swap(Some(cursor)));
        if !is_current() {
            drop(slot.take());
        }
    }

    /// Drops all pooled cursors, because the super version was replaced.
    pub(super) fn clear(&self) {
        self.slots.iter().for_each(|slot| drop(slot.0.take()));
    }

    /// Drops all pooled cursors and takes no more. A cursor holds its keyspace, so it must go
    /// before the keyspace can.
    pub(super) fn close(&self) {
        // Relaxed: the slots' words order it, as in `put`.
        self.is_closed.store(true, Ordering::Relaxed);
        self.clear();
    }

    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }

    fn own_slot(&self) -> &Slot {
        &self.slots[thread_number() % SLOTS]
    }
}

/// The keyspaces in which a thread has pooled a cursor, as a ring.
struct PooledCursors {
    owner: Owner,
    keyspaces: Vec<Weak<KeyspaceData>>,
    next: usize,
}

impl PooledCursors {
    fn new() -> PooledCursors {
        PooledCursors {
            owner: Owner::this_process(),
            keyspaces: Vec::new(),
            next: 0,
        }
    }
}

impl Drop for PooledCursors {
    fn drop(&mut self) {
        // Cursors pooled before a fork hold resources of the parent.
        if self.owner.is_this_process() {
            self.keyspaces.iter().for_each(forget);
        }
    }
}

thread_local!(static POOLED: RefCell<PooledCursors> = RefCell::new(PooledCursors::new()));

/// Records that this thread is about to pool a cursor in a keyspace. If it then has too many, the
/// oldest is dropped.
fn note_pooled(keyspace: &Arc<KeyspaceData>) {
    let note = |pooled: &RefCell<PooledCursors>| {
        let mut pooled = pooled.borrow_mut();
        if !pooled.owner.is_this_process() {
            *pooled = PooledCursors::new();
        }
        let is_noted =
            |noted: &Weak<KeyspaceData>| std::ptr::eq(noted.as_ptr(), Arc::as_ptr(keyspace));
        if pooled.keyspaces.iter().any(is_noted) {
            return None;
        }
        let noted = Arc::downgrade(keyspace);
        if pooled.keyspaces.len() < POOLED_MAX {
            pooled.keyspaces.push(noted);
            return None;
        }
        let next = pooled.next;
        pooled.next = (next + 1) % POOLED_MAX;
        Some(std::mem::replace(&mut pooled.keyspaces[next], noted))
    };
    // A cursor pooled by a thread that is ending is found by the next thread with its slot, or
    // dropped when the super version is replaced.
    if let Ok(Some(oldest)) = POOLED.try_with(note) {
        forget(&oldest);
    }
}

/// Drops the cursor that this thread has pooled in a keyspace.
fn forget(keyspace: &Weak<KeyspaceData>) {
    if let Some(keyspace) = keyspace.upgrade() {
        drop(keyspace.cursors.take());
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

    /// How many cursors are pooled.
    fn pooled(keyspace: &Keyspace) -> usize {
        let slots = keyspace.data().cursors.slots.iter();
        let is_taken = |slot: &&Slot| {
            let cursor = slot.0.take();
            let is_taken = cursor.is_some();
            slot.0.store(cursor);
            is_taken
        };
        slots.filter(is_taken).count()
    }

    #[test]
    fn a_thread_reuses_its_cursor_until_the_state_changes() {
        let (db, keyspaces) = store(1);
        let keyspace = &keyspaces[0];
        assert_eq!(keyspace.iter().count(), 1);
        assert_eq!(pooled(keyspace), 1);
        let iter = keyspace.iter();
        assert_eq!(pooled(keyspace), 0, "it is in use");
        // A second iterator at the same time uses a cursor of its own.
        assert_eq!(keyspace.iter().count(), 1);
        assert_eq!(pooled(keyspace), 1);
        drop(iter);
        assert_eq!(pooled(keyspace), 1);
        let old = keyspace.iter();
        db.flush().unwrap();
        drop(old);
        assert_eq!(
            pooled(keyspace),
            0,
            "it holds the memtable that is now in a run"
        );
        assert_eq!(keyspace.iter().count(), 1);
        db.flush().unwrap();
        keyspace.put(b"other", b"value").unwrap();
        assert_eq!(pooled(keyspace), 0, "it lacks the new memtable");
        assert_eq!(keyspace.iter().count(), 2);
        db.close().unwrap();
        assert_eq!(pooled(keyspace), 0);
        assert_eq!(keyspace.iter().count(), 2);
        assert_eq!(pooled(keyspace), 0, "the store is closed");
    }

    #[test]
    fn a_thread_keeps_a_few_cursors_and_none_after_it_ends() {
        let (_db, keyspaces) = store(3 * POOLED_MAX);
        forerun_core::sync::thread::scope(|scope| {
            let scanner = scope.spawn(|| {
                for keyspace in keyspaces.iter().chain(&keyspaces) {
                    assert_eq!(keyspace.iter().count(), 1);
                    assert_eq!(pooled(keyspace), 1);
                }
                let all: usize = keyspaces.iter().map(pooled).sum();
                assert_eq!(all, POOLED_MAX);
            });
            scanner.join().unwrap();
        });
        assert_eq!(keyspaces.iter().map(pooled).sum::<usize>(), 0);
    }
}
