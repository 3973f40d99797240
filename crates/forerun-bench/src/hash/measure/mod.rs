//! Measures a sweep and creates its rows.
//!
//! ```text
//!  for each size, for each group of tables that fit in memory together, for each load factor
//!    fill, verify                                             filled.rs
//!    round after round                                        (harness)
//!      for each hit rate x skew x batch                       a group: what is compared      case.rs
//!        for each number of threads x updates                 a cell
//!          for each table x instruction set x strategy        a case
//!        random lines by the same number of threads           a case: the base of the shares
//!    rates and ratios                                         compare.rs
//!
//!  writes instead of lookups                                  writes.rs
//! ```

mod case;
mod compare;
mod filled;
#[cfg(test)]
mod tests;
mod writes;

pub(super) use case::check_names;

use super::contender::Contender;
use super::keys::Word;
use super::result_row::HashRow;
use super::sweep::Sweep;
use super::table_group::{self, GroupTable};
use crate::threads::Cores;
use anyhow::{Context, Result};
use case::{probes, variants};
use forerun_measure::harness::Plan;
use forerun_measure::progress::Bar;
use forerun_studies::roofline::Probe;
use std::collections::{BTreeMap, HashSet};

/// The design that the studies compare with.
pub(super) const MEMC3: &str = "memc3";

/// State that all sweeps of a run share.
pub(super) struct Bench<'a> {
    pub(super) study: Option<u8>,
    pub(super) plan: Plan,
    pub(super) cores: Cores,
    pub(super) probe: &'a Probe,
    /// For each number of threads, the lines in flight per thread that give the highest rate.
    pub(super) in_flight: BTreeMap<usize, usize>,
    /// Memory that the tables may use together.
    pub(super) memory_bytes: usize,
    /// Keys per stream.
    pub(super) stream_len: usize,
    /// The engine and strategy that `speedup_vs_peer` compares with.
    pub(super) peer: Option<(String, String)>,
    pub(super) bar: &'a Bar,
}

/// A row and its position in the table: load factor, cell, contender.
type PlacedRow = ((usize, usize, usize), HashRow);

impl Bench<'_> {
    /// Measures the cells of a sweep for one width, and passes on the rows of each size as soon as
    /// they are complete.
    ///
    /// # Errors
    /// Names that no contender has, a failing table, or a wrong answer.
    pub(super) fn measure<K: Word, V: Word>(
        &self,
        sweep: &Sweep,
        contenders: &[&dyn Contender<K, V>],
        emit: &mut dyn FnMut(Vec<HashRow>) -> Result<()>,
    ) -> Result<()> {
        let contenders = self.chosen(sweep, contenders);
        if contenders.is_empty() {
            return Ok(());
        }
        for &size_bytes in &sweep.sizes {
            let mut rows: Vec<PlacedRow> = Vec::new();
            let mut tables: Vec<GroupTable<'_, K, V>> = Vec::new();
            for table_group in self.table_groups(sweep, &contenders, size_bytes) {
                // A baseline may stay as it is, unless it must be filled from a lower load again.
                let fits = |table: &GroupTable<'_, K, V>| {
                    sweep.load_factors.len() == 1 && table_group.contains(&table.at)
                };
                tables.retain(fits);
                for &at in &table_group {
                    if tables.iter().all(|table| table.at != at) {
                        tables.push(GroupTable::new(at, contenders[at]));
                    }
                }
                for nth in 0..sweep.load_factors.len() {
                    let new = self
                        .load_factor(sweep, size_bytes, nth, &mut tables)
                        .with_context(|| format!("a table of {size_bytes} bytes"))?;
                    rows.extend(new);
                }
            }
            // The sort is stable, so for a baseline that is measured with every table group, the
            // first rows are kept.
            rows.sort_by_key(|(place, _)| *place);
            let mut seen = HashSet::new();
            let mut kept = Vec::new();
            for (place, row) in rows {
                let variant = (row.common.isa.clone(), row.common.strategy.clone());
                if seen.insert((place, variant)) {
                    kept.push(row);
                }
            }
            emit(kept)?;
        }
        Ok(())
    }

    /// How many steps of the progress bar [`Bench::measure`] will make.
    pub(super) fn steps<K: Word, V: Word>(
        &self,
        sweep: &Sweep,
        contenders: &[&dyn Contender<K, V>],
    ) -> u64 {
        let contenders = self.chosen(sweep, contenders);
        if contenders.is_empty() {
            return 0;
        }
        let cells = sweep.cells();
        let probes = probes(&cells).len();
        let mut cases = 0;
        for &size_bytes in &sweep.sizes {
            for table_group in self.table_groups(sweep, &contenders, size_bytes) {
                let variants: usize = table_group
                    .iter()
                    .map(|at| variants(sweep, *at, contenders[*at]).len())
                    .sum();
                cases += sweep.load_factors.len() * (cells.len() * variants + probes);
            }
        }
        (cases * self.plan.rounds) as u64
    }

    /// The contenders that a sweep selects: all, or by name; for cells with updates, only those
    /// that support concurrent readers. There may be none for keys and values of this width.
    fn chosen<'c, K: Word, V: Word>(
        &self,
        sweep: &Sweep,
        contenders: &[&'c dyn Contender<K, V>],
    ) -> Vec<&'c dyn Contender<K, V>> {
        let updated = sweep.updates.iter().any(|share| *share > 0.0);
        let wanted = |contender: &&&dyn Contender<K, V>| {
            let named = sweep.designs.is_empty() || sweep.designs.contains(&contender.design());
            named && (!updated || contender.is_shared())
        };
        contenders.iter().filter(wanted).copied().collect()
    }

    fn table_groups<K: Word, V: Word>(
        &self,
        sweep: &Sweep,
        contenders: &[&dyn Contender<K, V>],
        size_bytes: usize,
    ) -> Vec<Vec<usize>> {
        let slots = slots::<K, V>(size_bytes);
        let load_factor_max = load_factor_max(&sweep.load_factors);
        let is_baseline = |contender: &dyn Contender<K, V>| {
            let peer = self.peer.as_ref();
            contender.design() == MEMC3
                || peer.is_some_and(|(engine, _)| engine == contender.engine())
        };
        table_group::table_groups(
            contenders,
            &is_baseline,
            (slots, load_factor_max),
            self.memory_bytes,
        )
    }
}

/// Slots of a table of that size.
fn slots<K: Word, V: Word>(size_bytes: usize) -> usize {
    size_bytes / (K::BYTES + V::BYTES)
}

/// The highest load factor.
fn load_factor_max(load_factors: &[f64]) -> f64 {
    load_factors.iter().copied().fold(0.0, f64::max)
}
