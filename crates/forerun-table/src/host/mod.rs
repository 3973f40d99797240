//! The host tier: rows in memory, with the metadata that decides which rows to evict.
//!
//! ```text
//!   row_slab.rs        key -> slot -> row
//!   metadata           slot -> | key 8 | state 1 | mark 1 | score 8, for EvictStrategy::Customized |   one array for each field
//!   clock_eviction.rs  a clock over the slots: evicts the lowest-ranked rows that its hand passes
//! ```
//!
//! On a hit a reader writes one byte, the mark, and only if it changes. Key, state and score of a
//! slot are written under the lock of the slot's key (`key_locks.rs`), and are read without the
//! lock as hints.

mod clock_eviction;
#[allow(
    unsafe_code,
    reason = "rows shared without locks: written before they are linked, never while they are"
)]
mod row_slab;

pub(crate) use clock_eviction::Victim;
pub(crate) use row_slab::{Slots, stride_bytes};

use crate::evict_strategy::{EvictStrategy, USES_MAX};
use crate::options::HostCapacity;
use crate::{Error, Result};
use forerun_core::sync::Mutex;
use forerun_core::{Atomics, Pages, physical_memory_bytes};
use row_slab::{FreeSlots, Retired, RowSlab};
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};

/// The slot's row is in the index.
const LINKED: u8 = 1;
/// The store does not have it yet.
const DIRTY: u8 = 2;

/// The maximum number of rows, so that slot numbers fit 32 bits.
const ROWS_MAX: usize = u32::MAX as usize - SPARE_MAX;
/// [`HostCapacity::Memory`] if the system does not report its memory size.
const MEMORY_BYTES: usize = 64 << 30;
/// Initial capacity of the index of a tier that grows.
const INDEX_ROWS_MIN: usize = 1 << 16;
const SPARE_MIN: usize = 256;
const SPARE_MAX: usize = 1 << 16;

/// Rows in memory.
#[derive(Debug)]
pub(crate) struct Host {
    slab: RowSlab,
    strategy: EvictStrategy,
    capacity: usize,
    keys: Atomics<AtomicU64>,
    state: Atomics<AtomicU8>,
    marks: Atomics<AtomicU8>,
    /// Empty unless the caller gives scores.
    scores: Atomics<AtomicU64>,
    linked: AtomicUsize,
    dirty: AtomicUsize,
    /// Rows linked so far: the time of [`EvictStrategy::Lru`].
    links: AtomicU64,
    hand: Mutex<usize>,
}

/// Free slots reserved for a call's rows, and the slots that the call retires.
#[derive(Debug)]
pub(crate) struct Reservation {
    free_slots: FreeSlots,
    retired: Retired,
}

/// The metadata of a row to be linked.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RowMeta {
    pub(crate) score: u64,
    pub(crate) is_dirty: bool,
    /// Past uses of the row.
    pub(crate) uses: u16,
}

/// Index bytes per row: an entry has 16 bytes, and the index is not filled completely.
const INDEX_BYTES: usize = 18;

/// The maximum bytes of rows that a call moves at once, but at least one row. So chunks of long
/// rows have fewer rows.
const CHUNK_BYTES: usize = 16 << 20;

/// The maximum number of rows in such a chunk.
const CHUNK_ROWS: usize = 1024;

/// Metadata bytes per row: index, key, state, mark, score.
fn metadata_bytes(strategy: EvictStrategy) -> usize {
    let score_bytes = if strategy.is_custom() { 8 } else { 0 };
    INDEX_BYTES + 8 + 1 + 1 + score_bytes
}

/// The bytes of a row and its metadata.
fn slot_bytes(row_bytes: usize, strategy: EvictStrategy) -> usize {
    stride_bytes(row_bytes) + metadata_bytes(strategy)
}

/// About the minimum bytes of a host tier: a few rows and their spare slots.
pub(crate) fn bytes_min(row_bytes: usize, strategy: EvictStrategy) -> usize {
    slot_bytes(row_bytes, strategy) * (SPARE_MIN + 17)
}

/// The maximum number of rows that one call inserts, evicts or flushes at once, in a tier of this
/// many rows; several calls may run in parallel.
fn chunk_rows(capacity: usize, row_bytes: usize) -> usize {
    let rows = (spare(capacity) / 4).min(CHUNK_ROWS);
    rows.min(rows_at_once(row_bytes))
}

/// The upper bound of [`chunk_rows`] for a tier of this many bytes.
pub(crate) fn chunk_rows_within(bytes: usize, row_bytes: usize, strategy: EvictStrategy) -> usize {
    chunk_rows(bytes / slot_bytes(row_bytes, strategy), row_bytes)
}

fn rows_at_once(row_bytes: usize) -> usize {
    (CHUNK_BYTES / row_bytes).max(1)
}

fn spare(rows: usize) -> usize {
    (rows / 16).clamp(SPARE_MIN, SPARE_MAX)
}

/// Whether to allocate an index of this many entries in full. Entries are scattered over the index,
/// so a few rows already touch most of its memory, which must be a small part of the machine's
/// memory.
fn preallocates_index(slots: usize) -> bool {
    let memory_bytes = physical_memory_bytes().unwrap_or(MEMORY_BYTES);
    slots.saturating_mul(INDEX_BYTES) <= memory_bytes / 8
}

fn refuse(asked: usize, unit: &'static str, reason: String) -> Error {
    Error::HostCapacity {
        asked,
        unit,
        reason,
    }
}

/// The number of rows in a capacity if a row takes `each` bytes.
fn rows(capacity: HostCapacity, each: usize) -> Result<usize> {
    let rows = match capacity {
        HostCapacity::Rows(rows) => rows,
        HostCapacity::Bytes(bytes) => {
            let all = bytes / each;
            // The maximum number of rows that fit together with their spare slots.
            let kept = (all.saturating_sub(SPARE_MIN)).min(all / 17 * 16);
            let kept = kept.max(all.saturating_sub(SPARE_MAX));
            if kept == 0 {
                let reason = format!("the minimum is {} bytes", each * (SPARE_MIN + 17));
                return Err(refuse(bytes, "bytes", reason));
            }
            return Ok(kept.min(ROWS_MAX));
        }
        HostCapacity::Memory => {
            let rows = physical_memory_bytes().unwrap_or(MEMORY_BYTES) / each;
            return Ok(rows.clamp(1, ROWS_MAX));
        }
    };
    match rows {
        0 => Err(refuse(0, "rows", "the minimum is one row".to_owned())),
        rows if rows > ROWS_MAX => {
            let reason = format!("the maximum is {ROWS_MAX} rows");
            Err(refuse(rows, "rows", reason))
        }
        rows => Ok(rows),
    }
}

impl Host {
    /// An empty tier. `filter_bytes` is the memory of an admission filter for each row, which
    /// counts against a capacity in bytes.
    pub(crate) fn new(
        row_bytes: usize,
        capacity: HostCapacity,
        filter_bytes: usize,
        strategy: EvictStrategy,
        pages: Pages,
    ) -> Result<Host> {
        let each = slot_bytes(row_bytes, strategy) + filter_bytes;
        let rows = rows(capacity, each)?;
        match capacity {
            HostCapacity::Rows(_) => Host::with_rows(row_bytes, rows, false, strategy, pages),
            HostCapacity::Memory => Host::with_rows(row_bytes, rows, true, strategy, pages),
            HostCapacity::Bytes(bytes) => {
                let mut rows = rows;
                loop {
                    let host = Host::with_rows(row_bytes, rows, false, strategy, pages)?;
                    // The index is made in whole segments, so it may be larger than estimated.
                    let needed = host.memory_bytes() + rows * filter_bytes;
                    let excess = needed.saturating_sub(bytes);
                    match excess.div_ceil(each) {
                        0 => return Ok(host),
                        _ if rows == 1 => {
                            let reason = format!("the minimum is {needed} bytes");
                            return Err(refuse(bytes, "bytes", reason));
                        }
                        fewer => rows -= fewer.min(rows - 1),
                    }
                }
            }
        }
    }

    /// An empty tier of `capacity` rows. If the capacity is ample, the tier never fills up, so its
    /// index starts small and grows.
    fn with_rows(
        row_bytes: usize,
        capacity: usize,
        is_ample: bool,
        strategy: EvictStrategy,
        pages: Pages,
    ) -> Result<Host> {
        let spare = spare(capacity);
        let slots = capacity + spare;
        let index_rows = if is_ample || !preallocates_index(slots) {
            slots.min(INDEX_ROWS_MIN)
        } else {
            slots
        };
        let scores = if strategy.is_custom() { slots } else { 0 };
        Ok(Host {
            slab: RowSlab::new(row_bytes, slots as u32, index_rows, pages)?,
            strategy,
            capacity,
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

    /// Copies the rows that are here to the places that `place` returns: see [`RowSlab::find`].
    pub(crate) fn find(
        &self,
        keys: &[u64],
        rows: &mut [u8],
        place: impl FnMut(usize) -> usize,
        found: &mut [bool],
        slots: &mut Slots,
    ) -> usize {
        if !self.strategy.follows_use() {
            return self.slab.find(keys, rows, place, found, slots, |_| ());
        }
        let now = self.generation();
        self.slab.find(keys, rows, place, found, slots, |slot| {
            let mark = &self.marks[slot as usize];
            // Relaxed, here and for all marks: they are hints and order nothing. Store only a
            // change, since a store takes the line away from other readers.
            let before = mark.load(Ordering::Relaxed);
            let after = self.strategy.used_mark(before, now);
            if after != before {
                mark.store(after, Ordering::Relaxed);
            }
        })
    }

    /// Sets the flags of the keys that have a row.
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

    /// Prefetches the index lines of keys.
    pub(crate) fn prefetch(&self, keys: &[u64]) {
        self.slab.prefetch(keys);
    }

    /// Reserves slots for some rows, if enough are free right now.
    pub(crate) fn reserve(&self, rows: usize) -> Option<Reservation> {
        Some(Reservation {
            free_slots: self.slab.take(rows)?,
            retired: self.slab.retired(),
        })
    }

    /// Tries to free retired slots that no reader uses.
    pub(crate) fn reclaim(&self) {
        self.slab.reclaim();
    }

    /// Links a row under its key. The caller holds the key's lock.
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
        // Relaxed, here and below: the key's lock orders them; a reader without the lock checks
        // again under it.
        self.keys[slot].store(key, Ordering::Relaxed);
        if let Some(score) = self.scores.get(slot) {
            score.store(meta.score, Ordering::Relaxed);
        }
        let first = match linked.former {
            Some(former) => {
                self.forget(former);
                self.marks[former as usize].load(Ordering::Relaxed)
            }
            None => meta.uses.min(u16::from(USES_MAX)) as u8,
        };
        let mark = self.strategy.first_mark(first, self.generation());
        self.marks[slot].store(mark, Ordering::Relaxed);
        self.state[slot].store(state, Ordering::Relaxed);
        self.linked.fetch_add(1, Ordering::Relaxed);
        self.links.fetch_add(1, Ordering::Relaxed);
        if meta.is_dirty {
            self.dirty.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Removes a key's row. The caller holds the key's lock.
    pub(crate) fn unlink(&self, key: u64, reservation: &mut Reservation) -> bool {
        let slot = self.slab.unlink(key, &mut reservation.retired);
        if let Some(slot) = slot {
            self.forget(slot);
        }
        slot.is_some()
    }

    /// An empty reservation, for [`Host::unlink`].
    pub(crate) fn reserve_none(&self) -> Result<Reservation> {
        // Reserving no slots always succeeds.
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

    /// Whether the store lacks a slot's row. The caller holds the key's lock.
    pub(crate) fn is_dirty(&self, slot: u32) -> bool {
        self.state[slot as usize].load(Ordering::Relaxed) & DIRTY != 0
    }

    /// Records that the store has a slot's row. The caller holds the key's lock.
    pub(crate) fn set_clean(&self, slot: u32) {
        self.state[slot as usize].store(LINKED, Ordering::Relaxed);
        self.dirty.fetch_sub(1, Ordering::Relaxed);
    }

    /// Keys and slots of rows that the store lacks. Without locks the answer is approximate; under
    /// all locks it is exact.
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

    /// The counted uses of a slot's row, if the policy counts them.
    #[cfg(feature = "gpu")]
    pub(crate) fn uses(&self, slot: u32) -> u8 {
        let mark = self.marks[slot as usize].load(Ordering::Relaxed);
        self.strategy.uses_of_mark(mark)
    }

    /// Makes a slot's row one of the first to be evicted.
    #[cfg(feature = "gpu")]
    pub(crate) fn cool(&self, slot: u32) {
        let mark = self.strategy.coldest_mark(self.generation());
        self.marks[slot as usize].store(mark, Ordering::Relaxed);
    }

    /// Makes a slot's row one of the last to be evicted.
    pub(crate) fn heat(&self, slot: u32) {
        let mark = self.strategy.hottest_mark(self.generation());
        self.marks[slot as usize].store(mark, Ordering::Relaxed);
    }

    /// The keys of all rows, in no order.
    pub(crate) fn keys(&self) -> Result<Vec<u64>> {
        self.slab.keys()
    }

    /// The approximate number of rows.
    pub(crate) fn linked(&self) -> usize {
        self.linked.load(Ordering::Relaxed)
    }

    /// The approximate number of rows that the store lacks.
    pub(crate) fn dirty(&self) -> usize {
        self.dirty.load(Ordering::Relaxed)
    }

    /// The capacity in rows.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// The maximum number of rows that one call inserts, evicts or flushes at once; several calls
    /// may run in parallel.
    pub(crate) fn chunk(&self) -> usize {
        chunk_rows(self.capacity, self.slab.row_bytes())
    }

    /// The maximum number of rows that a call copies at once. It is lower for long rows, so that
    /// their bytes are bounded.
    pub(crate) fn at_once(&self) -> usize {
        rows_at_once(self.slab.row_bytes())
    }

    /// Bytes of memory when all slots are used: rows, index, metadata.
    pub(crate) fn memory_bytes(&self) -> usize {
        let entries = size_of_val(&*self.keys)
            + size_of_val(&*self.state)
            + size_of_val(&*self.marks)
            + size_of_val(&*self.scores);
        self.slab.memory_bytes() + entries
    }

    /// The part of these bytes that is in use, not counting the unused ends of pages.
    pub(crate) fn used_bytes(&self) -> usize {
        let used = self.slab.used_slots();
        let entries = used * (metadata_bytes(self.strategy) - INDEX_BYTES);
        self.slab.used_bytes() + entries
    }

    /// Rows linked since the tier was created.
    pub(crate) fn links(&self) -> u64 {
        self.links.load(Ordering::Relaxed)
    }
}
