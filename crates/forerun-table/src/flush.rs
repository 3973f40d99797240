//! Durability: flush, snapshot, checkpoint, close.
//!
//! ```text
//!   twice    all slots in order: dirty rows in groups, under the locks of their keys ──> store
//!   once     the same under all locks: the few rows that became dirty since; a snapshot is taken here
//! ```
//!
//! A row that is rewritten during a pass moves to another slot, possibly one that the pass has
//! already visited. So only a pass that keeps all writers out is sure to see every row that was
//! dirty when the flush began. The earlier passes leave it little to do.

use crate::disk_tier::Store;
use crate::host::Victim;
use crate::inner::Inner;
use crate::interrupt::Interrupt;
use crate::key_locks::KeyGuard;
use crate::{Error, Result};
use forerun_db::{Backup, Backups, FileCopyOptions};
use std::path::Path;

/// Rows in one write to the store.
const GROUP: usize = 256;

/// Passes during which writers continue.
const OPEN_PASSES: usize = 2;

impl Inner {
    /// Writes all dirty rows to the store and makes them durable.
    pub(crate) fn flush(&self) -> Result<()> {
        self.check_open()?;
        let Some(store) = self.store_to_flush() else {
            return Ok(());
        };
        drop(self.clean(&self.interrupt)?);
        Ok(store.db().flush_wal()?)
    }

    /// [`flush`](Inner::flush) for a closed table: when it returns, the store has every write that
    /// has returned, or will return, without an error.
    pub(crate) fn flush_closed(&self) -> Result<()> {
        let Some(store) = self.store_to_flush() else {
            return Ok(());
        };
        drop(self.clean(&Interrupt::default())?);
        Ok(store.db().flush_wal()?)
    }

    /// The store, if it takes writes.
    fn store_to_flush(&self) -> Option<&Store> {
        self.store.as_ref().filter(|store| !store.is_read_only())
    }

    /// A snapshot of the store, taken while it has all rows.
    pub(crate) fn snapshot(&self) -> Result<(&Store, forerun_db::Snapshot)> {
        self.check_open()?;
        let store = self
            .store
            .as_ref()
            .ok_or(Error::NoStore { op: "snapshot" })?;
        let guard = self.clean(&self.interrupt)?;
        let snapshot = store.db().snapshot();
        drop(guard);
        Ok((store, snapshot))
    }

    /// The number of rows in all tiers.
    pub(crate) fn count(&self) -> Result<u64> {
        self.check_open()?;
        let Some(store) = &self.store else {
            self.interrupt.check()?;
            return Ok(self.host.linked() as u64);
        };
        let guard = self.clean(&self.interrupt)?;
        let snapshot = store.db().snapshot();
        let last = store.row_count().begin(&snapshot);
        // No lock is held while rows are counted, because the caller's function may use the table.
        drop(guard);
        let row_count = store.row_count();
        row_count.count(&snapshot, last, &self.interrupt)
    }

    pub(crate) fn checkpoint(&self, into: &Path, options: &FileCopyOptions) -> Result<()> {
        self.check_open()?;
        let no_store = Error::NoStore { op: "checkpoint" };
        let store = self.store.as_ref().ok_or(no_store)?;
        drop(self.clean(&self.interrupt)?);
        Ok(store.db().checkpoint_with(into, options)?)
    }

    pub(crate) fn backup(&self, backups: &mut Backups) -> Result<Backup> {
        self.check_open()?;
        let no_store = Error::NoStore { op: "backup" };
        let store = self.store.as_ref().ok_or(no_store)?;
        drop(self.clean(&self.interrupt)?);
        Ok(backups.create(store.db())?)
    }

    /// Writes all dirty rows to the store. No other thread can write until the guard is dropped.
    fn clean(&self, interrupt: &Interrupt) -> Result<KeyGuard<'_>> {
        for _ in 0..OPEN_PASSES {
            self.pass(|group| {
                // No lock is held here, nor at any other check: the caller's function may use the
                // table.
                interrupt.check()?;
                let guard = self.key_locks.lock(group.iter().map(|victim| victim.key));
                let mut dirty = group.to_vec();
                dirty.retain(|v| {
                    self.host.slot(v.key) == Some(v.slot) && self.host.is_dirty(v.slot)
                });
                let written = self.write_back(&dirty);
                drop(guard);
                written
            })?;
        }
        let guard = self.key_locks.lock_all();
        self.pass(|group| self.write_back(group))?;
        Ok(guard)
    }

    fn pass(&self, mut write: impl FnMut(&[Victim]) -> Result<()>) -> Result<()> {
        let max = GROUP.min(self.host.chunk());
        let mut group = Vec::with_capacity(max);
        for dirty in self.host.dirty_slots() {
            group.push(dirty);
            if group.len() == max {
                write(&group)?;
                group.clear();
            }
        }
        write(&group)
    }
}
