//! `forerun-bench ycsb`: the core workloads of YCSB on [`forerun_db::Db`], and on peers.
//!
//! ```text
//!  args.rs               the command line
//!  record.rs             keys and values of a record
//!  fixture.rs            a store, loaded; its turns
//!  choose.rs             zipfian, scrambled, latest
//!  client.rs             batches, clock, checks
//!  mix.rs                workloads A to F, their operations
//!  result_row.rs         a result
//!  expected_versions.rs  what a read may find
//!  show.rs               tables, the page
//!
//!  for each cache size                        a loaded store per engine; then for each workload
//!    round after round                        (harness)
//!      for each number of threads             a group: what is compared
//!        for each batch x engine              a case: --ops operations
//! ```
//!
//! [`mix`] describes the workloads, and [`client`] how a batch is executed. The bench can also
//! measure peers: see [`run_with`].

mod args;
pub mod choose;
pub mod client;
pub mod expected_versions;
mod fixture;
pub mod mix;
pub mod record;
mod result_row;
mod show;

pub use args::Args;
pub use result_row::{Loaded, YcsbRow};

use crate::engine::{Engine, StoreLocation};
use crate::output::{Timing, on_stdout, write_facts};
use crate::panels::add_facts;
use crate::store_engine::DbEngine;
use anyhow::{Context, Result};
use args::Plan;
use fixture::{Fixture, Reservation, TurnPlan};
use forerun_measure::harness::{self, Case, Outcome};
use forerun_measure::machine;
use forerun_measure::progress::Progress;
use forerun_measure::report::Report;
use forerun_measure::result_row::Row;
use hdrhistogram::Histogram;
use mix::{Requests, Workload};
use record::{KEY_BYTES_MAX, VALUE_BYTES};
use std::cell::RefCell;
use std::io::Write;

/// Measures and prints to the standard output.
///
/// # Errors
/// Invalid lists, a store that fails or answers wrongly, or an output that cannot be written.
pub fn run(args: &Args) -> Result<()> {
    run_with(args, &[], None)
}

/// [`run`] with peers measured along with the store: same records, same operations, same rounds. A
/// column of ratios compares with the engine that `peer` names, at the same batch.
///
/// # Errors
/// The errors of [`run`], and errors of a peer.
pub fn run_with(args: &Args, peers: &[&dyn Engine], peer: Option<&str>) -> Result<()> {
    on_stdout(|out| run_to(args, peers, peer, &Progress::on_terminal(), out))
}

/// [`run_with`], printing to `out`.
///
/// # Errors
/// The same as for [`run_with`].
pub fn run_to(
    args: &Args,
    peers: &[&dyn Engine],
    peer: Option<&str>,
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<()> {
    let output = &args.output;
    output.check()?;
    let plan = args.plan()?;
    let mut engines: Vec<&dyn Engine> = vec![&DbEngine];
    engines.extend(peers);
    let mut facts = machine::facts();
    if !output.json {
        write_facts(out, &facts)?;
    }
    let bench = Bench {
        args,
        plan: &plan,
        peer,
        progress,
    };
    let mut all: Vec<YcsbRow> = Vec::new();
    for &cache_bytes in &plan.cache_bytes {
        let mut show = |rows: Vec<YcsbRow>, store_facts: Vec<(String, String)>| -> Result<()> {
            if !output.json_rows(&rows, out)? {
                show::print(&rows, &store_facts, out)?;
            }
            add_facts(&mut facts, store_facts);
            all.extend(rows);
            Ok(())
        };
        bench.measure(&engines, cache_bytes, &mut show)?;
    }
    if !output.json {
        writeln!(out, "{}", show::legend(&all))?;
    }
    let mut report = Report::new("YCSB", show::INTRO);
    report.facts = facts;
    show::fill(&mut report, &all);
    output.write_report(&report)
}

/// Receives rows and facts as soon as they are complete.
type Emit<'e> = &'e mut dyn FnMut(Vec<YcsbRow>, Vec<(String, String)>) -> Result<()>;

struct Bench<'a> {
    args: &'a Args,
    plan: &'a Plan,
    peer: Option<&'a str>,
    progress: &'a Progress,
}

/// One case, which is measured in every round.
#[derive(Clone, Copy)]
struct Cell {
    threads: usize,
    batch: usize,
    /// The position of the engine.
    fixture: usize,
}

impl Bench<'_> {
    fn measure(
        &self,
        engines: &[&dyn Engine],
        cache_bytes: Option<u64>,
        emit: Emit<'_>,
    ) -> Result<()> {
        let reservation = self.reservation();
        let place = StoreLocation {
            parent: self.args.dir.clone(),
            cache_bytes,
        };
        let mut fixtures = Vec::new();
        for &engine in engines {
            let fixture = Fixture::load(engine, reservation, place.clone(), self.progress)
                .with_context(|| {
                    format!("{} with {} records", engine.name(), reservation.records)
                })?;
            fixtures.push(fixture);
        }
        let facts = fixtures.iter().flat_map(Fixture::facts).collect();
        let loads = fixtures
            .iter()
            .map(|fixture| self.load_row(fixture, cache_bytes));
        emit(loads.collect(), facts)?;
        for &workload in &self.plan.workloads {
            let rows = self
                .workload(workload, &fixtures, cache_bytes)
                .with_context(|| format!("workload {}", workload.name()))?;
            emit(rows, Vec::new())?;
        }
        let facts = fixtures.iter().flat_map(Fixture::facts);
        let afterwards = facts.map(|(name, text)| (format!("{name}, in the end"), text));
        emit(Vec::new(), afterwards.collect())
    }

    /// The batches that a workload is measured with.
    fn batches(&self, workload: Workload) -> &[usize] {
        if workload.is_batched() {
            &self.plan.batches
        } else {
            &self.plan.batches[..1]
        }
    }

    fn rounds(&self) -> usize {
        self.args.output.rounds(5)
    }

    /// Space for the writes to one store. Its operations are drawn at random, so there may be a few
    /// more than their share.
    fn reservation(&self) -> Reservation {
        let plan = self.plan;
        let operations = |workload: Workload| {
            let turns = self.batches(workload).len() * plan.threads.len() * self.rounds();
            plan.operations.saturating_mul(turns as u64)
        };
        let writes = plan.workloads.iter().map(|&w| operations(w)).sum();
        let inserting = plan.workloads.iter().filter(|w| w.inserts());
        let inserts: u64 = inserting.map(|&w| operations(w) / 16 + 10_000).sum();
        Reservation {
            records: plan.records,
            inserts: inserts.min(writes),
            writes,
        }
    }

    fn workload(
        &self,
        workload: Workload,
        fixtures: &[Fixture<'_>],
        cache_bytes: Option<u64>,
    ) -> Result<Vec<YcsbRow>> {
        let plan = self.plan;
        let reservation = self.reservation();
        let requests = Requests::new(
            workload,
            reservation.records,
            reservation.records + reservation.inserts,
        );
        let mut cells = Vec::new();
        for &threads in &plan.threads {
            for &batch in self.batches(workload) {
                cells.extend((0..fixtures.len()).map(|fixture| Cell {
                    threads,
                    batch,
                    fixture,
                }));
            }
        }
        let latencies = cells.iter().map(|_| Ok(RefCell::new(Histogram::new(3)?)));
        let latencies: Vec<RefCell<Histogram<u64>>> = latencies.collect::<Result<_>>()?;
        let mut cases = Vec::new();
        for (cell, latencies) in cells.iter().zip(&latencies) {
            let fixture = &fixtures[cell.fixture];
            let (threads, batch) = (cell.threads, cell.batch);
            let name = format!(
                "{} batch {batch} {}",
                workload.name(),
                fixture.engine().name()
            );
            let requests = &requests;
            cases.push(Case::new(threads, name, move |turn| {
                // This is not the turn's own seed: all engines get the same operations.
                let cell_seed = (workload as u64) << 40 ^ (threads as u64) << 32 ^ batch as u64;
                let turn = TurnPlan {
                    requests,
                    batch,
                    threads,
                    operations: plan.operations,
                    checked: self.args.check || turn.round == 0,
                    seed: crate::workload::mix(cell_seed ^ (turn.round as u64) << 20),
                };
                fixture.turn(&turn, &mut latencies.borrow_mut())
            }));
        }
        let plan = self.args.output.plan(&Timing::default());
        let outcomes = harness::measure(cases, &plan, self.progress)?;
        let rows = cells.iter().enumerate().map(|(at, cell)| {
            let head = self.head(
                workload.name(),
                &fixtures[cell.fixture],
                cell.threads,
                cell.batch,
            );
            let latencies = latencies[at].borrow();
            let row = self.row(head, &outcomes[at], &latencies, cache_bytes);
            self.compare(row, at, &cells, &outcomes, fixtures)
        });
        Ok(rows.collect())
    }

    fn head(&self, case: &str, fixture: &Fixture<'_>, threads: usize, batch: usize) -> Row {
        Row {
            bench: "ycsb".into(),
            case: case.to_owned(),
            engine: fixture.engine().name().to_owned(),
            strategy: fixture.strategy(batch),
            keys: self.plan.records,
            key_bytes: KEY_BYTES_MAX as u64,
            prefix_bytes: 4,
            value_bytes: VALUE_BYTES as u64,
            batch: batch as u64,
            threads: threads as u64,
            hit_rate: Some(1.0),
            isa: forerun_core::arch::isa().to_string(),
            rounds: self.rounds() as u64,
            ..Row::default()
        }
    }

    fn row(
        &self,
        head: Row,
        outcome: &Outcome,
        latencies: &Histogram<u64>,
        cache_bytes: Option<u64>,
    ) -> YcsbRow {
        YcsbRow {
            common: head.with_rates(
                outcome.per_second(),
                outcome.per_second_min(),
                outcome.per_second_max(),
            ),
            cache_bytes,
            operations: self.plan.operations,
            batch_p50_us: micros(latencies, 0.50),
            batch_p99_us: micros(latencies, 0.99),
            loaded: None,
        }
    }

    /// Adds the ratios to batches of one, and to the peer.
    fn compare(
        &self,
        mut row: YcsbRow,
        at: usize,
        cells: &[Cell],
        outcomes: &[Outcome],
        fixtures: &[Fixture<'_>],
    ) -> YcsbRow {
        let mine = cells[at];
        let ratio = |same: &dyn Fn(&Cell) -> bool| {
            let rival = cells.iter().position(same)?;
            Some(outcomes[at].ratio_to(&outcomes[rival]))
        };
        row.common.speedup_vs_single = ratio(&|cell| {
            (cell.threads, cell.batch, cell.fixture) == (mine.threads, 1, mine.fixture)
        });
        row.common.speedup_vs_peer = self.peer.and_then(|peer| {
            ratio(&|cell| {
                (cell.threads, cell.batch) == (mine.threads, mine.batch)
                    && fixtures[cell.fixture].engine().name() == peer
            })
        });
        row
    }

    fn load_row(&self, fixture: &Fixture<'_>, cache_bytes: Option<u64>) -> YcsbRow {
        let load = &fixture.load;
        let head = Row {
            strategy: "load".into(),
            hit_rate: None,
            rounds: 1,
            ..self.head("load", fixture, 1, fixture::LOAD_BATCH)
        };
        YcsbRow {
            common: head.with_rates(load.per_second, load.per_second, load.per_second),
            cache_bytes,
            operations: self.plan.records,
            batch_p50_us: micros(&load.latencies, 0.50),
            batch_p99_us: micros(&load.latencies, 0.99),
            loaded: Some(load.loaded.clone()),
        }
    }
}

fn micros(latencies: &Histogram<u64>, share: f64) -> f64 {
    latencies.value_at_quantile(share) as f64 / 1000.0
}
