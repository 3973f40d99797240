//! `forerun scan` prints entries in key order.

use std::ffi::OsString;

use anyhow::Context;

use super::get::parse_key;
use crate::exit::Outcome;
use crate::open_store::{KeyspaceArgs, StoreArgs};
use crate::output::{EntryStyle, Out};

/// Print entries in key order
///
/// Each entry is a line, key<TAB>value; control characters and bytes that are not UTF-8 are printed
/// as \xNN (--json is exact).
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  forerun scan cities.db --prefix CH/ --limit 10
  forerun scan cities.db --reverse --limit 1
  forerun scan trace.db --hex --prefix 08 --keys-only")]
pub struct Args {
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    keyspace: KeyspaceArgs,
    /// Only keys with this prefix
    #[arg(long)]
    prefix: Option<OsString>,
    /// Print entries in reverse order
    #[arg(long)]
    reverse: bool,
    /// Print at most this many entries
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// Print only keys
    #[arg(long)]
    keys_only: bool,
    /// The prefix is given and keys are printed as hexadecimal digits
    #[arg(long)]
    hex: bool,
    /// Print values as hexadecimal digits
    #[arg(long)]
    hex_values: bool,
    /// Print one JSON object per entry
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let prefix = args
        .prefix
        .as_ref()
        .map(|prefix| parse_key(prefix, args.hex))
        .transpose()?;
    let db = args.store.open_for_reading()?;
    let keyspace = args.keyspace.existing(&db)?;
    let style = EntryStyle {
        json: args.json,
        hex_keys: args.hex,
        hex_values: args.hex_values,
    };
    let mut entries = match &prefix {
        Some(prefix) => keyspace.prefix(prefix),
        None => keyspace.iter(),
    };
    let mut out = Out::stdout();
    for _ in 0..args.limit.unwrap_or(u64::MAX) {
        let entry = if args.reverse {
            entries.next_back()
        } else {
            entries.next()
        };
        let Some((key, value)) = entry.transpose().context("cannot read the next entry")? else {
            break;
        };
        if args.keys_only {
            style.print_key(&mut out, &key)?;
        } else {
            style.print(&mut out, &key, Some(&value))?;
        }
    }
    out.finish()?;
    Ok(Outcome::Done)
}
