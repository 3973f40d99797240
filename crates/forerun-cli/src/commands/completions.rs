//! `forerun completions` prints a shell's completion script, generated from the definition of the
//! command line.

use clap::Command;
use clap_complete::Shell;

use crate::exit::Outcome;
use crate::output::Out;

/// Print a shell's completion script
///
/// The script completes subcommands, options and the values of options. Install it where the shell
/// looks for completions, or source it from the shell's startup file.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  forerun completions bash > ~/.local/share/bash-completion/completions/forerun
  forerun completions zsh > ~/.zfunc/_forerun          a directory of $fpath
  forerun completions fish > ~/.config/fish/completions/forerun.fish
  forerun completions powershell >> $PROFILE")]
pub struct Args {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Runs the command. `cli` is the definition of the command line.
pub fn run(args: &Args, cli: &mut Command) -> anyhow::Result<Outcome> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, cli, "forerun", &mut script);
    let mut out = Out::stdout();
    out.bytes(&script)?;
    out.finish()?;
    Ok(Outcome::Done)
}
