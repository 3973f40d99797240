//! Promotion to the device tier, and demotion from it.
//!
//! ```text
//!   promote  keys ──> lock ──> rows of the host tier ──> device ──> evicted rows, with their versions
//!   demote   evicted rows ──> PromotionBatch ──> the host tier, unless it has them or they changed (host_moves.rs)
//!   write    lock ──> invalidate the copies ──> write store, host tier ──> bump versions ──> unlock ──> promote again
//! ```
//!
//! The device holds only copies (`device_tier.rs`), so nothing here can lose a row and no move
//! needs to be atomic: the store has a demoted row throughout. A row is promoted under the lock of
//! its key, while the host tier has the newest version.

#[cfg(feature = "gpu")]
use crate::device_tier::{InsertBatch, InsertResult};
use crate::host::Victim;
use crate::inner::Inner;
use crate::move_queue::PendingMoves;
use crate::promotion_batch::Origin;
#[cfg(feature = "gpu")]
use crate::promotion_batch::PromotionBatch;

/// Rows promoted together. Writers of their keys wait during the promotion.
#[cfg(feature = "gpu")]
const PROMOTION_BATCH: usize = 256;

impl Inner {
    /// There is no device tier to promote to.
    #[cfg(not(feature = "gpu"))]
    pub(crate) fn promote_to_device(&self, _keys: &[u64], _origin: Origin) {}

    /// Copies rows of the host tier to the device, which may refuse some of them.
    #[cfg(feature = "gpu")]
    pub(crate) fn promote_to_device(&self, keys: &[u64], origin: Origin) {
        let Some(device) = self.device() else {
            return;
        };
        for keys in keys.chunks(PROMOTION_BATCH) {
            self.host.prefetch(keys);
            let guard = self.key_locks.lock(keys.iter().copied());
            let (mut batch, mut slots) = (InsertBatch::default(), Vec::new());
            for &key in keys {
                self.host.read(key, |slot, row| {
                    let (uses, custom) = (self.host.uses(slot), self.host.score(slot));
                    let score = self.policies.evict_strategy.device_score(uses, custom);
                    batch.push(key, row, score);
                    slots.push(slot);
                });
            }
            let result = device
                .insert_and_evict(&batch, origin, |key| self.key_locks.version(key))
                .unwrap_or_default();
            if self.store.is_some() {
                // The device serves these rows from now on, so the host tier may evict them first.
                let present = slots.iter().zip(&result.present);
                present
                    .filter(|(_, present)| **present)
                    .for_each(|(&slot, _)| self.host.cool(slot));
            }
            drop(guard);
            self.counters.device_promoted_rows.add(result.inserted_rows);
            self.counters
                .device_unpromoted_rows
                .add(keys.len() - result.inserted_rows);
            self.demote_from_device(result);
        }
    }

    /// Background rows that the device evicted to the host tier.
    #[cfg(feature = "gpu")]
    fn demote_from_device(&self, result: InsertResult) {
        let evicted = &result.evicted;
        self.counters.device_demoted_rows.add(evicted.len());
        // Without a store the host tier has all rows.
        let (Some(device), true) = (self.device(), self.store.is_some()) else {
            return;
        };
        let mut promotions = PromotionBatch::of(Origin::Device);
        let scores = evicted
            .keys
            .iter()
            .zip(&evicted.scores)
            .zip(&result.versions);
        for (((&key, &score), &version), row) in
            scores.zip(evicted.rows.chunks_exact(self.row.bytes()))
        {
            promotions.push(key, version, row, score, device.uses(score));
        }
        if !promotions.is_empty() {
            self.promote_to_host(promotions);
        }
    }

    /// Deletes the device's copies of these keys before the tiers below change, and returns the
    /// keys that had one. The caller holds the keys' locks, which prevent new promotions.
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

    /// Promotes invalidated rows again, as they are now. The caller must hold no lock.
    pub(crate) fn repromote(&self, invalidated: Vec<u64>) {
        self.queue_moves(PendingMoves {
            to_device: invalidated,
            ..PendingMoves::default()
        });
    }

    /// Bumps the versions of keys that changed below the device. The caller holds their locks.
    pub(crate) fn changed(&self, keys: &[u64]) {
        keys.iter()
            .for_each(|&key| self.key_locks.bump_version(key));
    }

    /// In a table without a store, keeps victims that the device has a copy of, if there are other
    /// victims: the device serves them, and the host tier does not see those hits.
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

#[cfg(all(test, feature = "gpu"))]
mod tests {
    use crate::testing::broken_device::broken;
    use crate::{Background, Builder, DeviceChoice, Dtype, Error, Table, WritePolicy};
    use forerun_gpu::table::TableError;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn builder(directory: &tempfile::TempDir) -> Builder {
        Table::builder(Dtype::I64, 1)
            .device_capacity(1)
            // `find_to_device` then writes to ordinary memory.
            .device(DeviceChoice::Cpu)
            .host_capacity(5)
            .path(directory.path().join("rows"))
            .background(Background::Caller)
    }

    #[test]
    fn a_failed_device_is_bypassed_and_no_key_fails() {
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
        fn losing_the_device_loses_no_row(
            ops in vec(op(), 1..40), lost_at in 0usize..40, back: bool,
        ) {
            let directory = tempfile::tempdir().unwrap();
            let writes = if back { WritePolicy::WriteBack } else { WritePolicy::WriteThrough };
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
                        let (mut rows, mut found) =
                            (vec![0; keys.len() * 8], vec![false; keys.len()]);
                        table.find(keys, &mut rows, &mut found).unwrap();
                        for ((key, row), found) in keys.iter().zip(rows.as_chunks::<8>().0)
                            .zip(found) {
                            let row = found.then(|| u64::from_le_bytes(*row));
                            prop_assert_eq!(row, model.get(key).copied(), "key {}", key);
                        }
                    }
                    // `find_to_device` fails with the device; the next plain lookup finds the rows.
                    Op::FindToDevice(keys) => {
                        let (mut rows, mut found) =
                            (vec![0; keys.len() * 8], vec![true; keys.len()]);
                        let answer = table.find_to_device(keys, &mut rows[..], &mut found);
                        if step >= lost_at {
                            prop_assert!(matches!(answer, Err(Error::Device { .. })), "{:?}",
                                answer);
                            prop_assert!(!found.contains(&true));
                            continue;
                        }
                        for ((key, row), found) in keys.iter().zip(rows.as_chunks::<8>().0)
                            .zip(found) {
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
