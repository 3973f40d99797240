//! Known defects that the simulators and tests must find: `forerun-lab planted`.
//!
//! ```text
//!   crates/forerun-lab/planted/NAME.patch ──> patches.rs: the defect, and what must find it
//!   the sources ── tree.rs ──> target/planted: a copy with all patches, built once
//!                                 └─ hunt.rs: plants one defect after the other, by a variable of the environment
//!   edit.rs   writes a patch from a copy in which it was edited
//! ```
//!
//! The product has no trace of the defects. In the copy, each patch adds a branch that runs only in
//! a process whose environment names the defect.

mod edit;
mod hunt;
mod patches;
mod tree;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, ensure};
use clap::{Args, Subcommand};

use patches::Patch;
use tree::Sources;

/// The arguments of the command.
#[derive(Args, Debug)]
pub struct PlantedArgs {
    #[command(subcommand)]
    command: PlantedCommand,
}

#[derive(Debug, Subcommand)]
enum PlantedCommand {
    /// List the defects.
    List,
    /// Check that every patch applies to the sources, alone and with all the others.
    Check(CheckArgs),
    /// Copy the sources, apply all patches, build, and check that each defect is found.
    Hunt(hunt::HuntArgs),
    /// Copy the sources with one patch, or with none for a new defect, to edit it there.
    Edit(edit::EditArgs),
    /// Write the patch from the copy that was edited.
    Save(edit::SaveArgs),
}

#[derive(Args, Debug)]
struct CheckArgs {
    /// Check also that the store and the server compile with all patches, in this copy of the
    /// sources
    #[arg(long, value_name = "DIRECTORY")]
    compile_in: Option<PathBuf>,
}

/// Runs the command.
///
/// # Errors
/// A patch is invalid or no longer applies, or a program that is needed fails.
pub fn command(args: &PlantedArgs) -> anyhow::Result<ExitCode> {
    let sources = Sources::of_this_program();
    match &args.command {
        PlantedCommand::List => {
            for patch in Patch::all(sources.root())? {
                println!("{:<28} {}", patch.name, patch.description);
            }
            Ok(ExitCode::SUCCESS)
        }
        PlantedCommand::Check(args) => {
            let patches = Patch::all(sources.root())?;
            tree::check(&sources, &patches)?;
            println!("all {} patches apply", patches.len());
            if let Some(copy) = &args.compile_in {
                tree::copy(&sources, &patches, copy)?;
                compile(copy)?;
                println!("the store and the server compile with them");
            }
            Ok(ExitCode::SUCCESS)
        }
        PlantedCommand::Hunt(args) => hunt::command(args, &sources),
        PlantedCommand::Edit(args) => edit::edit(args, &sources),
        PlantedCommand::Save(args) => edit::save(args, &sources),
    }
}

/// Checks that the product compiles in a copy. Cargo's target directory is that of the environment,
/// where the dependencies may have been checked already.
fn compile(copy: &Path) -> anyhow::Result<()> {
    let mut check = cargo(copy);
    check.args([
        "check",
        "--locked",
        "-p",
        "forerun-db",
        "-p",
        "forerun-server",
    ]);
    let status = check.status().context("cannot run cargo")?;
    ensure!(
        status.success(),
        "the sources with the planted defects do not compile in {}",
        copy.display()
    );
    Ok(())
}

/// Cargo in a copy of the sources.
fn cargo(copy: &Path) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(copy).stdin(Stdio::null());
    command
}

/// The directory that the arguments name, or this one among the build's files.
fn place(given: Option<&Path>, sources: &Sources, name: &str) -> anyhow::Result<PathBuf> {
    let default = sources.root().join("target").join(name);
    Ok(std::path::absolute(given.unwrap_or(&default))?)
}
