//! The `forerun-bench` command: measures and stresses the Forerun code that ships.
//!
//! ```text
//! main ┬─ registry   the benches, one name each
//!      ├─ stress     random work, kills and racing clients, checked against what the store or the server must hold
//!      ├─ serve      the server that the benches of servers start: `forerun serve`
//!      ├─ index-server   the server of the study of indexes
//!      ├─ traced-lookups the process that count-lookups traces
//!      └─ pressure-child the processes that pressure watches
//! ```

#![forbid(unsafe_code)]

mod registry;
mod stress;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use forerun_bench::{count_lookups, pressure, server};
use forerun_cli::exit::{self, Outcome};
use forerun_cli::serve;

/// Measure this machine's memory and every part of Forerun, and stress-test the store, the server
/// and the GPU table
///
/// Each bench takes lists for its dimensions and measures every combination in alternating rounds.
/// --json prints one object per line, --report writes a self-contained page with plots, and --quick
/// shows within a second that everything runs.
#[derive(Debug, Parser)]
#[command(
    name = "forerun-bench",
    version,
    max_term_width = 100,
    after_help = "\
Examples:
  forerun-bench roofline --threads 1,2                     the machine's random-access rate
  forerun-bench memtable --keys 2M --batch 8,64 --strategy single,interleaved
  forerun-bench btree --keys 10M --batch 1,64 --report btree.html
  forerun-bench ycsb --records 1M --workload b,c --batch 1,64
  forerun-bench scan --length 1,100 --direction forward,backward
  forerun-bench workloads --shape hot-keyspace --report hot.html     latencies over time
  forerun-bench server --value-bytes 64 --keys 1,10,100    compared with memcached
  forerun-bench client --servers 1,4 --keys 100            a client of several servers
  forerun-bench table --rows 10M --budget 1,0.1
  forerun-bench seeds --report seeds.html                  tables of Forerun's sources beside ours
  forerun-bench stress --crash --cycles 200                kills a store's process and checks the \
  store

`forerun-bench NAME --help` lists a bench's options and more examples."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(flatten)]
    Bench(registry::Bench),
    Stress(Box<stress::Args>),
    #[command(hide = true)]
    Serve(Box<serve::Args>),
    #[command(hide = true)]
    IndexServer(Box<server::ServeArgs>),
    #[command(hide = true)]
    TracedLookups(Box<count_lookups::TracedArgs>),
    #[command(hide = true)]
    PressureChild(Box<pressure::ChildArgs>),
}

fn main() -> ExitCode {
    // A usage error ends here, with clap's own message and exit code 2.
    let cli = Cli::parse();
    match run(&cli.command) {
        Ok(outcome) => outcome.exit_code(),
        Err(error) => exit::report("forerun-bench", &error),
    }
}

fn run(command: &Command) -> anyhow::Result<Outcome> {
    forerun_bench::refuse_simulated_build()?;
    match command {
        Command::Bench(bench) => bench.run().map(|()| Outcome::Done),
        Command::Stress(args) => stress::run(args),
        Command::Serve(args) => serve::run(args),
        Command::IndexServer(args) => server::serve(args).map(|()| Outcome::Done),
        Command::TracedLookups(args) => count_lookups::run_traced(args).map(|()| Outcome::Done),
        Command::PressureChild(args) => pressure::run_child(args).map(|()| Outcome::Done),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn every_bench_has_the_name_of_its_module_and_shows_an_example() {
        let mut cli = Cli::command();
        cli.clone().debug_assert();
        cli.build();
        let modules = registry::MODULES.iter().map(|name| name.replace('_', "-"));
        let names: Vec<String> = modules.chain(["stress".to_owned()]).collect();
        let shown = cli
            .get_subcommands()
            .filter(|command| !command.is_hide_set());
        let shown: Vec<&str> = shown.map(clap::Command::get_name).collect();
        assert_eq!(
            shown
                .iter()
                .filter(|name| **name != "help")
                .collect::<Vec<_>>(),
            names.iter().collect::<Vec<_>>()
        );
        for name in &names {
            let command = cli.find_subcommand(name).expect("it is listed");
            let help = command.clone().render_long_help().to_string();
            assert!(
                help.contains(&format!("forerun-bench {name}")),
                "{name}: {help}"
            );
        }
    }
}
