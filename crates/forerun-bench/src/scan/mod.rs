//! `forerun-bench scan`: short and long scans of a store whose data is in memory, forward and
//! backward.
//!
//! ```text
//!  args.rs      the command line
//!  fixture.rs   a store, loaded and warm; one turn of scans
//!  show.rs      tables, the page
//!
//!  for each state of the store                a loaded store per engine
//!    round after round                        (harness)
//!      for each threads x direction x length  a group: the engines
//! ```
//!
//! A scan opens an iterator at a random entry, reads some entries and drops the iterator. Of each
//! value it reads one byte per cache line. The bench can also measure peers: see [`run_with`].

mod args;
mod fixture;
mod show;

pub use args::{Args, Direction, Runs};

use crate::engine::{Engine, StoreLocation};
use crate::output::{on_stdout, write_facts};
use crate::panels::add_facts;
use crate::store_engine::DbEngine;
use anyhow::{Context, Result};
use args::Lists;
use fixture::{Fixture, Scans};
use forerun_measure::harness::{self, Case, Outcome};
use forerun_measure::machine;
use forerun_measure::progress::Progress;
use forerun_measure::report::Report;
use forerun_measure::result_row::Row;
use std::io::Write;

/// Measures and prints to the standard output.
///
/// # Errors
/// Invalid lists, a store that fails or answers wrongly, or an output that cannot be written.
pub fn run(args: &Args) -> Result<()> {
    run_with(args, &[], None)
}

/// [`run`] with peers measured along with the store: same entries, same scans, same rounds. A
/// column of ratios compares with the engine that `peer` names.
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
    let lists = args.lists()?;
    let mut engines: Vec<&dyn Engine> = vec![&DbEngine];
    engines.extend(peers);
    let mut facts = machine::facts();
    if !output.json {
        write_facts(out, &facts)?;
    }
    let mut all: Vec<Row> = Vec::new();
    for &runs in &lists.runs {
        let bench = Bench {
            args,
            lists: &lists,
            runs,
            peer,
            progress,
        };
        let (rows, store_facts) = bench.measure(&engines)?;
        if !output.json_rows(&rows, out)? {
            show::print(&rows, &store_facts, out)?;
        }
        add_facts(&mut facts, store_facts);
        all.extend(rows);
    }
    if !output.json {
        writeln!(out, "{}", show::legend(&all))?;
    }
    let mut report = Report::new("Scans", show::INTRO);
    report.facts = facts;
    show::fill(&mut report, &all);
    output.write_report(&report)
}

/// The measurements of the stores in one state.
struct Bench<'a> {
    args: &'a Args,
    lists: &'a Lists,
    runs: Runs,
    peer: Option<&'a str>,
    progress: &'a Progress,
}

/// One case, which is measured in every round.
#[derive(Clone, Copy)]
struct Cell {
    threads: usize,
    scans: Scans,
    /// The position of the engine.
    fixture: usize,
}

type Facts = Vec<(String, String)>;

impl Bench<'_> {
    fn measure(&self, engines: &[&dyn Engine]) -> Result<(Vec<Row>, Facts)> {
        let lists = self.lists;
        let place = StoreLocation {
            parent: self.args.dir.clone(),
            cache_bytes: Some(lists.cache_bytes),
        };
        let mut fixtures = Vec::new();
        for &engine in engines {
            let loaded = Fixture::load(engine, lists.data, self.runs, &place, self.progress);
            fixtures.push(loaded.with_context(|| format!("loading {}", engine.name()))?);
        }
        let facts = fixtures.iter().flat_map(Fixture::facts).collect();
        let mut cells = Vec::new();
        for &threads in &lists.threads {
            for &direction in &lists.directions {
                for &length in &lists.lengths {
                    let scans = Scans { direction, length };
                    cells.extend((0..fixtures.len()).map(|fixture| Cell {
                        threads,
                        scans,
                        fixture,
                    }));
                }
            }
        }
        let mut cases = Vec::new();
        for (at, &cell) in cells.iter().enumerate() {
            let fixture = &fixtures[cell.fixture];
            let name = format!(
                "{} {} {}",
                cell.scans.direction.name(),
                cell.scans.length,
                fixture.engine().name()
            );
            let group = at / fixtures.len();
            cases.push(Case::new(group, name, move |turn| {
                fixture.turn(turn, cell.scans, cell.threads)
            }));
        }
        let plan = self.args.output.plan(&self.args.timing);
        let outcomes = harness::measure(cases, &plan, self.progress)?;
        let rows = (0..cells.len()).map(|at| self.row(at, &cells, &outcomes, &fixtures));
        Ok((rows.collect(), facts))
    }

    fn row(
        &self,
        at: usize,
        cells: &[Cell],
        outcomes: &[Outcome],
        fixtures: &[Fixture<'_>],
    ) -> Row {
        let (cell, outcome) = (cells[at], &outcomes[at]);
        let data = self.lists.data;
        let is_peer = |other: &Cell| {
            (other.threads, other.scans) == (cell.threads, cell.scans)
                && Some(fixtures[other.fixture].engine().name()) == self.peer
        };
        let peer = cells.iter().position(is_peer);
        let row = Row {
            bench: "scan".into(),
            case: self.runs.name().to_owned(),
            engine: fixtures[cell.fixture].engine().name().to_owned(),
            strategy: cell.scans.direction.name().to_owned(),
            keys: data.keys(),
            key_bytes: data.key_bytes() as u64,
            prefix_bytes: data.prefix_bytes() as u64,
            value_bytes: data.value_bytes() as u64,
            batch: cell.scans.length as u64,
            threads: cell.threads as u64,
            isa: forerun_core::arch::isa().to_string(),
            rounds: self.args.output.rounds(5) as u64,
            speedup_vs_peer: peer.map(|peer| outcome.ratio_to(&outcomes[peer])),
            ..Row::default()
        };
        row.with_rates(
            outcome.per_second(),
            outcome.per_second_min(),
            outcome.per_second_max(),
        )
    }
}
