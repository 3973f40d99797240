//! The rows that lookups may return while writers run: the row at the beginning of the round, or a
//! row that a job of the round wrote.

use std::collections::BTreeMap;

use forerun::gpu::table::Status;

use super::super::lanes::{Answer, Job, Work};
use super::super::stamped_row::{ROW_BYTES, fault, key_of, stamp_of, sum_of, words_of};
use super::{Capacity, ExpectedState, Owner};

/// The state of the keys when a round began, and the changes that its jobs may make to it.
pub(super) struct InitialState {
    pub(super) before: BTreeMap<u64, u64>,
    /// Stamps that jobs of the round write.
    pub(super) written: BTreeMap<u64, Vec<u64>>,
    erased: Vec<u64>,
    sum: u64,
    added: u64,
    pub(super) owners: BTreeMap<u64, Owner>,
}

impl InitialState {
    pub(super) fn of(expected: &ExpectedState, lanes: &[Vec<Job>]) -> InitialState {
        let mut past = InitialState {
            before: expected.model.clone(),
            written: BTreeMap::new(),
            erased: Vec::new(),
            sum: expected.sum,
            added: 0,
            owners: BTreeMap::new(),
        };
        let first = expected.first_counter();
        for i in first..first + expected.counters + expected.pinned {
            past.owners.insert(key_of(i), expected.owner(i));
        }
        for job in lanes[..expected.writers].iter().flatten() {
            match job.work {
                Work::Erase => past.erased.extend(&job.keys),
                Work::Add => past.added += job.keys.len() as u64,
                _ => {
                    let rows = job.rows.chunks_exact(ROW_BYTES as usize);
                    for (key, row) in job.keys.iter().zip(rows) {
                        past.written.entry(*key).or_default().push(words_of(row)[1]);
                    }
                }
            }
        }
        past.erased.sort_unstable();
        past
    }

    /// Checks whether a lookup may find a key, or not find it.
    pub(super) fn check_presence(
        &self,
        expected: &ExpectedState,
        key: u64,
        there: bool,
    ) -> anyhow::Result<()> {
        let owner = self.owners.get(&key).copied();
        let is_written = self.written.contains_key(&key);
        let was_there = self.before.contains_key(&key);
        let may_be_there = owner.is_some() || was_there || is_written;
        let may_be_gone = match owner {
            Some(Owner::Pinned) => false,
            _ if expected.capacity == Capacity::Scarce => true,
            Some(_) => false,
            None => !was_there || self.erased.binary_search(&key).is_ok(),
        };
        if (there && !may_be_there) || (!there && !may_be_gone) {
            return Err(fault(format!(
                "key {key:#x} is {}found",
                if there { "" } else { "not " }
            )));
        }
        Ok(())
    }

    /// Checks what a lookup returned.
    pub(super) fn found(
        &mut self,
        expected: &ExpectedState,
        job: &Job,
        said: &Answer,
        seen: &mut BTreeMap<u64, u64>,
    ) -> anyhow::Result<()> {
        let mut newest = seen.clone();
        for (i, (key, status)) in job.keys.iter().zip(&said.status).enumerate() {
            let there = match status {
                Status::Found => true,
                Status::Absent => false,
                other => return Err(fault(format!("key {key:#x}: a lookup says {other:?}"))),
            };
            let owner = self.owners.get(key).copied();
            let written = self.written.get(key).map_or(&[][..], |all| &all[..]);
            let before = self.before.get(key);
            self.check_presence(expected, *key, there)?;
            if !there || job.work != Work::Find {
                continue;
            }
            let row = &said.rows[i * ROW_BYTES as usize..][..ROW_BYTES as usize];
            let time = match owner {
                Some(Owner::Everybody) => {
                    let sum = sum_of(*key, row)?;
                    if sum > self.sum + self.added {
                        return Err(fault(format!(
                            "counter {key:#x} has {sum}, more than was added"
                        )));
                    }
                    sum
                }
                Some(Owner::Pinned) => {
                    let stamp = stamp_of(*key, row)?;
                    if stamp != 0 {
                        return Err(fault(format!("pinned key {key:#x} was changed")));
                    }
                    stamp
                }
                _ => {
                    let stamp = stamp_of(*key, row)?;
                    if before != Some(&stamp) && !written.contains(&stamp) {
                        return Err(fault(format!(
                            "key {key:#x} has the row of write {stamp}, which did not write it"
                        )));
                    }
                    stamp
                }
            };
            if seen.get(key).is_some_and(|last| time < *last) {
                return Err(fault(format!("key {key:#x} went back in time, to {time}")));
            }
            let newest = newest.entry(*key).or_default();
            *newest = time.max(*newest);
        }
        *seen = newest;
        Ok(())
    }
}
