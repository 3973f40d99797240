//! The command line, and which subcommand it runs. Each subcommand's options are in its own file
//! under `commands`.

use clap::{CommandFactory, Parser, Subcommand};

use crate::commands::{
    backup, check, checkpoint, compact, completions, delete, demo, dump, get, load, man, memcached,
    multiget, put, replay, scan, serve, stats, top, warm,
};
use crate::exit::{EXIT_CODES_HELP, Outcome};

const EXAMPLES: &str = "\
Examples:
  forerun demo                                     measure the gain of batched lookups here
  forerun load cities.db cities.csv --key id       load a CSV file
  forerun get cities.db 2661552                    print one value
  forerun scan cities.db --prefix 26 --limit 5     print the first 5 entries with a prefix
  forerun multiget cities.db --keys wanted.txt     look up a list of keys in batches
  forerun replay trace.db app.trace.xz --format u32be --fill
  forerun serve --memory-limit 1GiB                serve a cache to memcached clients";

/// A key-value engine built for batched lookups
#[derive(Debug, Parser)]
#[command(name = "forerun", version, max_term_width = 100, after_help = help_tail())]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

fn help_tail() -> String {
    format!("{EXAMPLES}\n\n{EXIT_CODES_HELP}")
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    Demo(demo::Args),
    Load(load::Args),
    Put(put::Args),
    Delete(delete::Args),
    Get(get::Args),
    Multiget(multiget::Args),
    Scan(scan::Args),
    Stats(stats::Args),
    Check(check::Args),
    Compact(compact::Args),
    Checkpoint(checkpoint::Args),
    Backup(backup::Args),
    Restore(backup::RestoreArgs),
    Dump(dump::Args),
    Replay(replay::Args),
    Serve(Box<serve::Args>),
    Memcached(memcached::Args),
    Top(top::Args),
    Warm(Box<warm::Args>),
    Completions(completions::Args),
    Man(man::Args),
}

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
        Command::Memcached(args) => memcached::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Warm(args) => warm::run(&args),
        Command::Completions(args) => completions::run(&args, &mut Cli::command()),
        Command::Man(args) => man::run(&args, Cli::command()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed_and_every_command_shows_an_example() {
        let mut cli = Cli::command();
        cli.clone().debug_assert();
        cli.build();
        for command in cli
            .get_subcommands()
            .filter(|command| command.get_name() != "help")
        {
            let help = command.clone().render_long_help().to_string();
            assert!(help.contains("Example"), "{}: {help}", command.get_name());
            assert!(
                help.contains(&format!("forerun {}", command.get_name())),
                "{help}"
            );
        }
    }
}
