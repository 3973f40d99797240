//! Promotion to the host tier, and demotion from it.
//!
//! ```text
//!   promote  found in the store ──admission──┐
//!            prefetched ─────────────────────┼──> PromotionBatch ──> reserve ──> lock ──> unchanged and absent? link
//!   demote   evicted from the device ────────┘
//!   demote   clock ──> victims ──> lock ──> still there? ──> write dirty ones to the store ──> unlink
//! ```
//!
//! Slots are reserved before locks are taken, so no lock holder waits for another lock holder. A
//! row is in the store before it leaves the index, so a lookup always finds it, in the host tier or
//! below.

use crate::disk_tier::Store;
use crate::find_scratch::Scratch;
use crate::host::{Reservation, RowMeta, Victim};
use crate::inner::Inner;
use crate::key_locks::Version;
use crate::options::{Admission, WhenHostFull};
use crate::promotion_batch::{Origin, PromotedRow, PromotionBatch};
use crate::{Error, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use forerun_core::sync::{thread, time};

/// Rows evicted together. Writers of their keys wait while they are written back.
const EVICT_BATCH: usize = 256;

/// How long a write waits for slots that readers still use.
const STALL: Duration = Duration::from_secs(10);

/// How long no slot has come free.
#[derive(Default)]
struct Waiting {
    /// When it was last checked, and the number of rows linked by then.
    checked: Option<(Instant, u64)>,
    total: Duration,
}

impl Waiting {
    /// Leaves out the time since the last check.
    fn pause(&mut self) {
        if let Some((checked_at, _)) = &mut self.checked {
            *checked_at = time::now();
        }
    }

    /// Checks, and returns how long it has waited: adds the time since the last check, but starts
    /// at zero again if rows were linked since then. Slots came free, and other writers took them.
    fn check(&mut self, links: u64) -> Duration {
        let now = time::now();
        self.total = match self.checked {
            Some((checked_at, links_then)) if links_then == links => {
                self.total + (now - checked_at)
            }
            _ => Duration::ZERO,
        };
        self.checked = Some((now, links));
        self.total
    }
}

impl Inner {
    /// Promotes rows that are admitted and did not change.
    pub(crate) fn promote_to_host(&self, promotions: PromotionBatch) {
        let (wanted, row_bytes) = (promotions.len(), self.row.bytes());
        let by_score = self.policies.admission == Admission::ByScore
            && !self.policies.evict_strategy.admits_all();
        let rows = if by_score && promotions.origin() != Origin::Prefetched {
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
        if promotions.origin().is_from_store() {
            self.counters.promoted_rows.add(promoted);
            self.counters.unpromoted_rows.add(wanted - promoted);
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
            // Under the lock, an equal version means that the store still has this row. It must not
            // replace a row that has since been written to the host tier.
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

    /// The positions of the rows to promote by score: the highest first, as many as there are free
    /// slots, and those that outrank a victim, which is evicted.
    fn outrank(&self, promotions: &PromotionBatch) -> Vec<usize> {
        let strategy = self.policies.evict_strategy;
        let rank = |entry: &PromotedRow| strategy.candidate_rank(entry.uses, entry.score);
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

    /// Reserves slots for at most [`chunk`](crate::host::Host::chunk) rows, and evicts other rows
    /// if necessary. The caller must hold no lock.
    ///
    /// # Errors
    /// The errors of demotion; [`Error::Stalled`].
    pub(crate) fn reserve(&self, rows: usize) -> Result<Reservation> {
        self.reserve_within(rows, STALL)
    }

    /// [`reserve`](Inner::reserve), with an error if no slot has come free for this long.
    fn reserve_within(&self, rows: usize, stall: Duration) -> Result<Reservation> {
        let mut waiting = Waiting::default();
        let mut attempts = 0;
        loop {
            if let Some(reservation) = self.host.reserve(rows) {
                return Ok(reservation);
            }
            if self.host.linked() > self.host.capacity() {
                // This may take as long as a slow disk does, but it is progress, not a stall.
                self.evict(rows)?;
                waiting.pause();
            }
            self.host.reclaim();
            // Retired slots come free when their readers are done, which takes microseconds if the
            // readers run.
            if attempts < 64 {
                attempts += 1;
                thread::yield_now();
            } else {
                thread::sleep(Duration::from_micros(50));
            }
            let waited = waiting.check(self.host.links());
            if waited > stall {
                return Err(Error::Stalled { waited });
            }
        }
    }

    /// Evicts rows beyond the capacity.
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

    /// Evicts some rows and returns their number, which is lower if other threads evicted them.
    fn evict(&self, wanted: usize) -> Result<usize> {
        let victims = self.host.choose(wanted.min(self.evict_batch()));
        self.evict_these(&victims)
    }

    fn evict_batch(&self) -> usize {
        EVICT_BATCH.min(self.host.chunk())
    }

    fn evict_these(&self, victims: &[Victim]) -> Result<usize> {
        let _held = self.key_locks.lock(victims.iter().map(|victim| victim.key));
        let mut leaving: Vec<Victim> = victims.to_vec();
        leaving.retain(|victim| self.host.slot(victim.key) == Some(victim.slot));
        if self.store.is_none() && matches!(self.policies.when_full, WhenHostFull::Refuse) {
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
            if let WhenHostFull::Callback(callback) = &self.policies.when_full {
                let mut rows = Vec::with_capacity(keys.len() * self.row.bytes());
                for &key in &keys {
                    self.host.read(key, |_, row| rows.extend_from_slice(row));
                }
                // The background thread must survive a panic, and locks are held here.
                catch_unwind(AssertUnwindSafe(|| callback(&keys, &rows))).map_err(|payload| {
                    Error::CallbackPanicked {
                        message: forerun_core::panic_message(&*payload),
                    }
                })?;
            }
            // A row that leaves the last tier leaves the device too.
            self.invalidate(&keys);
        }
        let mut reservation = self.host.reserve_none()?;
        for victim in &leaving {
            self.host.unlink(victim.key, &mut reservation);
        }
        self.counters.demoted_rows.add(leaving.len());
        Ok(leaving.len())
    }

    /// Writes dirty rows to the store. The caller holds their keys' locks and checked under them
    /// that the rows are dirty.
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

    /// Counts and logs a failed move that no caller can report. The rows stay where they are.
    pub(crate) fn move_failed(&self, error: &Error) {
        self.counters.failed_moves.add(1);
        tracing::warn!(%error, "cannot move rows between the tiers");
    }

    /// Promotes rows as far up as there are tiers: from the store to the host tier, and from there
    /// to the device.
    pub(crate) fn prefetch_now(&self, keys: &[u64]) {
        for keys in keys.chunks(self.evict_batch()) {
            if let Some(store) = &self.store {
                self.promote_prefetched(store, keys);
            }
            self.promote_to_device(keys, Origin::Prefetched);
        }
    }

    /// Promotes rows from the store that are in no tier above.
    fn promote_prefetched(&self, store: &Store, keys: &[u64]) {
        let mut scratch = Scratch::take();
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
        let keys_bytes: Vec<_> = open.iter().map(|key| key.to_be_bytes()).collect();
        if let Err(error) = store.find(&keys_bytes, &mut scratch.values) {
            return self.move_failed(&error);
        }
        let mut promotions = PromotionBatch::of(Origin::Prefetched);
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
    use crate::{Background, Dtype, Table};
    use std::sync::Arc;

    #[test]
    fn a_long_eviction_is_no_stall() {
        const STALL: Duration = Duration::from_millis(50);
        let slow = WhenHostFull::Callback(Arc::new(|_, _| std::thread::sleep(3 * STALL)));
        let table = Table::builder(Dtype::U8, 4)
            .host_capacity(1)
            .background(Background::Caller)
            .when_full(slow)
            .open()
            .unwrap();
        let inner = table.inner().unwrap();
        // All slots except those of one row are being filled. The next promotion waits for the row
        // that must be evicted.
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
    fn a_reservation_fails_once_no_slot_has_come_free_for_the_stall_time() {
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
    fn a_wait_restarts_when_other_threads_progress() {
        let mut waiting = Waiting::default();
        assert_eq!(waiting.check(1), Duration::ZERO);
        std::thread::sleep(Duration::from_millis(2));
        assert!(waiting.check(1) >= Duration::from_millis(2));
        assert_eq!(waiting.check(2), Duration::ZERO);
        std::thread::sleep(Duration::from_millis(20));
        let paused = Instant::now();
        waiting.pause();
        let waited = waiting.check(2);
        assert!(waited <= paused.elapsed(), "{waited:?}");
    }

    #[test]
    fn a_lookup_queues_promotions_in_pieces() {
        let directory = tempfile::tempdir().unwrap();
        let table = Table::builder(Dtype::U8, 1 << 16)
            .host_capacity(1000)
            .path(directory.path().join("rows"))
            .admission(Admission::Always)
            .background(Background::Caller)
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
