//! The server under random clients, clocks and disks: `forerun-lab server-sim`.
//!
//! ```text
//!   seed ──> plan.rs: a plan ──> world.rs: acceptor, workers, clients, disk, one step at a time ──> checks
//!                                  │ net.rs     sockets in memory, an edge-triggered poll
//!                                  │ system.rs  clocks, a disk in memory, threads that take turns
//!                                  │ client.rs  a client: wire.rs (plain or TLS), answers.rs
//!                                  └ model.rs, checks.rs, copies.rs  what must hold
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
mod model;
mod net;
mod plan;
mod report;
mod shrink;
mod system;
mod wire;
mod world;

#[cfg(feature = "planted")]
mod planted;
#[cfg(test)]
mod tests;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use forerun_core::sync::random_seed;

use checks::Failure;
use plan::Plan;
use world::{Counts, World};

/// The arguments of the server's simulator.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  forerun-lab server-sim --seconds 60             new seeds for a minute
  forerun-lab server-sim --from 1 --seeds 1000    these seeds
  forerun-lab server-sim --seed 4711              one seed, and a smaller plan if it fails

Exit codes: 0 all seeds passed; 1 a seed failed; 2 usage error.")]
pub struct ServerSimArgs {
    /// Run only this seed.
    #[arg(long, conflicts_with_all = ["seeds", "seconds", "from"])]
    seed: Option<u64>,
    /// Run this many seeds.
    #[arg(
        long,
        conflicts_with = "seconds",
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    seeds: Option<u64>,
    /// Run seeds for this many seconds. Default: 30, unless --seeds is given. With --planted: for
    /// each defect.
    #[arg(long)]
    seconds: Option<u64>,
    /// The first seed. Default: taken from the clock.
    #[arg(long)]
    from: Option<u64>,
    /// Continue after a failing seed, and do not look for a smaller plan.
    #[arg(long)]
    no_shrink: bool,
    /// Plant a known defect, or each in turn, and look for it: a name, "all", or "list".
    #[cfg(feature = "planted")]
    #[arg(long, value_name = "NAME", conflicts_with_all = ["seed", "seeds", "from"])]
    planted: Option<String>,
}

/// The command.
///
/// # Errors
/// If nothing can be simulated.
pub fn command(args: &ServerSimArgs) -> anyhow::Result<ExitCode> {
    #[cfg(feature = "planted")]
    if let Some(name) = &args.planted {
        return planted::find(name, args.seconds.map(Duration::from_secs));
    }
    let seconds = Duration::from_secs(args.seconds.unwrap_or(30));
    let from = args.from.unwrap_or_else(|| random_seed() >> 24);
    let (first, count) = match args.seed {
        Some(seed) => (seed, Some(1)),
        None => (from, args.seeds),
    };
    let start = Instant::now();
    let mut totals = Totals::default();
    let mut failed = 0;
    for number in 0.. {
        let over = match count {
            Some(count) => number >= count,
            None => start.elapsed() >= seconds,
        };
        if over {
            break;
        }
        let seed = first.wrapping_add(number);
        let plan = Plan::draw(seed);
        match play(&plan)?.ended {
            Ok(counts) => totals.add(counts),
            Err(failure) if args.no_shrink => {
                failed += 1;
                println!("seed {seed} failed: {failure}");
            }
            Err(failure) => {
                report::failed(&plan, &failure)?;
                return Ok(ExitCode::FAILURE);
            }
        }
    }
    let took_s = start.elapsed().as_secs_f64();
    if failed > 0 {
        println!("{totals} in {took_s:.1} s, {failed} seeds failed");
        return Ok(ExitCode::FAILURE);
    }
    println!("{totals} in {took_s:.1} s, all clean");
    Ok(ExitCode::SUCCESS)
}

/// The outcome of a plan.
struct Played {
    ended: Result<Counts, Failure>,
    /// The last lines of its history.
    trace: Vec<String>,
}

/// Plays a plan. A panic of the server is a failure like any other.
fn play(plan: &Plan) -> anyhow::Result<Played> {
    let papers = wire::papers()?;
    let played = catch_unwind(AssertUnwindSafe(|| {
        let mut world = match World::new(plan, papers) {
            Ok(world) => world,
            Err(failure) => {
                return Played {
                    ended: Err(failure),
                    trace: Vec::new(),
                };
            }
        };
        let ended = world.run().map(|()| world.counts);
        let trace = world.trace.iter().cloned().collect();
        Played { ended, trace }
    }));
    Ok(played.unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Played {
            ended: Err(Failure::new("panic", text.unwrap_or_default())),
            trace: Vec::new(),
        }
    }))
}

#[derive(Debug, Default)]
struct Totals {
    seeds: u64,
    counts: Counts,
}

impl Totals {
    fn add(&mut self, counts: Counts) {
        self.seeds += 1;
        self.counts.steps += counts.steps;
        self.counts.answers += counts.answers;
        self.counts.faults += counts.faults;
        self.counts.snapshots += counts.snapshots;
    }
}

impl std::fmt::Display for Totals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Counts {
            steps,
            answers,
            faults,
            snapshots,
        } = self.counts;
        let seeds = self.seeds;
        write!(
            f,
            "{seeds} seeds, {answers} requests, {faults} faults, {snapshots} snapshots, {steps} steps"
        )
    }
}
