//! The state that a table's handles and its background thread share.
//!
//! ```text
//!   Table ─ Open ┬ closing       the background thread, until it is joined, and the result
//!                └ Inner ┬ device            copies of rows; unused once it has failed
//!                        ├ host              rows, their index and metadata
//!                        ├ store             the rows on disk, and their last count
//!                        ├ admission_filter  which rows of the store lookups promote; device has another
//!                        ├ key_locks         who may write a key, and whether a key changed
//!                        ├ queue             moves between the tiers that wait for the thread
//!                        └ clients           what `write_once` has recorded
//! ```
//!
//! A thread takes locks in this order, and may leave out any of them:
//!
//! ```text
//!   closing              close.rs         from the beginning to the end of a close
//!   └─ a client          clients.rs       during a recorded write of that client
//!      └─ keys           key_locks.rs     during a write, a move or a flush, in ascending order
//!         └─ changes     device_tier.rs   while the device's rows change; shared by `Pointers`
//!         │  └─ table    device_tier.rs   shared by lookups and changes; exclusive to changes on the CPU
//!         └─ row count   row_count.rs     while a count begins or ends, or keys are noted for the next
//!         │  └─ the locks of the store
//!         └─ locks under which no other is taken: of free slots, the queue, the clock's hand and
//!            free rings
//! ```
//!
//! Slots are reserved before keys are locked, because a thread waits for free slots as long as
//! readers use them. `when_full` callbacks run under the locks of keys.

use crate::admission::AdmissionFilter;
use crate::clients::Clients;
use crate::device_tier::Device;
use crate::disk_tier::Store;
use crate::host::Host;
use crate::interrupt::Interrupt;
use crate::key_locks::{KeyGuard, KeyLocks};
use crate::move_queue::Queue;
use crate::options::{Policies, WritePolicy};
use crate::stats::{Clocks, Counters, DeviceStats, TableStats};
use crate::{Error, Result, RowType};
use std::sync::atomic::{AtomicBool, Ordering};

/// A table without its background thread.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) row: RowType,
    pub(crate) policies: Policies,
    pub(crate) interrupt: Interrupt,
    device: Option<Device>,
    pub(crate) host: Host,
    pub(crate) store: Option<Store>,
    /// Between the store and the host tier.
    pub(crate) admission_filter: AdmissionFilter,
    pub(crate) key_locks: KeyLocks,
    pub(crate) counters: Counters,
    pub(crate) clocks: Clocks,
    pub(crate) queue: Queue,
    pub(crate) clients: Clients,
    /// Set before the last rows are flushed: see [`lock_to_write`](Inner::lock_to_write).
    is_closed: AtomicBool,
}

impl Inner {
    pub(crate) fn new(
        row: RowType,
        policies: Policies,
        interrupt: Interrupt,
        device: Option<Device>,
        host: Host,
        store: Option<Store>,
    ) -> Result<Inner> {
        Ok(Inner {
            row,
            admission_filter: AdmissionFilter::new(
                &policies,
                if store.is_some() { host.capacity() } else { 0 },
            )?,
            policies,
            interrupt,
            device,
            host,
            store,
            key_locks: Default::default(),
            counters: Default::default(),
            clocks: Default::default(),
            queue: Default::default(),
            clients: Default::default(),
            is_closed: Default::default(),
        })
    }

    /// The device tier, unless there is none or it has failed.
    pub(crate) fn device(&self) -> Option<&Device> {
        self.device
            .as_ref()
            .filter(|device| device.failure().is_none())
    }

    /// The device tier, failed or not.
    ///
    /// # Errors
    /// [`Error::NoDeviceTier`].
    #[cfg(feature = "gpu")]
    pub(crate) fn device_for(&self, op: &'static str) -> Result<&Device> {
        self.device.as_ref().ok_or(Error::NoDeviceTier { op })
    }

    /// Whether written rows reach the store later.
    pub(crate) fn writes_back(&self) -> bool {
        self.store.is_some() && self.policies.writes == WritePolicy::WriteBack
    }

    /// The store, if writes go through to it.
    pub(crate) fn through(&self) -> Option<&Store> {
        let through = self.policies.writes == WritePolicy::WriteThrough;
        self.store.as_ref().filter(|_| through)
    }

    /// Whether the caller supplies the scores.
    pub(crate) fn has_scores(&self) -> bool {
        self.policies.evict_strategy.is_custom()
    }

    pub(crate) fn check_open(&self) -> Result<()> {
        // Relaxed: a call that races with close may run before it or fail. A write checks again
        // under its locks.
        if self.is_closed.load(Ordering::Relaxed) {
            return Err(Error::Closed);
        }
        Ok(())
    }

    /// Refuses writes to a closed table, and to one whose store was opened read-only.
    pub(crate) fn check_takes_writes(&self) -> Result<()> {
        self.check_open()?;
        match &self.store {
            Some(store) => store.check_access(),
            None => Ok(()),
        }
    }

    /// Refuses calls from now on. Writers that hold locks may still finish: closing takes all locks
    /// once.
    pub(crate) fn refuse_calls(&self) {
        // Relaxed: the key locks order it, see `lock_to_write`.
        self.is_closed.store(true, Ordering::Relaxed);
    }

    /// Locks these keys for writing.
    ///
    /// Close first refuses calls and then flushes under all locks. If a writer gets its locks
    /// before the flush, its rows are flushed. If it gets them later, it sees that the table is
    /// closed.
    ///
    /// # Errors
    /// [`Error::Closed`]: the table no longer accepts writes.
    pub(crate) fn lock_to_write(
        &self,
        keys: impl IntoIterator<Item = u64>,
    ) -> Result<KeyGuard<'_>> {
        self.unless_closed(self.key_locks.lock(keys))
    }

    /// Locks all keys for writing.
    ///
    /// # Errors
    /// Those of [`lock_to_write`](Inner::lock_to_write).
    pub(crate) fn lock_all_to_write(&self) -> Result<KeyGuard<'_>> {
        self.unless_closed(self.key_locks.lock_all())
    }

    fn unless_closed<'h>(&self, guard: KeyGuard<'h>) -> Result<KeyGuard<'h>> {
        self.check_open()?;
        Ok(guard)
    }

    pub(crate) fn check_rows(&self, keys: &[u64], bytes: usize) -> Result<()> {
        let needed = keys.len().checked_mul(self.row.bytes());
        check_length("bytes of rows", bytes, keys, needed)
    }

    pub(crate) fn check_found(&self, keys: &[u64], found: &[bool]) -> Result<()> {
        check_length("flags", found.len(), keys, Some(keys.len()))
    }

    pub(crate) fn check_scores(&self, keys: &[u64], scores: &[u64]) -> Result<()> {
        if !self.has_scores() {
            return Err(Error::Conflict(
                "the table computes its own scores; build it with EvictStrategy::Customized to \
                 supply them",
            ));
        }
        check_length("scores", scores.len(), keys, Some(keys.len()))
    }

    /// The device tier's metrics, and why it failed, if it did.
    pub(crate) fn device_stats(&self) -> Option<DeviceStats> {
        self.device.as_ref().map(Device::stats)
    }

    pub(crate) fn stats(&self) -> TableStats {
        let device_filter = self.device.as_ref().map(Device::admission_filter);
        let filters = [Some(&self.admission_filter), device_filter]
            .into_iter()
            .flatten();
        let admission_bytes: usize = filters.map(AdmissionFilter::memory_bytes).sum();
        let host_bytes = (self.host.memory_bytes() + admission_bytes) as u64;
        let store = self.store.as_ref().map(|store| store.db().stats());
        let store_limit_bytes = store.as_ref().map_or(0, |store| {
            store.cache.capacity_bytes + store.memtables_limit_bytes
        });
        TableStats {
            counts: self.counters.counts(),
            row_bytes: self.row.bytes() as u64,
            host_rows: self.host.linked() as u64,
            host_capacity_rows: self.host.capacity() as u64,
            host_dirty_rows: self.host.dirty() as u64,
            host_bytes,
            host_used_bytes: (self.host.used_bytes() + admission_bytes) as u64,
            memory_limit_bytes: host_bytes + store_limit_bytes as u64,
            device: self.device_stats(),
            find: self.clocks.find.latency(),
            find_device: self.clocks.device.latency(),
            find_host: self.clocks.host.latency(),
            find_store: self.clocks.store.latency(),
            write: self.clocks.write.latency(),
            store: store.map(Box::new),
        }
    }
}

pub(crate) fn check_length(
    what: &'static str,
    len: usize,
    keys: &[u64],
    needed: Option<usize>,
) -> Result<()> {
    if needed == Some(len) {
        return Ok(());
    }
    Err(Error::Length {
        what,
        len,
        keys: keys.len(),
        needed: needed.unwrap_or(usize::MAX),
    })
}
