//! The memtables of a store: the active set, the frozen ones, and their memory.

use std::sync::Arc;

use arc_swap::ArcSwap;
use forerun_core::sync::{
    Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
};

use super::background_work::BackgroundWork;
use super::held_memory::HeldMemory;
use super::memtable_set::{FrozenMemTables, MemTableSet};
use super::super_version::Table;
use crate::memtable::RegionPool;

pub(super) struct MemTables {
    /// The memtables that take writes.
    active: RwLock<MemTableSet>,
    /// The memtables of `active`, for statistics. An ingestion holds the lock of `active` while it
    /// writes to the disk, and statistics must not wait for that.
    shown: ArcSwap<Vec<Arc<Table>>>,
    /// Full memtable sets waiting to be flushed, oldest first.
    frozen: Mutex<Vec<Arc<FrozenMemTables>>>,
    /// Memory of memtables that no longer take writes.
    pub(super) held: Arc<HeldMemory>,
    /// Regions of memtables that were dropped.
    pub(super) regions: Arc<RegionPool>,
}

impl MemTables {
    pub(super) fn new(
        active: MemTableSet,
        regions: Arc<RegionPool>,
        work: &Arc<BackgroundWork>,
    ) -> MemTables {
        MemTables {
            shown: ArcSwap::from_pointee(active.shared_tables()),
            active: RwLock::new(active),
            frozen: Mutex::default(),
            held: Arc::new(HeldMemory::new(Arc::clone(work))),
            regions,
        }
    }

    /// Locks the active memtables for a write, or to look at them. A write holds the lock until it
    /// is visible.
    #[inline]
    pub(super) fn read_active(&self) -> RwLockReadGuard<'_, MemTableSet> {
        self.active.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the active memtables to replace them. Waits for all writes in progress.
    pub(super) fn write_active(&self) -> RwLockWriteGuard<'_, MemTableSet> {
        self.active.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Memtable sets waiting to be flushed, oldest first.
    pub(super) fn frozen(&self) -> MutexGuard<'_, Vec<Arc<FrozenMemTables>>> {
        // Nothing panics while the lock is held, so a poisoned lock is still consistent.
        self.frozen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows the active memtables to statistics. The caller holds `active` for writing.
    pub(super) fn show_active(&self, tables: Vec<Arc<Table>>) {
        self.shown.store(Arc::new(tables));
    }

    /// The memtable of the store's own keyspace is the first.
    pub(super) fn shown(&self) -> arc_swap::Guard<Arc<Vec<Arc<Table>>>> {
        self.shown.load()
    }
}
