//! `forerun man` writes manual pages, generated from the definition of the command line.
//!
//! clap_mangen renders what clap knows: names, synopsis, description, options, subcommands. The
//! text after the options (examples, exit codes) is preformatted in the help. It keeps its lines
//! here too, with a section for each heading.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use crate::exit::Outcome;

/// Write manual pages, one for each subcommand
///
/// The pages are forerun.1, forerun-get.1 and so on. Existing files of these names are overwritten.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  forerun man --out man
  man -l man/forerun-serve.1
  forerun man --out ~/.local/share/man/man1            where man finds them")]
pub struct Args {
    /// The directory to write to; created if it is missing
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

/// Runs the command. `cli` is the definition of the command line.
pub fn run(args: &Args, cli: Command) -> anyhow::Result<Outcome> {
    let dir = &args.out;
    fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    // `help` would add another page for each subcommand. Disable it before the command is built.
    let mut command = cli.disable_help_subcommand(true);
    command.build();
    write_pages(&command, dir)?;
    Ok(Outcome::Done)
}

/// Writes the page of `command` and those of its subcommands.
fn write_pages(command: &Command, dir: &Path) -> anyhow::Result<()> {
    for subcommand in visible_subcommands(command) {
        write_pages(subcommand, dir)?;
    }
    let man = Man::new(command.clone());
    let path = dir.join(man.get_filename());
    fs::write(&path, page(command, &man)?)
        .with_context(|| format!("cannot write {}", path.display()))
}

fn visible_subcommands(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|c| !c.is_hide_set())
}

/// A page as roff.
fn page(command: &Command, man: &Man) -> std::io::Result<Vec<u8>> {
    let name = command.get_display_name().unwrap_or("forerun");
    // The date is empty. clap_mangen omits it, and the next field would be taken for the date.
    let mut page = format!(
        ".TH {} 1 \"\" \"forerun {}\" \"Forerun Manual\"\n",
        name.to_uppercase(),
        env!("CARGO_PKG_VERSION")
    )
    .into_bytes();
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if visible_subcommands(command).next().is_some() {
        man.render_subcommands_section(&mut page)?;
    }
    if let Some(text) = command.get_after_help() {
        preformatted(&text.to_string()).to_writer(&mut page)?;
    }
    // The page of a subcommand refers to the page of its parent command.
    if let Some((parent, _)) = name.rsplit_once('-') {
        let mut see_also = Roff::new();
        see_also.control("SH", ["SEE ALSO"]);
        see_also.text([roman(format!("{parent}(1)"))]);
        see_also.to_writer(&mut page)?;
    }
    Ok(page)
}

/// Renders `Heading:` and its indented lines as sections that keep their lines.
fn preformatted(text: &str) -> Roff {
    let mut roff = Roff::new();
    let mut filled = true;
    for line in text.lines() {
        let heading = line
            .strip_suffix(':')
            .filter(|heading| !heading.starts_with(' '));
        if heading.is_some() && !filled {
            roff.control("fi", []);
            filled = true;
        }
        match heading {
            Some(heading) => {
                roff.control("SH", [heading.to_uppercase().as_str()]);
            }
            None if line.is_empty() => {}
            None => {
                if filled {
                    roff.control("nf", []);
                    filled = false;
                }
                roff.text([roman(line.strip_prefix("  ").unwrap_or(line))]);
            }
        }
    }
    if !filled {
        roff.control("fi", []);
    }
    roff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headings_become_sections_and_lines_stay_lines() {
        let text = "Examples:\n  forerun get db k\n  .hidden\n\nExit codes:\n  0  done";
        let roff = preformatted(text).to_roff();
        assert_eq!(
            roff,
            ".SH EXAMPLES\n.nf\nforerun get db k\n\\&.hidden\n.fi\n.SH \"EXIT CODES\"\n.nf\n0  \
             done\n.fi\n"
        );
    }
}
