//! `forerun multiget` looks up many keys in batches.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use forerun_db::Values;
use forerun_measure::progress::Progress;

use crate::exit::{self, Outcome};
use crate::input::Source;
use crate::input::key_list::Keys;
use crate::open_store::{KeyspaceArgs, StoreArgs};
use crate::output::{self, EntryStyle, Named, Out};

/// Look up a list of keys in batches
///
/// Each key that is found is printed as a line, key<TAB>value, in the order of the list; control
/// characters and bytes that are not UTF-8 are printed as \xNN (--json is exact). A summary goes to
/// standard error. The exit code is 1 if a key is missing.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  forerun multiget cities.db --keys wanted.txt
  cut -f1 visits.tsv | forerun multiget cities.db --keys - --batch 256 --json
  forerun multiget trace.db --keys ids.hex --hex --quiet")]
pub struct Args {
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    keyspace: KeyspaceArgs,
    /// The list, one key per line, optionally compressed with gzip or xz; - for standard input
    #[arg(long, value_name = "FILE")]
    keys: PathBuf,
    /// Batch size
    #[arg(
        long,
        value_name = "N",
        default_value_t = 64,
        value_parser = clap::value_parser!(u32).range(1..=1 << 20)
    )]
    batch: u32,
    /// Keys are listed and printed as hexadecimal digits
    #[arg(long)]
    hex: bool,
    /// Print values as hexadecimal digits
    #[arg(long)]
    hex_values: bool,
    /// Print one JSON object per key; the value of a missing key is null
    #[arg(long)]
    json: bool,
    /// Print the summary only
    #[arg(long, conflicts_with = "json")]
    quiet: bool,
}

#[derive(Default)]
struct Summary {
    keys: u64,
    found: u64,
    failed: u64,
    first_error: Option<anyhow::Error>,
    looking: Duration,
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let mut list = Keys::new(Source::open(&args.keys)?, args.hex)?;
    let db = args.store.open_for_reading()?;
    let keyspace = args.keyspace.existing(&db)?;
    let mut out = Out::stdout();
    // Printed entries show the progress themselves.
    let progress = args
        .quiet
        .then(|| Progress::on_terminal().rate("multiget", None, "keys"));

    let mut summary = Summary::default();
    let (mut batch, mut values) = (Vec::new(), Values::new());
    loop {
        list.next_batch(args.batch as usize, &mut batch)?;
        if batch.is_empty() {
            break;
        }
        let began = Instant::now();
        keyspace
            .multi_get(&batch, &mut values)
            .context("cannot look up the keys")?;
        summary.looking += began.elapsed();
        print_batch(args, &batch, &values, &mut out, &mut summary)?;
        if let Some(progress) = &progress {
            progress.update(0, summary.keys);
        }
    }
    out.finish()?;
    if let Some(progress) = progress {
        progress.finish();
    }
    let missing = summary.keys - summary.found - summary.failed;
    exit::warn(format_args!(
        "{}: {} found, {} missing; looked up in {} ({} keys/s, batches of {})",
        output::counted(summary.keys, "key"),
        output::count(summary.found),
        output::count(missing),
        output::time(summary.looking),
        output::per_second(summary.keys, summary.looking),
        args.batch,
    ));
    match summary.first_error {
        Some(error) => {
            Err(error.context(format!("{} failed", output::counted(summary.failed, "key"))))
        }
        None => Ok(Outcome::partial_if(missing > 0)),
    }
}

fn print_batch(
    args: &Args,
    batch: &[Vec<u8>],
    values: &Values,
    out: &mut Out,
    summary: &mut Summary,
) -> anyhow::Result<()> {
    let style = EntryStyle {
        json: args.json,
        hex_keys: args.hex,
        hex_values: args.hex_values,
    };
    summary.keys += batch.len() as u64;
    for (at, key) in batch.iter().enumerate() {
        match values.get(at) {
            Ok(value) => {
                summary.found += u64::from(value.is_some());
                if !args.quiet && (value.is_some() || args.json) {
                    style.print(out, key, value)?;
                }
            }
            // The other keys of the batch have answers. Print those, and report this key at the
            // end.
            Err(error) => {
                summary.failed += 1;
                summary.first_error.get_or_insert_with(|| {
                    anyhow!(error).context(format!("cannot look up key {}", Named(key)))
                });
            }
        }
    }
    Ok(())
}
