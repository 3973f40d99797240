//! `forerun checkpoint` copies a store.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Context;
use serde_json::json;

use crate::exit::Outcome;
use crate::open_store::StoreArgs;
use crate::output::{self, Out};

/// Copy the present state of a store to another directory
///
/// The copy is an independent store. If DIR is on the same file system, runs are hard-linked and
/// not copied, so a checkpoint takes almost no time and space. DIR must not exist yet or be empty,
/// and it must be outside the store.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  forerun checkpoint cities.db backup.db
  forerun check backup.db")]
pub struct Args {
    #[command(flatten)]
    store: StoreArgs,
    /// The directory of the copy
    #[arg(value_name = "DIR")]
    into: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let db = args.store.open_existing()?;
    let start = Instant::now();
    db.checkpoint(&args.into)
        .context("cannot create the checkpoint")?;
    db.close().context("cannot close the store")?;
    let took = start.elapsed();
    let mut out = Out::stdout();
    let into = args.into.display();
    if args.json {
        let path = into.to_string();
        let result = json!({"path": path, "seconds": took.as_secs_f64()});
        out.line(format_args!("{result}"))?;
    } else {
        out.line(format_args!(
            "created the store {into} in {}",
            output::time(took)
        ))?;
    }
    out.finish()?;
    Ok(Outcome::Done)
}
