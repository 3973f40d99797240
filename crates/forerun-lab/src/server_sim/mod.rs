//! The server under random clients, clocks and disks: `forerun-lab server-sim`.
//!
//! ```text
//!   seed ──> plan/: a plan ──> simulation/: acceptor, workers, clients, disk, one step at a time ──> checks
//!                               │ net/       sockets in memory, an edge-triggered poll
//!                               │ system.rs  clocks, a disk in memory, threads that take turns
//!                               │ client.rs  a client: wire.rs (plain or TLS), answers/, frames.rs
//!                               └ model.rs, checks.rs, copies.rs  what must hold
//!   failing plan ──> shrink.rs: a smaller one that fails in the same way
//! ```
//!
//! The server is the real one, from its accepting thread to its sessions and snapshots; only its
//! calls to the system are simulated. One thread runs everything, so a seed always gives the same
//! run.

mod answers;
mod checks;
mod client;
mod copies;
mod counts;
mod disk;
mod frames;
mod model;
mod net;
mod plan;
mod report;
mod shrink;
mod simulation;
mod system;
mod wire;

#[cfg(test)]
mod tests;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use clap::Args;

use crate::search::{self, Report, SeedArgs, WorkerArgs};
use checks::Failure;
pub use counts::Counts;
use plan::Plan;
use simulation::Simulation;

/// The arguments of the server's simulator.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  forerun-lab server-sim --seconds 60             new seeds for a minute
  forerun-lab server-sim --from 1 --seeds 1000    these seeds
  forerun-lab server-sim --seed 4711              one seed, and a shrunk plan if it fails

Exit codes: 0 all seeds passed; 1 a seed failed; 2 usage error.")]
pub struct ServerSimArgs {
    #[command(flatten)]
    seeds: SeedArgs,
}

/// The arguments of a worker.
#[derive(Args, Debug)]
pub struct ServerSimWorkerArgs {
    #[command(flatten)]
    seeds: WorkerArgs,
}

/// The command.
///
/// # Errors
/// A worker process cannot be started, or nothing can be simulated.
pub fn command(args: &ServerSimArgs) -> anyhow::Result<ExitCode> {
    let search = args.seeds.search("server-sim", "server-sim-worker");
    let progress = search::report::SearchProgress::new(&search);
    let (totals, found) = search::search::<Counts>(&search, &mut |totals| progress.update(totals))?;
    progress.finish();
    let shrunk = match &found {
        // A plan that does not end must not be played in this process.
        Some(found) if found.has_ended && !args.seeds.no_shrink => {
            Some(report::shrink_plan(&Plan::draw(found.seed))?)
        }
        _ => None,
    };
    Ok(search::report::print(
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
pub fn work(args: &ServerSimWorkerArgs) -> io::Result<()> {
    search::work(&args.seeds, |seed| match play(&Plan::draw(seed)) {
        Ok(PlayResult { ended, trace }) => Report {
            counts: ended.as_ref().copied().unwrap_or_default(),
            finding: ended.err().map(|failure| failure.to_string()),
            trace: if args.seeds.trace { trace } else { Vec::new() },
        },
        Err(error) => Report {
            finding: Some(format!("nothing can be simulated: {error:#}")),
            ..Report::default()
        },
    })
}

/// The outcome of a plan.
struct PlayResult {
    ended: Result<Counts, Failure>,
    /// The last lines of its history.
    trace: Vec<String>,
}

/// Plays a plan. A panic of the server is a failure like any other.
fn play(plan: &Plan) -> anyhow::Result<PlayResult> {
    let certificates = wire::certificates()?;
    let played = catch_unwind(AssertUnwindSafe(|| {
        let mut simulation = match Simulation::new(plan, certificates) {
            Ok(simulation) => simulation,
            Err(failure) => {
                return PlayResult {
                    ended: Err(failure),
                    trace: Vec::new(),
                };
            }
        };
        let ended = simulation.run().map(|()| simulation.counts);
        let trace = simulation.trace.iter().cloned().collect();
        PlayResult { ended, trace }
    }));
    Ok(played.unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        PlayResult {
            ended: Err(Failure::new("panic", text.unwrap_or_default())),
            trace: Vec::new(),
        }
    }))
}
