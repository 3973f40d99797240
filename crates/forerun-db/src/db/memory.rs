//! Waiting for the memory of the next memtable set.
//!
//! A write that gets no memory waits for flushes. If only readers hold the memory, the write waits
//! briefly and then fails: the reader may be the writer's own iterator, and then the wait would
//! never end.

use std::time::Duration;

use forerun_core::sync::time;

use super::Inner;
use super::background_work::{FailOn, Task};
use super::memtable_set::{EMPTY_TABLE_BYTES, MemTableSet};
use super::memtables::{HeldFor, Reservation, Size};
use super::notify::{For, WriteStall};
use crate::events::WriteStallReason;
use crate::{Background, Error, Result};

/// How long a write waits for memory that only readers hold.
const READERS_WAIT_MAX: Duration = Duration::from_secs(1);

impl Inner {
    /// Replaces a memtable set that has no room for `needed_bytes` by an empty one, unless another
    /// thread has done so.
    pub(super) fn make_room_for_write(&self, full: u64, needed_bytes: usize) -> Result<()> {
        let size = Size::for_batch(needed_bytes, self.options.memtable_bytes);
        self.memtables.check_size(size)?;
        self.switch_memtables(full, size, FailOn::Repeated, For::Write)?;
        match self.options.background {
            Background::Threads => Ok(()),
            Background::Caller => self.run_all_work().map(drop),
        }
    }

    /// Freezes a memtable set, if it is still active, and puts one of this size in its place.
    pub(super) fn switch_memtables(
        &self,
        full: u64,
        size: Size,
        fail_on: FailOn,
        of: For,
    ) -> Result<()> {
        // A large request must not wait for a moment when all other writers happen to leave memory
        // free.
        let is_large = size.wanted > self.options.memtable_bytes;
        let (mut stall, mut flushes) = (None, false);
        loop {
            if flushes {
                // This thread waits, and others wait for its lock. The listener is called without
                // it.
                stall.get_or_insert_with(|| self.begin_stall(WriteStallReason::Memory));
            }
            if !is_large {
                self.wait_for_reservation(full, size, fail_on, of, &mut stall)?;
            }
            let (mut held, mut locked);
            let active: &mut MemTableSet = if flushes {
                held = self.memtables.hold_active(HeldFor::Memory);
                &mut held
            } else {
                let lock = || self.memtables.write_active();
                let wait = |held_for| self.wait_for_held(of, held_for, &mut stall, lock);
                locked = self.memtables.try_write_active().unwrap_or_else(wait);
                &mut locked
            };
            if active.number != full {
                return Ok(());
            }
            // Only the holder of the lock adds memtable sets, so free memory stays free.
            match self.memtables.reservation(active, size) {
                Reservation::Granted(bytes) => return self.freeze(active, bytes),
                Reservation::AfterActive => {}
                _ if is_large => {}
                Reservation::AfterBackgroundWork | Reservation::AfterReaders => continue,
            }
            if flushes {
                return self.replace_by_flushing(active, size, fail_on);
            }
            flushes = true;
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
            let is_done = self.memtables.is_flushed();
            self.work.done_or_fails(is_done, Task::Flush, fail_on)
        })?;
        if self.memtables.free_bytes(active) < size.wanted && !active.is_empty() {
            self.freeze(active, EMPTY_TABLE_BYTES)?;
            self.wait_until(|| {
                let is_done = self.memtables.is_flushed();
                self.work.done_or_fails(is_done, Task::Flush, fail_on)
            })?;
        }
        let begun = time::now();
        loop {
            let events = self.work.event_count().ok_or(Error::Closed)?;
            let free = self.memtables.free_bytes(active);
            if free >= size.least {
                return self.freeze(active, free.min(size.wanted));
            }
            let Some(left) = READERS_WAIT_MAX.checked_sub(time::elapsed(begun)) else {
                return Err(self.memtables.held_by_readers(size));
            };
            self.work.wait_timeout(events, left);
        }
    }

    /// Waits until there is memory for another memtable set, or this thread can make it free. If
    /// it waits, it begins a stall.
    fn wait_for_reservation<'a>(
        &'a self,
        full: u64,
        size: Size,
        fail_on: FailOn,
        of: For,
        stall: &mut Option<WriteStall<'a>>,
    ) -> Result<()> {
        let begin_stall = || self.begin_stall(WriteStallReason::Memory);
        let read_active = |stall: &mut Option<WriteStall<'a>>| {
            let lock = || self.memtables.read_active();
            let wait = |held_for| self.wait_for_held(of, held_for, stall, lock);
            self.memtables.try_read_active().unwrap_or_else(wait)
        };
        let mut since = None;
        let mut result = self.wait_until(|| {
            let active = read_active(stall);
            if active.number != full {
                return Ok(true);
            }
            let reservation = self.memtables.reservation(&active, size);
            since = since.filter(|_| matches!(reservation, Reservation::AfterReaders));
            match reservation {
                Reservation::Granted(_) | Reservation::AfterActive => Ok(true),
                Reservation::AfterBackgroundWork => {
                    drop(active);
                    self.work.check(Task::Flush, fail_on)?;
                    stall.get_or_insert_with(begin_stall);
                    Ok(false)
                }
                Reservation::AfterReaders => {
                    drop(active);
                    stall.get_or_insert_with(begin_stall);
                    since.get_or_insert_with(time::now);
                    Ok(true)
                }
            }
        });
        while let (Ok(()), Some(since)) = (&result, since) {
            let Some(events) = self.work.event_count() else {
                return Err(Error::Closed);
            };
            let active = read_active(stall);
            let is_stuck = active.number == full
                && matches!(
                    self.memtables.reservation(&active, size),
                    Reservation::AfterReaders
                );
            drop(active);
            if !is_stuck {
                break;
            }
            match READERS_WAIT_MAX.checked_sub(time::elapsed(since)) {
                Some(left) => self.work.wait_timeout(events, left),
                None => result = Err(self.memtables.held_by_readers(size)),
            }
        }
        result
    }
}

#[cfg(all(test, target_os = "linux"))]
#[path = "memory_tests.rs"]
mod tests;
