//! Rows that come into the host tier and leave it.
//!
//! ```text
//!   up     found in the store ──admission──┐
//!          asked for by name ──────────────┼──> PromotionBatch ──> room ──> lock ──> unchanged, and not there? link
//!   down   left the device ────────────────┘
//!   down   hand ──> victims ──> lock ──> still there? ──> the store has them, or is given them ──> unlink
//! ```
//!
//! Room is made before locks are taken, so nobody who holds a lock waits for one who needs it. A row is in the store before
//! it leaves the index, hence always found: first above, or then below.

use crate::host::{Reservation, RowMeta, Victim};
use crate::inner::Inner;
use crate::key_locks::Version;
use crate::options::{Admission, Overflow, Score};
use crate::store::Store;
use crate::{Error, Result};
use std::time::{Duration, Instant};

use forerun_core::sync::{thread, time};

/// Rows that leave together: as long as they are written back, the writers of their keys wait.
const EVICT_BATCH: usize = 256;

/// How long a write waits for slots that are still read.
const STALL: Duration = Duration::from_secs(10);

/// Why rows are to come into a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A lookup found them below.
    Found,
    /// They were asked for by name: no score keeps them out.
    Asked,
    /// They made room on the device.
    Device,
}

/// Rows on their way into the host tier. The store has all of them.
#[derive(Debug)]
pub(crate) struct PromotionBatch {
    entries: Vec<PromotedRow>,
    rows: Vec<u8>,
    origin: Origin,
}

#[derive(Clone, Copy, Debug)]
struct PromotedRow {
    key: u64,
    version: Version,
    score: u64,
    uses: u16,
}

impl PromotionBatch {
    pub(crate) fn of(origin: Origin) -> PromotionBatch {
        PromotionBatch {
            entries: Vec::new(),
            rows: Vec::new(),
            origin,
        }
    }

    pub(crate) fn push(&mut self, key: u64, version: Version, row: &[u8], score: u64, before: u16) {
        self.entries.push(PromotedRow {
            key,
            version,
            score,
            uses: before,
        });
        self.rows.extend_from_slice(row);
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn origin(&self) -> Origin {
        self.origin
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

/// How long nothing came free.
#[derive(Default)]
struct Waiting {
    /// Since when, and how many rows had been linked then.
    since: Option<(Instant, u64)>,
    before: Duration,
}

impl Waiting {
    /// Does not count the time since the last question.
    fn pause(&mut self) {
        if let Some((since, _)) = &mut self.since {
            *since = time::now();
        }
    }

    /// Counts the time since the last question, or begins anew if rows were linked meanwhile: slots came free, and others
    /// took them.
    fn waited(&mut self, links: u64) -> Duration {
        let now = time::now();
        self.before = match self.since {
            Some((since, before)) if before == links => self.before + (now - since),
            _ => Duration::ZERO,
        };
        self.since = Some((now, links));
        self.before
    }
}

impl Inner {
    /// Takes rows in, as far as they are wanted and did not change.
    pub(crate) fn promote_to_host(&self, promotions: PromotionBatch) {
        let (asked, row_bytes) = (promotions.len(), self.row.bytes());
        let by_score =
            self.policies.admission == Admission::ByScore && self.policies.score != Score::Lru;
        let rows = if by_score && promotions.origin != Origin::Asked {
            self.outrank(&promotions)
        } else {
            (0..promotions.len()).collect()
        };
        let mut promoted = 0;
        for rows in rows.chunks(self.host.chunk()) {
            match self.reserve(rows.len()) {
                Ok(reservation) => {
                    let row = |at: usize| &promotions.rows[at * row_bytes..][..row_bytes];
                    let entries = rows.iter().map(|&at| (promotions.entries[at], row(at)));
                    promoted += self.promote_into(reservation, entries);
                }
                Err(error) => self.move_failed(&error),
            }
            self.trim();
        }
        if promotions.origin != Origin::Device {
            self.counters.promoted_rows.add(promoted);
            self.counters.unpromoted_rows.add(asked - promoted);
        }
    }

    fn promote_into<'r>(
        &self,
        mut reservation: Reservation,
        rows: impl Iterator<Item = (PromotedRow, &'r [u8])> + Clone,
    ) -> usize {
        let Ok(guard) = self.lock_to_write(rows.clone().map(|(entry, _)| entry.key)) else {
            return 0;
        };
        let mut promoted = 0;
        for (entry, row) in rows {
            // Under the lock: an equal version says that the store still has this row, and it must not replace one that
            // a write has put above since.
            let unchanged = self.key_locks.version(entry.key) == entry.version;
            if unchanged && self.host.slot(entry.key).is_none() {
                let meta = RowMeta {
                    score: entry.score,
                    is_dirty: false,
                    uses: entry.uses,
                };
                match self.host.link(entry.key, row, meta, &mut reservation) {
                    Ok(()) => promoted += 1,
                    Err(error) => self.move_failed(&error),
                }
            }
        }
        drop(guard);
        promoted
    }

    /// The positions of the rows that may come up by their scores: those for which there is room, the highest first, and
    /// those that outrank one that would have to leave for them, which then does.
    fn outrank(&self, promotions: &PromotionBatch) -> Vec<usize> {
        let rank = |entry: &PromotedRow| match self.policies.score {
            Score::Custom => entry.score,
            Score::Lfu | Score::Lru => u64::from(entry.uses),
        };
        let mut order: Vec<usize> = (0..promotions.len()).collect();
        order.sort_by_key(|&at| std::cmp::Reverse(rank(&promotions.entries[at])));
        let free = self.host.capacity().saturating_sub(self.host.linked());
        if order.len() > free {
            let mut victims = self.host.choose(order.len() - free);
            let pairs = order[free..].iter().zip(&victims);
            let won = pairs
                .take_while(|&(&at, victim)| rank(&promotions.entries[at]) > victim.rank)
                .count();
            victims.truncate(won);
            order.truncate(free + won);
            for victims in victims.chunks(self.evict_batch()) {
                if let Err(error) = self.evict_these(victims) {
                    self.move_failed(&error);
                }
            }
        }
        order
    }

    /// Room for some rows, at most [`chunk`](crate::host::Host::chunk). Others leave for it where there is none. No lock
    /// may be held.
    ///
    /// # Errors
    /// Those of moving rows down; [`Error::Stalled`].
    pub(crate) fn reserve(&self, rows: usize) -> Result<Reservation> {
        self.reserve_within(rows, STALL)
    }

    /// [`reserve`](Inner::reserve), with an error when for so long nothing has come free.
    fn reserve_within(&self, rows: usize, stall: Duration) -> Result<Reservation> {
        let mut waiting = Waiting::default();
        for turn in 0u32.. {
            if let Some(reservation) = self.host.reserve(rows) {
                return Ok(reservation);
            }
            if self.host.linked() > self.host.capacity() {
                // It may take as long as a slow disk does, and is no waiting: rows leave by it.
                self.evict(rows)?;
                waiting.pause();
            }
            self.host.reclaim();
            // Slots that readers may still have come back when these have read on: within microseconds, if they run.
            if turn < 64 {
                thread::yield_now();
            } else {
                thread::sleep(Duration::from_micros(50));
            }
            let waited = waiting.waited(self.host.links());
            if waited > stall {
                return Err(Error::Stalled { waited });
            }
        }
        unreachable!("a loop without end")
    }

    /// Evicts what is beyond the capacity.
    pub(crate) fn trim(&self) {
        loop {
            let beyond = self.host.linked().saturating_sub(self.host.capacity());
            if beyond == 0 {
                return;
            }
            match self.evict(beyond) {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) => return self.move_failed(&error),
            }
        }
    }

    /// Moves some rows down and gives their number: fewer if others have moved them.
    fn evict(&self, wanted: usize) -> Result<usize> {
        let victims = self.host.choose(wanted.min(self.evict_batch()));
        self.evict_these(&victims)
    }

    fn evict_batch(&self) -> usize {
        EVICT_BATCH.min(self.host.at_once())
    }

    fn evict_these(&self, victims: &[Victim]) -> Result<usize> {
        let _held = self.key_locks.lock(victims.iter().map(|victim| victim.key));
        let mut leaving: Vec<Victim> = victims.to_vec();
        leaving.retain(|victim| self.host.slot(victim.key) == Some(victim.slot));
        if self.store.is_none() && matches!(self.policies.overflow, Overflow::Refuse) {
            return Ok(0);
        }
        if self.store.is_some() {
            let dirty = leaving.iter().filter(|v| self.host.is_dirty(v.slot));
            let dirty: Vec<Victim> = dirty.copied().collect();
            if let Err(error) = self.write_back(&dirty) {
                leaving.retain(|victim| !self.host.is_dirty(victim.slot));
                if leaving.is_empty() {
                    return Err(error);
                }
                self.move_failed(&error);
            }
        } else {
            self.spare_copied(&mut leaving);
            let keys: Vec<u64> = leaving.iter().map(|victim| victim.key).collect();
            if let Overflow::Callback(callback) = &self.policies.overflow {
                let mut rows = Vec::with_capacity(keys.len() * self.row.bytes());
                for &key in &keys {
                    self.host.read(key, |_, row| rows.extend_from_slice(row));
                }
                callback(&keys, &rows);
            }
            // What leaves the last tier leaves the device too.
            self.invalidate(&keys);
        }
        let mut reservation = self.host.reserve_none()?;
        for victim in &leaving {
            self.host.unlink(victim.key, &mut reservation);
        }
        self.counters.demoted_rows.add(leaving.len());
        Ok(leaving.len())
    }

    /// Writes rows to the store that it does not have. For the holder of their keys' locks, under which they were found to
    /// be dirty.
    pub(crate) fn write_back(&self, dirty: &[Victim]) -> Result<()> {
        let Some(store) = self.store.as_ref().filter(|_| !dirty.is_empty()) else {
            return Ok(());
        };
        let mut rows = store.rows();
        for victim in dirty {
            let add = |slot, row: &[u8]| {
                debug_assert_eq!(slot, victim.slot, "moved under its lock");
                store.add(&mut rows, victim.key, row, self.host.score(slot))
            };
            self.host.read(victim.key, add).unwrap_or(Ok(()))?;
        }
        store.write(&rows)?;
        for victim in dirty {
            self.host.set_clean(victim.slot);
            self.key_locks.bump_version(victim.key);
        }
        self.counters.written_back_rows.add(dirty.len());
        Ok(())
    }

    /// Notes a failure that no caller is told of: rows stayed where they were.
    pub(crate) fn move_failed(&self, error: &Error) {
        self.counters.failed_moves.add(1);
        tracing::warn!(%error, "rows could not be moved between the tiers");
    }

    /// Brings rows up as far as there are tiers: those that are not in the host tier from the store, and all of them to the
    /// device.
    pub(crate) fn prefetch_now(&self, keys: &[u64]) {
        for keys in keys.chunks(self.evict_batch()) {
            if let Some(store) = &self.store {
                self.promote_asked(store, keys);
            }
            self.promote_to_device(keys, Origin::Asked);
        }
    }

    /// Reads rows from the store that are not above, and takes them into the host tier.
    fn promote_asked(&self, store: &Store, keys: &[u64]) {
        let mut scratch = crate::find::Scratch::take();
        let mut found = vec![false; keys.len()];
        self.host.contains(keys, &mut scratch.slots, &mut found);
        if let Some(device) = self.device()
            && let Some(there) = device.contains(keys)
        {
            found
                .iter_mut()
                .zip(there)
                .for_each(|(found, there)| *found |= there);
        }
        let open = keys.iter().zip(found).filter(|(_, found)| !found);
        let open: Vec<u64> = open.map(|(&key, _)| key).collect();
        let versions = open.iter().map(|&key| self.key_locks.version(key));
        let versions: Vec<Version> = versions.collect();
        let asked: Vec<_> = open.iter().map(|key| key.to_be_bytes()).collect();
        if let Err(error) = store.find(&asked, &mut scratch.values) {
            return self.move_failed(&error);
        }
        let mut promotions = PromotionBatch::of(Origin::Asked);
        for (nth, (&key, version)) in open.iter().zip(versions).enumerate() {
            match store.format().row(&scratch.values, nth, key) {
                Ok(Some((row, score))) => promotions.push(key, version, row, score, 1),
                Ok(None) => {}
                Err(error) => self.move_failed(&error),
            }
        }
        scratch.keep();
        self.promote_to_host(promotions);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Dtype, Moves, Table};
    use std::sync::Arc;

    #[test]
    fn a_long_eviction_is_no_stall() {
        const STALL: Duration = Duration::from_millis(50);
        let slow = Overflow::Callback(Arc::new(|_, _| std::thread::sleep(3 * STALL)));
        let table = Table::builder(Dtype::U8, 4)
            .host_capacity(1)
            .moves(Moves::Caller)
            .overflow(slow)
            .open()
            .unwrap();
        let inner = table.inner().unwrap();
        // All slots but those of one row are on their way in: the next one waits for the row that has to leave.
        let keys: Vec<u64> = (0..257).collect();
        let mut reservation = inner.host.reserve(257).unwrap();
        for &key in &keys[..200] {
            let meta = RowMeta::default();
            inner
                .host
                .link(key, b"row.", meta, &mut reservation)
                .unwrap();
        }
        assert!(inner.host.reserve(1).is_none());
        assert!(inner.reserve_within(1, STALL).is_ok());
        drop(reservation);
    }

    #[test]
    fn nothing_that_comes_free_is_a_stall() {
        let table = Table::builder(Dtype::U8, 4)
            .host_capacity(1)
            .open()
            .unwrap();
        let _all = table.inner().unwrap().host.reserve(257).unwrap();
        let stall = Duration::from_millis(20);
        let stalled = table.inner().unwrap().reserve_within(1, stall);
        assert!(matches!(stalled, Err(Error::Stalled { waited }) if waited >= stall));
    }

    #[test]
    fn a_wait_in_which_others_get_on_begins_anew() {
        let mut waiting = Waiting::default();
        assert_eq!(waiting.waited(1), Duration::ZERO);
        std::thread::sleep(Duration::from_millis(2));
        assert!(waiting.waited(1) >= Duration::from_millis(2));
        assert_eq!(waiting.waited(2), Duration::ZERO);
        std::thread::sleep(Duration::from_millis(20));
        waiting.pause();
        assert!(waiting.waited(2) < Duration::from_millis(20));
    }

    #[test]
    fn a_lookup_hands_on_what_is_to_rise_piece_by_piece() {
        let directory = tempfile::tempdir().unwrap();
        let table = Table::builder(Dtype::U8, 1 << 16)
            .host_capacity(1000)
            .path(directory.path().join("rows"))
            .admission(Admission::Always)
            .moves(Moves::Caller)
            .open()
            .unwrap();
        let keys: Vec<u64> = (0..100).collect();
        let (mut rows, mut found) = (vec![7; keys.len() << 16], vec![false; keys.len()]);
        table.import_rows(&keys, &rows).unwrap();
        let mut promotions = PromotionBatch::of(Origin::Found);
        for &key in &keys {
            promotions.push(
                key,
                table.inner().unwrap().key_locks.version(key),
                &rows[..1 << 16],
                0,
                0,
            );
            table.inner().unwrap().queue_promotions(&mut promotions);
            assert!(promotions.len() <= 16, "{} rows gathered", promotions.len());
        }
        assert_eq!(table.find(&keys, &mut rows, &mut found).unwrap(), 100);
        assert_eq!(table.host_len(), 100);
    }
}
