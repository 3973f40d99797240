//! `forerun-bench count-lookups`: what a lookup in one run costs, in events instead of time.
//!
//! ```text
//!   suspensions         of the searches of pages, as coroutines                       everywhere
//!   instructions, lines a traced process, single-stepped          stepping.rs         x86-64 Linux that allows ptrace
//!   cycles, misses      the CPU's counters                        cpu_counters.rs     Linux, if the kernel allows them
//!
//!   counted_lookups.rs  what is counted, in this process and in the traced one
//!   result_row.rs       a result
//! ```

mod counted_lookups;
#[cfg(target_os = "linux")]
mod cpu_counters;
#[cfg(not(target_os = "linux"))]
#[path = "cpu_counters_none.rs"]
mod cpu_counters;
mod result_row;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod stepping;
#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
#[path = "stepping_none.rs"]
mod stepping;

pub use counted_lookups::{TracedArgs, run_traced};
pub use result_row::CountRow;

use crate::lookup_page::or_dash;
use crate::output::{Output, on_stdout, or, write_facts};
use anyhow::{Result, ensure};
use counted_lookups::Lookups;
use forerun_core::size::{parse_count, parse_size};
use forerun_measure::machine;
use forerun_measure::progress::Progress;
use forerun_measure::report::{Report, Section};
use forerun_measure::size::digits;
use forerun_measure::text_table::TextTable;
use result_row::Event;
use std::io::Write;

const INTRO: &str = "What a lookup in one run costs in suspensions, instructions, cache lines and \
                     the events that the CPU counts.";

/// What a lookup in one run costs in instructions, cache lines, cycles and misses
#[derive(clap::Args, Clone, Debug, Default, PartialEq)]
#[command(after_help = "\
Example: forerun-bench count-lookups --keys 2M --batch 1,64 --strategy plain,key-prefixes,index

Instructions and lines are those of 64 lookups of a process that runs step by step. A line counts \
once however often it is read; lines of the stack, of the heap's small blocks (keys and answers \
among them) and of the program's files do not count. Where the system allows no tracing, or the \
CPU's counters are not available, the columns are empty and a line below says why.")]
pub struct Args {
    /// Entries of the run [default: 2M; with --quick 2000]
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub keys: Option<u64>,

    /// Keys per batch [default: 1,64]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_size)]
    pub batch: Vec<usize>,

    /// Strategies of `forerun-bench btree` [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub strategy: Vec<String>,

    /// Formats.
    #[command(flatten)]
    pub output: Output,
}

/// Counts and prints to the standard output.
///
/// # Errors
/// Invalid lists, a failing run, or an output that cannot be written.
pub fn run(args: &Args) -> Result<()> {
    on_stdout(|out| run_to(args, &Progress::on_terminal(), out))
}

/// [`run`], printing to `out`.
///
/// # Errors
/// The same as for [`run`].
pub fn run_to(args: &Args, progress: &Progress, out: &mut dyn Write) -> Result<()> {
    args.output.check()?;
    let quick = args.output.quick;
    let lookups = Lookups {
        keys: args.keys.unwrap_or(if quick { 2000 } else { 2_000_000 }),
        stepped: if quick { 2 } else { 64 },
        counted: if quick { 64 } else { 1 << 17 },
    };
    let batches = or(&args.batch, &[1, 64]);
    ensure!(!batches.contains(&0), "a batch needs at least one key");
    let store = lookups.store()?;
    let cases = counted_lookups::cases(&args.strategy, &batches)?;
    let bar = progress.steps("counting", cases.len() as u64);
    let stepped = stepping::count(&lookups, &cases);
    let mut rows = Vec::new();
    for (at, (strategy, batch)) in cases.iter().enumerate() {
        bar.set_status(strategy);
        let mut row = CountRow {
            bench: "count-lookups".to_owned(),
            strategy: strategy.clone(),
            keys: lookups.keys,
            batch: *batch as u64,
            suspensions_per_key: lookups.suspensions(&store, strategy)?,
            ..CountRow::default()
        };
        if let Ok(counts) = &stepped {
            row.instructions_per_key = Some(counts[at].instructions);
            row.lines_per_key = Some(counts[at].lines);
        }
        let mut count = |event| lookups.count(&store, strategy, *batch, event);
        row.add_events(&mut count)?;
        rows.push(row);
        bar.step();
    }
    let mut notes = Vec::new();
    if let Err(why) = &stepped {
        notes.push(format!("instructions and lines were not counted: {why:#}"));
    }
    if let Some(why) = cpu_counters::refusal(Event::Cycles) {
        notes.push(format!("cycles and misses were not counted: {why}"));
    }
    if args.output.json_rows(&rows, out)? {
        notes.iter().for_each(|note| eprintln!("{note}"));
    } else {
        write_facts(out, &machine::facts())?;
        writeln!(out, "\n{}\n{}", table(&rows).to_text(), notes.join("\n"))?;
    }
    let mut report = Report::new("The cost of a lookup", INTRO);
    report.facts = machine::facts();
    report.sections.push(Section::Table {
        caption: "Per key".to_owned(),
        table: table(&rows),
    });
    report.sections.extend(notes.into_iter().map(Section::Text));
    args.output.write_report(&report)
}

fn table(rows: &[CountRow]) -> TextTable {
    let mut table = TextTable::new([
        "batch",
        "strategy",
        "suspensions",
        "instructions",
        "lines",
        "cycles",
        "per cycle",
        "L1D misses",
        "last-level misses",
        "backend bound %",
    ]);
    for row in rows {
        let figures = [
            row.suspensions_per_key,
            row.instructions_per_key,
            row.lines_per_key,
            row.cycles_per_key,
            row.instructions_per_cycle,
            row.l1d_misses_per_key,
            row.llc_misses_per_key,
            row.backend_bound_percent,
        ];
        let figures = figures.map(|figure| or_dash(figure, digits));
        table.push(
            [row.batch.to_string(), row.strategy.clone()]
                .into_iter()
                .chain(figures),
        );
    }
    table
}
