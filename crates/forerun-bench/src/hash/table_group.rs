//! The tables that are compared with each other: which of them are in memory at a time, and how
//! full they are.
//!
//! ```text
//!  2 GiB tables under a limit of 5 GiB        first  memc3 | a        then  memc3 | b        then  memc3 | c ...
//!  256 MiB tables                             memc3 | a  b  c  d  e  f  g  ...                      all at once
//! ```
//!
//! The baselines, which the ratios compare with, are in memory together with every other table.

use super::contender::{Contender, ContenderTable, InsertOutcome};
use super::keys::{Keys, Word};
use super::run_turn::Churn;
use crate::threads::Cores;
use anyhow::{Context, Result};
use std::sync::Mutex;

/// A contender's table.
pub(super) struct GroupTable<'a, K: Word, V: Word> {
    /// The contender's position in the list.
    pub(super) at: usize,
    pub(super) contender: &'a dyn Contender<K, V>,
    /// `None` before it is opened and after it was full.
    pub(super) subject: Option<Box<dyn ContenderTable<K, V>>>,
    pub(super) full_at: Option<f64>,
    pub(super) churn: Churn,
    filled: u64,
}

impl<'a, K: Word, V: Word> GroupTable<'a, K, V> {
    pub(super) fn new(at: usize, contender: &'a dyn Contender<K, V>) -> GroupTable<'a, K, V> {
        GroupTable {
            at,
            contender,
            subject: None,
            full_at: None,
            churn: Churn::default(),
            filled: 0,
        }
    }

    /// Fills the table up to `keys`, or sets `full_at` to how far it got.
    fn fill(&mut self, keys: &Keys, slots: usize, load_factor_max: f64) -> Result<()> {
        if self.full_at.is_some() {
            return Ok(());
        }
        if !self.churn.is_untouched() {
            // It holds entries other than the first ones, so start again.
            *self = GroupTable::new(self.at, self.contender);
        }
        let open = || self.contender.open(slots, load_factor_max);
        let mut subject = match self.subject.take() {
            Some(subject) => subject,
            None => open()?,
        };
        const TOGETHER: u64 = 1024;
        while self.filled < keys.entries() {
            let end = keys.entries().min(self.filled + TOGETHER);
            let (new, values): (Vec<K>, Vec<V>) = (self.filled..end)
                .map(|index| (keys.key::<K>(index), keys.value::<V>(index)))
                .unzip();
            if subject.insert(&new, &values)? == InsertOutcome::Full {
                let slots = subject.slots().unwrap_or(slots).max(1);
                self.full_at = Some(subject.len() as f64 / slots as f64);
                return Ok(());
            }
            self.filled = end;
        }
        self.subject = Some(subject);
        Ok(())
    }
}

/// Fills tables, several at a time.
///
/// # Errors
/// The first table's error, with its name.
pub(super) fn fill<K: Word, V: Word>(
    tables: &mut [GroupTable<'_, K, V>],
    keys: &Keys,
    slots: usize,
    load_factor_max: f64,
    cores: &Cores,
) -> Result<()> {
    let workers = cores.count().min(tables.len()).max(1);
    let queue = Mutex::new(tables.iter_mut());
    cores.run(workers, |_, ready| {
        ready.wait();
        loop {
            // A worker that panicked left the queue unchanged.
            let next = queue.lock().unwrap_or_else(|held| held.into_inner()).next();
            let Some(table) = next else {
                return Ok(());
            };
            table
                .fill(keys, slots, load_factor_max)
                .with_context(|| format!("filling {}", table.contender.design()))?;
        }
    })?;
    Ok(())
}

/// Which contenders are in memory together, as positions in `contenders`: each list holds all
/// baselines and as many others as the limit allows, but at least one.
pub(super) fn table_groups<K: Word, V: Word>(
    contenders: &[&dyn Contender<K, V>],
    is_baseline: &dyn Fn(&dyn Contender<K, V>) -> bool,
    (slots, load_factor): (usize, f64),
    limit_bytes: usize,
) -> Vec<Vec<usize>> {
    let bytes = |at: &usize| contenders[*at].memory_bytes(slots, load_factor);
    let (baselines, others): (Vec<usize>, Vec<usize>) =
        (0..contenders.len()).partition(|at| is_baseline(contenders[*at]));
    let base_bytes: usize = baselines.iter().map(bytes).sum();
    let mut table_groups = Vec::new();
    let mut table_group = baselines.clone();
    let mut used_bytes = base_bytes;
    for other in others {
        let full = used_bytes.saturating_add(bytes(&other)) > limit_bytes;
        if full && table_group.len() > baselines.len() {
            table_groups.push(std::mem::replace(&mut table_group, baselines.clone()));
            used_bytes = base_bytes;
        }
        table_group.push(other);
        used_bytes += bytes(&other);
    }
    table_groups.push(table_group);
    table_groups
}

#[cfg(test)]
mod tests {
    use super::super::contender::tests::Map;
    use super::*;

    #[test]
    fn tables_report_the_load_at_which_they_were_full() {
        let (whole, half) = (
            Map::new("whole"),
            Map {
                limit: 0.5,
                ..Map::new("half")
            },
        );
        let contenders: [&dyn Contender<u64, u64>; 2] = [&whole, &half];
        let mut tables: Vec<_> = (0..2)
            .map(|at| GroupTable::new(at, contenders[at]))
            .collect();
        let cores = Cores::available();
        for (load_factor, reached) in [
            (0.3, [true, true]),
            (0.7, [true, false]),
            (0.9, [true, false]),
        ] {
            let entries = (1000.0 * load_factor) as u64;
            let keys = Keys::new::<u64>(entries, 1).unwrap();
            fill(&mut tables, &keys, 1000, 0.9, &cores).unwrap();
            for (table, reached) in tables.iter().zip(reached) {
                let len = table.subject.as_ref().map(|subject| subject.len() as u64);
                assert_eq!(len, reached.then_some(entries));
                assert_eq!(table.full_at, (!reached).then_some(0.5));
            }
        }
    }

    #[test]
    fn a_limit_splits_the_contenders_and_repeats_the_baselines() {
        let maps = ["a", "base", "b", "c"].map(Map::new);
        let contenders: Vec<&dyn Contender<u64, u64>> = maps
            .iter()
            .map(|map| map as &dyn Contender<u64, u64>)
            .collect();
        let is_baseline = |contender: &dyn Contender<u64, u64>| contender.design() == "base";
        let split = |limit| table_groups(&contenders, &is_baseline, (1000, 0.7), limit);
        assert_eq!(split(usize::MAX), [[1, 0, 2, 3]]);
        assert_eq!(split(0), [[1, 0], [1, 2], [1, 3]]);
        assert_eq!(split(3 * 18_000), [&[1, 0, 2][..], &[1, 3]]);
        let alone = [contenders[1]];
        assert_eq!(table_groups(&alone, &is_baseline, (1, 0.7), 0), [[0]]);
    }
}
