//! `forerun-bench hash`: which hash table is fastest, for which keys, sizes, load factors and
//! machine.
//!
//! ```text
//!   args.rs              the command line
//!   case_studies.rs      the six studies
//!   sweep.rs             lists whose combinations are the cells
//!   keys.rs              keys, values, streams
//!   contender.rs         the interface of a table
//!   studied_designs.rs   Forerun's studied designs
//!   production_table.rs  Forerun's production table, and the same frozen
//!   table_group.rs       tables in memory
//!   run_turn.rs          one turn of a case
//!   measure/             rounds over a sweep, rows
//!   result_row.rs        a result
//!   show.rs              tables
//!   plot.rs              plots and the page
//! ```
//!
//! The bench can also measure peers: see [`run_with`].

mod args;
mod case_studies;
pub mod contender;
pub mod keys;
mod measure;
mod plot;
mod production_table;
mod result_row;
mod run_turn;
mod show;
mod studied_designs;
mod sweep;
mod table_group;

pub use args::Args;
pub use keys::Skew;
pub use result_row::HashRow;
pub use run_turn::UpdateKind;

use crate::output::{on_stdout, write_facts};
use crate::threads::Cores;
use anyhow::{Context, Result, bail, ensure};
use case_studies::Study;
use contender::Contender;
use forerun_core::Pages;
use forerun_measure::harness::Plan;
use forerun_measure::machine;
use forerun_measure::progress::Progress;
use forerun_measure::report::Report;
use forerun_measure::size::short;
use forerun_studies::roofline::Probe;
use keys::Word;
use measure::Bench;
use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;
use sweep::{Operation, Sweep};

/// A peer to measure along with the designs.
pub type Peer<'a> = &'a dyn Contender<u64, u64>;

/// Measures and prints to the standard output.
///
/// # Errors
/// Invalid lists, a table that fails or answers wrongly, or an output that cannot be written.
pub fn run(args: &Args) -> Result<()> {
    run_with(args, &[], None)
}

/// [`run`] with peers measured along with the designs where keys and values have 8 bytes: same
/// keys, same cells, same rounds, same checks. `peer` names the engine and strategy that a column
/// of ratios compares with, such as `("hashbrown", "get")`.
///
/// # Errors
/// The errors of [`run`], and errors of a peer.
pub fn run_with(args: &Args, peers: &[Peer<'_>], peer: Option<(&str, &str)>) -> Result<()> {
    on_stdout(|out| run_to(args, peers, peer, &Progress::on_terminal(), out))
}

/// [`run_with`], printing to `out`.
///
/// # Errors
/// The same as for [`run_with`].
pub fn run_to(
    args: &Args,
    peers: &[Peer<'_>],
    peer: Option<(&str, &str)>,
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<()> {
    args.output.check()?;
    let studies = args.studies()?;
    for sweep in studies.iter().flat_map(|study| &study.sweeps) {
        with_wide(peers, |all| measure::check_names(sweep, all))?;
    }
    let quick = args.output.quick;
    let buffer_bytes = if quick { 1 << 20 } else { 1 << 30 };
    let probe = Probe::new(buffer_bytes, Pages::Huge)?;
    let threads = threads(&studies);
    let lines = best_in_flight(&probe, &threads, quick)?;

    let mut facts = machine::facts();
    for (threads, (_, rate)) in &lines {
        let plural = if *threads == 1 { "" } else { "s" };
        facts.push((
            format!("random lines/s, {threads} thread{plural}"),
            short(*rate),
        ));
    }
    if !args.output.json {
        write_facts(out, &facts)?;
    }

    let bar = progress.steps("studies", 0);
    let mut report = Report::new("Hash tables", plot::INTRO);
    report.facts = facts;
    let bench = |study: &Study| Bench {
        study: study.number,
        plan: args.plan(),
        cores: Cores::available(),
        probe: &probe,
        in_flight: lines
            .iter()
            .map(|(threads, (best, _))| (*threads, *best))
            .collect(),
        memory_bytes: args.memory.saturating_sub(buffer_bytes),
        stream_len: if quick { 1 << 12 } else { 1 << 22 },
        peer: peer.map(|(engine, strategy)| (engine.to_owned(), strategy.to_owned())),
        bar: &bar,
    };
    let mut steps = 0;
    for study in &studies {
        let mut of_study = 0;
        for sweep in &study.sweeps {
            let mut count = Count {
                bench: &bench(study),
                sweep,
                steps: 0,
            };
            each_width(sweep, peers, &mut count)?;
            of_study += count.steps;
        }
        ensure!(
            of_study > 0,
            "none of the requested designs supports this: not every design supports updates during \
             reads, or narrow keys and values"
        );
        steps += of_study;
    }
    bar.set_total(steps);

    for study in &studies {
        if !args.output.json {
            writeln!(out, "\n{}", show::heading(study))?;
        }
        let mut of_study: Vec<Vec<HashRow>> = Vec::new();
        for sweep in &study.sweeps {
            let mut of_sweep = Vec::new();
            let mut emit = |rows: Vec<HashRow>| {
                if !args.output.json_rows(&rows, out)? {
                    let (constant, table) = show::table(&rows);
                    writeln!(out)?;
                    write_facts(out, &constant)?;
                    writeln!(out, "\n{}", table.to_text())?;
                    out.flush()?;
                }
                of_sweep.extend(rows);
                Ok(())
            };
            let mut measure = Measure {
                bench: &bench(study),
                sweep,
                emit: &mut emit,
            };
            each_width(sweep, peers, &mut measure)?;
            of_study.push(of_sweep);
        }
        if !args.output.json {
            let winners = show::winners(&of_study.concat());
            writeln!(out, "The fastest of each cell\n\n{}", winners.to_text())?;
        }
        plot::fill(&mut report, study, &of_study);
    }
    if !args.output.json {
        writeln!(out, "{}", show::legend(args.plan().rounds))?;
    }
    plot::finish(&mut report, args.plan().rounds);
    args.output.write_report(&report)
}

impl Args {
    /// The requested rounds and times. Turns are shorter than in other benches, since a study has
    /// thousands of them.
    fn plan(&self) -> Plan {
        let plan = self.output.plan(&self.timing);
        if self.timing.duration_ms.is_some() || self.output.quick {
            return plan;
        }
        let studies = self.all || !self.study.is_empty();
        let duration = Duration::from_millis(if studies { STUDY_MS } else { 200 });
        Plan::new(plan.rounds, duration)
    }
}

/// How long each case of a study is timed in a round, in milliseconds.
const STUDY_MS: u64 = 40;

/// The thread counts of all studies.
fn threads(studies: &[Study]) -> Vec<usize> {
    let sweeps = studies.iter().flat_map(|study| &study.sweeps);
    let mut threads: Vec<usize> = sweeps.flat_map(|sweep| sweep.threads.clone()).collect();
    threads.sort_unstable();
    threads.dedup();
    threads
}

/// For each number of threads, the lines in flight that give the highest rate, and that rate.
fn best_in_flight(
    probe: &Probe,
    threads: &[usize],
    quick: bool,
) -> Result<BTreeMap<usize, (usize, f64)>> {
    let (rounds, ms) = if quick { (1, 1) } else { (5, 20) };
    let mut best = BTreeMap::new();
    for &threads in threads {
        for in_flight in [16, 32, 64] {
            let mut rates = (0..rounds)
                .map(|round| {
                    probe.lines_per_second(threads, in_flight, round, Duration::from_millis(ms))
                })
                .collect::<Result<Vec<f64>, _>>()
                .context("measuring the random-access rate")?;
            rates.sort_by(f64::total_cmp);
            let rate = rates[rates.len() / 2];
            let entry = best.entry(threads).or_insert((in_flight, rate));
            if rate > entry.1 {
                *entry = (in_flight, rate);
            }
        }
    }
    Ok(best)
}

/// An action on the contenders for one width of keys and values.
trait Visit {
    fn visit<K: Word, V: Word>(&mut self, contenders: &[&dyn Contender<K, V>]) -> Result<()>;
}

/// Counts the steps of a sweep.
struct Count<'a> {
    bench: &'a Bench<'a>,
    sweep: &'a Sweep,
    steps: u64,
}

impl Visit for Count<'_> {
    fn visit<K: Word, V: Word>(&mut self, contenders: &[&dyn Contender<K, V>]) -> Result<()> {
        self.steps += match self.sweep.operation {
            Operation::Lookup => self.bench.steps(self.sweep, contenders),
            Operation::Write => self.bench.write_steps(self.sweep, contenders),
        };
        Ok(())
    }
}

/// Measures a sweep.
struct Measure<'a> {
    bench: &'a Bench<'a>,
    sweep: &'a Sweep,
    emit: &'a mut dyn FnMut(Vec<HashRow>) -> Result<()>,
}

impl Visit for Measure<'_> {
    fn visit<K: Word, V: Word>(&mut self, contenders: &[&dyn Contender<K, V>]) -> Result<()> {
        match self.sweep.operation {
            Operation::Lookup => self.bench.measure(self.sweep, contenders, self.emit),
            Operation::Write => self.bench.measure_writes(self.sweep, contenders, self.emit),
        }
    }
}

/// Calls `use_all` with all contenders for keys and values of 8 bytes.
fn with_wide<T>(peers: &[Peer<'_>], use_all: impl FnOnce(&[Peer<'_>]) -> T) -> T {
    let designs = studied_designs::designs();
    let production = production_table::Production::ALL;
    let mut all: Vec<Peer<'_>> = production.iter().map(|one| one as Peer<'_>).collect();
    all.extend(refs::<u64, u64>(&designs));
    all.extend(peers);
    use_all(&all)
}

/// Visits the contenders for each width of a sweep: Forerun's, and peers if they fit.
fn each_width(sweep: &Sweep, peers: &[Peer<'_>], visit: &mut impl Visit) -> Result<()> {
    for width in &sweep.widths {
        match width {
            (8, 8) => with_wide(peers, |all| visit.visit(all))?,
            (8, 4) => visit.visit(&refs::<u64, u32>(&studied_designs::designs()))?,
            (4, 8) => visit.visit(&refs::<u32, u64>(&studied_designs::designs()))?,
            (4, 4) => visit.visit(&refs::<u32, u32>(&studied_designs::designs()))?,
            (2, 8) => visit.visit(&refs::<u16, u64>(&studied_designs::designs()))?,
            (2, 4) => visit.visit(&refs::<u16, u32>(&studied_designs::designs()))?,
            (keys, values) => bail!("no table has keys of {keys} and values of {values} bytes"),
        }
    }
    Ok(())
}

fn refs<K: Word, V: Word>(designs: &[studied_designs::StudiedDesign]) -> Vec<&dyn Contender<K, V>>
where
    studied_designs::StudiedDesign: Contender<K, V>,
{
    designs
        .iter()
        .map(|design| design as &dyn Contender<K, V>)
        .collect()
}
