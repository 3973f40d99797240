//! The `forerun-lab` command: tools that look for defects of Forerun.
//!
//! ```text
//! main ┬─ sim/            the store under random schedules and faults
//!      ├─ server_sim/     the server under random clients, clocks and disks
//!      ├─ differential/   the server compared with memcached
//!      ├─ planted/        known defects, which the simulators and tests must find
//!      └─ search/         shared by the two simulators: seeds in worker processes
//! ```

#![forbid(unsafe_code)]

mod differential;
mod planted;
mod search;
mod server_sim;
mod sim;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Look for defects of Forerun.
#[derive(Parser)]
#[command(name = "forerun-lab", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the store under random schedules and faults, and check everything it does.
    Sim(sim::SimArgs),
    /// Send random commands to memcached and to this server, and compare the answers byte by byte.
    Differential(differential::Args),
    /// Run the server under random clients, clocks and disks, and check everything it does.
    ServerSim(server_sim::ServerSimArgs),
    /// Plant known defects in a copy of the sources, and check that each is found.
    Planted(planted::PlantedArgs),
    /// Run seeds for `sim`.
    #[command(hide = true)]
    SimWorker(sim::SimWorkerArgs),
    /// Run seeds for `server-sim`.
    #[command(hide = true)]
    ServerSimWorker(server_sim::ServerSimWorkerArgs),
    /// Show where the benches are.
    #[command(hide = true, disable_help_flag = true)]
    Bench(OtherProgramArgs),
    /// Show where the stress tests are.
    #[command(hide = true, disable_help_flag = true)]
    Stress(OtherProgramArgs),
}

/// Arguments of a command that belongs to another program.
#[derive(clap::Args)]
struct OtherProgramArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

impl OtherProgramArgs {
    /// Refuses to run the command: this is a simulated build, whose locks and atomics are slow.
    fn refuse(&self, what: &str, command: &[&str]) -> anyhow::Result<ExitCode> {
        let given = self.args.iter().map(String::as_str);
        let args: Vec<&str> = command.iter().copied().chain(given).collect();
        anyhow::bail!(
            "{what} run in a build without the simulator: cargo run --release -p forerun-bench -- \
             {}",
            args.join(" ")
        )
    }
}

/// The exit status of a worker.
fn ended(worked: std::io::Result<()>) -> anyhow::Result<ExitCode> {
    worked?;
    Ok(ExitCode::SUCCESS)
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Sim(args) => sim::command(&args),
        Command::Differential(args) => differential::command(&args),
        Command::ServerSim(args) => server_sim::command(&args),
        Command::Planted(args) => planted::command(&args),
        Command::SimWorker(args) => ended(sim::work(&args)),
        Command::ServerSimWorker(args) => ended(server_sim::work(&args)),
        Command::Bench(args) => args.refuse("benches", &[]),
        Command::Stress(args) => args.refuse("stress tests", &["stress"]),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("forerun-lab: {error:#}");
        ExitCode::from(2)
    })
}
