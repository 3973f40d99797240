//! The expected state of the table: the keys and their owners, a round of work for all lanes, and
//! the allowed answers.
//!
//! ```text
//!   keys        writer 0's | writer 1's | ... | counters | pinned | strangers
//!   who writes  its writer alone               all add     nobody    nobody
//!
//!   a row       key | stamp | mix(key, stamp) ...           of a counter: the sum, in every word
//! ```
//!
//! A writer's jobs run in order and no other writer writes its keys, so the jobs alone determine
//! the result. Lookups run concurrently: a row must be complete, and be either the row at the
//! beginning of the round or one that a job of the round wrote. Within one lane, a lookup never
//! returns an older row than the lookup before it.

mod initial_state;
mod pooled_answers;

use std::collections::BTreeMap;

use anyhow::{Context, ensure};
use forerun::gpu::table::{GpuTable, LookupMode, Status};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::lanes::{Answer, Job, Work};
use super::pooled_bags::BAG_KEYS;
use super::stamped_row::{
    ROW_BYTES, ROW_WORDS, bytes_of, fault, key_of, row_of, stamp_of, sum_of, words_of,
};
use initial_state::InitialState;

/// Jobs per lane and round.
const JOBS: usize = 4;

/// Whether everything that is written stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capacity {
    /// Half as many keys as slots.
    Enough,
    /// Four times as many keys as slots: most are evicted again.
    Scarce,
}

/// The owner of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    Writer(usize),
    Everybody,
    Pinned,
    Nobody,
}

/// The keys of a table and their known state.
pub struct ExpectedState {
    pub capacity: Capacity,
    pub(super) writers: usize,
    finders: usize,
    batch: usize,
    /// Keys per writer; there are equally many strangers.
    each: u64,
    pub(super) counters: u64,
    pub(super) pinned: u64,
    random: SmallRng,
    stamp: u64,
    /// The stamp of each key that its writer has inserted and not erased.
    pub(super) model: BTreeMap<u64, u64>,
    pub(super) sum: u64,
}

/// How many keys were processed.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeyCounts {
    pub written: u64,
    pub looked_up: u64,
    pub compared: u64,
}

impl ExpectedState {
    /// The state for a table with this many slots, in calls of at most `batch` keys.
    pub fn new(
        table: &GpuTable,
        capacity: Capacity,
        lanes: usize,
        batch: usize,
        seed: u64,
    ) -> ExpectedState {
        let writers = (lanes / 2).max(1);
        let slots = table.capacity();
        let keys = match capacity {
            Capacity::Enough => slots / 2,
            Capacity::Scarce => slots * 4,
        };
        ExpectedState {
            capacity,
            writers,
            finders: (lanes - writers).max(1),
            batch,
            each: (keys / writers as u64).max(8),
            counters: 16,
            pinned: 16,
            random: SmallRng::seed_from_u64(seed),
            stamp: 0,
            model: BTreeMap::new(),
            sum: 0,
        }
    }

    pub(super) fn owner(&self, i: u64) -> Owner {
        let written = self.each * self.writers as u64;
        match i.checked_sub(written) {
            None => Owner::Writer((i / self.each) as usize),
            Some(beyond) if beyond < self.counters => Owner::Everybody,
            Some(beyond) if beyond < self.counters + self.pinned => Owner::Pinned,
            Some(_) => Owner::Nobody,
        }
    }

    pub(super) fn first_counter(&self) -> u64 {
        self.each * self.writers as u64
    }

    fn counter_keys(&self) -> Vec<u64> {
        let first = self.first_counter();
        (first..first + self.counters).map(key_of).collect()
    }

    pub(super) fn pinned_keys(&self) -> Vec<u64> {
        let first = self.first_counter() + self.counters;
        (first..first + self.pinned).map(key_of).collect()
    }

    /// Inserts the initial contents: counters and pinned keys, which nothing may evict.
    pub fn begin(&mut self, table: &mut GpuTable) -> anyhow::Result<()> {
        let counters = self.counter_keys();
        table.insert_or_assign(
            &counters,
            &vec![0; counters.len() * ROW_BYTES as usize],
            None,
        )?;
        let pinned = self.pinned_keys();
        let rows: Vec<u8> = pinned
            .iter()
            .flat_map(|key| bytes_of(row_of(*key, 0)))
            .collect();
        table.insert_or_assign(&pinned, &rows, None)?;
        let locked = table.lock(&pinned)?;
        ensure!(
            locked.iter().all(|s| *s == Status::Found),
            "pinned keys are not there: {locked:?}"
        );
        Ok(())
    }

    /// Jobs for all lanes, writers first.
    pub fn round(&mut self) -> Vec<Vec<Job>> {
        let mut lanes = Vec::new();
        for writer in 0..self.writers {
            lanes.push((0..JOBS).map(|_| self.writing(writer)).collect());
        }
        for _ in 0..self.finders {
            lanes.push((0..JOBS).map(|_| self.finding()).collect());
        }
        lanes
    }

    fn writing(&mut self, writer: usize) -> Job {
        self.stamp += 1;
        let stamp = self.stamp;
        let n = self.random.random_range(1..=self.batch);
        let work = match self.random.random_range(0..10) {
            0 if self.capacity == Capacity::Enough => Work::FindOrInsert,
            // In a full table a counter may be evicted, and its sum with it.
            1 if self.capacity == Capacity::Enough => Work::Add,
            2..=4 => Work::Erase,
            _ => Work::Insert,
        };
        if work == Work::Add {
            let first = self.first_counter();
            let keys: Vec<u64> = (0..n)
                .map(|_| key_of(first + self.random.random_range(0..self.counters)))
                .collect();
            let rows = keys.iter().flat_map(|_| bytes_of([1; ROW_WORDS])).collect();
            return Job { work, keys, rows };
        }
        let first = self.each * writer as u64;
        let mut keys: Vec<u64> = (0..n)
            .map(|_| key_of(first + self.random.random_range(0..self.each)))
            .collect();
        // No writer may change pinned rows, and all of them try.
        if work != Work::FindOrInsert {
            let pinned = self.pinned_keys();
            keys.push(pinned[self.random.random_range(0..pinned.len())]);
        }
        let rows = match work {
            Work::Erase => Vec::new(),
            _ => keys
                .iter()
                .flat_map(|key| bytes_of(row_of(*key, stamp)))
                .collect(),
        };
        Job { work, keys, rows }
    }

    fn finding(&mut self) -> Job {
        let all = self.first_counter() + self.counters + self.pinned + self.each;
        let n = self.random.random_range(1..=self.batch);
        let mut keys: Vec<u64> = (0..n)
            .map(|_| key_of(self.random.random_range(0..all)))
            .collect();
        keys.extend(self.counter_keys());
        keys.extend(self.pinned_keys());
        let methods: Vec<LookupMode> = LookupMode::ALL
            .into_iter()
            .filter(|lookup| lookup.may_run_beside_writers())
            .collect();
        let work = match self.random.random_range(0..3) {
            0 => Work::Find,
            1 => return self.pooling(),
            _ => Work::Contains(methods[self.random.random_range(0..methods.len())]),
        };
        Job {
            work,
            keys,
            rows: Vec::new(),
        }
    }

    /// Bags of three keys: two pinned keys around any key that is not a counter.
    fn pooling(&mut self) -> Job {
        let pinned = self.pinned_keys();
        let first_counter = self.first_counter();
        let n = self.random.random_range(1..=self.batch.div_ceil(BAG_KEYS));
        let mut keys = Vec::with_capacity(n * BAG_KEYS);
        for _ in 0..n {
            let any = self.random.random_range(0..first_counter + self.each);
            let beyond_counters = if any < first_counter {
                0
            } else {
                self.counters
            };
            let mut random_pinned = || pinned[self.random.random_range(0..pinned.len())];
            keys.extend([
                random_pinned(),
                key_of(any + beyond_counters),
                random_pinned(),
            ]);
        }
        Job {
            work: Work::FindPooled,
            keys,
            rows: Vec::new(),
        }
    }

    /// Compares a round's answers with the allowed ones, and updates the state to that after the
    /// round.
    pub fn check(&mut self, lanes: &[Vec<Job>], said: &[Vec<Answer>]) -> anyhow::Result<KeyCounts> {
        let mut counts = KeyCounts::default();
        let mut past = InitialState::of(self, lanes);
        for (lane, (jobs, said)) in lanes.iter().zip(said).enumerate() {
            let mut seen = BTreeMap::new();
            for (job, answer) in jobs.iter().zip(said) {
                let what = || format!("lane {lane}, {:?}", job.work);
                if lane < self.writers {
                    self.wrote(job, answer).with_context(what)?;
                    counts.written += job.keys.len() as u64;
                } else {
                    match job.work {
                        Work::FindPooled => past.pooled(self, job, answer),
                        _ => past.found(self, job, answer, &mut seen),
                    }
                    .with_context(what)?;
                    counts.looked_up += job.keys.len() as u64;
                }
            }
        }
        Ok(counts)
    }

    /// Checks the results for a writer's keys, in the order of its jobs.
    fn wrote(&mut self, job: &Job, said: &Answer) -> anyhow::Result<()> {
        let pinned = self.pinned_keys();
        let before: BTreeMap<u64, Option<u64>> = job
            .keys
            .iter()
            .map(|key| (*key, self.model.get(key).copied()))
            .collect();
        for (i, (key, status)) in job.keys.iter().zip(&said.status).enumerate() {
            if pinned.contains(key) {
                if *status != Status::Pinned {
                    return Err(fault(format!("pinned key {key:#x} was {status:?}")));
                }
                continue;
            }
            let stamp = |bytes: &[u8]| words_of(&bytes[i * ROW_BYTES as usize..])[1];
            let new = || stamp(&job.rows);
            let there = before[key].is_some();
            // A key that occurs several times in a job may be processed in any order.
            let fits = match (job.work, status) {
                (Work::Add, Status::Found) => {
                    self.sum += 1;
                    true
                }
                (Work::Insert, Status::Found | Status::Inserted | Status::Evicted) => {
                    self.model.insert(*key, new());
                    let kept = *status != Status::Evicted && (!there || *status == Status::Found);
                    self.capacity == Capacity::Scarce || kept
                }
                // If it is present nevertheless, because it also occurs elsewhere in the job, it
                // has the job's row.
                (Work::Insert, Status::Refused) => {
                    self.model.insert(*key, new());
                    self.capacity == Capacity::Scarce
                }
                (Work::FindOrInsert, Status::Inserted) if !there => {
                    self.model.insert(*key, new());
                    true
                }
                (Work::FindOrInsert, Status::Found) => {
                    let given = &said.rows[i * ROW_BYTES as usize..][..ROW_BYTES as usize];
                    let given = stamp_of(*key, given)?;
                    given == before[key].unwrap_or_else(new)
                }
                (Work::Erase, Status::Found) => {
                    self.model.remove(key);
                    there
                }
                (Work::Erase, Status::Absent) => {
                    let twice = job.keys.iter().filter(|other| *other == key).count() > 1;
                    self.model.remove(key);
                    !there || twice || self.capacity == Capacity::Scarce
                }
                _ => false,
            };
            if !fits {
                return Err(fault(format!(
                    "key {key:#x}, which was {}there, is reported as {status:?}",
                    if there { "" } else { "not " }
                )));
            }
        }
        Ok(())
    }

    /// Checks that the idle table holds what the rounds have left, each key once, and reports its
    /// size correctly.
    pub fn compare(&self, table: &mut GpuTable) -> anyhow::Result<u64> {
        let mut all: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        table.for_each(|entries| {
            let rows = entries.rows.chunks_exact(ROW_BYTES as usize);
            for (key, row) in entries.keys.iter().zip(rows) {
                if all.insert(*key, row.to_vec()).is_some() {
                    return Err(fault(format!("key {key:#x} is there twice")));
                }
            }
            Ok(())
        })?;
        let size = table.size()?;
        if size != all.len() as u64 {
            return Err(fault(format!(
                "{} entries, but a size of {size}",
                all.len()
            )));
        }
        for key in self.pinned_keys() {
            let row = all
                .remove(&key)
                .ok_or_else(|| fault(format!("pinned key {key:#x} is gone")))?;
            if stamp_of(key, &row)? != 0 {
                return Err(fault(format!("pinned key {key:#x} was changed")));
            }
        }
        let mut sum = 0;
        for key in self.counter_keys() {
            match all.remove(&key) {
                Some(row) => sum += sum_of(key, &row)?,
                None if self.capacity == Capacity::Scarce => {}
                None => return Err(fault(format!("counter {key:#x} is gone"))),
            }
        }
        if sum != self.sum {
            return Err(fault(format!(
                "the counters' sum is {sum}, but {} was added",
                self.sum
            )));
        }
        for (key, row) in &all {
            let stamp = stamp_of(*key, row)?;
            if self.model.get(key) != Some(&stamp) {
                let known = self.model.get(key);
                return Err(fault(format!(
                    "key {key:#x} has the row of write {stamp}; {known:?} was its last"
                )));
            }
        }
        if self.capacity == Capacity::Enough
            && let Some(key) = self.model.keys().find(|key| !all.contains_key(key))
        {
            return Err(fault(format!("key {key:#x} is lost")));
        }
        Ok(size)
    }
}

#[cfg(test)]
#[path = "expected_state_tests.rs"]
mod tests;
