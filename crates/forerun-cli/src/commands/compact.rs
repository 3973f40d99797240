//! `forerun compact` merges all runs into the last level.

use std::time::Instant;

use anyhow::Context;
use serde_json::json;

use crate::exit::Outcome;
use crate::open_store::StoreArgs;
use crate::output::{self, Out};

/// Merge all runs of a store and reclaim the space of overwritten and deleted entries
///
/// A store compacts itself as needed. Use this command after a large load, or before a store is
/// copied or only read. It reads and writes most of the data once.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  forerun compact cities.db
  forerun compact cities.db --json")]
pub struct Args {
    #[command(flatten)]
    store: StoreArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let db = args.store.open_existing()?;
    let start = Instant::now();
    let before = held(&db);
    db.compact().context("cannot compact the store")?;
    let after = held(&db);
    db.close().context("cannot close the store")?;
    let took = start.elapsed();
    let mut out = Out::stdout();
    if args.json {
        let held = |(runs, bytes): (u64, u64)| json!({"runs": runs, "bytes": bytes});
        let seconds = took.as_secs_f64();
        let result = json!({"before": held(before), "after": held(after), "seconds": seconds});
        out.line(format_args!("{result}"))?;
        out.finish()?;
        return Ok(Outcome::Done);
    }
    for (name, (runs, bytes)) in [("before", before), ("after", after)] {
        out.line(format_args!(
            "{name:9}  {}, {}",
            output::counted(runs, "run"),
            output::bytes(bytes)
        ))?;
    }
    out.line(format_args!("took       {}", output::time(took)))?;
    out.finish()?;
    Ok(Outcome::Done)
}

/// The number of runs and their size in bytes.
fn held(db: &forerun_db::Db) -> (u64, u64) {
    let levels = db.stats().levels;
    let sum = |of: fn(&forerun_db::LevelStats) -> u64| levels.iter().map(of).sum();
    (sum(|level| level.runs as u64), sum(|level| level.bytes))
}
