//! `forerun dump` prints the contents of a store's files.

use std::path::PathBuf;

use anyhow::Context;
use forerun_db::{DescribeOptions, Options};

use crate::exit::Outcome;
use crate::output::Out;

/// Show the contents of a store's files: its manifest and runs, one run, or one page
///
/// The pages of a run are numbered from 0: first the leaves in key order, then the levels above.
/// The last page is the root. The store must not be open.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  forerun dump cities.db                        all runs, by level
  forerun dump cities.db --run 7                the metadata of run 7
  forerun dump cities.db --run 7 --page 0       its first leaf
  forerun dump cities.db --run 7 --page 0 --rows 5")]
pub struct Args {
    /// The store's directory
    #[arg(value_name = "DB")]
    path: PathBuf,
    /// Show the run with this number
    #[arg(long, value_name = "N")]
    run: Option<u64>,
    /// Show the page with this number in the run
    #[arg(long, value_name = "M", requires = "run")]
    page: Option<u32>,
    /// Show at most this many rows of the page
    #[arg(long, value_name = "ROWS", default_value_t = usize::MAX, hide_default_value = true)]
    rows: usize,
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let what = DescribeOptions {
        run: args.run,
        page: args.page,
        rows: args.rows,
    };
    let text = forerun_db::describe(&args.path, &Options::default(), what)
        .context("cannot show the store")?;
    let mut out = Out::stdout();
    out.bytes(text.as_bytes())?;
    out.finish()?;
    Ok(Outcome::Done)
}
