//! The host tier: rows in memory, and what is known of each that decides which leave.
//!
//! ```text
//!   row_slab.rs   key -> slot -> row
//!   notes      slot -> | key 8 | state 1 | mark 1 | score 8, if the caller gives them |       an array each
//!   clock.rs    a clock hand over the slots: the lowest of those it comes past leave
//! ```
//!
//! Readers write one byte a hit, the mark, and only where it changes. Key, state and score of a slot are written by who
//! holds the lock of the slot's key (`key_locks.rs`), and are read without it as hints.

mod clock;
#[allow(
    unsafe_code,
    reason = "rows shared without locks: written before they are linked, never while they are"
)]
mod row_slab;

pub(crate) use clock::Victim;
pub(crate) use row_slab::{Slots, stride_bytes};

use crate::options::{HostCapacity, Score};
use crate::{Error, Result};
use forerun_core::sync::Mutex;
use forerun_core::{Atomics, Pages, physical_memory_bytes};
use row_slab::{FreeSlots, Retired, RowSlab};
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};

/// A slot's row is in the index.
const LINKED: u8 = 1;
/// The store does not have it yet.
const DIRTY: u8 = 2;

/// The most rows, so that slots can be numbered in 32 bits.
const ROWS_MAX: usize = u32::MAX as usize - SPARE_MAX;
/// What [`HostCapacity::Memory`] stands for where the system does not tell how much memory there is.
const MEMORY_BYTES: usize = 64 << 30;
/// Entries that the index of an ample tier begins with.
const INDEX_ROWS_MIN: usize = 1 << 16;
const SPARE_MIN: usize = 256;
const SPARE_MAX: usize = 1 << 16;

/// Rows in memory.
#[derive(Debug)]
pub(crate) struct Host {
    slab: RowSlab,
    score: Score,
    capacity: usize,
    spare: usize,
    keys: Atomics<AtomicU64>,
    state: Atomics<AtomicU8>,
    marks: Atomics<AtomicU8>,
    /// Empty unless the caller gives scores.
    scores: Atomics<AtomicU64>,
    linked: AtomicUsize,
    dirty: AtomicUsize,
    /// Rows linked so far: the clock of [`Score::Lru`].
    links: AtomicU64,
    hand: Mutex<usize>,
}

/// Slots for a call's rows, and those that the call leaves behind.
#[derive(Debug)]
pub(crate) struct Reservation {
    free_slots: FreeSlots,
    retired: Retired,
}

/// What is to be written of a row besides its bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RowMeta {
    pub(crate) score: u64,
    pub(crate) is_dirty: bool,
    /// Uses of the row so far.
    pub(crate) uses: u16,
}

/// Bytes of the index a row: it is made for its entries and fills a little less than all of its 16 bytes each.
const INDEX_BYTES: usize = 18;

/// Bytes of rows that a call moves together, beyond one row: chunks are shorter where rows are long.
pub(crate) const CHUNK_BYTES: usize = 16 << 20;

/// Bytes kept a row besides the row: index, key, state, mark, score.
fn metadata_bytes(score: Score) -> usize {
    let index_bytes = INDEX_BYTES;
    let score_bytes = if score == Score::Custom { 8 } else { 0 };
    index_bytes + 8 + 1 + 1 + score_bytes
}

fn spare(rows: usize) -> usize {
    (rows / 16).clamp(SPARE_MIN, SPARE_MAX)
}

/// Whether an index of so many entries is made at once, and does not grow. Entries lie all over it, so a few rows take
/// most of its memory: it is to be a small part of what there is.
fn fits_index(slots: usize) -> bool {
    let memory_bytes = physical_memory_bytes().unwrap_or(MEMORY_BYTES);
    slots.saturating_mul(INDEX_BYTES) <= memory_bytes / 8
}

/// Rows of a capacity.
fn rows(capacity: HostCapacity, row_bytes: usize, score: Score) -> Result<usize> {
    let refuse = |asked, unit, reason: String| Error::HostCapacity {
        asked,
        unit,
        reason,
    };
    let (asked, unit, rows) = match capacity {
        HostCapacity::Rows(rows) => (rows, "rows", rows),
        HostCapacity::Bytes(bytes) => {
            let each = stride_bytes(row_bytes) + metadata_bytes(score);
            let all = bytes / each;
            // The most rows whose spare ones fit as well.
            let kept = (all.saturating_sub(SPARE_MIN)).min(all / 17 * 16);
            let kept = kept.max(all.saturating_sub(SPARE_MAX));
            if kept == 0 {
                let reason = format!("it takes at least {} bytes", each * (SPARE_MIN + 17));
                return Err(refuse(bytes, "bytes", reason));
            }
            (bytes, "bytes", kept)
        }
        HostCapacity::Memory => {
            let each = stride_bytes(row_bytes) + metadata_bytes(score);
            let rows = physical_memory_bytes().unwrap_or(MEMORY_BYTES) / each;
            return Ok(rows.clamp(1, ROWS_MAX));
        }
    };
    match rows {
        0 => Err(refuse(asked, unit, "it takes at least one row".to_owned())),
        rows if rows > ROWS_MAX => {
            Err(refuse(asked, unit, format!("{ROWS_MAX} rows are the most")))
        }
        rows => Ok(rows),
    }
}

impl Host {
    pub(crate) fn new(
        row_bytes: usize,
        capacity: HostCapacity,
        score: Score,
        pages: Pages,
    ) -> Result<Host> {
        let is_ample = capacity == HostCapacity::Memory;
        let capacity = rows(capacity, row_bytes, score)?;
        let spare = spare(capacity);
        let slots = capacity + spare;
        let index_rows = if is_ample || !fits_index(slots) {
            slots.min(INDEX_ROWS_MIN)
        } else {
            slots
        };
        let scores = if score == Score::Custom { slots } else { 0 };
        Ok(Host {
            slab: RowSlab::new(row_bytes, slots as u32, index_rows, pages)?,
            score,
            capacity,
            spare,
            keys: Atomics::new(slots, pages)?,
            state: Atomics::new(slots, pages)?,
            marks: Atomics::new(slots, pages)?,
            scores: Atomics::new(scores, pages)?,
            linked: AtomicUsize::new(0),
            dirty: AtomicUsize::new(0),
            links: AtomicU64::new(0),
            hand: Mutex::new(0),
        })
    }

    /// Copies the rows that are here to the places that `place` tells: see [`RowSlab::find`].
    pub(crate) fn find(
        &self,
        keys: &[u64],
        rows: &mut [u8],
        place: impl FnMut(usize) -> usize,
        found: &mut [bool],
        slots: &mut Slots,
    ) -> usize {
        match self.score {
            Score::Lru => {
                let now = self.generation();
                self.slab.find(keys, rows, place, found, slots, |slot| {
                    let mark = &self.marks[slot as usize];
                    // Relaxed, here and wherever marks are: they are hints and order nothing. Read first, since a
                    // store takes the line away from other readers.
                    if mark.load(Ordering::Relaxed) != now {
                        mark.store(now, Ordering::Relaxed);
                    }
                })
            }
            Score::Lfu => self.slab.find(keys, rows, place, found, slots, |slot| {
                let mark = &self.marks[slot as usize];
                let uses = mark.load(Ordering::Relaxed);
                if uses < clock::USES_MAX {
                    mark.store(uses + 1, Ordering::Relaxed);
                }
            }),
            Score::Custom => self.slab.find(keys, rows, place, found, slots, |_| ()),
        }
    }

    /// Whether each key has a row here.
    pub(crate) fn contains(&self, keys: &[u64], slots: &mut Slots, found: &mut [bool]) {
        self.slab.contains(keys, slots, found);
    }

    /// Calls `read` with the slot and row of a key that has one.
    pub(crate) fn read<T>(&self, key: u64, read: impl FnOnce(u32, &[u8]) -> T) -> Option<T> {
        self.slab.read(key, read)
    }

    /// The slot of a key.
    pub(crate) fn slot(&self, key: u64) -> Option<u32> {
        self.slab.slot(key)
    }

    /// Brings the index's lines of keys near.
    pub(crate) fn warm(&self, keys: &[u64]) {
        self.slab.warm(keys);
    }

    /// Room for some rows, if there is any just now.
    pub(crate) fn reserve(&self, rows: usize) -> Option<Reservation> {
        Some(Reservation {
            free_slots: self.slab.take(rows)?,
            retired: self.slab.retired(),
        })
    }

    /// Tries to get slots back that nobody reads any more.
    pub(crate) fn reclaim(&self) {
        self.slab.reclaim();
    }

    /// Puts a row under its key. For the holder of the key's lock.
    pub(crate) fn link(
        &self,
        key: u64,
        row: &[u8],
        meta: RowMeta,
        reservation: &mut Reservation,
    ) -> Result<()> {
        let linked = self.slab.link(
            key,
            row,
            &mut reservation.free_slots,
            &mut reservation.retired,
        )?;
        let slot = linked.slot as usize;
        let state = LINKED | if meta.is_dirty { DIRTY } else { 0 };
        // Relaxed, here and below: the key's lock orders what counts; who reads without it checks again under it.
        self.keys[slot].store(key, Ordering::Relaxed);
        if let Some(score) = self.scores.get(slot) {
            score.store(meta.score, Ordering::Relaxed);
        }
        let first = match linked.former {
            Some(former) => {
                self.forget(former);
                self.marks[former as usize].load(Ordering::Relaxed)
            }
            None => meta.uses.min(u16::from(clock::USES_MAX)) as u8,
        };
        let mark = match self.score {
            Score::Lru => self.generation(),
            Score::Lfu | Score::Custom => first,
        };
        self.marks[slot].store(mark, Ordering::Relaxed);
        self.state[slot].store(state, Ordering::Relaxed);
        self.linked.fetch_add(1, Ordering::Relaxed);
        self.links.fetch_add(1, Ordering::Relaxed);
        if meta.is_dirty {
            self.dirty.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Takes a key's row away. For the holder of the key's lock.
    pub(crate) fn unlink(&self, key: u64, reservation: &mut Reservation) -> bool {
        let slot = self.slab.unlink(key, &mut reservation.retired);
        if let Some(slot) = slot {
            self.forget(slot);
        }
        slot.is_some()
    }

    /// An empty room, for [`Host::unlink`].
    pub(crate) fn reserve_none(&self) -> Result<Reservation> {
        // There are always as many slots as none.
        self.reserve(0).ok_or(Error::Full {
            capacity: self.capacity,
        })
    }

    fn forget(&self, slot: u32) {
        let state = self.state[slot as usize].swap(0, Ordering::Relaxed);
        debug_assert!(state & LINKED != 0);
        self.linked.fetch_sub(1, Ordering::Relaxed);
        if state & DIRTY != 0 {
            self.dirty.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Whether the store does not have a slot's row yet. For the holder of its key's lock.
    pub(crate) fn is_dirty(&self, slot: u32) -> bool {
        self.state[slot as usize].load(Ordering::Relaxed) & DIRTY != 0
    }

    /// Notes that the store has a slot's row. For the holder of its key's lock.
    pub(crate) fn set_clean(&self, slot: u32) {
        self.state[slot as usize].store(LINKED, Ordering::Relaxed);
        self.dirty.fetch_sub(1, Ordering::Relaxed);
    }

    /// Keys and slots of rows that the store does not have, as far as can be told without locks. Under all locks it can
    /// be told of all.
    pub(crate) fn dirty_slots(&self) -> impl Iterator<Item = Victim> {
        let none = self.dirty() == 0;
        let used = if none { 0 } else { self.slab.used_slots() };
        let states = self.state[..used].iter();
        states
            .enumerate()
            .filter(|(_, state)| state.load(Ordering::Relaxed) & DIRTY != 0)
            .map(|(slot, _)| Victim {
                slot: slot as u32,
                key: self.keys[slot].load(Ordering::Relaxed),
                rank: 0,
            })
    }

    /// The caller's score of a slot's row.
    pub(crate) fn score(&self, slot: u32) -> u64 {
        let score = self.scores.get(slot as usize);
        score.map_or(0, |score| score.load(Ordering::Relaxed))
    }

    /// Uses that are noted of a slot's row, where they are.
    pub(crate) fn uses(&self, slot: u32) -> u8 {
        match self.score {
            Score::Lfu => self.marks[slot as usize].load(Ordering::Relaxed),
            Score::Lru | Score::Custom => 0,
        }
    }

    /// Lets a slot's row leave among the first.
    pub(crate) fn cool(&self, slot: u32) {
        let mark = match self.score {
            Score::Lru => self.generation().wrapping_sub(clock::OLDEST),
            Score::Lfu | Score::Custom => 0,
        };
        self.marks[slot as usize].store(mark, Ordering::Relaxed);
    }

    /// Lets a slot's row leave among the last.
    pub(crate) fn heat(&self, slot: u32) {
        let mark = match self.score {
            Score::Lru => self.generation(),
            Score::Lfu | Score::Custom => clock::USES_MAX,
        };
        self.marks[slot as usize].store(mark, Ordering::Relaxed);
    }

    /// Keys that have a row, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u64> {
        self.slab.iter().map(|(key, _)| key)
    }

    /// Rows that are here, about.
    pub(crate) fn linked(&self) -> usize {
        self.linked.load(Ordering::Relaxed)
    }

    /// Rows that the store does not have, about.
    pub(crate) fn dirty(&self) -> usize {
        self.dirty.load(Ordering::Relaxed)
    }

    /// Rows that may stay here.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Rows that may be on their way in at once, in one call of several.
    pub(crate) fn chunk(&self) -> usize {
        let rows = (self.spare / 4).min(1024);
        rows.min(self.at_once())
    }

    /// Rows of which a call has copies at once, at most: of long rows fewer, so that their bytes are bounded.
    pub(crate) fn at_once(&self) -> usize {
        (CHUNK_BYTES / self.slab.row_bytes()).max(1)
    }

    /// Bytes of memory when all slots are used: rows, index, notes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let entries = size_of_val(&*self.keys)
            + size_of_val(&*self.state)
            + size_of_val(&*self.marks)
            + size_of_val(&*self.scores);
        self.slab.memory_bytes() + entries
    }

    /// Of these, bytes that are in use, but for the ends of pages.
    pub(crate) fn used_bytes(&self) -> usize {
        let used = self.slab.used_slots();
        let entries = used * (metadata_bytes(self.score) - INDEX_BYTES);
        self.slab.used_bytes() + entries
    }

    /// Rows linked since the tier was made.
    pub(crate) fn links(&self) -> u64 {
        self.links.load(Ordering::Relaxed)
    }
}
