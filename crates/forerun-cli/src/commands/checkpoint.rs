//! `forerun checkpoint`: a copy of a store.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Context;
use serde_json::json;

use crate::exit::Outcome;
use crate::output::{self, Out};
use crate::store::StoreArgs;

/// Copy a store as it is now to another directory, where it is a store of its own
///
/// Runs are not copied but get a second name (a hard link), so that this takes no time and no
/// space, as long as DIR is on the same file system. DIR must not be there yet, or be empty.
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
        .context("cannot make the checkpoint")?;
    db.close().context("cannot close the store")?;
    let took = start.elapsed();
    let mut out = Out::stdout();
    let into = args.into.display();
    match args.json {
        true => {
            let path = into.to_string();
            let figures = json!({"path": path, "seconds": took.as_secs_f64()});
            out.line(format_args!("{figures}"))?;
        }
        false => out.line(format_args!(
            "created the store {into} in {}",
            output::time(took)
        ))?,
    }
    out.finish()?;
    Ok(Outcome::Done)
}
