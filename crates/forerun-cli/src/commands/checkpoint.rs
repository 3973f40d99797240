//! `forerun checkpoint` copies a store.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use forerun_core::size::parse_count;
use forerun_db::FileCopyOptions;
use forerun_measure::progress::Progress;
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
  forerun checkpoint cities.db /mnt/backup.db --rate 50MiB
  forerun check backup.db")]
pub struct Args {
    #[command(flatten)]
    store: StoreArgs,
    /// The directory of the copy
    #[arg(value_name = "DIR")]
    into: PathBuf,
    /// Maximum number of bytes to copy per second, such as 50MiB, if runs cannot be linked
    #[arg(long, value_name = "SIZE", value_parser = parse_count)]
    rate: Option<u64>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let db = args.store.open_existing()?;
    let start = Instant::now();
    let made = with_progress("checkpoint", args.rate, |options| {
        db.checkpoint_with(&args.into, &options)
    });
    made.context("cannot create the checkpoint")?;
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

/// Runs a copy at a rate, with a progress bar.
pub(super) fn with_progress<T>(
    what: &str,
    rate: Option<u64>,
    copy: impl FnOnce(FileCopyOptions) -> T,
) -> T {
    let progress = Arc::new(Progress::on_terminal().rate(what, Some(0), "bytes"));
    let bar = Arc::clone(&progress);
    let options = FileCopyOptions::default().rate_bytes(rate);
    let copied = copy(options.on_progress(move |of| {
        bar.set_total(of.total_bytes);
        bar.update(of.done_bytes, of.done_bytes);
    }));
    progress.clear();
    copied
}
