//! The memory of memtables, which stays below
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
//! the limit holds whatever is written. A write that gets no memory waits for flushes. If only
//! readers hold the memory, the write waits briefly and then fails: the reader may be the writer's
//! own iterator, and then the wait would never end.

use std::sync::Arc;
use std::time::Duration;

use forerun_core::sync::time;

use super::Inner;
use super::background_work::{FailOn, Task};
use super::keyspace_data::KeyspaceData;
use super::memtable_set::{EMPTY_INDEXED_TABLE_BYTES, EMPTY_TABLE_BYTES, MemTableSet};
use crate::limits::MEMTABLE_INDEX_BYTES_MIN;
use crate::{Background, Error, Result};

/// The maximum number of memtable sets at a time: every lookup searches a memtable in each.
const MEMTABLE_SETS_MAX: usize = 6;

/// A set for entries of fewer bytes is too small for indexes, unless it has the usual size, which
/// then leaves enough for the indexes of two memtables.
const WITHOUT_INDEX_MAX: usize = MEMTABLE_INDEX_BYTES_MIN - 3 * EMPTY_TABLE_BYTES;

/// Kept free, so that a nearly empty memtable set can replace any other at any time.
const RESERVE_BYTES: usize = 3 * EMPTY_TABLE_BYTES;

/// If readers hold too much memory for a memtable set of the usual size, one that is smaller by up
/// to this factor is acceptable.
const SIZE_SHARE_MIN: usize = 8;

/// Range deletions that are in runs count up to this share of the memory limit.
const FLUSHED_RANGES_SHARE: usize = 4;

/// How long a write waits for memory that only readers hold.
const READERS_WAIT_MAX: Duration = Duration::from_secs(1);

/// The size of a memtable set to be made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    /// The preferred size in bytes.
    wanted: usize,
    /// The smallest acceptable size in bytes.
    least: usize,
}

impl Size {
    /// For an empty memtable with room for a batch that did not fit into the last one.
    fn for_batch(needed_bytes: usize, usual_bytes: usize) -> Size {
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
enum Reservation {
    /// Memory is available, for a set of this size.
    Granted(usize),
    /// Memory will be available after a flush that is already due.
    AfterBackgroundWork,
    /// Memory will be available after the active memtable set is flushed.
    AfterActive,
    /// Memory will be available after readers drop memtables.
    AfterReaders,
}

impl Inner {
    /// Replaces a memtable set that has no room for `needed_bytes` by an empty one, unless another
    /// thread has done so.
    pub(super) fn make_room_for_write(&self, full: u64, needed_bytes: usize) -> Result<()> {
        let size = Size::for_batch(needed_bytes, self.options.memtable_bytes);
        if size.least
            > self
                .options
                .memory_limit_bytes
                .saturating_sub(RESERVE_BYTES)
        {
            return Err(self.memory_limit_error(size.least, 0));
        }
        self.switch_memtables(full, size, FailOn::Repeated)?;
        match self.options.background {
            Background::Threads => Ok(()),
            Background::Caller => self.run_all_work(),
        }
    }

    /// Freezes a memtable set, if it is still active, and puts one of this size in its place.
    pub(super) fn switch_memtables(&self, full: u64, size: Size, fail_on: FailOn) -> Result<()> {
        // A large request must not wait for a moment when all other writers happen to leave memory
        // free.
        let is_large = size.wanted > self.options.memtable_bytes;
        loop {
            if !is_large {
                self.wait_for_reservation(full, size, fail_on)?;
            }
            let mut active = self.memtables.write_active();
            if active.number != full {
                return Ok(());
            }
            // Only the holder of the lock adds memtable sets, so free memory stays free.
            match self.reservation(&active, size) {
                Reservation::Granted(bytes) => return self.freeze(&mut active, bytes),
                Reservation::AfterActive => {
                    return self.replace_by_flushing(&mut active, size, fail_on);
                }
                _ if is_large => return self.replace_by_flushing(&mut active, size, fail_on),
                Reservation::AfterBackgroundWork | Reservation::AfterReaders => {}
            }
        }
    }

    /// [`switch_memtables`](Self::switch_memtables) for the case that the active memtables must be
    /// flushed before there is memory. `active` is held for writing, so no write runs during the
    /// flush.
    fn replace_by_flushing(
        &self,
        active: &mut MemTableSet,
        size: Size,
        fail_on: FailOn,
    ) -> Result<()> {
        self.wait_until(|| {
            let is_done = self.memtables.frozen().is_empty();
            self.or_fails(is_done, Task::Flush, fail_on)
        })?;
        if self.free_bytes(active) < size.wanted && !active.is_empty() {
            self.freeze(active, EMPTY_TABLE_BYTES)?;
            self.wait_until(|| {
                let is_done = self.memtables.frozen().is_empty();
                self.or_fails(is_done, Task::Flush, fail_on)
            })?;
        }
        let begun = time::now();
        loop {
            let events = self.work.event_count().ok_or(Error::Closed)?;
            let free = self.free_bytes(active);
            if free >= size.least {
                return self.freeze(active, free.min(size.wanted));
            }
            let Some(left) = READERS_WAIT_MAX.checked_sub(time::elapsed(begun)) else {
                return Err(self.memory_limit_error(size.least, self.memtables.held.bytes()));
            };
            self.work.wait_timeout(events, left);
        }
    }

    /// The size of a memtable set that replaces one which is flushed, or will be at once.
    pub(super) fn bytes_if_flushed(&self, active: &MemTableSet) -> usize {
        let usual_bytes = self.options.memtable_bytes;
        self.free_bytes(active)
            .min(usual_bytes)
            .max(EMPTY_TABLE_BYTES)
    }

    /// The memory free for the next memtable set if the active one is frozen. Memory in the pool
    /// of regions is free: the next set takes it, or it is freed.
    pub(super) fn free_bytes(&self, active: &MemTableSet) -> usize {
        self.bytes_beside_held().saturating_sub(active.used_bytes())
    }

    /// The memory that is left for the active memtable set and the pool of regions.
    pub(super) fn bytes_beside_held(&self) -> usize {
        let taken = self.memtables.held.bytes() + RESERVE_BYTES + self.flushed_ranges_bytes();
        self.options.memory_limit_bytes.saturating_sub(taken)
    }

    /// The memory of range deletions that are in runs, as far as it counts towards the limit.
    /// Beyond that, writes must go on: while a snapshot needs what they cover, nothing can free
    /// them.
    fn flushed_ranges_bytes(&self) -> usize {
        let keyspaces = self.keyspaces.load();
        let of = |keyspace: &Arc<KeyspaceData>| keyspace.version.load().ranges.used_bytes();
        let bytes: usize = keyspaces.iter().map(of).sum();
        bytes.min(self.flushed_ranges_limit_bytes())
    }

    /// What range deletions in runs may take of the memory limit. At half of it, compactions get
    /// rid of them.
    pub(super) fn flushed_ranges_limit_bytes(&self) -> usize {
        self.options.memory_limit_bytes / FLUSHED_RANGES_SHARE
    }

    fn reservation(&self, active: &MemTableSet, size: Size) -> Reservation {
        let free = self.free_bytes(active);
        let frozen = self.memtables.frozen().len();
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

    fn wait_for_reservation(&self, full: u64, size: Size, fail_on: FailOn) -> Result<()> {
        let begun = time::now();
        let mut looks = 0;
        let mut since = None;
        let mut result = self.wait_until(|| {
            looks += 1;
            let active = self.memtables.read_active();
            if active.number != full {
                return Ok(true);
            }
            let reservation = self.reservation(&active, size);
            since = since.filter(|_| matches!(reservation, Reservation::AfterReaders));
            match reservation {
                Reservation::Granted(_) | Reservation::AfterActive => Ok(true),
                Reservation::AfterBackgroundWork => {
                    self.work.check(Task::Flush, fail_on)?;
                    Ok(false)
                }
                Reservation::AfterReaders => {
                    since.get_or_insert_with(time::now);
                    Ok(true)
                }
            }
        });
        while let (Ok(()), Some(since)) = (&result, since) {
            let Some(events) = self.work.event_count() else {
                return Err(Error::Closed);
            };
            let active = self.memtables.read_active();
            let is_stuck = active.number == full
                && matches!(self.reservation(&active, size), Reservation::AfterReaders);
            drop(active);
            if !is_stuck {
                break;
            }
            match READERS_WAIT_MAX.checked_sub(time::elapsed(since)) {
                Some(left) => self.work.wait_timeout(events, left),
                None => {
                    result = Err(self.memory_limit_error(size.least, self.memtables.held.bytes()))
                }
            }
        }
        if looks > 1 || since.is_some() {
            self.counters.count_stall(time::elapsed(begun));
        }
        result
    }

    fn memory_limit_error(&self, needed_bytes: usize, used_bytes: usize) -> Error {
        Error::MemoryLimit {
            needed_bytes,
            used_bytes,
            limit_bytes: self.options.memory_limit_bytes,
        }
    }
}

/// The size of an empty memtable for a batch that did not fit into the last one. The heights of its
/// towers are drawn again and may be greater, so there is an extra eighth.
pub(super) fn table_bytes_for(needed_bytes: usize) -> usize {
    let entries_bytes = needed_bytes.saturating_add(needed_bytes / 8);
    // The store's own keyspace has a memtable in each set too.
    entries_bytes.saturating_add(match entries_bytes {
        ..WITHOUT_INDEX_MAX => EMPTY_TABLE_BYTES,
        _ => 2 * EMPTY_INDEXED_TABLE_BYTES,
    })
}

#[cfg(all(test, target_os = "linux"))]
#[path = "memory_tests.rs"]
mod tests;
