//! From memory to disk: a full memtable makes way for an empty one, and its entries become a run.
//!
//! ```text
//!   writer      memtable full ─> room for another? ─> freeze it, put a new one before it ─> the write goes on
//!                                    │ no: wait
//!   flush       oldest frozen memtable ─> run in level 0 ─> manifest ─> the memtable and old log segments go
//! ```
//!
//! What bounds memory also pushes back: a writer waits while the memtables, with the one it needs, would take more than
//! [`Options::memory_limit_bytes`](crate::Options::memory_limit_bytes), and while level 0 is so full that reads would
//! suffer. Before that, writes are slowed down to what compaction can be expected to keep up with.

use std::sync::Arc;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::Inner;
use super::open::new_table;
use super::state::{State, Table};
use crate::{Background, Error, Result};

/// The most memtables there are at a time: each is searched by every lookup.
const MAX_TABLES: usize = 6;

/// While writes are slowed down, so many bytes of them are taken a second.
const SLOW_BYTES_A_SECOND: u64 = 16 << 20;

/// Shorter pauses than this are saved up: a sleep costs a switch of threads.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);

impl Inner {
    /// Puts an empty memtable in the place of one that has no room for `needed_bytes`, unless somebody did already.
    pub(super) fn make_room(&self, full: &Arc<Table>, needed_bytes: usize) -> Result<()> {
        let usual_bytes = self.options.memtable_bytes;
        let limit_bytes = match table_bytes_for(needed_bytes) {
            bytes if bytes <= usual_bytes => usual_bytes,
            bytes if bytes <= self.options.memory_limit_bytes => bytes,
            _ => {
                return Err(Error::MemoryLimit {
                    needed_bytes,
                    used_bytes: 0,
                    limit_bytes: self.options.memory_limit_bytes,
                });
            }
        };
        self.replace_table(full, limit_bytes)?;
        match self.options.background {
            Background::Threads => Ok(()),
            Background::Caller => self.work_off(),
        }
    }

    /// Freezes a memtable, if it still takes writes, and puts one of this size before it.
    fn replace_table(&self, full: &Arc<Table>, limit_bytes: usize) -> Result<()> {
        loop {
            self.wait_for_room(full, limit_bytes)?;
            let mut active = self.active.write().unwrap_or_else(PoisonError::into_inner);
            if !Arc::ptr_eq(&active, full) {
                return Ok(());
            }
            // Under the lock only one thread adds memtables, so there is still room.
            if !self.has_room(&self.state.load(), full, limit_bytes) {
                continue;
            }
            return self.freeze(&mut active, limit_bytes);
        }
    }

    /// Puts a memtable of this size before the one that takes writes. `active` is held for writing, and there is room.
    fn freeze(&self, active: &mut Arc<Table>, limit_bytes: usize) -> Result<()> {
        let table = Arc::new(new_table(&self.options, limit_bytes)?);
        // No write is under way, so all that were made are visible, and in this memtable or an older one.
        active.freeze(self.visible.last());
        self.state.rcu(|state| {
            let mut state = State::clone(state);
            state.tables.insert(0, Arc::clone(&table));
            state
        });
        *active = table;
        self.work.nudge();
        Ok(())
    }

    /// Brings everything that was written into runs, while `active` is held for writing, so that no more is: the
    /// memtable that takes writes is empty then, and the only one.
    pub(super) fn flush_under_lock(&self, active: &mut Arc<Table>) -> Result<()> {
        let is_only_one = |state: &State| state.tables.len() == 1;
        self.wait_until(is_only_one)?;
        if active.memtable.stats().entries > 0 {
            self.freeze(active, self.options.memtable_bytes)?;
            self.wait_until(is_only_one)?;
        }
        Ok(())
    }

    /// Whether a memtable of this size may be added behind one that is about to be frozen.
    fn has_room(&self, state: &State, full: &Arc<Table>, limit_bytes: usize) -> bool {
        // One that holds nothing goes away as soon as the flush looks at it; still its memory counts until then.
        let taken: usize = state
            .tables
            .iter()
            .map(|table| table.memtable.stats().limit_bytes)
            .sum();
        let is_first_choice = state.tables.len() == 1 && Arc::ptr_eq(&state.tables[0], full);
        let fits = taken.saturating_add(limit_bytes) <= self.options.memory_limit_bytes;
        // A batch that needs nearly all of the memory is let in when only the memtable before it is left.
        (fits || is_first_choice)
            && state.tables.len() < MAX_TABLES
            && state.levels.level(0).runs().len() < self.options.tree.level0_stop_runs
    }

    fn wait_for_room(&self, full: &Arc<Table>, limit_bytes: usize) -> Result<()> {
        let begun = Instant::now();
        let mut looks = 0;
        let result = self.wait_until(|state| {
            looks += 1;
            !Arc::ptr_eq(state.newest(), full) || self.has_room(state, full, limit_bytes)
        });
        if looks > 1 {
            self.counters.count_stall(begun.elapsed());
        }
        result
    }

    /// Waits for flushes and compactions, or does them, until the state is as `is_done` wants it. If one fails
    /// meanwhile, so does this: nobody can say whether the next attempt will do better.
    pub(super) fn wait_until(&self, mut is_done: impl FnMut(&State) -> bool) -> Result<()> {
        let mut asked = None;
        loop {
            let turn = self.work.turn().ok_or(Error::Closed)?;
            if is_done(&self.state.load()) {
                return Ok(());
            }
            match self.options.background {
                Background::Caller => self.work_off()?,
                Background::Threads => {
                    let asked = *asked.get_or_insert_with(|| self.work.ask());
                    if let Some(failure) = self.work.failure_since(asked) {
                        return Err(failure);
                    }
                    self.work.wait(turn, None);
                }
            }
        }
    }

    /// Delays a write of so many bytes while level 0 is long.
    pub(super) fn slow_down(&self, bytes: usize) {
        // Relaxed, all three: a hint, and a sum that somebody takes whole.
        if !self.is_slow.load(Ordering::Relaxed) {
            return;
        }
        let owed = self
            .slow_debt_bytes
            .fetch_add(bytes as u64, Ordering::Relaxed)
            + bytes as u64;
        if pause_for(owed) >= SHORTEST_PAUSE {
            let pause = pause_for(self.slow_debt_bytes.swap(0, Ordering::Relaxed));
            self.counters.count_slowed(pause);
            std::thread::sleep(pause);
        }
    }

    /// Sees whether writes are to be slowed down, after the runs changed.
    pub(super) fn note_pressure(&self) {
        let level0 = self.state.load().levels.level(0).runs().len();
        let is_slow = level0 >= self.options.tree.level0_slow_runs;
        self.is_slow.store(is_slow, Ordering::Relaxed);
    }

    /// Flushes the oldest memtable that is full. `false`: there is none.
    pub(super) fn flush_one(&self) -> Result<bool> {
        let _one_at_a_time = self.flushing.lock().unwrap_or_else(PoisonError::into_inner);
        let state = self.state.load_full();
        let tables = state.tables.split_last();
        let Some((oldest, _)) = tables.filter(|(_, newer)| !newer.is_empty()) else {
            return Ok(false);
        };
        let runs = self.write_table(oldest)?;
        self.install_flush(runs, oldest)?;
        Ok(true)
    }

    /// Freezes the memtable that takes writes, if there is anything in it, and waits until all that was written
    /// before is in runs.
    pub(super) fn flush_all(&self) -> Result<()> {
        let active = Arc::clone(&self.active.read().unwrap_or_else(PoisonError::into_inner));
        if active.memtable.stats().entries > 0 {
            self.replace_table(&active, self.options.memtable_bytes)?;
        }
        self.wait_until(|state| {
            let mut full = state.tables.iter().skip(1);
            !full.any(|table| Arc::ptr_eq(table, &active))
        })
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

fn pause_for(bytes: u64) -> Duration {
    Duration::from_micros(bytes * 1_000_000 / SLOW_BYTES_A_SECOND)
}
