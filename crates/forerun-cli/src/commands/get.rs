//! `forerun get` prints the values of a few keys.

use std::ffi::OsString;

use anyhow::{Context, anyhow};
use forerun_db::Values;

use crate::exit::{self, Outcome, UsageError};
use crate::open_store::{KeyspaceArgs, StoreArgs};
use crate::output::{EntryStyle, Named, Out, parse_hex};

/// Print the values of keys
///
/// The value of a single key is printed as it is, followed by a line end. With several keys, each
/// key that is found is printed as a line, key<TAB>value, in the order of the arguments; control
/// characters and bytes that are not UTF-8 are printed as \xNN. --json prints values that are JSON
/// objects or arrays as JSON, and all other bytes exactly. Missing keys are reported on standard
/// error, and the exit code is 1.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  forerun get cities.db CH/Biel/47.13713,7.24608
  forerun get cities.db 2661552 2661604 --json
  forerun get cities.db CH --keyspace countries
  forerun get trace.db --hex 0800002a --hex-values")]
pub struct Args {
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    keyspace: KeyspaceArgs,
    /// The keys
    #[arg(required = true, value_name = "KEY")]
    keys: Vec<OsString>,
    /// Keys are given and printed as hexadecimal digits
    #[arg(long)]
    hex: bool,
    /// Print values as hexadecimal digits
    #[arg(long)]
    hex_values: bool,
    /// Print one JSON object per key; the value of a missing key is null
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let keys: Vec<Vec<u8>> = args
        .keys
        .iter()
        .map(|key| parse_key(key, args.hex))
        .collect::<Result<_, _>>()?;
    let db = args.store.open_for_reading()?;
    let keyspace = args.keyspace.existing(&db)?;
    let mut values = Values::new();
    keyspace
        .multi_get(&keys, &mut values)
        .context("cannot look up the keys")?;

    let style = EntryStyle {
        json: args.json,
        hex_keys: args.hex,
        hex_values: args.hex_values,
    };
    let alone = keys.len() == 1 && !args.json;
    let mut out = Out::stdout();
    let mut missing = false;
    for (at, key) in keys.iter().enumerate() {
        let value = values
            .get(at)
            .map_err(|error| anyhow!(error).context(format!("key {}", Named(key))))?;
        match value {
            Some(value) if alone => style.print_value(&mut out, value)?,
            Some(value) => style.print(&mut out, key, Some(value))?,
            None => {
                missing = true;
                if args.json {
                    style.print(&mut out, key, None)?;
                }
                exit::warn(format_args!("key {} not found", Named(key)));
            }
        }
    }
    out.finish()?;
    Ok(Outcome::partial_if(missing))
}

/// Parses a key argument.
pub fn parse_key(key: &OsString, hex: bool) -> Result<Vec<u8>, UsageError> {
    let bytes = key.as_encoded_bytes();
    if hex {
        parse_hex(bytes).map_err(UsageError)
    } else {
        Ok(bytes.to_vec())
    }
}
