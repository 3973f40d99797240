//! The row slab: rows in memory, read without a lock. The only file of this crate with `unsafe`.
//!
//! ```text
//!   index    key -> slot            forerun_hash::HashTable
//!   arena    | row | row | row | ...                  one region in huge pages, a row at each multiple of the stride
//!
//!   a slot is       free ──take──> vacant ──link──> linked ──unlink, replaced──> retired ──grace──> free
//!   and belongs to  the pool       FreeSlots        the index                    Retired            the pool
//! ```
//!
//! # Torn rows
//! A row is written while its slot is vacant, and never while it is linked: an update uses another
//! slot. The `unsafe` blocks refer to these arguments by letter:
//!
//! - **(A) Every slot has one owner.** A slot's number is in the pool, in one `FreeSlots`, in the
//!   index under one key, in one `Retired`, or in one deferred closure of the epoch. Each step
//!   above moves it: popped from the pool under its lock; popped from a `FreeSlots` that is
//!   borrowed mutably; given to the index, which only this module writes; returned by the index
//!   call that replaced or removed it (each call returns the former value, and an entry is replaced
//!   or removed once); moved into the closure, which runs once. The lists are private, are never
//!   copied, and know their arena, so a list of one slab cannot be used with another.
//! - **(B) A slot's row is written before it is linked.** `link` writes the row and then gives the
//!   slot to the index, whose store of a value is a release and whose loads are acquires.
//! - **(C) A slot that a reader got from the index under a guard is not written until the guard is
//!   dropped.** It must be unlinked first, then retired, and the closure that frees it runs when
//!   all threads that had pinned the slab's collector at the time of `defer`, which is after the
//!   unlinking, have unpinned (crossbeam-epoch's guarantee). The index's guards pin this collector.
//!   A reader that pins later no longer finds the slot in the index. Growth of the index changes
//!   nothing: a reader of an older directory was pinned before the directory was replaced.

use forerun_core::arch::{CACHE_LINE_BYTES, prefetch_read, prefetch_read_l2};
use forerun_core::sync::{Mutex, MutexGuard, PoisonError};
use forerun_core::{Pages, Region, RegionError, epoch::Collector};
use forerun_hash::HashTable;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::Result;

/// Keys that are looked up under one guard; all their slots are looked up before the first row is
/// copied.
const BLOCK: usize = 1024;

/// Bytes of rows to prefetch ahead of the copy: a few rows of a kibibyte, many of 64 bytes. The
/// lines go to the L2 cache, so there may be more of them than L1 has fill buffers for.
const AHEAD_BYTES: usize = 4096;

/// Rows of one size under keys, in one region of memory.
#[derive(Debug)]
pub(crate) struct RowSlab {
    index: HashTable,
    arena: Arc<Arena>,
}

/// The memory of the rows, and the slots that are free.
#[derive(Debug)]
struct Arena {
    /// The slab's own, so that its slots come free whatever other parts of the process wait for.
    collector: Collector,
    region: Region,
    row_bytes: usize,
    stride_bytes: usize,
    slots: u32,
    /// Slots from this one on were never used.
    fresh: AtomicU32,
    free: Mutex<Vec<u32>>,
}

/// Slots to write rows into. Dropping this frees them again.
#[derive(Debug)]
pub(crate) struct FreeSlots {
    arena: Arc<Arena>,
    slots: Vec<u32>,
}

/// Slots whose rows left the index but may still be read. After this is dropped, they become free
/// once no reader uses them.
#[derive(Debug)]
pub(crate) struct Retired {
    arena: Arc<Arena>,
    slots: Vec<u32>,
}

/// The result of [`RowSlab::link`].
pub(crate) struct Linked {
    pub(crate) slot: u32,
    /// The slot of the key's former row.
    pub(crate) former: Option<u32>,
}

/// Reusable memory for [`RowSlab::find`].
#[derive(Debug, Default)]
pub(crate) struct Slots(Vec<u64>);

/// Bytes from one row to the next. A row of at most a cache line never straddles two lines; a
/// longer row begins at a line if that wastes less than a fifth.
pub(crate) fn stride_bytes(row_bytes: usize) -> usize {
    let lines = row_bytes.next_multiple_of(CACHE_LINE_BYTES);
    if row_bytes <= CACHE_LINE_BYTES {
        row_bytes.next_power_of_two()
    } else if lines - row_bytes <= row_bytes / 5 {
        lines
    } else {
        row_bytes.next_multiple_of(16)
    }
}

impl RowSlab {
    /// A slab of `slots` rows. The system allocates their memory on first use.
    ///
    /// The index starts with capacity for `index_rows` rows and grows.
    pub(crate) fn new(
        row_bytes: usize,
        slots: u32,
        index_rows: usize,
        pages: Pages,
    ) -> Result<RowSlab> {
        let stride_bytes = stride_bytes(row_bytes);
        let too_large = forerun_core::RegionError::TooLarge {
            len_bytes: usize::MAX,
        };
        let len_bytes = stride_bytes.checked_mul(slots as usize).ok_or(too_large)?;
        let options = forerun_hash::HashTableOptions::default()
            .capacity(index_rows)
            .pages(pages)
            .seed(None);
        let collector = Collector::new();
        Ok(RowSlab {
            index: HashTable::with_collector(options, collector.clone())?,
            arena: Arc::new(Arena {
                collector,
                region: Region::new(len_bytes, pages)?,
                row_bytes,
                stride_bytes,
                slots,
                fresh: AtomicU32::new(0),
                free: Mutex::new(Vec::new()),
            }),
        })
    }

    /// Takes `count` slots to write to. Returns `None` if fewer are free right now.
    pub(crate) fn take(&self, count: usize) -> Option<FreeSlots> {
        let mut free = self.arena.lock_free();
        // Relaxed: under the lock.
        let fresh = self.arena.fresh.load(Ordering::Relaxed);
        let from_free = count.min(free.len());
        let from_fresh = count - from_free;
        if from_fresh > (self.arena.slots - fresh) as usize {
            return None;
        }
        let kept = free.len() - from_free;
        let mut slots = free.split_off(kept);
        let end = fresh + from_fresh as u32;
        slots.extend(fresh..end);
        self.arena.fresh.store(end, Ordering::Relaxed);
        drop(free);
        let arena = Arc::clone(&self.arena);
        Some(FreeSlots { arena, slots })
    }

    /// An empty list for the slots that [`RowSlab::link`] and [`RowSlab::unlink`] retire.
    pub(crate) fn retired(&self) -> Retired {
        Retired {
            arena: Arc::clone(&self.arena),
            slots: Vec::new(),
        }
    }

    /// Tries to free retired slots, whichever thread retired them.
    pub(crate) fn reclaim(&self) {
        self.arena.collector.pin().flush();
    }

    /// Stores a row under a key in a vacant slot; there must be one. Lookups find this row from now
    /// on.
    pub(crate) fn link(
        &self,
        key: u64,
        row: &[u8],
        free_slots: &mut FreeSlots,
        retired: &mut Retired,
    ) -> Result<Linked> {
        self.check(&free_slots.arena);
        self.check(&retired.arena);
        assert_eq!(row.len(), self.arena.row_bytes, "a row of another table");
        let Some(slot) = free_slots.slots.pop() else {
            unreachable!("a slot was reserved for each row");
        };
        // SAFETY: the slot is below `slots`, so its row is inside the region. By (A) this call
        // alone owns the slot, and by (C) no earlier reader still has it. So `row`, which may be
        // lent by `read`, does not overlap it either.
        unsafe {
            let to = self.arena.row(slot);
            std::ptr::copy_nonoverlapping(row.as_ptr(), to, row.len());
        }
        match self.index.insert(key, u64::from(slot)) {
            Ok(former) => {
                let former = former.map(|slot| slot as u32);
                retired.slots.extend(former);
                Ok(Linked { slot, former })
            }
            Err(error) => {
                // The index did not change, so this call still owns the slot.
                free_slots.slots.push(slot);
                Err(error.into())
            }
        }
    }

    /// Removes a key's row and returns its slot.
    pub(crate) fn unlink(&self, key: u64, retired: &mut Retired) -> Option<u32> {
        self.check(&retired.arena);
        let slot = self.index.remove(key)? as u32;
        retired.slots.push(slot);
        Some(slot)
    }

    /// The key's current slot. Another key may own it when this returns, unless the caller keeps
    /// writers of the key out.
    pub(crate) fn slot(&self, key: u64) -> Option<u32> {
        self.index.get(key).map(|slot| slot as u32)
    }

    /// Prefetches the index lines of these keys, so that `slot`, `link` and `unlink` find them in
    /// the cache.
    pub(crate) fn prefetch(&self, keys: &[u64]) {
        let (mut slots, mut found) = ([0; 64], [false; 64]);
        let pinned = self.index.pin();
        for keys in keys.chunks(64) {
            pinned.find(keys, &mut slots, &mut found);
        }
    }

    /// Whether each key has a row here.
    pub(crate) fn contains(&self, keys: &[u64], slots: &mut Slots, found: &mut [bool]) {
        slots.0.resize(keys.len().min(BLOCK), 0);
        for (keys, found) in keys.chunks(BLOCK).zip(found.chunks_mut(BLOCK)) {
            let slots = &mut slots.0[..keys.len()];
            self.index.find(keys, slots, found);
        }
    }

    /// Calls `read` with the slot and the row of a key that has one.
    pub(crate) fn read<T>(&self, key: u64, read: impl FnOnce(u32, &[u8]) -> T) -> Option<T> {
        let pinned = self.index.pin();
        let slot = pinned.get(key)? as u32;
        // SAFETY: the row is inside the region. By (B) it was written before, and by (C) no thread
        // writes it while `pinned` lives, the guard under which the slot was read. It is dropped
        // after `read`, which cannot keep the slice.
        let row = unsafe { std::slice::from_raw_parts(self.arena.row(slot), self.arena.row_bytes) };
        let answer = read(slot, row);
        drop(pinned);
        Some(answer)
    }

    /// Copies the rows of present keys to their places in `rows` and marks them in `found`. The
    /// other rows stay as they are. `place` maps the nth key to a place and is called once for each
    /// found key, in order. `touch` is called with the slot of each row. Returns the number found.
    pub(crate) fn find(
        &self,
        keys: &[u64],
        rows: &mut [u8],
        mut place: impl FnMut(usize) -> usize,
        found: &mut [bool],
        slots: &mut Slots,
        touch: impl Fn(u32),
    ) -> usize {
        slots.0.resize(keys.len().min(BLOCK), 0);
        let mut hits = 0;
        for (nth, keys) in keys.chunks(BLOCK).enumerate() {
            let first = nth * BLOCK;
            let found = &mut found[first..first + keys.len()];
            let pinned = self.index.pin();
            let slots = &mut slots.0[..keys.len()];
            hits += pinned.find(keys, slots, found);
            self.copy(slots, found, rows, |at| place(first + at), &touch, &pinned);
        }
        hits
    }

    /// Copies the rows of the slots that `_pinned` found.
    fn copy(
        &self,
        slots: &[u64],
        found: &[bool],
        rows: &mut [u8],
        mut place: impl FnMut(usize) -> usize,
        touch: &impl Fn(u32),
        _pinned: &forerun_hash::HashTableGuard<'_>,
    ) {
        let arena = &*self.arena;
        let ahead = (AHEAD_BYTES / arena.stride_bytes).clamp(2, 32);
        let fetch = |at: usize| {
            if found.get(at) == Some(&true) {
                arena.prefetch(slots[at] as u32);
            }
        };
        (0..ahead).for_each(fetch);
        for at in 0..slots.len() {
            fetch(at + ahead);
            if !found[at] {
                continue;
            }
            let slot = slots[at] as u32;
            let row = &mut rows[place(at) * arena.row_bytes..][..arena.row_bytes];
            // SAFETY: the row is inside the region. By (B) it was written before, and by (C) no
            // thread writes it while `_pinned` lives, under which the slot was read. `row` is the
            // caller's memory, borrowed mutably.
            unsafe {
                let from = arena.row(slot);
                std::ptr::copy_nonoverlapping(from, row.as_mut_ptr(), row.len());
            }
            touch(slot);
        }
    }

    /// Keys that have a row, in no order. Each key that is present throughout appears once.
    ///
    /// # Errors
    /// [`Error::Memory`], [`Error::Index`]: there is no memory for them.
    pub(crate) fn keys(&self) -> Result<Vec<u64>> {
        let mut keys = Vec::new();
        let mut entries = self.index.iter();
        while let Some((key, _)) = entries.try_next()? {
            if keys.try_reserve(1).is_err() {
                let len_bytes = 2 * keys.len() * size_of::<u64>();
                return Err(RegionError::OutOfMemory { len_bytes }.into());
            }
            keys.push(key);
        }
        Ok(keys)
    }

    /// The number of slots that were ever taken. Slots from here on have never been written.
    pub(crate) fn used_slots(&self) -> usize {
        // Relaxed: the number is as of the call. A thread that knows a slot's number got it through
        // a lock or the index, after this was stored.
        self.arena.fresh.load(Ordering::Relaxed) as usize
    }

    /// Bytes per row.
    pub(crate) fn row_bytes(&self) -> usize {
        self.arena.row_bytes
    }

    /// Bytes of memory for rows and index when all slots are used.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.arena.region.len() + self.index.memory_bytes()
    }

    /// Bytes of these that belong to slots ever used, or to the index.
    pub(crate) fn used_bytes(&self) -> usize {
        self.used_slots() * self.arena.stride_bytes + self.index.memory_bytes()
    }

    fn check(&self, arena: &Arc<Arena>) {
        assert!(Arc::ptr_eq(arena, &self.arena), "slots of another slab");
    }
}

impl Arena {
    /// The start of a slot's row.
    #[inline(always)]
    fn row(&self, slot: u32) -> *mut u8 {
        debug_assert!(slot < self.slots);
        self.region
            .as_ptr()
            .wrapping_add(slot as usize * self.stride_bytes)
    }

    #[inline(always)]
    fn prefetch(&self, slot: u32) {
        let row = self.row(slot);
        let lead = row as usize % CACHE_LINE_BYTES;
        let first = row.wrapping_sub(lead);
        // The rows wait in the L2 cache. Prefetch the first line of each one into L1, so that the
        // copy can begin.
        prefetch_read(first);
        for line in (CACHE_LINE_BYTES..lead + self.row_bytes).step_by(CACHE_LINE_BYTES) {
            prefetch_read_l2(first.wrapping_add(line));
        }
    }

    fn lock_free(&self) -> MutexGuard<'_, Vec<u32>> {
        // The list is consistent whenever the lock is free: it is only appended to or truncated.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn return_slots(&self, slots: &mut Vec<u32>) {
        if !slots.is_empty() {
            self.lock_free().append(slots);
        }
    }
}

impl Drop for FreeSlots {
    fn drop(&mut self) {
        self.arena.return_slots(&mut self.slots);
    }
}

impl Drop for Retired {
    fn drop(&mut self) {
        if self.slots.is_empty() {
            return;
        }
        // Weak: a deferred closure runs when some thread pins a later epoch, which may never
        // happen. It must not keep alive the memory of a slab that is gone, and such a slab has no
        // pool to return the slots to.
        let arena = Arc::downgrade(&self.arena);
        let mut slots = std::mem::take(&mut self.slots);
        let guard = self.arena.collector.pin();
        guard.defer(move || {
            if let Some(arena) = arena.upgrade() {
                arena.return_slots(&mut slots);
            }
        });
        guard.flush();
    }
}

impl Drop for RowSlab {
    fn drop(&mut self) {
        // Directories that the index has outgrown are freed when the epoch advances, which a thread
        // has to trigger. Three calls are needed, because garbage is freed two epochs after the
        // epoch in which it was retired.
        for _ in 0..3 {
            self.reclaim();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: usize = 24;

    fn slab(slots: u32) -> RowSlab {
        RowSlab::new(ROW, slots, slots as usize, Pages::Small).unwrap()
    }

    fn put(slab: &RowSlab, key: u64, byte: u8) -> Linked {
        let mut free_slots = loop {
            match slab.take(1) {
                Some(free_slots) => break free_slots,
                None => slab.reclaim(),
            }
        };
        slab.link(key, &[byte; ROW], &mut free_slots, &mut slab.retired())
            .unwrap()
    }

    #[test]
    fn rows_never_straddle_more_lines_than_they_must_for_a_fifth_of_the_memory() {
        let strides = [1, 8, 24, 64, 65, 100, 120, 200, 256, 656].map(stride_bytes);
        assert_eq!(strides, [1, 8, 32, 64, 80, 112, 128, 208, 256, 704]);
    }

    #[test]
    fn a_row_is_found_as_linked_until_it_is_replaced_or_unlinked() {
        let slab = slab(8);
        put(&slab, 1, 10);
        let second = put(&slab, 2, 20);
        let again = put(&slab, 2, 21);
        assert_eq!(again.former, Some(second.slot));
        let mut rows = [0xff; 3 * ROW];
        let mut found = [true; 3];
        let touched = std::cell::RefCell::new(Vec::new());
        let hits = slab.find(
            &[2, 3, 1],
            &mut rows,
            |at| at,
            &mut found,
            &mut Slots::default(),
            |s| {
                touched.borrow_mut().push(s);
            },
        );
        assert_eq!((hits, found), (2, [true, false, true]));
        assert_eq!(rows[..ROW], [21; ROW]);
        assert_eq!(rows[ROW..2 * ROW], [0xff; ROW]);
        assert_eq!(rows[2 * ROW..], [10; ROW]);
        assert_eq!(touched.into_inner()[0], again.slot);
        assert_eq!(slab.unlink(2, &mut slab.retired()), Some(again.slot));
        assert_eq!(slab.read(2, |_, row| row.to_vec()), None);
        assert_eq!(slab.read(1, |_, row| row.to_vec()), Some(vec![10; ROW]));
    }

    #[test]
    fn a_slot_is_reused_only_after_its_last_reader() {
        let slab = slab(2);
        put(&slab, 1, 1);
        let pinned = slab.index.pin();
        put(&slab, 1, 2);
        for _ in 0..1000 {
            slab.reclaim();
            assert!(slab.take(1).is_none(), "the first slot may still be read");
        }
        drop(pinned);
        put(&slab, 1, 3);
        put(&slab, 1, 4);
        assert_eq!(slab.read(1, |_, row| row[0]), Some(4));
    }

    #[test]
    fn the_unused_part_of_a_reservation_is_released() {
        let slab = slab(4);
        let all = slab.take(4).unwrap();
        assert!(slab.take(1).is_none());
        drop(all);
        assert_eq!(slab.take(4).map(|all| all.slots.len()), Some(4));
    }
}
