//! The memory of memtables, which stays below [`Options::memory_limit_bytes`](crate::Options::memory_limit_bytes).
//!
//! ```text
//!   limit   │ held: full, or flushed and still read │ active: in use │ the next one, up to its limit │ reserve │
//!                        │                                             ^
//!                        └── goes with the last who holds a table ─────┘ room
//! ```
//!
//! A memtable that takes no more writes counts as long as anybody holds it: until its run is there, and longer where an
//! iterator reads it. The next one is made when there is room for all it may grow to, so the limit holds whatever is
//! written. A write for which there is no room waits for flushes. What only readers hold is waited for a moment: it may be
//! the writer's own iterator, so then the write fails instead of waiting for itself.

use forerun_core::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Duration;

use forerun_core::sync::{PoisonError, time};

use super::Inner;
use super::memtable_set::{EMPTY_TABLE_BYTES, MemTableSet};
use super::work::{Patience, Task, Work};
use crate::{Background, Error, Result};

/// The most memtable sets there are at a time: each has a memtable that is searched by every lookup.
const MAX_MEMTABLE_SETS: usize = 6;

/// Kept free, so that a memtable set can make way for an empty one that has next to nothing, at any time.
const RESERVE_BYTES: usize = 3 * EMPTY_TABLE_BYTES;

/// Where readers hold so much that there is no room for a memtable of the usual size, one of this part of it will do.
const LEAST_SHARE: usize = 8;

/// How long a write waits for readers alone.
const READERS_PATIENCE: Duration = Duration::from_secs(1);

/// Bytes of memtables that take no more writes and are held by somebody.
#[derive(Debug)]
pub(super) struct HeldMemory {
    bytes: AtomicUsize,
    /// Those who wait for room.
    work: Arc<Work>,
}

/// What a memtable takes of it, until it is dropped.
#[derive(Debug)]
pub(super) struct HeldBytes {
    memory: Arc<HeldMemory>,
    bytes: usize,
}

impl HeldMemory {
    pub(super) fn new(work: Arc<Work>) -> HeldMemory {
        HeldMemory {
            bytes: AtomicUsize::new(0),
            work,
        }
    }

    /// Counts a memtable until what is returned is dropped.
    pub(super) fn hold(self: &Arc<Self>, bytes: usize) -> HeldBytes {
        // Relaxed, here and below: a sum. Who adds to it has the lock that one needs to make a memtable set, and what goes
        // off it meanwhile leaves more room.
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        HeldBytes {
            memory: Arc::clone(self),
            bytes,
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.memory.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        self.memory.work.nudge();
    }
}

/// The size of a memtable set that is to be made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    /// Bytes that it should have.
    wanted: usize,
    /// Bytes that will do.
    least: usize,
}

impl Size {
    /// Of an empty memtable that takes a batch of so many bytes, which another had no room for, and more.
    fn for_batch(needed_bytes: usize, usual_bytes: usize) -> Size {
        let for_batch = table_bytes_for(needed_bytes);
        Size {
            wanted: for_batch.max(usual_bytes),
            least: for_batch.max(usual_bytes / LEAST_SHARE),
        }
    }

    /// Of one that only takes the place of another.
    pub(super) fn any(usual_bytes: usize) -> Size {
        Size {
            wanted: usual_bytes,
            least: EMPTY_TABLE_BYTES,
        }
    }
}

/// Whether there is room for another memtable set.
enum Reservation {
    /// For one of this size.
    Granted(usize),
    /// When something is flushed or compacted that is on its way.
    AfterBackgroundWork,
    /// When the memtable set that takes writes is flushed.
    AfterActive,
    /// When readers let go of memtables.
    AfterReaders,
}

impl Inner {
    /// Puts an empty memtable set in the place of one that has no room for `needed_bytes`, unless somebody did already.
    pub(super) fn make_room_for_write(&self, full: u64, needed_bytes: usize) -> Result<()> {
        let size = Size::for_batch(needed_bytes, self.options.memtable_bytes);
        if size.least
            > self
                .options
                .memory_limit_bytes
                .saturating_sub(RESERVE_BYTES)
        {
            return Err(self.memory_limit_error(needed_bytes, 0));
        }
        self.switch_memtables(full, size, Patience::UntilRepeated)?;
        match self.options.background {
            Background::Threads => Ok(()),
            Background::Caller => self.work_off(),
        }
    }

    /// Freezes a memtable set, if it still takes writes, and puts one of this size before it.
    pub(super) fn switch_memtables(&self, full: u64, size: Size, patience: Patience) -> Result<()> {
        // A large one is not to wait for a moment when all other writers happen to leave room.
        let is_large = size.wanted > self.options.memtable_bytes;
        loop {
            if !is_large {
                self.wait_for_reservation(full, size, patience)?;
            }
            let mut active = self.active.write().unwrap_or_else(PoisonError::into_inner);
            if active.number != full {
                return Ok(());
            }
            // Under the lock only one thread adds memtable sets, so room that there is stays.
            match self.reservation(&active, size) {
                Reservation::Granted(bytes) => return self.freeze(&mut active, bytes),
                Reservation::AfterActive => {
                    return self.replace_by_flushing(&mut active, size, patience);
                }
                _ if is_large => return self.replace_by_flushing(&mut active, size, patience),
                Reservation::AfterBackgroundWork | Reservation::AfterReaders => {}
            }
        }
    }

    /// [`switch_memtables`](Self::switch_memtables) where what takes writes must be in runs before there is room:
    /// meanwhile, with `active` held for writing, no more is written.
    fn replace_by_flushing(
        &self,
        active: &mut MemTableSet,
        size: Size,
        patience: Patience,
    ) -> Result<()> {
        self.wait_until(|| {
            let is_flushed = self.frozen().is_empty();
            self.or_fails(is_flushed, Task::Flush, patience)?;
            let is_done = is_flushed && !self.is_level0_full();
            self.or_fails(is_done, Task::Compact, patience)
        })?;
        if self.free_bytes(active) < size.wanted && !active.is_empty() {
            self.freeze(active, EMPTY_TABLE_BYTES)?;
            self.wait_until(|| {
                let is_done = self.frozen().is_empty();
                self.or_fails(is_done, Task::Flush, patience)
            })?;
        }
        let begun = time::now();
        loop {
            let turn = self.work.turn().ok_or(Error::Closed)?;
            let free = self.free_bytes(active);
            if free >= size.least {
                return self.freeze(active, free.min(size.wanted));
            }
            let Some(left) = READERS_PATIENCE.checked_sub(time::elapsed(begun)) else {
                return Err(self.memory_limit_error(size.least, self.held.bytes()));
            };
            self.work.wait_at_most(turn, left);
        }
    }

    /// Bytes of a memtable set that is put before one that was flushed, or will be at once.
    pub(super) fn bytes_beside(&self, active: &MemTableSet) -> usize {
        let usual_bytes = self.options.memtable_bytes;
        self.free_bytes(active)
            .min(usual_bytes)
            .max(EMPTY_TABLE_BYTES)
    }

    /// Bytes that are free for the next memtable set, if the one that takes writes is frozen.
    fn free_bytes(&self, active: &MemTableSet) -> usize {
        let taken = self.held.bytes() + active.used_bytes() + RESERVE_BYTES;
        self.options.memory_limit_bytes.saturating_sub(taken)
    }

    fn reservation(&self, active: &MemTableSet, size: Size) -> Reservation {
        let free = self.free_bytes(active);
        let frozen = self.frozen().len();
        let has_place = frozen + 1 < MAX_MEMTABLE_SETS && !self.is_level0_full();
        if has_place && free >= size.wanted {
            return Reservation::Granted(size.wanted);
        }
        // What is being flushed is among the frozen until its memory is free, and then the turn moves on. That somebody has
        // the lock for flushing says nothing: a checkpoint has it, too, and who gives it back wakes nobody.
        if !has_place || frozen > 0 {
            return Reservation::AfterBackgroundWork;
        }
        let free_then = free.saturating_add(active.used_bytes());
        if size.least <= EMPTY_TABLE_BYTES {
            // For which the reserve is.
            Reservation::Granted(free.max(EMPTY_TABLE_BYTES))
        } else if free >= size.least {
            Reservation::Granted(free)
        } else if !active.is_empty() && free_then >= size.least {
            Reservation::AfterActive
        } else {
            Reservation::AfterReaders
        }
    }

    fn wait_for_reservation(&self, full: u64, size: Size, patience: Patience) -> Result<()> {
        let begun = time::now();
        let mut looks = 0;
        let mut since = None;
        let mut result = self.wait_until(|| {
            looks += 1;
            let active = self.active.read().unwrap_or_else(PoisonError::into_inner);
            if active.number != full {
                return Ok(true);
            }
            let reservation = self.reservation(&active, size);
            since = since.filter(|_| matches!(reservation, Reservation::AfterReaders));
            match reservation {
                Reservation::Granted(_) | Reservation::AfterActive => Ok(true),
                Reservation::AfterBackgroundWork => {
                    self.work.check(Task::Flush, patience)?;
                    self.work.check(Task::Compact, patience)?;
                    Ok(false)
                }
                Reservation::AfterReaders => {
                    since.get_or_insert_with(time::now);
                    Ok(true)
                }
            }
        });
        while let (Ok(()), Some(since)) = (&result, since) {
            let Some(turn) = self.work.turn() else {
                return Err(Error::Closed);
            };
            let active = self.active.read().unwrap_or_else(PoisonError::into_inner);
            let is_stuck = active.number == full
                && matches!(self.reservation(&active, size), Reservation::AfterReaders);
            drop(active);
            if !is_stuck {
                break;
            }
            match READERS_PATIENCE.checked_sub(time::elapsed(since)) {
                Some(left) => self.work.wait_at_most(turn, left),
                None => result = Err(self.memory_limit_error(size.least, self.held.bytes())),
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

/// Bytes of an empty memtable that takes a batch which another had no room for. The towers of its entries are drawn
/// anew and may be higher, hence the eighth.
pub(super) fn table_bytes_for(needed_bytes: usize) -> usize {
    const HEAD_BYTES: usize = 1 << 10;
    needed_bytes
        .saturating_add(needed_bytes / 8)
        .saturating_add(HEAD_BYTES)
}
