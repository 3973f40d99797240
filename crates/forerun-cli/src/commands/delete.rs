//! `forerun delete` deletes keys or ranges of keys from a store.

use std::ffi::OsString;

use anyhow::Context;
use forerun_db::WriteBatch;
use serde_json::json;

use crate::commands::get::parse_key;
use crate::exit::Outcome;
use crate::open_store::{DurabilityArg, KeyspaceArgs, StoreArgs};
use crate::output::Out;

/// Delete keys from a store
///
/// All keys and ranges are deleted in one batch: either all of them or none. Deleting a key that
/// does not exist is not an error. --range deletes every key from START up to, but not including,
/// END. A range of a million keys costs as much as a range of one.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  forerun delete cities.db 2661552 2661604
  forerun delete cities.db --range CH/ CH0
  forerun delete cities.db CH --keyspace countries --json")]
pub struct Args {
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    keyspace: KeyspaceArgs,
    /// The keys
    #[arg(required_unless_present = "range", value_name = "KEY")]
    keys: Vec<OsString>,
    /// Delete every key from START up to, but not including, END; may be repeated
    #[arg(
        long,
        num_args = 2,
        value_names = ["START", "END"],
        conflicts_with = "keys",
        action = clap::ArgAction::Append
    )]
    range: Vec<OsString>,
    /// Keys are hexadecimal digits
    #[arg(long)]
    hex: bool,
    /// Durability of the deletion when the command ends
    #[arg(long, value_enum, default_value_t = DurabilityArg::Synced)]
    durability: DurabilityArg,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let parse = |keys: &[OsString]| -> Result<Vec<Vec<u8>>, _> {
        keys.iter().map(|key| parse_key(key, args.hex)).collect()
    };
    let (keys, range) = (parse(&args.keys)?, parse(&args.range)?);
    let db = args.store.open_existing()?;
    let keyspace = args.keyspace.existing(&db)?;
    let mut batch = WriteBatch::new();
    {
        let mut batch = batch.keyspace(&keyspace);
        for key in &keys {
            batch.delete(key).context("cannot delete the key")?;
        }
        // The option takes two values each time.
        for [start, end] in range.as_chunks::<2>().0 {
            batch
                .delete_range(start, end)
                .context("cannot delete the range")?;
        }
    }
    db.write(&batch, args.durability.into())
        .context("cannot delete from the store")?;
    drop(keyspace);
    db.close().context("cannot close the store")?;
    if args.json {
        // Whether a deleted key existed is not looked up.
        let (keys, ranges) = (keys.len(), range.len() / 2);
        let mut out = Out::stdout();
        out.line(format_args!("{}", json!({"keys": keys, "ranges": ranges})))?;
        out.finish()?;
    }
    Ok(Outcome::Done)
}
