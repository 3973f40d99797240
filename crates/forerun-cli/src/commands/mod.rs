//! The subcommands, one per file. Each file has its `Args` and a `run` function.

pub mod backup;
pub mod check;
pub mod checkpoint;
pub mod compact;
pub mod completions;
pub mod delete;
pub mod demo;
pub mod dump;
pub mod get;
pub mod load;
pub mod man;
pub mod multiget;
pub mod put;
pub mod replay;
pub mod scan;
pub mod serve;
pub mod stats;

use crate::cli::{Cli, Command};
use crate::exit::Outcome;

/// Runs the subcommand.
pub fn run(cli: Cli) -> anyhow::Result<Outcome> {
    match cli.command {
        Command::Demo(args) => demo::run(&args),
        Command::Load(args) => load::run(&args),
        Command::Put(args) => put::run(&args),
        Command::Delete(args) => delete::run(&args),
        Command::Get(args) => get::run(&args),
        Command::Multiget(args) => multiget::run(&args),
        Command::Scan(args) => scan::run(&args),
        Command::Stats(args) => stats::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Compact(args) => compact::run(&args),
        Command::Checkpoint(args) => checkpoint::run(&args),
        Command::Backup(args) => backup::run(&args),
        Command::Restore(args) => backup::restore(&args),
        Command::Dump(args) => dump::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args),
    }
}
