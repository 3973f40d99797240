//! A simulator of the store: the real [`Db`](forerun_db::Db) on a file system in memory, with all
//! its threads and those of its clients run by one seeded scheduler.
//!
//! ```text
//!   seed ── draw ──> program: options, keyspaces, threads of steps, faults, crashes
//!             │
//!             └──> runtime ──> lifecycle ──> client threads ──> Db ──> faults ──> FaultIo
//!                                                │  writes, reads, copies
//!                                                └─> model, stamps: the expected contents
//!
//!   crate::search ──> worker processes, one seed after another ──> the first that fails ──> shrink
//! ```

mod active_readers;
mod client_thread;
mod compare;
mod copies;
mod create_race;
mod damage;
mod draw;
mod draw_additions;
mod entries;
mod faults;
mod held_iter;
mod held_snapshot;
mod key_order;
mod lifecycle;
mod limits;
mod model;
mod options;
mod other_keyspaces;
mod pops;
mod program;
mod quiescent;
mod ranges;
mod read_only;
mod reads;
mod runtime;
mod shrink;
mod simulation;
mod stamps;
mod wall_clock;
mod writes;

use std::fmt;
use std::io;
use std::ops::AddAssign;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use clap::Args;

pub use program::KeptIds;

use crate::search::{self, SeedArgs, WorkerArgs, report};
use simulation::Simulation;

/// The arguments of the simulator.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  forerun-lab sim --seconds 60          new seeds for a minute
  forerun-lab sim --seeds 100000        this many new seeds
  forerun-lab sim --seed 4711           one seed, and a shrunk history if it fails

Exit codes: 0 all seeds passed; 1 a seed failed; 2 usage error.")]
pub struct SimArgs {
    #[command(flatten)]
    seeds: SeedArgs,
    /// Run only these steps and faults of the seed, as a failing run prints them: 3-7,9.
    #[arg(long, requires = "seed")]
    only: Option<KeptIds>,
}

/// The arguments of a worker.
#[derive(Args, Debug)]
pub struct SimWorkerArgs {
    #[command(flatten)]
    seeds: WorkerArgs,
    /// Run only these steps and faults of each seed.
    #[arg(long)]
    only: Option<KeptIds>,
}

/// Runs the simulator with these arguments.
///
/// # Errors
/// A worker process cannot be started.
pub fn command(args: &SimArgs) -> anyhow::Result<ExitCode> {
    let mut search = args.seeds.search("sim", "sim-worker");
    if let Some(only) = &args.only {
        search.worker_args = only_args(only);
    }
    let progress = report::SearchProgress::new(&search);
    let (totals, found) = search::search::<Counts>(&search, &mut |totals| progress.update(totals))?;
    progress.finish();
    let shrunk = match &found {
        Some(found) if !args.seeds.no_shrink => {
            Some(shrink::shrink(found, &search, args.only.as_ref())?)
        }
        _ => None,
    };
    Ok(report::print(
        &search,
        &totals,
        found.as_ref(),
        shrunk.as_ref(),
        args.seeds.json,
    ))
}

/// Runs seeds as a worker.
///
/// # Errors
/// The output cannot be written.
pub fn work(args: &SimWorkerArgs) -> io::Result<()> {
    search::work(&args.seeds, |seed| {
        simulate(seed, args.only.as_ref(), args.seeds.trace)
    })
}

/// The arguments of a worker that runs a part of its seeds.
fn only_args(only: &KeptIds) -> Vec<String> {
    vec!["--only".to_owned(), only.to_string()]
}

/// The totals of a simulation.
#[derive(Clone, Copy, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Counts {
    /// Steps executed.
    pub operations: u64,
    /// Faults that happened.
    pub faults: u64,
    /// Crashes of the process and losses of power.
    pub kills: u64,
}

impl search::Counts for Counts {}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.operations += other.operations;
        self.faults += other.faults;
        self.kills += other.kills;
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts {
            operations,
            faults,
            kills,
        } = self;
        write!(f, "{operations} operations, {faults} faults, {kills} kills")
    }
}

/// The result of a simulation.
pub type Report = search::Report<Counts>;

/// Runs a seed, or a part of it, in this process.
pub fn simulate(seed: u64, only: Option<&KeptIds>, is_traced: bool) -> Report {
    let mut program = draw::draw(seed);
    if let Some(kept) = only {
        program = program.keep(kept);
    }
    let simulation = Arc::new(Simulation::new(program, is_traced));
    runtime::begin_history();
    simulation.note(|| format!("{:?}", simulation.program.store));
    let body = {
        let simulation = Arc::clone(&simulation);
        move || lifecycle::run(&simulation)
    };
    let ended = runtime::simulate(seed, body);
    // Equal seeds take equal steps.
    simulation.note(|| format!("hash of all steps: {:016x}", ended.schedule));
    let counts = &simulation.counts;
    Report {
        // An unplanned panic is a defect, even if the store caught it.
        finding: ended.panic.or(simulation.finding()).or(ended.stuck),
        counts: Counts {
            operations: counts.operations.load(SeqCst),
            faults: counts.faults.load(SeqCst),
            kills: counts.crashes.load(SeqCst),
        },
        trace: simulation.take_trace(),
    }
}
