//! The lookup workloads over any engines, and the resulting rows.
//!
//! ```text
//!  for each data set, for each workload          one store per engine, loaded and checked, rebuilt when overwritten
//!    round after round                           (harness)
//!      for each batch x threads x skew x hit rate    a group: what is compared
//!        for each engine x strategy              a case
//! ```
//!
//! - `multireadrandom`: threads look up batches; nothing is written.
//! - `multireadwhilewriting`: the same, while additional threads overwrite random entries as fast
//!   as they can.
//! - `fillrandom`: threads write all entries into an empty store, in random order, without a log.
//!   The batch is the number of entries per write. Strategy and hit rate do not apply.

use crate::engine::Engine;
use crate::loaded_engine::{Cell, LoadedEngine};
use crate::output::check_threads;
use crate::skew::Skew;
use crate::workload::Dataset;
use anyhow::{Context, Result, bail, ensure};
use forerun_core::Pages;
use forerun_measure::harness::{self, Case, Outcome, Plan};
use forerun_measure::progress::Progress;
use forerun_measure::result_row::Row;
use std::collections::BTreeMap;

/// A workload, named as in db_bench.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
#[value(rename_all = "lower")]
pub enum Workload {
    /// Batches of lookups.
    MultiReadRandom,
    /// Batches of lookups while additional threads overwrite entries.
    MultiReadWhileWriting,
    /// All entries written in random order into an empty store.
    FillRandom,
}

impl Workload {
    /// The name on the command line and in the rows.
    pub fn name(self) -> &'static str {
        match self {
            Workload::MultiReadRandom => "multireadrandom",
            Workload::MultiReadWhileWriting => "multireadwhilewriting",
            Workload::FillRandom => "fillrandom",
        }
    }
}

/// The cells to measure: all combinations of the lists.
#[derive(Clone, Debug)]
pub struct Lookups {
    /// The name of the bench in the rows.
    pub bench: String,
    /// The data sets, measured in this order.
    pub data: Vec<Dataset>,
    /// The workloads.
    pub workloads: Vec<Workload>,
    /// Keys per batch, each at least one.
    pub batches: Vec<usize>,
    /// Numbers of threads that write in `multireadwhilewriting`, each at least one.
    pub writers: Vec<usize>,
    /// Entries per write of `fillrandom`, each at least one.
    pub write_batches: Vec<usize>,
    /// Numbers of lookup threads, each at least one.
    pub threads: Vec<usize>,
    /// Shares of present keys.
    pub hit_rates: Vec<f64>,
    /// Which present keys are requested.
    pub skews: Vec<Skew>,
    /// The strategies by name; empty for all. At least one engine must know each name. An engine's
    /// first strategy is always measured.
    pub strategies: Vec<String>,
    /// The engine and strategy that [`Row::speedup_vs_peer`] compares with.
    pub peer: Option<(String, String)>,
    /// How to measure.
    pub plan: Plan,
    /// The kind of memory pages given to the stores, for the rows.
    pub pages: Pages,
    /// Random lines per second of this machine by number of threads, for [`Row::roofline_share`].
    pub lines_per_second: BTreeMap<usize, f64>,
}

impl Lookups {
    /// Measures, and passes on the rows of each data set and workload as soon as they are complete,
    /// with facts about the stores.
    ///
    /// # Errors
    /// An invalid list, a failing store, or a wrong answer.
    pub fn measure(
        &self,
        engines: &[&dyn Engine],
        progress: &Progress,
        mut emit: impl FnMut(Vec<Row>, Vec<(String, String)>) -> Result<()>,
    ) -> Result<()> {
        let chosen = self.choose(engines)?;
        for data in &self.data {
            let stores: Vec<LoadedEngine<'_>> = engines
                .iter()
                .map(|engine| LoadedEngine::new(*engine, *data, self.spare_entries(), *progress))
                .collect();
            for &workload in &self.workloads {
                let rows = self
                    .workload(workload, data, &chosen, &stores, progress)
                    .with_context(|| format!("{} with {} keys", workload.name(), data.keys()))?;
                // A fill leaves no store to describe.
                let facts = match workload {
                    Workload::FillRandom => Vec::new(),
                    _ => stores.iter().flat_map(LoadedEngine::facts).collect(),
                };
                emit(rows, facts)?;
            }
        }
        Ok(())
    }

    /// Space for a writer. An engine's turns together stay below it, because a store is rebuilt
    /// once half as many entries as it holds were overwritten, and no memtable takes four million
    /// entries per second from one thread.
    fn spare_entries(&self) -> u64 {
        let turn = self.plan.duration + self.plan.warm_up;
        let writers = self.writers.iter().copied().max().unwrap_or(1);
        (4e6 * writers as f64 * turn.as_secs_f64().max(0.05)) as u64 + 1_000_000
    }

    /// The strategies of each engine, by the engine's position, the baseline first.
    fn choose(&self, engines: &[&dyn Engine]) -> Result<Vec<(usize, String)>> {
        for (name, empty) in [
            ("data set", self.data.is_empty()),
            ("workload", self.workloads.is_empty()),
            ("batch size", self.batches.is_empty()),
            ("batch size of writes", self.write_batches.is_empty()),
            ("number of threads", self.threads.is_empty()),
            ("number of writers", self.writers.is_empty()),
            ("hit rate", self.hit_rates.is_empty()),
            ("skew", self.skews.is_empty()),
            ("engine", engines.is_empty()),
        ] {
            ensure!(!empty, "nothing to measure: no {name} is given");
        }
        let mut batches = self.batches.iter().chain(&self.write_batches);
        ensure!(
            batches.all(|&batch| batch > 0),
            "a batch needs at least one key"
        );
        check_threads(&self.threads)?;
        check_threads(&self.writers)?;
        let mut known = Vec::new();
        let mut chosen = Vec::new();
        for (at, engine) in engines.iter().enumerate() {
            for (turn, name) in engine.strategies().into_iter().enumerate() {
                let wanted = self.strategies.is_empty() || self.strategies.contains(&name);
                if wanted || turn == 0 {
                    chosen.push((at, name.clone()));
                }
                known.push(name);
            }
        }
        if let Some(unknown) = self.strategies.iter().find(|name| !known.contains(name)) {
            known.dedup();
            bail!(
                "unknown strategy {unknown:?}; available: {}",
                known.join(", ")
            );
        }
        Ok(chosen)
    }

    fn workload(
        &self,
        workload: Workload,
        data: &Dataset,
        chosen: &[(usize, String)],
        stores: &[LoadedEngine<'_>],
        progress: &Progress,
    ) -> Result<Vec<Row>> {
        let mut headings: Vec<Row> = Vec::new();
        let mut cases = Vec::new();
        for (group, cell) in self.cells(workload).into_iter().enumerate() {
            let strategies = chosen.iter().filter(|(at, name)| {
                workload != Workload::FillRandom || stores[*at].baseline() == *name
            });
            for (at, strategy) in strategies {
                let loaded = &stores[*at];
                let mut head = self.head(workload, data, &cell);
                head.engine = loaded.engine.name().to_owned();
                head.strategy = match workload {
                    Workload::FillRandom => "insert".to_owned(),
                    _ => strategy.clone(),
                };
                let name = format!("{} batch {} {}", head.case, head.batch, head.label());
                headings.push(head);
                cases.push(Case::new(group, name, move |turn| match workload {
                    Workload::FillRandom => loaded.fill(cell.threads, cell.batch),
                    Workload::MultiReadRandom | Workload::MultiReadWhileWriting => {
                        loaded.read(strategy, &cell, turn)
                    }
                }));
            }
        }
        // Loading is not part of the first turn's time, but its progress bar should move too.
        if workload != Workload::FillRandom {
            stores.iter().try_for_each(|loaded| loaded.ready(false))?;
        }
        let outcomes = harness::measure(cases, &self.plan, progress)?;
        Ok(self.rows(headings, &outcomes, stores))
    }

    fn cells(&self, workload: Workload) -> Vec<Cell> {
        let mut cells = Vec::new();
        let writers = match workload {
            Workload::MultiReadWhileWriting => &self.writers[..],
            Workload::MultiReadRandom | Workload::FillRandom => &[0],
        };
        for &threads in &self.threads {
            if workload == Workload::FillRandom {
                cells.extend(self.write_batches.iter().map(|&batch| Cell {
                    threads,
                    writers: 0,
                    batch,
                    hit_rate: None,
                    skew: Skew::Uniform,
                }));
                continue;
            }
            for &writers in writers {
                for &skew in &self.skews {
                    for &hit_rate in &self.hit_rates {
                        cells.extend(self.batches.iter().map(|&batch| Cell {
                            threads,
                            writers,
                            batch,
                            hit_rate: Some(hit_rate),
                            skew,
                        }));
                    }
                }
            }
        }
        cells
    }

    fn head(&self, workload: Workload, data: &Dataset, cell: &Cell) -> Row {
        Row {
            bench: self.bench.clone(),
            case: workload.name().to_owned(),
            keys: data.keys(),
            key_bytes: data.key_bytes() as u64,
            prefix_bytes: data.prefix_bytes() as u64,
            value_bytes: data.value_bytes() as u64,
            batch: cell.batch as u64,
            threads: cell.threads as u64,
            writers: (cell.writers > 0).then_some(cell.writers as u64),
            hit_rate: cell.hit_rate,
            access: cell.hit_rate.map(|_| cell.skew.to_string()),
            pages: self.pages.to_string(),
            isa: forerun_core::arch::isa().to_string(),
            rounds: self.plan.rounds as u64,
            ..Row::default()
        }
    }

    /// Fills in the outcomes of the rows; `headings` and `outcomes` are in the same order.
    fn rows(
        &self,
        headings: Vec<Row>,
        outcomes: &[Outcome],
        stores: &[LoadedEngine<'_>],
    ) -> Vec<Row> {
        let rival = |row: usize, engine: &str, strategy: &str| {
            let same = |&at: &usize| {
                outcomes[at].group == outcomes[row].group
                    && headings[at].engine == engine
                    && headings[at].strategy == strategy
            };
            let rival = (0..headings.len()).find(same)?;
            Some(outcomes[row].ratio_to(&outcomes[rival]))
        };
        let best_ratio = |row: usize| {
            let peers = (0..headings.len()).filter(|&at| {
                outcomes[at].group == outcomes[row].group
                    && headings[at].engine == headings[row].engine
            });
            let rate = |at: &usize| outcomes[*at].per_second();
            let best = peers.max_by(|a, b| rate(a).total_cmp(&rate(b)))?;
            Some(outcomes[row].ratio_to(&outcomes[best]))
        };
        let finished = (0..headings.len()).map(|at| {
            let (head, outcome) = (&headings[at], &outcomes[at]);
            let loaded = stores.iter().find(|s| s.engine.name() == head.engine);
            let baseline = loaded.map(LoadedEngine::baseline).unwrap_or_default();
            let mut row = head.clone().with_rates(
                outcome.per_second(),
                outcome.per_second_min(),
                outcome.per_second_max(),
            );
            row.inserts_per_second = outcome.beside_per_second();
            row.speedup_vs_single = rival(at, &head.engine, &baseline);
            row.share_of_best = best_ratio(at).filter(|_| head.hit_rate.is_some());
            let peer = self.peer.as_ref();
            row.speedup_vs_peer = peer.and_then(|(engine, strategy)| match head.case.as_str() {
                "fillrandom" => rival(at, engine, "insert"),
                _ => rival(at, engine, strategy),
            });
            let lines = self.lines_per_second.get(&(head.threads as usize));
            row.roofline_share = lines
                .filter(|_| head.hit_rate.is_some())
                .map(|lines| row.keys_per_second / lines);
            row
        });
        finished.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tests::MapEngine;
    use std::time::Duration;

    fn lookups() -> Lookups {
        Lookups {
            bench: "test".into(),
            data: vec![Dataset::new(500, 16, 0, 10).unwrap()],
            workloads: vec![
                Workload::MultiReadRandom,
                Workload::MultiReadWhileWriting,
                Workload::FillRandom,
            ],
            batches: vec![1, 8],
            writers: vec![1, 2],
            write_batches: vec![1, 7],
            threads: vec![1, 2],
            hit_rates: vec![1.0, 0.0],
            skews: vec![Skew::Uniform],
            strategies: vec!["batch".into()],
            peer: Some(("map".into(), "batch".into())),
            plan: Plan::new(2, Duration::from_micros(200)),
            pages: Pages::Small,
            lines_per_second: BTreeMap::from([(1, 1e8), (2, 2e8)]),
        }
    }

    fn measure(lookups: &Lookups) -> Result<Vec<Row>> {
        let mut all = Vec::new();
        lookups.measure(&[&MapEngine], &Progress::hidden(), |rows, _| {
            all.extend(rows);
            Ok(())
        })?;
        Ok(all)
    }

    #[test]
    fn every_cell_has_one_row_per_strategy_with_ratios() {
        let rows = measure(&lookups()).unwrap();
        // Two strategies (the baseline is added) in 8 cells of one workload and 16 of the other,
        // and one fill for each number of threads and size of a write.
        assert_eq!(rows.len(), 2 * (8 + 16) + 2 * 2);
        for row in &rows {
            assert!(row.keys_per_second > 0.0 && row.keys_per_second.is_finite());
            let reads = row.case != "fillrandom";
            assert_eq!(row.speedup_vs_single.is_some(), reads);
            assert_eq!(row.roofline_share.is_some(), reads);
            assert_eq!(row.hit_rate.is_some(), reads);
            assert_eq!(row.share_of_best.is_some(), reads);
            assert_eq!(
                row.inserts_per_second.is_some(),
                row.case == "multireadwhilewriting"
            );
            assert_eq!(row.writers.is_some(), row.inserts_per_second.is_some());
            if row.strategy == "single" {
                assert_eq!(row.speedup_vs_single, Some(1.0));
            }
            if row.strategy == "batch" {
                assert_eq!(row.speedup_vs_peer, Some(1.0));
            }
        }
    }

    #[test]
    fn each_engine_has_one_best_strategy_a_cell() {
        let rows = measure(&lookups()).unwrap();
        let reads: Vec<&Row> = rows.iter().filter(|row| row.hit_rate.is_some()).collect();
        for pair in reads.chunks(2) {
            let best = usize::from(pair[1].keys_per_second > pair[0].keys_per_second);
            assert_eq!(pair[best].share_of_best, Some(1.0));
        }
    }

    #[test]
    fn invalid_lists_are_refused_with_a_message() {
        let error_of = |change: &dyn Fn(&mut Lookups)| {
            let mut lookups = lookups();
            change(&mut lookups);
            format!("{:#}", measure(&lookups).unwrap_err())
        };
        let unknown = error_of(&|l| l.strategies = vec!["fast".into()]);
        assert!(
            unknown.contains("\"fast\"") && unknown.contains("single, batch"),
            "{unknown}"
        );
        assert!(error_of(&|l| l.batches = vec![0]).contains("batch"));
        assert!(error_of(&|l| l.threads = vec![0]).contains("thread"));
        assert!(error_of(&|l| l.writers = vec![0]).contains("thread"));
        assert!(error_of(&|l| l.hit_rates.clear()).contains("hit rate"));
    }
}
