//! `forerun stats` prints a store's statistics.

use anyhow::Context;
use forerun_db::{Db, RecoveryReport, Stats};

use crate::exit::Outcome;
use crate::open_store::StoreArgs;
use crate::output::{self, Out};

/// Print the statistics of a store
///
/// Reads all of the store's default keyspace once to count its keys and their bytes. For the other
/// keyspaces it prints what the store reports.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  forerun stats cities.db
  forerun stats cities.db --json")]
pub struct Args {
    #[command(flatten)]
    store: StoreArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The output of `--json`: everything in the text, and more.
#[derive(serde::Serialize)]
struct JsonOutput<'a> {
    #[serde(flatten)]
    held: &'a Held,
    #[serde(flatten)]
    stats: &'a Stats,
    recovery: &'a RecoveryReport,
    lost_bytes: u64,
}

/// The visible keys, without deleted keys and older versions.
#[derive(Default, serde::Serialize)]
struct Held {
    keys: u64,
    key_bytes: u64,
    value_bytes: u64,
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let db = args.store.open_for_reading()?;
    let held = count(&db)?;
    let (stats, recovery) = (db.stats(), db.recovery());
    let mut out = Out::stdout();
    if args.json {
        let output = JsonOutput {
            held: &held,
            stats: &stats,
            recovery,
            lost_bytes: recovery.lost_bytes(),
        };
        let object = serde_json::to_string(&output).context("cannot write the statistics")?;
        out.line(format_args!("{object}"))?;
    } else {
        let mean = |bytes: u64| bytes.checked_div(held.keys).unwrap_or(0);
        out.line(format_args!(
            "keys       {} (keys {}, {} each; values {}, {} each)",
            output::count(held.keys),
            output::bytes(held.key_bytes),
            output::bytes(mean(held.key_bytes)),
            output::bytes(held.value_bytes),
            output::bytes(mean(held.value_bytes)),
        ))?;
        out.line(format_args!("{stats}"))?;
        out.line(format_args!("opened     {recovery}"))?;
    }
    out.finish()?;
    Ok(Outcome::Done)
}

fn count(db: &Db) -> anyhow::Result<Held> {
    let mut held = Held::default();
    let mut entries = db.iter();
    while let Some(entry) = entries.next_entry().context("cannot read the store")? {
        held.keys += 1;
        held.key_bytes += entry.key.len() as u64;
        held.value_bytes += entry.value.len() as u64;
    }
    Ok(held)
}
