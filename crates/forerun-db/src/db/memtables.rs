//! The memtables of a store, and their memory, which stays below
//! [`Options::memory_limit_bytes`](crate::Options::memory_limit_bytes).
//!
//! ```text
//!   limit   │ held: frozen, or flushed and still read │ active │ the next one │ reserve │
//!                                    │                           ^
//!                                    └─ freed with the last ─────┘ reservation
//!                                       reference
//! ```
//!
//! The memory of a dropped memtable may stay in a pool for the next one. It is free, and given up
//! if something else needs it.
//!
//! A frozen memtable counts as long as anyone holds it: until its run is written, and longer if an
//! iterator reads it. A new one is made only when there is memory for everything it may grow to, so
//! the limit holds whatever is written.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use forerun_core::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use forerun_core::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use forerun_core::sync::{RwLockReadGuard, RwLockWriteGuard, TryLockError};

use super::background_work::BackgroundWork;
use super::held_memory::HeldMemory;
use super::keyspace_data::KeyspaceData;
use super::memtable_set::{EMPTY_INDEXED_TABLE_BYTES, EMPTY_TABLE_BYTES};
use super::memtable_set::{FrozenMemTables, MemTableSet};
use super::super_version::Table;
use crate::events::WriteStallReason;
use crate::limits::MEMTABLE_INDEX_BYTES_MIN;
use crate::memtable::{MemTableStats, RegionPool};
use crate::{Error, Options, Result};

/// The maximum number of memtable sets at a time: every lookup searches a memtable in each.
const MEMTABLE_SETS_MAX: usize = 6;

/// Below this size a memtable set gets no hash indexes. A set of the usual size is exempt: its
/// limit leaves room for two indexes.
const WITHOUT_INDEX_MAX: usize = MEMTABLE_INDEX_BYTES_MIN - 3 * EMPTY_TABLE_BYTES;

/// Kept free, so that a nearly empty memtable set can replace any other at any time.
const RESERVE_BYTES: usize = 3 * EMPTY_TABLE_BYTES;

/// If readers hold too much memory for a memtable set of the usual size, one that is smaller by up
/// to this factor is acceptable.
const SIZE_SHARE_MIN: usize = 8;

/// Range deletions that are in runs count up to this share of the memory limit.
const FLUSHED_RANGES_SHARE: usize = 4;

pub(super) struct MemTables {
    /// The memtables that take writes.
    active: RwLock<MemTableSet>,
    /// Why a thread holds the lock of `active` while it flushes, if one does or is about to: a
    /// [`HeldFor`].
    held_for: AtomicU8,
    /// The memtables of `active`, for statistics. An ingestion holds the lock of `active` while it
    /// writes to the disk, and statistics must not wait for that.
    shown: ArcSwap<Vec<Arc<Table>>>,
    /// Full memtable sets waiting to be flushed, oldest first.
    frozen: Mutex<Vec<Arc<FrozenMemTables>>>,
    /// Memory of memtables that no longer take writes.
    held: Arc<HeldMemory>,
    /// Regions of memtables that were dropped.
    regions: Arc<RegionPool>,
    /// The memory of range deletions that are in runs.
    flushed_ranges_bytes: AtomicUsize,
    /// The usual size of a memtable set.
    usual_bytes: usize,
    limit_bytes: usize,
}

/// Why a thread holds the active memtables while it flushes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum HeldFor {
    Memory = 1,
    Ingestion = 2,
    Backup = 3,
}

/// No thread does.
const NOT_HELD: u8 = 0;

impl HeldFor {
    fn of_code(code: u8) -> Option<HeldFor> {
        let all = [HeldFor::Memory, HeldFor::Ingestion, HeldFor::Backup];
        all.into_iter().find(|of| *of as u8 == code)
    }
}

impl From<HeldFor> for WriteStallReason {
    fn from(held_for: HeldFor) -> WriteStallReason {
        match held_for {
            HeldFor::Memory => WriteStallReason::Memory,
            HeldFor::Ingestion => WriteStallReason::Ingestion,
            HeldFor::Backup => WriteStallReason::Backup,
        }
    }
}

/// The active memtables, locked by a thread that flushes meanwhile.
pub(super) struct HeldMemTables<'a> {
    active: RwLockWriteGuard<'a, MemTableSet>,
    held_for: &'a AtomicU8,
}

impl Deref for HeldMemTables<'_> {
    type Target = MemTableSet;

    fn deref(&self) -> &MemTableSet {
        &self.active
    }
}

impl DerefMut for HeldMemTables<'_> {
    fn deref_mut(&mut self) -> &mut MemTableSet {
        &mut self.active
    }
}

impl Drop for HeldMemTables<'_> {
    fn drop(&mut self) {
        // Still locked, so the next holder stores its own afterwards. Relaxed, as all accesses: it
        // only names and counts a stall.
        self.held_for.store(NOT_HELD, Ordering::Relaxed);
    }
}

/// The size of a memtable set to be made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    /// The preferred size in bytes.
    pub(super) wanted: usize,
    /// The smallest acceptable size in bytes.
    pub(super) least: usize,
}

impl Size {
    /// For an empty memtable with room for a batch that did not fit into the last one.
    pub(super) fn for_batch(needed_bytes: usize, usual_bytes: usize) -> Size {
        let for_batch = table_bytes_for(needed_bytes);
        Size {
            wanted: for_batch.max(usual_bytes),
            least: for_batch.max(usual_bytes / SIZE_SHARE_MIN),
        }
    }

    /// For a memtable set that only replaces another.
    pub(super) fn any(usual_bytes: usize) -> Size {
        Size {
            wanted: usual_bytes,
            least: EMPTY_TABLE_BYTES,
        }
    }
}

/// Whether there is memory for another memtable set.
pub(super) enum Reservation {
    /// Memory is available, for a set of this size.
    Granted(usize),
    /// Memory will be available after a flush that is already due.
    AfterBackgroundWork,
    /// Memory will be available after the active memtable set is flushed.
    AfterActive,
    /// Memory will be available after readers drop memtables.
    AfterReaders,
}

impl MemTables {
    pub(super) fn new(
        active: MemTableSet,
        regions: Arc<RegionPool>,
        options: &Options,
        work: &Arc<BackgroundWork>,
    ) -> MemTables {
        MemTables {
            shown: ArcSwap::from_pointee(active.shared_tables()),
            active: RwLock::new(active),
            held_for: AtomicU8::new(NOT_HELD),
            frozen: Mutex::default(),
            held: Arc::new(HeldMemory::new(Arc::clone(work))),
            regions,
            flushed_ranges_bytes: AtomicUsize::new(0),
            usual_bytes: options.memtable_bytes,
            limit_bytes: options.memory_limit_bytes,
        }
    }

    /// Locks the active memtables for a write, or to look at them. A write holds the lock until it
    /// is visible.
    #[inline]
    pub(super) fn read_active(&self) -> RwLockReadGuard<'_, MemTableSet> {
        self.active.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the active memtables for a write, unless that has to wait.
    ///
    /// # Errors
    /// Why it has to wait, if a thread holds the lock while it flushes.
    #[inline]
    pub(super) fn try_read_active(
        &self,
    ) -> std::result::Result<RwLockReadGuard<'_, MemTableSet>, Option<HeldFor>> {
        self.unless_held(self.active.try_read())
    }

    /// [`write_active`](Self::write_active), unless that has to wait.
    ///
    /// # Errors
    /// As [`try_read_active`](Self::try_read_active).
    pub(super) fn try_write_active(
        &self,
    ) -> std::result::Result<RwLockWriteGuard<'_, MemTableSet>, Option<HeldFor>> {
        self.unless_held(self.active.try_write())
    }

    #[inline]
    fn unless_held<T>(
        &self,
        locked: std::result::Result<T, TryLockError<T>>,
    ) -> std::result::Result<T, Option<HeldFor>> {
        match locked {
            Ok(active) => Ok(active),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {
                Err(HeldFor::of_code(self.held_for.load(Ordering::Relaxed)))
            }
        }
    }

    /// Locks the active memtables for writing, to flush while they are locked: writes that wait for
    /// them are stalled, for this reason.
    pub(super) fn hold_active(&self, reason: HeldFor) -> HeldMemTables<'_> {
        let held_for = &self.held_for;
        // Writes wait as soon as this thread does. Another holder keeps its reason.
        let (before, after) = (NOT_HELD, reason as u8);
        _ = held_for.compare_exchange(before, after, Ordering::Relaxed, Ordering::Relaxed);
        let active = self.write_active();
        held_for.store(reason as u8, Ordering::Relaxed);
        HeldMemTables { active, held_for }
    }

    /// Locks the active memtables to replace them. Waits for all writes in progress.
    pub(super) fn write_active(&self) -> RwLockWriteGuard<'_, MemTableSet> {
        self.active.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes an empty memtable for a keyspace, not yet active.
    pub(super) fn new_table(
        &self,
        keyspace: &KeyspaceData,
        options: &Options,
        limit_bytes: usize,
    ) -> Result<Arc<Table>> {
        keyspace.new_table(options, limit_bytes, &self.regions)
    }

    /// Adds the first memtable of a keyspace to the active set. Readers know it already.
    pub(super) fn add_table(
        &self,
        active: &mut MemTableSet,
        keyspace: &Arc<KeyspaceData>,
        table: Arc<Table>,
    ) {
        active.add(keyspace, table);
        self.trim_and_show(active);
    }

    /// Replaces the memtable of a keyspace in the active set, or adds one.
    pub(super) fn replace_table(
        &self,
        active: &mut MemTableSet,
        keyspace: &Arc<KeyspaceData>,
        table: Arc<Table>,
    ) {
        let replaced = active.replace(keyspace, table);
        self.trim_and_show(active);
        // Readers may still hold it.
        if let Some(replaced) = replaced {
            replaced.hold(&self.held);
        }
    }

    fn trim_and_show(&self, active: &MemTableSet) {
        active.trim(&self.regions, self.bytes_beside_held());
        self.show(active);
    }

    /// Shows the active memtables to statistics. The caller holds them for writing.
    fn show(&self, active: &MemTableSet) {
        self.shown.store(Arc::new(active.shared_tables()));
    }

    /// Freezes the active set, which ends with a sequence number, and puts another in its place.
    pub(super) fn freeze(&self, active: &mut MemTableSet, next: MemTableSet, last_sequence: u64) {
        next.trim(&self.regions, self.free_bytes(active));
        // First, so that statistics never count a memtable both as active and as held.
        self.show(&next);
        // From now on, the memtables count at their actual size, until the last reference is
        // dropped.
        active.hold(&self.held);
        for (keyspace, table) in next.tables() {
            keyspace.show_table(table);
        }
        let frozen = FrozenMemTables {
            memtables: std::mem::replace(active, next),
            last_sequence,
        };
        self.frozen().push(Arc::new(frozen));
    }

    /// The set to flush next.
    pub(super) fn oldest_frozen(&self) -> Option<Arc<FrozenMemTables>> {
        self.frozen().first().cloned()
    }

    /// Forgets the oldest frozen set, which was flushed.
    pub(super) fn remove_oldest_frozen(&self) {
        let flushed = self.frozen().remove(0);
        // Without the lock, since dropping the last reference frees memory.
        drop(flushed);
    }

    /// Whether all frozen sets are flushed.
    pub(super) fn is_flushed(&self) -> bool {
        self.frozen().is_empty()
    }

    /// Whether all frozen sets up to this one are flushed.
    pub(super) fn is_flushed_to(&self, number: u64) -> bool {
        let is_later = |of: &Arc<FrozenMemTables>| of.memtables.number > number;
        self.frozen().iter().all(is_later)
    }

    fn frozen(&self) -> MutexGuard<'_, Vec<Arc<FrozenMemTables>>> {
        // Nothing panics while the lock is held, so a poisoned lock is still consistent.
        self.frozen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The size of a memtable set that replaces one which is flushed, or will be at once.
    pub(super) fn bytes_if_flushed(&self, active: &MemTableSet) -> usize {
        self.free_bytes(active)
            .min(self.usual_bytes)
            .max(EMPTY_TABLE_BYTES)
    }

    /// The memory free for the next memtable set if the active one is frozen. Memory in the pool
    /// of regions is free: the next set takes it, or it is freed.
    pub(super) fn free_bytes(&self, active: &MemTableSet) -> usize {
        self.bytes_beside_held().saturating_sub(active.used_bytes())
    }

    /// The memory that is left for the active memtable set and the pool of regions.
    pub(super) fn bytes_beside_held(&self) -> usize {
        // Relaxed: who changes the runs wakes those that wait for memory.
        let ranges_bytes = self.flushed_ranges_bytes.load(Ordering::Relaxed);
        // Beyond their limit, writes must go on: while a snapshot needs what they cover, nothing
        // can free them.
        let ranges_bytes = ranges_bytes.min(self.flushed_ranges_limit_bytes());
        let taken = self.held.bytes() + RESERVE_BYTES + ranges_bytes;
        self.limit_bytes.saturating_sub(taken)
    }

    /// Notes the memory of range deletions that are in runs.
    pub(super) fn note_flushed_ranges(&self, bytes: usize) {
        // Relaxed: as above.
        self.flushed_ranges_bytes.store(bytes, Ordering::Relaxed);
    }

    /// What range deletions in runs may take of the memory limit.
    fn flushed_ranges_limit_bytes(&self) -> usize {
        self.limit_bytes / FLUSHED_RANGES_SHARE
    }

    /// How far the range deletions of all keyspaces exceed half of their limit.
    pub(super) fn flushed_ranges_score(&self) -> f64 {
        let due_bytes = (self.flushed_ranges_limit_bytes() / 2).max(1);
        // Relaxed: as above.
        self.flushed_ranges_bytes.load(Ordering::Relaxed) as f64 / due_bytes as f64
    }

    /// Whether there is memory for another set, or what must happen first.
    pub(super) fn reservation(&self, active: &MemTableSet, size: Size) -> Reservation {
        let free = self.free_bytes(active);
        let frozen = self.frozen().len();
        let has_slot = frozen + 1 < MEMTABLE_SETS_MAX;
        if has_slot && free >= size.wanted {
            return Reservation::Granted(size.wanted);
        }
        // A memtable set that is being flushed stays in the frozen list until its memory is free,
        // and then the event count changes. The flush lock does not show a flush: a checkpoint
        // holds it too, and wakes no thread when it releases it.
        if !has_slot || frozen > 0 {
            return Reservation::AfterBackgroundWork;
        }
        let free_then = free.saturating_add(active.used_bytes());
        if size.least <= EMPTY_TABLE_BYTES {
            // The reserve is kept for this case.
            Reservation::Granted(free.max(EMPTY_TABLE_BYTES))
        } else if free >= size.least {
            Reservation::Granted(free)
        } else if !active.is_empty() && free_then >= size.least {
            Reservation::AfterActive
        } else {
            Reservation::AfterReaders
        }
    }

    /// Refuses a set that can never be granted.
    pub(super) fn check_size(&self, size: Size) -> Result<()> {
        if size.least > self.limit_bytes.saturating_sub(RESERVE_BYTES) {
            return Err(self.limit_error(size.least, 0));
        }
        Ok(())
    }

    /// The error for a set that gets no memory because readers hold too much.
    pub(super) fn held_by_readers(&self, size: Size) -> Error {
        self.limit_error(size.least, self.held.bytes())
    }

    fn limit_error(&self, needed_bytes: usize, used_bytes: usize) -> Error {
        Error::MemoryLimit {
            needed_bytes,
            used_bytes,
            limit_bytes: self.limit_bytes,
        }
    }

    /// The memory of all memtables in use. It may miss a memtable that is frozen during the count,
    /// but never counts more than there is.
    pub(super) fn used_bytes(&self) -> usize {
        loop {
            let active = self.shown();
            let active_bytes: usize = active.iter().map(|table| table.used_bytes()).sum();
            let held_bytes = self.held.bytes();
            // `freeze` shows the next set before it counts the frozen one as held. So if the set is
            // still the same, its memtables are not among the held ones. If not, another thread has
            // made progress.
            if Arc::ptr_eq(&active, &self.shown()) {
                return active_bytes + held_bytes;
            }
        }
    }

    /// Statistics of the active memtable of the store's own keyspace.
    pub(super) fn own_stats(&self) -> Option<MemTableStats> {
        self.shown().first().map(|table| table.memtable.stats())
    }

    fn shown(&self) -> Guard<Arc<Vec<Arc<Table>>>> {
        self.shown.load()
    }

    /// The memory of frozen memtables that anyone holds.
    #[cfg(test)]
    pub(super) fn held_bytes(&self) -> usize {
        self.held.bytes()
    }

    /// The memory of dropped memtables that waits for the next ones.
    #[cfg(test)]
    pub(super) fn pooled_bytes(&self) -> usize {
        self.regions.bytes()
    }
}

/// The size of an empty memtable for a batch that did not fit into the last one. Tower heights are
/// drawn afresh and may come out larger, so it has an extra eighth.
pub(super) fn table_bytes_for(needed_bytes: usize) -> usize {
    let entries_bytes = needed_bytes.saturating_add(needed_bytes / 8);
    // The store's own keyspace has a memtable in each set too.
    entries_bytes.saturating_add(match entries_bytes {
        ..WITHOUT_INDEX_MAX => EMPTY_TABLE_BYTES,
        _ => 2 * EMPTY_INDEXED_TABLE_BYTES,
    })
}
