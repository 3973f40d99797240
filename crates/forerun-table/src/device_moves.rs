//! Rows that go to the device and leave it.
//!
//! ```text
//!   up       keys ──> lock ──> the host tier's rows ──> device ──> those that made room, with their versions
//!   down     ──> PromotionBatch ──> the host tier, unless it has them or they changed (host_moves.rs)
//!   writes   lock ──> invalidate: their keys' copies go ──> store, host tier ──> raise versions ──> unlock ──> up again
//! ```
//!
//! The device has copies only (`device.rs`), so nothing here can lose a row, and the steps need not be one: what is on its
//! way down is in the store all the time. A row goes up under the lock of its key, when the host tier's is the newest.

use crate::device::{Exchange, Incoming};
use crate::host::Victim;
use crate::host_moves::{Origin, PromotionBatch};
use crate::inner::Inner;
use crate::options::Score;
use crate::worker::PendingMoves;

/// Rows that go up together: as long as they do, writers of their keys wait.
const PROMOTION_BATCH: usize = 256;

impl Inner {
    /// Copies rows of the host tier to the device, as far as it has places for them.
    pub(crate) fn promote_to_device(&self, keys: &[u64], origin: Origin) {
        let Some(device) = self.device() else {
            return;
        };
        for keys in keys.chunks(PROMOTION_BATCH) {
            self.host.warm(keys);
            let guard = self.key_locks.lock(keys.iter().copied());
            let (mut incoming, mut slots) = (Incoming::default(), Vec::new());
            for &key in keys {
                self.host.read(key, |slot, row| {
                    let score = match self.policies.score {
                        Score::Custom => self.host.score(slot),
                        Score::Lru | Score::Lfu => u64::from(self.host.uses(slot).max(1)),
                    };
                    incoming.push(key, row, score);
                    slots.push(slot);
                });
            }
            let exchange = device
                .exchange(&incoming, origin, |key| self.key_locks.version(key))
                .unwrap_or_default();
            if self.store.is_some() {
                // The device answers for them from now on: here they make room for others.
                let kept = slots.iter().zip(&exchange.kept);
                kept.filter(|(_, kept)| **kept)
                    .for_each(|(&slot, _)| self.host.cool(slot));
            }
            drop(guard);
            self.counters.device_promoted_rows.add(exchange.taken);
            self.counters
                .device_unpromoted_rows
                .add(keys.len() - exchange.taken);
            self.demote_from_device(exchange);
        }
    }

    /// Takes rows that left the device into the host tier.
    fn demote_from_device(&self, exchange: Exchange) {
        let left = &exchange.left;
        self.counters.device_demoted_rows.add(left.len());
        // Without a store it has all of them.
        let (Some(device), true) = (self.device(), self.store.is_some()) else {
            return;
        };
        let mut promotions = PromotionBatch::of(Origin::Device);
        let scores = left.keys.iter().zip(&left.scores).zip(&exchange.versions);
        for (((&key, &score), &version), row) in
            scores.zip(left.rows.chunks_exact(self.row.bytes()))
        {
            promotions.push(key, version, row, score, device.uses(score));
        }
        if !promotions.is_empty() {
            self.promote_to_host(promotions);
        }
    }

    /// Takes the device's copies of these keys away, before what is below is changed, and gives the keys that had one. For
    /// the holder of their locks, which keep others from coming up.
    pub(crate) fn invalidate(&self, keys: &[u64]) -> Vec<u64> {
        let Some(device) = self.device() else {
            return Vec::new();
        };
        let there = device.contains(keys).unwrap_or_default();
        let there = keys.iter().zip(there).filter(|(_, there)| *there);
        let there: Vec<u64> = there.map(|(&key, _)| key).collect();
        if !there.is_empty() {
            device.erase(&there);
        }
        there
    }

    /// Lets rows that were invalidated come up again as they are now. No lock may be held.
    pub(crate) fn promote_again(&self, invalidated: Vec<u64>) {
        self.queue_moves(PendingMoves {
            to_device: invalidated,
            ..PendingMoves::default()
        });
    }

    /// Ends a change of what the tiers below the device have of some keys. For the holder of their locks.
    pub(crate) fn changed(&self, keys: &[u64]) {
        keys.iter()
            .for_each(|&key| self.key_locks.bump_version(key));
    }

    /// Of rows that are to leave a table without a store, those that the device has stay, as long as there are others: they
    /// are in use there, of which nobody tells the host tier.
    pub(crate) fn spare_copied(&self, leaving: &mut Vec<Victim>) {
        let Some(device) = self.device() else {
            return;
        };
        let keys: Vec<u64> = leaving.iter().map(|victim| victim.key).collect();
        let Some(there) = device.contains(&keys) else {
            return;
        };
        if there.iter().all(|&there| there) {
            return;
        }
        let mut there = there.into_iter();
        leaving.retain(|victim| {
            let is_copied = there.next().unwrap_or(false);
            if is_copied {
                self.host.heat(victim.slot);
            }
            !is_copied
        });
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::broken_device::broken;
    use crate::{Builder, DeviceChoice, Dtype, Error, Moves, Table, Writes};
    use forerun_gpu::table::TableError;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn builder(directory: &tempfile::TempDir) -> Builder {
        Table::builder(Dtype::I64, 1)
            .device_capacity(1)
            // Rows that are to end there go to ordinary memory.
            .device(DeviceChoice::Cpu)
            .host_capacity(5)
            .path(directory.path().join("rows"))
            .moves(Moves::Caller)
    }

    #[test]
    fn a_device_that_fails_is_left_out_and_fails_no_key() {
        let directory = tempfile::tempdir().unwrap();
        let table = builder(&directory).open_over(Some(broken(8))).unwrap();
        assert!(table.stats().device.unwrap().failure.is_none());
        table.insert(&[1, 2], &[7; 16]).unwrap();
        let (mut rows, mut found) = ([0; 24], [false; 3]);
        assert_eq!(table.find(&[1, 9, 2], &mut rows, &mut found).unwrap(), 2);
        assert_eq!((found, &rows[..8]), ([true, false, true], &[7; 8][..]));
        table
            .update(&[2], &[8; 8], crate::Update::Assign, &mut [false])
            .unwrap();
        table.prefetch(&[1]).unwrap();
        let failure = table.stats().device.unwrap().failure.unwrap();
        assert!(failure.contains("device"), "{failure}");
        let error = table.find_ptr(&[1]).unwrap_err();
        assert!(
            matches!(&error, Error::Device { reason } if *reason == failure),
            "{error}"
        );
    }

    #[derive(Clone, Debug)]
    enum Op {
        Find(Vec<u64>),
        FindToDevice(Vec<u64>),
        Insert(Vec<u64>),
        Erase(Vec<u64>),
        Prefetch(Vec<u64>),
        Import(Vec<u64>),
    }

    fn op() -> impl Strategy<Value = Op> {
        let keys = || vec(0u64..40, 0..20);
        prop_oneof![
            3 => keys().prop_map(Op::Find),
            2 => keys().prop_map(Op::FindToDevice),
            2 => keys().prop_map(Op::Insert),
            1 => keys().prop_map(Op::Erase),
            2 => keys().prop_map(Op::Prefetch),
            1 => keys().prop_map(Op::Import),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

        #[test]
        fn whenever_the_device_is_lost_no_row_is(ops in vec(op(), 1..40), lost_at in 0usize..40, back: bool) {
            let directory = tempfile::tempdir().unwrap();
            let writes = if back { Writes::Back } else { Writes::Through };
            let table = builder(&directory).writes(writes).open().unwrap();
            let mut model = HashMap::new();
            let rows = |keys: &[u64], step: usize| -> Vec<u8> {
                let values = keys.iter().map(|key| key << 32 | step as u64);
                values.flat_map(u64::to_le_bytes).collect()
            };
            for (step, op) in ops.iter().enumerate() {
                if step == lost_at {
                    let lost = TableError::OutOfMemory { bytes: 1, what: "a test" };
                    table.inner().unwrap().device().unwrap().lose(&lost);
                    prop_assert!(table.inner().unwrap().device().is_none());
                }
                match op {
                    Op::Find(keys) => {
                        let (mut rows, mut found) = (vec![0; keys.len() * 8], vec![false; keys.len()]);
                        table.find(keys, &mut rows, &mut found).unwrap();
                        for ((key, row), found) in keys.iter().zip(rows.as_chunks::<8>().0).zip(found) {
                            let row = found.then(|| u64::from_le_bytes(*row));
                            prop_assert_eq!(row, model.get(key).copied(), "key {}", key);
                        }
                    }
                    // Rows that are to end on the device go with it, and the next plain lookup has them.
                    Op::FindToDevice(keys) => {
                        let (mut rows, mut found) = (vec![0; keys.len() * 8], vec![true; keys.len()]);
                        let answer = table.find_to_device(keys, &mut rows[..], &mut found);
                        if step >= lost_at {
                            prop_assert!(matches!(answer, Err(Error::Device { .. })), "{:?}", answer);
                            prop_assert!(!found.contains(&true));
                            continue;
                        }
                        for ((key, row), found) in keys.iter().zip(rows.as_chunks::<8>().0).zip(found) {
                            let row = found.then(|| u64::from_le_bytes(*row));
                            prop_assert_eq!(row, model.get(key).copied(), "key {}", key);
                        }
                    }
                    Op::Insert(keys) => table.insert(keys, &rows(keys, step)).unwrap(),
                    Op::Import(keys) => table.import_rows(keys, &rows(keys, step)).unwrap(),
                    Op::Erase(keys) => {
                        table.erase(keys).unwrap();
                        keys.iter().for_each(|key| { model.remove(key); });
                    }
                    Op::Prefetch(keys) => table.prefetch(keys).unwrap(),
                }
                if let Op::Insert(keys) | Op::Import(keys) = op {
                    model.extend(keys.iter().map(|&key| (key, key << 32 | step as u64)));
                }
            }
            prop_assert_eq!(table.count().unwrap(), model.len() as u64);
        }
    }
}
