//! A simulator of the store: the real [`Db`](forerun_db::Db) on a file system in memory, with all
//! its threads and those of its users run by one seeded scheduler.
//!
//! ```text
//!   seed ── draw ──> program: options, keyspaces, threads of steps, faults, deaths       program.rs, draw.rs
//!             │
//!             └──── rt ──> life ──> user, user, …  ──> Db ──> faults ──> FaultIo        rt.rs, life.rs, user.rs, faults.rs
//!                                     │  writes, reads, copies
//!                                     └─> model, stamps: the expected contents             model.rs, stamps.rs, world.rs
//!
//!   search ──> worker processes, each one seed after the other ──> the first that fails ──> shrink ──> report
//! ```

mod copies;
mod damage;
mod draw;
mod faults;
mod held;
mod life;
mod limits;
mod model;
mod orders;
#[cfg(feature = "planted")]
pub mod planted;
mod program;
mod race;
mod read_only;
mod reads;
mod report;
mod rt;
pub mod search;
mod shrink;
mod stamps;
mod user;
mod wall;
pub mod worker;
mod world;
mod writes;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use clap::Args;

pub use program::Kept;

use search::Search;
use world::World;

/// The arguments of the simulator.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  forerun-lab sim --seconds 60          new seeds for a minute
  forerun-lab sim --seeds 100000        so many new seeds
  forerun-lab sim --seed 4711           one seed, and a shrunk history if it fails

Exit codes: 0 all seeds passed; 1 a seed failed; 2 usage error.")]
pub struct SimArgs {
    /// Run only this seed.
    #[arg(long, conflicts_with_all = ["seeds", "seconds", "from"])]
    seed: Option<u64>,
    /// Of that seed, run only these steps and faults, in the form that a failing seed prints:
    /// 3-7,9.
    #[arg(long, requires = "seed")]
    only: Option<Kept>,
    /// Run this many seeds.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: Option<u64>,
    /// Run seeds for this many seconds. Default: 10, unless --seeds is given.
    #[arg(long)]
    seconds: Option<u64>,
    /// The first seed. Default: taken from the clock.
    #[arg(long)]
    from: Option<u64>,
    /// Number of concurrent processes. Default: one for each core.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: Option<u16>,
    /// Plant a known defect, or each in turn, and look for it: a name, "all", or "list".
    #[cfg(feature = "planted")]
    #[arg(long, value_name = "NAME", conflicts_with_all = ["seed", "seeds", "seconds", "from"])]
    planted: Option<planted::Which>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// Print the history of a failing seed without shrinking it.
    #[arg(long)]
    no_shrink: bool,
}

/// Runs the simulator with these arguments.
///
/// # Errors
/// A worker process cannot be started.
pub fn command(args: &SimArgs) -> anyhow::Result<ExitCode> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let jobs = args.jobs.map_or(cores, usize::from);
    #[cfg(feature = "planted")]
    if let Some(which) = args.planted {
        return planted::command(which, jobs);
    }
    let first = match (args.seed, args.from) {
        (Some(seed), _) | (None, Some(seed)) => seed,
        (None, None) => clock_seed(),
    };
    let only_seed = args.seed.map(|_| 1);
    let time = match (only_seed.or(args.seeds), args.seconds) {
        (_, Some(seconds)) => Some(Duration::from_secs(seconds)),
        (None, None) => Some(Duration::from_secs(10)),
        (Some(_), None) => None,
    };
    let search = Search {
        first,
        seeds: only_seed.or(args.seeds),
        time,
        jobs,
        only: args.only.clone(),
        worker_args: Vec::new(),
    };
    let progress = report::Bar::new(&search);
    let (tally, found) = search::search(&search, &mut |tally| progress.update(tally))?;
    progress.finish();
    let shrunk = match &found {
        Some(found) if !args.no_shrink => Some(shrink::shrink(found, &search)?),
        _ => None,
    };
    Ok(report::print(
        &tally,
        found.as_ref(),
        shrunk.as_ref(),
        args.json,
    ))
}

/// A seed taken from the clock, short enough to type.
fn clock_seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| now.as_millis() as u64 % 100_000_000_000)
}

/// The result of a simulation.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Report {
    /// What is wrong, if anything is.
    pub finding: Option<String>,
    /// Steps executed.
    pub operations: u64,
    /// Faults that happened.
    pub faults: u64,
    /// Deaths of the process and losses of power.
    pub kills: u64,
    /// What happened, line by line, if requested.
    pub trace: Vec<String>,
    /// The numbers of all steps and faults, if requested.
    pub ids: Vec<u32>,
}

/// Runs a seed, or a part of it, in this process.
pub fn simulate(seed: u64, only: Option<&Kept>, is_traced: bool) -> Report {
    let mut program = draw::draw(seed);
    if let Some(kept) = only {
        program = program.keep(kept);
    }
    let ids = match is_traced {
        true => program.ids(),
        false => Vec::new(),
    };
    let world = Arc::new(World::new(program, is_traced));
    rt::begin_history();
    world.note(|| format!("{:?}", world.program.store));
    let body = {
        let world = Arc::clone(&world);
        move || life::run(&world)
    };
    let ended = rt::simulate(seed, body);
    let counts = &world.counts;
    Report {
        finding: world.finding().or(ended.err()),
        operations: counts.operations.load(SeqCst),
        faults: counts.faults.load(SeqCst),
        kills: counts.deaths.load(SeqCst),
        trace: world.take_trace(),
        ids,
    }
}
