//! `forerun-bench pressure`: a store beside a program that takes memory and gives it back, both
//! within one limit.
//!
//! ```text
//!  this process ─┬─ memory_group.rs    a control group with the limit, or files that simulate one
//!                ├─ store_process.rs   a process with a store with default options: looks up keys
//!                ├─ neighbour.rs       a process that takes memory slowly, holds it, frees it
//!                ├─ children.rs        starts both and reads what they print
//!                └─ show.rs            what was seen over time, as tables and as a page
//! ```
//!
//! The store's cache sizes itself, so it must give memory back before the group's limit is reached:
//! then the kernel kills a process of the group.

mod children;
mod memory_group;
mod neighbour;
mod show;
mod store_process;

use crate::output::{on_stdout, write_facts};
use crate::process_usage::resident_bytes_of;
use crate::skew::Skew;
use anyhow::{Context, Result, ensure};
use children::Children;
use forerun_core::size::{parse_count, parse_size};
use forerun_measure::machine;
use forerun_measure::progress::Progress;
use forerun_measure::report::Report;
use memory_group::MemoryGroup;
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A store beside a program that takes and frees memory, in a control group with a limit
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  forerun-bench pressure --report pressure.html
  forerun-bench pressure --data 1Gi --limit 768Mi --neighbour 512Mi --neighbour-rate 16Mi

The store is filled first, within the limit. Then keys are looked up in batches all the time, and \
each answer is checked, while the neighbour is without memory, takes it, and holds it, again and \
again. The run fails if the kernel kills one of them.

Only who may make control groups can set a real limit (version 1 or 2 of the memory controller). \
Otherwise the limit is simulated: the store reads it, and what both processes use, from files that \
this process writes, and nothing is killed; a run in which both together use more than the limit \
fails.")]
pub struct Args {
    /// Bytes of the records
    #[arg(long, value_name = "BYTES", default_value = "8Gi", value_parser = parse_size)]
    pub data: usize,

    /// Bytes per value
    #[arg(long, value_name = "BYTES", default_value = "1000", value_parser = parse_size)]
    pub value_bytes: usize,

    /// The limit of both processes together, with the files that the system caches for them
    #[arg(long, value_name = "BYTES", default_value = "6Gi", value_parser = parse_size)]
    pub limit: usize,

    /// What the neighbour takes
    #[arg(long, value_name = "BYTES", default_value = "4Gi", value_parser = parse_size)]
    pub neighbour: usize,

    /// What the neighbour takes per second; caches give back a sixteenth of their size per second
    #[arg(long, value_name = "BYTES", default_value = "100Mi", value_parser = parse_size)]
    pub neighbour_rate: usize,

    /// Seconds for which the neighbour has no memory; caches grow again after a calm minute
    #[arg(long, value_name = "N", default_value_t = 120)]
    pub free_s: u64,

    /// Seconds for which the neighbour holds its memory
    #[arg(long, value_name = "N", default_value_t = 60)]
    pub hold_s: u64,

    /// How often the neighbour takes its memory
    #[arg(long, value_name = "N", default_value = "2", value_parser = parse_count)]
    pub cycles: u64,

    /// Keys per batch
    #[arg(long, value_name = "N", default_value = "64", value_parser = parse_count)]
    pub batch: u64,

    /// Which keys are requested
    #[arg(long, default_value = "zipf:0.99")]
    pub access: Skew,

    /// Simulate the limit, even if a control group can be made
    #[arg(long)]
    pub simulate: bool,

    /// Directory for the store [default: the system's temporary directory]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,

    /// Use tiny sizes and times, to check that everything runs; the figures mean nothing
    #[arg(long)]
    pub quick: bool,

    /// Print one JSON object per line instead of a table
    #[arg(long)]
    pub json: bool,

    /// Also writes a self-contained page with plots
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,
}

impl Args {
    /// With the sizes and times of a quick run, if it is one.
    fn scaled(&self) -> Args {
        if !self.quick {
            return self.clone();
        }
        Args {
            data: 8 << 20,
            // The store's memtables alone may take 1 GiB.
            limit: 2 << 30,
            neighbour: 64 << 20,
            neighbour_rate: 1 << 30,
            free_s: 1,
            hold_s: 1,
            cycles: 1,
            ..self.clone()
        }
    }

    /// How often both processes are looked at.
    fn interval(&self) -> Duration {
        Duration::from_millis(if self.quick { 100 } else { 1000 })
    }
}

/// The process that looks up keys, or the neighbour.
#[derive(clap::Subcommand, Clone, Debug)]
pub enum Child {
    /// Looks up keys of a store.
    Lookups(store_process::LookupsArgs),
    /// Takes memory and frees it.
    Neighbour(neighbour::NeighbourArgs),
}

/// Arguments of [`run_child`].
#[derive(clap::Args, Clone, Debug)]
pub struct ChildArgs {
    #[command(subcommand)]
    child: Child,
}

/// Runs as one of the two processes, until the standard input ends.
///
/// # Errors
/// A store that fails or answers wrongly.
pub fn run_child(args: &ChildArgs) -> Result<()> {
    match &args.child {
        Child::Lookups(args) => store_process::run(args),
        Child::Neighbour(args) => neighbour::run(args),
    }
}

/// What the neighbour does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// It has no memory.
    #[default]
    Free,
    /// It takes memory.
    Taking,
    /// It holds what it has taken.
    Holding,
}

/// What was seen at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PressureRow {
    /// The bench: `pressure`.
    pub bench: String,
    /// Seconds since the store was filled.
    pub second: f64,
    /// What the neighbour did.
    pub neighbour: Phase,
    /// Keys found per second since the row before.
    pub keys_per_second: f64,
    /// The store's process.
    pub store_resident_bytes: u64,
    /// The neighbour's process.
    pub neighbour_resident_bytes: u64,
    /// What counts towards the limit, cached files included.
    pub group_bytes: u64,
    /// The limit.
    pub limit_bytes: u64,
    /// Whether the limit is simulated.
    pub is_simulated: bool,
}

/// Runs and prints to the standard output.
///
/// # Errors
/// A process that was killed or failed, a wrong answer, or an output that cannot be written.
pub fn run(args: &Args) -> Result<()> {
    on_stdout(|out| run_to(args, &Progress::on_terminal(), out))
}

/// [`run`], printing to `out`.
///
/// # Errors
/// The same as for [`run`].
pub fn run_to(args: &Args, progress: &Progress, out: &mut dyn Write) -> Result<()> {
    let args = args.scaled();
    ensure!(
        args.neighbour < args.limit && args.neighbour_rate > 0,
        "the neighbour must take less than the limit, at a rate above 0"
    );
    if let Some(path) = &args.report {
        std::fs::File::options()
            .append(true)
            .create(true)
            .open(path)
            .with_context(|| format!("cannot write the report {}", path.display()))?;
    }
    let group = MemoryGroup::new(args.limit as u64, args.simulate)?;
    let mut facts = machine::facts();
    facts.push(("limit".to_owned(), group.describe()));
    if !args.json {
        write_facts(out, &facts)?;
    }
    let rows = watch(&args, &group, progress)?;
    if args.json {
        for row in &rows {
            writeln!(out, "{}", serde_json::to_string(row)?)?;
        }
    } else {
        writeln!(out, "\n{}", show::table(&rows).to_text())?;
    }
    out.flush()?;
    if let Some(path) = &args.report {
        let mut report = Report::new("Memory pressure", show::INTRO);
        report.facts = facts;
        show::fill(&mut report, &rows);
        std::fs::write(path, report.to_html())
            .with_context(|| format!("cannot write the report {}", path.display()))?;
    }
    Ok(())
}

/// Starts both processes and looks at them until the neighbour has finished.
fn watch(args: &Args, group: &MemoryGroup, progress: &Progress) -> Result<Vec<PressureRow>> {
    let parent = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let dir = tempfile::tempdir_in(&parent)
        .with_context(|| format!("cannot make a directory in {}", parent.display()))?;
    let mut children = Children::start(args, group, dir.path())?;
    let filling = progress.steps("filling the store", args.data as u64);
    while !children.store.is_ready()? {
        group.update(children.resident_bytes())?;
        filling.at(children.store.said().filled_bytes);
        std::thread::sleep(Duration::from_millis(50));
    }
    drop(filling);
    children.neighbour.begin()?;
    let (begun, mut rows) = (Instant::now(), Vec::new());
    let mut before = (begun, children.store.said().keys);
    let mut next = begun + args.interval();
    loop {
        let is_finished = children.neighbour.is_finished()?;
        children.store.check()?;
        group.update(children.resident_bytes())?;
        group.check()?;
        let now = Instant::now();
        if now >= next {
            next += args.interval();
            let keys = children.store.said().keys;
            rows.push(PressureRow {
                bench: "pressure".to_owned(),
                second: (now - begun).as_secs_f64(),
                neighbour: children.neighbour.said().phase,
                keys_per_second: (keys - before.1) as f64 / (now - before.0).as_secs_f64(),
                store_resident_bytes: resident_bytes_of(children.store.id()).unwrap_or(0),
                neighbour_resident_bytes: resident_bytes_of(children.neighbour.id()).unwrap_or(0),
                group_bytes: group.used_bytes(),
                limit_bytes: args.limit as u64,
                is_simulated: group.is_simulated(),
            });
            before = (now, keys);
        }
        if is_finished {
            return Ok(rows);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
