//! One thread at work: random operations, with each answer compared.

mod checked_reads;

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use forerun::{Db, Durability, Snapshot, Values, WriteBatch};
use rand::Rng;
use rand::rngs::SmallRng;

use super::super::script::{self, Model};
use super::check_answers::{check_own, compare};
use super::{Counters, Lap};

/// Keys per thread.
const KEYS: u32 = 500;
/// Keys of the group that all threads write.
const GROUP: u32 = 8;
/// The maximum number of snapshots that a thread holds.
const SNAPSHOTS: usize = 3;

/// One thread at work.
pub struct Worker<'a> {
    db: &'a Db,
    thread: usize,
    threads: usize,
    model: &'a mut Model,
    rng: SmallRng,
    batch: WriteBatch,
    values: Values,
    /// Snapshots, with the values of the thread's keys when they were taken.
    snapshots: Vec<(Snapshot, Model)>,
    /// The work done so far.
    pub counters: Counters,
}

impl<'a> Worker<'a> {
    /// A thread that continues from its keys' current contents.
    pub fn new(
        db: &'a Db,
        thread: usize,
        threads: usize,
        model: &'a mut Model,
        lap: &Lap,
    ) -> Worker<'a> {
        Worker {
            db,
            thread,
            threads,
            model,
            rng: script::rng(lap.seed, thread as u64, lap.number),
            batch: WriteBatch::new(),
            values: Values::new(),
            snapshots: Vec::new(),
            counters: Counters::default(),
        }
    }

    /// Performs this many operations, unless another thread has found a fault.
    pub fn work(&mut self, ops: u64, stopped: &AtomicBool) -> anyhow::Result<()> {
        for _ in 0..ops {
            if stopped.load(Ordering::Relaxed) {
                break;
            }
            self.counters.ops += 1;
            match self.rng.random_range(0..100) {
                0..25 => self.put()?,
                25..35 => self.delete()?,
                35..45 => self.write_batch()?,
                45..48 => self.write_group()?,
                48..58 => self.get()?,
                58..85 => self.multi_get()?,
                85..88 => self.scan_own()?,
                88..90 => self.scan_range()?,
                90..91 => self.scan_all()?,
                91..94 => self.read_group()?,
                94..97 => self.take_snapshot(),
                _ => self.check_snapshot()?,
            }
        }
        Ok(())
    }

    /// A key of this thread. Keys have many lengths, and some are prefixes of others.
    fn own_key(&mut self) -> Vec<u8> {
        let number = self.rng.random_range(0..KEYS);
        any_key(self.thread, number)
    }

    /// A value of any length that contains its key.
    fn value(&mut self, key: &[u8]) -> Vec<u8> {
        let length = if self.rng.random_ratio(1, 500) {
            20_000
        } else {
            self.rng.random_range(0..150)
        };
        let mut value = key.to_vec();
        value.push(0);
        value.resize(value.len() + length, self.rng.random());
        value
    }

    fn durability(&mut self) -> Durability {
        if self.rng.random_ratio(1, 200) {
            Durability::Synced
        } else {
            Durability::Buffered
        }
    }

    fn put(&mut self) -> anyhow::Result<()> {
        let key = self.own_key();
        let value = self.value(&key);
        let durability = self.durability();
        self.db
            .put_with(&key, &value, durability)
            .context("a put failed")?;
        self.model.insert(key, value);
        self.counters.writes += 1;
        Ok(())
    }

    fn delete(&mut self) -> anyhow::Result<()> {
        let key = self.own_key();
        let durability = self.durability();
        self.db
            .delete_with(&key, durability)
            .context("a delete failed")?;
        self.model.remove(&key);
        self.counters.writes += 1;
        Ok(())
    }

    /// Several operations, sometimes on the same key. The last one wins.
    fn write_batch(&mut self) -> anyhow::Result<()> {
        self.batch.clear();
        for _ in 0..self.rng.random_range(1..12) {
            let key = self.own_key();
            if self.rng.random_ratio(3, 4) {
                let value = self.value(&key);
                self.batch.put(&key, &value)?;
                self.model.insert(key, value);
            } else {
                self.batch.delete(&key)?;
                self.model.remove(&key);
            }
        }
        let durability = self.durability();
        self.db
            .write(&self.batch, durability)
            .context("a batch failed")?;
        self.counters.writes += 1;
        Ok(())
    }

    fn write_group(&mut self) -> anyhow::Result<()> {
        self.batch.clear();
        let stamp: [u8; 16] = self.rng.random();
        for key in group() {
            self.batch.put(&key, &stamp)?;
        }
        self.db
            .write(&self.batch, Durability::Buffered)
            .context("a batch failed")?;
        self.counters.writes += 1;
        Ok(())
    }

    fn take_snapshot(&mut self) {
        if self.snapshots.len() == SNAPSHOTS {
            self.snapshots
                .swap_remove(self.rng.random_range(0..SNAPSHOTS));
        }
        self.snapshots
            .push((self.db.snapshot(), self.model.clone()));
        self.counters.snapshots += 1;
    }

    /// Checks that a snapshot still shows the values that the thread's keys had when it was taken.
    fn check_snapshot(&mut self) -> anyhow::Result<()> {
        if self.snapshots.is_empty() {
            return Ok(());
        }
        let keys: Vec<Vec<u8>> = (0..30).map(|_| self.own_key()).collect();
        let (snapshot, model) = &self.snapshots[self.rng.random_range(0..self.snapshots.len())];
        snapshot
            .multi_get(&keys, &mut self.values)
            .context("a batch of lookups failed")?;
        for (at, key) in keys.iter().enumerate() {
            check_own(model, key, self.values.get(at)?, "a batch at a snapshot")?;
        }
        self.counters.looked_up += keys.len() as u64;
        compare(
            snapshot.prefix(&script::prefix(self.thread)),
            model.iter(),
            "a scan of a snapshot",
        )
    }
}

/// Key `number` of a thread, of many lengths; some are prefixes of others.
fn any_key(thread: usize, number: u32) -> Vec<u8> {
    let mut key = script::prefix(thread);
    key.extend_from_slice((number / 4).to_string().as_bytes());
    // Keys that agree in their first bytes, so that comparing prefixes is not enough.
    key.resize(key.len() + [0, 1, 12, 60][number as usize % 4], b'.');
    key
}

fn group() -> Vec<Vec<u8>> {
    (0..GROUP)
        .map(|number| format!("g/{number}").into_bytes())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn keys_differ_and_some_are_prefixes_of_others() {
        let keys: HashSet<Vec<u8>> = (0..3)
            .flat_map(|t| (0..KEYS).map(move |n| any_key(t, n)))
            .collect();
        assert_eq!(keys.len(), 3 * KEYS as usize);
        assert!(any_key(0, 2).starts_with(&any_key(0, 1)));
    }
}
